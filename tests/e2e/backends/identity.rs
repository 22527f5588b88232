//! Replaced exports, volumes that contradict their records, and deleted backends.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rig::objects::{merge, reference};
use rig::{Export, NfsOptions, NfsServer, RunDir, TestEnv, wait};
use serde_json::{Value, json};

use crate::archives::objects::{archived, in_state};
use crate::support::shared::{self, TIMEOUT, Test};

/// A dedicated server whose export is replaced, and a volume with data on the first export.
pub(super) struct Swapped {
    pub env: TestEnv,
    nfs: NfsServer,
    run: RunDir,
    pub backend: Value,
    pub class: Value,
    pub claim: Value,
    pub volume: Value,
}

impl Swapped {
    pub async fn start(name: &str) -> Result<Self, shared::Failure> {
        let env = TestEnv::new(name).await?;
        let run = RunDir::new()?;
        let options = NfsOptions {
            exports: vec![Export::new(env.export())],
            ..NfsOptions::default()
        };
        let nfs = NfsServer::start(&run, options).await?;
        let settings = json!({ "nfs": { "port": nfs.port() }, "archivePolicy": { "onDelete": "Delete" } });
        let backend = shared::backend(&env, "backend", settings).await?;
        let class = shared::class(&env, "class", "backend", json!({})).await?;
        let (claim, volume) = shared::bound(&env, "data", &class).await?;
        let inside = shared::text(&volume, "/metadata/annotations/nfs-operator.io~1directory").to_owned();
        fs::write(nfs.data_dir(&env.export())?.join(inside).join("data"), "stays")?;
        Ok(Self {
            env,
            nfs,
            run,
            backend,
            class,
            claim,
            volume,
        })
    }

    pub fn disk(&self) -> rig::Result<PathBuf> {
        self.nfs.data_dir(&self.env.export())
    }

    async fn swap(&mut self, disk: &Path) -> rig::Result<()> {
        let path = self.env.export();
        self.nfs.remove_export(&path).await?;
        self.nfs.add_export(Export::new(path).disk(disk)).await.map(drop)
    }

    /// Replaces the export by a copy of its files.
    pub async fn swap_by_copy(&mut self) -> Test {
        let copy = self.run.path().join("copy");
        self.copy_to(&copy)?;
        Ok(self.swap(&copy).await?)
    }

    /// Accepts the export that the backend finds, and waits until the backend is ready.
    pub async fn accept(&self) -> Test {
        let objects = &self.env.objects;
        let mismatch = Some("IdentityMismatch");
        let reported = objects.wait_condition(&self.backend, "Ready", "False", mismatch, TIMEOUT);
        reported.await?;
        let found = objects.get(&self.backend).await?.unwrap_or_default();
        let annotations = json!({"nfs-operator.io/accept-identity": shared::text(&found, "/status/export/id")});
        let accepted = json!({"metadata": {"annotations": annotations}});
        objects.patch(&self.backend, accepted).await?;
        let ready = objects.wait_condition(&self.backend, "Ready", "True", None, TIMEOUT);
        ready.await?;
        Ok(())
    }

    /// Checks that the backend reports it, and that neither a new nor a deleted claim touches the data.
    async fn nothing_is_made_or_removed(&self) -> Result<Value, shared::Failure> {
        let disk = self.disk()?;
        let before = rig::snapshot(&disk)?;
        let objects = &self.env.objects;
        let mismatch = Some("IdentityMismatch");
        let reported = objects.wait_condition(&self.backend, "Ready", "False", mismatch, TIMEOUT);
        reported.await?;
        let reported = objects.wait_condition(&self.backend, "IdentityConfirmed", "False", mismatch, TIMEOUT);
        reported.await?;
        let waiting = objects.create(&self.env.claim("waiting", &self.class)).await?;
        shared::wait_refused(&self.env, &waiting, "IdentityMismatch").await?;
        objects.delete(&self.claim).await?;
        self.reclaim_is_refused("IdentityMismatch").await?;
        assert_eq!(rig::snapshot(&disk)?, before);
        Ok(waiting)
    }

