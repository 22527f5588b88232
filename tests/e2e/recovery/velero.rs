//! Claims that Velero restores: docs/velero.md.

use std::fs;
use std::path::Path;

use rig::objects::{merge, reference};
use rig::operator::repository_root;
use serde_json::{Value, json};

use crate::archives::objects::archive_of;
use crate::recovery::cluster_loss::{archived, available, frequent_probes, said_of};
use crate::recovery::refused::assert_claim_misses_its_volume;
use crate::recovery::volumes::{ask, assert_recovered, claim_in, namespace, rebuilt, with_data};
use crate::support::dedicated_cluster::DedicatedCluster;
use crate::support::shared::{Failure, TIMEOUT, Test, text};
use crate::support::velero::{VeleroBackup, reset_metadata};

const CLAIM_UID: &str = "nfs-operator.io/claim-uid";
const KIND: &str = "nfs-operator.io/Provisioned";

/// Returns a claim of the class `kept`, whose volumes have the reclaim policy Retain.
fn kept(mut claim: Value) -> Value {
    merge(&mut claim, &json!({"spec": {"storageClassName": "kept"}}));
    claim
}

async fn classes(env: &DedicatedCluster, names: &[&str]) -> Test {
    for name in names {
        let policy = if *name == "kept" { "Retain" } else { "Delete" };
        env.class(name, json!({"reclaimPolicy": policy})).await?;
    }
    Ok(())
}

/// Waits until the record of a volume is that of the claim that it is bound to.
async fn wait_transferred(env: &DedicatedCluster, claim: &Value, volume: &Value) -> Test {
    let claim = env.objects.get(claim).await?.ok_or("no claim")?;
    let uid = text(&claim, "/metadata/uid");
    let is = |volume: &Value| match volume["metadata"]["annotations"][CLAIM_UID].as_str() {
        Some(recorded) if recorded == uid => Ok(()),
        other => Err(format!("{other:?}")),
    };
    Ok(env.objects.wait(volume, "to be its claim's", TIMEOUT, is).await?)
}

