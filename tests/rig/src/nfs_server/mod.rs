//! A real NFS server: nfs-ganesha in user space, on the loopback interface.

mod config;
mod mount_namespace;

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

pub(crate) use self::config::config_with_export;
pub use self::config::{Access, Export, NfsOptions, Squash, Tmpfs};
use self::{
    config::{ConfiguredExport, render_config},
    mount_namespace::MountNamespace,
};
use crate::{
    assets::Assets,
    error::{Error, Result, ResultExt},
    ports,
    process::{Process, ProcessSpec, while_running},
    run_dir::RunDir,
    wait,
};

/// It takes a tenth of a second on an idle machine, and longer while other tests start their clusters.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// It waits for its threads, and one of them sleeps for seconds.
const STOP_TIMEOUT: Duration = Duration::from_secs(120);
/// What the server logs when it has started, and when it has applied changed exports.
pub(crate) const STARTED: &str = "NFS SERVER INITIALIZED";
const RELOADED: &str = "Reread exports complete";
/// What it logs when an export fails. It then starts without that export.
const EXPORT_FAILED: &str = "Could not create export";

/// The state of a restarted server's records of its clients (RFC 8881 section 8.4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StableStorage {
    /// The records are intact.
    Kept,
    /// The records are lost, as after the failure of a disk.
    Lost,
}

/// A running NFS server. Dropping it kills it.
#[derive(Debug)]
pub struct NfsServer {
    process: Process,
    folder: PathBuf,
    options: NfsOptions,
    port: u16,
    mount_port: u16,
    exports: Vec<ConfiguredExport>,
    /// Ids are never reused: an old file handle would refer to another export.
    next_id: u16,
    _rpcbind: Option<Process>,
    mounts: Option<MountNamespace>,
}

impl NfsServer {
    /// Starts a server in a run's directory and waits until it is ready. Installs nfs-ganesha if necessary.
    pub async fn start(run: &RunDir, options: NfsOptions) -> Result<Self> {
        Self::start_with(run, options, &Assets::find_or_install_ganesha().await?).await
    }

    /// Starts a server with a given `ganesha.nfsd`.
    pub async fn start_with(run: &RunDir, options: NfsOptions, ganesha: &Path) -> Result<Self> {
        // It opens files by handle, which only root may do (open_by_handle_at(2)). Without root the server starts, but
        // denies every client.
        if !rustix::process::geteuid().is_root() {
            return Err(Error::Missing {
                what: "permission to serve files".into(),
                remedy: "nfs-ganesha needs root; run this command with sudo: \
                         sudo --preserve-env=HOME,PATH …"
                    .into(),
            });
        }
        let folder = run.new_dir("nfs")?;
        let private = options.private_mounts || options.v3 || options.exports.iter().any(Export::is_mounted);
        let mounts = if private {
            Some(MountNamespace::new(&folder).await?)
        } else {
            None
        };
        let rpcbind = match &mounts {
            Some(mounts) if options.v3 => Some(mounts.start_rpcbind(&Assets::rpcbind()?, &folder).await?),
            _ => None,
        };
        let port = options.port.map_or_else(ports::free, Ok)?;
        let mount_port = ports::free()?;
        let mut exports = Vec::new();
        let mut next_id = 1;
        for export in options.exports.clone() {
            exports.push(prepare_export(&folder, mounts.as_ref(), next_id, export).await?);
            next_id += 1;
        }
        fs::create_dir(folder.join("state")).with_context(|| "create the directory for the server's state".into())?;
        write_config(&folder, &options, (port, mount_port), &exports)?;
        let config = folder.join("ganesha.conf").display().to_string();
        let pid_file = folder.join("ganesha.pid").display().to_string();
        let args = ["-F", "-f", &config, "-L", "STDERR", "-p", &pid_file].map(String::from);
        let server = ganesha.display().to_string();
        let (program, args) = match &mounts {
            Some(mounts) => (
                "nsenter".into(),
                mounts.nsenter_args().into_iter().chain([server]).chain(args).collect(),
            ),
            None => (server, args.to_vec()),
        };
        let log = folder.join("ganesha.log");
        let process = start_server(ProcessSpec::new("nfs-ganesha", program, args, log)).await?;
        check_all_exported(&process.spec().log)?;
        Ok(Self {
            process,
            folder,
            options,
            port,
            mount_port,
            exports,
            next_id,
            _rpcbind: rpcbind,
            mounts,
        })
    }

