//! The types of [`Client`](crate::Client)'s arguments and results.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;

use crate::Status;

/// Maximum length of a name, in bytes. A server's file system may allow less (`NAME_MAX`).
const MAX_NAME: usize = 255;

/// One component of a path, as the bytes on the wire.
///
/// Never empty, `.` or `..`, without `/` and NUL, at most 255 bytes: so a name always means an entry of the directory that
/// it is used with. It need not be UTF-8.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Bytes);

/// Why bytes are not a valid [`Name`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// No bytes at all.
    #[error("a name must not be empty")]
    Empty,
    /// `.` or `..`.
    #[error("`.` and `..` are not names")]
    Dots,
    /// Contains `/` or NUL.
    #[error("a name must not contain `/` or NUL")]
    Separator,
    /// Longer than 255 bytes.
    #[error("a name must not be longer than {MAX_NAME} bytes")]
    TooLong,
}

impl Name {
    /// Validates `bytes` as a name.
    ///
    /// # Errors
    /// The rule that the bytes break.
    pub fn new(bytes: impl Into<Bytes>) -> Result<Self, NameError> {
        let bytes = bytes.into();
        match bytes.as_ref() {
            b"" => Err(NameError::Empty),
            b"." | b".." => Err(NameError::Dots),
            name if name.iter().any(|byte| matches!(byte, b'/' | 0)) => Err(NameError::Separator),
            name if name.len() > MAX_NAME => Err(NameError::TooLong),
            _ => Ok(Self(bytes)),
        }
    }

    /// Returns the bytes on the wire.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns a copy with memory of its own. A name in a listing shares that of its page, which stays as long as one of its
    /// names is kept.
    #[must_use]
    pub fn detached(&self) -> Self {
        Self(Bytes::copy_from_slice(&self.0))
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

/// The server's opaque handle of a file or directory (RFC 8881 section 4.1), at most 128 bytes.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct FileHandle(pub(crate) Bytes);

impl fmt::Debug for FileHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A file system of the server (RFC 8881 section 5.8.1.9).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FsId {
    /// Major number.
    pub major: u64,
    /// Minor number.
    pub minor: u64,
}

/// Type of an object.
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
    /// Type.
    pub kind: FileKind,
    /// Permission bits with setuid, setgid and sticky (the low 12 bits).
    pub mode: u32,
    /// User ID of the owner; absent if the server reports a name that is no number (ID mapping).
    pub uid: Option<u32>,
    /// Group ID; absent as for `uid`.
    pub gid: Option<u32>,
    /// Owner as the server reports it (`0`, `root@example.org`, `nobody`, …).
    pub owner: String,
    /// Group as the server reports it.
    pub group: String,
    /// Size in bytes.
    pub size: u64,
    /// Number of the object in its file system: a rename preserves it, and it is never reused while the object exists.
    pub fileid: u64,
    /// The file system of the object.
    pub fsid: FsId,
    /// Number of hard links.
    pub links: u32,
}

/// An object: its handle, and its attributes when it was looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileRef {
    /// Handle.
    pub handle: FileHandle,
    /// Attributes.
    pub attributes: Attributes,
}

/// Attributes to set. An absent attribute remains unchanged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// Permission bits with setuid, setgid and sticky.
    pub mode: Option<u32>,
    /// User ID of the owner.
    pub uid: Option<u32>,
    /// Group ID.
    pub gid: Option<u32>,
    /// Size of a regular file, in bytes.
    pub size: Option<u64>,
    /// Times of the last access and the last modification.
    pub times: Option<Times>,
}

impl SetAttributes {
    /// Returns the owner and the group alone.
    pub(crate) fn owner(self) -> Self {
        Self {
            uid: self.uid,
            gid: self.gid,
            ..Self::default()
        }
    }

    /// Whether an object with these attributes has the requested values already.
    pub(crate) fn are_set(self, attributes: &Attributes) -> bool {
        self.size.is_none()
            && self.times.is_none()
            && self.mode.is_none_or(|mode| mode & 0o7777 == attributes.mode)
            && self.uid.is_none_or(|uid| Some(uid) == attributes.uid)
            && self.gid.is_none_or(|gid| Some(gid) == attributes.gid)
    }

    /// Returns everything else: mode, size and times.
    pub(crate) fn without_owner(self) -> Self {
        Self {
            uid: None,
            gid: None,
            ..self
        }
    }
}

