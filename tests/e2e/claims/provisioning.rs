//! Provisioning as a user sees it, from a claim to its volume.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;

use nfs_client::{self, Name};
use rig::TestEnv;
use rig::objects::{merge, reference};
use serde_json::{Value, json};

use crate::faults::outages::claims_of;
use crate::support::shared::{self, TIMEOUT, Test};

const CONDITION: &str = "nfs-operator.io/Provisioned";

#[tokio::test]
async fn a_claim_becomes_bound_and_its_directory_has_the_requested_mode_uid_and_gid() -> Test {
    let env = TestEnv::new("bound").await?;
    let settings = json!({"directory": {"mode": "2770", "uid": 1234, "gid": 4321}});
    shared::backend(&env, "backend", settings).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let (claim, volume) = shared::bound(&env, "data", &class).await?;
    let directory = fs::metadata(env.directory(&volume)?)?;
    assert_eq!(
        (directory.mode() & 0o7777, directory.uid(), directory.gid()),
        (0o2770, 1234, 4321)
    );
    let reported = env
        .objects
        .wait_condition(&claim, CONDITION, "True", Some("Provisioned"), TIMEOUT)
        .await?;
    assert!(
        reported["message"].as_str().unwrap().contains(&env.export()),
        "{reported}"
    );
    // The condition is all that is reported if there was no problem.
    let events = env.objects.events(&claim).await?;
    let own: Vec<&Value> = events
        .iter()
        .filter(|event| event["reason"] == "ProvisioningSucceeded")
        .collect();
    assert!(own.is_empty(), "{own:?}");
    Ok(())
}

#[tokio::test]
async fn a_pods_view_of_a_volume_is_its_directory_and_nothing_above_it() -> Test {
    let env = TestEnv::new("view").await?;
    let class = env.create_ready_class().await?;
    let (_, volume) = shared::bound_with_data(&env, "data", &class, "text").await?;
    let source = &volume["spec"]["nfs"];
    let seen = nfs_client::Client::connect(nfs_client::Target {
        port: env.nfs_port(),
        source_port: nfs_client::SourcePort::Any,
        credential: nfs_client::Credential {
            uid: 1000,
            gid: 1000,
            supplementary: None,
        },
        owner: nfs_client::ClientOwner {
            owner: env.name.clone().into_bytes(),
            verifier: [1; 8],
        },
        deadline: TIMEOUT,
        ..nfs_client::Target::new(
            shared::text(&volume, "/spec/nfs/server"),
            shared::text(&volume, "/spec/nfs/path"),
        )
    })
    .await?;
    let root = seen.root().await?;
    assert_eq!(
        root.attributes.fileid,
        fs::metadata(env.directory(&volume)?)?.ino(),
        "{source}"
    );
    let page = seen.list(&root.handle, None).await?;
    assert_eq!(
        page.entries
            .iter()
            .map(|entry| entry.name.to_string())
            .collect::<Vec<_>>(),
        ["data"]
    );
    let file = seen.read_file(&root.handle, &Name::new("data")?, 100).await?.unwrap();
    assert_eq!(file.content, b"text");
    assert!(Name::new("..").is_err(), "no name leads to the parent");
    Ok(())
}

#[tokio::test]
async fn three_hundred_claims_spread_over_three_equal_backends_and_get_one_directory_each() -> Test {
    let mut exports = Vec::new();
    for name in ["many-a", "many-b", "many-c"] {
        exports.push(TestEnv::new(name).await?);
    }
    let env = &exports[0];
    for export in &exports {
        // A backend whose probe is late gets no claims until the next one: with the usual interval of the tests, a busy
        // machine would decide which backends are used.
        let mut backend = export.backend("backend", json!({"probeInterval": "10s"}));
        merge(&mut backend, &json!({"metadata": {"labels": {"for": env.name}}}));
        let backend = export.objects.create(&backend).await?;
        export
            .objects
            .wait_condition(&backend, "Ready", "True", None, TIMEOUT)
            .await?;
    }
    let chosen = json!({"backendSelector": format!("for={}", env.name)});
    let class = env.objects.create(&env.class("class", chosen)).await?;
    let claims = claims_of(env, &class, "data", 300).await?;
    let volumes = volumes_of(env, &claims).await?;
    let paths: BTreeSet<String> = volumes
        .iter()
        .map(|volume| shared::text(volume, "/spec/nfs/path").to_owned())
        .collect();
    assert_eq!(paths.len(), 300, "no two volumes share a directory");
    let mut created = BTreeSet::new();
    for export in &exports {
        let names = shared::names(export.data())?;
        assert!(
            (75..=125).contains(&names.len()),
            "{} has {} of 300, more than a quarter beside its share",
            export.name,
            names.len()
        );
        created.extend(names.iter().map(|name| format!("{}/{name}", export.export())));
    }
    assert_eq!(created, paths, "a directory for each volume, and no other");
    Ok(())
}

