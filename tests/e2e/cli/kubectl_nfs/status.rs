//! What works, who leads, and what an administrator keeps: status, secret, report.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use rig::TestEnv;
use serde_json::{Value, json as object};

use super::{OPERATOR_NAMESPACE, fine, json, nfs, problem, refused};
use crate::backups::nfs_backup;
use crate::cli::program::text;
use crate::support::dedicated_cluster::DedicatedCluster;
use crate::support::shared::{self, Test, wait_refused};

#[tokio::test]
async fn status_is_fine_while_all_works_and_names_what_does_not() -> Test {
    let env = DedicatedCluster::start(object!({"probeInterval": "1s"})).await?;
    let claim = env.objects.create(&env.claim("data")).await?;
    env.bound(&claim).await?;
    // As kubectl runs it.
    let shown = env.run_as_admin("kubectl nfs status").await?;
    for expected in ["leader", "Claims: none waits", "Archives: none"] {
        assert!(shown.contains(expected), "{shown}");
    }
    let backend = shown.lines().find(|line| line.starts_with("main"));
    assert!(backend.is_some_and(|line| line.contains("True")), "{shown}");
    assert!(!shown.contains('\u{1b}'), "colors without a terminal: {shown}");
    let (code, found) = json(&env.cluster, &["status"]).await;
    assert_eq!((code, &found["works"]), (Some(0), &object!(true)), "{found:#}");
    assert_eq!(found["versions"]["client"], env!("CARGO_PKG_VERSION"));
    assert!(!shown.contains("Backups"), "{shown}");

    let backup = nfs_backup("default", "refused", &object!({"source": {"claimName": "data"}}));
    let backup = env.objects.create(&backup).await?;
    env.objects
        .wait_condition(
            &backup,
            "Ready",
            "False",
            Some("SelfServiceNotAllowed"),
            shared::TIMEOUT,
        )
        .await?;
    let (code, found) = json(&env.cluster, &["status"]).await;
    let waiting = &found["backups"]["waiting"]["SelfServiceNotAllowed"];
    assert_eq!(
        (code, &waiting["count"], &waiting["example"]),
        (Some(1), &object!(1), &object!("default/refused")),
        "{found:#}"
    );
    let shown = nfs(&env.cluster, &["status"]).await;
    assert!(text(&shown.stdout).contains("Backups: 1 waits"), "{shown:?}");
    env.objects.delete(&backup).await?;

    let claim = env.objects.create(&env.claim("moved")).await?;
    let volume = env.bound(&claim).await?;
    let directory = env.directory(&volume)?;
    fs::rename(&directory, directory.with_file_name("moved-away"))?;
    env.objects.delete(&claim).await?;
    let released = rig::wait::until("the released volume to be listed", shared::TIMEOUT, async || {
        let (code, found) = json(&env.cluster, &["status"]).await;
        match (code, &found["releasedVolumes"]["total"]) {
            (Some(1), total) if *total == 1 => Ok(found["releasedVolumes"]["volumes"][0].clone()),
            _ => Err(found.to_string()),
        }
    });
    let released = released.await?;
    assert_eq!(
        (&released["name"], &released["claim"], &released["backend"]),
        (&volume["metadata"]["name"], &object!("default/moved"), &object!("main")),
        "{released:#}"
    );
    let warning = released["warning"].as_str().unwrap_or_default();
    assert!(warning.starts_with("DirectoryMissing"), "{released:#}");
    let shown = problem(&env.cluster, &["status"]).await;
    assert!(
        shown.contains("Released volumes that are not reclaimed: 1") && shown.contains("default/moved"),
        "{shown}"
    );

    env.operator.terminate().await?;
    let stopped = nfs(&env.cluster, &["status"]).await;
    assert_eq!(stopped.status.code(), Some(1));
    assert!(text(&stopped.stdout).contains("NONE"), "{stopped:?}");
    env.objects.create(&env.claim("late")).await?;
    let waits = problem(&env.cluster, &["explain", "pvc/late"]).await;
    assert!(waits.contains("No operator leads"), "{waits}");
    Ok(())
}

