//! What a tenant can do with the rights of their namespace, and what the backend must allow.

use std::fs;

use rig::TestEnv;
use serde_json::{Value, json};

use super::{archive_of_backup, backup_of, class_with_backups, nfs_backup, ready, refused, restoring, tenant};
use crate::support::shared::{self, TIMEOUT, Test, text};

#[tokio::test]
async fn a_tenant_backs_up_restores_and_deletes_with_the_role_edit() -> Test {
    let env = TestEnv::new("self-service").await?;
    let class = class_with_backups(&env, json!({"maxBytesPerNamespace": "10Mi"})).await?;
    let (claim, volume) = shared::bound_with_data(&env, "data", &class, "as it was").await?;
    let tenant = tenant(&env).await?;
    let requested = nfs_backup(
        &env.name,
        "nightly",
        &json!({"source": {"claimName": "data"}, "retention": "30d"}),
    );
    let requested = tenant.create(&requested).await?;
    let backup = ready(&env, &requested).await?;
    let archive = env
        .objects
        .get(&archive_of_backup(&backup))
        .await?
        .ok_or("no archive")?;
    let (spec, status) = (&archive["spec"], &backup["status"]);
    assert_eq!(spec["claimRef"], json!({"namespace": env.name, "name": "data"}));
    assert_eq!(
        spec["backupRef"],
        json!({"name": "nightly", "uid": backup["metadata"]["uid"]})
    );
    assert_eq!(spec["deletionPolicy"], "Delete");
    for (field, expected) in [
        ("state", json!("Available")),
        ("origin", json!("Claim")),
        ("claimName", json!("data")),
        ("backendName", json!(env.unique_name("backend"))),
        ("requestedSize", json!("1Mi")),
        ("archiveName", archive["metadata"]["name"].clone()),
        ("archiveUID", archive["metadata"]["uid"].clone()),
        ("completionTime", archive["status"]["archiveTime"].clone()),
        ("expirationTime", spec["expirationTime"].clone()),
    ] {
        assert_eq!(status[field], expected, "{field}: {status}");
        assert!(!expected.is_null(), "{field}");
    }

    let root = env.directory(&volume)?;
    fs::write(root.join("data"), "changed since")?;
    let again = tenant.create(&restoring(env.claim("again", &class), "nightly")).await?;
    let copy = env.directory(&env.wait_bound(&again).await?)?;
    assert_eq!(fs::read_to_string(copy.join("data"))?, "as it was");
    tenant.delete(&backup).await?;
    env.objects.wait_gone(&backup, TIMEOUT).await?;
    env.objects.wait_gone(&archive, TIMEOUT).await?;
    shared::wait_trash_empty(env.data()).await?;
    assert_eq!(shared::archives(env.data())?, Vec::<String>::new());
    assert_eq!(fs::read_to_string(root.join("data"))?, "changed since");
    shared::reclaim(&env, &claim, &volume, "VolumeArchived").await?;
    Ok(())
}

#[tokio::test]
async fn a_claim_that_restores_a_backup_waits_until_it_is_ready() -> Test {
    let env = TestEnv::new("restore-early").await?;
    let class = class_with_backups(&env, json!({"maxBytesPerNamespace": "10Mi"})).await?;
    let early = restoring(env.claim("early", &class), "nightly");
    let early = env.objects.create(&early).await?;
    let message = shared::wait_refused(&env, &early, "ArchiveNotFound").await?;
    assert!(message.contains("NfsBackup nightly"), "{message}");
    shared::bound_with_data(&env, "data", &class, "text").await?;
    env.objects.create(&backup_of(&env, "nightly", "data")).await?;
    let restored = env.directory(&env.wait_bound(&early).await?)?;
    assert_eq!(fs::read_to_string(restored.join("data"))?, "text");
    Ok(())
}

