//! Crashes of the operator, and recovery by the next one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rig::proxy::has_bytes;
use rig::{Action, Direction, Export, NfsOptions, NfsServer, Proxy, RunDir};
use serde_json::{Value, json};

use crate::support::dedicated_cluster::DedicatedCluster;
use crate::support::shared::{TIMEOUT, Test, text};

/// Returns the bytes of a CREATE of a directory (RFC 8881 section 18.4: operation number, type, name) whose name has
/// this prefix and this number of further bytes.
pub fn making_of(begin: &str, more: usize) -> Vec<u8> {
    let length = u32::try_from(begin.len() + more).unwrap();
    let numbers = [6, 2, length].into_iter().flat_map(u32::to_be_bytes);
    numbers.chain(begin.bytes()).collect()
}

/// Loses every reply from this request on. If only the first one was lost, the operator would repeat the request after
/// its deadline, and go on.
pub fn lose_replies_from(proxy: &Proxy, request: Vec<u8>) {
    let begun = Arc::new(AtomicBool::new(false));
    let begins = Arc::clone(&begun);
    proxy.on_record(Direction::Up, move |record| {
        if has_bytes(record, &request) {
            begins.store(true, Ordering::Relaxed);
        }
        Action::Forward
    });
    proxy.on_record(Direction::Down, move |_| match begun.load(Ordering::Relaxed) {
        true => Action::Drop,
        false => Action::Forward,
    });
}

/// Returns the seed of this run: `NFS_OPERATOR_TEST_SEED`, to reproduce a failed run, or a random number.
fn seed() -> Result<u64, std::num::ParseIntError> {
    let given = std::env::var("NFS_OPERATOR_TEST_SEED").ok();
    let seed = given.map_or_else(|| Ok(u64::from(std::process::id())), |seed| seed.parse())?;
    eprintln!("NFS_OPERATOR_TEST_SEED={seed}");
    Ok(seed)
}

