//! Attributes and handles on the wire (RFC 1813 sections 2.3 and 2.6).

use bytes::Bytes;

use crate::xdr::{Decoder, Encoder, XdrError};
use crate::{Attributes, FileHandle, FileKind, FsId, FullAttributes, SetAttributes, Time, Times};

/// Maximum length of a file handle (NFS3_FHSIZE), in bytes.
pub const MAX_HANDLE: usize = 64;

/// `nfs_fh3`.
pub fn handle(results: &mut Decoder) -> Result<FileHandle, XdrError> {
    let handle = results.opaque("file handle", MAX_HANDLE)?;
    // A slice would keep the whole reply in memory.
    Ok(FileHandle(Bytes::copy_from_slice(&handle)))
}

/// `post_op_fh3`.
pub fn optional_handle(results: &mut Decoder) -> Result<Option<FileHandle>, XdrError> {
    results.boolean("handle follows")?.then(|| handle(results)).transpose()
}

/// `fattr3`, without the parts of [`FullAttributes`].
pub fn read(results: &mut Decoder) -> Result<Attributes, XdrError> {
    details(results).map(|details| details.attributes)
}

/// `fattr3`. The change attribute is derived from the ctime.
pub fn details(results: &mut Decoder) -> Result<FullAttributes, XdrError> {
    let kind = kind(results)?;
    let mode = results.u32("mode")? & 0o7777;
    let links = results.u32("nlink")?;
    let (uid, gid) = (results.u32("uid")?, results.u32("gid")?);
    let size = results.u64("size")?;
    let used = results.u64("used")?;
    results.u64("rdev")?;
    let fsid = FsId {
        major: results.u64("fsid")?,
        minor: 0,
    };
    let fileid = results.u64("fileid")?;
    let times = Times {
        accessed: time(results)?,
        modified: time(results)?,
    };
    let ctime = time(results)?;
    let attributes = Attributes {
        kind,
        mode,
        uid: Some(uid),
        gid: Some(gid),
        owner: uid.to_string(),
        group: gid.to_string(),
        size,
        fileid,
        fsid,
        links,
    };
    Ok(FullAttributes {
        attributes,
        times,
        change: (ctime.seconds.cast_unsigned() << 32) | u64::from(ctime.nanos),
        ctime: Some(ctime),
        used,
    })
}

/// `nfstime3`, whose seconds are unsigned.
fn time(results: &mut Decoder) -> Result<Time, XdrError> {
    Ok(Time {
        seconds: results.u32("seconds")?.into(),
        // An invalid time of one file must not fail a whole listing.
        nanos: results.u32("nanoseconds")?.min(999_999_999),
    })
}

fn kind(results: &mut Decoder) -> Result<FileKind, XdrError> {
    match results.u32("type")? {
        1 => Ok(FileKind::Regular),
        2 => Ok(FileKind::Directory),
        5 => Ok(FileKind::Symlink),
        3 | 4 | 6 | 7 => Ok(FileKind::Other),
        value => Err(XdrError::Invalid { what: "type", value }),
    }
}

/// `post_op_attr`, with all attributes.
pub fn optional_details(results: &mut Decoder) -> Result<Option<FullAttributes>, XdrError> {
    results
        .boolean("attributes follow")?
        .then(|| details(results))
        .transpose()
}

/// `post_op_attr`.
pub fn optional(results: &mut Decoder) -> Result<Option<Attributes>, XdrError> {
    results.boolean("attributes follow")?.then(|| read(results)).transpose()
}

/// `wcc_data`: the attributes after the operation.
pub fn wcc_data(results: &mut Decoder) -> Result<Option<Attributes>, XdrError> {
    if results.boolean("former attributes follow")? {
        results.array::<24>("former attributes")?;
    }
    optional(results)
}

/// `sattr3`. `touch` sets both times to the server's: an exclusive create may have stored its verifier in them.
pub fn settable(arguments: &mut Encoder, set: SetAttributes, touch: bool) {
    for value in [set.mode.map(|mode| mode & 0o7777), set.uid, set.gid] {
        arguments.boolean(value.is_some());
        if let Some(value) = value {
            arguments.u32(value);
        }
    }
    arguments.boolean(set.size.is_some());
    if let Some(size) = set.size {
        arguments.u64(size);
    }
    let Some(times) = set.times else {
        let time = u32::from(touch);
        arguments.u32(time).u32(time);
        return;
    };
    for time in [times.accessed, times.modified] {
        // SET_TO_CLIENT_TIME; limited to 1970 to 2106 in this version.
        let seconds = time.seconds.clamp(0, u32::MAX.into());
        arguments
            .u32(2)
            .u32(u32::try_from(seconds).unwrap_or(0))
            .u32(time.nanos);
    }
}
