//! Reused names, and names that lead to the data of others.

use std::fs;

use rig::objects::{merge, reference};
use rig::proxy::{encode_rename, has_bytes};
use rig::{Action, Cluster, NfsOptions, NfsServer, Objects, Operator, OperatorOptions, Proxy, RunDir, TestEnv};
use serde_json::{Value, json};

use crate::support::shared::{self, REUSED, TIMEOUT, Test};

/// Binds a claim, deletes it, and drops the reply to the rename of its directory. Returns the volume.
async fn cut_short(env: &TestEnv, proxy: &Proxy, class: &Value, text: &str) -> Result<(Value, Value), shared::Failure> {
    let (claim, volume) = shared::bound_with_data(env, "data", class, text).await?;
    let name = format!("{}-data", env.name);
    // The connection stays open: until it is cut, the operator waits for the reply.
    let mut lost = proxy.lose_reply(Action::Drop, move |request| {
        has_bytes(request, &encode_rename(name.as_bytes()))
    });
    env.objects.delete(&claim).await?;
    lost.wait(TIMEOUT).await?;
    assert!(!env.directory(&volume)?.exists(), "the server has not renamed it");
    Ok((claim, volume))
}

async fn behind_a_proxy(env: &TestEnv) -> Result<(Proxy, Value), shared::Failure> {
    let proxy = Proxy::start(([127, 0, 0, 1], env.nfs_port()).into()).await?;
    let settings = json!({ "nfs": { "port": proxy.port() }, "directory": { "pattern": REUSED } });
    shared::backend(env, "backend", settings).await?;
    let class = shared::class(env, "class", "backend", json!({})).await?;
    Ok((proxy, class))
}

fn only_archive(env: &TestEnv) -> Result<std::path::PathBuf, shared::Failure> {
    let archives = shared::archives(env.data())?;
    assert_eq!(archives.len(), 1, "{archives:?}");
    Ok(env.data().join(archives.concat()))
}

#[tokio::test]
async fn a_new_claim_of_the_same_name_keeps_its_data_when_the_reply_to_the_rename_is_lost() -> Test {
    let env = TestEnv::new("reply-lost").await?;
    let (proxy, class) = behind_a_proxy(&env).await?;
    let (claim, volume) = cut_short(&env, &proxy, &class, "old").await?;
    env.objects.wait_gone(&claim, TIMEOUT).await?;
    let claim = env.objects.create(&env.claim("data", &class)).await?;
    proxy.cut().await;
    env.objects.wait_gone(&volume, TIMEOUT).await?;
    let new = env.wait_bound(&claim).await?;
    assert_eq!(env.directory(&new)?, env.directory(&volume)?);
    assert_eq!(fs::read_dir(env.directory(&new)?)?.count(), 0);
    assert_eq!(fs::read_to_string(only_archive(&env)?.join("data"))?, "old");
    shared::wait_reclaimed(&env, &volume, "VolumeArchived").await?;
    Ok(())
}

#[tokio::test]
async fn a_foreign_directory_of_the_same_name_is_untouched_when_the_reply_to_the_rename_is_lost() -> Test {
    let env = TestEnv::new("stranger").await?;
    let (proxy, class) = behind_a_proxy(&env).await?;
    let (_, volume) = cut_short(&env, &proxy, &class, "old").await?;
    let directory = env.directory(&volume)?;
    fs::create_dir(&directory)?;
    fs::write(directory.join("theirs"), "theirs")?;
    let before = rig::snapshot(&directory)?;
    proxy.cut().await;
    env.objects.wait_gone(&volume, TIMEOUT).await?;
    assert_eq!(rig::snapshot(&directory)?, before);
    assert_eq!(fs::read_to_string(only_archive(&env)?.join("data"))?, "old");
    Ok(())
}

