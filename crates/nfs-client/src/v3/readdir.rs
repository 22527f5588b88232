//! READDIRPLUS and READDIR: listing a directory, page by page.

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;

use super::attributes;
use super::call::{Call, Effect, Reply};
use super::client::Client;
use super::constants::{code, nfs};
use crate::call_options::CallOptions;
use crate::error::split_status;
use crate::listing::{MAX_NAME, MIN_PAGE, PageBuilder};
use crate::{Entry, FileHandle, FullAttributes, NfsError, Page, PageCookie, Status};

const LIST: &str = "listing a directory";

/// Maximum size of a page, in bytes: about 1,500 entries, which are decoded in a fraction of a millisecond.
const MAX_PAGE: u32 = 256 << 10;

/// Lookups in flight for entries without attributes.
const LOOKUPS: usize = 64;

/// What each entry of a page contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// READDIRPLUS: attributes and handle.
    Plus,
    /// The same; the entries keep all attributes.
    Detailed,
    /// READDIR: the fileid alone.
    Plain,
}

impl Client {
    /// Reads one page. `NotSame` after BAD_COOKIE: start again from the beginning.
    pub async fn list(
        &self,
        directory: &FileHandle,
        from: Option<PageCookie>,
        options: CallOptions,
    ) -> Result<Page, NfsError> {
        self.list_with_usage(directory, from, MAX_PAGE, options).await
    }

    /// The same in a page of limited size. Entries have their disk usage in this version anyway.
    pub async fn list_with_usage(
        &self,
        directory: &FileHandle,
        from: Option<PageCookie>,
        max_size: u32,
        options: CallOptions,
    ) -> Result<Page, NfsError> {
        self.list_form(directory, from, (Form::Plus, max_size), options).await
    }

    /// The same with all attributes of each entry.
    pub async fn list_with_attributes(
        &self,
        directory: &FileHandle,
        from: Option<PageCookie>,
        max_size: u32,
        options: CallOptions,
    ) -> Result<Page, NfsError> {
        self.list_form(directory, from, (Form::Detailed, max_size), options)
            .await
    }

    async fn list_form(
        &self,
        directory: &FileHandle,
        from: Option<PageCookie>,
        (form, max_size): (Form, u32),
        options: CallOptions,
    ) -> Result<Page, NfsError> {
        let max_size = self.limits().read.min(MAX_PAGE).min(max_size.max(MIN_PAGE));
        let mut from = from;
        loop {
            let mut page = match self.page(directory, from, (form, max_size), options).await {
                // Some servers do not support READDIRPLUS at all, or not on every file system.
                Err(NfsError::Status {
                    status: Status::NotSupported,
                    ..
                }) => self.page(directory, from, (Form::Plain, max_size), options).await?,
                page => page?,
            };
            // On some servers, a page may contain only `.` and `..`.
            if page.entries.is_empty() && page.next.is_some() {
                from = page.next;
                continue;
            }
            self.fill_missing_attributes(directory, &mut page.entries, options)
                .await?;
            return Ok(page);
        }
    }

    async fn page(
        &self,
        directory: &FileHandle,
        from: Option<PageCookie>,
        (form, max_size): (Form, u32),
        options: CallOptions,
    ) -> Result<Page, NfsError> {
        let (cookie, verifier) = from.map_or((0, [0; 8]), |from| (from.cookie, from.verifier));
        let procedure = match form {
            Form::Plus | Form::Detailed => nfs::READDIRPLUS,
            Form::Plain => nfs::READDIR,
        };
        let mut call = Call::new(LIST, procedure, Effect::ReadOnly).on(directory);
        call.arguments.u64(cookie).fixed(&verifier);
        if form != Form::Plain {
            // dircount: bytes of names and cookies only. The size of the whole reply is what matters.
            call.arguments.u32(max_size);
        }
        call.arguments.u32(max_size);
        let mut reply = self.call(options, &call).await?;
        if reply.code == code::BAD_COOKIE {
            return Err(NfsError::Status {
                action: LIST,
                status: Status::NotSame,
            });
        }
        reply.ok()?;
        page(&mut reply, from, form)
    }

    /// Looks up the entries without attributes; the attributes of an entry that cannot be looked up remain unknown.
    async fn fill_missing_attributes(
        &self,
        directory: &FileHandle,
        entries: &mut [Entry],
        options: CallOptions,
    ) -> Result<(), NfsError> {
        let mut unknown = entries.iter_mut().filter(|entry| entry.kind.is_none());
        let mut in_flight = FuturesUnordered::new();
        loop {
            let room = LOOKUPS.saturating_sub(in_flight.len());
            in_flight.extend(
                unknown
                    .by_ref()
                    .take(room)
                    .map(|entry| self.fetch_attributes_of(directory, entry, options)),
            );
            match in_flight.next().await {
                Some(looked_up) => looked_up?,
                None => return Ok(()),
            }
        }
    }

    async fn fetch_attributes_of(
        &self,
        directory: &FileHandle,
        entry: &mut Entry,
        options: CallOptions,
    ) -> Result<(), NfsError> {
        if let Ok(Some(found)) = split_status(self.lookup(LIST, directory, &entry.name, options).await)? {
            entry.kind = Some(found.attributes.kind);
            entry.size = Some(found.attributes.size);
            entry.fsid = Some(found.attributes.fsid);
            entry.links = Some(found.attributes.links);
        }
        Ok(())
    }
}

fn page(reply: &mut Reply, from: Option<PageCookie>, form: Form) -> Result<Page, NfsError> {
    reply.take(attributes::optional)?;
    let verifier = reply.take(|results| results.array("cookie verifier"))?;
    let mut page = PageBuilder::new(from, verifier);
    while reply.take(|results| results.boolean("entry follows"))? {
        let fileid = reply.take(|results| results.u64("fileid"))?;
        let name = reply.take(|results| results.opaque("name", MAX_NAME))?;
        let cookie = reply.take(|results| results.u64("cookie"))?;
        let mut reported: Option<FullAttributes> = None;
        if form != Form::Plain {
            reported = reply.take(attributes::optional_details)?;
            reply.take(attributes::optional_handle)?;
        }
        page.advance(cookie).map_err(|cause| reply.protocol_error(cause))?;
        // Only NFSv3 lists them.
        if matches!(name.as_ref(), b"." | b"..") {
            continue;
        }
        let name = PageBuilder::name(&name).map_err(|cause| reply.protocol_error(cause))?;
        let attributes = reported.as_ref().map(|reported| &reported.attributes);
        let detailed = form == Form::Detailed;
        page.push(Entry {
            name,
            kind: attributes.map(|attributes| attributes.kind),
            size: attributes.map(|attributes| attributes.size),
            // At a mount point, this is the fileid of the directory underneath, unlike the one in the attributes.
            fileid: Some(fileid),
            fsid: attributes.map(|attributes| attributes.fsid),
            used: reported.as_ref().map(|reported| reported.used),
            links: attributes.map(|attributes| attributes.links),
            details: reported.filter(|_| detailed).map(Box::new),
        });
    }
    let end = reply.take(|results| results.boolean("end of directory"))?;
    page.finish(end).map_err(|cause| reply.protocol_error(cause))
}

/// Decodes a page from results without a call.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn any_page(results: crate::xdr::Decoder, from: Option<PageCookie>, plus: bool) -> Result<Page, NfsError> {
    let form = if plus { Form::Plus } else { Form::Plain };
    page(&mut Reply::of(results), from, form)
}
