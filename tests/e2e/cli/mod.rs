//! The program and its subcommands.

pub mod archives;
pub mod check;
pub mod probe;
pub mod program;
