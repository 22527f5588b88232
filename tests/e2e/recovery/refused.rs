//! What does not come back when volumes are made again: what is not signed, not meant, or somebody else's by now.

use std::fs;

use rig::objects::merge;
use rig::{Action, wait};
use serde_json::{Value, json};

use crate::ha::crashes::making_of;
use crate::recovery::cluster_loss::{adopt, archived, clusters, done, guide, often};
use crate::recovery::volumes::{ask, ask_for, asking, claim_in, is_back, namespace, rebuilt, said, with_data};
use crate::support::dedicated_cluster::Stage;
use crate::support::shared::{Failure, PATIENCE, Test, text};

const READOPT: &str = "nfs-operator.io/readopt";

fn name_of(volume: &Value) -> &str {
    text(volume, "/metadata/name")
}

/// The claim waits, because a volume of its was left out.
async fn is_told(stage: &Stage, claim: &Value, volume: &str) -> Test {
    let (kind, reason) = ("nfs-operator.io/Provisioned", Some("VolumeLeftOut"));
    let told = stage
        .objects
        .wait_condition(claim, kind, "False", reason, PATIENCE)
        .await?;
    assert!(text(&told, "/message").contains(volume), "{told}");
    Ok(())
}

/// The claim has a volume of its own, with nothing in it.
async fn begins_anew(stage: &Stage, claim: &Value, former: &Value) -> Test {
    let volume = stage.bound(claim).await?;
    assert_ne!(name_of(&volume), name_of(former));
    assert_eq!(fs::read_dir(stage.directory(&volume)?)?.count(), 0);
    let data = stage.directory(former)?.join("data");
    assert_eq!(
        fs::read_to_string(data)?,
        text(claim, "/metadata/name"),
        "the former data lie where they were"
    );
    Ok(())
}

