//! Memory that the removal of many entries needs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nfs_client::Protocol;

use crate::Failure;
use crate::fixture::{Fixture, tree};

const MEBIBYTE: f64 = 1_048_576.0;
/// Number of entries of the goal.
const GOAL: usize = 1_000_000;
/// Number of entries of one directory.
const LARGE: usize = 100_000;

/// Removes this number of entries. Returns the maximum growth of the process, proxy included.
pub async fn measure(version: &str, protocol: Protocol, entries: usize) -> Result<String, Failure> {
    let fixture = Fixture::start(protocol, Duration::ZERO).await?;
    // One half in large directories, the other in a broad tree.
    for number in 0..entries.div_ceil(2 * LARGE) {
        tree(
            &fixture.trash().join(format!("pvc-large-{number}.1")),
            1,
            LARGE.min(entries / 2),
        )?;
    }
    tree(&fixture.trash().join("pvc-broad.1"), 1000, (entries / 2000).max(1))?;
    // Warm up: permanent allocations of the first purge do not count.
    let idle = resident()?;
    let (highest, stop) = (Arc::new(AtomicU64::new(idle)), Arc::new(AtomicBool::new(false)));
    let watch = {
        let (highest, stop) = (Arc::clone(&highest), Arc::clone(&stop));
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                highest.fetch_max(resident().unwrap_or_default(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(5));
            }
        })
    };
    let began = Instant::now();
    let report = fixture.purge().await;
    let took = began.elapsed();
    stop.store(true, Ordering::Relaxed);
    watch.join().map_err(|_| "the watch on memory died")?;
    let removed = report?.removed;
    let growth = highest.load(Ordering::Relaxed).saturating_sub(idle) as f64 / MEBIBYTE;
    let of = match removed as usize >= GOAL {
        true => String::new(),
        false => format!(" (the goal is about {GOAL}: --memory {GOAL})"),
    };
    Ok(format!(
        "NFS {version}: removing {removed} entries took {:.1} s and at most {growth:.1} MiB above the {:.1} MiB of an idle \
         process; goal 20 MiB{of}",
        took.as_secs_f64(),
        idle as f64 / MEBIBYTE
    ))
}

/// Resident memory of this process in bytes, see proc_pid_status(5).
fn resident() -> Result<u64, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes: u64 = line
        .and_then(|line| line.split_whitespace().next())
        .ok_or("no VmRSS")?
        .parse()?;
    Ok(kibibytes * 1024)
}
