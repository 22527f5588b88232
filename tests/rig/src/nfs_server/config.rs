//! The exports and options of an NFS server, and the configuration file of nfs-ganesha.

use crate::ceph;
use std::{
    fmt::Write as _,
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
};

/// The access of clients to an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Read and write access.
    #[default]
    ReadWrite,
    /// Read access.
    ReadOnly,
    /// No access, although the export exists.
    Denied,
}

/// The users that the server maps to the anonymous user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Squash {
    /// No user.
    #[default]
    None,
    /// Root (uid 0).
    Root,
    /// All users.
    All,
}

/// A small file system in memory, for tests that run out of space.
#[derive(Clone, Copy, Debug)]
pub struct Tmpfs {
    /// The size in bytes.
    pub bytes: u64,
    /// Maximum number of files and directories; `None` means no limit.
    pub inodes: Option<u64>,
}

/// An export of the server.
#[derive(Clone, Debug)]
pub struct Export {
    /// The absolute path for clients, such as `/data`.
    pub path: String,
    /// The directory on disk. If `None`, a directory in the run's directory is used.
    pub disk: Option<PathBuf>,
    /// A small file system to mount on that directory. Needs root.
    pub tmpfs: Option<Tmpfs>,
    /// The size in bytes of an ext4 file system with a journal to mount there: it reuses inode numbers at once. Needs root.
    pub ext4: Option<u64>,
    /// Project quotas on that file system: its files have projects, and limits are enforced if the kernel can do that.
    pub project_quotas: bool,
    /// The access of clients.
    pub access: Access,
    /// The users that are mapped to the anonymous user.
    pub squash: Squash,
    /// Uid and gid of the anonymous user.
    pub anonymous: (u32, u32),
    /// The configuration of a Ceph cluster, whose file system is exported instead.
    pub ceph: Option<PathBuf>,
    /// Additional lines of nfs-ganesha's EXPORT block, such as `("PrivilegedPort", "true")`.
    pub extra: Vec<(String, String)>,
}

impl Export {
    /// Creates a writable export without squashing.
    pub fn new(path: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            disk: None,
            tmpfs: None,
            ext4: None,
            project_quotas: false,
            access: Access::default(),
            squash: Squash::default(),
            anonymous: (65534, 65534),
            ceph: None,
            extra: Vec::new(),
        }
    }

    /// Sets the access.
    #[must_use]
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Sets the squashing.
    #[must_use]
    pub fn squash(mut self, squash: Squash) -> Self {
        self.squash = squash;
        self
    }

    /// Sets the directory on disk.
    #[must_use]
    pub fn disk(mut self, disk: impl Into<PathBuf>) -> Self {
        self.disk = Some(disk.into());
        self
    }

    /// Exports a file system in memory with this size.
    #[must_use]
    pub fn tmpfs(mut self, bytes: u64, inodes: Option<u64>) -> Self {
        self.tmpfs = Some(Tmpfs { bytes, inodes });
        self
    }

    /// Exports an ext4 file system with this size.
    #[must_use]
    pub fn ext4(mut self, bytes: u64) -> Self {
        self.ext4 = Some(bytes);
        self
    }

    /// Mounts the ext4 file system with project quotas.
    #[must_use]
    pub fn project_quotas(mut self) -> Self {
        self.project_quotas = true;
        self
    }

    /// Returns whether a file system is mounted for the export.
    pub(super) fn is_mounted(&self) -> bool {
        self.tmpfs.is_some() || self.ext4.is_some()
    }

    /// Adds a line to nfs-ganesha's EXPORT block.
    #[must_use]
    pub fn extra(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.extra.push((name.into(), value.into()));
        self
    }
}

