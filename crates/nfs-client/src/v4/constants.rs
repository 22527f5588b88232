//! Constants of the protocol (RFC 7863, the XDR description of NFSv4.2).

/// Operations (`nfs_opnum4`).
#[allow(missing_docs, reason = "the names of the RFC")]
pub mod op {
    pub const CLOSE: u32 = 4;
    pub const COMMIT: u32 = 5;
    pub const CREATE: u32 = 6;
    pub const DELEGRETURN: u32 = 8;
    pub const GETATTR: u32 = 9;
    pub const GETFH: u32 = 10;
    pub const LINK: u32 = 11;
    pub const LOOKUP: u32 = 15;
    pub const NVERIFY: u32 = 17;
    pub const OPEN: u32 = 18;
    pub const OPEN_CONFIRM: u32 = 20;
    pub const PUTFH: u32 = 22;
    pub const PUTROOTFH: u32 = 24;
    pub const READ: u32 = 25;
    pub const READDIR: u32 = 26;
    pub const READLINK: u32 = 27;
    pub const REMOVE: u32 = 28;
    pub const RENAME: u32 = 29;
    pub const SAVEFH: u32 = 32;
    pub const SETATTR: u32 = 34;
    pub const SETCLIENTID: u32 = 35;
    pub const SETCLIENTID_CONFIRM: u32 = 36;
    pub const VERIFY: u32 = 37;
    pub const WRITE: u32 = 38;
    pub const BIND_CONN_TO_SESSION: u32 = 41;
    pub const EXCHANGE_ID: u32 = 42;
    pub const CREATE_SESSION: u32 = 43;
    pub const DESTROY_SESSION: u32 = 44;
    pub const SEQUENCE: u32 = 53;
    pub const DESTROY_CLIENTID: u32 = 57;
    pub const RECLAIM_COMPLETE: u32 = 58;
    pub const COPY: u32 = 60;
    pub const OFFLOAD_CANCEL: u32 = 66;
    pub const OFFLOAD_STATUS: u32 = 67;
    pub const SEEK: u32 = 69;
    pub const CLONE: u32 = 71;
    pub const GETXATTR: u32 = 72;
    pub const SETXATTR: u32 = 73;
    pub const LISTXATTRS: u32 = 74;
}

/// Status codes (`nfsstat4`) that the client handles by number; the others are converted by [`super::status`].
pub mod code {
    pub const OK: u32 = 0;
    pub const NXIO: u32 = 6;
    pub const SAME: u32 = 10_009;
    pub const BAD_COOKIE: u32 = 10_003;
    pub const NOTSUPP: u32 = 10_004;
    pub const DELAY: u32 = 10_008;
    pub const EXPIRED: u32 = 10_011;
    pub const GRACE: u32 = 10_013;
    pub const CLID_INUSE: u32 = 10_017;
    pub const RESOURCE: u32 = 10_018;
    pub const MINOR_VERS_MISMATCH: u32 = 10_021;
    pub const STALE_CLIENTID: u32 = 10_022;
    pub const BAD_STATEID: u32 = 10_025;
    #[cfg(test)]
    pub const NOT_SAME: u32 = 10_027;
    pub const BAD_SEQID: u32 = 10_026;
    pub const OPENMODE: u32 = 10_038;
    pub const OP_ILLEGAL: u32 = 10_044;
    pub const BADSESSION: u32 = 10_052;
    pub const BADSLOT: u32 = 10_053;
    pub const CONN_NOT_BOUND_TO_SESSION: u32 = 10_055;
    pub const SEQ_MISORDERED: u32 = 10_063;
    pub const REQ_TOO_BIG: u32 = 10_065;
    pub const REP_TOO_BIG: u32 = 10_066;
    pub const REP_TOO_BIG_TO_CACHE: u32 = 10_067;
    pub const RETRY_UNCACHED_REP: u32 = 10_068;
    pub const TOO_MANY_OPS: u32 = 10_070;
    pub const SEQ_FALSE_RETRY: u32 = 10_076;
    pub const DEADSESSION: u32 = 10_078;
}

/// Attributes (RFC 8881 section 5).
#[allow(missing_docs, reason = "the names of the RFC")]
pub mod attribute {
    pub const TYPE: u32 = 1;
    pub const CHANGE: u32 = 3;
    pub const SIZE: u32 = 4;
    pub const FSID: u32 = 8;
    pub const UNIQUE_HANDLES: u32 = 9;
    pub const LEASE_TIME: u32 = 10;
    pub const RDATTR_ERROR: u32 = 11;
    pub const FILEID: u32 = 20;
    pub const FILES_FREE: u32 = 22;
    pub const FILES_TOTAL: u32 = 23;
    pub const MAXREAD: u32 = 30;
    pub const MAXWRITE: u32 = 31;
    pub const MODE: u32 = 33;
    pub const NUMLINKS: u32 = 35;
    pub const OWNER: u32 = 36;
    pub const OWNER_GROUP: u32 = 37;
    pub const SPACE_AVAIL: u32 = 42;
    pub const SPACE_TOTAL: u32 = 44;
    pub const SPACE_USED: u32 = 45;
    pub const TIME_ACCESS: u32 = 47;
    pub const TIME_ACCESS_SET: u32 = 48;
    pub const TIME_METADATA: u32 = 52;
    pub const TIME_MODIFY: u32 = 53;
    pub const TIME_MODIFY_SET: u32 = 54;
    pub const MOUNTED_ON_FILEID: u32 = 55;
}

/// File types (`nfs_ftype4`).
#[allow(missing_docs, reason = "the names of the RFC")]
pub mod kind {
    pub const REGULAR: u32 = 1;
    pub const DIRECTORY: u32 = 2;
    pub const LINK: u32 = 5;
}
