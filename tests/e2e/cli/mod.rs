//! The program and its subcommands.

pub mod archives;
pub mod check;
pub mod kubectl_nfs;
pub mod probe;
pub mod program;
