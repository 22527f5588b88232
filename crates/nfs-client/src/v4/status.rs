//! Conversion of status codes to [`Status`] (RFC 8881 section 15.1).

use crate::Status;

/// Returns the status for a code other than OK.
pub fn status(code: u32) -> Status {
    match code {
        // FHEXPIRED.
        10_014 => Status::Stale,
        // ATTRNOTSUPP, OP_ILLEGAL.
        10_032 | 10_044 => Status::NotSupported,
        // GRACE.
        10_013 => Status::Delayed,
        // LOCKED, SHARE_DENIED, FILE_OPEN.
        10_012 | 10_015 | 10_046 => Status::InUse,
        10_016 => Status::WrongSecurity,
        10_019 => Status::Moved,
        10_027 => Status::NotSame,
        10_029 => Status::Symlink,
        10_039 => Status::BadOwner,
        // BADCHAR, BADNAME.
        10_040 | 10_041 => Status::BadName,
        code => Status::from_common_code(code),
    }
}
