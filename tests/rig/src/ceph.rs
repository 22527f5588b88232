//! A Ceph cluster with a file system, for nfs-ganesha to export: the programs of a real one, with the data in memory.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::{
    assets::CephPrograms,
    error::{Error, Result, ResultExt},
    nfs_server::{Export, NfsOptions, NfsServer},
    ports,
    process::{Process, ProcessSpec, run, while_running},
    run_dir::RunDir,
};

/// The name of the file system.
pub(crate) const FILE_SYSTEM: &str = "fs";
/// The size that the file system reports.
const BYTES: u64 = 1 << 30;
const CLUSTER: &str = "5f0c8a4e-2f4b-4a37-9f0e-6d1c2b3a4d5e";
const DEVICE: &str = "0b7c1f52-8f0d-4a55-8d5c-7a9b0c1d2e3f";
/// It takes five seconds on an idle machine.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// Registers the device for data, or creates the file system and waits until it can be mounted.
const SETUP: &str = r#"
import json, sys, time
import cephfs, rados

config, step, *arguments = sys.argv[1:]
cluster = rados.Rados(conffile=config, name="client.admin")
cluster.connect(timeout=60)

def command(prefix, **arguments):
    text = json.dumps({"prefix": prefix, **arguments})
    for _ in range(600):
        code, _, message = cluster.mon_command(text, b"")
        if message != "wrong fsid":
            break
        # A client that has just connected may not have learnt the ID of the cluster yet.
        time.sleep(0.1)
    if code != 0:
        sys.exit(f"{prefix}: {message}")

if step == "device":
    command("osd create", uuid=arguments[0])
    command("osd crush add", id=0, weight=1.0, args=["root=default", "host=a"])
else:
    name, size = arguments
    for pool in ("metadata", "data"):
        command("osd pool create", pool=pool, pg_num=8)
    command("fs new", fs_name=name, metadata="metadata", data="data")
    files = cephfs.LibCephFS(conffile=config, auth_id="admin")
    files.mount(filesystem_name=name.encode())
    # Without it, the space is what a manager reports, and there is none.
    files.setxattr("/", "ceph.quota.max_bytes", size.encode(), 0)
    files.unmount()
    files.shutdown()
"#;

/// A running cluster of a monitor, a device and a metadata server. Dropping it kills it.
#[derive(Debug)]
pub struct Ceph {
    programs: CephPrograms,
    config: PathBuf,
    _processes: [Process; 3],
}

impl Ceph {
    /// Starts a cluster. Downloads Ceph if necessary.
    pub async fn start(run_dir: &RunDir) -> Result<Self> {
        let programs = CephPrograms::find_or_download().await?;
        let folder = run_dir.new_dir("ceph")?;
        for name in ["mon", "osd", "mds"] {
            fs::create_dir(folder.join(name)).with_context(|| format!("create a folder for {name}"))?;
        }
        let (config, address) = (folder.join("ceph.conf"), format!("v1:127.0.0.1:{}", ports::free()?));
        let text = render_config(&folder, &address, &programs);
        fs::write(&config, text).with_context(|| format!("write {}", config.display()))?;
        let cluster = Starting {
            programs: &programs,
            folder: &folder,
            config: &config,
        };
        let map = folder.join("monmap").display().to_string();
        let address = format!("[{address}]");
        let create = ["--create", "--fsid", CLUSTER, "--addv", "a", &address, &map];
        cluster.run("monmaptool", &create).await?;
        cluster
            .run("ceph-mon", &["--mkfs", "-i", "a", "--monmap", &map])
            .await?;
        let monitor = cluster.start("ceph-mon", "a").await?;
        while_running(&[&monitor], cluster.set_up(&["device", DEVICE])).await?;
        cluster
            .run("ceph-osd", &["--mkfs", "-i", "0", "--osd-uuid", DEVICE])
            .await?;
        let device = cluster.start("ceph-osd", "0").await?;
        let metadata = cluster.start("ceph-mds", "a").await?;
        let step = ["file-system", FILE_SYSTEM, &BYTES.to_string()];
        while_running(&[&monitor, &device, &metadata], cluster.set_up(&step)).await?;
        Ok(Self {
            programs,
            config,
            _processes: [monitor, device, metadata],
        })
    }

    /// Starts an NFS server that exports the file system as `/export`, with these other options.
    pub async fn serve(&self, run_dir: &RunDir, options: NfsOptions) -> Result<NfsServer> {
        let plugins = self.programs.libraries("ganesha").display().to_string();
        let options = NfsOptions {
            exports: vec![Export {
                ceph: Some(self.config.clone()),
                ..Export::new("/export")
            }],
            core_params: vec![
                ("Plugins_Dir", format!("\"{plugins}\"")),
                // A container may lack the capability for it, and the server would exit.
                ("allow_set_io_flusher_fail", "true".to_owned()),
            ],
            ..options
        };
        NfsServer::start_with(run_dir, options, &self.programs.ganesha()).await
    }
}

/// A cluster that is being started.
struct Starting<'a> {
    programs: &'a CephPrograms,
    folder: &'a Path,
    config: &'a Path,
}

impl Starting<'_> {
    async fn run(&self, program: &str, args: &[&str]) -> Result<String> {
        let mut command = Command::new(self.programs.runner());
        command.arg(program).args(args).env("CEPH_CONF", self.config);
        run(command).await
    }

    async fn start(&self, program: &str, id: &str) -> Result<Process> {
        let log = self.folder.join(format!("{program}.log"));
        let spec = ProcessSpec::new(program, self.programs.runner(), [program, "-f", "-i", id], log);
        let env = vec![("CEPH_CONF".to_owned(), self.config.display().to_string())];
        Process::start(ProcessSpec { env, ..spec }).await
    }

    async fn set_up(&self, step: &[&str]) -> Result<()> {
        let config = self.config.display().to_string();
        let args = [&["-c", SETUP, &config], step].concat();
        let done = tokio::time::timeout(START_TIMEOUT, self.run("python3.13", &args)).await;
        done.unwrap_or_else(|_| Err(Error::Usage(format!("Ceph was not set up within {START_TIMEOUT:?}"))))
            .map(drop)
    }
}

fn render_config(folder: &Path, address: &str, programs: &CephPrograms) -> String {
    let [folder, plugins, classes] = [
        folder.to_owned(),
        programs.libraries("ceph"),
        programs.libraries("rados-classes"),
    ]
    .map(|path| path.display().to_string());
    format!(
        "[global]
fsid = {CLUSTER}
mon host = {address}
auth cluster required = none
auth service required = none
auth client required = none
public addr = 127.0.0.1
cluster addr = 127.0.0.1
ms bind ipv6 = false
log to file = false
log to stderr = true
admin socket =
run dir = {folder}
plugin dir = {plugins}
erasure code dir = {plugins}/erasure-code
osd class dir = {classes}
# One copy of everything, in memory.
osd pool default size = 1
osd pool default min size = 1
osd crush chooseleaf type = 0
# The set-up does it: the device itself may use the monitor before it has learnt the ID of the cluster, and exit.
osd crush update on start = false
osd class update on start = false
mon allow pool size one = true
osd objectstore = memstore
memstore device bytes = {device}
# A disk that is nearly full does not matter.
mon data avail crit = 0
mon data avail warn = 0
mon data = {folder}/mon
osd data = {folder}/osd
mds data = {folder}/mds
",
        device = 2 * BYTES,
    )
}
