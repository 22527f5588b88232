//! One folder a run: logs, keys, the data of etcd and of the exports.

use std::{
    fs::{self, File, TryLockError},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, SystemTime},
};

use crate::error::{Result, ResultExt};

/// Where runs are put instead of the system's folder for temporary files.
pub const BASE_VARIABLE: &str = "NFS_OPERATOR_RIG_DIR";

const PREFIX: &str = "nfs-operator-rig-";
/// Locked by the process that a run belongs to: the kernel lets go of it however that process ends.
const LOCK: &str = "owner.lock";
/// Marks a run whose logs somebody may still want to read.
const KEPT: &str = "kept";
/// Long enough to come back to a failure after a night, short enough not to fill the disk.
const KEPT_RETENTION: Duration = Duration::from_secs(24 * 3600);

/// The folder of one run. It is removed when dropped, unless [`RunDir::keep`] was called or a test panics.
///
/// What a process leaves behind that was killed, or that holds its rig in a static, is removed by the next run.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    keep: AtomicBool,
    _lock: File,
}

impl RunDir {
    /// Makes the folder of a new run, and removes those of runs whose process is gone.
    pub fn new() -> Result<Self> {
        let base = base_dir();
        fs::create_dir_all(&base).with_context(|| format!("make {}", base.display()))?;
        remove_dead(&base, KEPT_RETENTION);
        let path = base.join(format!("{PREFIX}{}-{}", std::process::id(), crate::random_suffix()));
        // Made under another name first: a sweeping process must never find it without its lock.
        let unlocked = base.join(format!(".{}", path.file_name().unwrap_or_default().display()));
        fs::create_dir(&unlocked).with_context(|| format!("make {}", unlocked.display()))?;
        let lock = File::create(unlocked.join(LOCK)).with_context(|| "make the run's lock".into())?;
        lock.lock().with_context(|| "take the run's lock".into())?;
        fs::rename(&unlocked, &path).with_context(|| format!("make {}", path.display()))?;
        Ok(Self {
            path,
            keep: AtomicBool::new(false),
            _lock: lock,
        })
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A folder of that name in it, made if it is not there.
    pub fn dir(&self, name: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        fs::create_dir_all(&path).with_context(|| format!("make {}", path.display()))?;
        Ok(path)
    }

    /// A folder in it that nothing else has: `name`, or `name-2` and so on.
    pub fn new_dir(&self, name: &str) -> Result<PathBuf> {
        let mut number = 1_u32;
        loop {
            let path = match number {
                1 => self.path.join(name),
                _ => self.path.join(format!("{name}-{number}")),
            };
            match fs::create_dir(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => number += 1,
                made => return made.with_context(|| format!("make {}", path.display())).map(|()| path),
            }
        }
    }

    /// Leaves the folder where it is, for somebody to read the logs.
    pub fn keep(&self) {
        self.keep.store(true, Ordering::Relaxed);
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        if self.keep.load(Ordering::Relaxed) || std::thread::panicking() {
            // Best effort: without the mark the next run removes it, no more.
            let _marked = File::create(self.path.join(KEPT));
            eprintln!("logs of this run: {}", self.path.display());
        } else if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("could not remove {}: {error}", self.path.display());
        }
    }
}

/// Removes the folders of runs whose process is gone; with `kept` also those left for somebody to read the logs.
pub fn remove_dead_runs(kept: bool) {
    remove_dead(&base_dir(), if kept { Duration::ZERO } else { KEPT_RETENTION });
}

fn base_dir() -> PathBuf {
    std::env::var_os(BASE_VARIABLE).map_or_else(std::env::temp_dir, PathBuf::from)
}

fn remove_dead(base: &Path, retention: Duration) {
    let Ok(entries) = fs::read_dir(base) else { return };
    for entry in entries.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let path = entry.path();
        // Opening alone, never creating: a folder without our lock is not ours to remove.
        let Ok(lock) = File::open(path.join(LOCK)) else {
            continue;
        };
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock | TryLockError::Error(_)) => continue,
        }
        let kept_since = fs::metadata(path.join(KEPT)).and_then(|kept| kept.modified()).ok();
        let kept_for = kept_since.map(|since| SystemTime::now().duration_since(since).unwrap_or_default());
        if kept_for.is_some_and(|kept_for| kept_for < retention) {
            continue;
        }
        // Another process may be at it too; what is left is for the next run.
        let _removed = fs::remove_dir_all(&path);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
mod tests {
    use super::*;

    #[test]
    fn a_dead_run_is_swept_and_a_living_or_strange_one_is_not() {
        let base = RunDir::new().unwrap();
        let make = |name: &str| {
            let path = base.dir(&format!("{PREFIX}{name}")).unwrap();
            (path.clone(), File::create(path.join(LOCK)).unwrap())
        };
        let (dead, lock) = make("dead");
        drop(lock);
        let (living, lock) = make("living");
        lock.lock().unwrap();
        let (failed, _) = make("failed");
        File::create(failed.join(KEPT)).unwrap();
        let strange = base.dir(&format!("{PREFIX}strange")).unwrap();

        remove_dead(base.path(), KEPT_RETENTION);
        assert!(!dead.exists());
        assert!(living.exists() && failed.exists() && strange.exists());

        remove_dead(base.path(), Duration::ZERO);
        assert!(!failed.exists());
        assert!(living.exists() && strange.exists());
    }

    #[test]
    fn a_run_is_removed_when_dropped_unless_it_is_to_be_kept() {
        let run = RunDir::new().unwrap();
        let path = run.path().to_owned();
        drop(run);
        assert!(!path.exists());

        let run = RunDir::new().unwrap();
        run.keep();
        let path = run.path().to_owned();
        drop(run);
        assert!(path.exists());
        fs::remove_dir_all(path).unwrap();
    }
}
