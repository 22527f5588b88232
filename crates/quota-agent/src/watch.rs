use std::collections::{BTreeMap, BTreeSet};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::pin::pin;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::inotify::{self, CreateFlags, Event, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use tokio::sync::Notify;

use crate::folder::{Folder, is_draft};

/// Maximum number of names of changed files that are kept. To look at all files takes no longer than at these.
const MAX_NAMES: usize = 1000;

/// Reports changes in folders, also those that the NFS server of this machine makes.
pub(crate) struct Watch(Arc<Shared>);

struct Shared {
    inotify: OwnedFd,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    /// What to report, by watch descriptor, and the ID of the folder.
    folders: BTreeMap<i32, (Interest, FolderId)>,
    changes: Changes,
}

/// Device and inode.
type FolderId = (u64, u64);

/// What changed in folders.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Changes {
    /// The files with these names, by folder.
    Files(BTreeMap<FolderId, BTreeSet<String>>),
    /// Folders appeared or are gone, or it is not known what changed.
    Any,
}

impl Default for Changes {
    fn default() -> Self {
        Self::Files(BTreeMap::new())
    }
}

impl Changes {
    /// Returns the names of the files in a folder that changed; `None` if all may have.
    pub fn files_in(&self, folder: &Folder) -> Option<&BTreeSet<String>> {
        const NONE: &BTreeSet<String> = &BTreeSet::new();
        match self {
            Self::Files(files) => Some(files.get(&folder.id()).unwrap_or(NONE)),
            Self::Any => None,
        }
    }

    fn add(&mut self, folder: FolderId, name: &str) {
        if let Self::Files(files) = self {
            files.entry(folder).or_default().insert(name.to_owned());
            if files.values().map(BTreeSet::len).sum::<usize>() > MAX_NAMES {
                *self = Self::Any;
            }
        }
    }
}

/// Which changes in a folder are reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interest {
    /// Files that appear, change, or disappear, except for drafts.
    Files,
    /// Folders that appear.
    Folders,
}

impl Watch {
    /// Starts a thread that waits for events until the process ends.
    pub fn new() -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            inotify: inotify::init(CreateFlags::CLOEXEC)?,
            state: Mutex::default(),
            changed: Notify::new(),
        });
        let own = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("inotify".to_owned())
            .spawn(move || own.read())?;
        Ok(Self(shared))
    }

    /// Watches a folder. A folder that is watched already is not watched twice.
    pub fn add(&mut self, folder: &Folder, interest: Interest) -> std::io::Result<()> {
        let path = format!("/proc/self/fd/{}", folder.fd().as_raw_fd());
        let arrivals = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::ONLYDIR;
        let changes = match interest {
            Interest::Files => WatchFlags::CLOSE_WRITE | WatchFlags::DELETE | WatchFlags::MOVED_FROM,
            Interest::Folders => WatchFlags::empty(),
        };
        // Locked first, so that no event comes before the folder is known.
        let mut state = self.0.state.lock();
        let watch = inotify::add_watch(&self.0.inotify, path, arrivals | changes)?;
        state.folders.insert(watch, (interest, folder.id()));
        Ok(())
    }

    /// Waits for a change since the last call, or since the last call of [`take_changes`](Self::take_changes).
    pub async fn changed(&self) {
        self.0.changed.notified().await;
    }

    /// Returns the changes since the last call.
    pub fn take_changes(&self) -> Changes {
        let mut notified = pin!(self.0.changed.notified());
        // Takes the notification, if there is one. A change that comes from now on has its own.
        notified.as_mut().enable();
        std::mem::take(&mut self.0.state.lock().changes)
    }
}

impl State {
    /// Records an event. Returns whether it is reported.
    fn record(&mut self, event: &Event<'_>) -> bool {
        match (self.folders.get(&event.wd()), event.file_name()) {
            (Some((Interest::Files, folder)), Some(name)) => match name.to_str() {
                Ok(name) if !is_draft(name.as_bytes()) => self.changes.add(*folder, name),
                // Nobody reads it.
                _ => return false,
            },
            // The folder itself is gone.
            (Some((Interest::Files, _)), None) => self.changes = Changes::Any,
            (Some((Interest::Folders, _)), _) if event.events().contains(ReadFlags::ISDIR) => {
                self.changes = Changes::Any;
            }
            (None, _) if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => self.changes = Changes::Any,
            _ => return false,
        }
        true
    }
}

impl Shared {
    fn read(&self) {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(&self.inotify, &mut buffer);
        loop {
            match reader.next() {
                Ok(event) => {
                    if self.state.lock().record(&event) {
                        self.changed.notify_one();
                    }
                }
                Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!("folders are not watched anymore, so orders are noticed late: {error}");
                    return;
                }
            }
        }
    }
}
