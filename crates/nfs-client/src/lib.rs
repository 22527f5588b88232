//! An asynchronous NFS client in user space: no mount, no kernel module, no privileges.
//!
//! It supports NFSv4.2, 4.1 and 4.0 (RFC 7862, RFC 8881, RFC 7530) and NFSv3 (RFC 1813) over TCP, on tokio. [`Client`] is one
//! export of one server; it hides the version.
//!
//! ```no_run
//! use nfs_client::{Client, Name, SetAttributes, Target};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::connect(Target::new("nfs.example.org", "/export")).await?;
//! let root = client.root().await?;
//!
//! let name = Name::new("reports")?;
//! let mode = SetAttributes { mode: Some(0o750), ..SetAttributes::default() };
//! let directory = client.make_directory(&root.handle, &name, mode).await?.node;
//! client.create_file(&directory.handle, &Name::new("hello")?, b"hello\n", 0o640).await?;
//!
//! let mut from = None;
//! loop {
//!     let page = client.list(&directory.handle, from).await?;
//!     for entry in &page.entries {
//!         println!("{}", entry.name);
//!     }
//!     match page.next {
//!         Some(next) => from = Some(next),
//!         None => break,
//!     }
//! }
//! client.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! # Versions
//!
//! [`Target::version`] selects the version: by default the newest that works, downgraded to NFSv3 only if the server does
//! not support NFSv4. Each operation takes as few round trips as the version allows: with NFSv4, one compound for most.
//!
//! Renames and removals take the fileid of the object. With NFSv4, the server checks it in the same request, immediately
//! before the change (VERIFY in the compound); with NFSv3, the client checks it just before the change, in a request of its
//! own. Neither is atomic: a COMPOUND runs its operations in order and stops at the first error (RFC 8881 section 16.2.3),
//! but another client can still act between two of them. COPY, CLONE, SEEK and extended attributes need NFSv4.2.
//!
//! # Connections, sessions and fencing
//!
//! All calls of a client and its clones share one connection, with many calls in flight. The connection is established
//! again when it is lost, and closed after 60 s without a call.
//!
//! With NFSv4.1 and 4.2, calls belong to a session: its reply cache executes each call at most once, even if the connection
//! is lost. The session belongs to [`Target::owner`]. A client with the same owner and another verifier ends the session of
//! the earlier client, which from then on fails with [`NfsError::Fenced`]: that is how a new process makes sure that calls
//! of an old one no longer reach the server ([`Protocol::supports_fencing`]). With NFSv4.0 and NFSv3, calls of the old
//! process may arrive until their deadlines have passed.
//!
//! # Errors
//!
//! Each call ends by [`Target::deadline`], reconnections and retries included. [`NfsError::status`] is the server's status;
//! [`NfsError::is_transport`] shows that the server could not be reached. If a call changes something and its reply is lost,
//! [`NfsError::outcome_unknown`] is true: the change may have been executed. A call that must not be executed twice is never
//! sent again outside the reply cache of a session.
//!
//! # Cancellation safety
//!
//! Dropping the future of a call leaves the client usable. A call of which no byte was sent is withdrawn; any other call
//! may still be executed. Its slot is reused only once the server no longer processes it. [`Client::unanswered_changes`]
//! waits until the changes among these calls, and those that were lost, are over.
//!
//! # Limits
//!
//! - Authentication is AUTH_SYS; transport is plain TCP. Use both in trusted networks only.
//! - There are no locks, delegations, callbacks, pNFS, ACLs or referrals, and symbolic links are never followed.
//! - Nothing is cached, except the root handle of NFSv3 for 5 s.
//! - Everything read from the wire is bounded before memory is allocated for it. A record has at most 1 MiB of payload.

#![deny(missing_docs)]

pub mod address;
mod auth;
mod call_options;
mod client;
mod connection_manager;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod listing;
mod managed_client;
mod observer;
mod rpc;
mod small_file;
mod transport;
mod types;
mod unanswered_changes;
mod v3;
mod v4;
#[cfg(feature = "wire")]
pub mod wire;
mod xdr;

pub use client::Client;
pub use error::{NfsError, Status};
pub use observer::{CallKind, CallObserver, CallOutcome};
pub use transport::{Streams, Tcp, Transport};
pub use types::{
    Attributes, ChangeToken, ClientOwner, Conditional, ConnectionTest, CopyResult, Credential, Entry, FileHandle,
    FileKind, FileRef, FsId, FsStat, FullAttributes, ImplementationId, ListedWalk, LookupResult, MkdirResult, Name,
    NameError, Negotiated, NewDirectory, NewFile, OfferedVersions, Page, PageCookie, Protocol, ReadResult,
    RemoveOutcome, Rename, SetAttributes, SmallFile, SourcePort, Target, Time, Times, Unchanged, VersionChoice,
    WriteResult,
};
pub use unanswered_changes::UnansweredChanges;

/// Compiles the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