#[tokio::test]
async fn status_shows_deployments_of_the_operator_and_none_of_anybody_else() -> Test {
    let env = DedicatedCluster::start(object!({})).await?;
    let operator = |namespace: &str, name: &str| {
        object!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"namespace": namespace, "name": name, "labels": {"nfs-operator.io/component": "operator"}},
        "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "x"}}, "template": {
            "metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "operator", "image": "none"}]}}}})
    };
    env.objects.create(&operator("default", "somebody")).await?;
    let shown = fine(&env.cluster, &["status"]).await;
    let nothing = format!("none in namespace {OPERATOR_NAMESPACE}; --operator-namespace");
    assert!(shown.contains(&nothing) && !shown.contains("somebody"), "{shown}");
    env.objects.create(&operator(OPERATOR_NAMESPACE, "installed")).await?;
    let (_, found) = json(&env.cluster, &["status"]).await;
    let names: Vec<_> = found["operator"]["deployments"].as_array().unwrap().iter().collect();
    assert_eq!(
        (names.len(), &names[0]["name"]),
        (1, &object!("installed")),
        "{found:#}"
    );

    // As before an operator has led.
    env.operator.terminate().await?;
    env.run_as_admin("kubectl delete lease nfs-operator-cluster-lock -n kube-system")
        .await?;
    let never = nfs(&env.cluster, &["status"]).await;
    let shown = text(&never.stdout);
    assert_eq!(never.status.code(), Some(1), "{never:?}");
    for expected in ["NONE: no operator has led", "set --operator-namespace"] {
        assert!(shown.contains(expected), "{shown}");
    }
    let named = nfs(&env.cluster, &["status", "--operator-namespace", OPERATOR_NAMESPACE]).await;
    let shown = text(&named.stdout);
    assert!(shown.contains("installed") && shown.contains("NONE"), "{shown}");
    let secret = refused(&env.cluster, 2, &["secret", "quota-key"]).await;
    assert!(
        secret.contains("no operator holds") && secret.contains("--namespace"),
        "{secret}"
    );
    Ok(())
}

#[tokio::test]
async fn status_counts_waiting_claims_by_reason() -> Test {
    let env = TestEnv::new("status-waits").await?;
    env.objects
        .create(&env.backend("backend", object!({"suspend": true})))
        .await?;
    let class = shared::class(&env, "class", "backend", object!({})).await?;
    let claim = env.objects.create(&env.claim("data", &class)).await?;
    wait_refused(&env, &claim, "Suspended").await?;
    let (code, found) = json(&env.rig.cluster, &["status"]).await;
    assert_eq!((code, &found["works"]), (Some(1), &object!(false)), "{found:#}");
    let waiting = &found["claims"]["waiting"]["Suspended"];
    assert!(waiting["count"].as_u64() > Some(0), "{found:#}");
    let backends = found["backends"].as_array().unwrap();
    let ours = backends
        .iter()
        .find(|backend| backend["name"] == env.unique_name("backend"));
    assert_eq!(ours.unwrap()["reason"], "Suspended", "{found:#}");
    Ok(())
}

#[tokio::test]
async fn the_secret_is_saved_for_its_owner_alone_and_verified() -> Test {
    let env = DedicatedCluster::start(object!({})).await?;
    let folder = env.data()?.with_file_name("kept");
    fs::create_dir(&folder)?;
    let file = folder.join("secret.yaml");
    let path = file.to_str().unwrap();
    let saved = fine(&env.cluster, &["secret", "backup", path]).await;
    assert!(saved.contains(path), "{saved}");
    assert_eq!(fs::metadata(&file)?.permissions().mode() & 0o777, 0o600);
    let verified = fine(&env.cluster, &["secret", "verify", path]).await;
    assert!(verified.contains("is the Secret of this cluster"), "{verified}");
    let exists = refused(&env.cluster, 2, &["secret", "backup", path]).await;
    assert!(exists.contains("only copy of another key"), "{exists}");

    let text = fs::read_to_string(&file)?;
    let mut changed: Value = serde_norway::from_str(&text)?;
    changed["data"]["key"] = object!("BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=");
    fs::write(&file, changed.to_string())?;
    let other = refused(&env.cluster, 1, &["secret", "verify", path]).await;
    assert!(other.contains("another key") && other.contains("keep"), "{other}");
    // As if the operator had created the Secret again after the copy.
    fs::File::options()
        .write(true)
        .open(&file)?
        .set_modified(std::time::UNIX_EPOCH)?;
    let older = refused(&env.cluster, 1, &["secret", "verify", path]).await;
    for expected in ["Do not overwrite", "created later", "kubectl create -f"] {
        assert!(older.contains(expected), "{older}");
    }
    changed["data"]["key"] = object!("BwcH");
    fs::write(&file, changed.to_string())?;
    let damaged = refused(&env.cluster, 1, &["secret", "verify", path]).await;
    assert!(damaged.contains("data.key has 3 bytes"), "{damaged}");
    fs::write(&file, "data: {key: BwcHB")?;
    let unreadable = refused(&env.cluster, 1, &["secret", "verify", path]).await;
    assert!(
        unreadable.contains("not a Secret") && !unreadable.contains("BwcH"),
        "{unreadable}"
    );
    Ok(())
}

