//! File attributes on the wire (RFC 8881 sections 3.3.7 and 5).

use std::time::Duration;

use bytes::Bytes;

use super::constants::{attribute, kind};
use crate::xdr::{Decoder, Encoder, XdrError};
use crate::{Attributes, ChangeToken, FileKind, FsId, FsStat, FullAttributes, SetAttributes, Time, Times};

/// Maximum number of words in a bitmap: the attributes of NFSv4.2 fit in three.
const MAX_BITMAP_WORDS: usize = 8;

/// Maximum length of an owner, in bytes. The protocol has no limit; user@domain names are much shorter.
const MAX_OWNER: usize = 1024;

/// The attributes of a [`crate::FileRef`].
pub const FILE_ATTRIBUTES: &[u32] = &[
    attribute::TYPE,
    attribute::SIZE,
    attribute::FSID,
    attribute::FILEID,
    attribute::MODE,
    attribute::NUMLINKS,
    attribute::OWNER,
    attribute::OWNER_GROUP,
];

/// The attributes of [`crate::FullAttributes`].
pub const FULL_ATTRIBUTES: &[u32] = &[
    attribute::TYPE,
    attribute::CHANGE,
    attribute::SIZE,
    attribute::FSID,
    attribute::FILEID,
    attribute::MODE,
    attribute::NUMLINKS,
    attribute::OWNER,
    attribute::OWNER_GROUP,
    attribute::SPACE_USED,
    attribute::TIME_ACCESS,
    attribute::TIME_METADATA,
    attribute::TIME_MODIFY,
];

/// The attributes of a [`crate::ChangeToken`].
pub const CHANGE_TOKEN: &[u32] = &[
    attribute::CHANGE,
    attribute::SIZE,
    attribute::TIME_METADATA,
    attribute::TIME_MODIFY,
];

/// The attributes of an entry of a listing. Without RDATTR_ERROR, one entry that the server cannot read fails the whole
/// page.
pub const ENTRY: &[u32] = &[
    attribute::TYPE,
    attribute::SIZE,
    attribute::FSID,
    attribute::RDATTR_ERROR,
    attribute::FILEID,
    attribute::MOUNTED_ON_FILEID,
];

/// The same with the disk usage.
pub const ENTRY_WITH_USAGE: &[u32] = &[
    attribute::TYPE,
    attribute::SIZE,
    attribute::FSID,
    attribute::RDATTR_ERROR,
    attribute::FILEID,
    attribute::NUMLINKS,
    attribute::SPACE_USED,
    attribute::MOUNTED_ON_FILEID,
];

/// The same with all of [`crate::FullAttributes`].
pub const ENTRY_WITH_ATTRIBUTES: &[u32] = &[
    attribute::TYPE,
    attribute::CHANGE,
    attribute::SIZE,
    attribute::FSID,
    attribute::RDATTR_ERROR,
    attribute::FILEID,
    attribute::MODE,
    attribute::NUMLINKS,
    attribute::OWNER,
    attribute::OWNER_GROUP,
    attribute::SPACE_USED,
    attribute::TIME_ACCESS,
    attribute::TIME_METADATA,
    attribute::TIME_MODIFY,
    attribute::MOUNTED_ON_FILEID,
];

/// The attributes of [`crate::FsStat`].
pub const STATISTICS: &[u32] = &[
    attribute::FILES_FREE,
    attribute::FILES_TOTAL,
    attribute::SPACE_AVAIL,
    attribute::SPACE_TOTAL,
];

/// Encodes the bitmap of requested attributes.
pub fn bitmap(message: &mut Encoder, attributes: &[u32]) {
    let mut words = [0u32; 2];
    for attribute in attributes {
        if let Some(word) = words.get_mut((attribute / 32) as usize) {
            *word |= 1 << (attribute % 32);
        }
    }
    let [first, second] = words;
    message.u32(2).u32(first).u32(second);
}

/// Decodes a bitmap of attributes.
pub fn read_bitmap(reply: &mut Decoder) -> Result<Vec<u32>, XdrError> {
    let count = reply.count("attribute bitmap", 4)?;
    if count > MAX_BITMAP_WORDS {
        return Err(XdrError::TooLong {
            what: "attribute bitmap",
            length: count,
            limit: MAX_BITMAP_WORDS,
        });
    }
    (0..count).map(|_| reply.u32("attribute bitmap")).collect()
}

/// Encodes `fattr4` for VERIFY: the object with this fileid.
pub fn fileid(message: &mut Encoder, fileid: u64) {
    bitmap(message, &[attribute::FILEID]);
    message.u32(8).u64(fileid);
}

/// Encodes `fattr4` for VERIFY: an object with this change attribute.
pub fn change(message: &mut Encoder, change: u64) {
    bitmap(message, &[attribute::CHANGE]);
    message.u32(8).u64(change);
}

