//! Requests on backends, and what they show: scan, count, readopt, accept-identity, suspend, orphans, usage.

use std::fs;

use rig::TestEnv;
use serde_json::{Value, json as object};

use super::{fine, json, nfs, problem, refused};
use crate::cli::program::text;
use crate::support::dedicated_cluster::DedicatedCluster;
use crate::support::shared::{self, TIMEOUT, Test, backend_reference};

/// Returns the annotations of a backend that request something.
async fn requests(env: &TestEnv, backend: &Value) -> rig::Result<Vec<String>> {
    let found = env.objects.get(backend).await?.unwrap_or_default();
    let annotations = found["metadata"]["annotations"]
        .as_object()
        .cloned()
        .unwrap_or_default();
    Ok(annotations
        .keys()
        .filter(|name| name.starts_with("nfs-operator.io/"))
        .cloned()
        .collect())
}

#[tokio::test]
async fn a_backend_is_suspended_and_resumed() -> Test {
    let env = TestEnv::new("nfs-suspend").await?;
    let backend = shared::backend(&env, "backend", object!({})).await?;
    let name = env.unique_name("backend");
    fine(&env.rig.cluster, &["suspend", &name]).await;
    env.objects
        .wait_condition(&backend, "Ready", "False", Some("Suspended"), TIMEOUT)
        .await?;
    let again = fine(&env.rig.cluster, &["suspend", &name]).await;
    assert!(again.contains("already"), "{again}");
    let (code, resumed) = json(&env.rig.cluster, &["resume", &format!("nfsb/{name}")]).await;
    let expected = object!({"changes": [{
        "object": format!("nfsbackend/{name}"), "request": "spec.suspend", "value": false, "state": "done",
        "message": format!("{name} resumed: it gets new volumes again"),
    }]});
    assert_eq!((code, resumed), (Some(0), expected));
    env.objects
        .wait_condition(&backend, "Ready", "True", None, TIMEOUT)
        .await?;
    let missing = refused(&env.rig.cluster, 1, &["suspend", "no-such-backend"]).await;
    assert!(
        missing.contains("NfsBackend no-such-backend does not exist"),
        "{missing}"
    );
    Ok(())
}

#[tokio::test]
async fn a_plan_writes_nothing_and_a_request_can_be_waited_for() -> Test {
    let env = TestEnv::new("nfs-requests").await?;
    let cluster = &env.rig.cluster;
    shared::backend(&env, "backend", object!({})).await?;
    let (backend, name) = (backend_reference(&env, "backend"), env.unique_name("backend"));
    for arguments in [&["scan", &name][..], &["readopt", &name], &["readopt", &name, "pvc-1"]] {
        let planned = fine(cluster, &[arguments, &["--plan"]].concat()).await;
        assert!(planned.contains("would set nfs-operator.io/"), "{planned}");
    }
    assert_eq!(requests(&env, &backend).await?, Vec::<String>::new());
    let unscanned = fine(cluster, &["readopt", &name, "--plan"]).await;
    let advice = format!("not scanned yet: kubectl nfs scan {name} --wait");
    assert!(unscanned.contains(&advice), "{unscanned}");
    let (code, done) = json(cluster, &["scan", &name, "--wait", "--timeout", "4m"]).await;
    let change = &done["changes"][0];
    assert_eq!(
        (code, &change["request"], &change["state"]),
        (Some(0), &object!("nfs-operator.io/scan-requested-at"), &object!("done")),
        "{done:#}"
    );
    let done = fine(cluster, &["readopt", &name, "--wait", "--timeout", "4m"]).await;
    assert!(done.contains("readopt-requested-at is done"), "{done}");
    let off = refused(cluster, 1, &["count", &name]).await;
    assert!(off.contains("set spec.usage"), "{off}");
    assert_eq!(
        requests(&env, &backend).await?,
        [
            "nfs-operator.io/readopt-requested-at",
            "nfs-operator.io/scan-requested-at"
        ]
    );
    let clean = fine(cluster, &["orphans", &name]).await;
    assert!(clean.starts_with("no orphans"), "{clean}");
    let none = refused(cluster, 2, &["scan"]).await;
    assert!(none.contains("--all") && none.contains("BACKEND"), "{none}");

    let accept = ["accept-directories", &name, "pvc-unknown"];
    let planned = fine(cluster, &[&accept[..], &["--plan"]].concat()).await;
    assert!(planned.contains("none of them by the last scan"), "{planned}");
    let (code, handled) = json(cluster, &[&accept[..], &["--wait", "--timeout", "4m"]].concat()).await;
    let change = &handled["changes"][0];
    assert_eq!((code, &change["state"]), (Some(1), &object!("refused")), "{handled:#}");
    let message = change["message"].as_str().unwrap_or_default();
    assert!(
        message.contains("1 volume not accepted") && message.contains("\"pvc-unknown\": there is no record of it"),
        "{message}"
    );
    Ok(())
}