    /// Waits until the reclaim of the volume is refused for this reason. It may be refused for another one before, if
    /// the server answers a probe late.
    pub async fn reclaim_is_refused(&self, reason: &str) -> rig::Result<()> {
        let objects = &self.env.objects;
        wait::until("the reclaim to be refused", TIMEOUT, async || {
            let events = objects.events(&self.volume).await.map_err(|error| error.to_string())?;
            let refused = events.iter().filter(|event| event["reason"] == "VolumeFailedDelete");
            let notes: Vec<&str> = refused.map(|event| shared::text(event, "/note")).collect();
            match notes.iter().any(|note| note.starts_with(reason)) {
                true => Ok(()),
                false => Err(format!("{notes:?}")),
            }
        })
        .await
    }

    /// Copies the export. The server is paused meanwhile: a probe creates and removes files, and `cp` fails if one
    /// disappears.
    fn copy_to(&self, copy: &Path) -> Test {
        let former = self.disk()?;
        self.nfs.pause()?;
        let copied = Command::new("cp").arg("-a").args([former.as_path(), copy]).status();
        self.nfs.resume()?;
        assert!(copied?.success());
        Ok(())
    }
}

/// Removes what a concurrent probe changes: its file, and the time of the folder.
pub(super) fn lasting(tree: BTreeMap<String, String>) -> Vec<(String, String)> {
    let of_a_probe = |path: &str| path.contains("/.nfs-operator") && !path.contains("/records/");
    tree.into_iter().filter(|(path, _)| !of_a_probe(path)).collect()
}

#[tokio::test]
async fn an_export_replaced_by_an_empty_one_is_left_alone_until_the_former_is_back() -> Test {
    let mut swapped = Swapped::start("swap-empty").await?;
    let former = swapped.disk()?;
    let empty = swapped.run.path().join("empty");
    fs::create_dir(&empty)?;
    let before = rig::snapshot(&former)?;
    swapped.swap(&empty).await?;
    let waiting = swapped.nothing_is_made_or_removed().await?;
    assert_eq!(fs::read_dir(&empty)?.count(), 0);
    assert_eq!(lasting(rig::snapshot(&former)?), lasting(before));
    swapped.swap(&former).await?;
    swapped.env.wait_bound(&waiting).await?;
    swapped.env.objects.wait_gone(&swapped.volume, TIMEOUT).await?;
    assert_eq!(shared::names(&former)?.len(), 1, "the waiting claim's alone");
    Ok(())
}

#[tokio::test]
async fn an_export_replaced_by_a_copy_is_left_alone_until_an_administrator_accepts_it() -> Test {
    let mut swapped = Swapped::start("swap-copy").await?;
    let former = swapped.disk()?;
    let copy = swapped.run.path().join("copy");
    swapped.copy_to(&copy)?;
    let before = rig::snapshot(&former)?;
    swapped.swap(&copy).await?;
    let waiting = swapped.nothing_is_made_or_removed().await?;
    let objects = &swapped.env.objects;
    let found = objects.get(&swapped.backend).await?.unwrap_or_default();
    let id = shared::text(&found, "/status/export/id");
    // The ID of another export accepts nothing.
    let accept = |id: &str| json!({ "metadata": { "annotations": { "nfs-operator.io/accept-identity": id } } });
    objects.patch(&swapped.backend, accept("another")).await?;
    let names_it = |found: &Value| match rig::objects::condition(found, "Ready") {
        Some(ready) if shared::text(ready, "/message").contains("another") => Ok(()),
        other => Err(format!("{other:?}")),
    };
    let what = "to report another identity";
    objects.wait(&swapped.backend, what, TIMEOUT, names_it).await?;
    objects.patch(&swapped.backend, accept(id)).await?;
    let ready = objects.wait_condition(&swapped.backend, "Ready", "True", None, TIMEOUT);
    ready.await?;
    swapped.env.wait_bound(&waiting).await?;
    // Accepted once: the annotation stays, and the next copy is refused again.
    let accepted = |found: &Value| shared::is_handled(found, "nfs-operator.io/accept-identity");
    let what = "to have handled the acceptance";
    objects.wait(&swapped.backend, what, TIMEOUT, accepted).await?;
    assert_eq!(lasting(rig::snapshot(&former)?), lasting(before));
    Ok(())
}

