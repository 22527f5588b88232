//! User extended attributes (RFC 8276), which need NFSv4.2. Names have no prefix `user.` on the wire.

use bytes::Bytes;

use super::client::Client;
use super::compound::{Compound, Reply};
use super::constants::op;
use crate::call_options::CallOptions;
use crate::error::split_status;
use crate::{FileHandle, NfsError, Status};

const LIST: &str = "listing extended attributes";

/// Maximum length of a name in bytes, with room for the `user.` that some servers count (XATTR_NAME_MAX on Linux is 255).
const MAX_NAME: usize = 255;
/// Maximum length of a value, in bytes (XATTR_SIZE_MAX on Linux).
const MAX_VALUE: usize = 64 << 10;
/// Maximum size of all names of an object, in bytes (XATTR_LIST_MAX on Linux). Bounds their number too: each takes at least
/// 8.
const MAX_LIST: usize = 64 << 10;
/// NFS4ERR_NOXATTR: the attribute does not exist.
const NO_XATTR: u32 = 10_095;
/// setxattr_option4: create or replace.
const EITHER: u32 = 0;

/// Decodes the result of GETXATTR, after its status.
pub(super) fn value(reply: &mut Reply) -> Result<Bytes, NfsError> {
    let value = reply.take(|results| results.opaque("attribute's value", MAX_VALUE))?;
    Ok(Bytes::copy_from_slice(&value))
}

/// Decodes the result of LISTXATTRS, after its status: the next cookie, the names, and whether these are all.
pub(super) fn names(reply: &mut Reply) -> Result<(u64, Vec<Bytes>, bool), NfsError> {
    let cookie = reply.take(|results| results.u64("cookie"))?;
    let count = reply.take(|results| results.count("attribute names", 4))?;
    let mut names = Vec::new();
    for _ in 0..count {
        let name = reply.take(|results| results.opaque("attribute's name", MAX_NAME))?;
        if name.is_empty() || name.contains(&0) {
            return Err(reply.protocol_error(format!("invalid attribute name \"{}\"", name.escape_ascii())));
        }
        names.push(Bytes::copy_from_slice(&name));
    }
    let end = reply.take(|results| results.boolean("end of names"))?;
    Ok((cookie, names, end))
}

impl Client {
    /// Lists the names of all user attributes.
    pub async fn list_xattrs(&self, object: &FileHandle, options: CallOptions) -> Result<Vec<Bytes>, NfsError> {
        self.require_4_2(LIST)?;
        let (mut all, mut cookie, mut bytes) = (Vec::new(), 0, 0);
        loop {
            let mut compound = Compound::new(LIST);
            let max_size = u32::try_from(MAX_LIST.min(self.max_transfer_sizes().0)).unwrap_or(u32::MAX);
            compound.at(object).op(op::LISTXATTRS).u64(cookie).u32(max_size);
            let mut reply = self.call(options, &compound).await?;
            reply.op(op::PUTFH)?;
            reply.op(op::LISTXATTRS)?;
            let (next, names, end) = names(&mut reply)?;
            bytes += names.iter().map(|name| 8 + name.len()).sum::<usize>();
            if bytes > MAX_LIST {
                return Err(NfsError::Limit {
                    action: LIST,
                    limit: format!("more than {MAX_LIST} bytes of names"),
                });
            }
            let is_empty = names.is_empty();
            all.extend(names);
            if end {
                return Ok(all);
            }
            if is_empty || next == cookie {
                return Err(reply.protocol_error("empty LISTXATTRS before the end of the names".to_owned()));
            }
            cookie = next;
        }
    }

    /// Reads the value of an attribute.
    pub async fn get_xattr(
        &self,
        object: &FileHandle,
        name: &[u8],
        options: CallOptions,
    ) -> Result<Option<Bytes>, NfsError> {
        const ACTION: &str = "reading an extended attribute";
        self.require_4_2(ACTION)?;
        let mut compound = Compound::new(ACTION);
        compound.at(object).op(op::GETXATTR).opaque(name);
        let mut reply = self.call(options, &compound).await?;
        reply.op(op::PUTFH)?;
        match split_status(reply.op(op::GETXATTR))? {
            Ok(()) => value(&mut reply).map(Some),
            Err(Status::Other(NO_XATTR)) => Ok(None),
            Err(status) => Err(NfsError::Status { action: ACTION, status }),
        }
    }

    /// Sets an attribute.
    pub async fn set_xattr(
        &self,
        object: &FileHandle,
        name: &[u8],
        value: &[u8],
        options: CallOptions,
    ) -> Result<(), NfsError> {
        const ACTION: &str = "setting an extended attribute";
        self.require_4_2(ACTION)?;
        let mut compound = Compound::new(ACTION);
        let message = compound.at(object).modifying_op(op::SETXATTR);
        message.u32(EITHER).opaque(name).opaque(value);
        let mut reply = self.call(options, &compound).await?;
        reply.op(op::PUTFH)?;
        reply.op(op::SETXATTR)?;
        reply.change_info()
    }
}