/// Returns the command of docs/velero.md that contains this text.
fn command(part: &str) -> Result<String, Failure> {
    let page = fs::read_to_string(repository_root().join("docs/velero.md"))?;
    let fenced = page.split("```sh\n").skip(1);
    let mut blocks = fenced.filter_map(|block| block.split("```").next());
    let found = blocks.find(|block| block.contains(part));
    Ok(found.ok_or("no such command")?.to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_that_velero_restores_to_a_rebuilt_cluster_get_their_data_or_wait() -> Test {
    let env = DedicatedCluster::start(frequent_probes()).await?;
    classes(&env, &["kept"]).await?;
    let claims = [env.claim("data"), kept(env.claim("precious"))];
    let mut former = Vec::new();
    for claim in &claims {
        former.push(with_data(&env, claim).await?);
    }
    let [data, precious] = &claims;
    let backup = VeleroBackup::create(&env.objects, &[data, precious]).await?;
    let names = env.names()?;

    let env = rebuilt(env).await?;
    classes(&env, &["nfs", "kept"]).await?;
    // Velero restores custom resources after claims, so there is no backend yet.
    backup.restore(&env.objects, |_| {}).await?;
    assert_recovered(&env, precious, &former[1]).await?;
    env.objects
        .wait_condition(data, KIND, "False", Some("NoBackendAvailable"), TIMEOUT)
        .await?;
    env.backend(json!({"spec": frequent_probes()})).await?;
    assert_claim_misses_its_volume(&env, data, text(&former[0], "/metadata/name")).await?;
    ask(&env).await?;
    assert_recovered(&env, data, &former[0]).await?;
    wait_transferred(&env, data, &former[0]).await?;
    wait_transferred(&env, precious, &former[1]).await?;
    assert_eq!(env.names()?, names, "no directory was made or moved");

    // From now on, the policy applies to the restored volume.
    let policy = json!({"spec": {"persistentVolumeReclaimPolicy": "Delete"}});
    env.objects.patch(&former[1], policy).await?;
    env.objects.delete(precious).await?;
    env.objects.wait_gone(&former[1], TIMEOUT).await?;
    available(&env, &archive_of(&former[1])).await?;
    Ok(())
}

/// Other tools restore the volumes with the reclaim policy Delete, too, and after the claims.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_is_restored_before_its_volume_waits_for_it() -> Test {
    let env = DedicatedCluster::start(frequent_probes()).await?;
    let data = env.claim("data");
    let former = with_data(&env, &data).await?;
    let env = rebuilt(env).await?;
    classes(&env, &["nfs"]).await?;
    env.backend(json!({"spec": frequent_probes()})).await?;
    env.objects.create(&data).await?;
    assert_claim_misses_its_volume(&env, &data, text(&former, "/metadata/name")).await?;
    let mut volume = former.clone();
    let stripped = json!({
        "metadata": {"uid": null, "resourceVersion": null, "creationTimestamp": null, "managedFields": null},
        "spec": {"claimRef": {"uid": null, "resourceVersion": null}},
        "status": null,
    });
    merge(&mut volume, &stripped);
    env.objects.create(&volume).await?;
    assert_recovered(&env, &data, &former).await?;
    wait_transferred(&env, &data, &former).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_that_velero_restores_to_a_recreated_namespace_wait_for_the_command_of_the_guide() -> Test {
    let env = DedicatedCluster::start(frequent_probes()).await?;
    classes(&env, &["kept"]).await?;
    env.objects.create(&namespace("shop")).await?;
    let claims = [claim_in(&env, "shop", "data"), kept(claim_in(&env, "shop", "precious"))];
    let mut former = Vec::new();
    for claim in &claims {
        former.push(with_data(&env, claim).await?);
    }
    let [data, precious] = &claims;
    let backup = VeleroBackup::create(&env.objects, &[data, precious]).await?;
    env.objects.delete(&namespace("shop")).await?;
    env.objects.wait_gone(&namespace("shop"), TIMEOUT).await?;
    env.objects.wait_gone(&former[0], TIMEOUT).await?;
    let archive = available(&env, &archive_of(&former[0])).await?;

    env.objects.create(&namespace("shop")).await?;
    let source = json!({"apiGroup": "nfs-operator.io", "kind": "NfsArchive", "name": archive["metadata"]["name"]});
    let modify = |claim: &mut Value| {
        if claim["metadata"]["name"] == "data" {
            merge(claim, &json!({"spec": {"dataSourceRef": source}}));
        }
    };
    backup.restore(&env.objects, modify).await?;
    // The namespace may belong to somebody else now.
    env.objects
        .wait_condition(data, KIND, "False", Some("ArchiveNotFound"), TIMEOUT)
        .await?;
    // The volume that was kept is still that of the deleted claim. Kubernetes reports that.
    env.objects.wait_event(precious, "FailedBinding", TIMEOUT).await?;

    let released = text(&former[1], "/metadata/name");
    env.run_as_admin(&command("kubectl patch pv")?.replace("VOLUME", released))
        .await?;
    assert_recovered(&env, precious, &former[1]).await?;
    wait_transferred(&env, precious, &former[1]).await?;
    let allow = command("kubectl patch nfsb")?.replace("NAME", "main");
    env.run_as_admin(&allow).await?;
    let backend = reference("nfs-operator.io/v1alpha1", "NfsBackend", None, "main");
    let found = env.objects.get(&backend).await?.ok_or("no backend")?;
    assert_eq!(found["spec"]["archivePolicy"]["restoreByName"], true);
    let restored = env.bound(data).await?;
    assert_eq!(fs::read_to_string(env.directory(&restored)?.join("data"))?, "data");
    Ok(())
}

/// Moves everything in one folder to another one on the same file system.
fn move_all(from: &Path, to: &Path) -> Test {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::rename(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}

/// A tool restores objects without their status, so that only the metadata of the archive name the export.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archive_that_is_restored_without_its_status_prevents_a_new_identity_of_an_empty_export() -> Test {
    let env = DedicatedCluster::start(frequent_probes()).await?;
    let mut archive = archived(&env, "data").await?;
    let env = rebuilt(env).await?;
    let (export, away) = (env.data()?, env.data()?.with_extension("away"));
    move_all(&export, &away)?;
    reset_metadata(&mut archive);
    env.objects.create(&archive).await?;
    let backend = env.backend_object(&json!({"spec": frequent_probes()}));
    env.objects.create(&backend).await?;
    said_of(&env, "Ready", "IdentityMismatch", &[]).await?;
    assert!(fs::read_dir(&export)?.next().is_none(), "nothing was created");
    move_all(&away, &export)?;
    let restored = available(&env, &archive).await?;
    let path = export.join(text(&restored, "/status/directory")).join("data");
    assert_eq!(fs::read_to_string(path)?, "data");
    Ok(())
}
