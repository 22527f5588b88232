//! READDIR: listing a directory, page by page.

use super::attributes;
use super::client::Client;
use super::compound::{Compound, Reply};
use super::constants::{code, op};
use crate::call_options::CallOptions;
use crate::error::split_status;
use crate::listing::{MAX_NAME, MIN_PAGE, PageBuilder};
use crate::{Entry, FileHandle, NfsError, Page, PageCookie, Status};

const LIST: &str = "listing a directory";

/// Maximum size of a page, in bytes: about 2,000 entries, which are decoded in a fraction of a millisecond.
const MAX_PAGE: usize = 256 << 10;

/// Maximum number of entries in a page: an entry takes at least 28 bytes.
const MAX_ENTRIES: usize = MAX_PAGE / 28;

/// Room for the headers of a reply, in bytes.
const REPLY_HEADERS: usize = 1024;

impl Client {
    /// Reads one page. `NotSame` also after BAD_COOKIE: start again from the beginning.
    pub async fn list(
        &self,
        directory: &FileHandle,
        from: Option<PageCookie>,
        options: CallOptions,
    ) -> Result<Page, NfsError> {
        let requested = attributes::ENTRY;
        self.list_attributes(directory, from, (MAX_PAGE, requested), options)
            .await
    }

    /// The same with the disk usage of each entry, in a page of limited size.
    pub async fn list_with_usage(
        &self,
        directory: &FileHandle,
        from: Option<PageCookie>,
        max_size: u32,
        options: CallOptions,
    ) -> Result<Page, NfsError> {
        let limit = usize::try_from(max_size).unwrap_or(MAX_PAGE);
        let requested = attributes::ENTRY_WITH_USAGE;
        self.list_attributes(directory, from, (limit, requested), options).await
    }

    /// The same with all attributes of each entry.
    pub async fn list_with_attributes(
        &self,
        directory: &FileHandle,
        from: Option<PageCookie>,
        max_size: u32,
        options: CallOptions,
    ) -> Result<Page, NfsError> {
        let limit = usize::try_from(max_size).unwrap_or(MAX_PAGE);
        let requested = attributes::ENTRY_WITH_ATTRIBUTES;
        self.list_attributes(directory, from, (limit, requested), options).await
    }

    async fn list_attributes(
        &self,
        directory: &FileHandle,
        from: Option<PageCookie>,
        (limit, requested): (usize, &[u32]),
        options: CallOptions,
    ) -> Result<Page, NfsError> {
        let max_size = self
            .max_reply()
            .saturating_sub(REPLY_HEADERS)
            .min(limit)
            .clamp(MIN_PAGE as usize, MAX_PAGE);
        let mut max_size = u32::try_from(max_size).unwrap_or(u32::MAX);
        let (cookie, verifier) = from.map_or((0, [0; 8]), |from| (from.cookie, from.verifier));
        let mut reply = loop {
            let mut compound = Compound::new(LIST);
            let message = compound.at(directory).op(op::READDIR);
            message.u64(cookie).fixed(&verifier).u32(max_size).u32(max_size);
            attributes::bitmap(message, requested);
            let reply = self.call(options, &compound).await?;
            // The server's limit is lower than announced.
            if !reply.is_too_large() || max_size <= MIN_PAGE {
                break reply;
            }
            max_size = (max_size / 2).max(MIN_PAGE);
        };
        reply.op(op::PUTFH)?;
        match split_status(reply.op(op::READDIR))? {
            Ok(()) => page(&mut reply, from),
            Err(Status::Other(code::BAD_COOKIE)) => Err(NfsError::Status {
                action: LIST,
                status: Status::NotSame,
            }),
            Err(status) => Err(NfsError::Status { action: LIST, status }),
        }
    }
}

/// Appends READDIR of the first entries of the current directory, which fit into every reply.
pub(super) fn list_begin(compound: &mut Compound) {
    let message = compound.op(op::READDIR);
    message.u64(0).fixed(&[0; 8]).u32(MIN_PAGE).u32(MIN_PAGE);
    attributes::bitmap(message, attributes::ENTRY);
}

/// Decodes the result of [`list_begin`].
pub(super) fn listed(reply: &mut Reply) -> Result<Page, NfsError> {
    reply.op(op::READDIR)?;
    page(reply, None)
}

pub(super) fn page(reply: &mut Reply, from: Option<PageCookie>) -> Result<Page, NfsError> {
    let verifier = reply.take(|results| results.array("cookie verifier"))?;
    let mut page = PageBuilder::new(from, verifier);
    while reply.take(|results| results.boolean("entry follows"))? {
        let cookie = reply.take(|results| results.u64("cookie"))?;
        let name = reply.take(|results| results.opaque("name", MAX_NAME))?;
        let found = reply.take(attributes::read)?;
        page.advance(cookie).map_err(|cause| reply.protocol_error(cause))?;
        let name = PageBuilder::name(&name).map_err(|cause| reply.protocol_error(cause))?;
        if page.len() >= MAX_ENTRIES {
            return Err(reply.protocol_error("more entries than fit into the requested size".to_owned()));
        }
        let known = found.error.is_none();
        page.push(Entry {
            name,
            kind: found.kind.filter(|_| known),
            size: found.size.filter(|_| known),
            fileid: found.mounted_on_fileid.or(found.fileid).filter(|_| known),
            fsid: found.fsid.filter(|_| known),
            used: found.space_used.filter(|_| known),
            links: found.links.filter(|_| known),
            // The change attribute is requested with all others or not at all.
            details: found
                .change
                .filter(|_| known)
                .and_then(|_| found.full_attributes().ok().map(Box::new)),
        });
    }
    let end = reply.take(|results| results.boolean("end of directory"))?;
    page.finish(end).map_err(|cause| reply.protocol_error(cause))
}
