//! Attributes and handles on the wire (RFC 1813 sections 2.5 and 2.6).

use nfs_client::Time;
use nfs_client::wire::{Decoder, Encoder, XdrError};

use crate::nfs_server::exports::{Node, Place};
use crate::nfs_server::file_system::{AttributeChanges, TimeChange};
use crate::nfs_server::state::State;
use crate::nfs_server::status::NfsResult;

/// Encodes `fattr3`.
pub fn write(state: &State, place: &Place, results: &mut Encoder) -> NfsResult<()> {
    let disk = state.namespace.disk(&place.disk)?;
    let inode = disk.inode(place.ino)?;
    results.u32(inode.kind.number()).u32(inode.mode).u32(inode.links());
    results.u32(inode.uid).u32(inode.gid);
    results.u64(inode.size()).u64(inode.used()).u64(0);
    results.u64(disk.options().fsid.major).u64(place.ino);
    for time in [inode.accessed, inode.modified, inode.changed] {
        let seconds = time.seconds.clamp(0, u32::MAX.into());
        results.u32(u32::try_from(seconds).unwrap_or(0)).u32(time.nanos);
    }
    Ok(())
}

/// Encodes `post_op_attr`.
pub fn write_optional(state: &State, place: &Place, results: &mut Encoder) {
    let mut attributes = Encoder::new();
    let known = write(state, place, &mut attributes).is_ok();
    results.boolean(known);
    if known {
        results.raw(attributes.as_bytes());
    }
}

/// Encodes `wcc_data`, without the attributes before the change.
pub fn write_wcc(state: &State, place: &Place, results: &mut Encoder) {
    results.boolean(false);
    write_optional(state, place, results);
}

/// Encodes `post_op_fh3`.
pub fn write_handle(node: Node, results: &mut Encoder) {
    results.boolean(true).opaque(&node.handle());
}

/// Decodes `sattr3`.
pub fn read_changes(arguments: &mut Decoder) -> Result<AttributeChanges, XdrError> {
    let mut number = |what| {
        let is_set = arguments.boolean(what)?;
        is_set.then(|| arguments.u32(what)).transpose()
    };
    let (mode, uid, gid) = (number("mode")?, number("uid")?, number("gid")?);
    let sets_size = arguments.boolean("size")?;
    let size = sets_size.then(|| arguments.u64("size")).transpose()?;
    Ok(AttributeChanges {
        mode,
        uid,
        gid,
        size,
        accessed: read_time(arguments)?,
        modified: read_time(arguments)?,
    })
}

/// Decodes `set_atime` or `set_mtime`.
fn read_time(arguments: &mut Decoder) -> Result<Option<TimeChange>, XdrError> {
    match arguments.u32("time")? {
        0 => Ok(None),
        1 => Ok(Some(TimeChange::Now)),
        2 => Ok(Some(TimeChange::To(Time {
            seconds: arguments.u32("seconds")?.into(),
            nanos: arguments.u32("nanoseconds")?,
        }))),
        value => Err(XdrError::Invalid { what: "time", value }),
    }
}
