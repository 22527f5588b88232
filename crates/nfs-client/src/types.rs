//! The words that an [`Export`](super::Export) is spoken to in: names, handles, attributes, targets.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;

/// The longest name that NFS servers take, in bytes; servers may take fewer (`NAME_MAX` of the file system).
const LONGEST_NAME: usize = 255;

/// One component of a path, as the bytes that are on the wire.
///
/// Never empty, `.` or `..`, never with `/` or NUL, at most 255 bytes: so a name can only ever mean an entry of
/// the directory it is used in. It need not be UTF-8.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Bytes);

/// Why some bytes are not a [`Name`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// No bytes at all.
    #[error("a name must not be empty")]
    Empty,
    /// `.` or `..`.
    #[error("`.` and `..` are not names")]
    Dots,
    /// Holds `/` or NUL.
    #[error("a name must not hold `/` or NUL")]
    Separator,
    /// Longer than 255 bytes.
    #[error("a name has at most {LONGEST_NAME} bytes")]
    TooLong,
}

impl Name {
    /// Checks `bytes` and makes a name of them.
    pub fn new(bytes: impl Into<Bytes>) -> Result<Self, NameError> {
        let bytes = bytes.into();
        match bytes.as_ref() {
            b"" => Err(NameError::Empty),
            b"." | b".." => Err(NameError::Dots),
            name if name.iter().any(|byte| matches!(byte, b'/' | 0)) => Err(NameError::Separator),
            name if name.len() > LONGEST_NAME => Err(NameError::TooLong),
            _ => Ok(Self(bytes)),
        }
    }

    /// The bytes as they are on the wire.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// The server's opaque name for a file or directory (RFC 8881 section 4.1; at most 128 bytes).
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct FileHandle(pub(crate) Bytes);

impl fmt::Debug for FileHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Which file system of the server an object is on (RFC 8881 section 5.8.1.9).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FsId {
    /// The server's major number.
    pub major: u64,
    /// The server's minor number.
    pub minor: u64,
}

/// What kind of object a handle names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device, socket, FIFO or named attribute.
    Other,
}

/// An object's attributes, as the server reports them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attributes {
    /// Kind of object.
    pub kind: FileKind,
    /// Permission bits with setuid, setgid and sticky (the low 12 bits).
    pub mode: u32,
    /// Owner's number; absent when the server answers a name that holds no number (id mapping).
    pub uid: Option<u32>,
    /// Group's number; absent as for `uid`.
    pub gid: Option<u32>,
    /// Owner as the server spelled it (`0`, `root@example.org`, `nobody`, …).
    pub owner: String,
    /// Group as the server spelled it.
    pub group: String,
    /// Size in bytes.
    pub size: u64,
    /// The object's number in its file system, kept by rename, never reused while it lives.
    pub fileid: u64,
    /// The file system it is on.
    pub fsid: FsId,
    /// Number of hard links.
    pub links: u32,
}

/// An object found on the export: its handle and its attributes at that moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileRef {
    /// Handle.
    pub handle: FileHandle,
    /// Attributes.
    pub attributes: Attributes,
}

/// Attributes to set; what is absent is left as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// Permission bits with setuid, setgid and sticky.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes, of a regular file.
    pub size: Option<u64>,
    /// When it was last read and changed.
    pub times: Option<super::Times>,
}

/// What became of one name of a removal of many.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RemoveOutcome {
    /// It is gone.
    Removed,
    /// It was not there.
    Absent,
    /// The server refused; the others were tried all the same.
    Refused(super::Status),
}

/// Free and used space and inodes of the file system that the export's root is on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Size in bytes.
    pub total: u64,
    /// Free for the credential, in bytes.
    pub available: u64,
    /// Inodes; 0 when the server doesn't count them.
    pub inodes: u64,
    /// Free inodes; meaningless when `inodes` is 0.
    pub inodes_free: u64,
}

/// Who the server believes we are (AUTH_SYS, RFC 5531 appendix A).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Credential {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// Which version of NFS to speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum VersionChoice {
    /// The newest that works.
    #[default]
    Auto,
    /// The newest NFSv4 that works: never 3, whose paths and handles are others.
    Newest4,
    /// Only this one.
    Exactly(Protocol),
}

