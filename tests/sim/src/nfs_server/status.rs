//! Status codes (RFC 8881 section 15.1). NFSv3 has the same numbers for what both versions know (RFC 1813 section 2.6).

/// A status other than OK, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NfsStat(pub u32);

/// Result of an operation on the model.
pub type NfsResult<T> = Result<T, NfsStat>;

#[allow(missing_docs, reason = "the names of the RFC")]
impl NfsStat {
    pub const PERM: Self = Self(1);
    pub const NOENT: Self = Self(2);
    pub const IO: Self = Self(5);
    pub const NXIO: Self = Self(6);
    pub const ACCESS: Self = Self(13);
    pub const EXIST: Self = Self(17);
    pub const XDEV: Self = Self(18);
    pub const NOTDIR: Self = Self(20);
    pub const ISDIR: Self = Self(21);
    pub const INVAL: Self = Self(22);
    pub const FBIG: Self = Self(27);
    pub const NOSPC: Self = Self(28);
    pub const ROFS: Self = Self(30);
    pub const MLINK: Self = Self(31);
    pub const NAMETOOLONG: Self = Self(63);
    pub const NOTEMPTY: Self = Self(66);
    pub const DQUOT: Self = Self(69);
    pub const STALE: Self = Self(70);
    pub const BADHANDLE: Self = Self(10_001);
    pub const BAD_COOKIE: Self = Self(10_003);
    pub const NOTSUPP: Self = Self(10_004);
    pub const TOOSMALL: Self = Self(10_005);
    pub const SERVERFAULT: Self = Self(10_006);
    /// Called JUKEBOX in NFSv3.
    pub const DELAY: Self = Self(10_008);
    pub const SAME: Self = Self(10_009);
    pub const EXPIRED: Self = Self(10_011);
    pub const GRACE: Self = Self(10_013);
    pub const CLID_INUSE: Self = Self(10_017);
    pub const NOFILEHANDLE: Self = Self(10_020);
    pub const MINOR_VERS_MISMATCH: Self = Self(10_021);
    pub const STALE_CLIENTID: Self = Self(10_022);
    pub const STALE_STATEID: Self = Self(10_023);
    pub const OLD_STATEID: Self = Self(10_024);
    pub const BAD_STATEID: Self = Self(10_025);
    pub const BAD_SEQID: Self = Self(10_026);
    pub const NOT_SAME: Self = Self(10_027);
    pub const SYMLINK: Self = Self(10_029);
    pub const ATTRNOTSUPP: Self = Self(10_032);
    pub const BADXDR: Self = Self(10_036);
    pub const OPENMODE: Self = Self(10_038);
    pub const BADOWNER: Self = Self(10_039);
    pub const BADCHAR: Self = Self(10_040);
    pub const BADNAME: Self = Self(10_041);
    pub const OP_ILLEGAL: Self = Self(10_044);
    pub const BADSESSION: Self = Self(10_052);
    pub const BADSLOT: Self = Self(10_053);
    pub const COMPLETE_ALREADY: Self = Self(10_054);
    pub const CLIENTID_BUSY: Self = Self(10_074);
    pub const SEQ_MISORDERED: Self = Self(10_063);
    pub const SEQUENCE_POS: Self = Self(10_064);
    pub const REP_TOO_BIG: Self = Self(10_066);
    pub const REP_TOO_BIG_TO_CACHE: Self = Self(10_067);
    pub const RETRY_UNCACHED_REP: Self = Self(10_068);
    pub const TOO_MANY_OPS: Self = Self(10_070);
    pub const OP_NOT_IN_SESSION: Self = Self(10_071);
    pub const SEQ_FALSE_RETRY: Self = Self(10_076);
    pub const NOT_ONLY_OP: Self = Self(10_081);
    pub const WRONG_TYPE: Self = Self(10_083);
    /// RFC 8276 section 8.
    pub const NOXATTR: Self = Self(10_095);
}