#[tokio::test]
async fn a_backup_is_refused_with_the_field_to_set_and_made_once_it_is_set() -> Test {
    let env = TestEnv::new("backup-off").await?;
    let backend = shared::backend(&env, "backend", json!({"probeInterval": "1s"})).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    shared::bound_with_data(&env, "data", &class, "text").await?;
    let backup = env.objects.create(&backup_of(&env, "nightly", "data")).await?;
    let message = refused(&env, &backup, "SelfServiceNotAllowed").await?;
    let field = |name: &str| format!("{name} of NfsBackend {}", env.unique_name("backend"));
    assert!(message.contains(&field("spec.backups.selfService")), "{message}");
    let set = async |settings: Value| {
        let spec = json!({"spec": {"backups": {"selfService": settings}}});
        env.objects.patch(&backend, spec).await
    };
    set(json!({"maxBytesPerNamespace": "10Mi", "allowedNamespaces": {"matchNames": ["other"]}})).await?;
    let of_namespaces = field("spec.backups.selfService.allowedNamespaces");
    let told = |found: &Value| {
        let message = rig::objects::condition(found, "Ready").cloned().unwrap_or_default();
        match text(&message, "/message").contains(&of_namespaces) {
            true => Ok(()),
            false => Err(message.to_string()),
        }
    };
    env.objects
        .wait(&backup, "to report the namespaces", TIMEOUT, told)
        .await?;
    assert!(env.objects.get(&archive_of_backup(&backup)).await?.is_none());
    set(json!({"allowedNamespaces": {"matchNames": [env.name]}})).await?;
    ready(&env, &backup).await?;
    Ok(())
}

