//! The `nfs-operator` program.

fn main() {}
