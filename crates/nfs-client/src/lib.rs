//! An asynchronous NFS client for what a provisioner does on an export.
//!
//! It speaks NFSv4.2, 4.1 and 4.0 (RFC 7862, RFC 8881, RFC 7530) and NFSv3 (RFC 1813) over one TCP connection an export,
//! with many calls in flight, a deadline on every call, and names as bytes. [`Export`] hides the version from everything
//! above.
//!
//! What it promises to the layers above:
//!
//! - Every call ends by its deadline. A call that changes something and whose outcome cannot be known says so
//!   ([`NfsError::outcome_unknown`]); nothing that must not be done twice is sent a second time outside a session's reply cache.
//! - What is read from the wire is bounded before it is allocated, and a name never widens into a path.
//! - Renames and removals name the thing they are about by its fileid, in the same round trip; NFSv3 can't, and looks
//!   just before.
//! - With NFSv4.1 and 4.2 a new leader fences off the old one ([`Protocol::fences`]). With NFSv4.0 and 3 calls of the old one
//!   may arrive until its deadlines have passed: the layers above wait.

pub mod address;
mod client;
mod connect;
mod content;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod listing;
mod rpc;
mod terms;
mod types;
mod v3;
mod v4;
mod xdr;

pub use client::Client;
pub use content::{ChangeToken, Copied, Data, FullAttributes, LookupResult, Time, Times, Written};
pub use error::{NfsError, Status};
pub use listing::{Entry, Page, PageCookie};
pub use types::{
    Attributes, ClientOwner, Credential, FileHandle, FileKind, FileRef, FsId, MkdirResult, Name, NameError, Negotiated,
    OfferedVersions, Protocol, Reached, RemoveOutcome, SetAttributes, SmallFile, SourcePort, Statistics, Target,
    VersionChoice,
};
