//! Copies of trees that were made to be expensive.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use rig::objects::condition;
use serde_json::{Value, json};

use super::attacked_cluster::{ATTACKED, ATTACKER, AttackedCluster, Bounds, TIMEOUT, claim, copy_of, nest};
use crate::support::shared::{Failure, Test};

/// Levels of the deep tree, and empty directories in each: all names have 250 bytes.
const LEVELS: usize = 1000;
const BESIDE: usize = 3;
/// Names of the file with hard links, and its size.
const NAMES: usize = 40;
const LINKED_MIB: usize = 64;
/// Sparse files, and the size of each.
const SPARSE_FILES: usize = 32;
const SPARSE_BYTES: u64 = 4 << 40;

/// Creates a file with many names.
fn link(root: &Path) -> std::io::Result<()> {
    let mut file = File::create(root.join("0"))?;
    for number in 0..LINKED_MIB {
        file.write_all(&vec![u8::try_from(number).unwrap_or_default(); 1 << 20])?;
    }
    for number in 1..NAMES {
        fs::hard_link(root.join("0"), root.join(number.to_string()))?;
    }
    Ok(())
}

/// Waits until a claim is Bound, or reports that its copy failed.
async fn ended(env: &AttackedCluster, claim: &Value) -> Result<String, Failure> {
    let ended = |claim: &Value| {
        let reported = condition(claim, "nfs-operator.io/Provisioned")
            .cloned()
            .unwrap_or_default();
        match reported["reason"].as_str() {
            Some(reason @ ("Provisioned" | "CopyFailed")) => Ok(format!("{reason}: {}", reported["message"])),
            _ => Err(reported.to_string()),
        }
    };
    Ok(env
        .objects
        .wait(claim, "to have a copy or none", TIMEOUT, ended)
        .await?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_of_deep_linked_and_sparse_trees_stop_nobody() -> Test {
    let env = AttackedCluster::start(json!({})).await?;
    let (deep, deep_volume) = env.attackers_volume(&claim(ATTACKER, "deep", ATTACKED, "1Gi")).await?;
    let (linked, linked_volume) = env
        .attackers_volume(&claim(ATTACKER, "linked", ATTACKED, "1Gi"))
        .await?;
    let (sparse, sparse_volume) = env
        .attackers_volume(&claim(ATTACKER, "sparse", ATTACKED, "1Pi"))
        .await?;
    let directory = env.directory(ATTACKED, &deep_volume)?;
    tokio::task::spawn_blocking(move || nest(&directory, LEVELS, BESIDE)).await??;
    link(&env.directory(ATTACKED, &linked_volume)?)?;
    for number in 0..SPARSE_FILES {
        File::create(env.directory(ATTACKED, &sparse_volume)?.join(number.to_string()))?.set_len(SPARSE_BYTES)?;
    }
    env.serve_bystander("before").await?;
    let neighbour = env.neighbour("neighbour").await?;

    let bounds = Bounds {
        count: 2 * LEVELS * (1 + BESIDE),
        requests: 0,
        log_bytes: 0,
        cpu_milliseconds: 20,
    };
    env.attack("copies of deep trees", bounds, async {
        let mut copies = Vec::new();
        for (number, source) in [&deep, &deep].into_iter().enumerate() {
            let copy = copy_of(source, claim(ATTACKER, &format!("deep-{number}"), ATTACKED, "1Gi"));
            copies.push(env.attacker.create(&copy).await?);
        }
        env.serve_bystander("deep").await?;
        for copy in &copies {
            println!("{}", ended(&env, copy).await?);
        }
        Ok(())
    })
    .await?;

    let bounds = Bounds {
        count: 2 * SPARSE_FILES + NAMES,
        requests: 0,
        log_bytes: 0,
        cpu_milliseconds: 500,
    };
    env.attack("copies of sparse and linked files", bounds, async {
        for (name, source, size) in [
            ("linked", &linked, "1Gi"),
            ("sparse-1", &sparse, "1Pi"),
            ("sparse-2", &sparse, "1Pi"),
        ] {
            let copy = copy_of(source, claim(ATTACKER, &format!("{name}-copy"), ATTACKED, size));
            env.attacker.create(&copy).await?;
        }
        env.serve_bystander("sparse").await?;
        env.purge_neighbours(&[neighbour]).await
    })
    .await?;
    env.operator.kill9().await?;
    env.remove_trees()
}
