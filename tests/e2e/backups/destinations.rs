//! Backups that are stored on another backend than their claim.

use std::fs;

use rig::TestEnv;
use rig::objects::{merge, reference};
use serde_json::json;

use super::server::{Server, backed_up_to};
use super::{archive_of_backup, backup_of, ready, refused, restoring};
use crate::support::shared::{self, TIMEOUT, Test};

#[tokio::test]
async fn a_backup_on_another_server_is_restored_after_the_first_server_was_destroyed() -> Test {
    let env = TestEnv::new("destroyed").await?;
    shared::backend(&env, "safe", json!({"probeInterval": "1s"})).await?;
    let safe_class = shared::class(&env, "safe", "safe", json!({})).await?;
    let primary = Server::start(&env, "primary", backed_up_to(&env, "safe")).await?;
    let class = shared::class(&env, "primary", "primary", json!({})).await?;
    let (_, volume) = shared::bound(&env, "data", &class).await?;
    let directory = primary.directory(&volume)?;
    fs::create_dir(directory.join("folder"))?;
    for name in ["data", "folder/more"] {
        fs::write(directory.join(name), format!("text of {name}"))?;
    }
    let backup = env.objects.create(&backup_of(&env, "nightly", "data")).await?;
    let backup = ready(&env, &backup).await?;
    let archive = env
        .objects
        .get(&archive_of_backup(&backup))
        .await?
        .ok_or("no archive")?;
    let safe = json!(env.unique_name("safe"));
    assert_eq!(archive["spec"]["destination"], json!({"backendName": safe}));
    assert_eq!(archive["status"]["backendName"], safe);
    assert_eq!(backup["status"]["backendName"], safe);
    assert_eq!(shared::archives(env.data())?.len(), 1);
    let left = fs::read_dir(primary.data()?)?.flatten();
    let left: Vec<_> = left.map(|entry| entry.file_name()).collect();
    assert!(
        !left.iter().any(|name| name.to_string_lossy().starts_with("archived-")),
        "{left:?}"
    );

    primary.nfs.kill9().await?;
    fs::remove_dir_all(primary.data()?)?;
    let restored = restoring(env.claim("again", &safe_class), "nightly");
    let restored = env.objects.create(&restored).await?;
    let copy = env.directory(&env.wait_bound(&restored).await?)?;
    for name in ["data", "folder/more"] {
        assert_eq!(fs::read_to_string(copy.join(name))?, format!("text of {name}"));
    }
    env.objects.delete(&backup).await?;
    env.objects.wait_gone(&archive, TIMEOUT).await?;
    shared::wait_trash_empty(env.data()).await?;
    assert_eq!(shared::archives(env.data())?, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn a_backup_waits_for_its_destination_and_stays_where_it_began() -> Test {
    let env = TestEnv::new("destination").await?;
    let primary = Server::start(&env, "primary", backed_up_to(&env, "safe")).await?;
    let class = shared::class(&env, "primary", "primary", json!({})).await?;
    let (_, volume) = shared::bound(&env, "data", &class).await?;
    fs::write(primary.directory(&volume)?.join("data"), "text")?;
    let backup = env.objects.create(&backup_of(&env, "nightly", "data")).await?;
    let message = refused(&env, &backup, "BackendNotFound").await?;
    assert!(message.contains(&env.unique_name("safe")), "{message}");
    shared::backend(&env, "safe", json!({"probeInterval": "1s"})).await?;
    ready(&env, &backup).await?;
    // A later change moves nothing.
    let settings = json!({"spec": {"backups": {"destination": {"backendName": env.unique_name("primary")}}}});
    let backend = reference(
        "nfs-operator.io/v1alpha1",
        "NfsBackend",
        None,
        &env.unique_name("primary"),
    );
    env.objects.patch(&backend, settings).await?;
    let first = env
        .objects
        .get(&archive_of_backup(&ready(&env, &backup).await?))
        .await?;
    assert_eq!(
        first.ok_or("no archive")?["status"]["backendName"],
        env.unique_name("safe")
    );
    let second = env.objects.create(&backup_of(&env, "later", "data")).await?;
    let second = ready(&env, &second).await?;
    assert_eq!(second["status"]["backendName"], env.unique_name("primary"));
    Ok(())
}

#[tokio::test]
async fn an_administrator_names_the_destination_of_one_backup() -> Test {
    let env = TestEnv::new("named-destination").await?;
    shared::backend(&env, "safe", json!({"probeInterval": "1s"})).await?;
    let primary = Server::start(&env, "primary", json!({"backups": {}})).await?;
    let class = shared::class(&env, "primary", "primary", json!({})).await?;
    let (_, volume) = shared::bound(&env, "data", &class).await?;
    fs::write(primary.directory(&volume)?.join("data"), "text")?;
    let mut archive = reference(
        "nfs-operator.io/v1alpha1",
        "NfsArchive",
        None,
        &env.unique_name("backup"),
    );
    let destination = json!({"backendName": env.unique_name("safe")});
    let claim = json!({"namespace": env.name, "name": "data"});
    merge(
        &mut archive,
        &json!({"spec": {"claimRef": claim, "destination": destination}}),
    );
    let archive = env.objects.create(&archive).await?;
    env.objects
        .wait_condition(&archive, "Available", "True", None, TIMEOUT)
        .await?;
    let stored = shared::archives(env.data())?;
    let [stored] = stored.as_slice() else {
        return Err(format!("{stored:?}").into());
    };
    assert_eq!(fs::read_to_string(env.data().join(stored).join("data"))?, "text");
    let elsewhere = json!({"spec": {"destination": {"backendName": env.unique_name("primary")}}});
    let refused = env
        .objects
        .patch(&archive, elsewhere)
        .await
        .err()
        .ok_or("was changed")?;
    assert!(
        refused.to_string().contains("destination can't be changed"),
        "{refused}"
    );
    Ok(())
}