/// A point in time, as a file system stores it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Seconds since 1970; negative before. NFSv3 supports 1970 to 2106 only.
    pub seconds: i64,
    /// Nanoseconds, below 1,000,000,000.
    pub nanos: u32,
}

/// Times of an object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Times {
    /// Last access (atime).
    pub accessed: Time,
    /// Last modification of the content (mtime).
    pub modified: Time,
}

/// All attributes of an object that are needed to copy it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FullAttributes {
    /// The attributes of every [`FileRef`].
    pub attributes: Attributes,
    /// Access and modification time.
    pub times: Times,
    /// A value that differs after each change of the object (RFC 8881 section 5.8.1.4; derived from the ctime in NFSv3).
    pub change: u64,
    /// Last change of anything but the access time (ctime); absent if the server does not report it.
    pub ctime: Option<Time>,
    /// Disk usage in bytes; less than the size of a file with holes.
    pub used: u64,
}

impl FullAttributes {
    /// Returns the token that later tokens of the same file are compared with.
    pub fn change_token(&self) -> ChangeToken {
        ChangeToken {
            change: self.change,
            size: self.attributes.size,
            modified: self.times.modified,
            ctime: self.ctime,
        }
    }
}

/// The state of a file at one point in time: two tokens show whether the file was changed in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChangeToken {
    pub(crate) change: u64,
    pub(crate) size: u64,
    pub(crate) modified: Time,
    pub(crate) ctime: Option<Time>,
}

impl ChangeToken {
    /// Returns the change attribute ([`FullAttributes::change`]).
    pub fn change(&self) -> u64 {
        self.change
    }

    /// Whether the file was changed between the two tokens. If only the change attribute differs, the file was only read:
    /// some file systems update it together with the access time, and nothing else preserves size, mtime and ctime.
    pub fn differs_from(&self, other: &Self) -> bool {
        let rest = |token: &Self| (token.size, token.modified, token.ctime);
        self.change != other.change && (self.ctime.is_none() || rest(self) != rest(other))
    }
}

/// Result of [`Client::lookup_and_read`](crate::Client::lookup_and_read).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LookupResult {
    /// Handle.
    pub handle: FileHandle,
    /// All attributes.
    pub details: FullAttributes,
    /// The start of a regular file, and its change token after the read; absent if it is no regular file or could not be
    /// read.
    pub begin: Option<(ReadResult, ChangeToken)>,
}

/// Bytes read from a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadResult {
    /// The bytes: possibly fewer than requested, but none only at the end of the file.
    pub bytes: Bytes,
    /// Whether the file ends after these bytes.
    pub eof: bool,
}

/// Result of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteResult {
    /// Bytes written, at least one.
    pub count: usize,
    /// Whether they are on stable storage already.
    pub stable: bool,
    /// Write verifier: if COMMIT returns another one, unstable data may be lost (RFC 8881 section 18.3).
    pub verifier: [u8; 8],
}

/// Result of a copy on the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyResult {
    /// Bytes copied, from the start of the requested range: possibly fewer than requested, and 0 at the end of the source.
    pub count: u64,
    /// Whether they are on stable storage already.
    pub stable: bool,
    /// Write verifier, as in [`WriteResult`]; absent after a copy that the server completed in the background.
    pub verifier: Option<[u8; 8]>,
}

/// An entry of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Name.
    pub name: Name,
    /// Type; absent if the server could not read it (`rdattr_error`).
    pub kind: Option<FileKind>,
    /// Size in bytes; absent as for `kind`.
    pub size: Option<u64>,
    /// Number in its file system; absent as for `kind`. At a mount point, that of the directory underneath.
    pub fileid: Option<u64>,
    /// File system; absent as for `kind`. Differs from the directory's if another file system is mounted here.
    pub fsid: Option<FsId>,
    /// Disk usage in bytes; absent as for `kind`, if the server does not report it, and if it was not requested
    /// ([`Client::list_with_usage`](crate::Client::list_with_usage)).
    pub used: Option<u64>,
    /// Number of hard links; absent as for `used`.
    pub links: Option<u32>,
    /// All attributes; absent as for `kind`, and if they were not requested
    /// ([`Client::list_with_attributes`](crate::Client::list_with_attributes)).
    pub details: Option<Box<FullAttributes>>,
}

