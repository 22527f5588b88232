//! Deleted trees that were made to be hard to remove.

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};

use super::attacked_cluster::{ATTACKED, ATTACKER, AttackedCluster, Bounds, TIMEOUT, claim, nest};
use crate::support::shared::{Failure, Test};

/// Deep trees, and the levels of each: all names have 250 bytes.
const DEEP: usize = 40;
const LEVELS: usize = 1100;
/// Prefix of the names of directories that a purge moved to the top of their tree.
const MOVED: &str = ".nfs-operator-deep-";
/// Directories that are refilled, and the pause between two files.
const REFILLED: usize = 8;
const PAUSE: Duration = Duration::from_millis(10);
/// Volumes of others that are deleted during the attack.
const NEIGHBOURS: usize = 5;

/// Processes of pods that still have a deleted volume's directory open, and create files there.
#[derive(Default)]
struct Writers {
    stop: Arc<AtomicBool>,
    created: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<()>>,
}

impl Writers {
    fn start(&mut self, directory: PathBuf) -> std::io::Result<()> {
        let (stop, created) = (Arc::clone(&self.stop), Arc::clone(&self.created));
        let open = File::open(directory)?;
        let thread = std::thread::spawn(move || {
            // Leads to the directory wherever it was moved.
            let path = PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd()));
            for number in 0_u64.. {
                if stop.load(Ordering::Relaxed) || File::create(path.join(number.to_string())).is_err() {
                    return;
                }
                created.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(PAUSE);
            }
        });
        self.threads.push(thread);
        Ok(())
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // After this, nothing is created in trees that are being removed.
            let _ = thread.join();
        }
    }
}

/// Creates volumes of the attacker. Returns their claims, and the volumes.
async fn volumes(env: &AttackedCluster, name: &str, count: usize) -> Result<(Vec<Value>, Vec<Value>), Failure> {
    let claims = (0..count).map(|number| claim(ATTACKER, &format!("{name}-{number}"), ATTACKED, "1Mi"));
    let claims = env.create_claims(claims).await?;
    let mut volumes = Vec::new();
    for claim in &claims {
        volumes.push(env.bound(claim).await?);
    }
    Ok((claims, volumes))
}

/// Returns true if a part of a deep tree in the trash was moved to its top, or if nothing of it is left.
fn is_divided(tree: &Path) -> bool {
    let Ok(entries) = fs::read_dir(tree) else { return true };
    let names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
    names.is_empty() || names.iter().any(|name| name.to_string_lossy().starts_with(MOVED))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_trees_that_are_deep_or_refilled_delay_the_purge_of_others_only_by_their_turns() -> Test {
    let env = AttackedCluster::start(json!({})).await?;
    let (deep, deep_volumes) = volumes(&env, "deep", DEEP).await?;
    let (refilled, refilled_volumes) = volumes(&env, "refilled", REFILLED).await?;
    let mut roots = Vec::new();
    for volume in &deep_volumes {
        roots.push(env.directory(ATTACKED, volume)?);
    }
    tokio::task::spawn_blocking(move || roots.iter().try_for_each(|root| nest(root, LEVELS, 0))).await??;
    let mut neighbours = Vec::new();
    for number in 0..NEIGHBOURS {
        neighbours.push(env.neighbour(&format!("neighbour-{number}")).await?);
    }
    env.serve_bystander("before").await?;
    let mut writers = Writers::default();
    for volume in &refilled_volumes {
        writers.start(env.directory(ATTACKED, volume)?)?;
    }

    let bounds = Bounds {
        count: DEEP + REFILLED + NEIGHBOURS,
        requests: 20,
        log_bytes: 4096,
        cpu_milliseconds: 5 * LEVELS,
    };
    env.attack("deep and refilled trees", bounds, async {
        for claim in deep.iter().chain(&refilled) {
            env.attacker.delete(claim).await?;
        }
        for volume in deep_volumes.iter().chain(&refilled_volumes) {
            env.objects.wait_gone(volume, TIMEOUT).await?;
        }
        let began = std::time::Instant::now();
        env.purge_neighbours(&neighbours).await?;
        println!(
            "deleted data of another tenant on the attacked backend was purged after {:.1?}",
            began.elapsed()
        );
        env.serve_bystander("trash").await?;
        // The attacker's trees have their turns, too.
        let trees = env.trash_of(ATTACKED, &deep_volumes)?;
        rig::wait::until("each deep tree to become smaller", TIMEOUT, async || {
            match trees.iter().filter(|tree| !is_divided(tree)).count() {
                0 => Ok(()),
                left => Err(format!("{left} have their full depth")),
            }
        })
        .await?;
        println!("each deep tree was divided after {:.1?}", began.elapsed());
        Ok(())
    })
    .await?;
    println!(
        "files created in deleted directories: {}",
        writers.created.load(Ordering::Relaxed)
    );
    drop(writers);
    env.operator.kill9().await?;
    env.remove_trees()
}
