//! What was being done when a call failed.

use super::{ErrorHints, ExportError};
use nfs_client::NfsError;

/// Says what was being done when a call failed.
pub(crate) trait ErrorContext<T> {
    /// Adds what was being done.
    fn while_(self, doing: impl FnOnce() -> String) -> Result<T, ExportError>;
}

impl<T> ErrorContext<T> for Result<T, NfsError> {
    fn while_(self, doing: impl FnOnce() -> String) -> Result<T, ExportError> {
        self.map_err(|source| ExportError::Nfs {
            doing: doing(),
            source: Box::new(source),
            circumstances: ErrorHints::default(),
        })
    }
}