/// A volume's object goes, in spite of all that holds it.
async fn lose(stage: &Stage, volume: &Value) -> Test {
    stage.objects.delete(volume).await?;
    stage
        .objects
        .patch(volume, json!({"metadata": {"finalizers": null}}))
        .await?;
    Ok(stage.objects.wait_gone(volume, PATIENCE).await?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_secret_claims_wait_until_a_volume_is_adopted_or_recovery_is_no_longer_requested() -> Test {
    let stage = Stage::set(often()).await?;
    let (adopted, given_up) = (stage.claim("adopted"), stage.claim("given-up"));
    let (first, second) = (with_data(&stage, &adopted).await?, with_data(&stage, &given_up).await?);
    let former = clusters(&stage)?.remove(0);
    let id = former.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let stage = stage.rebuilt(None, &[]).await?;
    stage.class("nfs", json!({})).await?;
    for claim in [&adopted, &given_up] {
        stage.objects.create(claim).await?;
    }
    stage.backend(asking("true")).await?;
    let recorded = format!("it is recorded for cluster {id}");
    said(
        &stage,
        "VolumesLeftOut",
        &["2 left out", name_of(&first), name_of(&second), &recorded],
    )
    .await?;
    is_told(&stage, &adopted, name_of(&first)).await?;
    is_told(&stage, &given_up, name_of(&second)).await?;
    assert_eq!(stage.volumes().await?.len(), 0);
    assert_eq!(fs::read_dir(former.join("records"))?.count(), 2);

    adopt(&stage, Some(&id), name_of(&first)).await?;
    is_back(&stage, &adopted, &first).await?;
    said(&stage, "VolumesLeftOut", &["1 left out", name_of(&second)]).await?;
    assert_eq!(stage.volumes().await?.len(), 1);
    ask_for(&stage, Value::Null).await?;
    begins_anew(&stage, &given_up, &second).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_records_become_no_volumes_and_their_claims_report_it() -> Test {
    let stage = Stage::set(often()).await?;
    let claims = ["own", "stolen", "unsigned", "moved"].map(|name| stage.claim(name));
    let mut volumes = Vec::new();
    for claim in &claims {
        volumes.push(with_data(&stage, claim).await?);
    }
    let records = clusters(&stage)?.remove(0).join("records");
    let rewrite = |volume: &Value, change: &dyn Fn(&mut Value)| -> Test {
        let path = records.join(name_of(volume));
        let mut record: Value = serde_json::from_slice(&fs::read(&path)?)?;
        change(&mut record);
        Ok(fs::write(path, record.to_string())?)
    };
    // Whose it was, without a signature, and a directory that was moved in the place of another by the export's root.
    rewrite(&volumes[1], &|record| record["claim"]["name"] = json!("of-a-thief"))?;
    rewrite(&volumes[2], &|record| {
        drop(record.as_object_mut().map(|fields| fields.remove("signature")))
    })?;
    let moved = stage.directory(&volumes[3])?;
    fs::rename(&moved, moved.with_extension("aside"))?;
    fs::create_dir(&moved)?;
    let mut made_up: Value = serde_json::from_slice(&fs::read(records.join(name_of(&volumes[1])))?)?;
    made_up["volume"] = json!("pvc-made-up");
    fs::write(records.join("pvc-made-up"), made_up.to_string())?;

    let stage = rebuilt(stage).await?;
    stage.class("nfs", json!({})).await?;
    let thief = stage.claim("of-a-thief");
    for claim in claims.iter().chain([&thief]) {
        stage.objects.create(claim).await?;
    }
    stage.backend(asking("true")).await?;
    let unsigned = format!("{} (its record is not signed)", name_of(&volumes[2]));
    let forged = format!("{} (its record's signature is wrong", name_of(&volumes[1]));
    let parts = [
        "1 volumes that the records know are there, 1 of them made again; 4 left out",
        "pvc-made-up (its record's signature is wrong",
        "and what has its name has",
        &unsigned,
        &forged,
    ];
    said(&stage, "VolumesLeftOut", &parts).await?;
    is_back(&stage, &claims[0], &volumes[0]).await?;
    is_told(&stage, &claims[2], name_of(&volumes[2])).await?;
    is_told(&stage, &claims[3], name_of(&volumes[3])).await?;
    is_told(&stage, &thief, "pvc-").await?;
    // Nobody said that there was anything of this claim.
    begins_anew(&stage, &claims[1], &volumes[1]).await?;
    assert_eq!(stage.volumes().await?.len(), 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_running_cluster_a_lost_volume_is_recovered_for_its_own_claim_only() -> Test {
    let stage = Stage::set(often()).await?;
    stage.objects.create(&namespace("team")).await?;
    let (own, deleted, foreign) = (
        stage.claim("own"),
        stage.claim("deleted"),
        claim_in(&stage, "team", "data"),
    );
    let mut volumes = Vec::new();
    for claim in [&own, &deleted, &foreign] {
        let volume = with_data(&stage, claim).await?;
        lose(&stage, &volume).await?;
        volumes.push(volume);
    }
    stage.objects.delete(&deleted).await?;
    stage.objects.wait_gone(&deleted, PATIENCE).await?;
    stage.objects.delete(&namespace("team")).await?;
    stage.objects.wait_gone(&namespace("team"), PATIENCE).await?;
    stage.objects.create(&namespace("team")).await?;
    ask(&stage).await?;
    let gone = format!(
        "{} (claim default/deleted was deleted in this cluster)",
        name_of(&volumes[1])
    );
    let another = format!("{} (namespace team is not the one that it was", name_of(&volumes[2]));
    said(
        &stage,
        "VolumesLeftOut",
        &["1 of them made again; 2 left out", &gone, &another],
    )
    .await?;
    is_back(&stage, &own, &volumes[0]).await?;
    for (claim, former) in [(&deleted, &volumes[1]), (&foreign, &volumes[2])] {
        stage.objects.create(claim).await?;
        begins_anew(&stage, claim, former).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_is_recovered_only_for_an_existing_namespace_that_the_backend_allows() -> Test {
    let stage = Stage::set(often()).await?;
    let (absent, shop) = (claim_in(&stage, "absent", "data"), claim_in(&stage, "shop", "data"));
    let mut volumes = Vec::new();
    for claim in [&absent, &shop] {
        stage
            .objects
            .create(&namespace(text(claim, "/metadata/namespace")))
            .await?;
        volumes.push(with_data(&stage, claim).await?);
    }
    let stage = rebuilt(stage).await?;
    stage.class("nfs", json!({})).await?;
    stage.objects.create(&namespace("shop")).await?;
    stage.objects.create(&shop).await?;
    let mut backend = asking("true");
    merge(
        &mut backend,
        &json!({"spec": {"allowedNamespaces": {"matchNames": ["absent"]}}}),
    );
    let backend = stage.backend(backend).await?;
    let parts = [
        "2 left out",
        "there is no namespace absent",
        "namespace shop may not have volumes here",
    ];
    said(&stage, "VolumesLeftOut", &parts).await?;
    is_told(&stage, &shop, name_of(&volumes[1])).await?;
    assert_eq!(stage.volumes().await?.len(), 0);
    stage.objects.create(&namespace("absent")).await?;
    stage.objects.create(&absent).await?;
    is_back(&stage, &absent, &volumes[0]).await?;
    said(&stage, "VolumesLeftOut", &["1 left out"]).await?;
    stage
        .objects
        .patch(&backend, json!({"spec": {"allowedNamespaces": null}}))
        .await?;
    is_back(&stage, &shop, &volumes[1]).await?;
    done(&stage, READOPT).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_volumes_for_one_claim_neither_is_recovered_until_one_is_named() -> Test {
    let stage = Stage::set(often()).await?;
    let claim = stage.claim("data");
    let meant = with_data(&stage, &claim).await?;
    lose(&stage, &meant).await?;
    stage.objects.delete(&claim).await?;
    stage.objects.wait_gone(&claim, PATIENCE).await?;
    let other = with_data(&stage, &claim).await?;
    let stage = rebuilt(stage).await?;
    stage.class("nfs", json!({})).await?;
    stage.objects.create(&claim).await?;
    stage.backend(asking("true")).await?;
    let parts = [
        "2 left out",
        "another live record is for claim default/data too",
        name_of(&meant),
        name_of(&other),
    ];
    said(&stage, "VolumesLeftOut", &parts).await?;
    is_told(&stage, &claim, "pvc-").await?;
    assert_eq!(stage.volumes().await?.len(), 0);
    ask_for(&stage, json!(name_of(&meant))).await?;
    is_back(&stage, &claim, &meant).await?;
    done(&stage, READOPT).await?;
    assert_eq!(stage.volumes().await?.len(), 1);
    Ok(())
}

/// An empty directory is all that there is of a volume that nobody has written to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_rebuilt_cluster_an_empty_directory_waits_for_its_claim_and_an_unfinished_one_is_removed() -> Test {
    let stage = Stage::set(often()).await?;
    let (empty, begun) = (stage.claim("empty"), stage.claim("begun"));
    stage.objects.create(&empty).await?;
    let volume = stage.bound(&empty).await?;
    let mut lost = stage.proxy.lose_reply(Action::Drop, |request| {
        rig::proxy::has_bytes(request, &making_of("default-begun-pvc-", 36))
    });
    stage.objects.create(&begun).await?;
    lost.wait(PATIENCE).await?;
    let is_begun = |stage: &Stage| -> Result<bool, Failure> {
        Ok(stage.names()?.iter().any(|name| name.starts_with("default-begun-")))
    };
    wait::until("the directory to be made", PATIENCE, async || match is_begun(&stage) {
        Ok(true) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await?;
    stage.operator.kill9().await?;
    assert_eq!(stage.volumes().await?.len(), 1);
    let stage = rebuilt(stage).await?;
    stage.proxy.clear_hooks();
    stage.serve(often()).await?;
    wait::until("what was begun to be swept", PATIENCE, async || {
        let records = stage.records().map_err(|error| error.to_string())?;
        match is_begun(&stage) {
            Ok(false) if records.len() == 1 => Ok(()),
            other => Err(format!("{other:?}, {records:?}")),
        }
    })
    .await?;
    // Some sweeps later as well.
    archived(&stage, "another").await?;
    assert!(stage.directory(&volume)?.is_dir());
    ask(&stage).await?;
    let message = stage.does(&guide()?.readopted.replace("NAME", "main")).await?;
    assert!(message.contains("1 of them made again"), "{message}");
    stage.objects.create(&empty).await?;
    assert_eq!(name_of(&stage.bound(&empty).await?), name_of(&volume));
    Ok(())
}
