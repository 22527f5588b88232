//! Usage of volumes: counted in the background, reported on the volume, the claim, the archive and the backend.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use rig::objects::{condition, reference};
use serde_json::{Value, json};

use crate::recovery::cluster_loss::available;
use crate::support::dedicated_cluster::DedicatedCluster;
use crate::support::shared::{Failure, TIMEOUT, Test, is_handled, text};

const OVER: &str = "nfs-operator.io/OverRequest";

fn counted_daily() -> Value {
    json!({"probeInterval": "1s", "usage": {"interval": "24h"}})
}

/// The backend.
static MAIN: LazyLock<Value> = LazyLock::new(|| reference("nfs-operator.io/v1alpha1", "NfsBackend", None, "main"));

/// Creates a file of 5 MiB, with all its blocks: some file systems allocate them when the data are written to the disk.
fn create_large(path: &Path) -> std::io::Result<()> {
    let mut file = fs::File::create(path)?;
    file.write_all(&vec![1; 5 << 20])?;
    file.sync_all()
}

/// `du`.
fn du(root: &Path) -> Result<String, Failure> {
    let reported = Command::new("du").args(["-s", "-B1"]).arg(root).output()?;
    let reported = String::from_utf8(reported.stdout)?;
    Ok(reported.split_whitespace().next().unwrap_or_default().to_owned())
}

/// Returns the bytes of a quantity in its canonical form.
fn quantity(text: &str) -> Option<u64> {
    let units = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("", 0)];
    let (number, shift) = units
        .iter()
        .find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, shift)))?;
    number.parse::<u64>().ok().map(|number| number << shift)
}

fn usage_annotation<'a>(volume: &'a Value, word: &str) -> &'a str {
    volume["metadata"]["annotations"][format!("nfs-operator.io/{word}")]
        .as_str()
        .unwrap_or_default()
}

/// Returns the number of completed counts.
fn counts(env: &DedicatedCluster) -> std::io::Result<usize> {
    let log = fs::read_to_string(env.operator.log())?;
    Ok(log
        .lines()
        .filter(|line| line.contains("counted what volumes hold"))
        .count())
}

/// Requests a count, and waits until it is complete.
async fn count(env: &DedicatedCluster) -> Test {
    // A running count may have passed the data to be counted.
    for _ in 0..2 {
        let before = counts(env)?;
        request_count(env).await?;
        let ended = rig::wait::until("the count to complete", TIMEOUT, async || match counts(env) {
            Ok(now) if now > before => Ok(()),
            now => Err(format!("{now:?}, {before} before")),
        });
        ended.await?;
        wait_request_handled(env).await?;
    }
    Ok(())
}

const COUNT: &str = "nfs-operator.io/count-requested-at";

/// Requests a count with a value that no earlier request had.
async fn request_count(env: &DedicatedCluster) -> Test {
    let at = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    let request = json!({"metadata": {"annotations": {COUNT: at.as_nanos().to_string()}}});
    env.objects.patch(&MAIN, request).await?;
    Ok(())
}

/// Waits until the request for a count is handled.
async fn wait_request_handled(env: &DedicatedCluster) -> Test {
    let handled = |backend: &Value| is_handled(backend, COUNT);
    Ok(env
        .objects
        .wait(&MAIN, "to have handled the request", TIMEOUT, handled)
        .await?)
}

async fn now(env: &DedicatedCluster, object: &Value) -> Result<Value, Failure> {
    Ok(env.objects.get(object).await?.ok_or("it is gone")?)
}