/// Waits until the identity of the backend is refused with a message that contains this. Returns the message.
async fn identity_refused(env: &TestEnv, backend: &Value, expected: &str) -> rig::Result<String> {
    let refused = |found: &Value| match rig::objects::condition(found, "Ready") {
        Some(ready) if ready["reason"] == "IdentityMismatch" && shared::text(ready, "/message").contains(expected) => {
            Ok(shared::text(ready, "/message").to_owned())
        }
        other => Err(format!("{other:?}")),
    };
    let what = format!("to report {expected:?}");
    env.objects.wait(backend, &what, TIMEOUT, refused).await
}

#[tokio::test]
async fn an_export_that_lost_its_identity_gets_a_new_one_once_for_each_acceptance_and_none_if_one_is_pinned() -> Test {
    let env = TestEnv::new("identity-new").await?;
    let backend = shared::backend(&env, "backend", json!({})).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let identity = async || -> Result<String, shared::Failure> {
        let found = env.objects.get(&backend).await?.ok_or("the backend is gone")?;
        Ok(shared::text(&found, "/status/export/id").to_owned())
    };
    let own = env.data().join(".nfs-operator");
    let first = identity().await?;
    fs::rename(&own, env.data().join("first"))?;
    let accept = "nfs-operator.io/accept-identity: new";
    let message = identity_refused(&env, &backend, "found none").await?;
    assert!(
        message.contains(&first) && message.contains("nfs-operator.io/accept-identity"),
        "{message}"
    );
    assert!(!own.exists(), "nothing is created on an export without an identity");

    // A pinned identity and a new one contradict each other.
    let fields = |value: &str, pinned: Value| {
        let annotations = json!({"nfs-operator.io/accept-identity": value});
        json!({"metadata": {"annotations": annotations}, "spec": {"exportID": pinned}})
    };
    env.objects.patch(&backend, fields("new", json!(first))).await?;
    let message = identity_refused(&env, &backend, "remove one of them").await?;
    assert!(message.contains(accept) && message.contains(&first), "{message}");
    assert!(!own.exists(), "nothing is created while another identity is pinned");

    env.objects.patch(&backend, fields("new", Value::Null)).await?;
    let ready = |kind| env.objects.wait_condition(&backend, kind, "True", None, TIMEOUT);
    ready("Ready").await?;
    let handled = |found: &Value| shared::is_handled(found, "nfs-operator.io/accept-identity");
    let what = "to have handled the acceptance";
    env.objects.wait(&backend, what, TIMEOUT, handled).await?;
    let second = identity().await?;
    assert!(own.is_dir() && second != first, "{second}");
    shared::bound(&env, "data", &class).await?;

    // The next loss needs another acceptance.
    fs::rename(&own, env.data().join("second"))?;
    identity_refused(&env, &backend, "append @ and any text").await?;
    assert!(!own.exists(), "the same value is not handled twice");
    Ok(())
}

