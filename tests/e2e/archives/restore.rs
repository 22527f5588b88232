//! Claims that restore an archive, and claims that are refused.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use rig::TestEnv;
use rig::objects::{merge, reference};
use serde_json::{Value, json};

use crate::archives::objects::{archive_of, archived, in_state};
use crate::support::shared::{self, TIMEOUT, Test, text};

/// Returns a claim that requests an archive.
pub fn asking(mut claim: Value, archive: &str) -> Value {
    let source = json!({"apiGroup": "nfs-operator.io", "kind": "NfsArchive", "name": archive});
    merge(&mut claim, &json!({"spec": {"dataSourceRef": source}}));
    claim
}

fn name_of(object: &Value) -> &str {
    text(object, "/metadata/name")
}

/// Recreates the namespace. Its claim `data` requests the archive and is refused.
async fn heir(env: &TestEnv, class: &Value, archive: &Value) -> rig::Result<Value> {
    let namespace = reference("v1", "Namespace", None, &env.name);
    env.objects.delete(&namespace).await?;
    env.objects.wait_gone(&namespace, TIMEOUT).await?;
    env.objects.create(&namespace).await?;
    let heir = asking(env.claim("data", class), name_of(archive));
    // The API server's cache may still have the former namespace, which accepts nothing.
    let heir = rig::wait::until("the new namespace to accept a claim", TIMEOUT, async || {
        env.objects.create(&heir).await.map_err(|error| error.to_string())
    })
    .await?;
    shared::wait_refused(env, &heir, "ArchiveNotFound").await?;
    Ok(heir)
}

#[tokio::test]
async fn archives_use_capacity_until_they_are_deleted_or_restored() -> Test {
    let env = TestEnv::new("used").await?;
    shared::backend(&env, "backend", json!({"capacity": {"limit": "1Mi"}})).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let (claim, volume) = shared::bound_with_data(&env, "data", &class, "precious").await?;
    shared::reclaim(&env, &claim, &volume, "VolumeArchived").await?;
    let archive = in_state(&env, &archive_of(&volume), "Available").await?;
    let waiting = env.objects.create(&env.claim("waiting", &class)).await?;
    shared::wait_refused(&env, &waiting, "CapacityExceeded").await?;
    // The archive becomes a volume of the same size.
    let again = env
        .objects
        .create(&asking(env.claim("again", &class), name_of(&archive)))
        .await?;
    let restored = env.wait_bound(&again).await?;
    env.objects.wait_gone(&archive, TIMEOUT).await?;
    shared::reclaim(&env, &again, &restored, "VolumeArchived").await?;
    let archive = in_state(&env, &archive_of(&restored), "Available").await?;
    shared::wait_refused(&env, &waiting, "CapacityExceeded").await?;
    env.objects
        .patch(&archive, json!({"spec": {"deletionPolicy": "Delete"}}))
        .await?;
    env.objects.delete(&archive).await?;
    env.wait_bound(&waiting).await?;
    Ok(())
}

#[tokio::test]
async fn a_claim_restores_an_archive_at_once_with_its_mode_and_owner_and_the_archive_is_gone() -> Test {
    let env = TestEnv::new("restore").await?;
    let backend = shared::backend(&env, "backend", json!({})).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let (claim, volume) = shared::bound_with_data(&env, "data", &class, "precious").await?;
    let directory = env.directory(&volume)?;
    std::os::unix::fs::chown(&directory, Some(1000), Some(1001))?;
    fs::set_permissions(&directory, PermissionsExt::from_mode(0o2770))?;
    let inode = fs::metadata(&directory)?.ino();
    shared::reclaim(&env, &claim, &volume, "VolumeArchived").await?;
    let archive = in_state(&env, &archive_of(&volume), "Available").await?;
    let again = env
        .objects
        .create(&asking(env.claim("again", &class), name_of(&archive)))
        .await?;
    let restored = env.wait_bound(&again).await?;
    let provisioned = "nfs-operator.io/Provisioned";
    let reported = env
        .objects
        .wait_condition(&again, provisioned, "True", Some("Provisioned"), TIMEOUT);
    let reported = reported.await?;
    let source = format!("with the data of NfsArchive {}", name_of(&archive));
    assert!(text(&reported, "/message").contains(&source), "{reported}");
    let found = fs::metadata(env.directory(&restored)?)?;
    let seen = (found.ino(), found.mode() & 0o7777, found.uid(), found.gid());
    assert_eq!(seen, (inode, 0o2770, 1000, 1001));
    assert_eq!(fs::read_to_string(env.directory(&restored)?.join("data"))?, "precious");
    env.objects.wait_gone(&archive, TIMEOUT).await?;
    env.objects.wait_event(&archive, "ArchiveRestored", TIMEOUT).await?;
    let counted = |backend: &Value| match &backend["status"]["archives"] {
        archives if archives == 0 => Ok(()),
        archives => Err(format!("{archives} archives")),
    };
    env.objects
        .wait(&backend, "to count no archives", TIMEOUT, counted)
        .await?;
    // A restored volume is archived again like any other.
    shared::reclaim(&env, &again, &restored, "VolumeArchived").await?;
    let twice = in_state(&env, &archive_of(&restored), "Available").await?;
    assert_eq!(text(&twice, "/spec/claimRef/name"), "again");
    Ok(())
}