/// Waits until all claims are Bound. Returns their volumes. All are read together to save requests.
async fn volumes_of(env: &TestEnv, claims: &[Value]) -> rig::Result<Vec<Value>> {
    let like = reference("v1", "PersistentVolumeClaim", Some(&env.name), "any");
    rig::wait::until("all claims to be Bound", TIMEOUT, async || {
        let all = env.objects.list(&like).await.map_err(|error| error.to_string())?;
        let bound = |claim: &&Value| shared::text(claim, "/status/phase") == "Bound";
        match all.iter().filter(bound).count() {
            count if count == claims.len() => Ok(()),
            count => Err(format!("{count} of {}", claims.len())),
        }
    })
    .await?;
    let volumes = env
        .objects
        .list(&reference("v1", "PersistentVolume", None, "any"))
        .await?;
    let here = |volume: &Value| shared::text(volume, "/spec/claimRef/namespace") == env.name;
    Ok(volumes.into_iter().filter(here).collect())
}

#[tokio::test]
async fn a_static_volume_for_a_claim_of_our_class_is_bound_and_nothing_is_provisioned() -> Test {
    let env = TestEnv::new("by-hand").await?;
    let class = env.create_ready_class().await?;
    fs::create_dir(env.data().join("mine"))?;
    let mut volume = reference("v1", "PersistentVolume", None, &env.unique_name("mine"));
    let spec = json!({
        "storageClassName": class["metadata"]["name"],
        "accessModes": ["ReadWriteMany"],
        "capacity": {"storage": "1Mi"},
        "persistentVolumeReclaimPolicy": "Retain",
        "nfs": {"server": "127.0.0.1", "path": format!("{}/mine", env.export())},
    });
    merge(&mut volume, &json!({"spec": spec}));
    let volume = env.objects.create(&volume).await?;
    // Once the controller knows the volume, it binds it instead of requesting a new one.
    env.objects
        .wait(&volume, "to be Available", TIMEOUT, |volume| {
            match shared::text(volume, "/status/phase") {
                "Available" => Ok(()),
                other => Err(other.to_owned()),
            }
        })
        .await?;
    let (claim, bound) = shared::bound(&env, "data", &class).await?;
    assert_eq!(bound["metadata"]["name"], volume["metadata"]["name"]);
    assert_eq!(shared::names(env.data())?, ["mine"], "nothing was created");
    env.objects.delete(&claim).await?;
    env.objects.wait_gone(&claim, TIMEOUT).await?;
    assert_eq!(shared::names(env.data())?, ["mine"], "nothing was reclaimed");
    Ok(())
}

#[tokio::test]
async fn a_claim_is_provisioned_when_the_backend_of_its_class_is_created_later() -> Test {
    let env = TestEnv::new("later").await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let claim = env.objects.create(&env.claim("data", &class)).await?;
    let message = shared::wait_refused(&env, &claim, "BackendNotFound").await?;
    assert!(message.contains(&env.unique_name("backend")), "{message}");
    shared::backend(&env, "backend", json!({})).await?;
    env.wait_bound(&claim).await?;
    Ok(())
}

#[tokio::test]
async fn a_squashed_root_affects_only_a_class_that_requests_an_owner() -> Test {
    let env = TestEnv::with_export("squashed", |export| export.squash(rig::Squash::Root)).await?;
    // Gives the anonymous user write access, as the administrator of a squashed export does.
    std::os::unix::fs::chown(env.data(), Some(65534), Some(65534))?;
    shared::backend(&env, "backend", json!({})).await?;
    let plain = shared::class(&env, "plain", "backend", json!({})).await?;
    let owned = shared::class(&env, "owned", "backend", json!({"uid": "1234"})).await?;
    shared::bound(&env, "plain", &plain).await?;
    let claim = env.objects.create(&env.claim("owned", &owned)).await?;
    shared::wait_refused(&env, &claim, "RootSquashed").await?;
    // The claim is retried from time to time, so its directory may exist for a moment.
    rig::wait::until("nothing of the refused one to be left", TIMEOUT, async || {
        let names = shared::names(env.data()).map_err(|error| error.to_string())?;
        if names.len() == 1 {
            Ok(())
        } else {
            Err(format!("{names:?}"))
        }
    })
    .await?;
    Ok(())
}