#[tokio::test]
async fn a_recreated_backend_with_archives_gets_no_identity_on_an_empty_export() -> Test {
    let env = TestEnv::new("archives-remember").await?;
    let backend = shared::backend(&env, "backend", json!({})).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let [_, _, archive] = archived(&env, "data", &class, "stays").await?;
    let empty = env.data().join("empty");
    fs::create_dir(&empty)?;
    shared::abandon(&env, &backend).await?;
    env.objects.delete(&backend).await?;
    env.objects.wait_gone(&backend, TIMEOUT).await?;

    // Without a status, and from a manifest that has the acceptance of an earlier loss. As if the disk is not mounted.
    let elsewhere = json!({ "path": format!("{}/empty", env.export()) });
    let mut manifest = env.backend("backend", elsewhere);
    manifest["metadata"]["annotations"] = json!({"nfs-operator.io/accept-identity": "new"});
    let backend = env.objects.create(&manifest).await?;
    let mismatch = Some("IdentityMismatch");
    let reported = env
        .objects
        .wait_condition(&backend, "Ready", "False", mismatch, TIMEOUT);
    let message = reported.await?["message"].as_str().unwrap_or_default().to_owned();
    let id = shared::text(&archive, "/status/exportID");
    assert!(
        message.contains(&format!("expected identity {id}, found none")),
        "{message}"
    );
    assert!(message.contains("older than this report"), "{message}");
    let found = env.objects.get(&backend).await?.ok_or("the backend is gone")?;
    shared::is_handled(&found, "nfs-operator.io/accept-identity")?;
    let result = shared::text(&found, "/status/handledRequests/0/result");
    assert!(result.starts_with("ignored"), "{result}");
    assert_eq!(fs::read_dir(&empty)?.count(), 0);

    env.objects
        .patch(&backend, json!({ "spec": { "path": env.export() } }))
        .await?;
    let ready = env.objects.wait_condition(&backend, "Ready", "True", None, TIMEOUT);
    ready.await?;
    in_state(&env, &archive, "Available").await?;
    Ok(())
}

#[tokio::test]
async fn a_volume_whose_annotations_were_edited_keeps_its_data_until_they_are_restored() -> Test {
    let env = TestEnv::new("edited").await?;
    shared::backend(&env, "backend", json!({ "archivePolicy": { "onDelete": "Delete" } })).await?;
    fs::create_dir(env.data().join("elsewhere"))?;
    let elsewhere = json!({ "path": format!("{}/elsewhere", env.export()), "archivePolicy": { "onDelete": "Delete" } });
    shared::backend(&env, "other", elsewhere).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let (_claim, neighbour) = shared::bound_with_data(&env, "neighbour", &class, "theirs").await?;
    let of_neighbour = |name: &str| {
        let pointer = format!("/metadata/annotations/nfs-operator.io~1{name}");
        shared::text(&neighbour, &pointer).to_owned()
    };
    let other = env.unique_name("other");
    let cases = [
        ("directory", of_neighbour("directory")),
        ("directory", "../elsewhere".to_owned()),
        ("directory", ".nfs-operator".to_owned()),
        ("file-id", of_neighbour("file-id")),
        ("export-id", "another".to_owned()),
        ("backend", other),
        ("on-delete", "shred".to_owned()),
    ];
    let beside = rig::snapshot(&env.directory(&neighbour)?)?;
    for (number, (name, value)) in cases.into_iter().enumerate() {
        let (claim, volume) = shared::bound_with_data(&env, &format!("data{number}"), &class, "stays").await?;
        let annotation = format!("nfs-operator.io/{name}");
        let before = volume["metadata"]["annotations"][&annotation].clone();
        let annotated = |value: &Value| json!({ "metadata": { "annotations": { &annotation: value } } });
        env.objects.patch(&volume, annotated(&json!(value))).await?;
        env.objects.delete(&claim).await?;
        let note = shared::wait_reclaim_refused(&env, &volume).await?;
        assert!(note.contains(": "), "{annotation}: {note}");
        let data = env.directory(&volume)?.join("data");
        assert_eq!(fs::read_to_string(&data)?, "stays", "{annotation}");
        assert!(env.objects.get(&volume).await?.is_some());
        env.objects.patch(&volume, annotated(&before)).await?;
        env.objects.wait_gone(&volume, TIMEOUT).await?;
        assert!(!data.exists(), "{annotation}");
    }
    assert_eq!(rig::snapshot(&env.directory(&neighbour)?)?, beside);
    Ok(())
}

