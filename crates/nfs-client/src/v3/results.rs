//! Results of procedures after their status, as far as they are used (RFC 1813 section 3.3).

use bytes::Bytes;

use super::attributes;
use crate::xdr::{Decoder, XdrError};
use crate::{Attributes, FileHandle, FsStat};

/// LOOKUP: the object, and its attributes if the server reports them.
pub fn lookup(results: &mut Decoder) -> Result<(FileHandle, Option<Attributes>), XdrError> {
    Ok((attributes::handle(results)?, attributes::optional(results)?))
}

/// CREATE, MKDIR and SYMLINK: the new object, as far as the server reports it.
pub fn created(results: &mut Decoder) -> Result<(Option<FileHandle>, Option<Attributes>), XdrError> {
    Ok((attributes::optional_handle(results)?, attributes::optional(results)?))
}

/// READ of at most `max` bytes: whether the file ends there, and the data.
pub fn data(results: &mut Decoder, max: usize) -> Result<(bool, Bytes), XdrError> {
    attributes::optional(results)?;
    results.u32("count")?;
    Ok((results.boolean("end of file")?, results.opaque("data", max)?))
}

/// WRITE: the number of bytes, their stability, and the write verifier.
pub fn written(results: &mut Decoder) -> Result<(u32, u32, [u8; 8]), XdrError> {
    attributes::wcc_data(results)?;
    Ok((
        results.u32("count")?,
        results.u32("committed")?,
        results.array("write verifier")?,
    ))
}

/// FSSTAT: bytes and inodes.
pub fn statistics(results: &mut Decoder) -> Result<FsStat, XdrError> {
    attributes::optional(results)?;
    let total = results.u64("total bytes")?;
    // Free in total, then available to the credential.
    results.u64("free bytes")?;
    let available = results.u64("available bytes")?;
    let inodes = results.u64("total inodes")?;
    results.u64("free inodes")?;
    let inodes_free = results.u64("available inodes")?;
    Ok(FsStat::reported(total, available, inodes, inodes_free))
}

/// FSINFO: the maximum READ and WRITE sizes, in bytes.
pub fn sizes(results: &mut Decoder) -> Result<(u32, u32), XdrError> {
    attributes::optional(results)?;
    let read = results.u32("rtmax")?;
    // rtpref and rtmult.
    results.array::<8>("read sizes")?;
    Ok((read, results.u32("wtmax")?))
}

/// PATHCONF: the maximum length of a name, in bytes.
pub fn name_max(results: &mut Decoder) -> Result<u32, XdrError> {
    attributes::optional(results)?;
    results.u32("linkmax")?;
    results.u32("name_max")
}
