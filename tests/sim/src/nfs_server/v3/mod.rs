//! NFSv3 (RFC 1813) with MOUNT version 3 (RFC 1813 appendix I) and rpcbind version 2 (RFC 1833 section 3).

mod attributes;
pub mod mount;
pub mod nfs;
mod readdir;
pub mod rpcbind;
