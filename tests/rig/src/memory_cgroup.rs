//! A limit for the memory of a process, as a container has: a memory cgroup of version 1 or 2.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{
    error::{Error, Result, ResultExt},
    run_dir::PREFIX,
};

/// A memory cgroup. Dropping it removes it, for which its processes must have exited.
#[derive(Debug)]
pub struct MemoryCgroup {
    path: PathBuf,
    version: Version,
}

#[derive(Clone, Copy, Debug)]
enum Version {
    V1,
    V2,
}

impl Version {
    /// Returns the hierarchy that has the memory controller of this machine.
    fn find() -> Option<(Self, &'static Path)> {
        let (v1, v2) = (Path::new("/sys/fs/cgroup/memory"), Path::new("/sys/fs/cgroup"));
        let controllers = fs::read_to_string(v2.join("cgroup.controllers")).unwrap_or_default();
        if v1.join("memory.limit_in_bytes").is_file() {
            Some((Self::V1, v1))
        } else if controllers.split_whitespace().any(|controller| controller == "memory") {
            Some((Self::V2, v2))
        } else {
            None
        }
    }
}

impl MemoryCgroup {
    /// Creates a cgroup with a limit in bytes, and removes those of processes that were killed. Returns `None` if the
    /// machine has no memory controller, or none in which this process may create cgroups.
    pub fn create(limit: u64) -> Result<Option<Self>> {
        let Some((version, root)) = Version::find() else {
            return Ok(None);
        };
        remove_dead(root);
        let path = root.join(format!("{PREFIX}{}-{}", std::process::id(), crate::random_suffix()));
        if let Version::V2 = version {
            // Fails if it is enabled by somebody else, or not permitted. The limit then shows which.
            let _ = fs::write(root.join("cgroup.subtree_control"), "+memory");
        }
        if fs::create_dir(&path).is_err() {
            return Ok(None);
        }
        let group = Self { path, version };
        let file = group.path.join(match version {
            Version::V1 => "memory.limit_in_bytes",
            Version::V2 => "memory.max",
        });
        if !file.is_file() {
            return Ok(None);
        }
        fs::write(&file, limit.to_string()).with_context(|| format!("write {}", file.display()))?;
        Ok(Some(group))
    }

    /// Returns a program and its arguments that run a command in this cgroup. The program replaces itself with the
    /// command.
    pub(crate) fn command(&self, program: PathBuf, args: impl IntoIterator<Item = String>) -> (PathBuf, Vec<String>) {
        let script = "echo $$ >\"$0\" && exec \"$@\"".to_owned();
        let processes = self.path.join("cgroup.procs").display().to_string();
        let command = ["-c".to_owned(), script, processes, program.display().to_string()];
        ("sh".into(), command.into_iter().chain(args).collect())
    }

    /// Returns how many processes the kernel killed because of the limit.
    pub fn oom_kills(&self) -> Result<u64> {
        let path = self.path.join(match self.version {
            Version::V1 => "memory.oom_control",
            Version::V2 => "memory.events",
        });
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let kills = text
            .lines()
            .find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok());
        kills.ok_or_else(|| Error::Usage(format!("{} has no number of kills: {text:?}", path.display())))
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.path) {
            eprintln!("failed to remove {}: {error}", self.path.display());
        }
    }
}

/// Removes the cgroups whose owner, by the process ID in the name, has exited.
fn remove_dead(root: &Path) {
    let Ok(entries) = fs::read_dir(root) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let suffix = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        let owner: Option<u32> = suffix.and_then(|suffix| suffix.split('-').next()?.parse().ok());
        if owner.is_some_and(|owner| !Path::new("/proc").join(owner.to_string()).exists()) {
            // Fails while a process of the dead owner is left in it. The next run removes it.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
mod tests {
    use super::*;
    use crate::{
        RunDir,
        process::{Process, ProcessSpec},
    };

    #[test]
    fn only_cgroups_of_dead_processes_are_removed() {
        let run = RunDir::new().unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let (dead, live) = (
            format!("{PREFIX}{}-a", child.id()),
            format!("{PREFIX}{}-a", std::process::id()),
        );
        let paths =
            [dead, live, format!("{PREFIX}other"), format!("{}-a", child.id())].map(|name| run.dir(&name).unwrap());
        remove_dead(run.path());
        assert_eq!(paths.map(|path| path.exists()), [false, true, true, true]);
    }

    #[tokio::test]
    async fn a_process_that_exceeds_its_limit_is_killed() {
        let Some(group) = MemoryCgroup::create(16 << 20).unwrap() else {
            eprintln!("not tested: this machine has no memory controller");
            return;
        };
        let run = RunDir::new().unwrap();
        // An endless line, which `tail` keeps in memory.
        let (program, args) = group.command("tail".into(), ["-n1".into(), "/dev/zero".into()]);
        let spec = ProcessSpec::new("tail", program, args, run.path().join("tail.log"));
        let status = Process::start(spec).await.unwrap().wait().await.unwrap();
        assert!(!status.success(), "{status}");
        assert_eq!(group.oom_kills().unwrap(), 1);
    }
}
