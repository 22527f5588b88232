//! Tenants who write NfsBackups to reach, delete or learn about what others have.

use std::fs;

use rig::TestEnv;
use rig::objects::{merge, reference};
use serde_json::{Value, json};

use super::{archive_of_backup, backup_of, class_with_backups, nfs_backup, ready, refused, restoring, tenant};
use crate::archives::objects::in_state;
use crate::archives::on_demand::backup;
use crate::support::shared::{self, TIMEOUT, Test, text};

#[tokio::test]
async fn a_tenant_cannot_reach_the_archives_of_others_whatever_their_backup_and_its_status_contain() -> Test {
    let (victim, env) = (TestEnv::new("victim").await?, TestEnv::new("attacker").await?);
    let settings = json!({"maxBytesPerNamespace": "10Mi"});
    let class = class_with_backups(&victim, settings.clone()).await?;
    shared::bound_with_data(&victim, "data", &class, "secret").await?;
    let theirs = victim.objects.create(&backup_of(&victim, "nightly", "data")).await?;
    let theirs = ready(&victim, &theirs).await?;
    let archive = archive_of_backup(&theirs);
    let secret = text(&archive, "/metadata/name");

    let own_class = class_with_backups(&env, settings).await?;
    shared::bound_with_data(&env, "data", &own_class, "own").await?;
    let tenant = tenant(&env).await?;
    // The same answer for an archive that exists and one that does not.
    let mut answers = Vec::new();
    for (name, archive) in [("guess", secret), ("wrong", "nfsbackup-none")] {
        let guess = nfs_backup(&env.name, name, &json!({"source": {"archiveName": archive}}));
        let guess = tenant.create(&guess).await?;
        answers.push(
            refused(&env, &guess, "ArchiveNotFound")
                .await?
                .replace(archive, "ARCHIVE"),
        );
        let status = env.objects.get(&guess).await?.unwrap_or_default()["status"].clone();
        for field in ["claimName", "backendName", "requestedSize", "archiveUID"] {
            assert!(status[field].is_null(), "{field}: {status}");
        }
    }
    assert_eq!(answers[0], answers[1]);
    // Under the name of the archive, the object would only show it, and is removed.
    let view = nfs_backup(&env.name, secret, &json!({"source": {"archiveName": secret}}));
    let view = tenant.create(&view).await?;
    env.objects.wait_gone(&view, TIMEOUT).await?;

    // The status of a backup decides nothing, even if a tenant can write it.
    let own = tenant.create(&backup_of(&env, "own", "data")).await?;
    assert!(
        tenant
            .patch_status(&own, json!({"status": {"state": "Held"}}))
            .await
            .is_err()
    );
    let own = ready(&env, &own).await?;
    let live = victim.objects.get(&archive).await?.ok_or("no archive")?;
    let forged =
        json!({"status": {"archiveName": secret, "archiveUID": live["metadata"]["uid"], "state": "Available"}});
    env.objects.patch_status(&own, forged.clone()).await?;
    let guess = nfs_backup(&env.name, "guess", &json!({}));
    env.objects.patch_status(&guess, forged).await?;
    let copy = tenant.create(&restoring(env.claim("copy", &own_class), "own")).await?;
    let copy = env.directory(&env.wait_bound(&copy).await?)?;
    assert_eq!(fs::read_to_string(copy.join("data"))?, "own");
    let stolen = restoring(env.claim("stolen", &own_class), "guess");
    let stolen = tenant.create(&stolen).await?;
    let message = shared::wait_refused(&env, &stolen, "ArchiveNotFound").await?;
    assert!(!message.contains(secret), "{message}");
    // Nor does deletion reach further.
    for object in [&guess, &own] {
        let finalizers = json!({"metadata": {"finalizers": ["nfs-operator.io/backup"]}});
        tenant.patch(object, finalizers).await?;
        tenant.delete(object).await?;
        env.objects.wait_gone(object, TIMEOUT).await?;
    }
    env.objects.wait_gone(&archive_of_backup(&own), TIMEOUT).await?;
    let kept = in_state(&victim, &archive, "Available").await?;
    assert_eq!(kept["metadata"]["uid"], live["metadata"]["uid"]);
    Ok(())
}

