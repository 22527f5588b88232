//! Orders of volumes and archives that exist.

use std::time::Duration;

use export_store::quota::Order;
use rig::TestEnv;
use rig::objects::reference;
use serde_json::{Value, json};

use super::agent::{Answer, ScriptedAgent};
use super::wait_no_condition;
use crate::backups::{archive_of_backup, backup_of, ready, restoring};
use crate::support::shared::{self, Failure, TIMEOUT, Test, backend_reference, text};

const SIZE_ENFORCED: &str = "nfs-operator.io/SizeEnforced";

fn archive_of(volume: &str) -> Value {
    reference("nfs-operator.io/v1alpha1", "NfsArchive", None, volume)
}

#[tokio::test]
async fn volumes_that_exist_get_a_limit_and_lose_it_with_the_settings() -> Test {
    let env = TestEnv::new("quotaold").await?;
    shared::backend(&env, "main", json!({})).await?;
    let class = shared::class(&env, "class", "main", json!({})).await?;
    let (claim, volume) = shared::bound(&env, "data", &class).await?;
    let name = text(&volume, "/metadata/name").to_owned();
    let main = backend_reference(&env, "main");
    env.objects
        .patch(&main, json!({"spec": {"quota": {"enforce": "Preferred"}}}))
        .await?;
    let agent = ScriptedAgent::start(&env.objects, env.data(), Answer::InForce).await?;
    agent.wait_order(&name, |order| order.bytes == Some(1 << 20)).await?;
    let enforced = env.objects.wait_condition(&claim, SIZE_ENFORCED, "True", None, TIMEOUT);
    enforced.await?;
    env.objects
        .wait_condition(&main, "QuotasEnforced", "True", Some("QuotaAgentReady"), TIMEOUT)
        .await?;
    env.objects.patch(&main, json!({"spec": {"quota": null}})).await?;
    agent.wait_no_order(&name).await?;
    for (object, kind) in [(&claim, SIZE_ENFORCED), (&main, "QuotasEnforced")] {
        wait_no_condition(&env, object, kind).await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_order_follows_a_volume_to_its_archive_and_back_and_is_removed_with_the_data() -> Test {
    let env = TestEnv::new("quotalife").await?;
    env.objects
        .create(&env.backend("main", json!({"quota": {"enforce": "Required"}})))
        .await?;
    let class = shared::class(&env, "class", "main", json!({})).await?;
    let agent = ScriptedAgent::start(&env.objects, env.data(), Answer::InForce).await?;
    let (claim, volume) = shared::bound_with_data(&env, "data", &class, "kept").await?;
    let name = text(&volume, "/metadata/name").to_owned();
    let live = agent.order(&name).unwrap();
    shared::reclaim(&env, &claim, &volume, "VolumeArchived").await?;
    let archived = agent
        .wait_order(&name, |order| order.directory.to_string().starts_with("archived-"))
        .await?;
    assert_eq!((archived.file_id, archived.bytes), (live.file_id, live.bytes));
    assert!(archived.generation > live.generation);

    let mut restored = env.claim("restored", &class);
    let source = json!({"apiGroup": "nfs-operator.io", "kind": "NfsArchive", "name": name});
    rig::objects::merge(
        &mut restored,
        &json!({"spec": {"dataSourceRef": source, "resources": {"requests": {"storage": "3Mi"}}}}),
    );
    agent.answer(Answer::Nothing);
    let restored = env.objects.create(&restored).await?;
    let new = format!("pvc-{}", text(&restored, "/metadata/uid"));
    agent.wait_order(&new, |order| order.bytes == Some(3 << 20)).await?;
    // The data is at its place, and nobody can mount it before the limit of the claim is in force.
    shared::wait_refused(&env, &restored, "LimitPending").await?;
    let pv = reference("v1", "PersistentVolume", None, &new);
    assert_eq!(env.objects.get(&pv).await?, None);
    agent.answer(Answer::InForce);
    let again = env.wait_bound(&restored).await?;
    let new_name = text(&again, "/metadata/name").to_owned();
    let order = agent.order(&new_name).unwrap();
    assert_eq!((order.file_id, order.bytes), (live.file_id, Some(3 << 20)));
    agent.wait_no_order(&name).await?;
    env.objects.wait_gone(&archive_of(&name), TIMEOUT).await?;

    let main = backend_reference(&env, "main");
    env.objects
        .patch(&main, json!({"spec": {"archivePolicy": {"onDelete": "Delete"}}}))
        .await?;
    shared::reclaim(&env, &restored, &again, "VolumeDeleted").await?;
    agent.wait_no_order(&new_name).await?;
    Ok(())
}

#[tokio::test]
async fn an_archive_has_no_limit_where_limits_are_lifted() -> Test {
    let env = TestEnv::new("quotalift").await?;
    let quota = json!({"enforce": "Required", "archives": "Lift", "inodes": 100});
    env.objects
        .create(&env.backend("main", json!({"quota": quota})))
        .await?;
    let class = shared::class(&env, "class", "main", json!({})).await?;
    let agent = ScriptedAgent::start(&env.objects, env.data(), Answer::InForce).await?;
    let (claim, volume) = shared::bound_with_data(&env, "data", &class, "kept").await?;
    let name = text(&volume, "/metadata/name").to_owned();
    shared::reclaim(&env, &claim, &volume, "VolumeArchived").await?;
    let archived = agent
        .wait_order(&name, |order| order.directory.to_string().starts_with("archived-"))
        .await?;
    assert_eq!((archived.bytes, archived.inodes), (None, None));
    Ok(())
}

#[tokio::test]
async fn a_copy_has_its_limit_before_data_flows_into_it() -> Test {
    let env = TestEnv::new("quotacopy").await?;
    env.objects
        .create(&env.backend("main", json!({"quota": {"enforce": "Required"}})))
        .await?;
    let class = shared::class(&env, "class", "main", json!({})).await?;
    let agent = ScriptedAgent::start(&env.objects, env.data(), Answer::InForce).await?;
    shared::bound_with_data(&env, "data", &class, "copied").await?;
    agent.answer(Answer::Nothing);
    let mut copy = env.claim("copy", &class);
    let source = json!({"kind": "PersistentVolumeClaim", "name": "data"});
    rig::objects::merge(&mut copy, &json!({"spec": {"dataSource": source}}));
    let copy = env.objects.create(&copy).await?;
    let name = format!("pvc-{}", text(&copy, "/metadata/uid"));
    let staged = wait_staged(&env, &agent, &name).await?;
    agent.answer(Answer::InForce);
    let volume = env.wait_bound(&copy).await?;
    let directory = env.directory(&volume)?;
    assert_eq!(std::fs::read_to_string(directory.join("data"))?, "copied");
    let order = agent.order(&name).unwrap();
    assert!(directory.ends_with(order.directory.to_string()), "{order:?}");
    assert_eq!((order.file_id, order.bytes), (staged.file_id, staged.bytes));
    Ok(())
}

#[tokio::test]
async fn a_copy_of_more_than_the_claim_requests_is_refused_before_it_begins() -> Test {
    let env = TestEnv::new("quotalarge").await?;
    env.objects
        .create(&env.backend("main", json!({"quota": {"enforce": "Required"}})))
        .await?;
    let class = shared::class(&env, "class", "main", json!({})).await?;
    let agent = ScriptedAgent::start(&env.objects, env.data(), Answer::InForce).await?;
    let (claim, volume) = shared::bound_with_data(&env, "data", &class, "copied").await?;
    let source = text(&volume, "/metadata/name").to_owned();
    agent.uses(&source, 3 << 20, 2).await?;
    let before = shared::names(env.data())?;
    let copy = |name: &str, size: &str, source: Value| {
        let mut copy = env.claim(name, &class);
        let request = json!({"requests": {"storage": size}});
        let annotations = json!({"nfs-operator.io/restore": "copy"});
        let change =
            json!({"metadata": {"annotations": annotations}, "spec": {"dataSourceRef": source, "resources": request}});
        rig::objects::merge(&mut copy, &change);
        copy
    };
    let refused = async |copy: Value| -> Test {
        let copy = env.objects.create(&copy).await?;
        let message = shared::wait_refused(&env, &copy, "CopySourceUnsuitable").await?;
        assert!(
            message.contains("uses 3Mi on its server, and this claim requests 2Mi"),
            "{message}"
        );
        let name = format!("pvc-{}", text(&copy, "/metadata/uid"));
        assert_eq!(agent.order(&name), None);
        let staging = agent.quota.with_file_name("staging").join(&name);
        assert!(!staging.exists(), "a directory was made");
        Ok(())
    };
    let of_claim = json!({"kind": "PersistentVolumeClaim", "name": "data"});
    refused(copy("small", "2Mi", of_claim.clone())).await?;
    assert_eq!(shared::names(env.data())?, before);
    let fits = env.objects.create(&copy("fits", "3Mi", of_claim)).await?;
    env.wait_bound(&fits).await?;

    shared::reclaim(&env, &claim, &volume, "VolumeArchived").await?;
    let of_archive = json!({"apiGroup": "nfs-operator.io", "kind": "NfsArchive", "name": source});
    refused(copy("smaller", "2Mi", of_archive.clone())).await?;
    let restored = env.objects.create(&copy("restored", "3Mi", of_archive)).await?;
    env.wait_bound(&restored).await?;
    Ok(())
}

#[tokio::test]
async fn a_copy_of_more_files_than_its_volume_may_have_is_refused_before_it_begins() -> Test {
    let env = TestEnv::new("quotafiles").await?;
    let quota = json!({"quota": {"enforce": "Required", "inodes": 100}});
    let main = env.objects.create(&env.backend("main", quota)).await?;
    let class = shared::class(&env, "class", "main", json!({})).await?;
    let agent = ScriptedAgent::start(&env.objects, env.data(), Answer::InForce).await?;
    let (_, volume) = shared::bound_with_data(&env, "data", &class, "copied").await?;
    let source = text(&volume, "/metadata/name").to_owned();
    agent.uses(&source, 4096, 101).await?;
    let copy_of_data = |name: &str| {
        let mut copy = env.claim(name, &class);
        let source = json!({"kind": "PersistentVolumeClaim", "name": "data"});
        rig::objects::merge(&mut copy, &json!({"spec": {"dataSourceRef": source}}));
        copy
    };
    let copy = env.objects.create(&copy_of_data("copy")).await?;
    let message = shared::wait_refused(&env, &copy, "CopySourceUnsuitable").await?;
    assert!(
        message.contains("it has 101 files, directories and links") && message.contains("may have 100"),
        "{message}"
    );
    assert_eq!(agent.order(&format!("pvc-{}", text(&copy, "/metadata/uid"))), None);
    env.objects
        .patch(&main, json!({"spec": {"quota": {"inodes": 101}}}))
        .await?;
    let fits = env.objects.create(&copy_of_data("fits")).await?;
    env.wait_bound(&fits).await?;
    Ok(())
}

#[tokio::test]
async fn a_backup_of_more_than_an_archive_may_hold_is_refused_before_it_begins() -> Test {
    let env = TestEnv::new("quotabig").await?;
    let spec = json!({"quota": {"enforce": "Preferred"}, "backups": {"selfService": {"maxBytesPerNamespace": "10Mi"}}});
    let main = env.objects.create(&env.backend("main", spec)).await?;
    let class = shared::class(&env, "class", "main", json!({})).await?;
    let agent = ScriptedAgent::start(&env.objects, env.data(), Answer::InForce).await?;
    let ready = env
        .objects
        .wait_condition(&main, "QuotasEnforced", "True", None, TIMEOUT);
    ready.await?;
    let (_, volume) = shared::bound_with_data(&env, "data", &class, "saved").await?;
    agent.uses(text(&volume, "/metadata/name"), 3 << 20, 2).await?;
    let backup = env.objects.create(&backup_of(&env, "backup", "data")).await?;
    let archive = archive_of_backup(&backup);
    let refused = env
        .objects
        .wait_condition(&archive, "Available", "False", Some("CopySourceUnsuitable"), TIMEOUT);
    let message = text(&refused.await?, "/message").to_owned();
    assert!(
        message.contains("uses 3Mi on its server") && message.contains("may have 1Mi: expand the claim"),
        "{message}"
    );
    let name = text(&archive, "/metadata/name").to_owned();
    assert_eq!(agent.order(&name), None);
    assert!(!agent.quota.with_file_name("staging").join(&name).exists());
    // Archives without a limit hold it.
    let lifted = json!({"spec": {"quota": {"archives": "Lift"}}});
    env.objects.patch(&main, lifted).await?;
    let annotations = json!({"metadata": {"annotations": {"example.com/look": "again"}}});
    env.objects.patch(&archive, annotations).await?;
    self::ready(&env, &backup).await?;
    Ok(())
}

/// Waits until the copy of an archive or a claim has its order, and checks that nothing is copied before it is in force.
async fn wait_staged(env: &TestEnv, agent: &ScriptedAgent, name: &str) -> Result<Order, Failure> {
    let staged = agent
        .wait_order(name, |order| order.directory.to_string().ends_with("/tree"))
        .await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let tree = env.data().join(staged.directory.to_string());
    assert_eq!(std::fs::read_dir(&tree)?.count(), 0, "nothing is copied yet");
    Ok(staged)
}

#[tokio::test]
async fn a_backup_and_a_restore_of_it_have_their_limits_before_data_flows_into_them() -> Test {
    let env = TestEnv::new("quotabackup").await?;
    let self_service = json!({"maxBytesPerNamespace": "10Mi"});
    let spec = json!({"quota": {"enforce": "Required", "inodes": 100}, "backups": {"selfService": self_service}});
    env.objects.create(&env.backend("main", spec)).await?;
    let class = shared::class(&env, "class", "main", json!({})).await?;
    let agent = ScriptedAgent::start(&env.objects, env.data(), Answer::InForce).await?;
    let (_, volume) = shared::bound_with_data(&env, "data", &class, "saved").await?;
    agent.answer(Answer::Nothing);
    let backup = env.objects.create(&backup_of(&env, "backup", "data")).await?;
    let archive = archive_of_backup(&backup);
    let name = text(&archive, "/metadata/name").to_owned();
    let staged = wait_staged(&env, &agent, &name).await?;
    assert_eq!((staged.bytes, staged.inodes), (Some(1 << 20), Some(100)));
    agent.answer(Answer::InForce);
    ready(&env, &backup).await?;
    let kept = agent
        .wait_order(&name, |order| order.directory.to_string().starts_with("archived-"))
        .await?;
    assert_eq!((kept.file_id, kept.bytes), (staged.file_id, staged.bytes));

    // The limit of the restored volume is that of its claim.
    std::fs::write(env.directory(&volume)?.join("data"), "changed since")?;
    agent.answer(Answer::Nothing);
    let mut restored = restoring(env.claim("restored", &class), "backup");
    rig::objects::merge(
        &mut restored,
        &json!({"spec": {"resources": {"requests": {"storage": "3Mi"}}}}),
    );
    let restored = env.objects.create(&restored).await?;
    let new = format!("pvc-{}", text(&restored, "/metadata/uid"));
    let staged = wait_staged(&env, &agent, &new).await?;
    assert_eq!(staged.bytes, Some(3 << 20));
    agent.answer(Answer::InForce);
    let volume = env.wait_bound(&restored).await?;
    let directory = env.directory(&volume)?;
    assert_eq!(std::fs::read_to_string(directory.join("data"))?, "saved");
    let order = agent.order(&new).unwrap();
    assert!(directory.ends_with(order.directory.to_string()), "{order:?}");
    assert_eq!((order.file_id, order.bytes), (staged.file_id, staged.bytes));
    // The backup keeps its limit.
    let file_ids = |order: Option<Order>| order.map(|order| (order.file_id, order.bytes));
    assert_eq!(file_ids(agent.order(&name)), Some((kept.file_id, kept.bytes)));
    Ok(())
}

#[tokio::test]
async fn the_usage_of_volumes_with_a_limit_is_what_the_agent_reports() -> Test {
    let env = TestEnv::new("quotausage").await?;
    let quota = json!({"quota": {"enforce": "Preferred"}});
    let main = env.objects.create(&env.backend("main", quota)).await?;
    let agent = ScriptedAgent::start(&env.objects, env.data(), Answer::InForce).await?;
    let ready = env
        .objects
        .wait_condition(&main, "QuotasEnforced", "True", None, TIMEOUT);
    ready.await?;
    let class = shared::class(&env, "class", "main", json!({})).await?;
    let (_, reported) = shared::bound(&env, "reported", &class).await?;
    let (_, counted) = shared::bound(&env, "counted", &class).await?;
    agent.uses(text(&reported, "/metadata/name"), 123_456_789, 43).await?;
    let usage = json!({"spec": {"usage": {"interval": "1m"}}});
    env.objects.patch(&main, usage).await?;
    let annotation = |volume: &Value, name: &str| {
        let value = &volume["metadata"]["annotations"][format!("nfs-operator.io/{name}")];
        value.as_str().map(str::to_owned)
    };
    let found =
        |volume: &Value| match ["used-bytes", "used-files", "apparent-bytes"].map(|name| annotation(volume, name)) {
            [Some(bytes), Some(files), apparent] => Ok((bytes, files, apparent)),
            other => Err(format!("{other:?}")),
        };
    let of_reported = env.objects.wait(&reported, "to have its usage", TIMEOUT, found).await?;
    assert_eq!(of_reported, ("123456789".to_owned(), "42".to_owned(), None));
    let of_counted = env.objects.wait(&counted, "to have its usage", TIMEOUT, found).await?;
    assert_eq!(of_counted.2.as_deref(), Some("0"), "no agent reports it");
    Ok(())
}
