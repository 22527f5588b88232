//! Conversion of status codes to [`Status`] (RFC 1813 section 2.6).

use crate::Status;

/// Returns the status for a code other than OK.
pub fn status(code: u32) -> Status {
    match code {
        // SERVERFAULT.
        10_006 => Status::Io,
        code => Status::from_common_code(code),
    }
}