#[tokio::test]
async fn a_volume_that_was_recreated_with_the_directory_of_another_reclaims_nothing() -> Test {
    let env = TestEnv::new("forged").await?;
    shared::backend(&env, "backend", json!({ "archivePolicy": { "onDelete": "Delete" } })).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let (_claim, victim) = shared::bound_with_data(&env, "victim", &class, "theirs").await?;
    let before = rig::snapshot(&env.directory(&victim)?)?;
    // All fields of the victim, with another name and a deleted claim.
    let uid = "00000000-1111-2222-3333-444444444444";
    for (name, path) in [
        ("same", shared::text(&victim, "/spec/nfs/path").to_owned()),
        ("root", env.export()),
        ("ours", format!("{}/.nfs-operator", env.export())),
    ] {
        let mut forged = reference("v1", "PersistentVolume", None, &env.unique_name(name));
        let annotations = victim["metadata"]["annotations"].clone();
        let spec = json!({ "spec": victim["spec"] });
        merge(&mut forged, &json!({ "metadata": { "annotations": annotations } }));
        merge(&mut forged, &spec);
        let inside = path.rsplit('/').next().unwrap_or_default();
        let tampered = json!({
            "metadata": { "annotations": { "nfs-operator.io/directory": inside } },
            "spec": {
                "nfs": { "path": path },
                "claimRef": { "name": "gone", "uid": uid, "resourceVersion": null },
            },
        });
        merge(&mut forged, &tampered);
        let forged = env.objects.create(&forged).await?;
        shared::wait_reclaim_refused(&env, &forged).await?;
        assert_eq!(rig::snapshot(&env.directory(&victim)?)?, before, "{name}");
        assert!(env.objects.get(&forged).await?.is_some());
    }
    Ok(())
}

#[tokio::test]
async fn a_deleted_backend_waits_for_its_volumes_and_archives_unless_an_annotation_releases_it() -> Test {
    let env = TestEnv::new("departure").await?;
    let class = env.create_ready_class().await?;
    let backend = shared::backend_reference(&env, "backend");
    let (first_claim, first) = shared::bound_with_data(&env, "first", &class, "first").await?;
    let (_claim, second) = shared::bound_with_data(&env, "second", &class, "second").await?;
    env.objects.delete(&backend).await?;
    let says = async |expected: &str| {
        let look = |found: &Value| match rig::objects::condition(found, "Ready") {
            Some(ready) if ready["reason"] == "Deleting" && shared::text(ready, "/message").contains(expected) => {
                Ok(shared::text(ready, "/message").to_owned())
            }
            other => Err(format!("{other:?}")),
        };
        env.objects
            .wait(&backend, "to report what it waits for", TIMEOUT, look)
            .await
    };
    says("2 volumes and 0 archives").await?;
    // Reclaim continues, and new claims are refused.
    shared::reclaim(&env, &first_claim, &first, "VolumeArchived").await?;
    let message = says("1 volume and 1 archive").await?;
    assert!(message.contains("nfs-operator.io/abandon-volumes"), "{message}");
    let waiting = env.objects.create(&env.claim("waiting", &class)).await?;
    shared::wait_refused(&env, &waiting, "Deleting").await?;
    let volumes_and_archives = || {
        let mut seen = rig::snapshot(env.data())?;
        // The probe writes there.
        seen.retain(|path, _| !path.contains("/.nfs-operator"));
        Ok::<_, std::io::Error>(seen)
    };
    let before = volumes_and_archives()?;
    shared::abandon(&env, &backend).await?;
    env.objects.wait_gone(&backend, TIMEOUT).await?;
    assert_eq!(volumes_and_archives()?, before);
    assert!(env.objects.get(&second).await?.is_some());
    Ok(())
}

#[tokio::test]
async fn a_deleted_backend_disappears_when_its_last_volume_is_deleted() -> Test {
    let env = TestEnv::new("last-volume").await?;
    let backend = shared::backend(&env, "backend", json!({ "archivePolicy": { "onDelete": "Delete" } })).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let (claim, volume) = shared::bound_with_data(&env, "data", &class, "gone").await?;
    env.objects.delete(&backend).await?;
    let deleting = Some("Deleting");
    let held = env
        .objects
        .wait_condition(&backend, "Ready", "False", deleting, TIMEOUT);
    held.await?;
    shared::reclaim(&env, &claim, &volume, "VolumeDeleted").await?;
    env.objects.wait_gone(&backend, TIMEOUT).await?;
    assert_eq!(shared::names(env.data())?, Vec::<String>::new());
    Ok(())
}
