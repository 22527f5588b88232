//! `kubectl nfs archives` and `backup`.

use std::fs;

use rig::TestEnv;
use rig::objects::reference;
use serde_json::{Value, json as object};

use super::{fine, json, refused};
use crate::archives::objects::archived;
use crate::support::shared::{self, TIMEOUT, Test, text};

#[tokio::test]
async fn an_archive_is_listed_held_released_expired_and_restored() -> Test {
    let env = TestEnv::new("nfs-archives").await?;
    let cluster = &env.rig.cluster;
    shared::backend(&env, "backend", object!({})).await?;
    let class = shared::class(&env, "class", "backend", object!({})).await?;
    let [_, _, archive] = archived(&env, "data", &class, "precious").await?;
    let name = text(&archive, "/metadata/name");
    let listed = fine(cluster, &["archives", "list", "-n", &env.name, "-o", "name"]).await;
    assert_eq!(listed, format!("nfsarchive/{name}\n"));
    let backend = env.unique_name("backend");
    let (_, found) = json(cluster, &["archives", "list", "--backend", &backend, "--claim", "data"]).await;
    assert_eq!(found["items"][0]["metadata"]["name"], name, "{found:#}");
    let table = fine(cluster, &["archives", "list", "-n", &env.name]).await;
    assert!(
        table.starts_with("NAME") && table.contains(&format!("{}/data", env.name)),
        "{table}"
    );
    let none = fine(cluster, &["archives", "list", "-n", &env.name, "--claim", "other"]).await;
    assert_eq!(none, "no archives\n");
    for (arguments, expected) in [
        (
            &["archives", "list", "-n", "no-such"][..],
            "no archives: Namespace no-such does not exist\n",
        ),
        (
            &["archives", "list", "--backend", "no-such"],
            "no archives: NfsBackend no-such does not exist\n",
        ),
        (
            &["schedules", "-n", "no-such"],
            "no schedules: Namespace no-such does not exist\n",
        ),
    ] {
        assert_eq!(fine(cluster, arguments).await, expected);
    }

    let spec =
        async || -> rig::Result<Value> { Ok(env.objects.get(&archive).await?.unwrap_or_default()["spec"].clone()) };
    fine(cluster, &["archives", "hold", &format!("nfsa/{name}")]).await;
    assert_eq!(spec().await?["legalHold"], true);
    let planned = fine(cluster, &["archives", "expire", name, "--in", "30d", "--plan"]).await;
    assert!(
        planned.contains("would change") && planned.contains("it is held"),
        "{planned}"
    );
    assert_eq!(spec().await?["expirationTime"], Value::Null);
    fine(cluster, &["archives", "expire", name, "--at", "2099-01-31T00:00:00Z"]).await;
    assert_eq!(spec().await?["expirationTime"], "2099-01-31T00:00:00Z");
    let never = fine(cluster, &["archives", "expire", name, "--never"]).await;
    assert!(never.contains("no expiration time"), "{never}");
    assert_eq!(spec().await?["expirationTime"], Value::Null);
    fine(cluster, &["archives", "release", name]).await;
    assert_eq!(spec().await?["legalHold"], false);
    let unclear = refused(cluster, 2, &["archives", "expire", name]).await;
    assert!(unclear.contains("--at"), "{unclear}");

    let restore = ["archives", "restore", name, "--to", "again"];
    for (code, arguments, expected) in [
        (2, ["--storage-class", "no-such"], "StorageClass no-such does not exist"),
        (2, ["--size", "1Ki"], "--size 1Ki is too small"),
        (2, ["-n", "no-such"], "Namespace no-such does not exist"),
        (1, ["-n", "default"], "spec.allowedNamespaces"),
    ] {
        let unfit = refused(cluster, code, &[&restore[..], &arguments[..], &["--plan"]].concat()).await;
        assert!(unfit.contains(expected), "{unfit}");
    }
    let planned = fine(cluster, &[&restore[..], &["--plan"]].concat()).await;
    assert!(
        planned.contains("dataSourceRef") && planned.contains("the archive is gone"),
        "{planned}"
    );
    let claim = reference("v1", "PersistentVolumeClaim", Some(&env.name), "again");
    assert_eq!(env.objects.get(&claim).await?, None);
    let restored = fine(cluster, &[&restore[..], &["--wait"]].concat()).await;
    assert!(restored.contains("is bound"), "{restored}");
    let volume = env.wait_bound(&claim).await?;
    assert_eq!(fs::read_to_string(env.directory(&volume)?.join("data"))?, "precious");
    env.objects.wait_gone(&archive, TIMEOUT).await?;
    let missing = refused(cluster, 1, &restore).await;
    assert!(missing.contains("does not exist"), "{missing}");
    Ok(())
}

#[tokio::test]
async fn a_backup_is_complete_when_the_command_ends() -> Test {
    let env = TestEnv::new("nfs-backup").await?;
    let cluster = &env.rig.cluster;
    shared::backend(&env, "backend", object!({})).await?;
    let class = shared::class(&env, "class", "backend", object!({})).await?;
    shared::bound_with_data(&env, "data", &class, "as it was").await?;
    let arguments = [
        "backup",
        "pvc/data",
        "-n",
        &env.name,
        "--wait",
        "--expires-in",
        "90d",
        "-o",
        "name",
    ];
    let created = fine(cluster, &arguments).await;
    let name = created.trim().strip_prefix("nfsarchive/").unwrap();
    assert!(name.starts_with("backup-nfs-backup-"), "{name}");
    let archive = reference("nfs-operator.io/v1alpha1", "NfsArchive", None, name);
    let archive = env.objects.get(&archive).await?.ok_or("no archive")?;
    assert_eq!(text(&archive, "/status/state"), "Available", "{archive:#}");
    assert!(archive["spec"]["expirationTime"].is_string(), "{archive:#}");
    let directory = env.data().join(text(&archive, "/status/directory"));
    assert_eq!(fs::read_to_string(directory.join("data"))?, "as it was");
    let missing = refused(cluster, 1, &["backup", "pvc/none", "-n", &env.name]).await;
    assert!(missing.contains("does not exist"), "{missing}");
    Ok(())
}
