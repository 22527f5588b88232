//! The virtual machine as a node of the cluster: mounts as the kubelet makes them.

use rig::KernelVm;
use serde_json::Value;

use crate::support::shared::text;

/// The IDs of a process in a pod.
pub struct PodProcess<'a> {
    pub uid: u32,
    pub gid: u32,
    /// Its supplementary groups.
    pub groups: &'a [u32],
}

impl<'a> PodProcess<'a> {
    /// A user with a primary group of the same number.
    pub fn user(uid: u32, groups: &'a [u32]) -> Self {
        Self { uid, gid: uid, groups }
    }
}

/// The mount of a volume in the machine.
pub struct Mounted<'a> {
    vm: &'a KernelVm,
    /// The mount point.
    pub at: String,
}

impl<'a> Mounted<'a> {
    /// Mounts a volume as the kubelet does: with sorted options, and its server and path unchanged. `server` may be
    /// another name of the same server.
    pub async fn volume(vm: &'a KernelVm, volume: &Value, server: Option<&str>) -> rig::Result<Self> {
        let server = server.unwrap_or_else(|| text(volume, "/spec/nfs/server"));
        let path = text(volume, "/spec/nfs/path");
        let mut options: Vec<&str> = volume
            .pointer("/spec/mountOptions")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        options.sort_unstable();
        let at = format!("/mnt/{}", rig::random_suffix());
        let options = options.join(",");
        println!("mount -t nfs -o {options} {server}:{path}");
        vm.run(&format!(
            "mkdir -p {at} && /sbin/mount -t nfs -o {options} {server}:{path} {at}"
        ))
        .await?;
        Ok(Self { vm, at })
    }

    /// Runs a script in the mount as this process, and returns its output.
    pub async fn run_as(&self, process: &PodProcess<'_>, script: &str) -> rig::Result<String> {
        self.vm.run(&self.line(process, script)).await
    }

    /// Runs a script that must fail as this process, and returns its output.
    pub async fn refused_as(&self, process: &PodProcess<'_>, script: &str) -> rig::Result<String> {
        let ran = self.vm.output(&self.line(process, script)).await?;
        if ran.code == 0 {
            return Err(rig::Error::Usage(format!("{script:?} was not refused: {}", ran.output)));
        }
        Ok(ran.output)
    }

    /// Runs a script in the mount as this user, and returns its output.
    pub async fn as_user(&self, uid: u32, script: &str) -> rig::Result<String> {
        self.run_as(&PodProcess::user(uid, &[]), script).await
    }

    /// The same, with one supplementary group.
    pub async fn as_member(&self, uid: u32, group: u32, script: &str) -> rig::Result<String> {
        self.run_as(&PodProcess::user(uid, &[group]), script).await
    }

    /// Runs a script that must fail, and returns its output.
    pub async fn refused(&self, uid: u32, script: &str) -> rig::Result<String> {
        self.refused_as(&PodProcess::user(uid, &[]), script).await
    }

    /// The same, with one supplementary group.
    pub async fn refused_to_member(&self, uid: u32, group: u32, script: &str) -> rig::Result<String> {
        self.refused_as(&PodProcess::user(uid, &[group]), script).await
    }

    /// Starts a script as this user. [`Self::ended`] returns what it printed.
    pub async fn start(&self, uid: u32, script: &str) -> rig::Result<()> {
        let (line, log) = (self.line(&PodProcess::user(uid, &[]), script), self.log());
        let start = format!("rm -f {log}; ( ( {line} ) >{log}.new 2>&1; mv {log}.new {log} ) >/dev/null 2>&1 &");
        self.vm.run(&start).await.map(drop)
    }

    /// Returns the output of the script that was started last, if it has ended.
    pub async fn ended(&self) -> rig::Result<Option<String>> {
        let ran = self.vm.output(&format!("cat {}", self.log())).await?;
        Ok((ran.code == 0).then_some(ran.output))
    }

    fn log(&self) -> String {
        format!("/run{}.log", self.at.replace('/', "-"))
    }

    fn line(&self, process: &PodProcess<'_>, script: &str) -> String {
        let PodProcess { uid, gid, groups } = process;
        let groups = match groups {
            [] => "--clear-groups".to_owned(),
            groups => {
                let groups: Vec<String> = groups.iter().map(u32::to_string).collect();
                format!("--groups {}", groups.join(","))
            }
        };
        // The user needs no login shell: only the IDs change. Root may be squashed, so the user enters the directory.
        format!(
            "exec /sbin/setpriv --reuid {uid} --regid {gid} {groups} sh -c 'cd {} && {{ {script}; }}'",
            self.at
        )
    }

    /// Unmounts it.
    pub async fn unmount(self) -> rig::Result<()> {
        let at = &self.at;
        self.vm.run(&format!("umount {at} || umount -l {at}")).await.map(drop)
    }
}
