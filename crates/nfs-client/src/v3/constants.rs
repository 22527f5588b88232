//! Constants of the protocol (RFC 1813 sections 2.6 and 3.3, appendix I; RFC 1833 section 3).

use crate::rpc::message::{NFS_PROGRAM, Procedure};

/// Procedures of NFS.
#[allow(missing_docs, reason = "the names of the RFC")]
pub mod nfs {
    pub const NULL: u32 = 0;
    pub const GETATTR: u32 = 1;
    pub const SETATTR: u32 = 2;
    pub const LOOKUP: u32 = 3;
    pub const READLINK: u32 = 5;
    pub const READ: u32 = 6;
    pub const WRITE: u32 = 7;
    pub const CREATE: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const SYMLINK: u32 = 10;
    pub const REMOVE: u32 = 12;
    pub const RMDIR: u32 = 13;
    pub const RENAME: u32 = 14;
    pub const LINK: u32 = 15;
    pub const READDIR: u32 = 16;
    pub const READDIRPLUS: u32 = 17;
    pub const FSSTAT: u32 = 18;
    pub const FSINFO: u32 = 19;
    pub const PATHCONF: u32 = 20;
    pub const COMMIT: u32 = 21;
}

/// Status codes that the client handles by number; the others are converted by [`super::status`].
pub mod code {
    pub const OK: u32 = 0;
    pub const BAD_COOKIE: u32 = 10_003;
    pub const JUKEBOX: u32 = 10_008;
}

/// Program number of MOUNT.
pub const MOUNT_PROGRAM: u32 = 100_005;
/// Version of MOUNT that belongs to NFSv3.
pub const MOUNT_VERSION: u32 = 3;

/// A procedure of NFSv3.
pub fn nfs_procedure(number: u32) -> Procedure {
    Procedure {
        program: NFS_PROGRAM,
        version: 3,
        number,
    }
}

/// MOUNTPROC3_MNT.
pub const MNT: Procedure = Procedure {
    program: MOUNT_PROGRAM,
    version: MOUNT_VERSION,
    number: 1,
};

/// MOUNTPROC3_EXPORT.
pub const EXPORT: Procedure = Procedure {
    program: MOUNT_PROGRAM,
    version: MOUNT_VERSION,
    number: 5,
};

/// PMAPPROC_GETPORT.
pub const GETPORT: Procedure = Procedure {
    program: 100_000,
    version: 2,
    number: 3,
};