/// The reason and the required text of the message, for each pattern that leads outside the claim's own directory.
#[tokio::test]
async fn a_pattern_that_leads_outside_the_claims_own_directory_is_refused_with_the_reason() -> Test {
    let env = TestEnv::new("overlap").await?;
    shared::backend(&env, "backend", json!({})).await?;
    let plain = shared::class(&env, "plain", "backend", json!({ "pathPattern": "${pvc.name}" })).await?;
    let (_claim, volume) = shared::bound_with_data(&env, "theirs", &plain, "theirs").await?;
    let (old_claim, old) = shared::bound_with_data(&env, "old", &plain, "old").await?;
    shared::reclaim(&env, &old_claim, &old, "VolumeArchived").await?;
    let nested = json!({ "path": format!("{}/nested", env.export()) });
    fs::create_dir(env.data().join("nested"))?;
    shared::backend(&env, "nested", nested).await?;
    let theirs = shared::text(&volume, "/metadata/name");
    let inner_backend = env.unique_name("nested");
    let cases = [
        ("theirs", "DirectoryOverlaps", theirs),
        ("THEIRS", "DirectoryOverlaps", theirs),
        ("theirs/${pvc.name}", "DirectoryOverlaps", theirs),
        ("nested", "DirectoryOverlaps", &inner_backend),
        ("nested/${pvc.name}", "DirectoryOverlaps", &inner_backend),
        ("nested/.nfs-operator", "InvalidDirectoryName", ".nfs-operator"),
        (".nfs-operator", "InvalidDirectoryName", ".nfs-operator"),
        (".nfs-operator/${pvc.name}", "InvalidDirectoryName", ".nfs-operator"),
        ("archived-old", "InvalidDirectoryName", "archived-"),
        ("Archived-old/${pvc.name}", "InvalidDirectoryName", "archived-"),
        ("../${pvc.name}", "InvalidDirectoryName", ".."),
        ("/${pvc.name}", "InvalidDirectoryName", "empty"),
    ];
    let before = rig::snapshot(env.data())?;
    for (number, (pattern, reason, named)) in cases.into_iter().enumerate() {
        for existing in ["Refuse", "Adopt"] {
            let word = format!("case{number}-{}", existing.to_lowercase());
            let parameters = json!({ "pathPattern": pattern, "existing": existing });
            let class = shared::class(&env, &word, "backend", parameters).await?;
            let claim = env.objects.create(&env.claim(&word, &class)).await?;
            let message = shared::wait_refused(&env, &claim, reason).await?;
            assert!(message.contains(named), "{pattern}: {message}");
        }
    }
    let mut after = rig::snapshot(env.data())?;
    // Records may change; data must not.
    let mut before = before;
    for seen in [&mut before, &mut after] {
        seen.retain(|path, _| !path.contains("/.nfs-operator"));
    }
    assert_eq!(after, before);
    Ok(())
}

