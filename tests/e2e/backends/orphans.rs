//! Orphans: directories without a volume and volumes without a directory. They are reported, never removed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use rig::TestEnv;
use rig::objects::{condition, reference};
use serde_json::{Value, json};

use crate::support::dedicated_cluster::DedicatedCluster;
use crate::support::shared::{Failure, TIMEOUT, Test, text};

/// Those that damage on the export causes.
const KINDS: [&str; 10] = [
    "DirectoryWithoutVolume",
    "VolumeWithoutDirectory",
    "VolumeWithOtherDirectory",
    "VolumeWithoutRecord",
    "RecordWithoutDirectory",
    "RecordWithOtherDirectory",
    "ArchiveWithoutDirectory",
    "ArchiveWithOtherDirectory",
    "RecordUnreadable",
    "RecordWithoutBackend",
];

/// Minimum age of an orphan. The second check follows after half of it.
const OFTEN: [&str; 2] = ["--scan-interval", "2s"];

async fn env() -> Result<DedicatedCluster, Failure> {
    DedicatedCluster::start_with_args(json!({"probeInterval": "1s"}), &OFTEN).await
}

fn main() -> Value {
    reference("nfs-operator.io/v1alpha1", "NfsBackend", None, "main")
}

/// Creates a Bound claim with a file in its directory. Returns it with its volume.
async fn claim_with_data(env: &DedicatedCluster, name: &str) -> Result<(Value, Value), Failure> {
    let claim = env.objects.create(&env.claim(name)).await?;
    let volume = env.bound(&claim).await?;
    fs::write(env.directory(&volume)?.join("data"), name)?;
    Ok((claim, volume))
}

/// Removes a volume object by force, without its finalizers.
async fn force_away(env: &DedicatedCluster, volume: &Value) -> Test {
    env.objects.delete(volume).await?;
    let finalizers = json!({"metadata": {"finalizers": null}});
    env.objects.patch(volume, finalizers).await?;
    Ok(env.objects.wait_gone(volume, TIMEOUT).await?)
}

/// Returns the folder of this cluster's records on disk.
fn records(env: &DedicatedCluster) -> Result<PathBuf, Failure> {
    let folders = fs::read_dir(env.data()?.join(".nfs-operator"))?;
    let mut records = folders.flatten().map(|folder| folder.path().join("records"));
    let ours = records.find(|path| path.is_dir() && !path.to_string_lossy().contains(STRANGER));
    Ok(ours.ok_or("no records")?)
}

/// Another cluster.
const STRANGER: &str = "99999999-8888-7777-6666-555555555555";

/// Creates records of another cluster without volume or directory, and directories without a record.
fn strangers(env: &DedicatedCluster) -> Result<(), Failure> {
    let folder = env.data()?.join(".nfs-operator").join(STRANGER).join("records");
    fs::create_dir_all(&folder)?;
    let volume = "pvc-00000000-1111-2222-3333-444444444444";
    let record = json!({
        "version": 1, "volume": volume, "backend": "main", "directory": "their-data", "fileID": 1, "state": {"name": "Live"},
        "claim": {"namespace": "default", "name": "theirs", "uid": "00000000-1111-2222-3333-444444444444"},
    });
    fs::write(folder.join(volume), record.to_string())?;
    // A newer release wrote it. A record without a readable path would stop all changes that could affect it.
    let newer = json!({"version": 99, "directory": "their-newer-data", "fileID": 2});
    fs::write(folder.join("pvc-newer"), newer.to_string())?;
    for name in ["their-data", "archived-by-hand", "default-data-pvc-0", "photos"] {
        fs::create_dir(env.data()?.join(name))?;
    }
    Ok(())
}

/// Returns the volumes in the status, by kind.
fn named(backend: &Value) -> BTreeMap<String, Vec<String>> {
    let kinds = backend.pointer("/status/orphans/kinds").and_then(Value::as_array);
    let of = |kind: &Value| {
        let examples = kind["examples"].as_array().cloned().unwrap_or_default();
        let volumes = examples.iter().map(|orphan| text(orphan, "/volume").to_owned());
        (text(kind, "/kind").to_owned(), volumes.collect())
    };
    kinds.into_iter().flatten().map(of).collect()
}

/// Returns the value of a metric; None if it does not exist.
async fn metric(env: &DedicatedCluster, series: &str) -> Result<Option<f64>, Failure> {
    let metrics = env.operator.metrics().await?;
    let line = metrics
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    Ok(line.map(str::parse).transpose()?)
}

