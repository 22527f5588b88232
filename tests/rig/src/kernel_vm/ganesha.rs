//! nfs-ganesha in the virtual machine, for file systems that this machine's kernel cannot mount.

use std::{path::Path, time::Duration};

use tokio::fs;

use super::KernelVm;
use crate::{
    assets::Assets,
    error::{Result, ResultExt as _},
    nfs_server::{STARTED, config_with_export},
    ports, wait,
};

const START_TIMEOUT: Duration = Duration::from_secs(120);

impl KernelVm {
    /// Starts nfs-ganesha for a directory of the machine, beside the kernel's server, with the same path for clients.
    /// Returns its port, which only clients in the machine can reach.
    pub async fn start_ganesha(&self, path: &str) -> Result<u16> {
        let program = Assets::find_or_install_ganesha().await?;
        let installed = "/run/ganesha/ganesha.nfsd";
        self.install_program(&program, installed).await?;
        let plugin = Assets::ganesha_plugin()?;
        self.install_program(&plugin, &plugin.display().to_string()).await?;
        // Without one, it does not start, although owners are numbers.
        let names = Path::new("/usr/lib/x86_64-linux-gnu/libnfsidmap/nsswitch.so");
        self.install_program(names, &names.display().to_string()).await?;
        let port = ports::free()?;
        let config = config_with_export(
            Path::new(path),
            path,
            (port, ports::free()?),
            Path::new("/run/ganesha/state"),
        );
        let local = std::env::temp_dir().join(format!("ganesha-{}.conf", crate::random_suffix()));
        let doing = || format!("write {}", local.display());
        fs::write(&local, config).await.with_context(doing)?;
        let copied = self.copy_file(&local, "/run/ganesha/ganesha.conf").await;
        let _ = fs::remove_file(&local).await;
        copied?;
        let script = format!(
            "printf '[General]\\nDomain = localdomain\\n' >/etc/idmapd.conf
             mkdir -p /run/ganesha/state && cd /run/ganesha
             {installed} -F -f ganesha.conf -L /run/ganesha/log -p /run/ganesha/pid >/run/ganesha/out 2>&1 &"
        );
        self.run(&script).await?;
        wait::until("nfs-ganesha in the machine", START_TIMEOUT, async || {
            let log = self.output("cat /run/ganesha/out /run/ganesha/log").await;
            match log.map_err(|error| error.to_string())? {
                log if log.output.contains(STARTED) => Ok(()),
                log => Err(log.output),
            }
        })
        .await?;
        Ok(port)
    }
}
