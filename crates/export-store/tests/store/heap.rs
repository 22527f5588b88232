//! Memory of copies, whatever the tree.
//!
//! Measured by the allocator for the test's thread. The servers run in another thread.

use std::future::Future;
use std::sync::{Arc, mpsc};

use export_store::ExportStore;
use tikv_jemalloc_ctl::thread;

use crate::copy::{copied, volume};
use crate::faults::adversarial_trees::managed;
use crate::nfs::hostile::{DIRECTORY, FILE, Hostile};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Almost the maximum depth of a copy.
const LEVELS: usize = 1000;
/// Memory for each level, including the names of one page.
const OF_A_LEVEL: u64 = 2 << 10;
/// Memory that does not depend on the depth.
const FIXED: u64 = 1 << 20;

/// Returns the bytes that this thread has allocated and not freed. Memory from other threads that it freed counts
/// against them.
fn held() -> i64 {
    let allocated = thread::allocatedp::read().unwrap().get();
    allocated.wrapping_sub(thread::deallocatedp::read().unwrap().get()) as i64
}

/// Starts a server in a thread of its own.
fn server() -> Hostile {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            sender.send(Hostile::start().await).unwrap();
            std::future::pending::<()>().await;
        });
    });
    receiver.recv().unwrap()
}

/// Runs a future. Returns its result, and the most memory that this thread had between the steps of its tasks.
async fn measured<T>(work: impl Future<Output = T>) -> (T, u64) {
    let before = held();
    let mut most = before;
    let sample = async {
        loop {
            most = most.max(held());
            tokio::task::yield_now().await;
        }
    };
    let done = tokio::select! {
        done = work => done,
        never = sample => never,
    };
    (done, (most - before).unsigned_abs())
}

#[tokio::test]
async fn a_copy_of_a_deep_tree_takes_little_memory_for_each_level() {
    let (source, target) = (server(), server());
    let (from, to): (Arc<ExportStore>, _) = (Arc::new(managed(&source).await), Arc::new(managed(&target).await));
    let file_id = volume(&from, "1").await;
    {
        let mut tree = source.tree();
        let mut inner = tree.find("1").unwrap();
        for _ in 0..LEVELS {
            // Each byte is escaped in a message.
            inner = tree.add(inner, &[0xff; 250], DIRECTORY);
            tree.add(inner, b"file", FILE);
        }
    }
    let (copy, most) = measured(copied((&from, "1", file_id), (&to, "2"))).await;
    let (_, progress) = copy.unwrap();
    println!("{most} bytes");
    assert_eq!(progress.files, 2 * LEVELS as u64, "{progress}");
    assert!(most <= FIXED + LEVELS as u64 * OF_A_LEVEL, "{most} bytes");
}