async fn orphans(env: &DedicatedCluster, kind: &str) -> Result<Option<f64>, Failure> {
    let series = format!("nfs_operator_backend_orphans{{backend=\"main\",kind=\"{kind}\"}}");
    metric(env, &series).await
}

/// Returns the number of completed scans.
fn scans(env: &DedicatedCluster) -> Result<usize, Failure> {
    let log = fs::read_to_string(env.operator.log())?;
    Ok(log
        .lines()
        .filter(|line| line.contains("scanned for orphans") && !line.contains("not scanned"))
        .count())
}

/// Waits until this number of additional scans are complete.
async fn scanned(env: &DedicatedCluster, more: usize) -> Test {
    let before = scans(env)?;
    let ended = rig::wait::until("the export to be scanned", TIMEOUT, async || {
        match scans(env).map_err(|error| error.to_string())? {
            now if now >= before + more => Ok(()),
            now => Err(format!("{now} scans, {before} before")),
        }
    });
    Ok(ended.await?)
}

/// Waits until the status lists exactly these.
async fn reported(env: &DedicatedCluster, expected: &BTreeMap<String, Vec<String>>) -> Result<Value, Failure> {
    let main = main();
    let message = env.objects.wait(&main, "to report orphans", TIMEOUT, |backend| {
        let named = named(backend);
        if named == *expected {
            Ok(backend.clone())
        } else {
            Err(format!("{named:?}"))
        }
    });
    Ok(message.await?)
}

/// Returns what must not change: the data and the records.
fn kept(root: &Path) -> Result<BTreeMap<String, String>, Failure> {
    let mut all = rig::snapshot(root)?;
    // The probe creates and removes files in the operator's folder, which changes times there.
    all.retain(|path, _| !path.contains("/.nfs-operator") || path.contains("/records/"));
    Ok(all)
}

/// Damage to an export, and its repair.
struct Damage {
    kind: &'static str,
    volume: String,
    cure: Box<dyn Fn() -> std::io::Result<()>>,
}

