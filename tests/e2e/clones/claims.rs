//! Claims that request a copy of another claim's data.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::Path;
use std::time::Duration;

use rig::objects::{condition, merge};
use rig::{TestEnv, wait};
use serde_json::{Value, json};

use crate::support::dedicated_cluster::DedicatedCluster;
use crate::support::shared::{self, Failure, TIMEOUT, Test, bound_with_data, text, wait_refused};

/// Number of folders in the source of a slow copy, and of files in each. The folders are entered one after the other.
const FOLDERS: usize = 40;
const FILES: usize = 10;
/// Delay of each message while a copy begins: it takes several seconds, in which a test sees it.
const SLOW: Duration = Duration::from_millis(50);
/// Delay of each message once it is under way: the rest takes about half a minute, in which a test acts.
const SLOWER: Duration = Duration::from_millis(250);

/// Returns a claim with another claim as its data source.
fn copy_of(source: &str, mut claim: Value) -> Value {
    let spec = json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": source}});
    merge(&mut claim, &json!({ "spec": spec }));
    claim
}

/// Returns names and contents below a directory.
pub fn contents(root: &Path) -> std::io::Result<BTreeMap<String, Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let is = fs::symlink_metadata(&path)?;
            if is.is_dir() {
                folders.push(path);
            } else if is.is_file() {
                found.insert(path.strip_prefix(root).unwrap().display().to_string(), fs::read(&path)?);
            }
        }
    }
    Ok(found)
}

