use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use tokio::sync::Notify;

use crate::folder::is_draft;

/// Reports changes in folders, also those that the NFS server of this machine makes.
pub(crate) struct Watch(Arc<Shared>);

struct Shared {
    inotify: OwnedFd,
    /// What to report, by watch descriptor.
    folders: Mutex<BTreeMap<i32, Interest>>,
    changed: Notify,
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
            folders: Mutex::default(),
            changed: Notify::new(),
        });
        let own = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("inotify".to_owned())
            .spawn(move || own.read())?;
        Ok(Self(shared))
    }

    /// Watches a folder. A folder that is watched already is not watched twice.
    pub fn add(&mut self, folder: BorrowedFd<'_>, interest: Interest) -> std::io::Result<()> {
        let path = format!("/proc/self/fd/{}", folder.as_raw_fd());
        let arrivals = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::ONLYDIR;
        let changes = match interest {
            Interest::Files => WatchFlags::CLOSE_WRITE | WatchFlags::DELETE | WatchFlags::MOVED_FROM,
            Interest::Folders => WatchFlags::empty(),
        };
        // Locked first, so that no event comes before the folder is known.
        let mut folders = self.0.folders.lock().unwrap_or_else(PoisonError::into_inner);
        let watch = inotify::add_watch(&self.0.inotify, path, arrivals | changes)?;
        folders.insert(watch, interest);
        Ok(())
    }

    /// Waits for a change since the last call.
    pub async fn changed(&self) {
        self.0.changed.notified().await;
    }

    /// Forgets the changes since the last call of [`changed`](Self::changed): they are about to be looked at.
    pub fn forget_changes(&self) {
        let mut notified = pin!(self.0.changed.notified());
        // Takes the notification, if there is one.
        notified.as_mut().enable();
    }
}

impl Shared {
    fn read(&self) {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(&self.inotify, &mut buffer);
        loop {
            match reader.next() {
                Ok(event) => {
                    let folders = self.folders.lock().unwrap_or_else(PoisonError::into_inner);
                    let is_relevant = match folders.get(&event.wd()) {
                        Some(Interest::Files) => event.file_name().is_none_or(|name| !is_draft(name.to_bytes())),
                        Some(Interest::Folders) => event.events().contains(ReadFlags::ISDIR),
                        None => event.events().contains(ReadFlags::QUEUE_OVERFLOW),
                    };
                    if is_relevant {
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
