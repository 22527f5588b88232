//! The virtual machine as a node of the cluster: mounts as the kubelet makes them.

use rig::KernelVm;
use serde_json::Value;

use crate::support::shared::text;

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

    /// Runs a script in the mount as this user, and returns its output.
    pub async fn as_user(&self, uid: u32, script: &str) -> rig::Result<String> {
        self.vm.run(&self.line(uid, "--clear-groups", script)).await
    }

    /// The same, with one supplementary group.
    pub async fn as_member(&self, uid: u32, group: u32, script: &str) -> rig::Result<String> {
        self.vm.run(&self.line(uid, &format!("--groups {group}"), script)).await
    }

    /// Runs a script that must fail, and returns its output.
    pub async fn refused(&self, uid: u32, script: &str) -> rig::Result<String> {
        self.fails(script, &self.line(uid, "--clear-groups", script)).await
    }

    /// The same, with one supplementary group.
    pub async fn refused_to_member(&self, uid: u32, group: u32, script: &str) -> rig::Result<String> {
        self.fails(script, &self.line(uid, &format!("--groups {group}"), script))
            .await
    }

    async fn fails(&self, script: &str, line: &str) -> rig::Result<String> {
        let ran = self.vm.output(line).await?;
        if ran.code == 0 {
            return Err(rig::Error::Usage(format!("{script:?} was not refused: {}", ran.output)));
        }
        Ok(ran.output)
    }

    fn line(&self, uid: u32, groups: &str, script: &str) -> String {
        // The user needs no login shell: only the IDs change. Root may be squashed, so the user enters the directory.
        format!(
            "exec /sbin/setpriv --reuid {uid} --regid {uid} {groups} sh -c 'cd {} && {{ {script}; }}'",
            self.at
        )
    }

    /// Unmounts it.
    pub async fn unmount(self) -> rig::Result<()> {
        let at = &self.at;
        self.vm.run(&format!("umount {at} || umount -l {at}")).await.map(drop)
    }
}