/// A page of a directory's listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The entries, in the server's order.
    pub entries: Vec<Entry>,
    /// Where the next page begins; absent at the end.
    pub next: Option<PageCookie>,
}

/// A position in a directory's listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageCookie {
    pub(crate) cookie: u64,
    pub(crate) verifier: [u8; 8],
    /// An earlier cookie: meeting it again means that the listing is a cycle (Brent's algorithm).
    mark: u64,
    /// Entries since `mark`, and the number of entries after which `mark` is set again.
    steps: u64,
    stride: u64,
}

impl PageCookie {
    /// Returns the position before the first entry.
    pub(crate) fn start(verifier: [u8; 8]) -> Self {
        // No entry has cookie 0 in NFSv4 (RFC 8881 section 18.23.3).
        Self {
            cookie: 0,
            verifier,
            mark: 0,
            steps: 0,
            stride: 1,
        }
    }

    /// Reports whether this is the position before the first entry.
    pub(crate) fn is_start(&self) -> bool {
        self.cookie == 0
    }

    /// Advances past the entry with this cookie; false if the listing is a cycle, which is detected within three times
    /// its length.
    pub(crate) fn advance(&mut self, cookie: u64) -> bool {
        if cookie == self.mark || cookie == self.cookie {
            return false;
        }
        self.cookie = cookie;
        self.steps += 1;
        if self.steps >= self.stride {
            (self.mark, self.steps, self.stride) = (cookie, 0, self.stride.saturating_mul(2));
        }
        true
    }
}

/// The kind of object that a removal expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RemoveKind {
    /// An empty directory.
    Directory,
    /// Anything but a directory.
    NonDirectory,
}

/// Outcome for one name of [`Client::remove_batch`](crate::Client::remove_batch).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RemoveOutcome {
    /// The name was removed.
    Removed,
    /// The name did not exist.
    Absent,
    /// The server refused; the other names were tried nevertheless.
    Refused(Status),
}

/// Space and inodes of a file system.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FsStat {
    /// Size in bytes.
    pub total: u64,
    /// Bytes available to the credential.
    pub available: u64,
    /// Number of inodes; 0 if the server does not count them.
    pub inodes: u64,
    /// Free inodes; 0 if the server does not count them.
    pub inodes_free: u64,
}

impl FsStat {
    /// Returns the statistics that a server reports, with impossible counts of inodes as not counted: file systems
    /// without a limit, such as CephFS, report the largest number as free or in total, whatever the other one is.
    pub(crate) fn reported(total: u64, available: u64, inodes: u64, inodes_free: u64) -> Self {
        let (inodes, inodes_free) = match inodes_free > inodes || inodes == u64::MAX {
            true => (0, 0),
            false => (inodes, inodes_free),
        };
        Self {
            total,
            available,
            inodes,
            inodes_free,
        }
    }
}

/// The user and group that calls act as (AUTH_SYS, RFC 5531 appendix A).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Credential {
    /// User ID.
    pub uid: u32,
    /// Group ID.
    pub gid: u32,
    /// A supplementary group. Some servers ignore it, and look up the groups of the user.
    pub supplementary: Option<u32>,
}

/// The version of NFS to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum VersionChoice {
    /// The newest that works.
    #[default]
    Auto,
    /// The newest minor version of NFSv4 that works: never NFSv3, whose paths and handles differ.
    Newest4,
    /// Only this one.
    Exactly(Protocol),
}

/// A version of NFS, newest last.
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
    /// Whether a new client with the same owner and another verifier stops the calls of the old one that are still in
    /// flight (RFC 8881 section 2.10.6). If not, a new process must wait until the deadlines of the old one have passed.
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

/// The local port to connect from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum SourcePort {
    /// Below 1024 if the operating system permits it, otherwise any ([`Negotiated::reserved_port`] shows which).
    #[default]
    Reserved,
    /// Any.
    Any,
}

/// Identity of a client in the server's lease and session state (RFC 8881 section 2.4). A client with the same owner and
/// another verifier ends the sessions of the earlier one: this is how a new process fences off an old one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClientOwner {
    /// `co_ownerid`, at most 1,024 bytes.
    pub owner: Vec<u8>,
    /// `co_verifier`, different for each process that uses the owner.
    pub verifier: [u8; 8],
}

impl ClientOwner {
    /// Returns a random owner, which fences off no other client.
    pub fn random() -> Self {
        Self {
            owner: format!("nfs-client/{:032x}", rand::random::<u128>()).into_bytes(),
            verifier: rand::random(),
        }
    }
}