/// Returns one orphan of each kind.
async fn damages(env: &DedicatedCluster) -> Result<Vec<Damage>, Failure> {
    let (records, aside) = (records(env)?, env.data()?.with_extension("aside"));
    fs::create_dir_all(&aside)?;
    let mut all = Vec::new();
    for kind in KINDS {
        let (claim, volume) = claim_with_data(env, &kind.to_lowercase()).await?;
        let (name, directory) = (text(&volume, "/metadata/name").to_owned(), env.directory(&volume)?);
        let (record, away) = (records.join(&name), aside.join(&name));
        let moved_back = {
            let (away, directory) = (away.clone(), directory.clone());
            move || fs::rename(&away, &directory)
        };
        let cure: Box<dyn Fn() -> std::io::Result<()>> = match kind {
            "DirectoryWithoutVolume" => {
                force_away(env, &volume).await?;
                Box::new(move || fs::remove_dir_all(&directory).and_then(|()| fs::remove_file(&record)))
            }
            "VolumeWithoutDirectory" => {
                fs::rename(&directory, &away)?;
                Box::new(moved_back)
            }
            "VolumeWithOtherDirectory" => {
                fs::rename(&directory, &away)?;
                fs::create_dir(&directory)?;
                Box::new(move || fs::remove_dir(&directory).and_then(|()| moved_back()))
            }
            // The claim still exists. Without it, the operator removes the record.
            "RecordWithoutDirectory" => {
                force_away(env, &volume).await?;
                fs::rename(&directory, &away)?;
                Box::new(move || fs::remove_file(&record))
            }
            "VolumeWithoutRecord" => {
                fs::rename(&record, &away)?;
                Box::new(move || fs::rename(&away, &record))
            }
            "RecordWithOtherDirectory" => {
                force_away(env, &volume).await?;
                fs::rename(&directory, &away)?;
                fs::create_dir(&directory)?;
                Box::new(move || fs::remove_dir(&directory).and_then(|()| fs::remove_file(&record)))
            }
            "ArchiveWithoutDirectory" | "ArchiveWithOtherDirectory" => {
                env.objects.delete(&claim).await?;
                env.objects.wait_gone(&volume, TIMEOUT).await?;
                let own = directory.file_name().unwrap_or_default().to_string_lossy();
                let archive = directory.with_file_name(format!("archived-{own}"));
                fs::rename(&archive, &away)?;
                let is_replaced = kind == "ArchiveWithOtherDirectory";
                if is_replaced {
                    fs::create_dir(&archive)?;
                }
                Box::new(move || {
                    if is_replaced {
                        fs::remove_dir(&archive)?;
                    }
                    fs::rename(&away, &archive)
                })
            }
            "RecordWithoutBackend" => {
                force_away(env, &volume).await?;
                let mut content: Value = serde_json::from_slice(&fs::read(&record)?)?;
                content["backend"] = json!("former");
                fs::write(&record, content.to_string())?;
                Box::new(move || fs::remove_dir_all(&directory).and_then(|()| fs::remove_file(&record)))
            }
            _ => {
                let content = fs::read(&record)?;
                fs::write(&record, "{}")?;
                Box::new(move || fs::write(&record, &content))
            }
        };
        all.push(Damage {
            kind,
            volume: name,
            cure,
        });
    }
    Ok(all)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_kind_of_orphan_is_reported_never_removed_and_cleared_when_fixed() -> Test {
    let env = env().await?;
    claim_with_data(&env, "well").await?;
    strangers(&env)?;
    let main = main();
    // All these have an owner, or belong to another cluster.
    let said = env
        .objects
        .wait_condition(&main, "Consistent", "True", Some("NoOrphansFound"), TIMEOUT);
    said.await?;
    scanned(&env, 2).await?;
    reported(&env, &BTreeMap::new()).await?;

    let damages = damages(&env).await?;
    let expected = damages
        .iter()
        .map(|damage| (damage.kind.to_owned(), vec![damage.volume.clone()]));
    let expected: BTreeMap<_, _> = expected.collect();
    reported(&env, &expected).await?;
    // Orphans keep no claim waiting. Only a probe that the server answered late finds the backend not Ready.
    let backend = env.objects.wait(&main, "to be Ready", TIMEOUT, |backend| {
        match condition(backend, "Ready").map(|ready| &ready["status"]) {
            Some(status) if *status == "True" && named(backend) == expected => Ok(backend.clone()),
            other => Err(format!("{other:?}")),
        }
    });
    let backend = backend.await?;
    assert_eq!(backend.pointer("/status/orphans/total"), Some(&json!(KINDS.len())));
    let said = condition(&backend, "Consistent").ok_or("no condition")?;
    assert_eq!(
        (&said["status"], &said["reason"]),
        (&json!("False"), &json!("OrphansFound"))
    );
    let message = said["message"].as_str().unwrap_or_default();
    for damage in &damages {
        assert!(
            message.contains(damage.kind) && message.contains(&damage.volume),
            "{message}"
        );
        assert_eq!(orphans(&env, damage.kind).await?, Some(1.0), "{}", damage.kind);
    }

    let before = kept(&env.data()?)?;
    scanned(&env, 3).await?;
    assert_eq!(kept(&env.data()?)?, before, "nothing is removed or changed");

    for damage in &damages {
        (damage.cure)()?;
    }
    reported(&env, &BTreeMap::new()).await?;
    env.objects
        .wait_condition(&main, "Consistent", "True", None, TIMEOUT)
        .await?;
    for kind in KINDS {
        assert_eq!(orphans(&env, kind).await?, Some(0.0), "{kind}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_that_disagrees_with_its_backend_is_reported_before_its_reclaim_fails() -> Test {
    let env = env().await?;
    let (claim, volume) = claim_with_data(&env, "moved").await?;
    let main = main();
    let only = |kind: &str| BTreeMap::from([(kind.to_owned(), vec![text(&volume, "/metadata/name").to_owned()])]);
    let healthy = async || -> Test {
        reported(&env, &BTreeMap::new()).await?;
        let consistent = env.objects.wait_condition(&main, "Consistent", "True", None, TIMEOUT);
        Ok(consistent.await.map(drop)?)
    };
    healthy().await?;
    // Another export: what the volume has is not at its path, or only the identity changed.
    let annotate = async |export: &Value| {
        let annotations = json!({"nfs-operator.io/export-id": export});
        env.objects
            .patch(&volume, json!({"metadata": {"annotations": annotations}}))
            .await
    };
    let export = volume.pointer("/metadata/annotations/nfs-operator.io~1export-id");
    let export = export.cloned().ok_or("no export ID")?;
    annotate(&json!("another")).await?;
    reported(&env, &only("VolumeOnOtherExport")).await?;
    let now = env.objects.get(&claim).await?.ok_or("no claim")?;
    assert!(condition(&now, "nfs-operator.io/DirectoryMissing").is_none(), "{now}");
    annotate(&export).await?;
    healthy().await?;
    // Another address of the same export.
    let address = |server: &str, former: Value| json!({"spec": {"server": server, "formerAddresses": former}});
    let backend = env.objects.get(&main).await?.ok_or("no backend")?;
    let path = text(&backend, "/spec/path");
    env.objects.patch(&main, address("localhost", json!(null))).await?;
    let backend = reported(&env, &only("VolumeAtOtherAddress")).await?;
    let consistent = condition(&backend, "Consistent").ok_or("no condition")?;
    assert!(
        text(consistent, "/message").contains("spec.formerAddresses"),
        "{consistent}"
    );
    let former = json!([{"server": "127.0.0.1", "path": path}]);
    env.objects.patch(&main, address("localhost", former)).await?;
    healthy().await?;
    env.objects.delete(&claim).await?;
    Ok(env.objects.wait_gone(&volume, TIMEOUT).await?)
}

/// Creates, uses and deletes claims in sequence. Every third claim is deleted before it is Bound.
async fn create_and_delete_claims(env: &DedicatedCluster, who: usize, until: usize) -> Test {
    let mut turn = 0;
    while scans(env)? < until {
        turn += 1;
        let claim = env.objects.create(&env.claim(&format!("guest-{who}-{turn}"))).await?;
        if turn % 3 == 0 {
            env.objects.delete(&claim).await?;
            env.objects.wait_gone(&claim, TIMEOUT).await?;
            continue;
        }
        let volume = env.bound(&claim).await?;
        if turn % 3 == 1 {
            fs::write(env.directory(&volume)?.join("data"), "to be archived")?;
        }
        env.objects.delete(&claim).await?;
        env.objects.wait_gone(&volume, TIMEOUT).await?;
    }
    eprintln!("guest {who} came {turn} times");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_that_come_and_go_while_their_export_is_scanned_are_no_orphans() -> Test {
    let env = env().await?;
    let until = scans(&env)? + 4;
    let guests = (0..4).map(|who| create_and_delete_claims(&env, who, until));
    futures::future::try_join_all(guests).await?;
    let log = fs::read_to_string(env.operator.log())?;
    let alone: Vec<&str> = log.lines().filter(|line| line.contains("orphan: ")).collect();
    assert!(alone.is_empty(), "{alone:#?}");
    // The status shows a scan with the next probe after it.
    let main = main();
    let scan = env.objects.wait(&main, "to report a scan", TIMEOUT, |backend| {
        match &backend["status"]["orphans"] {
            Value::Null => Err("it reports none".to_owned()),
            scan => Ok(scan.clone()),
        }
    });
    assert_eq!(scan.await?["skipped"], 0);
    reported(&env, &BTreeMap::new()).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_scan_leaves_the_report_unchanged_and_is_repeated() -> Test {
    let mut env = env().await?;
    let (_, volume) = claim_with_data(&env, "data").await?;
    let (directory, aside) = (env.directory(&volume)?, env.data()?.with_extension("aside"));
    fs::rename(&directory, &aside)?;
    let name = text(&volume, "/metadata/name").to_owned();
    let alone = BTreeMap::from([("VolumeWithoutDirectory".to_owned(), vec![name])]);
    reported(&env, &alone).await?;

    env.proxy.refuse(true).await?;
    env.proxy.cut().await;
    let main = main();
    let failed = env.objects.wait_condition(&main, "Ready", "False", None, TIMEOUT);
    failed.await?;
    // A scan that had nothing left to ask the NFS server may have ended until now.
    env.operator.kill9().await?;
    fs::rename(&aside, &directory)?;
    let before = scans(&env)?;
    // The restarted operator starts with the former report, and cannot scan either.
    env.operator.restart().await?;
    env.operator.wait_ready().await?;
    rig::wait::until("the report of the former process", TIMEOUT, async || {
        match orphans(&env, "VolumeWithoutDirectory")
            .await
            .map_err(|error| error.to_string())?
        {
            Some(1.0) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    assert_eq!(scans(&env)?, before, "no scan came to its end");
    reported(&env, &alone).await?;

    env.proxy.refuse(false).await?;
    reported(&env, &BTreeMap::new()).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bound_claim_reports_that_its_directory_is_missing_until_it_is_back() -> Test {
    let kind = "nfs-operator.io/DirectoryMissing";
    let mut env = env().await?;
    let (claim, volume) = claim_with_data(&env, "data").await?;
    let (other, _) = claim_with_data(&env, "other").await?;
    let provisioned = "nfs-operator.io/Provisioned";
    env.objects
        .wait_condition(&claim, provisioned, "True", None, TIMEOUT)
        .await?;
    let (directory, aside) = (env.directory(&volume)?, env.data()?.with_extension("aside"));
    fs::rename(&directory, &aside)?;
    let reason = Some("DirectoryMissing");
    let said = env
        .objects
        .wait_condition(&claim, kind, "True", reason, TIMEOUT)
        .await?;
    assert!(text(&said, "/message").contains("does not exist"), "{said}");
    env.objects.wait_event(&claim, "DirectoryMissing", TIMEOUT).await?;
    // The next process knows it from the claim.
    env.operator.restart().await?;
    fs::rename(&aside, &directory)?;
    let cleared = |found: &Value| match condition(found, kind) {
        None => Ok(()),
        Some(said) => Err(said.to_string()),
    };
    env.objects
        .wait(&claim, "to report no missing directory", TIMEOUT, cleared)
        .await?;
    let found = env.objects.get(&claim).await?.unwrap_or_default();
    let condition_of = |object: &Value, kind: &str| condition(object, kind).map(|said| said["status"].clone());
    assert_eq!(condition_of(&found, provisioned), Some(json!("True")));
    let other = env.objects.get(&other).await?.unwrap_or_default();
    assert_eq!(condition_of(&other, kind), None);
    Ok(())
}

#[tokio::test]
async fn a_scan_can_be_requested() -> Test {
    let env = TestEnv::new("scan-request").await?;
    let class = env.create_ready_class().await?;
    crate::support::shared::bound_with_data(&env, "data", &class, "data").await?;
    let backend = crate::support::shared::backend_reference(&env, "backend");
    let never = env
        .objects
        .wait_condition(&backend, "Consistent", "Unknown", Some("NotScanned"), TIMEOUT);
    never.await?;
    let request = json!({"metadata": {"annotations": {"nfs-operator.io/scan-requested-at": "2026-01-01"}}});
    env.objects.patch(&backend, request).await?;
    let found = env
        .objects
        .wait_condition(&backend, "Consistent", "True", Some("NoOrphansFound"), TIMEOUT);
    found.await?;
    let now = env.objects.get(&backend).await?.ok_or("the backend is gone")?;
    assert_ne!(text(&now, "/status/orphans/lastScanTime"), "");
    let handled = |found: &Value| crate::support::shared::is_handled(found, "nfs-operator.io/scan-requested-at");
    env.objects
        .wait(&backend, "to have handled the request", TIMEOUT, handled)
        .await?;
    Ok(())
}

/// Requests a scan and waits until it is handled. Returns the time of the last scan.
async fn request_scan(env: &DedicatedCluster, value: &str) -> Result<String, Failure> {
    let annotation = "nfs-operator.io/scan-requested-at";
    let request = json!({"metadata": {"annotations": {annotation: value}}});
    env.objects.patch(&main(), request).await?;
    let handled = |found: &Value| {
        crate::support::shared::is_handled(found, annotation)?;
        match text(found, "/status/orphans/lastScanTime") {
            "" => Err("without a report".to_owned()),
            time => Ok(time.to_owned()),
        }
    };
    let what = "to have handled the request";
    Ok(env.objects.wait(&main(), what, TIMEOUT, handled).await?)
}

/// Waits for a probe by this process that ended after this Unix timestamp. Returns its own.
async fn probed_after(env: &DedicatedCluster, time: f64) -> Result<f64, Failure> {
    let series = "nfs_operator_backend_last_probe_timestamp_seconds{backend=\"main\"}";
    let probed = rig::wait::until("a later probe", TIMEOUT, async || {
        match metric(env, series).await.map_err(|error| error.to_string())? {
            Some(probed) if probed > time => Ok(probed),
            other => Err(format!("{other:?}, {time}")),
        }
    });
    Ok(probed.await?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handled_request_is_not_repeated_by_the_next_process_and_another_value_is_handled() -> Test {
    // Only requests cause scans.
    let args = ["--scan-interval", "0s"];
    let mut env = DedicatedCluster::start_with_args(json!({"probeInterval": "1s"}), &args).await?;
    let first = request_scan(&env, "first").await?;
    assert_eq!(scans(&env)?, 1);
    env.operator.restart().await?;
    env.operator.wait_ready().await?;
    // A probe starts what is requested, so the scan would begin with the first one.
    let probed = probed_after(&env, 0.0).await?;
    probed_after(&env, probed + 2.0).await?;
    let found = env.objects.get(&main()).await?.ok_or("the backend is gone")?;
    assert_eq!(text(&found, "/status/orphans/lastScanTime"), first);
    assert_eq!(scans(&env)?, 1, "the request was repeated");
    request_scan(&env, "second").await?;
    assert_eq!(scans(&env)?, 2);
    Ok(())
}
