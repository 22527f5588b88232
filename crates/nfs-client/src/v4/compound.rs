//! COMPOUND requests and their results (RFC 8881 section 16.2).

use bytes::Bytes;

use super::attributes::{self, DecodedAttributes};
use super::constants::{code, op};
use super::status::status;
use crate::xdr::{Decoder, Encoder, XdrError};
use crate::{CallKind, FileHandle, FileRef, Name, NfsError, SetAttributes, Status, Unchanged};

/// Maximum length of a file handle, in bytes (RFC 8881 section 3.1).
const MAX_HANDLE: usize = 128;

/// Maximum length of a tag in a reply, in bytes. Requests have an empty one.
const MAX_TAG: usize = 1024;

/// A stateid (RFC 8881 section 8.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateId {
    /// Sequence (`seqid`).
    pub sequence: u32,
    /// The state (`other`).
    pub other: [u8; 12],
}

impl StateId {
    /// For reads and writes without an open (RFC 8881 section 8.2.3).
    pub const ANONYMOUS: Self = Self {
        sequence: 0,
        other: [0; 12],
    };
    /// The stateid that an earlier operation of the same compound returned.
    pub const CURRENT: Self = Self {
        sequence: 1,
        other: [0; 12],
    };
}

/// A compound that is being built. SEQUENCE is prepended when it is sent.
#[derive(Debug, Clone)]
pub struct Compound {
    /// What errors report as the action.
    pub action: &'static str,
    /// Whether the server must cache the reply until the slot is used again (`sa_cachethis`).
    pub cache_reply: bool,
    /// Whether a call that was delayed before it changed anything is repeated until its deadline.
    pub retry_on_delay: bool,
    operations: Vec<u32>,
    body: Encoder,
    /// Index of the first operation that changes something on the server.
    first_modifying: Option<usize>,
}

impl Compound {
    /// Returns an empty compound.
    pub fn new(action: &'static str) -> Self {
        Self {
            action,
            cache_reply: false,
            retry_on_delay: true,
            operations: Vec::new(),
            body: Encoder::new(),
            first_modifying: None,
        }
    }

    /// Appends an operation; returns the encoder for its arguments.
    pub fn op(&mut self, number: u32) -> &mut Encoder {
        self.operations.push(number);
        self.body.u32(number)
    }

    /// Appends an operation that changes something. The server must cache the reply, to answer a retransmission from there.
    pub fn modifying_op(&mut self, number: u32) -> &mut Encoder {
        self.first_modifying.get_or_insert(self.operations.len());
        self.cache_reply = true;
        self.op(number)
    }

    /// Appends PUTFH.
    pub fn at(&mut self, handle: &FileHandle) -> &mut Self {
        self.op(op::PUTFH).opaque(&handle.0);
        self
    }

    /// Appends LOOKUP.
    pub fn lookup(&mut self, name: &Name) -> &mut Self {
        self.op(op::LOOKUP).opaque(name.as_bytes());
        self
    }

    /// Appends GETFH and GETATTR.
    pub fn file_ref(&mut self) -> &mut Self {
        self.op(op::GETFH);
        self.attributes(attributes::FILE_ATTRIBUTES)
    }

    /// Appends GETATTR.
    pub fn attributes(&mut self, set: &[u32]) -> &mut Self {
        attributes::bitmap(self.op(op::GETATTR), set);
        self
    }

    /// Appends VERIFY: the compound continues only if the current object has this fileid.
    pub fn verify(&mut self, fileid: u64) -> &mut Self {
        attributes::fileid(self.op(op::VERIFY), fileid);
        self
    }

    /// Appends PUTFH and VERIFY for each directory: the compound continues only if none was changed.
    pub fn verify_unchanged(&mut self, unchanged: &[Unchanged]) -> &mut Self {
        for Unchanged { directory, change } in unchanged {
            attributes::change(self.at(directory).op(op::VERIFY), *change);
        }
        self
    }

    /// Appends SETATTR.
    pub fn set_attributes(&mut self, set: SetAttributes) -> &mut Self {
        let message = self.modifying_op(op::SETATTR);
        stateid(message, StateId::ANONYMOUS);
        attributes::settable(message, set);
        self
    }

    /// Number of operations.
    pub fn count(&self) -> usize {
        self.operations.len()
    }