    /// Returns the address that it listens on.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.options.address, self.port)
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the port of MOUNT (NFSv3).
    pub fn mount_port(&self) -> u16 {
        self.mount_port
    }

    /// Returns the socket of the `rpcbind` that knows its ports, if the server supports NFSv3.
    pub fn rpcbind(&self) -> Option<PathBuf> {
        let mounts = self.mounts.as_ref().filter(|_| self.options.v3)?;
        Some(mounts.host_path(Path::new(mount_namespace::RPCBIND_SOCKET)))
    }

    /// Returns the directory behind an export.
    pub fn data_dir(&self, path: &str) -> Result<PathBuf> {
        let export = self.exports.iter().find(|export| export.settings.path == path);
        let export = export.ok_or_else(|| Error::Usage(format!("no export {path}")))?;
        Ok(match &self.mounts {
            Some(mounts) if export.settings.is_mounted() => mounts.host_path(&export.disk),
            _ => export.disk.clone(),
        })
    }

    /// Returns the directory behind an export, for programs in the server's mount namespace.
    pub fn served_dir(&self, path: &str) -> Result<PathBuf> {
        let export = self.exports.iter().find(|export| export.settings.path == path);
        let export = export.ok_or_else(|| Error::Usage(format!("no export {path}")))?;
        Ok(export.disk.clone())
    }

    /// Returns the arguments of `nsenter` that run a program in the server's mount namespace.
    pub fn nsenter_args(&self) -> Result<[String; 3]> {
        let mounts = self.mounts.as_ref().map(MountNamespace::nsenter_args);
        mounts.ok_or_else(|| Error::Usage("the server has no mount namespace of its own".into()))
    }

    /// Adds an export without a restart, and returns its [`Self::data_dir`].
    pub async fn add_export(&mut self, export: Export) -> Result<PathBuf> {
        let path = export.path.clone();
        let export = prepare_export(&self.folder, self.mounts.as_ref(), self.next_id, export).await?;
        self.next_id += 1;
        self.exports.push(export);
        self.reload().await?;
        self.data_dir(&path)
    }

    /// Removes an export. Its directory stays on disk.
    pub async fn remove_export(&mut self, path: &str) -> Result<()> {
        self.exports.retain(|export| export.settings.path != path);
        self.reload().await
    }

    /// Changes access, squashing or additional lines of an export, without a restart.
    pub async fn change_export(&mut self, path: &str, change: impl FnOnce(&mut Export)) -> Result<()> {
        let export = self.exports.iter_mut().find(|export| export.settings.path == path);
        let export = export.ok_or_else(|| Error::Usage(format!("no export {path}")))?;
        change(&mut export.settings);
        self.reload().await
    }

    async fn reload(&self) -> Result<()> {
        write_config(&self.folder, &self.options, (self.port, self.mount_port), &self.exports)?;
        let from = log_length(&self.process.spec().log);
        self.process.signal(rustix::process::Signal::HUP)?;
        wait_for_log(&self.process, from, RELOADED).await
    }

    /// Sends SIGKILL and waits until the server has exited.
    pub async fn kill9(&self) -> Result<()> {
        self.process.kill9().await.map(drop)
    }

    /// Stops the server with SIGTERM.
    pub async fn stop(&self) -> Result<()> {
        self.process.terminate(STOP_TIMEOUT).await.map(drop)
    }