/// The implementation ID that EXCHANGE_ID sends for the server's information (`nfs_impl_id4`, RFC 8881 section 3.3.21).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ImplementationId {
    /// DNS domain of the program's vendor.
    pub domain: String,
    /// Name of the program.
    pub name: String,
}

/// An export, and how to connect to it.
///
/// Later versions may add fields: build a target with [`Target::new`] and the struct update syntax.
///
/// ```
/// use nfs_client::{Protocol, Target, VersionChoice};
///
/// let target = Target {
///     version: VersionChoice::Exactly(Protocol::V4_2),
///     machine_name: "backup-1".to_owned(),
///     ..Target::new("nfs.example.org", "/export")
/// };
/// assert_eq!((target.port, target.rpcbind_port), (2049, 111));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Target {
    /// DNS name, or IPv4 or IPv6 address without brackets.
    pub server: String,
    /// Absolute path of the export; `/` is the server's root.
    pub path: String,
    /// Version. Default: the newest that works.
    pub version: VersionChoice,
    /// TCP port of NFS. Default: 2049.
    pub port: u16,
    /// TCP port of NFSv3's MOUNT. Default: as registered with rpcbind.
    pub mount_port: Option<u16>,
    /// TCP port of rpcbind, which is queried only without a `mount_port`. Default: 111.
    pub rpcbind_port: u16,
    /// Local port. Default: below 1024, if permitted.
    pub source_port: SourcePort,
    /// Credential of every call, unless changed by [`Client::with_credential`](crate::Client::with_credential). Default:
    /// uid 0, gid 0.
    pub credential: Credential,
    /// Identity of the client on the server. Default: [`ClientOwner::random`].
    pub owner: ClientOwner,
    /// Name of this machine in AUTH_SYS, at most 255 bytes. For the server's information. Default: `nfs-client`.
    pub machine_name: String,
    /// Implementation ID in EXCHANGE_ID. Default: none.
    pub implementation: Option<ImplementationId>,
    /// Maximum duration of a call, including reconnections and retries. Default: 30 s.
    pub deadline: Duration,
}

impl Target {
    /// Returns a target with the default for every other field.
    pub fn new(server: impl Into<String>, path: impl Into<String>) -> Self {
        Self {
            server: server.into(),
            path: path.into(),
            version: VersionChoice::default(),
            port: 2049,
            mount_port: None,
            rpcbind_port: 111,
            source_port: SourcePort::default(),
            credential: Credential::default(),
            owner: ClientOwner::random(),
            machine_name: "nfs-client".to_owned(),
            implementation: None,
            deadline: Duration::from_secs(30),
        }
    }
}

/// What was negotiated with the server when the connection was established.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Negotiated {
    /// Version in use.
    pub protocol: Protocol,
    /// Address of the client's end; the server sees it unless addresses are translated on the way.
    pub local: SocketAddr,
    /// Address of the server's end.
    pub peer: SocketAddr,
    /// Whether the local port is below 1024.
    pub reserved_port: bool,
    /// The server's implementation name (`eir_server_impl_id`); empty if it does not report one.
    pub implementation: String,
    /// How long the server keeps the session of a silent client; zero if it keeps nothing (NFSv3).
    pub lease: Duration,
    /// Maximum number of operations in a compound, as announced by the server, which may support fewer. 0 if unknown (4.0).
    pub max_operations: u32,
    /// Maximum number of calls in flight.
    pub slots: u32,
    /// Time it took to connect and to create or resume the session.
    pub connected_in: Duration,
}

/// Result of [`Client::test_connection`](crate::Client::test_connection).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionTest {
    /// Address of the server's end.
    pub peer: SocketAddr,
    /// Address of the client's end.
    pub local: SocketAddr,
    /// Time it took, including name resolution.
    pub took: Duration,
}

/// The versions that a server offers at its NFS port.
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

/// Result of [`Client::make_directory`](crate::Client::make_directory).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MkdirResult {
    /// The directory, with the attributes that the server reports now.
    pub node: FileRef,
    /// Status if the server refused to set the mode. Mode and owner are set separately, so that a refused owner does not
    /// prevent the mode.
    pub mode_refused: Option<Status>,
    /// Status if the server refused to set the owner.
    pub owner_refused: Option<Status>,
}