/// Returns the message of the claim's condition.
pub async fn claim_condition_message(env: &TestEnv, claim: &Value) -> Result<String, Failure> {
    let kind = "nfs-operator.io/Provisioned";
    let reported = env
        .objects
        .wait_condition(claim, kind, "True", Some("Provisioned"), TIMEOUT);
    Ok(reported.await?["message"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn a_claim_with_another_claim_as_its_data_source_starts_with_a_copy_of_its_data() -> Test {
    let env = TestEnv::new("clone").await?;
    let class = env.create_ready_class().await?;
    let (source, old) = bound_with_data(&env, "old", &class, "text").await?;
    let root = env.directory(&old)?;
    symlink("data", root.join("link"))?;
    chown(root.join("data"), Some(1234), Some(4321))?;
    fs::set_permissions(&root, fs::Permissions::from_mode(0o2750))?;
    let before = rig::snapshot(&root)?;
    let claim = env.objects.create(&copy_of("old", env.claim("new", &class))).await?;
    let new = env.wait_bound(&claim).await?;
    let copy = env.directory(&new)?;
    assert_ne!(copy, root);
    assert_eq!(fs::read_to_string(copy.join("data"))?, "text");
    assert_eq!(fs::read_link(copy.join("link"))?, Path::new("data"));
    assert_eq!(fs::metadata(&copy)?.permissions().mode() & 0o7777, 0o2750);
    assert!(
        claim_condition_message(&env, &claim)
            .await?
            .contains("a copy of claim old (2 files, 4")
    );
    assert_eq!(rig::snapshot(&root)?, before, "the source was changed");
    // Both are independent from now on.
    fs::write(copy.join("data"), "other")?;
    shared::reclaim(&env, &source, &old, "VolumeArchived").await?;
    assert_eq!(fs::read_to_string(copy.join("data"))?, "other");
    Ok(())
}

#[tokio::test]
async fn a_copy_may_be_made_on_another_backend() -> Test {
    let (env, other) = (TestEnv::new("clone-from").await?, TestEnv::new("clone-to").await?);
    let class = env.create_ready_class().await?;
    bound_with_data(&env, "old", &class, "text").await?;
    other.create_ready_class().await?;
    let there = json!({ "backend": other.unique_name("backend") });
    let class = env.objects.create(&env.class("there", there)).await?;
    let claim = env.objects.create(&copy_of("old", env.claim("new", &class))).await?;
    env.wait_bound(&claim).await?;
    let names = shared::names(other.data())?;
    let [name] = names.as_slice() else {
        panic!("{names:?}");
    };
    assert_eq!(fs::read_to_string(other.data().join(name).join("data"))?, "text");
    Ok(())
}

#[tokio::test]
async fn a_copy_waits_for_its_source_and_is_never_smaller() -> Test {
    let env = TestEnv::new("clone-late").await?;
    let class = env.create_ready_class().await?;
    let claim = env.objects.create(&copy_of("old", env.claim("new", &class))).await?;
    let message = wait_refused(&env, &claim, "CopySourceNotReady").await?;
    assert!(message.contains("source claim old does not exist"), "{message}");
    let mut large = env.claim("old", &class);
    large["spec"]["resources"]["requests"]["storage"] = json!("2Mi");
    let source = env.objects.create(&large).await?;
    env.wait_bound(&source).await?;
    let message = wait_refused(&env, &claim, "CopySourceUnsuitable").await?;
    assert!(message.contains("it has 2Mi"), "{message}");
    let mut fits = copy_of("old", env.claim("fits", &class));
    fits["spec"]["resources"]["requests"]["storage"] = json!("2Mi");
    let fits = env.objects.create(&fits).await?;
    env.wait_bound(&fits).await?;
    Ok(())
}

#[tokio::test]
async fn claims_that_copy_each_other_wait_until_one_of_them_is_replaced() -> Test {
    let env = TestEnv::new("clone-cycle").await?;
    let class = env.create_ready_class().await?;
    let sources = [("a", "b"), ("b", "c"), ("c", "a")];
    let claim = |name: &str, source: &str| copy_of(source, env.claim(name, &class));
    for (name, source) in sources {
        env.objects.create(&claim(name, source)).await?;
    }
    // The claim that closes the cycle reports it, and so does each that is checked later.
    rig::wait::until("a claim to report the cycle", TIMEOUT, async || {
        let mut reported = Vec::new();
        for (name, source) in sources {
            let found = env.objects.get(&claim(name, source)).await;
            let found = found.map_err(|error| error.to_string())?.unwrap_or_default();
            reported.extend(condition(&found, "nfs-operator.io/Provisioned").cloned());
        }
        let circular = |reported: &Value| {
            reported["reason"] == "CopySourceUnsuitable"
                && reported["message"]
                    .to_string()
                    .contains("waits for a copy of this claim")
        };
        match reported.iter().any(circular) {
            true => Ok(()),
            false => Err(format!("{reported:?}")),
        }
    })
    .await?;
    // Each becomes bound with its source, which is faster than any timer.
    env.objects.delete(&claim("a", "b")).await?;
    env.objects.wait_gone(&claim("a", "b"), TIMEOUT).await?;
    env.objects.create(&env.claim("a", &class)).await?;
    for (name, source) in sources {
        env.wait_bound(&claim(name, source)).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_volume_that_the_operator_did_not_create_is_not_copied() -> Test {
    let env = TestEnv::new("clone-foreign").await?;
    let class = env.create_ready_class().await?;
    let (source, volume) = shared::bound_static_volume(&env, "secret", "old").await?;
    let claim = env.objects.create(&copy_of("old", env.claim("new", &class))).await?;
    let message = wait_refused(&env, &claim, "CopySourceUnsuitable").await?;
    assert!(message.contains("was not provisioned by this operator"), "{message}");
    assert_eq!(shared::names(env.data())?, ["secret"]);
    env.objects.delete(&source).await?;
    env.objects.delete(&volume).await?;
    Ok(())
}

/// Creates a claim with many files, and slows the proxy down.
pub async fn slow(env: &DedicatedCluster) -> Result<BTreeMap<String, Vec<u8>>, Failure> {
    env.objects.create(&env.claim("old")).await?;
    let volume = env.bound(&env.claim("old")).await?;
    let root = env.directory(&volume)?;
    for folder in 0..FOLDERS {
        fs::create_dir(root.join(folder.to_string()))?;
        for file in 0..FILES {
            fs::write(root.join(format!("{folder}/{file}")), format!("{folder} {file}"))?;
        }
    }
    // Less than the claims request in total.
    fs::write(root.join("big"), vec![7; 900_000])?;
    env.proxy.delay(SLOW, SLOW);
    Ok(contents(&root)?)
}

/// Ends what [`slow`] and [`under_way`] began.
pub fn at_full_speed(env: &DedicatedCluster) {
    env.proxy.clear_hooks();
    env.proxy.delay(Duration::ZERO, Duration::ZERO);
}

pub fn staging(env: &DedicatedCluster) -> Result<Vec<String>, Failure> {
    staged_on(&env.data()?)
}

/// Waits until nothing is left of a copy: only the record of the source, and an empty staging folder.
pub async fn copy_gone(env: &DedicatedCluster) -> rig::Result<()> {
    wait::until("record and copy to be gone", TIMEOUT, async || {
        let records = env.records().map_err(|error| error.to_string())?.len();
        let staged = staging(env).map_err(|error| error.to_string())?;
        if records == 1 && staged.is_empty() {
            Ok(())
        } else {
            Err(format!("{records} records, {staged:?}"))
        }
    })
    .await
}

/// Returns the incomplete copies on an export.
pub fn staged_on(root: &Path) -> Result<Vec<String>, Failure> {
    let own = root.join(".nfs-operator");
    let mut staged = Vec::new();
    for folder in fs::read_dir(own)?.flatten() {
        if let Ok(copies) = fs::read_dir(folder.path().join("staging")) {
            staged.extend(copies.flatten().map(|copy| copy.path().display().to_string()));
        }
    }
    Ok(staged)
}

/// Waits until a copy is in progress, with some of its files, and slows the proxy down further, so that a test can act
/// before it is complete. Returns the directories on the export while it was not.
pub async fn under_way(env: &DedicatedCluster) -> Result<BTreeSet<String>, Failure> {
    let seen = wait::until("a copy to be under way", TIMEOUT, async || {
        // First: a copy that is found in the staging folder after this was not complete then.
        let seen = env.names().map_err(|error| error.to_string())?;
        let staged = staging(env).map_err(|error| error.to_string())?;
        let copied = staged.iter().map(|copy| contents(&Path::new(copy).join("tree")));
        let files: usize = copied.flatten().map(|files| files.len()).sum();
        if files > 20 {
            Ok(seen)
        } else {
            Err(format!("{files} files"))
        }
    })
    .await?;
    env.proxy.delay(SLOWER, SLOWER);
    Ok(seen)
}

/// Waits until the operator has a metric with this beginning.
pub async fn wait_metric(env: &DedicatedCluster, series: &str) -> rig::Result<()> {
    wait::until("a metric", TIMEOUT, async || {
        let metrics = env.operator.metrics().await.map_err(|error| error.to_string())?;
        match metrics.contains(series) {
            true => Ok(()),
            false => Err(metrics),
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_whose_claim_is_deleted_stops_and_leaves_nothing_behind() -> Test {
    let env = DedicatedCluster::start(json!({"probeInterval": "1s"})).await?;
    slow(&env).await?;
    let claim = env.objects.create(&copy_of("old", env.claim("new"))).await?;
    under_way(&env).await?;
    env.objects.delete(&claim).await?;
    copy_gone(&env).await?;
    assert_eq!(env.names()?.len(), 1);
    at_full_speed(&env);
    shared::wait_trash_empty(&env.data()?).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_report_their_progress_and_delay_no_other_claim() -> Test {
    // With one slot for claims, a blocked claim would delay all others.
    let env = DedicatedCluster::start_with_args(json!({"probeInterval": "1s"}), &["--concurrency", "1"]).await?;
    let source = slow(&env).await?;
    let mut copies = Vec::new();
    for number in 0..6 {
        let copy = copy_of("old", env.claim(&format!("copy-{number}")));
        copies.push(env.objects.create(&copy).await?);
    }
    under_way(&env).await?;
    let seen = env.objects.wait_condition(
        &copies[0],
        "nfs-operator.io/Provisioned",
        "False",
        Some("Copying"),
        TIMEOUT,
    );
    let message = text(&seen.await?, "/message").to_owned();
    assert!(message.starts_with("copying claim old: "), "{message}");
    env.objects.create(&env.claim("plain")).await?;
    env.bound(&env.claim("plain")).await?;
    wait_metric(
        &env,
        "nfs_operator_copy_files{claim_namespace=\"default\",claim=\"copy-",
    )
    .await?;
    at_full_speed(&env);
    for copy in &copies {
        let volume = env.bound(copy).await?;
        assert_eq!(contents(&env.directory(&volume)?)?, source);
    }
    assert_eq!(staging(&env)?, Vec::<String>::new());
    Ok(())
}