    /// Restarts the server on the same port, and kills it first if it runs.
    pub async fn restart(&mut self, storage: StableStorage) -> Result<()> {
        self.kill9().await?;
        if storage == StableStorage::Lost {
            let state = self.folder.join("state");
            let emptied = fs::remove_dir_all(&state).and_then(|()| fs::create_dir(&state));
            emptied.with_context(|| format!("empty {}", state.display()))?;
        }
        self.process = start_server(self.process.spec().clone()).await?;
        Ok(())
    }

    /// Restarts the server with other minor versions of NFSv4, or with NFSv3 only.
    pub async fn set_minor_versions(&mut self, minor_versions: Vec<u8>) -> Result<()> {
        self.options.minor_versions = minor_versions;
        write_config(&self.folder, &self.options, (self.port, self.mount_port), &self.exports)?;
        self.restart(StableStorage::Kept).await
    }

    /// Sends SIGSTOP: connections stay open, and the server does not respond.
    pub fn pause(&self) -> Result<()> {
        self.process.pause()
    }

    /// Sends SIGCONT.
    pub fn resume(&self) -> Result<()> {
        self.process.resume()
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }
}

async fn prepare_export(
    folder: &Path,
    mounts: Option<&MountNamespace>,
    id: u16,
    export: Export,
) -> Result<ConfiguredExport> {
    let name = export.path.trim_matches('/').replace('/', "-");
    let disk = export
        .disk
        .clone()
        .unwrap_or_else(|| folder.join("exports").join(format!("{id}-{name}")));
    fs::create_dir_all(&disk).with_context(|| format!("create {}", disk.display()))?;
    match mounts {
        Some(mounts) => {
            if let Some(size) = export.tmpfs {
                mounts.mount(&disk, size).await?;
            }
            if let Some(bytes) = export.ext4 {
                match export.project_quotas {
                    true => mounts.mount_ext4_with_projects(&disk, bytes).await?,
                    false => mounts.mount_ext4(&disk, bytes).await?,
                }
            }
        }
        None if export.is_mounted() => {
            return Err(Error::Usage(format!(
                "export {}: a file system of its own needs a server with private_mounts",
                export.path
            )));
        }
        None => {}
    }
    Ok(ConfiguredExport {
        id,
        disk,
        settings: export,
    })
}

fn write_config(folder: &Path, options: &NfsOptions, ports: (u16, u16), exports: &[ConfiguredExport]) -> Result<()> {
    let path = folder.join("ganesha.conf");
    let text = render_config(options, ports, &folder.join("state"), exports);
    fs::write(&path, text).with_context(|| format!("write {}", path.display()))
}

async fn start_server(spec: ProcessSpec) -> Result<Process> {
    let from = log_length(&spec.log);
    let process = Process::start(spec).await?;
    wait_for_log(&process, from, STARTED).await?;
    Ok(process)
}

/// Returns an error with the server's messages if it failed to export something. A client would only learn that there
/// is no such export.
fn check_all_exported(log: &Path) -> Result<()> {
    let text = fs::read_to_string(log).with_context(|| format!("read {}", log.display()))?;
    if !text.contains(EXPORT_FAILED) {
        return Ok(());
    }
    let messages = text.lines().filter(|line| line.contains(":FSAL :CRIT"));
    Err(Error::Usage(format!(
        "nfs-ganesha failed to export everything, see {}:\n{}",
        log.display(),
        messages.collect::<Vec<_>>().join("\n")
    )))
}

fn log_length(log: &Path) -> usize {
    fs::read(log).map(|text| text.len()).unwrap_or(0)
}

/// Waits until the server has logged `text` after the first `from` bytes of its log.
async fn wait_for_log(process: &Process, from: usize, text: &str) -> Result<()> {
    let log = &process.spec().log;
    let what = format!("nfs-ganesha to log {text:?}");
    let seen = wait::until(&what, START_TIMEOUT, async || {
        let written = fs::read(log).map_err(|error| error.to_string())?;
        let new = String::from_utf8_lossy(written.get(from..).unwrap_or_default());
        if new.contains(text) {
            Ok(())
        } else {
            Err(crate::process::tail(log))
        }
    });
    while_running(&[process], seen).await
}