/// A condition of a change: a directory still has this change attribute, so nothing in it was created, removed or renamed.
///
/// Many servers derive the attribute from a clock with a coarse resolution. A directory that may have been changed shortly
/// before the attribute was read, or since in the same tick, needs another look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unchanged {
    /// The directory.
    pub directory: FileHandle,
    /// [`FullAttributes::change`] of the directory.
    pub change: u64,
}

/// Result of a change with conditions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Conditional<T> {
    /// The change was made.
    Done(T),
    /// A directory that had to be [`Unchanged`] was changed, or could not be checked. The change was not made.
    Changed,
}

/// A rename for [`Client::rename_if`](crate::Client::rename_if).
#[derive(Debug, Clone, Copy)]
pub struct Rename<'a> {
    /// Directory and name of the object.
    pub from: (&'a FileHandle, &'a Name),
    /// Fileid of the object.
    pub fileid: u64,
    /// Directory and name afterwards.
    pub to: (&'a FileHandle, &'a Name),
    /// An object that has the new name is replaced. Otherwise, the rename fails with `Exists`.
    pub replaces: bool,
    /// What must not have been changed.
    pub unchanged: &'a [Unchanged],
    /// Attributes to set afterwards, and the handle of the object.
    pub then_set: Option<(&'a FileHandle, SetAttributes)>,
}

/// A file to create with its content.
#[derive(Debug, Clone, Copy)]
pub struct NewFile<'a> {
    /// Directory and name.
    pub at: (&'a FileHandle, &'a Name),
    /// Content.
    pub content: &'a [u8],
    /// Permission bits.
    pub mode: u32,
}

/// A directory to create.
#[derive(Debug, Clone, Copy)]
pub struct NewDirectory<'a> {
    /// Parent directory and name.
    pub at: (&'a FileHandle, &'a Name),
    /// Mode and owner.
    pub attributes: SetAttributes,
}

/// Result of [`Client::walk_and_list`](crate::Client::walk_and_list).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedWalk {
    /// One object for each name that exists, in order.
    pub nodes: Vec<FileRef>,
    /// First entries of the directory in which the last name was looked up; absent if they were not read.
    pub entries: Option<Page>,
}

/// A file that was read as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SmallFile {
    /// The file.
    pub node: FileRef,
    /// Its content.
    pub content: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_counts_as_changed_unless_nothing_but_its_change_attribute_moved() {
        let at = |seconds| Time { seconds, nanos: 0 };
        let before = ChangeToken {
            change: 1,
            size: 10,
            modified: at(5),
            ctime: Some(at(6)),
        };
        let read = ChangeToken { change: 2, ..before };
        for (what, after, changed) in [
            ("not touched", before, false),
            ("read", read, false),
            ("cut", ChangeToken { size: 9, ..read }, true),
            (
                "written",
                ChangeToken {
                    modified: at(7),
                    ..read
                },
                true,
            ),
            (
                "written, and its mtime put back",
                ChangeToken {
                    ctime: Some(at(7)),
                    ..read
                },
                true,
            ),
        ] {
            assert_eq!(after.differs_from(&before), changed, "{what}");
        }
        let without_ctime = |token: ChangeToken| ChangeToken { ctime: None, ..token };
        assert!(
            without_ctime(read).differs_from(&without_ctime(before)),
            "no ctime to compare"
        );
        assert!(!without_ctime(before).differs_from(&without_ctime(before)));
    }

    #[test]
    fn impossible_counts_of_inodes_are_those_of_a_server_that_does_not_count_them() {
        for (what, total, free, expected) in [
            ("counted", 10, 4, (10, 4)),
            ("all free", 10, 10, (10, 10)),
            ("none free", 10, 0, (10, 0)),
            ("not reported", 0, 0, (0, 0)),
            (
                "CephFS: one is in use, and the number of free ones is -1",
                1,
                u64::MAX,
                (0, 0),
            ),
            ("more free than there are", 10, 11, (0, 0)),
            ("only free ones", 0, 5, (0, 0)),
            ("unlimited", u64::MAX, u64::MAX, (0, 0)),
            ("unlimited, and unknown how many are free", u64::MAX, 0, (0, 0)),
        ] {
            let found = FsStat::reported(100, 50, total, free);
            assert_eq!((found.inodes, found.inodes_free), expected, "{what}");
            assert_eq!((found.total, found.available), (100, 50), "{what}");
        }
    }
}