/// How to start a server.
#[derive(Clone, Debug)]
pub struct NfsOptions {
    /// The initial exports.
    pub exports: Vec<Export>,
    /// The address to listen on.
    pub address: IpAddr,
    /// The port; if `None`, a free one.
    pub port: Option<u16>,
    /// The supported minor versions of NFSv4. If empty, the server supports only NFSv3.
    pub minor_versions: Vec<u8>,
    /// Supports NFSv3, with MOUNT on a free port, and starts the `rpcbind` that nfs-ganesha needs for it. Needs root.
    pub v3: bool,
    /// The lease time in seconds.
    pub lease_seconds: u32,
    /// The grace period after a restart in seconds; if `None`, there is no grace period.
    pub grace_seconds: Option<u32>,
    /// Runs the server in its own mount namespace, so that exports on a [`Tmpfs`] can be added later. Needs root.
    pub private_mounts: bool,
    /// Sends owners as names instead of numbers, if the server knows a name.
    pub named_owners: bool,
    /// More parameters in `NFS_CORE_PARAM`.
    pub core_params: Vec<(&'static str, String)>,
}

impl Default for NfsOptions {
    fn default() -> Self {
        Self {
            exports: vec![Export::new("/export")],
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: None,
            minor_versions: vec![0, 1, 2],
            v3: false,
            // The shortest lease that nfs-ganesha renews reliably. Tests that kill a client wait for its end.
            lease_seconds: 10,
            grace_seconds: None,
            private_mounts: false,
            named_owners: false,
            core_params: Vec::new(),
        }
    }
}

/// An export with its id and directory.
#[derive(Clone, Debug)]
pub(super) struct ConfiguredExport {
    pub(super) id: u16,
    pub(super) disk: PathBuf,
    pub(super) settings: Export,
}

/// Renders the configuration of a server with the default options and one export, on another machine.
pub(crate) fn config_with_export(disk: &Path, path: &str, ports: (u16, u16), state: &Path) -> String {
    let export = ConfiguredExport {
        id: 1,
        disk: disk.to_owned(),
        settings: Export::new(path),
    };
    render_config(&NfsOptions::default(), ports, state, &[export])
}

/// Renders nfs-ganesha's configuration file.
pub(super) fn render_config(
    options: &NfsOptions,
    ports: (u16, u16),
    state: &Path,
    exports: &[ConfiguredExport],
) -> String {
    let (port, mount_port) = ports;
    let minors = options
        .minor_versions
        .iter()
        .map(u8::to_string)
        .collect::<Vec<_>>()
        .join(",");
    let protocols = match (options.v3, options.minor_versions.is_empty()) {
        (true, true) => "3",
        (true, false) => "3,4",
        (false, _) => "4",
    };
    // nfs-ganesha rejects an empty list.
    let minors = if minors.is_empty() { "0".into() } else { minors };
    let core_params = options.core_params.iter();
    let core_params: String = core_params
        .map(|(name, value)| format!("  {name} = {value};\n"))
        .collect();
    let mut text = format!(
        "NFS_CORE_PARAM {{
{core_params}  NFS_Protocols = {protocols};
  Bind_addr = {address};
  NFS_Port = {port};
  MNT_Port = {mount_port};
  Enable_NLM = false;
  Enable_RQUOTA = false;
  Enable_UDP = false;
  # MOUNT accepts the same path as NFSv4.
  mount_path_pseudo = true;
}}
NFSV4 {{
  Graceless = {graceless};
  Grace_Period = {grace};
  Lease_Lifetime = {lease};
  RecoveryBackend = fs;
  RecoveryRoot = \"{state}\";
  Minor_Versions = {minors};
  # Usually numbers: there is no domain for name mapping.
  Only_Numeric_Owners = {numeric};
}}
# Tests change the disk and expect that clients see it at once: attributes are not cached, and neither are
# listings, because a directory that changes twice in one clock tick looks unchanged.
MDCACHE {{ Dir_Chunk = 0; }}
EXPORT_DEFAULTS {{ Attr_Expiration_Time = 0; Transports = TCP; SecType = sys; Protocols = {protocols}; }}
",
        address = options.address,
        graceless = options.grace_seconds.is_none(),
        grace = options.grace_seconds.unwrap_or(0),
        lease = options.lease_seconds,
        numeric = !options.named_owners,
        state = state.display(),
    );
    for ConfiguredExport { id, disk, settings } in exports {
        let access = match settings.access {
            Access::ReadWrite => "RW",
            Access::ReadOnly => "RO",
            Access::Denied => "None",
        };
        let squash = match settings.squash {
            Squash::None => "No_Root_Squash",
            Squash::Root => "Root_Squash",
            Squash::All => "All_Squash",
        };
        let extra: String = settings
            .extra
            .iter()
            .map(|(name, value)| format!("  {name} = {value};\n"))
            .collect();
        let (served, fsal) = match &settings.ceph {
            None => (disk.display().to_string(), "Name = VFS;".to_owned()),
            Some(config) => {
                let _ = writeln!(text, "CEPH {{ Ceph_Conf = \"{}\"; }}", config.display());
                let name = ceph::FILE_SYSTEM;
                (
                    "/".to_owned(),
                    format!("Name = CEPH; User_Id = \"admin\"; Filesystem = \"{name}\";"),
                )
            }
        };
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "EXPORT {{
  Export_Id = {id};
  Path = \"{served}\";
  Pseudo = \"{pseudo}\";
  Access_Type = {access};
  Squash = {squash};
  Anonymous_Uid = {uid};
  Anonymous_Gid = {gid};
{extra}  FSAL {{ {fsal} }}
}}
",
            pseudo = settings.path,
            uid = settings.anonymous.0,
            gid = settings.anonymous.1,
        );
    }
    text
}
