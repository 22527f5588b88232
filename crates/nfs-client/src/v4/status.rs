//! Conversion of status codes to [`Status`] (RFC 8881 section 15.1).

use crate::Status;

/// Returns the status for a code other than OK.
pub fn status(code: u32) -> Status {
    match code {
        1 => Status::NotPermitted,
        2 => Status::NotFound,
        5 | 6 => Status::Io,
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
        // STALE, BADHANDLE, FHEXPIRED.
        70 | 10_001 | 10_014 => Status::Stale,
        // NOTSUPP, ATTRNOTSUPP, OP_ILLEGAL.
        10_004 | 10_032 | 10_044 => Status::NotSupported,
        10_008 | 10_013 => Status::Delayed,
        // LOCKED, SHARE_DENIED, FILE_OPEN.
        10_012 | 10_015 | 10_046 => Status::InUse,
        10_016 => Status::WrongSecurity,
        10_019 => Status::Moved,
        10_027 => Status::NotSame,
        10_029 => Status::Symlink,
        10_039 => Status::BadOwner,
        // BADCHAR, BADNAME.
        10_040 | 10_041 => Status::BadName,
        other => Status::Other(other),
    }
}