#[tokio::test]
async fn a_directory_for_a_namespace_and_one_for_each_of_its_claims_exclude_each_other() -> Test {
    let env = TestEnv::new("inside").await?;
    shared::backend(&env, "backend", json!({})).await?;
    let pattern = json!({ "pathPattern": "${pvc.namespace}" });
    let outer = shared::class(&env, "outer", "backend", pattern).await?;
    let pattern = json!({ "pathPattern": "${pvc.namespace}/${pvc.name}" });
    let inner = shared::class(&env, "inner", "backend", pattern).await?;
    for (first, second, relation) in [(&outer, &inner, "lies inside"), (&inner, &outer, "contains")] {
        let (claim, volume) = shared::bound(&env, "first", first).await?;
        let waiting = env.objects.create(&env.claim("second", second)).await?;
        let message = shared::wait_refused(&env, &waiting, "DirectoryOverlaps").await?;
        let name = shared::text(&volume, "/metadata/name");
        assert!(message.contains(relation) && message.contains(name), "{message}");
        // Once the conflicting claim is deleted, the other one is provisioned automatically.
        shared::reclaim(&env, &claim, &volume, "VolumeDeleted").await?;
        let volume = env.wait_bound(&waiting).await?;
        assert!(env.directory(&volume)?.is_dir());
        shared::reclaim(&env, &waiting, &volume, "VolumeDeleted").await?;
        env.objects.wait_gone(&claim, TIMEOUT).await?;
        env.objects.wait_gone(&waiting, TIMEOUT).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_backend_inside_a_volumes_directory_gets_no_volume() -> Test {
    let env = TestEnv::new("within").await?;
    let class = env.create_ready_class().await?;
    let (_claim, volume) = shared::bound_with_data(&env, "data", &class, "theirs").await?;
    let path = shared::text(&volume, "/spec/nfs/path");
    let before = rig::snapshot(&env.directory(&volume)?)?;
    let within = env.backend("within", json!({ "path": path }));
    let within = env.objects.create(&within).await?;
    let class = shared::class(&env, "within", "within", json!({})).await?;
    let claim = env.objects.create(&env.claim("second", &class)).await?;
    let message = shared::wait_refused(&env, &claim, "DirectoryOverlaps").await?;
    assert!(message.contains(shared::text(&volume, "/metadata/name")), "{message}");
    assert_eq!(rig::snapshot(&env.directory(&volume)?)?, before, "{within}");
    Ok(())
}

/// A cluster whose operator the test may kill.
struct Own {
    operator: Operator,
    objects: Objects,
    proxy: Proxy,
    disk: std::path::PathBuf,
    _cluster: Cluster,
    _nfs: NfsServer,
    _run: RunDir,
}

impl Own {
    async fn start() -> Result<Self, shared::Failure> {
        let run = RunDir::new()?;
        let nfs = NfsServer::start(&run, NfsOptions::default()).await?;
        let cluster = Cluster::start(&run).await?;
        let proxy = Proxy::start(nfs.address()).await?;
        let kubeconfig = Operator::install(&cluster).await?;
        let options = OperatorOptions::new(rig::operator::find_binary()?, kubeconfig);
        let operator = Operator::start(&run, options).await?;
        operator.wait_ready().await?;
        let objects = Objects::new(cluster.client().await?);
        let disk = nfs.data_dir("/export")?;
        Ok(Self {
            operator,
            objects,
            proxy,
            disk,
            _cluster: cluster,
            _nfs: nfs,
            _run: run,
        })
    }

    async fn claim(&self, name: &str) -> rig::Result<Value> {
        let mut claim = reference("v1", "PersistentVolumeClaim", Some("default"), name);
        let spec = json!({
            "storageClassName": "class",
            "accessModes": ["ReadWriteMany"],
            "resources": { "requests": { "storage": "1Mi" } },
        });
        merge(&mut claim, &json!({ "spec": spec }));
        self.objects.create(&claim).await
    }

    async fn volume(&self, claim: &Value) -> rig::Result<Value> {
        let bound = |claim: &Value| match shared::text(claim, "/status/phase") {
            "Bound" => Ok(shared::text(claim, "/spec/volumeName").to_owned()),
            phase => Err(phase.to_owned()),
        };
        let name = self.objects.wait(claim, "to be Bound", TIMEOUT, bound).await?;
        Ok(reference("v1", "PersistentVolume", None, &name))
    }
}

#[tokio::test]
async fn names_reused_while_the_operator_was_down_belong_to_their_new_owners() -> Test {
    let mut own = Own::start().await?;
    let mut backend = reference("nfs-operator.io/v1alpha1", "NfsBackend", None, "backend");
    let spec = json!({
        "server": "127.0.0.1", "path": "/export", "probeInterval": "1s",
        "nfs": { "port": own.proxy.port() }, "directory": { "pattern": REUSED },
    });
    merge(&mut backend, &json!({ "spec": spec }));
    own.objects.create(&backend).await?;
    let mut class = reference("storage.k8s.io/v1", "StorageClass", None, "class");
    merge(
        &mut class,
        &json!({ "provisioner": "nfs-operator.io/nfs", "reclaimPolicy": "Delete" }),
    );
    own.objects.create(&class).await?;
    let mut old = Vec::new();
    for name in ["again", "stranger"] {
        let claim = own.claim(name).await?;
        let volume = own.volume(&claim).await?;
        fs::write(own.disk.join(format!("default-{name}/data")), name)?;
        let renamed = encode_rename(format!("default-{name}").as_bytes());
        let lost = own
            .proxy
            .lose_reply(Action::Drop, move |request| has_bytes(request, &renamed));
        old.push((claim, volume, lost));
    }
    // The operator waits 10 s for a reply and then checks what happened. It renames both at the same time, because it
    // finds both volumes when it starts.
    own.operator.kill9().await?;
    for (claim, _, _) in &old {
        own.objects.delete(claim).await?;
    }
    for (_, volume, _) in &old {
        let released = |volume: &Value| match shared::text(volume, "/status/phase") {
            "Released" => Ok(()),
            phase => Err(phase.to_owned()),
        };
        own.objects.wait(volume, "to be Released", TIMEOUT, released).await?;
    }
    own.operator.restart().await?;
    for (_, _, lost) in &mut old {
        lost.wait(TIMEOUT).await?;
    }
    own.proxy.hang(true);
    own.operator.kill9().await?;
    own.proxy.cut().await;
    own.proxy.hang(false);
    // Both are renamed, and the replies are lost. One name is requested again, the other one is created by hand.
    for (claim, volume, _) in &old {
        own.objects.wait_gone(claim, TIMEOUT).await?;
        assert!(own.objects.get(volume).await?.is_some());
    }
    assert_eq!(
        shared::names(&own.disk)?,
        ["archived-default-again", "archived-default-stranger"]
    );
    let again = own.claim("again").await?;
    let taken = own.disk.join("default-stranger");
    fs::create_dir(&taken)?;
    fs::write(taken.join("theirs"), "theirs")?;
    let before = rig::snapshot(&taken)?;
    own.operator.restart().await?;
    for (_, volume, _) in &old {
        own.objects.wait_gone(volume, TIMEOUT).await?;
    }
    own.volume(&again).await?;
    fs::write(own.disk.join("default-again/data"), "new")?;
    assert_eq!(rig::snapshot(&taken)?, before);
    let archives = ["archived-default-again", "archived-default-stranger"];
    let expected = [archives.as_slice(), &["default-again", "default-stranger"]].concat();
    assert_eq!(shared::names(&own.disk)?, expected);
    for (archive, content) in archives.into_iter().zip(["again", "stranger"]) {
        assert_eq!(fs::read_to_string(own.disk.join(archive).join("data"))?, content);
    }
    Ok(())
}

#[tokio::test]
async fn a_label_of_a_claim_with_large_metadata_names_its_directory() -> Test {
    let env = TestEnv::new("large-metadata").await?;
    let pattern = json!({ "directory": { "pattern": "${pvc.labels.team}-${pvc.annotations.part}-${pvc.uid}" } });
    shared::backend(&env, "backend", pattern).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let mut claim = env.claim("data", &class);
    // More than the operator keeps of a claim that waits.
    let metadata = json!({ "labels": { "team": "blue" }, "annotations": { "part": "one", "text": "x".repeat(8192) } });
    merge(&mut claim, &json!({ "metadata": metadata }));
    let claim = env.objects.create(&claim).await?;
    let volume = env.wait_bound(&claim).await?;
    let uid = shared::text(&claim, "/metadata/uid");
    assert_eq!(env.directory(&volume)?, env.data().join(format!("blue-one-{uid}")));
    Ok(())
}
