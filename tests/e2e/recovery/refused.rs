//! Volumes that are not recovered: unsigned, not requested, or in use by others.

use std::fs;
use std::time::Duration;

use rig::objects::{merge, reference};
use rig::wait;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::ha::crashes::{lose_replies_from, making_of};
use crate::recovery::cluster_loss::{adopt, archived, clusters, done, frequent_probes, guide};
use crate::recovery::volumes::{
    READOPT_ALL, ask, ask_for, asking, assert_recovered, claim_in, give_up, namespace, rebuilt, wait_recovery_message,
    with_data,
};
use crate::support::dedicated_cluster::DedicatedCluster;
use crate::support::shared::{Failure, TIMEOUT, Test, text};

const READOPT: &str = "nfs-operator.io/readopt";

fn name_of(volume: &Value) -> &str {
    text(volume, "/metadata/name")
}

/// Checks that the claim waits because its volume was not recovered.
async fn assert_claim_waits(env: &DedicatedCluster, claim: &Value, volume: &str) -> Test {
    assert_waits_for(env, claim, "VolumeLeftOut", volume).await
}

/// Checks that the claim waits because the volume of an earlier claim of its name is recorded.
pub async fn assert_claim_misses_its_volume(env: &DedicatedCluster, claim: &Value, volume: &str) -> Test {
    assert_waits_for(env, claim, "RecordedVolumeMissing", volume).await
}

/// Checks that the claim waits for this reason, and that its condition names the volume.
async fn assert_waits_for(env: &DedicatedCluster, claim: &Value, reason: &str, volume: &str) -> Test {
    let kind = "nfs-operator.io/Provisioned";
    let reported = env
        .objects
        .wait_condition(claim, kind, "False", Some(reason), TIMEOUT)
        .await?;
    assert!(text(&reported, "/message").contains(volume), "{reported}");
    Ok(())
}

/// Checks that the claim gets a new and empty volume.
async fn assert_new_volume(env: &DedicatedCluster, claim: &Value, former: &Value) -> Test {
    let volume = env.bound(claim).await?;
    assert_ne!(name_of(&volume), name_of(former));
    assert_eq!(fs::read_dir(env.directory(&volume)?)?.count(), 0);
    let data = env.directory(former)?.join("data");
    assert_eq!(
        fs::read_to_string(data)?,
        text(claim, "/metadata/name"),
        "the former data lie where they were"
    );
    Ok(())
}

/// Waits until the backend reports this number of volumes: until the operator has seen them appear or disappear.
async fn wait_counted(env: &DedicatedCluster, volumes: u64) -> Test {
    let backend = reference("nfs-operator.io/v1alpha1", "NfsBackend", None, "main");
    let counted = |found: &Value| match found["status"]["volumes"].as_u64() {
        Some(count) if count == volumes => Ok(()),
        other => Err(format!("{other:?}")),
    };
    let what = format!("to report {volumes} volumes");
    Ok(env.objects.wait(&backend, &what, TIMEOUT, counted).await?)
}

