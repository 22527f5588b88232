//! The bearer token that `/metrics` can require.
//!
//! It is a secret of its own and not the token of a ServiceAccount: the endpoint has no TLS, and a token that is read on
//! the network must give access to nothing but the metrics. The operator also needs no permission to review tokens.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use axum::http::{HeaderMap, header};
use sha2::{Digest, Sha256};

/// The token cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be read.
    #[error("cannot read the metrics token from {path} (--metrics-token-file): {cause}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        cause: io::Error,
    },
    /// The file is empty.
    #[error("{path} (--metrics-token-file) contains no token: write one to it")]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

/// A token in a file, which is read for each request because a mounted Secret changes in place.
#[derive(Debug, Clone)]
pub struct MetricsToken(Arc<PathBuf>);

impl MetricsToken {
    /// Checks that the file contains a token.
    pub async fn open(path: PathBuf) -> Result<Self, TokenError> {
        let token = Self(Arc::new(path));
        token.read().await.map(|_| token)
    }

    async fn read(&self) -> Result<String, TokenError> {
        let path = || self.0.to_path_buf();
        let text = tokio::fs::read_to_string(&*self.0).await;
        let text = text.map_err(|cause| TokenError::Unreadable { path: path(), cause })?;
        match text.trim() {
            "" => Err(TokenError::Empty { path: path() }),
            token => Ok(token.to_owned()),
        }
    }

    /// Returns true if the request contains the token.
    pub async fn check(&self, headers: &HeaderMap) -> Result<bool, TokenError> {
        let expected = self.read().await?;
        let given = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.as_bytes().split_first_chunk::<7>())
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"Bearer "))
            .map(|(_, token)| token.trim_ascii());
        // Hashes are compared, so the time of the comparison does not reveal the token.
        Ok(given.is_some_and(|given| Sha256::digest(given) == Sha256::digest(expected.as_bytes())))
    }
}