#[tokio::test]
async fn only_an_identity_that_the_backend_asks_for_is_accepted() -> Test {
    let env = TestEnv::new("nfs-accept").await?;
    let cluster = &env.rig.cluster;
    let backend = shared::backend(&env, "backend", object!({})).await?;
    let class = shared::class(&env, "class", "backend", object!({})).await?;
    shared::bound(&env, "data", &class).await?;
    let name = env.unique_name("backend");
    let fine_as_it_is = refused(cluster, 1, &["accept-identity", &name, "new"]).await;
    assert!(fine_as_it_is.contains("nothing to accept"), "{fine_as_it_is}");
    // Another export is in its place: the same server, with the identity of another file system.
    let folder = env.data().join(".nfs-operator");
    fs::rename(&folder, env.data().join("kept-elsewhere"))?;
    let reason = Some("IdentityMismatch");
    let message = env
        .objects
        .wait_condition(&backend, "Ready", "False", reason, TIMEOUT)
        .await?;
    let message = shared::text(&message, "/message").to_owned();
    let other = refused(cluster, 1, &["accept-identity", &name, "00000000-1111"]).await;
    assert!(other.contains("does not ask for the identity 00000000-1111"), "{other}");
    let (_, identity) = message
        .split_once("accept-identity: ")
        .unwrap_or_else(|| panic!("{message}"));
    let identity = identity.split_whitespace().next().unwrap();
    let planned = fine(cluster, &["accept-identity", &name, identity, "--plan"]).await;
    assert!(
        planned.contains("IdentityMismatch") && planned.contains("would set"),
        "{planned}"
    );
    assert_eq!(requests(&env, &backend).await?, Vec::<String>::new());
    fine(
        cluster,
        &["accept-identity", &name, identity, "--wait", "--timeout", "4m"],
    )
    .await;
    env.objects
        .wait_condition(&backend, "Ready", "True", None, TIMEOUT)
        .await?;
    Ok(())
}

#[tokio::test]
async fn orphans_and_the_largest_volumes_are_shown() -> Test {
    let spec = object!({"probeInterval": "1s", "usage": {"interval": "24h"}});
    let env = DedicatedCluster::start_with_args(spec, &["--scan-interval", "2s"]).await?;
    let claim = env.objects.create(&env.claim("data")).await?;
    let volume = env.bound(&claim).await?;
    let directory = env.directory(&volume)?;
    fs::write(directory.join("data"), vec![1; 3 << 20])?;
    fine(&env.cluster, &["count", "--all", "--wait", "--timeout", "4m"]).await;
    rig::wait::until("the volume to be counted", TIMEOUT, async || {
        let (_, found) = json(&env.cluster, &["usage", "top"]).await;
        let largest = &found["volumes"][0];
        match largest["usedBytes"].as_u64() {
            Some(used) if used >= 3 << 20 && largest["claim"] == "default/data" => Ok(()),
            _ => Err(found.to_string()),
        }
    })
    .await?;
    let table = fine(&env.cluster, &["usage", "top", "-n", "default", "--backend", "main"]).await;
    assert!(table.lines().count() == 2 && table.contains('%'), "{table}");
    let none = fine(&env.cluster, &["usage", "top", "-n", "other"]).await;
    assert_eq!(none, "there are no volumes\n");

    fs::rename(&directory, directory.with_file_name("moved-away"))?;
    let orphans = rig::wait::until("the orphan to be found", TIMEOUT, async || {
        let output = nfs(&env.cluster, &["orphans"]).await;
        match output.status.code() {
            Some(1) if text(&output.stdout).contains("VolumeWithoutDirectory") => Ok(text(&output.stdout)),
            _ => Err(format!("{output:?}")),
        }
    });
    let orphans = orphans.await?;
    assert!(orphans.contains("move the directory back"), "{orphans}");
    rig::wait::until("the claim to be explained", TIMEOUT, async || {
        let (code, found) = json(&env.cluster, &["explain", "pvc/data"]).await;
        let problems = found["problems"].as_array().cloned().unwrap_or_default();
        let is_missing = |problem: &Value| problem["type"] == "nfs-operator.io/DirectoryMissing";
        match (code, problems.iter().any(is_missing)) {
            (Some(1), true) => Ok(()),
            _ => Err(found.to_string()),
        }
    })
    .await?;
    let shown = problem(&env.cluster, &["status"]).await;
    assert!(shown.contains("main: Consistent: OrphansFound: "), "{shown}");
    let (code, found) = json(&env.cluster, &["orphans", "main"]).await;
    assert_eq!(
        (code, &found["backends"][0]["orphans"]["total"]),
        (Some(1), &object!(1)),
        "{found:#}"
    );
    Ok(())
}
