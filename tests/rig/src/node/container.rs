//! A pod's container as the kernel sees it: its first process and its control group for memory.

use std::{fs, path::PathBuf, process::Command};

use serde_json::Value;

use crate::{
    error::{Error, Result, ResultExt},
    process::run,
};

/// What the processes of a container take, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct MemoryUsage {
    /// Its own, resident now: not the program's text, which the kernel can read again.
    pub anonymous: u64,
    /// What the control group was charged for at most, that text included.
    pub peak: u64,
    /// What the kernel lets it take.
    pub limit: u64,
}

/// The first container of a pod.
pub(super) struct Container {
    pub(super) id: String,
}

impl Container {
    /// By what the kubelet says of the pod.
    pub(super) fn from_pod(pod: &Value) -> Result<Self> {
        let id = pod
            .pointer("/status/containerStatuses/0/containerID")
            .and_then(Value::as_str);
        let id = id.and_then(|id| id.strip_prefix("containerd://"));
        let id = id.ok_or_else(|| Error::Usage("the pod has no container".into()))?;
        Ok(Self { id: id.into() })
    }

    /// The process id of its program.
    async fn pid(&self) -> Result<u32> {
        let listed = super::run_ctr(["tasks", "ls"]).await?;
        // TASK PID STATUS
        let line = listed.lines().find(|line| line.starts_with(&self.id));
        let pid = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
        pid.ok_or_else(|| Error::Usage(format!("containerd has no process of container {}", self.id)))
    }

    /// The folder of its control group for memory.
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
            (None, None) => Err(Error::Usage(format!("{path} names no group for memory"))),
        }
    }

    pub(super) async fn memory(&self) -> Result<MemoryUsage> {
        let path = format!("/proc/{}/status", self.pid().await?);
        let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        let own = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let own = own.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        let group = self.cgroup().await?;
        // The names in version 1 and in version 2.
        let bytes = |files: [&str; 2]| {
            let text = files.map(|file| fs::read_to_string(group.join(file)));
            let text = text.into_iter().flatten().next().unwrap_or_default();
            text.trim()
                .parse::<u64>()
                .map_err(|_| Error::Usage(format!("{files:?} in {} say {text:?}", group.display())))
        };
        Ok(MemoryUsage {
            anonymous: own.ok_or_else(|| Error::Usage(format!("{path} has no RssAnon")))? * 1024,
            peak: bytes(["memory.max_usage_in_bytes", "memory.peak"])?,
            limit: bytes(["memory.limit_in_bytes", "memory.max"])?,
        })
    }

    /// Has somebody else in its control group take more than the limit, so that the kernel kills for memory, and its
    /// program first: the kubelet marks the processes of pods as the ones to go.
    pub(super) async fn exhaust_memory(&self) -> Result<()> {
        let group = self.cgroup().await?;
        let adjustment = format!("/proc/{}/oom_score_adj", self.pid().await?);
        // The kernel's peak: chosen for certain (proc_pid_oom_score_adj(5)).
        fs::write(&adjustment, "1000").with_context(|| format!("write {adjustment}"))?;
        // `tail` keeps a line until its end, and this one has none. It is killed as well when that is not enough.
        let script = "echo $$ >\"$1/cgroup.procs\"; head -c 100m /dev/zero | tail >/dev/null; exit 0";
        let mut hungry = Command::new("sh");
        hungry.args(["-c", script, "hungry"]).arg(group);
        run(hungry).await.map(drop)
    }
}