/// Encodes `fattr4` for VERIFY: a file of this size, in bytes.
pub fn size(message: &mut Encoder, size: u64) {
    bitmap(message, &[attribute::SIZE]);
    message.u32(8).u64(size);
}

/// Encodes `fattr4` for VERIFY and NVERIFY: a directory.
pub fn directory(message: &mut Encoder) {
    bitmap(message, &[attribute::TYPE]);
    message.u32(4).u32(kind::DIRECTORY);
}

/// Encodes `fattr4` for SETATTR, CREATE and OPEN. Owners are sent as numbers, which servers accept with AUTH_SYS
/// (RFC 8881 section 5.9); one that requires names answers BADOWNER.
pub fn settable(message: &mut Encoder, attributes: SetAttributes) {
    let mut set = Vec::new();
    let mut values = Encoder::new();
    if let Some(size) = attributes.size {
        set.push(attribute::SIZE);
        values.u64(size);
    }
    if let Some(mode) = attributes.mode {
        set.push(attribute::MODE);
        values.u32(mode & 0o7777);
    }
    if let Some(uid) = attributes.uid {
        set.push(attribute::OWNER);
        values.opaque(uid.to_string().as_bytes());
    }
    if let Some(gid) = attributes.gid {
        set.push(attribute::OWNER_GROUP);
        values.opaque(gid.to_string().as_bytes());
    }
    if let Some(times) = attributes.times {
        // SET_TO_CLIENT_TIME4.
        set.extend([attribute::TIME_ACCESS_SET, attribute::TIME_MODIFY_SET]);
        for time in [times.accessed, times.modified] {
            values.u32(1).u64(time.seconds.cast_unsigned()).u32(time.nanos);
        }
    }
    bitmap(message, &set);
    message.opaque(values.as_bytes());
}

/// Decoded attributes: each absent if the server did not report it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DecodedAttributes {
    pub kind: Option<FileKind>,
    pub change: Option<u64>,
    pub size: Option<u64>,
    pub fsid: Option<FsId>,
    pub unique_handles: Option<bool>,
    pub lease_seconds: Option<u32>,
    pub error: Option<u32>,
    pub fileid: Option<u64>,
    pub files_free: Option<u64>,
    pub files_total: Option<u64>,
    pub max_read: Option<u64>,
    pub max_write: Option<u64>,
    pub mode: Option<u32>,
    pub links: Option<u32>,
    pub owner: Option<Bytes>,
    pub group: Option<Bytes>,
    pub space_available: Option<u64>,
    pub space_total: Option<u64>,
    pub space_used: Option<u64>,
    pub accessed: Option<Time>,
    pub ctime: Option<Time>,
    pub modified: Option<Time>,
    pub mounted_on_fileid: Option<u64>,
}

/// Decodes `fattr4`. Values carry no lengths, so nothing after an unknown attribute can be decoded: it is an error.
pub fn read(reply: &mut Decoder) -> Result<DecodedAttributes, XdrError> {
    let words = read_bitmap(reply)?;
    let left = reply.left();
    let mut values = Decoder::new(reply.opaque("attribute values", left)?);
    let mut found = DecodedAttributes::default();
    for (word, base) in words.into_iter().zip((0u32..).step_by(32)) {
        for bit in (0..32).filter(|bit| word & (1 << bit) != 0) {
            read_one(&mut found, base + bit, &mut values)?;
        }
    }
    match u32::try_from(values.left()) {
        Ok(0) => Ok(found),
        left => Err(XdrError::Invalid {
            what: "bytes after the attribute values",
            value: left.unwrap_or(u32::MAX),
        }),
    }
}

