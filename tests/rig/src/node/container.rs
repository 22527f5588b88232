//! The first container of a pod as the kernel sees it: its process and its memory cgroup.

use std::{fs, path::PathBuf, process::Command};

use serde_json::Value;

use crate::{
    error::{Error, Result, ResultExt},
    process::run,
};

/// Memory of a container in bytes.
#[derive(Clone, Copy, Debug)]
pub struct MemoryUsage {
    /// Anonymous resident memory now, without the program's text.
    pub anonymous: u64,
    /// Peak of the memory that was charged to the cgroup, including the program's text.
    pub peak: u64,
    /// The limit of the cgroup.
    pub limit: u64,
}

pub(super) struct Container {
    pub(super) id: String,
}

impl Container {
    /// Returns the container that the pod's status names.
    pub(super) fn from_pod(pod: &Value) -> Result<Self> {
        let id = pod
            .pointer("/status/containerStatuses/0/containerID")
            .and_then(Value::as_str);
        let id = id.and_then(|id| id.strip_prefix("containerd://"));
        let id = id.ok_or_else(|| Error::Usage("the pod has no running container".into()))?;
        Ok(Self { id: id.into() })
    }

    /// Returns the id of its first process.
    async fn pid(&self) -> Result<u32> {
        let listed = super::run_ctr(["tasks", "ls"]).await?;
        // TASK PID STATUS
        let line = listed.lines().find(|line| line.starts_with(&self.id));
        let pid = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
        pid.ok_or_else(|| Error::Usage(format!("containerd reports no process of container {}", self.id)))
    }

    /// Returns the path of its memory cgroup.
    async fn cgroup(&self) -> Result<PathBuf> {
        let path = format!("/proc/{}/cgroup", self.pid().await?);
        let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        // NUMBER:CONTROLLERS:PATH; version 2 has one line, without controllers (cgroups(7)).
        let fields = |line: &'_ str| -> Option<(String, String)> {
            let mut parts = line.splitn(3, ':').skip(1);
            Some((
                parts.next()?.to_owned(),
                parts.next()?.trim_start_matches('/').to_owned(),
            ))
        };
        let groups: Vec<_> = text.lines().filter_map(fields).collect();
        let of = |name: &str| {
            groups
                .iter()
                .find(|(controllers, _)| controllers.split(',').any(|one| one == name))
        };
        match (of("memory"), of("")) {
            (Some((_, group)), _) => Ok(PathBuf::from("/sys/fs/cgroup/memory").join(group)),
            (None, Some((_, group))) => Ok(PathBuf::from("/sys/fs/cgroup").join(group)),
            (None, None) => Err(Error::Usage(format!("{path} has no memory cgroup"))),
        }
    }

    pub(super) async fn memory(&self) -> Result<MemoryUsage> {
        let path = format!("/proc/{}/status", self.pid().await?);
        let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        let anonymous = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let anonymous = anonymous.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        let group = self.cgroup().await?;
        // The names in version 1 and in version 2.
        let bytes = |files: [&str; 2]| {
            let text = files.map(|file| fs::read_to_string(group.join(file)));
            let text = text.into_iter().flatten().next().unwrap_or_default();
            text.trim()
                .parse::<u64>()
                .map_err(|_| Error::Usage(format!("unexpected value {text:?} of {files:?} in {}", group.display())))
        };
        Ok(MemoryUsage {
            anonymous: anonymous.ok_or_else(|| Error::Usage(format!("{path} has no RssAnon")))? * 1024,
            peak: bytes(["memory.max_usage_in_bytes", "memory.peak"])?,
            limit: bytes(["memory.limit_in_bytes", "memory.max"])?,
        })
    }

    /// Starts another process in its cgroup that exceeds the limit, so that the kernel's OOM killer kills the
    /// container.
    pub(super) async fn exhaust_memory(&self) -> Result<()> {
        let group = self.cgroup().await?;
        let adjustment = format!("/proc/{}/oom_score_adj", self.pid().await?);
        // The maximum: the OOM killer selects this process first (proc_pid_oom_score_adj(5)).
        fs::write(&adjustment, "1000").with_context(|| format!("write {adjustment}"))?;
        // `tail` keeps a line in memory until it ends, and this line is endless. If killing the container does not free
        // enough memory, the kernel also kills this process.
        let script = "echo $$ >\"$1/cgroup.procs\"; head -c 100m /dev/zero | tail >/dev/null; exit 0";
        let mut allocator = Command::new("sh");
        allocator.args(["-c", script, "allocator"]).arg(group);
        run(allocator).await.map(drop)
    }
}
