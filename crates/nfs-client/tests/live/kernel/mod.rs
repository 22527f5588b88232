//! The Linux kernel's NFS server, in the rig's emulated machine. `make test` skips these tests where there is no
//! emulator.

mod conformance;
mod server;