/// Waits until a claim reports a reason, and checks that its directory exists nowhere.
async fn kept_out(env: &TestEnv, claim: &Value, reason: &str) -> Result<String, shared::Failure> {
    let message = shared::wait_refused(env, claim, reason).await?;
    let left: Vec<String> = shared::names(env.data())?;
    assert!(left.iter().all(|name| !name.contains("tenant")), "{left:?}");
    Ok(message)
}

#[tokio::test]
async fn annotations_lead_a_tenant_to_no_forbidden_backend() -> Test {
    let env = TestEnv::new("tenant").await?;
    let other = TestEnv::new("other").await?;
    let closed = json!({"allowedNamespaces": {"matchNames": ["nobody"]}});
    shared::backend(&env, "closed", closed).await?;
    shared::backend(&other, "open", json!({})).await?;
    let only_closed = shared::class(&env, "only-closed", "closed", json!({})).await?;
    let parameters = json!({"backend": other.unique_name("open")});
    let only_open = other.objects.create(&other.class("only-open", parameters)).await?;
    for annotation in ["nfs-operator.io/placed-on", "nfs-operator.io/backend"] {
        let name = format!("tenant-{}", annotation.rsplit('/').next().unwrap());
        // A backend of the class that is closed to the namespace.
        let mut claim = env.claim(&name, &only_closed);
        merge(
            &mut claim,
            &json!({"metadata": {"annotations": {annotation: env.unique_name("closed")}}}),
        );
        let claim = env.objects.create(&claim).await?;
        let reason = if annotation.ends_with("/backend") {
            "OverrideRefused"
        } else {
            "NamespaceNotAllowed"
        };
        kept_out(&env, &claim, reason).await?;
        // A backend that is not in the class.
        let mut claim = env.claim(&format!("{name}-elsewhere"), &only_open);
        merge(
            &mut claim,
            &json!({"metadata": {"annotations": {annotation: env.unique_name("closed")}}}),
        );
        let claim = env.objects.create(&claim).await?;
        if annotation.ends_with("/backend") {
            kept_out(&env, &claim, "OverrideRefused").await?;
        } else {
            let volume = env.wait_bound(&claim).await?;
            assert!(
                shared::text(&volume, "/spec/nfs/path").starts_with(&other.export()),
                "the class' own backend"
            );
        }
    }
    assert_eq!(shared::names(env.data())?, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn a_preferred_backend_is_used_if_allowed_and_never_bypasses_a_restriction() -> Test {
    let env = TestEnv::new("wish").await?;
    let closed = TestEnv::new("wish-closed").await?;
    let beyond = TestEnv::new("wish-beyond").await?;
    let wishes = json!({"claimOverrides": ["Backend"]});
    shared::backend(&env, "open", wishes.clone()).await?;
    let mut locked = wishes.clone();
    merge(&mut locked, &json!({"allowedNamespaces": {"matchNames": ["nobody"]}}));
    shared::backend(&closed, "closed", locked).await?;
    shared::backend(&beyond, "beyond", wishes).await?;
    let names = [env.unique_name("open"), closed.unique_name("closed")].join(",");
    let class = env
        .objects
        .create(&env.class("class", json!({"backend": names})))
        .await?;
    let wishing = |name: &str, backend: String| {
        let mut claim = env.claim(name, &class);
        let wish = json!({"metadata": {"annotations": {"nfs-operator.io/backend": backend}}});
        merge(&mut claim, &wish);
        claim
    };
    let granted = env.objects.create(&wishing("granted", env.unique_name("open"))).await?;
    let volume = env.wait_bound(&granted).await?;
    assert!(env.directory(&volume)?.is_dir());
    let locked_out = env
        .objects
        .create(&wishing("locked-out", closed.unique_name("closed")))
        .await?;
    let message = shared::wait_refused(&env, &locked_out, "NamespaceNotAllowed").await?;
    assert!(message.contains(&env.name), "{message}");
    // The backend allows the override and the namespace; only the class does not include it.
    let outside = env
        .objects
        .create(&wishing("outside", beyond.unique_name("beyond")))
        .await?;
    let message = shared::wait_refused(&env, &outside, "OverrideRefused").await?;
    assert!(message.contains("is not a backend of the StorageClass"), "{message}");
    for export in [&closed, &beyond] {
        assert_eq!(shared::names(export.data())?, Vec::<String>::new());
    }
    Ok(())
}