fn read_one(found: &mut DecodedAttributes, attribute: u32, values: &mut Decoder) -> Result<(), XdrError> {
    match attribute {
        attribute::TYPE => found.kind = Some(read_kind(values)?),
        attribute::CHANGE => found.change = Some(values.u64("change")?),
        attribute::SIZE => found.size = Some(values.u64("size")?),
        attribute::FSID => {
            found.fsid = Some(FsId {
                major: values.u64("fsid")?,
                minor: values.u64("fsid")?,
            });
        }
        attribute::UNIQUE_HANDLES => found.unique_handles = Some(values.boolean("unique_handles")?),
        attribute::LEASE_TIME => found.lease_seconds = Some(values.u32("lease_time")?),
        attribute::RDATTR_ERROR => found.error = Some(values.u32("rdattr_error")?).filter(|code| *code != 0),
        attribute::FILEID => found.fileid = Some(values.u64("fileid")?),
        attribute::FILES_FREE => found.files_free = Some(values.u64("files_free")?),
        attribute::FILES_TOTAL => found.files_total = Some(values.u64("files_total")?),
        attribute::MAXREAD => found.max_read = Some(values.u64("maxread")?),
        attribute::MAXWRITE => found.max_write = Some(values.u64("maxwrite")?),
        attribute::MODE => found.mode = Some(values.u32("mode")? & 0o7777),
        attribute::NUMLINKS => found.links = Some(values.u32("numlinks")?),
        attribute::OWNER => found.owner = Some(values.opaque("owner", MAX_OWNER)?),
        attribute::OWNER_GROUP => found.group = Some(values.opaque("owner_group", MAX_OWNER)?),
        attribute::SPACE_AVAIL => found.space_available = Some(values.u64("space_avail")?),
        attribute::SPACE_TOTAL => found.space_total = Some(values.u64("space_total")?),
        attribute::SPACE_USED => found.space_used = Some(values.u64("space_used")?),
        attribute::TIME_ACCESS => found.accessed = Some(read_time(values)?),
        attribute::TIME_METADATA => found.ctime = Some(read_time(values)?),
        attribute::TIME_MODIFY => found.modified = Some(read_time(values)?),
        attribute::MOUNTED_ON_FILEID => found.mounted_on_fileid = Some(values.u64("mounted_on_fileid")?),
        value => {
            return Err(XdrError::Invalid {
                what: "attribute that was not requested",
                value,
            });
        }
    }
    Ok(())
}

fn read_time(values: &mut Decoder) -> Result<Time, XdrError> {
    let seconds = values.u64("time")?.cast_signed();
    let nanos = values.u32("time")?;
    // A value of a second or more is invalid, and a copy of it would be refused by other servers.
    if nanos >= 1_000_000_000 {
        return Err(XdrError::Invalid {
            what: "nanoseconds",
            value: nanos,
        });
    }
    Ok(Time { seconds, nanos })
}

fn read_kind(values: &mut Decoder) -> Result<FileKind, XdrError> {
    match values.u32("type")? {
        kind::REGULAR => Ok(FileKind::Regular),
        kind::DIRECTORY => Ok(FileKind::Directory),
        kind::LINK => Ok(FileKind::Symlink),
        3 | 4 | 6..=9 => Ok(FileKind::Other),
        value => Err(XdrError::Invalid { what: "type", value }),
    }
}

impl DecodedAttributes {
    /// Returns the lease time, if the server reports it.
    pub fn lease(&self) -> Option<Duration> {
        let seconds = self.lease_seconds.filter(|seconds| *seconds > 0)?;
        Some(Duration::from_secs(seconds.into()))
    }

    /// Converts the attributes in [`STATISTICS`]. What the server does not report is 0.
    pub fn statistics(&self) -> FsStat {
        FsStat::reported(
            self.space_total.unwrap_or(0),
            self.space_available.unwrap_or(0),
            self.files_total.unwrap_or(0),
            self.files_free.unwrap_or(0),
        )
    }

    /// Converts the attributes in [`FULL_ATTRIBUTES`]; `Err` names a missing one.
    pub fn full_attributes(self) -> Result<FullAttributes, &'static str> {
        let times = Times {
            accessed: self.accessed.or(self.modified).ok_or("time_access")?,
            modified: self.modified.ok_or("time_modify")?,
        };
        let (change, used, ctime) = (self.change.ok_or("change")?, self.space_used, self.ctime);
        let attributes = self.file_attributes()?;
        Ok(FullAttributes {
            used: used.unwrap_or(attributes.size),
            attributes,
            times,
            change,
            ctime,
        })
    }

    /// Converts the attributes in [`CHANGE_TOKEN`]; `None` if one is missing.
    pub fn change_token(&self) -> Option<ChangeToken> {
        Some(ChangeToken {
            change: self.change?,
            size: self.size?,
            modified: self.modified?,
            ctime: self.ctime,
        })
    }

    /// Converts the attributes in [`FILE_ATTRIBUTES`]; `Err` names a missing one.
    pub fn file_attributes(self) -> Result<Attributes, &'static str> {
        let owner = String::from_utf8_lossy(&self.owner.unwrap_or_default()).into_owned();
        let group = String::from_utf8_lossy(&self.group.unwrap_or_default()).into_owned();
        Ok(Attributes {
            kind: self.kind.ok_or("type")?,
            mode: self.mode.ok_or("mode")?,
            uid: number(&owner),
            gid: number(&group),
            owner,
            group,
            size: self.size.ok_or("size")?,
            fileid: self.fileid.ok_or("fileid")?,
            fsid: self.fsid.ok_or("fsid")?,
            // A server that does not count links has one for each object.
            links: self.links.unwrap_or(1),
        })
    }
}

/// Returns the number if an owner is numeric: `0@example.org` is a name.
fn number(owner: &str) -> Option<u32> {
    owner
        .bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| owner.parse().ok())
        .flatten()
}
