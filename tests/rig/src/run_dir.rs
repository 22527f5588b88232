//! One directory per run, with logs, keys, and the data of etcd and of the exports.

use std::{
    fs::{self, File, TryLockError},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, SystemTime},
};

use crate::error::{Result, ResultExt};

/// Environment variable with the parent directory of all runs. If unset, the system's temporary directory is used.
pub const BASE_VARIABLE: &str = "NFS_OPERATOR_RIG_DIR";

pub(crate) const PREFIX: &str = "nfs-operator-rig-";
/// Locked by the process that owns the run. The kernel releases the lock when that process exits.
const LOCK: &str = "owner.lock";
/// Marks a run whose logs are kept for inspection.
const KEPT: &str = "kept";
/// Retention of failed runs: long enough to inspect a failure the next day, short enough not to fill the disk.
const KEPT_RETENTION: Duration = Duration::from_secs(24 * 3600);

/// The directory of one run. It is removed when dropped, unless [`RunDir::keep`] was called or a test panics.
///
/// The next run removes the directory of a process that was killed, or that holds its rig in a static.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    keep: AtomicBool,
    _lock: File,
}

impl RunDir {
    /// Creates the directory of a new run, and removes those of runs whose process has exited.
    pub fn new() -> Result<Self> {
        let base = base_dir();
        fs::create_dir_all(&base).with_context(|| format!("create {}", base.display()))?;
        remove_dead(&base, KEPT_RETENTION);
        let path = base.join(format!("{PREFIX}{}-{}", std::process::id(), crate::random_suffix()));
        // Created under another name first: a process that removes dead runs must never find it without its lock.
        let unlocked = base.join(format!(".{}", path.file_name().unwrap_or_default().display()));
        fs::create_dir(&unlocked).with_context(|| format!("create {}", unlocked.display()))?;
        let lock = File::create(unlocked.join(LOCK)).with_context(|| "create the run's lock".into())?;
        lock.lock().with_context(|| "lock the run's directory".into())?;
        fs::rename(&unlocked, &path).with_context(|| format!("create {}", path.display()))?;
        Ok(Self {
            path,
            keep: AtomicBool::new(false),
            _lock: lock,
        })
    }

    /// Returns the path of the run's directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the subdirectory with this name; creates it if it does not exist.
    pub fn dir(&self, name: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        fs::create_dir_all(&path).with_context(|| format!("create {}", path.display()))?;
        Ok(path)
    }

    /// Creates a new subdirectory `name`. If that name is taken, `name-2`, `name-3` and so on are tried.
    pub fn new_dir(&self, name: &str) -> Result<PathBuf> {
        let mut number = 1_u32;
        loop {
            let path = match number {
                1 => self.path.join(name),
                _ => self.path.join(format!("{name}-{number}")),
            };
            match fs::create_dir(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => number += 1,
                result => {
                    return result
                        .with_context(|| format!("create {}", path.display()))
                        .map(|()| path);
                }
            }
        }
    }

    /// Keeps the directory, so that its logs can be read.
    pub fn keep(&self) {
        self.keep.store(true, Ordering::Relaxed);
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        if self.keep.load(Ordering::Relaxed) || std::thread::panicking() {
            // Best effort: without the mark, the next run removes the directory.
            let _ = File::create(self.path.join(KEPT));
            eprintln!("logs of this run: {}", self.path.display());
        } else if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("failed to remove {}: {error}", self.path.display());
        }
    }
}

/// Removes the directories of runs whose process has exited; with `kept`, also those kept for inspection.
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
        // Opened, never created: a directory without our lock file is not ours to remove.
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
            // Closing the file may not be enough: a child that is being started has a copy until it runs its program.
            let _ = lock.unlock();
            continue;
        }
        // Another process may remove it at the same time. The next run removes the rest.
        let _ = fs::remove_dir_all(&path);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
mod tests {
    use super::*;

    #[test]
    fn only_dead_runs_are_removed() {
        let base = RunDir::new().unwrap();
        let create = |name: &str| {
            let path = base.dir(&format!("{PREFIX}{name}")).unwrap();
            (path.clone(), File::create(path.join(LOCK)).unwrap())
        };
        let (dead, lock) = create("dead");
        drop(lock);
        let (live, lock) = create("live");
        lock.lock().unwrap();
        let (failed, _) = create("failed");
        File::create(failed.join(KEPT)).unwrap();
        let foreign = base.dir(&format!("{PREFIX}foreign")).unwrap();

        remove_dead(base.path(), KEPT_RETENTION);
        assert!(!dead.exists());
        assert!(live.exists() && failed.exists() && foreign.exists());

        remove_dead(base.path(), Duration::ZERO);
        assert!(!failed.exists());
        assert!(live.exists() && foreign.exists());
    }

    #[test]
    fn a_run_is_removed_when_dropped_unless_it_is_kept() {
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
