//! Conversion of status codes to [`Status`] (RFC 1813 section 2.6).

use crate::Status;

/// Returns the status for a code other than OK.
pub fn status(code: u32) -> Status {
    match code {
        1 => Status::NotPermitted,
        2 => Status::NotFound,
        // IO, NXIO, SERVERFAULT.
        5 | 6 | 10_006 => Status::Io,
        13 => Status::Access,
        17 => Status::Exists,
        18 => Status::CrossDevice,
        20 => Status::NotDirectory,
        21 => Status::IsDirectory,
        22 => Status::Invalid,
        27 => Status::TooBig,
        28 => Status::NoSpace,
        30 => Status::ReadOnly,
        31 => Status::TooManyLinks,
        63 => Status::NameTooLong,
        66 => Status::NotEmpty,
        69 => Status::QuotaExceeded,
        // STALE, BADHANDLE.
        70 | 10_001 => Status::Stale,
        10_004 => Status::NotSupported,
        10_008 => Status::Delayed,
        other => Status::Other(other),
    }
}