/// Returns pseudo-random numbers that depend only on the seed, so that a failed run can be reproduced.
fn chances(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed;
    move |below| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_killed_repeatedly_while_claims_come_and_go_loses_and_duplicates_nothing() -> Test {
    let mut env = DedicatedCluster::start(json!({"probeInterval": "1s"})).await?;
    let mut chance = chances(seed()?);
    let mut doomed = Vec::new();
    for n in 0..50 {
        env.objects.create(&env.claim(&format!("doomed-{n}"))).await?;
    }
    for n in 0..50 {
        let volume = env.bound(&env.claim(&format!("doomed-{n}"))).await?;
        std::fs::write(env.directory(&volume)?.join("data"), format!("doomed-{n}"))?;
        doomed.push(volume);
    }
    let objects = env.objects.clone();
    let claims: Vec<(Value, Value)> = (0..100)
        .map(|n| (env.claim(&format!("new-{n}")), env.claim(&format!("doomed-{}", n / 2))))
        .collect();
    let traffic = tokio::spawn(async move {
        for (n, (new, doomed)) in claims.iter().enumerate() {
            objects.create(new).await.map_err(|error| error.to_string())?;
            if n % 2 == 0 {
                objects.delete(doomed).await.map_err(|error| error.to_string())?;
            }
        }
        Ok::<(), String>(())
    });
    for _ in 0..6 {
        tokio::time::sleep(Duration::from_millis(100 + chance(900))).await;
        env.operator.kill9().await?;
        env.operator.restart().await?;
    }
    traffic.await??;
    let mut kept = BTreeSet::new();
    for n in 0..100 {
        let volume = env.bound(&env.claim(&format!("new-{n}"))).await?;
        kept.insert(
            env.directory(&volume)?
                .file_name()
                .unwrap()
                .to_string_lossy()
                .into_owned(),
        );
    }
    for volume in &doomed {
        env.objects.wait_gone(volume, TIMEOUT).await?;
    }
    let archived: BTreeSet<String> = doomed
        .iter()
        .map(|volume| {
            Ok(format!(
                "archived-{}",
                env.directory(volume)?.file_name().unwrap().to_string_lossy()
            ))
        })
        .collect::<Result<_, crate::support::shared::Failure>>()?;
    assert_eq!(kept.len(), 100);
    assert_eq!(env.volumes().await?.len(), 100, "no volume without a claim");
    assert_eq!(
        env.names()?,
        kept.union(&archived).cloned().collect(),
        "a directory for each volume and archive"
    );
    for archive in &archived {
        let text = std::fs::read_to_string(env.data()?.join(archive).join("data"))?;
        assert!(
            archive.contains(&format!("-{text}-")),
            "{archive} holds the data of {text}"
        );
    }
    let named = |volumes: &[Value]| -> BTreeSet<String> {
        let names = volumes.iter().map(|volume| text(volume, "/metadata/name").to_owned());
        names.collect()
    };
    let expected = BTreeMap::from([
        ("Live".to_owned(), named(&env.volumes().await?)),
        ("Archived".to_owned(), named(&doomed)),
    ]);
    // If a process was killed after it had created the object of an archive, the next one replaces the record of the
    // archive later, by a draft.
    rig::wait::until("a record for each, and nothing half done", TIMEOUT, async || {
        let mut states = BTreeMap::new();
        for (name, record) in env.records().map_err(|error| error.to_string())? {
            let state = record["state"]["name"].as_str().unwrap_or_default();
            states
                .entry(state.to_owned())
                .or_insert_with(BTreeSet::new)
                .insert(name);
        }
        if states == expected {
            Ok(())
        } else {
            Err(format!("{states:?} instead of {expected:?}"))
        }
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_deleted_between_its_directory_and_its_volume_leaves_nothing_behind() -> Test {
    let mut env = DedicatedCluster::start(json!({"probeInterval": "1s"})).await?;
    // The reply to the creation of the directory never arrives, so the volume cannot exist.
    lose_replies_from(&env.proxy, making_of("default-data-pvc-", 36));
    let claim = env.objects.create(&env.claim("data")).await?;
    rig::wait::until("the directory to be created", TIMEOUT, async || {
        let names = env.names().map_err(|error| error.to_string())?;
        if names.is_empty() {
            Err("no directory yet".to_owned())
        } else {
            Ok(())
        }
    })
    .await?;
    env.operator.kill9().await?;
    assert_eq!(env.volumes().await?.len(), 0);
    env.objects.delete(&claim).await?;
    env.objects.wait_gone(&claim, TIMEOUT).await?;
    env.proxy.clear_hooks();
    env.operator.restart().await?;
    wait_empty(&env).await
}

/// Waits until no directory and no record is left on the export.
async fn wait_empty(env: &DedicatedCluster) -> Test {
    let empty = rig::wait::until("directory and record to be gone", TIMEOUT, async || {
        let names = env.names().map_err(|error| error.to_string())?;
        let records = env.records().map_err(|error| error.to_string())?;
        if names.is_empty() && records.is_empty() {
            Ok(())
        } else {
            Err(format!("{names:?} {records:?}"))
        }
    });
    Ok(empty.await?)
}

/// While there was one backend, its name was not written to the claim.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_moves_to_a_new_backend_after_a_crash_leaves_nothing_on_the_unreachable_one() -> Test {
    let mut env = DedicatedCluster::start(json!({"probeInterval": "1s"})).await?;
    lose_replies_from(&env.proxy, making_of("default-data-pvc-", 36));
    let claim = env.objects.create(&env.claim("data")).await?;
    rig::wait::until("the directory to be created", TIMEOUT, async || {
        let names = env.names().map_err(|error| error.to_string())?;
        if names.is_empty() {
            Err("no directory yet".to_owned())
        } else {
            Ok(())
        }
    })
    .await?;
    env.operator.kill9().await?;
    let found = env.objects.get(&claim).await?.unwrap_or_default();
    assert_eq!(found.pointer("/metadata/annotations/nfs-operator.io~1placed-on"), None);
    env.proxy.clear_hooks();
    env.proxy.refuse(true).await?;
    env.proxy.cut().await;
    let run = RunDir::new()?;
    let mut server = NfsServer::start(&run, NfsOptions::default()).await?;
    // With the same path, its volume would be in the way: an address includes no port (data-safety rule 16).
    let other = server.add_export(Export::new("/other")).await?;
    let spec = json!({"path": "/other", "nfs": {"port": server.port()}});
    let mut second = env.backend_object(&json!({ "spec": spec }));
    second["metadata"]["name"] = json!("second");
    env.objects.create(&second).await?;
    env.operator.restart().await?;
    let volume = env.bound(&claim).await?;
    assert_eq!(
        text(&volume, "/metadata/annotations/nfs-operator.io~1backend"),
        "second"
    );
    assert_eq!(
        (env.names()?.len(), env.records()?.len()),
        (1, 1),
        "it cannot be reached"
    );
    env.proxy.refuse(false).await?;
    wait_empty(&env).await?;
    let path = text(&volume, "/spec/nfs/path");
    assert!(other.join(path.trim_start_matches("/other/")).is_dir(), "{path}");
    Ok(())
}
