//! COMPOUND requests and their results (RFC 8881 section 16.2).

use bytes::Bytes;

use super::attributes::{self, DecodedAttributes};
use super::constants::{code, op};
use super::status::status;
use crate::xdr::{Decoder, Encoder, XdrError};
use crate::{FileHandle, FileRef, Name, NfsError, SetAttributes};

/// The longest file handle (RFC 8881 section 3.1).
const MAX_HANDLE: usize = 128;

/// The longest tag that we take back. We send an empty one.
const MAX_TAG: usize = 1024;

/// A stateid (RFC 8881 section 8.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateId {
    pub sequence: u32,
    pub other: [u8; 12],
}

impl StateId {
    /// Reads and writes without an open (RFC 8881 section 8.2.3).
    pub const ANONYMOUS: Self = Self {
        sequence: 0,
        other: [0; 12],
    };
    /// The one that an operation before in the same compound made.
    pub const CURRENT: Self = Self {
        sequence: 1,
        other: [0; 12],
    };
}

/// A compound in the making. SEQUENCE is put before it when it is sent.
#[derive(Debug, Clone)]
pub struct Compound {
    /// What errors say was being done.
    pub action: &'static str,
    /// Whether the server must keep the reply in its cache until the slot is used again.
    pub cache_reply: bool,
    /// Whether a call that was put off before it changed anything is repeated until its deadline.
    pub retry_on_delay: bool,
    operations: Vec<u32>,
    body: Encoder,
    /// The place of the first operation that changes something on the server.
    first_modifying: Option<usize>,
}

impl Compound {
    /// Nothing yet.
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

    /// Adds an operation and hands out the place for its arguments.
    pub fn op(&mut self, number: u32) -> &mut Encoder {
        self.operations.push(number);
        self.body.u32(number)
    }

    /// Adds an operation that changes something. The server is to keep the reply: a repetition is answered from there.
    pub fn modifying_op(&mut self, number: u32) -> &mut Encoder {
        self.first_modifying.get_or_insert(self.operations.len());
        self.cache_reply = true;
        self.op(number)
    }

    /// Adds PUTFH.
    pub fn at(&mut self, handle: &FileHandle) -> &mut Self {
        self.op(op::PUTFH).opaque(&handle.0);
        self
    }

    /// Adds LOOKUP.
    pub fn lookup(&mut self, name: &Name) -> &mut Self {
        self.op(op::LOOKUP).opaque(name.as_bytes());
        self
    }

    /// Adds GETFH and GETATTR.
    pub fn file_ref(&mut self) -> &mut Self {
        self.op(op::GETFH);
        self.attributes(attributes::FILE_ATTRIBUTES)
    }

    /// Adds GETATTR.
    pub fn attributes(&mut self, set: &[u32]) -> &mut Self {
        attributes::bitmap(self.op(op::GETATTR), set);
        self
    }

    /// Adds VERIFY: go on only if the current object has this fileid.
    pub fn verify(&mut self, fileid: u64) -> &mut Self {
        attributes::fileid(self.op(op::VERIFY), fileid);
        self
    }

    /// Adds SETATTR.
    pub fn set_attributes(&mut self, set: SetAttributes) -> &mut Self {
        let message = self.modifying_op(op::SETATTR);
        stateid(message, StateId::ANONYMOUS);
        attributes::settable(message, set);
        self
    }

    /// How many operations.
    pub fn count(&self) -> usize {
        self.operations.len()
    }

    /// Encoded length of the operations, in bytes.
    pub fn len(&self) -> usize {
        self.body.len()
    }

    /// Whether carrying it out changes something.
    pub fn is_modifying(&self) -> bool {
        self.first_modifying.is_some()
    }

    /// The arguments of the COMPOUND procedure, with `before` (SEQUENCE, encoded) as the first operation if any.
    pub fn arguments(&self, minor: u32, before: Option<&[u8]>) -> Vec<u8> {
        let mut message = Encoder::new();
        // Compounds are far below 2^32 operations.
        let count = u32::try_from(self.operations.len()).unwrap_or(u32::MAX) + u32::from(before.is_some());
        message.opaque(b"").u32(minor).u32(count);
        message.raw(before.unwrap_or_default()).raw(self.body.as_bytes());
        message.into_bytes()
    }
}

/// Encodes a stateid.
pub fn stateid(message: &mut Encoder, stateid: StateId) {
    message.u32(stateid.sequence).fixed(&stateid.other);
}

/// The results of a compound, taken one after the other.
#[derive(Debug)]
pub struct Reply {
    action: &'static str,
    changes: bool,
    first_modifying: Option<usize>,
    asked: std::vec::IntoIter<u32>,
    status: u32,
    /// Results that follow SEQUENCE's.
    count: usize,
    results: Decoder,
}

impl Reply {
    /// Decodes the head of COMPOUND's results.
    pub fn new(compound: &Compound, mut results: Decoder) -> Result<Self, XdrError> {
        let status = results.u32("compound status")?;
        results.opaque("tag", MAX_TAG)?;
        let count = results.count("operation results", 8)?;
        Ok(Self {
            action: compound.action,
            changes: compound.is_modifying(),
            first_modifying: compound.first_modifying,
            asked: compound.operations.clone().into_iter(),
            status,
            count,
            results,
        })
    }