#[tokio::test]
async fn a_report_has_the_conditions_and_no_names() -> Test {
    let affinity = object!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
        {"key": "kubernetes.io/hostname", "operator": "In", "values": ["secretive-node"]},
    ]}]}});
    let backups = object!({"selfService": {
        "maxBytesPerNamespace": "1Gi", "allowedNamespaces": {"matchNames": ["secretive-team"]},
    }});
    let spec = object!({"probeInterval": "1s", "nodeAffinity": affinity, "backups": backups});
    let env = DedicatedCluster::start(spec).await?;
    let archive = object!({"apiVersion": "nfs-operator.io/v1alpha1", "kind": "NfsArchive",
        "metadata": {"name": "secretive-archive"}, "spec": {
            "claimRef": {"namespace": "secretive-space", "name": "secretive-database"},
            "allowedNamespaces": {"matchNames": ["secretive-other"]}}});
    let mut class = object!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": {"name": "secretive-class"}, "provisioner": "example.com/other"});
    let schedule = object!({"apiVersion": "nfs-operator.io/v1alpha1", "kind": "NfsBackupSchedule",
        "metadata": {"namespace": "default", "name": "secretive-schedule"},
        "spec": {"schedule": "61 * * * *", "claims": {"matchNames": ["secretive-data"]}}});
    let operator = object!({"apiVersion": "apps/v1", "kind": "Deployment",
    "metadata": {"namespace": OPERATOR_NAMESPACE, "name": "secretive-operator",
        "labels": {"nfs-operator.io/component": "operator", "app.kubernetes.io/version": "0.1.0"}},
    "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "x"}}, "template": {
        "metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{
            "name": "operator", "image": "secretive.example:5000/mirror/nfs-operator:0.1.0",
            "args": ["run", "--provisioner-name=nfs-operator.io/nfs,example.com/secretive", "--concurrency=7"],
        }]}}}});
    for object in [&archive, &class, &schedule, &operator] {
        env.objects.create(object).await?;
    }
    rig::objects::merge(
        &mut class,
        &object!({"metadata": {"name": "secretive-served"}, "provisioner": "example.com/secretive"}),
    );
    env.objects.create(&class).await?;
    let mut claim = env.claim("secretive-claim");
    rig::objects::merge(
        &mut claim,
        &object!({"metadata": {"annotations": {"nfs-operator.io/backend": "nobody-knows"}}}),
    );
    let claim = env.objects.create(&claim).await?;
    let kind = "nfs-operator.io/Provisioned";
    env.objects
        .wait_condition(&claim, kind, "False", Some("OverrideRefused"), shared::TIMEOUT)
        .await?;
    let file = env.data()?.with_file_name("report.json");
    fine(&env.cluster, &["report", file.to_str().unwrap()]).await;
    let report = fs::read_to_string(&file)?;
    for name in [
        "secretive",
        "127.0.0.1",
        ":/export",
        "\"/export",
        "\"main\"",
        "\"default\"",
        OPERATOR_NAMESPACE,
    ] {
        assert!(!report.contains(name), "{name}: {report}");
    }
    let report: Value = serde_json::from_str(&report)?;
    assert_eq!(report["claims"]["withProblem"], 1, "{report:#}");
    let condition = &report["claims"]["items"][0]["status"]["conditions"][0];
    assert_eq!(condition["reason"], "OverrideRefused", "{report:#}");
    assert_eq!(report["backends"][0]["spec"]["server"], "<server-1>");
    let deployment = &report["operator"]["deployments"][0];
    let image = deployment["image"].as_str().unwrap_or_default();
    assert!(
        image.starts_with("<registry-1>/") && image.ends_with(":0.1.0"),
        "{image}"
    );
    assert_eq!(
        (&deployment["version"], &deployment["arguments"][2]),
        (&object!("0.1.0"), &object!("--concurrency=7")),
        "{report:#}"
    );
    assert_eq!(report["archives"]["withProblem"], 1, "{report:#}");
    assert_eq!(report["schedules"]["withProblem"], 1, "{report:#}");
    let classes = report["storageClasses"].as_array().map(Vec::len);
    assert_eq!(classes, Some(2), "that of another provisioner is left out: {report:#}");
    let shown = nfs(&env.cluster, &["status"]).await;
    assert!(
        text(&shown.stdout).contains("nfs-operator 0.1.0, kubectl-nfs"),
        "{shown:?}"
    );
    let exists = refused(&env.cluster, 1, &["report", file.to_str().unwrap()]).await;
    assert!(exists.contains("cannot write"), "{exists}");
    Ok(())
}