#[tokio::test]
async fn a_claim_of_another_namespace_or_of_a_recreated_namespace_gets_nothing() -> Test {
    let env = TestEnv::new("tenants").await?;
    shared::backend(&env, "backend", json!({})).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let [_, _, archive] = archived(&env, "data", &class, "secret").await?;
    let other = reference("v1", "Namespace", None, &env.unique_name("other"));
    env.objects.create(&other).await?;
    let in_other = |mut claim: Value| {
        merge(
            &mut claim,
            &json!({"metadata": {"namespace": env.unique_name("other")}}),
        );
        claim
    };
    let thief = env
        .objects
        .create(&in_other(asking(env.claim("thief", &class), name_of(&archive))))
        .await?;
    let reported = shared::wait_refused(&env, &thief, "ArchiveNotFound").await?;
    let guessed = asking(env.claim("guessed", &class), "pvc-nobody");
    let guessed = env.objects.create(&in_other(guessed)).await?;
    let nothing = shared::wait_refused(&env, &guessed, "ArchiveNotFound").await?;
    assert_eq!(nothing.replace("pvc-nobody", name_of(&archive)), reported);
    assert!(
        !reported.contains("secret") && !reported.contains("archived-"),
        "{reported}"
    );
    // With the namespace of the data source, which needs a ReferenceGrant there, and with the older field.
    let mut crossing = asking(env.claim("crossing", &class), name_of(&archive));
    merge(
        &mut crossing,
        &json!({"spec": {"dataSourceRef": {"namespace": env.name}}}),
    );
    // Without the feature CrossNamespaceVolumeDataSource, the API server drops such a source.
    let crossing = env.objects.create(&in_other(crossing)).await?;
    let empty = env.wait_bound(&crossing).await?;
    assert_eq!(fs::read_dir(env.directory(&empty)?)?.count(), 0);
    env.objects.delete(&crossing).await?;
    env.objects.wait_gone(&empty, TIMEOUT).await?;
    let heir = heir(&env, &class, &archive).await?;
    // Its own annotation does not help either.
    env.objects
        .patch(
            &heir,
            json!({"metadata": {"annotations": {"nfs-operator.io/restore": "copy"}}}),
        )
        .await?;
    shared::wait_refused(&env, &heir, "ArchiveNotFound").await?;
    let data = env.data().join(text(&archive, "/status/directory"));
    assert_eq!(shared::names(env.data())?.len(), 1);
    // Namespaces that an administrator lists get copies, because former users may still have handles.
    let allowed = json!({"spec": {"allowedNamespaces": {"matchNames": [env.name, env.unique_name("other")]}}});
    env.objects.patch(&archive, allowed).await?;
    for asker in [&thief, &heir] {
        let volume = env.wait_bound(asker).await?;
        assert_eq!(fs::read_to_string(env.directory(&volume)?.join("data"))?, "secret");
    }
    assert_eq!(fs::read_to_string(data.join("data"))?, "secret");
    assert_eq!(fs::metadata(&data)?.mode() & 0o7777, 0o700);
    assert_eq!(shared::names(env.data())?.len(), 3);
    Ok(())
}