    /// Takes the result of SEQUENCE off; `None` when the server did not even get there.
    pub fn sequence(&mut self) -> Result<Option<(u32, &mut Decoder)>, XdrError> {
        if self.count == 0 {
            return Ok(None);
        }
        self.count -= 1;
        match self.results.u32("operation")? {
            op::SEQUENCE => {}
            value => {
                return Err(XdrError::Invalid {
                    what: "operation where SEQUENCE was asked for",
                    value,
                });
            }
        }
        let status = self.results.u32("SEQUENCE status")?;
        Ok(Some((status, &mut self.results)))
    }

    /// The compound's status: that of the last operation that was tried.
    pub fn code(&self) -> u32 {
        self.status
    }

    /// Whether nothing was changed, so that the whole compound may be sent again: the operation that failed is the
    /// first that changes something, or comes before it.
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

    /// Begins the result of the next operation, which must be `number` and must have succeeded.
    pub fn op(&mut self, number: u32) -> Result<(), NfsError> {
        if self.asked.next() != Some(number) {
            return Err(self.protocol_error(format!("operation {number} was not asked for here")));
        }
        if self.count == 0 {
            // Nothing after a failed operation is answered; no result at all carries the compound's own status.
            return if self.status == code::OK {
                Err(self.protocol_error("fewer results than operations".to_owned()))
            } else {
                Err(self.failed(self.status))
            };
        }
        self.count -= 1;
        match self.u32("operation")? {
            answered if answered == number => {}
            answered => return Err(self.protocol_error(format!("operation {answered} answered instead of {number}"))),
        }
        match self.u32("operation status")? {
            code::OK => Ok(()),
            status if self.count == 0 && status == self.status => Err(self.failed(status)),
            status => Err(self.protocol_error(format!("status {status} in the middle of a compound"))),
        }
    }

    /// What the server answers next, which from now on is what was asked for: for inputs that come without a request.
    #[cfg(any(test, feature = "fuzzing"))]
    pub fn ask_what_is_answered(&mut self) -> Option<u32> {
        let answered = self.results.clone().u32("operation").ok()?;
        self.asked = vec![answered].into_iter();
        (self.count > 0).then_some(answered)
    }

    /// What is left of the results.
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

    /// An error for what makes no sense.
    pub fn protocol_error(&self, cause: String) -> NfsError {
        NfsError::Protocol {
            action: self.action,
            cause,
            outcome_unknown: self.changes,
        }
    }

    /// Takes something out of the current result.
    pub fn take<T>(&mut self, item: impl FnOnce(&mut Decoder) -> Result<T, XdrError>) -> Result<T, NfsError> {
        item(&mut self.results).map_err(|error| self.protocol_error(error.to_string()))
    }

    /// An unsigned int of the current result.
    pub fn u32(&mut self, what: &'static str) -> Result<u32, NfsError> {
        self.take(|results| results.u32(what))
    }

    /// Takes GETFH's result.
    pub fn handle(&mut self) -> Result<FileHandle, NfsError> {
        self.op(op::GETFH)?;
        let handle = self.take(|results| results.opaque("file handle", MAX_HANDLE))?;
        // A slice would keep the whole reply in memory as long as the handle lives.
        Ok(FileHandle(Bytes::copy_from_slice(&handle)))
    }

    /// Takes GETATTR's result.
    pub fn attributes(&mut self) -> Result<DecodedAttributes, NfsError> {
        self.op(op::GETATTR)?;
        self.take(attributes::read)
    }

    /// Takes GETATTR's result, asked for with [`attributes::FILE_ATTRIBUTES`].
    pub fn file_attributes(&mut self) -> Result<crate::Attributes, NfsError> {
        let found = self.attributes()?;
        found
            .node()
            .map_err(|missing| self.protocol_error(format!("the server has no attribute {missing:?}")))
    }

    /// Takes the results of GETFH and GETATTR.
    pub fn file_ref(&mut self) -> Result<FileRef, NfsError> {
        Ok(FileRef {
            handle: self.handle()?,
            attributes: self.file_attributes()?,
        })
    }

    /// Takes SETATTR's result.
    pub fn set_attributes(&mut self) -> Result<(), NfsError> {
        self.op(op::SETATTR)?;
        self.take(attributes::read_bitmap).map(drop)
    }

    /// Takes the result of CREATE, LINK, REMOVE's `change_info4`: nothing in it that we use.
    pub fn change_info(&mut self) -> Result<(), NfsError> {
        self.take(|results| results.array::<20>("change_info")).map(drop)
    }

    /// Takes a stateid.
    pub fn stateid(&mut self) -> Result<StateId, NfsError> {
        self.take(|results| {
            Ok(StateId {
                sequence: results.u32("stateid")?,
                other: results.array("stateid")?,
            })
        })
    }
}