#[tokio::test]
async fn an_object_without_a_matching_reference_is_not_taken_for_the_archive_of_a_backup() -> Test {
    let env = TestEnv::new("backup-imposter").await?;
    // An administrator's archive with the name that the operator would use.
    let backend = shared::backend(&env, "backend", json!({"probeInterval": "1s"})).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    shared::bound_with_data(&env, "data", &class, "one").await?;
    shared::bound_with_data(&env, "other", &class, "two").await?;
    let requested = env.objects.create(&backup_of(&env, "nightly", "data")).await?;
    refused(&env, &requested, "SelfServiceNotAllowed").await?;
    let name = text(&archive_of_backup(&requested), "/metadata/name").to_owned();
    let imposter = env.objects.create(&backup(&name, &env.name, "other")).await?;
    let imposter = in_state(&env, &imposter, "Available").await?;
    let settings = json!({"spec": {"backups": {"selfService": {"maxBytesPerNamespace": "10Mi"}}}});
    env.objects.patch(&backend, settings).await?;
    let message = refused(&env, &requested, "ArchiveNotFound").await?;
    assert!(message.contains("was not created for this NfsBackup"), "{message}");
    env.objects.delete(&requested).await?;
    env.objects.wait_gone(&requested, TIMEOUT).await?;
    assert!(env.objects.get(&imposter).await?.is_some());
    Ok(())
}

#[tokio::test]
async fn hundreds_of_backups_of_one_namespace_do_not_block_another_namespace() -> Test {
    let (flood, env) = (TestEnv::new("flood").await?, TestEnv::new("flooded").await?);
    let settings = json!({"maxPerNamespace": 3, "maxBytesPerNamespace": "10Mi"});
    let class = class_with_backups(&flood, settings.clone()).await?;
    let own = class_with_backups(&env, settings).await?;
    shared::bound_with_data(&flood, "data", &class, "text").await?;
    shared::bound_with_data(&env, "data", &own, "text").await?;
    for number in 0..300 {
        let claim = if number % 2 == 0 { "data" } else { "none" };
        flood
            .objects
            .create(&backup_of(&flood, &format!("b-{number}"), claim))
            .await?;
    }
    let backup = env.objects.create(&backup_of(&env, "nightly", "data")).await?;
    ready(&env, &backup).await?;
    assert!(shared::archives(flood.data())?.len() <= 3);
    Ok(())
}

#[tokio::test]
async fn a_recreated_namespace_gets_neither_the_backups_nor_the_archives_of_the_former_one() -> Test {
    let env = TestEnv::new("backup-heir").await?;
    let class = class_with_backups(&env, json!({"maxBytesPerNamespace": "10Mi"})).await?;
    shared::bound_with_data(&env, "data", &class, "secret").await?;
    let backup = env.objects.create(&backup_of(&env, "nightly", "data")).await?;
    let backup = ready(&env, &backup).await?;
    let archive = archive_of_backup(&backup);
    let namespace = reference("v1", "Namespace", None, &env.name);
    env.objects.delete(&namespace).await?;
    env.objects.wait_gone(&namespace, TIMEOUT).await?;
    // Whoever deletes a namespace may not think of its backups.
    let kept = in_state(&env, &archive, "Available").await?;
    assert!(kept["metadata"]["deletionTimestamp"].is_null(), "{kept}");
    env.objects.create(&namespace).await?;
    let name = text(&archive, "/metadata/name");
    let mut forged = nfs_backup(&env.name, "guess", &json!({"source": {"archiveName": name}}));
    merge(&mut forged, &json!({"metadata": {"uid": backup["metadata"]["uid"]}}));
    let forged = rig::wait::until("the new namespace to accept a backup", TIMEOUT, async || {
        env.objects.create(&forged).await.map_err(|error| error.to_string())
    })
    .await?;
    refused(&env, &forged, "ArchiveNotFound").await?;
    for source in ["guess", "nightly"] {
        let heir = restoring(env.claim(source, &class), source);
        let heir = env.objects.create(&heir).await?;
        shared::wait_refused(&env, &heir, "ArchiveNotFound").await?;
    }
    let backups: Vec<Value> = env.objects.list(&forged).await?;
    assert_eq!(backups.len(), 1, "{backups:?}");
    Ok(())
}
