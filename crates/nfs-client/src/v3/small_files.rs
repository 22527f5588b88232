//! Small files: read as a whole, created with their content, replaced atomically.

use super::attributes;
use super::call::{Call, Effect, outcome_unknown};
use super::client::Client;
use super::constants::nfs;
use super::results;
use super::status::status;
use crate::call_options::CallOptions;
use crate::error::split_status;
use crate::small_file::{Content, READ, require_regular};
use crate::types::RemoveKind;
use crate::{FileHandle, FileRef, Name, NfsError, SetAttributes, SmallFile, Status};

const CREATE: &str = "creating a file";

/// createmode3: fails if the name is taken, unless by a retransmission of the same call.
const EXCLUSIVE: u32 = 2;
/// createmode3: fails if the name is taken.
const GUARDED: u32 = 1;
/// stable_how: on stable storage before the reply.
const FILE_SYNC: u32 = 2;

/// Maximum number of lookups of a file that is replaced while it is read.
const MAX_LOOKUPS: usize = 8;

impl Client {
    /// Reads a file of at most `limit` bytes.
    pub async fn read_file(
        &self,
        directory: &FileHandle,
        name: &Name,
        limit: usize,
        options: CallOptions,
    ) -> Result<Option<SmallFile>, NfsError> {
        let refused = |status| Err(NfsError::Status { action: READ, status });
        for _ in 0..MAX_LOOKUPS {
            let Some(node) = self.lookup(READ, directory, name, options).await? else {
                return Ok(None);
            };
            require_regular(node.attributes.kind)?;
            match split_status(self.content(&node.handle, limit, options).await)? {
                Ok(content) => return Ok(Some(SmallFile { node, content })),
                Err(Status::Stale) => {}
                Err(status) => return refused(status),
            }
        }
        refused(Status::Stale)
    }

    async fn content(&self, file: &FileHandle, limit: usize, options: CallOptions) -> Result<Vec<u8>, NfsError> {
        let mut content = Content::new(limit);
        loop {
            let part = self.read(file, content.offset(), content.missing(), options).await?;
            if content.append(&part)? {
                return Ok(content.into_bytes());
            }
        }
    }

    /// Creates a file with its content.
    pub async fn create_file(
        &self,
        directory: &FileHandle,
        name: &Name,
        content: &[u8],
        mode: u32,
        options: CallOptions,
    ) -> Result<FileRef, NfsError> {
        self.check_name_length(CREATE, name)?;
        let set = SetAttributes {
            mode: Some(mode),
            ..SetAttributes::default()
        };
        let mut file = match split_status(self.create(directory, name, None, options).await)? {
            Ok(file) => file,
            Err(Status::NotSupported | Status::Invalid) => self.create(directory, name, Some(set), options).await?,
            Err(status) => return Err(NfsError::Status { action: CREATE, status }),
        };
        let fill = async {
            // Concurrently: neither depends on the other.
            tokio::try_join!(
                self.set_part(&file.handle, set, true, options),
                self.write_synced(&file.handle, content, options),
            )
        };
        match fill.await {
            Ok((attributes, ())) => {
                file.attributes = attributes;
                file.attributes.size = content.len() as u64;
                Ok(file)
            }
            Err(error) => {
                // A file without its content is worse than none: a reader would mistake it for the complete file.
                let _ = self
                    .remove(
                        directory,
                        name,
                        file.attributes.fileid,
                        RemoveKind::NonDirectory,
                        options,
                    )
                    .await;
                Err(match error {
                    NfsError::Status { status, .. } => NfsError::Status { action: CREATE, status },
                    error => error,
                })
            }
        }
    }

    /// Sends CREATE: EXCLUSIVE, which takes no attributes and recognizes its retransmission by the verifier; or GUARDED, for
    /// servers that cannot store a verifier.
    async fn create(
        &self,
        directory: &FileHandle,
        name: &Name,
        guarded: Option<SetAttributes>,
        options: CallOptions,
    ) -> Result<FileRef, NfsError> {
        let effect = match guarded {
            None => Effect::Idempotent,
            Some(_) => Effect::NonIdempotent,
        };
        let mut call = Call::new(CREATE, nfs::CREATE, effect).at(directory, name);
        match guarded {
            None => {
                call.arguments.u32(EXCLUSIVE).fixed(&rand::random::<[u8; 8]>());
            }
            Some(set) => {
                call.arguments.u32(GUARDED);
                attributes::settable(&mut call.arguments, set, false);
            }
        }
        let mut reply = self.call(options, &call).await?;
        if reply.repeated && status(reply.code) == Status::Exists {
            // The file of another client, or of the first transmission: a server that fails after it created the file and
            // before it stored the verifier does not recognize the retransmission.
            let cause = "the name exists, possibly created by the first transmission of this call";
            return Err(outcome_unknown(&call, cause.to_owned()));
        }
        reply.ok()?;
        let reported = reply.take(results::created)?;
        self.created_object(CREATE, directory, name, reported, options).await
    }

    /// Writes the content of a file to stable storage.
    async fn write_synced(&self, file: &FileHandle, content: &[u8], options: CallOptions) -> Result<(), NfsError> {
        let mut done = 0;
        while let Some(rest) = content.get(done..).filter(|rest| !rest.is_empty()) {
            let part = rest.get(..self.limits().write as usize).unwrap_or(rest);
            let count = u32::try_from(part.len()).unwrap_or(u32::MAX);
            let mut call = Call::new(CREATE, nfs::WRITE, Effect::Idempotent).on(file);
            call.arguments.u64(done as u64).u32(count).u32(FILE_SYNC).opaque(part);
            let mut reply = self.call(options, &call).await?;
            reply.ok()?;
            let (written, committed, _) = reply.take(results::written)?;
            if committed != FILE_SYNC || written == 0 || written > count {
                return Err(reply.protocol_error(format!("{written} bytes written, stability {committed}")));
            }
            done += written as usize;
        }
        Ok(())
    }
}