#[tokio::test]
async fn backups_beyond_the_quota_wait_until_others_are_deleted() -> Test {
    let env = TestEnv::new("backup-quota").await?;
    let settings = json!({"maxPerNamespace": 2, "maxBytesPerNamespace": "10Mi"});
    let class = class_with_backups(&env, settings).await?;
    shared::bound_with_data(&env, "data", &class, "text").await?;
    let mut backups = Vec::new();
    for number in 0..6 {
        let backup = backup_of(&env, &format!("b-{number}"), "data");
        backups.push(env.objects.create(&backup).await?);
    }
    // Requested at the same time, and yet no more than two are made.
    let settled = async || {
        rig::wait::until("two backups to be ready and four refused", TIMEOUT, async || {
            let mut reasons = Vec::new();
            for backup in &backups {
                let found = env.objects.get(backup).await.map_err(|error| error.to_string())?;
                let found = found.unwrap_or_default();
                let ready = rig::objects::condition(&found, "Ready").cloned().unwrap_or_default();
                reasons.push(text(&ready, "/reason").to_owned());
            }
            let count = |reason: &str| reasons.iter().filter(|found| *found == reason).count();
            match (count("DataPresent"), count("BackupQuotaExceeded")) {
                (2, 4) => Ok(reasons),
                _ => Err(format!("{reasons:?}")),
            }
        })
        .await
    };
    let reasons = settled().await?;
    assert_eq!(shared::archives(env.data())?.len(), 2);
    let position = |wanted: &str| reasons.iter().position(|reason| reason == wanted).unwrap();
    let message = refused(&env, &backups[position("BackupQuotaExceeded")], "BackupQuotaExceeded").await?;
    assert!(
        message.contains("spec.backups.selfService.maxPerNamespace"),
        "{message}"
    );
    let first = backups.remove(position("DataPresent"));
    env.objects.delete(&first).await?;
    env.objects.wait_gone(&archive_of_backup(&first), TIMEOUT).await?;
    rig::wait::until("another backup to be made", TIMEOUT, async || {
        let mut ready = 0;
        for backup in &backups {
            let found = env.objects.get(backup).await.map_err(|error| error.to_string())?;
            ready += usize::from(text(&found.unwrap_or_default(), "/status/state") == "Available");
        }
        match ready {
            2 => Ok(()),
            ready => Err(format!("{ready} are ready")),
        }
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn a_backup_that_was_requested_within_the_quota_waits_if_its_claim_no_longer_fits() -> Test {
    let env = TestEnv::new("backup-grown").await?;
    let class = class_with_backups(&env, json!({"maxBytesPerNamespace": "512Ki"})).await?;
    shared::bound_with_data(&env, "data", &class, "text").await?;
    let backup = env.objects.create(&backup_of(&env, "b", "data")).await?;
    refused(&env, &backup, "BackupQuotaExceeded").await?;
    // As if an operator had requested the archive while the claim was smaller.
    let mut archive = archive_of_backup(&backup);
    archive["spec"] = json!({
        "claimRef": {"namespace": env.name, "name": "data"},
        "backupRef": {"name": "b", "uid": backup["metadata"]["uid"]},
        "deletionPolicy": "Delete",
        "destination": {"backendName": env.unique_name("backend")},
    });
    let archive = env.objects.create(&archive).await?;
    let waits = |found: &Value| {
        let available = rig::objects::condition(found, "Available").cloned().unwrap_or_default();
        match text(&available, "/reason") {
            "BackupQuotaExceeded" => Ok(()),
            _ => Err(available.to_string()),
        }
    };
    env.objects
        .wait(&archive, "to wait for the quota", TIMEOUT, waits)
        .await?;
    assert_eq!(shared::archives(env.data())?, Vec::<String>::new());
    let name = env.unique_name("backend");
    let backend = rig::objects::reference("nfs-operator.io/v1alpha1", "NfsBackend", None, &name);
    let settings = json!({"spec": {"backups": {"selfService": {"maxBytesPerNamespace": "1Mi"}}}});
    env.objects.patch(&backend, settings).await?;
    ready(&env, &backup).await?;
    Ok(())
}

#[tokio::test]
async fn a_backup_of_more_than_the_claim_requests_is_refused() -> Test {
    let env = TestEnv::new("backup-large").await?;
    let class = class_with_backups(&env, json!({"maxBytesPerNamespace": "10Mi"})).await?;
    let (_, volume) = shared::bound_with_data(&env, "data", &class, "text").await?;
    let large = env.directory(&volume)?.join("large");
    fs::write(&large, vec![7; 2 << 20])?;
    let backup = env.objects.create(&backup_of(&env, "nightly", "data")).await?;
    let message = refused(&env, &backup, "CopySourceUnsuitable").await?;
    assert!(message.contains("contains more than 1Mi"), "{message}");
    fs::remove_file(&large)?;
    ready(&env, &backup).await?;
    Ok(())
}

#[tokio::test]
async fn a_backup_is_deleted_with_its_archive_when_its_retention_ends() -> Test {
    let env = TestEnv::new("backup-expires").await?;
    let class = class_with_backups(&env, json!({"maxBytesPerNamespace": "10Mi"})).await?;
    let (claim, _) = shared::bound_with_data(&env, "data", &class, "text").await?;
    // A backup waits while another backend was not probed yet, perhaps until its retention ends.
    for seconds in [8, 30, 120] {
        let spec = json!({"source": {"claimName": "data"}, "retention": format!("{seconds}s")});
        let name = format!("kept-{seconds}");
        let backup = env.objects.create(&nfs_backup(&env.name, &name, &spec)).await?;
        env.objects.wait_gone(&backup, TIMEOUT).await?;
        let archive = archive_of_backup(&backup);
        env.objects.wait_gone(&archive, TIMEOUT).await?;
        let events = env.objects.events(&claim).await?;
        if events.iter().any(|event| event["reason"] == "Archived") {
            let purged = env.objects.wait_event(&archive, "ArchivePurged", TIMEOUT).await?;
            assert!(text(&purged, "/note").contains("into the trash"), "{purged}");
            return Ok(());
        }
    }
    Err("no backup was complete before its retention ended".into())
}

#[tokio::test]
async fn the_api_server_refuses_backups_that_name_no_claim_and_changes() -> Test {
    let env = TestEnv::new("backup-fields").await?;
    for (spec, words) in [
        (json!({"source": {}}), "source must have exactly one member"),
        (
            json!({"source": {"claimName": "a", "archiveName": "b"}}),
            "source must have exactly one member",
        ),
        (
            json!({"source": {"claimName": "../a"}}),
            "source.claimName must be a valid name of a claim",
        ),
        (
            json!({"source": {"archiveName": "a/b"}}),
            "source.archiveName must be a valid name of an archive",
        ),
        (
            json!({"source": {"archiveName": "a"}, "retention": "1d"}),
            "spec.retention requires source.claimName",
        ),
        (json!({"source": {"claimName": "a"}, "retention": "soon"}), "retention"),
    ] {
        let refused = env.objects.create(&nfs_backup(&env.name, "b", &spec)).await;
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains(words), "{spec}: {refused}");
    }
    let created = env.objects.create(&backup_of(&env, "b", "none")).await?;
    for change in [json!({"retention": "1d"}), json!({"source": {"claimName": "other"}})] {
        let refused = env.objects.patch(&created, json!({ "spec": change })).await;
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("create another NfsBackup"), "{refused}");
    }
    Ok(())
}
