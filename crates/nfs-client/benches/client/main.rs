//! `make bench-client`: the NFS client alone, with realistic round trips, in comparison with sequential calls.
//!
//! It measures, and never fails on a result; the goals are printed beside the results. The server is nfs-ganesha on
//! this machine, and the rig's proxy adds the round trip. Trees are created on the server's disk, so that only the
//! measured calls use the network.

mod fixture;
mod memory;
mod meter;
mod removal;
mod small;
mod table;

use std::error::Error;
use std::time::Duration;

use clap::Parser;
use nfs_client::Protocol;

use crate::fixture::Fixture;

type Failure = Box<dyn Error + Send + Sync>;

/// Measured versions with their names.
const VERSIONS: &[(&str, Protocol)] = &[("4.1", Protocol::V4_1), ("3", Protocol::V3)];
/// Measured round trips in milliseconds.
const ROUND_TRIPS: &[u64] = &[0, 1, 10];

/// Options of the benchmark.
#[derive(Debug, Parser)]
struct Options {
    /// Number of creates and renames in a measurement.
    #[arg(long, default_value_t = 640)]
    count: usize,
    /// Number of entries of the large directory.
    #[arg(long, default_value_t = 100_000)]
    large: usize,
    /// Number of entries that are removed in the measurement of memory; 0 skips it.
    #[arg(long, default_value_t = 200_000)]
    memory: usize,
    /// Round trips to measure, in milliseconds.
    #[arg(long, value_delimiter = ',')]
    round_trips: Vec<u64>,
    /// Cargo passes this option to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut options = Options::parse();
    if options.round_trips.is_empty() {
        options.round_trips = ROUND_TRIPS.to_vec();
    }
    println!("{}", table::conditions(&options));
    let mut rows = Vec::new();
    for &(name, protocol) in VERSIONS {
        for &milliseconds in &options.round_trips {
            let fixture = Fixture::start(protocol, Duration::from_millis(milliseconds)).await?;
            let about = table::About {
                version: name,
                requested: milliseconds,
                measured: fixture.round_trip().await?,
            };
            println!(
                "NFS {name}, {milliseconds} ms requested, {:.2} ms measured …",
                about.measured.as_secs_f64() * 1e3
            );
            rows.extend(small::measure(&fixture, &about, options.count).await?);
            rows.extend(removal::measure(&fixture, &about, options.large).await?);
        }
    }
    println!("\n{}", table::rows(&rows));
    for &(name, protocol) in VERSIONS {
        if options.memory > 0 {
            println!("{}", memory::measure(name, protocol, options.memory).await?);
        }
    }
    Ok(())
}