    /// Encoded length of the operations, in bytes.
    pub fn len(&self) -> usize {
        self.body.encoded_len()
    }

    /// Whether the compound changes something.
    pub fn is_modifying(&self) -> bool {
        self.first_modifying.is_some()
    }

    /// Kind of the call. The first operation that changes something decides, if there is one.
    pub fn kind(&self) -> CallKind {
        match self.first_modifying.and_then(|first| self.operations.get(first)) {
            Some(&(op::WRITE | op::COMMIT | op::COPY | op::CLONE)) => CallKind::Write,
            Some(_) => CallKind::Change,
            None if self.operations.contains(&op::READDIR) => CallKind::List,
            None if self.operations.contains(&op::READ) => CallKind::Read,
            None => CallKind::Lookup,
        }
    }

    /// Encodes the arguments of the COMPOUND procedure, with `sequence` (encoded) as the first operation if given.
    pub fn arguments(&self, minor: u32, sequence: Option<&[u8]>) -> Vec<u8> {
        let mut message = Encoder::new();
        // Compounds are far below 2^32 operations.
        let count = u32::try_from(self.operations.len()).unwrap_or(u32::MAX) + u32::from(sequence.is_some());
        message.opaque(b"").u32(minor).u32(count);
        message.raw(sequence.unwrap_or_default()).raw(self.body.as_bytes());
        message.into_bytes()
    }
}

/// Encodes a stateid.
pub fn stateid(message: &mut Encoder, stateid: StateId) {
    message.u32(stateid.sequence).fixed(&stateid.other);
}

/// The results of a compound, decoded in order.
#[derive(Debug)]
pub struct Reply {
    action: &'static str,
    changes: bool,
    first_modifying: Option<usize>,
    requested: std::vec::IntoIter<u32>,
    status: u32,
    /// Number of results not decoded yet.
    count: usize,
    results: Decoder,
}

impl Reply {
    /// Decodes the header of COMPOUND's results.
    pub fn new(compound: &Compound, mut results: Decoder) -> Result<Self, XdrError> {
        let status = results.u32("compound status")?;
        results.opaque("tag", MAX_TAG)?;
        let count = results.count("operation results", 8)?;
        Ok(Self {
            action: compound.action,
            changes: compound.is_modifying(),
            first_modifying: compound.first_modifying,
            requested: compound.operations.clone().into_iter(),
            status,
            count,
            results,
        })
    }

    /// Takes the result of SEQUENCE; `None` if the server refused the compound before it.
    pub fn sequence(&mut self) -> Result<Option<(u32, &mut Decoder)>, XdrError> {
        if self.count == 0 {
            return Ok(None);
        }
        self.count -= 1;
        match self.results.u32("operation")? {
            op::SEQUENCE => {}
            value => {
                return Err(XdrError::Invalid {
                    what: "operation instead of SEQUENCE",
                    value,
                });
            }
        }
        let status = self.results.u32("SEQUENCE status")?;
        Ok(Some((status, &mut self.results)))
    }

    /// Returns the status of the compound: that of the last operation that was executed.
    pub fn code(&self) -> u32 {
        self.status
    }

    /// Returns the status of the compound, unless that is success.
    pub fn failure(&self) -> Option<Status> {
        (self.status != code::OK).then(|| status(self.status))
    }

    /// Whether nothing was changed, so that the whole compound can be sent again: the operation that failed is the first
    /// that changes something, or an earlier one.
    pub fn made_no_change(&self) -> bool {
        self.status != code::OK && self.first_modifying.is_none_or(|first| self.count <= first + 1)
    }

    /// Whether the server refused the compound, or stopped in it, for its number of operations or its size.
    pub fn is_too_large(&self) -> bool {
        matches!(
            self.status,
            code::RESOURCE | code::TOO_MANY_OPS | code::REQ_TOO_BIG | code::REP_TOO_BIG | code::REP_TOO_BIG_TO_CACHE
        )
    }

    /// Whether the server refused the whole compound for its number of operations or its size.
    pub fn is_rejected_as_too_large(&self) -> bool {
        self.count == 0 && self.is_too_large()
    }

