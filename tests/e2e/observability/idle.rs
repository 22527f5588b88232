//! Writes of an idle operator.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rig::objects::reference;
use serde_json::{Value, json};

use crate::support::dedicated_cluster::DedicatedCluster;
use crate::support::shared::{Failure, TIMEOUT, Test};

/// Returns the number of writes of the operator in the audit log, by verb and resource.
fn writes(audit: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for line in audit.lines() {
        let Ok(event) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        let by_operator = event["user"]["username"]
            .as_str()
            .is_some_and(|user| user.ends_with(":nfs-operator"));
        let verb = event["verb"].as_str().unwrap_or_default();
        if by_operator && event["stage"] == "ResponseComplete" && !matches!(verb, "get" | "list" | "watch") {
            let resource = event["objectRef"]["resource"].as_str().unwrap_or_default();
            let part = event["objectRef"]["subresource"].as_str().unwrap_or_default();
            *counts.entry(format!("{verb} {resource}/{part}")).or_default() += 1;
        }
    }
    counts
}

/// Returns the status of the backend without the values of a probe: its time, and the free space on the disk.
async fn status(env: &DedicatedCluster) -> Result<Value, Failure> {
    let main = reference("nfs-operator.io/v1alpha1", "NfsBackend", None, "main");
    let backend = env.objects.get(&main).await?.ok_or("the backend is gone")?;
    let mut status = backend["status"].clone();
    // The beacon is renewed with the time of the probe.
    status["lastProbeTime"].take();
    for renewed in ["beacon", "nextBeacon"] {
        status["export"][renewed].take();
    }
    for measured in ["available", "inodesFree"] {
        status["capacity"][measured].take();
    }
    Ok(status)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_operator_writes_nothing_but_its_lease_and_once_a_minute_its_probes_time() -> Test {
    let env = DedicatedCluster::start(json!({"probeInterval": "5s"})).await?;
    for n in 0..50 {
        env.objects.create(&env.claim(&format!("data-{n}"))).await?;
    }
    for n in 0..50 {
        let claim = env.claim(&format!("data-{n}"));
        env.bound(&claim).await?;
        let reported = "nfs-operator.io/Provisioned";
        env.objects
            .wait_condition(&claim, reported, "True", None, TIMEOUT)
            .await?;
    }
    let audit = env.cluster.audit_log();
    // The number of volumes changes the status once, and events are sent later. After that, probes cause no write.
    rig::wait::until("the operator to be idle", TIMEOUT, async || {
        let others = || {
            let log = std::fs::read_to_string(&audit).map_err(|error| error.to_string())?;
            let mut writes = writes(&log);
            writes.remove("update leases/");
            Ok::<_, String>(writes)
        };
        let before = others()?;
        tokio::time::sleep(Duration::from_secs(11)).await;
        let (now, status) = (others()?, status(&env).await.map_err(|error| error.to_string())?);
        if now == before && status["volumes"] == 50 {
            Ok(())
        } else {
            Err(format!("{before:?}, then {now:?}: {status}"))
        }
    })
    .await?;
    let before = writes(&std::fs::read_to_string(&audit)?);
    assert!(
        before.values().sum::<usize>() > 100,
        "the log has the writes of before: {before:?}"
    );
    let status_before = status(&env).await?;
    let began = Instant::now();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(status(&env).await?, status_before);
    let after = writes(&std::fs::read_to_string(&audit)?);
    let minutes = began.elapsed().as_secs() / 60;
    let mut news: BTreeMap<&String, usize> = BTreeMap::new();
    for (what, count) in &after {
        let more = count - before.get(what).copied().unwrap_or(0);
        if more > 0 {
            news.insert(what, more);
        }
    }
    let renewals = news.remove(&"update leases/".to_owned());
    assert!(renewals.is_some(), "it holds the Lease");
    let probes = "patch nfsbackends/status".to_owned();
    assert!(news.keys().all(|what| **what == probes), "{news:?}");
    assert!(
        news.values().sum::<usize>() as u64 <= minutes + 1,
        "a minute has two edges at the most: {news:?}"
    );
    Ok(())
}