/// A version of NFS that this client speaks, newest last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// NFSv3, RFC 1813.
    V3,
    /// NFSv4.0, RFC 7530.
    V4_0,
    /// NFSv4.1, RFC 8881.
    V4_1,
    /// NFSv4.2, RFC 7862.
    V4_2,
}

impl Protocol {
    /// Whether a new client with the same owner ends the calls of the old one that are still on their way (RFC 8881
    /// section 2.10.6). Where nothing does, whoever takes over has to wait until the old one's deadlines have passed.
    pub fn supports_fencing(self) -> bool {
        matches!(self, Self::V4_1 | Self::V4_2)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V3 => "3",
            Self::V4_0 => "4.0",
            Self::V4_1 => "4.1",
            Self::V4_2 => "4.2",
        })
    }
}

/// Which local port to connect from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum SourcePort {
    /// Below 1024 when the operating system lets us, else any ([`Negotiated::reserved_port`] tells).
    #[default]
    Reserved,
    /// Any.
    Any,
}

/// Who we are to the server's lease and session keeping (RFC 8881 section 2.4): a client with the same owner and
/// another verifier ends the former one's session, which is how a new leader fences off the old one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClientOwner {
    /// `co_ownerid`, at most 1,024 bytes.
    pub owner: Vec<u8>,
    /// `co_verifier`, new for each leadership.
    pub verifier: [u8; 8],
}

/// Where an export is and how to speak to it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Target {
    /// DNS name, IPv4 or IPv6 address without brackets.
    pub server: String,
    /// Absolute path of the export, `/` allowed.
    pub path: String,
    /// Version.
    pub version: VersionChoice,
    /// TCP port, usually 2049.
    pub port: u16,
    /// TCP port of NFSv3's MOUNT; rpcbind is asked for it when absent.
    pub mount_port: Option<u16>,
    /// Local port.
    pub source_port: SourcePort,
    /// The credential of every call that doesn't name another.
    pub credential: Credential,
    /// Lease owner.
    pub owner: ClientOwner,
    /// The longest time that a call may take, waiting for a reconnection included.
    pub deadline: Duration,
}

/// What was agreed with the server when the connection was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Negotiated {
    /// Version in use.
    pub protocol: Protocol,
    /// Our end of the connection; the server sees this unless something between us translates addresses.
    pub local: SocketAddr,
    /// The server's end.
    pub peer: SocketAddr,
    /// Whether `local`'s port is below 1024.
    pub reserved_port: bool,
    /// The server's program in its own words (`eir_server_impl_id`); empty when it doesn't say.
    pub implementation: String,
    /// How long the server keeps a silent client's session; zero where it keeps nothing (NFSv3).
    pub lease: Duration,
    /// Operations in a compound that the server says it takes; the truth may be less. 0 when it doesn't say (4.0).
    pub most_operations: u32,
    /// Calls that may be in flight at a time.
    pub slots: u32,
    /// How long it took to connect and to make or return to the session.
    pub connected_in: Duration,
}

/// A server that a TCP connection could be made to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reached {
    /// The server's end.
    pub peer: SocketAddr,
    /// Our end.
    pub local: SocketAddr,
    /// How long it took, the resolution of the name included.
    pub took: Duration,
}

/// The versions that a server answers to at its NFS port, whether or not this client speaks them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OfferedVersions {
    /// NFSv3; its MOUNT protocol has a port of its own.
    pub v3: bool,
    /// NFSv4.0.
    pub v4_0: bool,
    /// NFSv4.1.
    pub v4_1: bool,
    /// NFSv4.2.
    pub v4_2: bool,
}

/// A directory that was just made, and how far its attributes came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MkdirResult {
    /// The directory with the attributes that the server reports now.
    pub node: FileRef,
    /// What the server answered when mode and owner were set, if it refused. Mode and owner are set one after the
    /// other, so that a refused owner doesn't cost the mode.
    pub mode_refused: Option<super::Status>,
    /// As above, for the owner.
    pub owner_refused: Option<super::Status>,
}

/// A small file read whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SmallFile {
    /// The file.
    pub node: FileRef,
    /// Its bytes.
    pub content: Vec<u8>,
}