    /// Starts decoding the result of the next operation, which must be `number` and must have succeeded.
    pub fn op(&mut self, number: u32) -> Result<(), NfsError> {
        if self.requested.next() != Some(number) {
            return Err(self.protocol_error(format!("operation {number} was not requested here")));
        }
        if self.count == 0 {
            // No result follows a failed operation; without any result, the status of the compound counts.
            return if self.status == code::OK {
                Err(self.protocol_error("fewer results than operations".to_owned()))
            } else {
                Err(self.failed(self.status))
            };
        }
        self.count -= 1;
        match self.u32("operation")? {
            answered if answered == number => {}
            answered => return Err(self.protocol_error(format!("result of operation {answered} instead of {number}"))),
        }
        match self.u32("operation status")? {
            code::OK => Ok(()),
            status if self.count == 0 && status == self.status => Err(self.failed(status)),
            status => Err(self.protocol_error(format!("status {status} in the middle of a compound"))),
        }
    }

    /// Returns the next operation in the reply and expects exactly it: for replies without a request.
    #[cfg(any(test, feature = "fuzzing"))]
    pub fn expect_next_result(&mut self) -> Option<u32> {
        let answered = self.results.clone().u32("operation").ok()?;
        self.requested = vec![answered].into_iter();
        (self.count > 0).then_some(answered)
    }

    /// Returns the results that are not decoded yet.
    #[cfg(any(test, feature = "fuzzing"))]
    pub fn rest(&self) -> Decoder {
        self.results.clone()
    }

    fn failed(&self, code: u32) -> NfsError {
        NfsError::Status {
            action: self.action,
            status: status(code),
        }
    }

    /// Returns the error for an invalid result.
    pub fn protocol_error(&self, cause: String) -> NfsError {
        NfsError::Protocol {
            action: self.action,
            cause,
            outcome_unknown: self.changes,
        }
    }

    /// Decodes an item of the current result.
    pub fn take<T>(&mut self, item: impl FnOnce(&mut Decoder) -> Result<T, XdrError>) -> Result<T, NfsError> {
        item(&mut self.results).map_err(|error| self.protocol_error(error.to_string()))
    }

    /// Decodes an unsigned integer of the current result.
    pub fn u32(&mut self, what: &'static str) -> Result<u32, NfsError> {
        self.take(|results| results.u32(what))
    }

    /// Decodes the result of GETFH.
    pub fn handle(&mut self) -> Result<FileHandle, NfsError> {
        self.op(op::GETFH)?;
        let handle = self.take(|results| results.opaque("file handle", MAX_HANDLE))?;
        // A slice would keep the whole reply in memory as long as the handle exists.
        Ok(FileHandle(Bytes::copy_from_slice(&handle)))
    }

    /// Decodes the result of GETATTR.
    pub fn attributes(&mut self) -> Result<DecodedAttributes, NfsError> {
        self.op(op::GETATTR)?;
        self.take(attributes::read)
    }

    /// Decodes the result of GETATTR of [`attributes::FILE_ATTRIBUTES`].
    pub fn file_attributes(&mut self) -> Result<crate::Attributes, NfsError> {
        let found = self.attributes()?;
        found
            .file_attributes()
            .map_err(|missing| self.protocol_error(format!("attribute {missing:?} is missing")))
    }

    /// Decodes the results of GETFH and GETATTR.
    pub fn file_ref(&mut self) -> Result<FileRef, NfsError> {
        Ok(FileRef {
            handle: self.handle()?,
            attributes: self.file_attributes()?,
        })
    }

    /// Decodes the results of [`Compound::verify_unchanged`]. Any status means that a directory may have been changed.
    pub fn verify_unchanged(&mut self, unchanged: &[Unchanged]) -> Result<(), NfsError> {
        for _ in unchanged {
            self.op(op::PUTFH)?;
            self.op(op::VERIFY)?;
        }
        Ok(())
    }

    /// Decodes the result of SETATTR.
    pub fn set_attributes(&mut self) -> Result<(), NfsError> {
        self.op(op::SETATTR)?;
        self.take(attributes::read_bitmap).map(drop)
    }

    /// Skips a `change_info4`, as in the results of CREATE, LINK and REMOVE.
    pub fn change_info(&mut self) -> Result<(), NfsError> {
        self.take(|results| results.array::<20>("change_info")).map(drop)
    }

    /// Decodes a stateid.
    pub fn stateid(&mut self) -> Result<StateId, NfsError> {
        self.take(|results| {
            Ok(StateId {
                sequence: results.u32("stateid")?,
                other: results.array("stateid")?,
            })
        })
    }
}