/// Deletes the object of a volume in spite of its finalizers.
async fn lose(env: &DedicatedCluster, volume: &Value) -> Test {
    env.objects.delete(volume).await?;
    env.objects
        .patch(volume, json!({"metadata": {"finalizers": null}}))
        .await?;
    Ok(env.objects.wait_gone(volume, TIMEOUT).await?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_secret_claims_wait_until_a_volume_is_adopted_or_recovery_is_no_longer_requested() -> Test {
    let env = DedicatedCluster::start(frequent_probes()).await?;
    let (adopted, given_up) = (env.claim("adopted"), env.claim("given-up"));
    let (first, second) = (with_data(&env, &adopted).await?, with_data(&env, &given_up).await?);
    let former = clusters(&env)?.remove(0);
    let id = former.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let env = env.rebuilt(None, &[]).await?;
    env.class("nfs", json!({})).await?;
    for claim in [&adopted, &given_up] {
        env.objects.create(claim).await?;
    }
    env.backend(asking()).await?;
    let recorded = format!("it is recorded for cluster {id}");
    wait_recovery_message(
        &env,
        "VolumesLeftOut",
        &["2 left out", name_of(&first), name_of(&second), &recorded],
    )
    .await?;
    assert_claim_waits(&env, &adopted, name_of(&first)).await?;
    assert_claim_waits(&env, &given_up, name_of(&second)).await?;
    assert_eq!(env.volumes().await?.len(), 0);
    assert_eq!(fs::read_dir(former.join("records"))?.count(), 2);

    adopt(&env, Some(&id), name_of(&first)).await?;
    assert_recovered(&env, &adopted, &first).await?;
    wait_recovery_message(&env, "VolumesLeftOut", &["1 left out", name_of(&second)]).await?;
    assert_eq!(env.volumes().await?.len(), 1);
    give_up(&env, name_of(&second)).await?;
    assert_new_volume(&env, &given_up, &second).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_records_become_no_volumes_and_their_claims_report_it() -> Test {
    let env = DedicatedCluster::start(frequent_probes()).await?;
    let claims = ["own", "stolen", "unsigned", "moved"].map(|name| env.claim(name));
    let mut volumes = Vec::new();
    for claim in &claims {
        volumes.push(with_data(&env, claim).await?);
    }
    let records = clusters(&env)?.remove(0).join("records");
    let rewrite = |volume: &Value, change: &dyn Fn(&mut Value)| -> Test {
        let path = records.join(name_of(volume));
        let mut record: Value = serde_json::from_slice(&fs::read(&path)?)?;
        change(&mut record);
        Ok(fs::write(path, record.to_string())?)
    };
    // A changed owner, a missing signature, and a directory that root moved in the place of another.
    rewrite(&volumes[1], &|record| record["claim"]["name"] = json!("of-a-thief"))?;
    rewrite(&volumes[2], &|record| {
        drop(record.as_object_mut().map(|fields| fields.remove("signature")))
    })?;
    let moved = env.directory(&volumes[3])?;
    fs::rename(&moved, moved.with_extension("aside"))?;
    fs::create_dir(&moved)?;
    let mut made_up: Value = serde_json::from_slice(&fs::read(records.join(name_of(&volumes[1])))?)?;
    made_up["volume"] = json!("pvc-made-up");
    fs::write(records.join("pvc-made-up"), made_up.to_string())?;

    let env = rebuilt(env).await?;
    env.class("nfs", json!({})).await?;
    let thief = env.claim("of-a-thief");
    for claim in claims.iter().chain([&thief]) {
        env.objects.create(claim).await?;
    }
    env.backend(asking()).await?;
    let unsigned = format!("{} (its record is not signed)", name_of(&volumes[2]));
    let forged = format!("{} (its record's signature is wrong", name_of(&volumes[1]));
    let parts = [
        "1 recorded volume exists, 1 recreated; 4 left out",
        "pvc-made-up (its record's signature is wrong",
        "and what has its name has",
        &unsigned,
        &forged,
    ];
    wait_recovery_message(&env, "VolumesLeftOut", &parts).await?;
    assert_recovered(&env, &claims[0], &volumes[0]).await?;
    assert_claim_waits(&env, &claims[2], name_of(&volumes[2])).await?;
    assert_claim_waits(&env, &claims[3], name_of(&volumes[3])).await?;
    assert_claim_waits(&env, &thief, "pvc-").await?;
    // Nothing was reported about this claim.
    assert_new_volume(&env, &claims[1], &volumes[1]).await?;
    assert_eq!(env.volumes().await?.len(), 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_running_cluster_a_lost_volume_is_recovered_for_its_own_claim_only() -> Test {
    let env = DedicatedCluster::start(frequent_probes()).await?;
    env.objects.create(&namespace("team")).await?;
    let (own, deleted, foreign) = (env.claim("own"), env.claim("deleted"), claim_in(&env, "team", "data"));
    let mut volumes = Vec::new();
    for claim in [&own, &deleted, &foreign] {
        let volume = with_data(&env, claim).await?;
        lose(&env, &volume).await?;
        volumes.push(volume);
    }
    env.objects.delete(&deleted).await?;
    env.objects.wait_gone(&deleted, TIMEOUT).await?;
    env.objects.delete(&namespace("team")).await?;
    env.objects.wait_gone(&namespace("team"), TIMEOUT).await?;
    env.objects.create(&namespace("team")).await?;
    ask(&env).await?;
    let deleted_name = format!(
        "{} (claim default/deleted does not exist with the recorded UID",
        name_of(&volumes[1])
    );
    let another = format!(
        "{} (namespace team does not have the recorded UID",
        name_of(&volumes[2])
    );
    wait_recovery_message(
        &env,
        "VolumesLeftOut",
        &["1 recreated; 2 left out", &deleted_name, &another],
    )
    .await?;
    assert_recovered(&env, &own, &volumes[0]).await?;
    // Nobody but an administrator knows if the claims of these names are the former ones.
    for (claim, former) in [(&deleted, &volumes[1]), (&foreign, &volumes[2])] {
        env.objects.create(claim).await?;
        assert_claim_waits(&env, claim, name_of(former)).await?;
    }
    let backend = reference("nfs-operator.io/v1alpha1", "NfsBackend", None, "main");
    let backend = env.objects.get(&backend).await?.ok_or("no backend")?;
    give_up(&env, text(&backend, "/metadata/uid")).await?;
    for (claim, former) in [(&deleted, &volumes[1]), (&foreign, &volumes[2])] {
        assert_new_volume(&env, claim, former).await?;
    }
    Ok(())
}

/// Claims and volumes that are newer than the snapshot do not exist afterwards, and users apply the claims again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_restore_of_etcd_claims_wait_for_their_recorded_volumes_and_an_administrator_names_them() -> Test {
    let mut env = DedicatedCluster::start(frequent_probes()).await?;
    env.objects.create(&namespace("team")).await?;
    let while_stopped = [env.claim("stopped"), claim_in(&env, "team", "data")];
    let mut volumes = Vec::new();
    for claim in &while_stopped {
        volumes.push(with_data(&env, claim).await?);
    }
    env.operator.kill9().await?;
    for (claim, volume) in while_stopped.iter().zip(&volumes) {
        lose(&env, volume).await?;
        env.objects.delete(claim).await?;
        env.objects.wait_gone(claim, TIMEOUT).await?;
    }
    env.objects.delete(&namespace("team")).await?;
    env.objects.wait_gone(&namespace("team"), TIMEOUT).await?;
    env.objects.create(&namespace("team")).await?;
    for claim in &while_stopped {
        env.objects.create(claim).await?;
    }
    env.operator.restart().await?;
    for (claim, volume) in while_stopped.iter().zip(&volumes) {
        assert_claim_misses_its_volume(&env, claim, name_of(volume)).await?;
    }
    // The same holds if the operator sees the objects disappear.
    let seen = env.claim("seen");
    let volume = with_data(&env, &seen).await?;
    wait_counted(&env, 1).await?;
    lose(&env, &volume).await?;
    env.objects.delete(&seen).await?;
    env.objects.wait_gone(&seen, TIMEOUT).await?;
    // Its watches of volumes and of claims are independent.
    wait_counted(&env, 0).await?;
    env.objects.create(&seen).await?;
    assert_claim_misses_its_volume(&env, &seen, name_of(&volume)).await?;
    assert_eq!(env.volumes().await?.len(), 0);
    // A claim of another name is not affected.
    let other = with_data(&env, &env.claim("other")).await?;

    ask(&env).await?;
    wait_recovery_message(
        &env,
        "VolumesLeftOut",
        &["3 left out", "name the volume in the annotation"],
    )
    .await?;
    for (claim, volume) in while_stopped.iter().chain([&seen]).zip(volumes.iter().chain([&volume])) {
        assert_claim_waits(&env, claim, name_of(volume)).await?;
    }
    let names: Vec<&str> = volumes.iter().map(name_of).collect();
    ask_for(&env, &names.join(",")).await?;
    for (claim, volume) in while_stopped.iter().zip(&volumes) {
        assert_recovered(&env, claim, volume).await?;
        // It had warnings.
        env.objects.wait_event(claim, "ProvisioningSucceeded", TIMEOUT).await?;
    }
    done(&env, READOPT).await?;
    // This request is done, and the claim that it did not name still waits.
    assert_claim_waits(&env, &seen, name_of(&volume)).await?;
    assert_eq!(env.volumes().await?.len(), 3);
    give_up(&env, name_of(&volume)).await?;
    assert_new_volume(&env, &seen, &volume).await?;
    assert_eq!(fs::read_to_string(env.directory(&other)?.join("data"))?, "other");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_is_recovered_only_for_an_existing_namespace_that_the_backend_allows() -> Test {
    let env = DedicatedCluster::start(frequent_probes()).await?;
    let (absent, shop) = (claim_in(&env, "absent", "data"), claim_in(&env, "shop", "data"));
    let mut volumes = Vec::new();
    for claim in [&absent, &shop] {
        env.objects
            .create(&namespace(text(claim, "/metadata/namespace")))
            .await?;
        volumes.push(with_data(&env, claim).await?);
    }
    let env = rebuilt(env).await?;
    env.class("nfs", json!({})).await?;
    env.objects.create(&namespace("shop")).await?;
    env.objects.create(&shop).await?;
    let mut backend = asking();
    merge(
        &mut backend,
        &json!({"spec": {"allowedNamespaces": {"matchNames": ["absent"]}}}),
    );
    let backend = env.backend(backend).await?;
    let parts = [
        "2 left out",
        "there is no namespace absent",
        "namespace shop may not have volumes here",
    ];
    wait_recovery_message(&env, "VolumesLeftOut", &parts).await?;
    assert_claim_waits(&env, &shop, name_of(&volumes[1])).await?;
    assert_eq!(env.volumes().await?.len(), 0);
    env.objects.create(&namespace("absent")).await?;
    env.objects.create(&absent).await?;
    assert_recovered(&env, &absent, &volumes[0]).await?;
    wait_recovery_message(&env, "VolumesLeftOut", &["1 left out"]).await?;
    env.objects
        .patch(&backend, json!({"spec": {"allowedNamespaces": null}}))
        .await?;
    assert_recovered(&env, &shop, &volumes[1]).await?;
    done(&env, READOPT_ALL).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_volumes_for_one_claim_neither_is_recovered_until_one_is_named() -> Test {
    let env = DedicatedCluster::start(frequent_probes()).await?;
    let claim = env.claim("data");
    let meant = with_data(&env, &claim).await?;
    lose(&env, &meant).await?;
    env.objects.delete(&claim).await?;
    env.objects.wait_gone(&claim, TIMEOUT).await?;
    // An administrator gave the first one up.
    give_up(&env, name_of(&meant)).await?;
    let other = with_data(&env, &claim).await?;
    let env = rebuilt(env).await?;
    env.class("nfs", json!({})).await?;
    env.objects.create(&claim).await?;
    env.backend(asking()).await?;
    let parts = [
        "2 left out",
        "another live record is for claim default/data too",
        name_of(&meant),
        name_of(&other),
    ];
    wait_recovery_message(&env, "VolumesLeftOut", &parts).await?;
    assert_claim_waits(&env, &claim, "pvc-").await?;
    assert_eq!(env.volumes().await?.len(), 0);
    ask_for(&env, name_of(&meant)).await?;
    assert_recovered(&env, &claim, &meant).await?;
    done(&env, READOPT).await?;
    assert_eq!(env.volumes().await?.len(), 1);
    Ok(())
}

/// An unused volume has only an empty directory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_rebuilt_cluster_an_empty_directory_waits_for_its_claim_and_an_unfinished_one_is_removed() -> Test {
    let env = DedicatedCluster::start(frequent_probes()).await?;
    let (empty, begun) = (env.claim("empty"), env.claim("begun"));
    env.objects.create(&empty).await?;
    let volume = env.bound(&empty).await?;
    lose_replies_from(&env.proxy, making_of("default-begun-pvc-", 36));
    env.objects.create(&begun).await?;
    let is_begun = |env: &DedicatedCluster| -> Result<bool, Failure> {
        Ok(env.names()?.iter().any(|name| name.starts_with("default-begun-")))
    };
    wait::until("the directory to be created", TIMEOUT, async || match is_begun(&env) {
        Ok(true) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await?;
    env.operator.kill9().await?;
    assert_eq!(env.volumes().await?.len(), 1);
    let env = rebuilt(env).await?;
    env.proxy.clear_hooks();
    env.create_backend_and_class(frequent_probes()).await?;
    wait::until("the unfinished directory to be removed", TIMEOUT, async || {
        let records = env.records().map_err(|error| error.to_string())?;
        match is_begun(&env) {
            Ok(false) if records.len() == 1 => Ok(()),
            other => Err(format!("{other:?}, {records:?}")),
        }
    })
    .await?;
    // The same holds after more garbage collections.
    archived(&env, "another").await?;
    assert!(env.directory(&volume)?.is_dir());
    // The commands of the guide wait for this request, however late the operator sees it.
    env.operator.pause()?;
    ask(&env).await?;
    let commands = guide()?.readopted.replace("NAME", "main");
    let resume = async {
        sleep(Duration::from_secs(2)).await;
        Ok(env.operator.resume()?)
    };
    let (message, ()) = tokio::try_join!(env.run_as_admin(&commands), resume)?;
    assert!(message.contains("1 recreated"), "{message}");
    env.objects.create(&empty).await?;
    assert_eq!(name_of(&env.bound(&empty).await?), name_of(&volume));
    Ok(())
}
