//! The `nfs-operator` program.

use std::process::ExitCode;

/// Configured in `.cargo/config.toml`.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    nfs_operator::cli::main()
}
