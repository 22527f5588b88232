//! What an NFS server exports, and how that is told to nfs-ganesha.

use std::{
    fmt::Write as _,
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
};

/// What a client may do on an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Read and write.
    #[default]
    ReadWrite,
    /// Read only.
    ReadOnly,
    /// Nothing: the export is there, but not for us.
    Denied,
}

/// Which users the server takes for nobody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Squash {
    /// None.
    #[default]
    None,
    /// Root (uid 0).
    Root,
    /// Everybody.
    All,
}

/// A small file system in memory, to run out of space on.
#[derive(Clone, Copy, Debug)]
pub struct Tmpfs {
    /// Its size in bytes.
    pub bytes: u64,
    /// How many files and directories it takes; unlimited when absent.
    pub inodes: Option<u64>,
}

/// One export.
#[derive(Clone, Debug)]
pub struct Export {
    /// The absolute path under which NFSv4 clients find it, such as `/data`.
    pub path: String,
    /// The directory on disk; one in the run's folder when absent.
    pub disk: Option<PathBuf>,
    /// A small file system of its own instead of that directory. Needs root.
    pub tmpfs: Option<Tmpfs>,
    /// What clients may do.
    pub access: Access,
    /// Who becomes nobody.
    pub squash: Squash,
    /// Uid and gid of nobody.
    pub anonymous: (u32, u32),
    /// Further lines of nfs-ganesha's EXPORT block, such as `("PrivilegedPort", "true")`.
    pub extra: Vec<(String, String)>,
}

impl Export {
    /// A writable export of that path, without squashing.
    pub fn new(path: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            disk: None,
            tmpfs: None,
            access: Access::default(),
            squash: Squash::default(),
            anonymous: (65534, 65534),
            extra: Vec::new(),
        }
    }

    /// With that access.
    #[must_use]
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// With that squashing.
    #[must_use]
    pub fn squash(mut self, squash: Squash) -> Self {
        self.squash = squash;
        self
    }

    /// On that directory on disk.
    #[must_use]
    pub fn disk(mut self, disk: impl Into<PathBuf>) -> Self {
        self.disk = Some(disk.into());
        self
    }

    /// On a file system in memory of that size.
    #[must_use]
    pub fn tmpfs(mut self, bytes: u64, inodes: Option<u64>) -> Self {
        self.tmpfs = Some(Tmpfs { bytes, inodes });
        self
    }

    /// With a further line in nfs-ganesha's EXPORT block.
    #[must_use]
    pub fn extra(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.extra.push((name.into(), value.into()));
        self
    }
}

/// How a server is started.
#[derive(Clone, Debug)]
pub struct NfsOptions {
    /// What it exports at first.
    pub exports: Vec<Export>,
    /// The loopback address it listens on.
    pub address: IpAddr,
    /// Its port; a free one when absent.
    pub port: Option<u16>,
    /// The minor versions of NFSv4 that it speaks; none at all: NFSv3 alone.
    pub minor_versions: Vec<u8>,
    /// Also NFSv3, with MOUNT on a free port, and the `rpcbind` that nfs-ganesha needs for it. Needs root.
    pub v3: bool,
    /// How long a client's state outlives its silence, in seconds.
    pub lease_seconds: u32,
    /// How long after a restart clients may only reclaim, in seconds; no such time when absent.
    pub grace_seconds: Option<u32>,
    /// A mount namespace of its own, so that exports on a [`Tmpfs`] can be added later. Needs root.
    pub private_mounts: bool,
    /// Spells owners as names where it knows some, instead of numbers.
    pub named_owners: bool,
}

impl Default for NfsOptions {
    fn default() -> Self {
        Self {
            exports: vec![Export::new("/export")],
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: None,
            minor_versions: vec![0, 1, 2],
            v3: false,
            // The shortest that nfs-ganesha reliably renews; tests wait for it when a client was killed.
            lease_seconds: 10,
            grace_seconds: None,
            private_mounts: false,
            named_owners: false,
        }
    }
}

/// An export with all that was absent filled in.
#[derive(Clone, Debug)]
pub(super) struct ConfiguredExport {
    pub(super) id: u16,
    pub(super) disk: PathBuf,
    pub(super) export: Export,
}

/// nfs-ganesha's configuration file.
pub(super) fn render(options: &NfsOptions, ports: (u16, u16), state: &Path, exports: &[ConfiguredExport]) -> String {
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
    // Never none at all, which the server would take for a mistake.
    let minors = if minors.is_empty() { "0".into() } else { minors };
    let mut text = format!(
        "NFS_CORE_PARAM {{
  NFS_Protocols = {protocols};
  Bind_addr = {address};
  NFS_Port = {port};
  MNT_Port = {mount_port};
  Enable_NLM = false;
  Enable_RQUOTA = false;
  Enable_UDP = false;
  # MOUNT takes the same path as NFSv4 does.
  mount_path_pseudo = true;
}}
NFSV4 {{
  Graceless = {graceless};
  Grace_Period = {grace};
  Lease_Lifetime = {lease};
  RecoveryBackend = fs;
  RecoveryRoot = \"{state}\";
  Minor_Versions = {minors};
  # Numbers, usually: there is no domain to map names in.
  Only_Numeric_Owners = {numeric};
}}
# Tests change the disk behind the server's back and want to see it at once: no attributes are kept, and no
# listings either, for a directory that changes twice in one tick of its clock looks unchanged.
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
    for ConfiguredExport { id, disk, export } in exports {
        let access = match export.access {
            Access::ReadWrite => "RW",
            Access::ReadOnly => "RO",
            Access::Denied => "None",
        };
        let squash = match export.squash {
            Squash::None => "No_Root_Squash",
            Squash::Root => "Root_Squash",
            Squash::All => "All_Squash",
        };
        let extra: String = export
            .extra
            .iter()
            .map(|(name, value)| format!("  {name} = {value};\n"))
            .collect();
        // Writing to a String cannot fail.
        let _written = write!(
            text,
            "EXPORT {{
  Export_Id = {id};
  Path = \"{disk}\";
  Pseudo = \"{pseudo}\";
  Access_Type = {access};
  Squash = {squash};
  Anonymous_Uid = {uid};
  Anonymous_Gid = {gid};
{extra}  FSAL {{ Name = VFS; }}
}}
",
            disk = disk.display(),
            pseudo = export.path,
            uid = export.anonymous.0,
            gid = export.anonymous.1,
        );
    }
    text
}