#[tokio::test]
async fn a_recreated_namespace_gets_a_copy_by_name_only_if_the_backend_allows_it() -> Test {
    let env = TestEnv::new("namesake").await?;
    let backend = shared::backend(&env, "backend", json!({})).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let [_, _, archive] = archived(&env, "data", &class, "theirs").await?;
    let other = reference("v1", "Namespace", None, &env.unique_name("other"));
    env.objects.create(&other).await?;
    let heir = heir(&env, &class, &archive).await?;
    env.objects
        .patch(&backend, json!({"spec": {"archivePolicy": {"restoreByName": true}}}))
        .await?;
    let volume = env.wait_bound(&heir).await?;
    assert_eq!(fs::read_to_string(env.directory(&volume)?.join("data"))?, "theirs");
    // It is a copy: handles of pods of the former namespace refer to the archive, which stays closed.
    in_state(&env, &archive, "Available").await?;
    let data = env.data().join(text(&archive, "/status/directory"));
    assert_eq!(fs::metadata(&data)?.mode() & 0o7777, 0o700);
    let mut stranger = asking(env.claim("data", &class), name_of(&archive));
    merge(
        &mut stranger,
        &json!({"metadata": {"namespace": env.unique_name("other")}}),
    );
    let stranger = env.objects.create(&stranger).await?;
    shared::wait_refused(&env, &stranger, "ArchiveNotFound").await?;
    Ok(())
}

#[tokio::test]
async fn of_two_claims_that_request_one_archive_one_gets_it_and_the_other_is_refused() -> Test {
    let env = TestEnv::new("race").await?;
    shared::backend(&env, "backend", json!({})).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let [_, _, archive] = archived(&env, "data", &class, "precious").await?;
    let (one, two) = (
        asking(env.claim("one", &class), name_of(&archive)),
        asking(env.claim("two", &class), name_of(&archive)),
    );
    let (one, two) = tokio::try_join!(env.objects.create(&one), env.objects.create(&two))?;
    let reported = |claim: &Value| {
        let message = rig::objects::condition(claim, "nfs-operator.io/Provisioned");
        match message.map(|message| {
            (
                message["status"] == "True",
                message["reason"].as_str().unwrap_or_default(),
            )
        }) {
            Some((true, _)) => Ok(true),
            // Also if it was busy first: its deletion wakes the claim.
            Some((false, "ArchiveNotFound")) => Ok(false),
            message => Err(format!("{message:?}")),
        }
    };
    env.objects.wait_gone(&archive, TIMEOUT).await?;
    let mut outcomes = Vec::new();
    for claim in [&one, &two] {
        outcomes.push(
            env.objects
                .wait(claim, "to be bound or refused", TIMEOUT, reported)
                .await?,
        );
    }
    outcomes.sort();
    assert_eq!(outcomes, [false, true], "one gets it, and one only");
    let names = shared::names(env.data())?;
    let [name] = names.as_slice() else { panic!("{names:?}") };
    assert_eq!(fs::read_to_string(env.data().join(name).join("data"))?, "precious");
    Ok(())
}

#[tokio::test]
async fn a_claim_that_cannot_have_an_archive_reports_the_reason_and_nothing_is_lost() -> Test {
    let env = TestEnv::new("refused").await?;
    shared::backend(&env, "backend", json!({})).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let [_, _, archive] = archived(&env, "data", &class, "kept").await?;
    let elsewhere = shared::class(&env, "elsewhere", "nowhere", json!({})).await?;
    let usual = |word: &str| asking(env.claim(word, &class), name_of(&archive));
    let with = |word: &str, change: Value| {
        let mut claim = usual(word);
        merge(&mut claim, &change);
        claim
    };
    let unknown = asking(env.claim("unknown", &class), "pvc-nobody");
    let small = with(
        "small",
        json!({"spec": {"resources": {"requests": {"storage": "512Ki"}}}}),
    );
    let mistaken = with(
        "mistaken",
        json!({"metadata": {"annotations": {"nfs-operator.io/restore": "clone"}}}),
    );
    let away = asking(env.claim("away", &elsewhere), name_of(&archive));
    let mut snapshot = env.claim("snapshot", &class);
    let group = "snapshot.storage.k8s.io";
    merge(
        &mut snapshot,
        &json!({"spec": {"dataSourceRef": {"apiGroup": group, "kind": "VolumeSnapshot", "name": "data"}}}),
    );
    for (claim, reason) in [
        (unknown, "ArchiveNotFound"),
        (small, "ClaimTooSmall"),
        (mistaken, "InvalidOverride"),
        (away, "BackendNotFound"),
        (snapshot, "DataSourceUnsupported"),
    ] {
        let claim = env.objects.create(&claim).await?;
        shared::wait_refused(&env, &claim, reason).await?;
        env.objects.delete(&claim).await?;
    }
    let data = env.data().join(text(&archive, "/status/directory"));
    assert_eq!(fs::read_to_string(data.join("data"))?, "kept");
    assert_eq!(shared::names(env.data())?.len(), 1);
    Ok(())
}