async fn events(env: &DedicatedCluster, claim: &Value) -> Result<usize, Failure> {
    let events = env.objects.events(claim).await?;
    Ok(events.iter().filter(|event| event["reason"] == "OverRequest").count())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_shows_its_usage_and_its_claim_reports_usage_above_the_request() -> Test {
    let env = DedicatedCluster::start_with_args(counted_daily(), &["--volume-metrics"]).await?;
    let claim = env.objects.create(&env.claim("data")).await?;
    let volume = env.bound(&claim).await?;
    let provisioned = "nfs-operator.io/Provisioned";
    env.objects
        .wait_condition(&claim, provisioned, "True", None, TIMEOUT)
        .await?;
    let directory = env.directory(&volume)?;
    create_large(&directory.join("large"))?;
    fs::hard_link(directory.join("large"), directory.join("again"))?;
    std::os::unix::fs::symlink("/", directory.join("everything"))?;
    count(&env).await?;
    let reported = now(&env, &volume).await?;
    assert_eq!(usage_annotation(&reported, "used-bytes"), du(&directory)?);
    assert_eq!(
        (
            usage_annotation(&reported, "apparent-bytes"),
            usage_annotation(&reported, "used-files")
        ),
        ("5242880", "3")
    );
    assert!(usage_annotation(&reported, "counted-at").ends_with('Z'), "{reported}");
    let over = now(&env, &claim).await?;
    let over = condition(&over, OVER).ok_or("no condition")?;
    assert_eq!(
        (&over["status"], &over["reason"]),
        (&json!("True"), &json!("OverRequest"))
    );
    assert!(text(over, "/message").contains("requests 1Mi"), "{over}");
    env.objects.wait_event(&claim, "OverRequest", TIMEOUT).await?;
    let of_volume = format!(
        "nfs_operator_volume_used_bytes{{backend=\"main\",claim=\"data\",claim_namespace=\"default\",volume=\"{}\"}} {}",
        text(&volume, "/metadata/name"),
        du(&directory)?
    );
    let of_backend = format!(
        "nfs_operator_backend_used_bytes{{backend=\"main\"}} {}",
        du(&directory)?
    );
    // The watch may deliver the volume as it was before the count, and only then as it is since.
    rig::wait::until("the usage in the metrics", TIMEOUT, async || {
        let metrics = env.operator.metrics().await.map_err(|error| error.to_string())?;
        if metrics.contains(&of_volume) && metrics.contains(&of_backend) {
            Ok(())
        } else {
            Err(metrics)
        }
    })
    .await?;

    // Without changes, nothing is written.
    count(&env).await?;
    let again = now(&env, &volume).await?;
    assert_eq!(
        again["metadata"]["resourceVersion"],
        reported["metadata"]["resourceVersion"]
    );
    assert_eq!(events(&env, &claim).await?, 1);

    fs::remove_file(directory.join("large"))?;
    fs::remove_file(directory.join("again"))?;
    count(&env).await?;
    let reported = now(&env, &volume).await?;
    assert_eq!(usage_annotation(&reported, "used-bytes"), du(&directory)?);
    let claim_now = now(&env, &claim).await?;
    assert!(condition(&claim_now, OVER).is_none(), "{claim_now}");
    assert!(condition(&claim_now, provisioned).is_some(), "the others stay");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn usage_is_counted_only_if_enabled_and_removed_when_disabled() -> Test {
    let env = DedicatedCluster::start(json!({"probeInterval": "1s"})).await?;
    let claim = env.objects.create(&env.claim("data")).await?;
    let volume = env.bound(&claim).await?;
    fs::write(env.directory(&volume)?.join("large"), vec![1; 5 << 20])?;
    request_count(&env).await?;
    wait_request_handled(&env).await?;
    assert!(now(&env, &MAIN).await?["status"]["usage"].is_null());

    env.objects
        .patch(&MAIN, json!({"spec": {"usage": {"interval": "24h"}}}))
        .await?;
    let counted = env.objects.wait(&volume, "to be counted", TIMEOUT, |volume| {
        let used = usage_annotation(volume, "used-bytes").to_owned();
        if used.is_empty() {
            Err("not counted".to_owned())
        } else {
            Ok(used)
        }
    });
    let used = counted.await?;
    env.objects.wait_condition(&claim, OVER, "True", None, TIMEOUT).await?;
    let summed = env.objects.wait(&MAIN, "to report the sum", TIMEOUT, |backend| {
        let usage = &backend["status"]["usage"];
        let size = quantity(text(usage, "/size")).map(|size| size.to_string());
        let is_complete = usage["lastCompletionTime"].is_string();
        if (&usage["volumes"], size.as_ref(), is_complete) == (&json!(1), Some(&used), true) {
            Ok(())
        } else {
            Err(usage.to_string())
        }
    });
    summed.await?;

    env.objects.patch(&MAIN, json!({"spec": {"usage": null}})).await?;
    let taken_back = env.objects.wait(&volume, "to report no usage", TIMEOUT, |volume| {
        let words = ["used-bytes", "used-files", "apparent-bytes", "counted-at"];
        match words.iter().find(|word| !usage_annotation(volume, word).is_empty()) {
            None => Ok(usage_annotation(volume, "directory").to_owned()),
            Some(word) => Err((*word).to_owned()),
        }
    });
    assert!(!taken_back.await?.is_empty(), "the other annotations stay");
    assert!(condition(&now(&env, &claim).await?, OVER).is_none());
    let deleted = env.objects.wait(&MAIN, "to report no sum", TIMEOUT, |backend| {
        if backend["status"]["usage"].is_null() {
            Ok(())
        } else {
            Err(backend["status"].to_string())
        }
    });
    deleted.await?;
    let metrics = env.operator.metrics().await?;
    assert!(!metrics.contains("nfs_operator_backend_used_bytes{"), "{metrics}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archive_is_counted_once_and_shows_its_size_beside_the_request() -> Test {
    let env = DedicatedCluster::start(counted_daily()).await?;
    let claim = env.objects.create(&env.claim("data")).await?;
    let volume = env.bound(&claim).await?;
    create_large(&env.directory(&volume)?.join("large"))?;
    env.objects.delete(&claim).await?;
    env.objects.wait_gone(&volume, TIMEOUT).await?;
    let name = text(&volume, "/metadata/name");
    let archive = reference("nfs-operator.io/v1alpha1", "NfsArchive", None, name);
    // The operator has seen it, and reported its state.
    available(&env, &archive).await?;
    count(&env).await?;
    let reported = now(&env, &archive).await?;
    let lies = env.data()?.join(text(&reported, "/status/directory"));
    let usage = &reported["status"]["usage"];
    let size = quantity(text(usage, "/size")).map(|size| size.to_string());
    assert_eq!((size, &usage["files"]), (Some(du(&lies)?), &json!(1)));
    assert_eq!(usage["apparentSize"], "5Mi");
    assert_eq!(
        text(&reported, "/status/state"),
        "Available",
        "the rest of the status stays"
    );
    let table = env.cluster.kubectl(["get", "nfsa", name, "-o", "wide"]).await?;
    let heads: Vec<&str> = table.lines().next().unwrap_or_default().split_whitespace().collect();
    assert!(heads.contains(&"SIZE") && heads.contains(&"USED"), "{table}");
    assert!(table.contains("1Mi") && table.contains(text(usage, "/size")), "{table}");
    env.objects
        .patch(&archive, json!({"spec": {"legalHold": true}}))
        .await?;
    // The operator has seen this change, and so its own one before, which the next count goes by.
    let held = env.objects.wait(&archive, "to be held", TIMEOUT, |archive| {
        match text(archive, "/status/state") {
            "Held" => Ok(()),
            state => Err(state.to_owned()),
        }
    });
    held.await?;
    // An archive does not change, and is not counted again.
    fs::remove_file(lies.join("large"))?;
    count(&env).await?;
    let again = now(&env, &archive).await?;
    assert_eq!(again["status"]["usage"], *usage);
    assert_eq!(text(&again, "/status/state"), "Held");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_count_that_was_killed_begins_again_after_the_restart() -> Test {
    // Two hundred names take four seconds; the second volume takes minutes.
    let mut env = DedicatedCluster::start_with_args(json!({"probeInterval": "1s"}), &["--count-rate", "50"]).await?;
    let mut volumes = Vec::new();
    for name in ["one", "two"] {
        let claim = env.objects.create(&env.claim(name)).await?;
        volumes.push(env.bound(&claim).await?);
    }
    volumes.sort_by_key(|volume| text(volume, "/metadata/name").to_owned());
    let [first, second] = volumes.as_slice() else {
        return Err("two volumes".into());
    };
    let folder = env.directory(second)?;
    for number in 0..5000 {
        fs::write(folder.join(number.to_string()), b"")?;
    }
    env.objects
        .patch(&MAIN, json!({"spec": {"usage": {"interval": "24h"}}}))
        .await?;
    let counted_one = env.objects.wait(first, "to be counted", TIMEOUT, |volume| {
        match usage_annotation(volume, "used-bytes") {
            "" => Err("not counted".to_owned()),
            _ => Ok(()),
        }
    });
    counted_one.await?;
    env.operator.kill9().await?;
    for number in 100..5000 {
        fs::remove_file(folder.join(number.to_string()))?;
    }
    env.operator.restart().await?;
    let done = env.objects.wait(&MAIN, "to have counted all", TIMEOUT, |backend| {
        let usage = &backend["status"]["usage"];
        if usage["lastCompletionTime"].is_string() {
            Ok(usage["volumes"].clone())
        } else {
            Err(usage.to_string())
        }
    });
    assert_eq!(done.await?, 2);
    assert_eq!(usage_annotation(&now(&env, second).await?, "used-files"), "100");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_suspended_backend_is_not_counted_until_it_is_resumed() -> Test {
    let env = DedicatedCluster::start(json!({"probeInterval": "1s"})).await?;
    let claim = env.objects.create(&env.claim("data")).await?;
    let volume = env.bound(&claim).await?;
    let suspended = json!({"spec": {"suspend": true, "usage": {"interval": "24h"}}});
    env.objects.patch(&MAIN, suspended).await?;
    let refused = rig::wait::until("the count to be postponed", TIMEOUT, async || {
        let log = fs::read_to_string(env.operator.log()).map_err(|error| error.to_string())?;
        let put_off = log.contains("not counted for now: the usage scan was canceled");
        put_off.then_some(()).ok_or_else(|| "not said".to_owned())
    });
    refused.await?;
    assert_eq!(usage_annotation(&now(&env, &volume).await?, "used-files"), "");
    env.objects.patch(&MAIN, json!({"spec": {"suspend": false}})).await?;
    let counted = env.objects.wait(&volume, "to be counted", TIMEOUT, |volume| {
        match usage_annotation(volume, "used-files") {
            "0" => Ok(()),
            other => Err(other.to_owned()),
        }
    });
    counted.await?;
    Ok(())
}

#[tokio::test]
async fn an_invalid_interval_is_refused_with_the_field_and_the_remedy() -> Test {
    let env = rig::TestEnv::new("usage-schema").await?;
    for wrong in ["59s", "721h", "31d", "", "soon", "-5m"] {
        let backend = env.backend("backend", json!({"usage": {"interval": wrong}}));
        let refused = env.objects.create(&backend).await.err().ok_or(wrong)?.to_string();
        assert!(refused.contains("spec.usage.interval"), "{wrong}: {refused}");
    }
    let refused = env.objects.create(&env.backend("backend", json!({"usage": {}}))).await;
    assert!(refused.is_err(), "an interval is needed");
    let refused = env
        .objects
        .create(&env.backend("backend", json!({"usage": {"interval": "59s"}})))
        .await;
    let refused = refused.err().ok_or("taken")?.to_string();
    assert!(refused.contains("from 1m to 720h"), "{refused}");
    Ok(())
}
