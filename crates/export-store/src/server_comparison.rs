//! Comparison of servers that have different names (data-safety rule 16).

use futures::future::BoxFuture;

/// Compares two servers whose names differ. Implemented outside of this crate, which resolves no names.
pub trait ServerComparison: Send + Sync {
    /// Returns why the two may be the same machine. Returns `None` only if they are known to be different machines.
    fn why_same<'a>(&'a self, server: &'a str, other: &'a str) -> BoxFuture<'a, Option<String>>;
}

/// Treats any two servers as the same machine.
pub(crate) struct AssumeSame;

impl ServerComparison for AssumeSame {
    fn why_same<'a>(&'a self, server: &'a str, other: &'a str) -> BoxFuture<'a, Option<String>> {
        Box::pin(async move { Some(format!("{other} may be the same server as {server}")) })
    }
}
