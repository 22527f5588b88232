//! Failures of servers and connections during provisioning.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use futures::future::try_join_all;
use rand::RngExt as _;
use rig::objects::reference;
use rig::{Cluster, NfsOptions, NfsServer, Objects, Proxy, RunDir, StableStorage, TestEnv};
use serde_json::{Value, json};

use crate::backends::reasons::{PROVISIONED, SEEN, nfs_address, wait_reason};
use crate::support::shared::Test;

/// Timeout for dozens of claims whose calls time out after 10 s and are repeated.
const ALL_BOUND: Duration = Duration::from_secs(240);

/// Creates this number of claims of a class.
pub async fn claims_of(env: &TestEnv, class: &Value, word: &str, count: usize) -> rig::Result<Vec<Value>> {
    try_join_all((0..count).map(async |number| {
        let claim = env.claim(&format!("{word}-{number}"), class);
        env.objects.create(&claim).await
    }))
    .await
}

/// Waits until each claim is Bound, and checks that its volume has a directory of its own and that there are no other
/// directories on the export.
pub async fn bound_once(env: &TestEnv, claims: &[Value]) -> rig::Result<()> {
    each_bound_once(&env.objects, claims, &env.export(), env.data()).await
}

async fn each_bound_once(objects: &Objects, claims: &[Value], export: &str, data: &std::path::Path) -> rig::Result<()> {
    let like = reference(
        "v1",
        "PersistentVolumeClaim",
        claims
            .first()
            .and_then(|claim| claim.pointer("/metadata/namespace")?.as_str()),
        "any",
    );
    rig::wait::until("all claims to be Bound", ALL_BOUND, async || {
        let phases = phases(objects, &like, claims)
            .await
            .map_err(|error| error.to_string())?;
        let waiting: Vec<_> = phases.iter().filter(|(_, phase)| *phase != "Bound").collect();
        if waiting.is_empty() {
            Ok(())
        } else {
            Err(format!("{waiting:?}"))
        }
    })
    .await?;
    let volumes = objects.list(&reference("v1", "PersistentVolume", None, "any")).await?;
    let uids: BTreeSet<_> = claims
        .iter()
        .filter_map(|claim| claim.pointer("/metadata/uid"))
        .map(Value::to_string)
        .collect();
    let of_claims = volumes.iter().filter(|volume| {
        let uid = volume.pointer("/spec/claimRef/uid").map(Value::to_string);
        uid.is_some_and(|uid| uids.contains(&uid))
    });
    let mut named: Vec<String> = of_claims
        .filter_map(|volume| volume.pointer("/spec/nfs/path")?.as_str()?.strip_prefix(export))
        .map(|path| path.trim_start_matches('/').to_owned())
        .collect();
    named.sort();
    assert_eq!(named.len(), claims.len(), "one volume each");
    let entries = std::fs::read_dir(data).unwrap().map(|entry| entry.unwrap().file_name());
    let mut created: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
    created.retain(|name| name != ".nfs-operator");
    created.sort();
    assert_eq!(created, named, "each directory once and no other");
    Ok(())
}

/// Returns the phase and the reason of each claim, by name.
async fn phases(objects: &Objects, like: &Value, claims: &[Value]) -> rig::Result<BTreeMap<String, String>> {
    let names: BTreeSet<_> = claims
        .iter()
        .filter_map(|claim| claim.pointer("/metadata/name"))
        .map(Value::to_string)
        .collect();
    let found = objects.list(like).await?;
    let selected = found
        .iter()
        .filter(|claim| names.contains(&claim["metadata"]["name"].to_string()));
    Ok(selected
        .map(|claim| {
            let phase = claim
                .pointer("/status/phase")
                .and_then(Value::as_str)
                .unwrap_or_default();
            let name = claim["metadata"]["name"].to_string();
            match phase {
                "Bound" => (name, phase.to_owned()),
                _ => (name, claim["status"].to_string()),
            }
        })
        .collect())
}

/// Waits until some claims, but not all, have their volume.
async fn middle(objects: &Objects, claims: &[Value]) -> rig::Result<()> {
    let first = claims.len() / 10;
    rig::wait::until("the first volumes", ALL_BOUND, async || {
        let volumes = objects.list(&reference("v1", "PersistentVolume", None, "any")).await;
        let volumes = volumes.map_err(|error| error.to_string())?;
        let namespace = claims.first().and_then(|claim| claim.pointer("/metadata/namespace"));
        let own = volumes
            .iter()
            .filter(|volume| volume.pointer("/spec/claimRef/namespace") == namespace);
        let created = own.count();
        if created >= first {
            Ok(())
        } else {
            Err(format!("{created} volumes"))
        }
    })
    .await
}

/// Creates a namespace, a ready backend and a class in a dedicated cluster.
pub struct Private {
    pub objects: Objects,
    namespace: String,
    data: PathBuf,
}

/// Uses the export `/export` at this port, with its directory on disk.
pub async fn private(cluster: &Cluster, port: u16, data: PathBuf) -> rig::Result<Private> {
    let objects = Objects::new(cluster.client().await?);
    let namespace = "own".to_owned();
    objects.create(&reference("v1", "Namespace", None, &namespace)).await?;
    let backend = json!({
        "apiVersion": "nfs-operator.io/v1alpha1", "kind": "NfsBackend", "metadata": {"name": "own"},
        "spec": {"server": "127.0.0.1", "path": "/export", "probeInterval": "1s", "nfs": {"port": port}},
    });
    let backend = objects.create(&backend).await?;
    objects.wait_condition(&backend, "Ready", "True", None, SEEN).await?;
    objects
        .create(&json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "own"},
            "provisioner": "nfs-operator.io/nfs", "reclaimPolicy": "Delete", "parameters": {"backend": "own"},
        }))
        .await?;
    Ok(Private {
        objects,
        namespace,
        data,
    })
}

impl Private {
    /// Creates this number of claims.
    pub async fn claims(&self, count: usize) -> rig::Result<Vec<Value>> {
        try_join_all((0..count).map(async |number| {
            let mut claim = reference(
                "v1",
                "PersistentVolumeClaim",
                Some(&self.namespace),
                &format!("claim-{number}"),
            );
            let spec = json!({
                "storageClassName": "own", "accessModes": ["ReadWriteMany"],
                "resources": {"requests": {"storage": "1Mi"}},
            });
            rig::objects::merge(&mut claim, &json!({"spec": spec}));
            self.objects.create(&claim).await
        }))
        .await
    }

    /// Waits until the first claims have their volumes.
    pub async fn wait_first(&self, claims: &[Value]) -> rig::Result<()> {
        middle(&self.objects, claims).await
    }

    /// Like [`bound_once`].
    pub async fn bound_once(&self, claims: &[Value]) -> rig::Result<()> {
        each_bound_once(&self.objects, claims, "/export", &self.data).await
    }
}

/// Creates a backend at this address that is probed in this interval, and a class that uses it.
async fn class_on(env: &TestEnv, word: &str, port: u16, path: &str, interval: &str) -> rig::Result<(Value, Value)> {
    let spec = json!({"path": path, "nfs": {"port": port}, "probeInterval": interval});
    let backend = env.objects.create(&env.backend(word, spec)).await?;
    env.objects
        .wait_condition(&backend, "Ready", "True", None, SEEN)
        .await?;
    let class = env.class(word, json!({"backend": env.unique_name(word)}));
    Ok((backend, env.objects.create(&class).await?))
}

#[tokio::test]
async fn a_hanging_server_delays_no_claim_of_another_backend() -> Test {
    let env = TestEnv::new("hanging").await?;
    for part in ["well", "hangs"] {
        std::fs::create_dir(env.data().join(part))?;
    }
    let well = Proxy::start(nfs_address(&env)).await?;
    let hangs = Proxy::start(nfs_address(&env)).await?;
    // A claim that finds the last probe too old reports only that until the next one succeeds.
    let interval = "10s";
    let path = |part: &str| format!("{}/{part}", env.export());
    let (_, well_class) = class_on(&env, "well", well.port(), &path("well"), interval).await?;
    let (hanging, hanging_class) = class_on(&env, "hangs", hangs.port(), &path("hangs"), interval).await?;

    hangs.hang(true);
    // More claims than it has slots: they must not use those of the other backend.
    let stuck = claims_of(&env, &hanging_class, "stuck", 80).await?;
    let free = claims_of(&env, &well_class, "free", 20).await?;
    let data = env.data().join("well");
    each_bound_once(&env.objects, &free, &format!("{}/well", env.export()), &data).await?;
    let held = phases(&env.objects, stuck.first().unwrap(), &stuck).await?;
    assert!(held.values().all(|phase| phase != "Bound"), "it hangs: {held:?}");
    let noticed = wait_reason(&env, &hanging, "Ready", &["ServerNotResponding"]).await?;
    // The times are not compared: on a busy machine, twenty claims may take longer than a timeout.
    assert_eq!(noticed["status"], "False", "{noticed}");
    wait_reason(&env, stuck.first().unwrap(), PROVISIONED, &["ServerNotResponding"]).await?;

    hangs.hang(false);
    let data = env.data().join("hangs");
    each_bound_once(&env.objects, &stuck, &format!("{}/hangs", env.export()), &data).await?;
    Ok(())
}

async fn restarted_in_the_middle(name: &str, recovery: StableStorage) -> Test {
    let env = TestEnv::new(name).await?;
    let run = RunDir::new()?;
    let mut server = NfsServer::start(&run, NfsOptions::default()).await?;
    let (_, class) = class_on(&env, "restarts", server.port(), "/export", "1s").await?;
    let operator = env.rig.operator.pid();
    let claims = claims_of(&env, &class, "claim", 50).await?;
    middle(&env.objects, &claims).await?;
    server.restart(recovery).await?;
    each_bound_once(&env.objects, &claims, "/export", &server.data_dir("/export")?).await?;
    assert_eq!(
        (env.rig.operator.pid(), env.rig.operator.exit_status()),
        (operator, None)
    );
    Ok(())
}

#[tokio::test]
async fn provisioning_continues_after_the_server_is_killed_and_restarted() -> Test {
    restarted_in_the_middle("restarted", StableStorage::Kept).await
}

#[tokio::test]
async fn provisioning_continues_after_the_server_is_killed_and_loses_its_client_state() -> Test {
    restarted_in_the_middle("forgot", StableStorage::Lost).await
}

#[tokio::test]
async fn provisioning_continues_although_the_connection_is_cut_repeatedly() -> Test {
    let env = TestEnv::new("cut").await?;
    let proxy = Proxy::start(nfs_address(&env)).await?;
    // Slow enough that calls are in flight at every cut.
    proxy.delay(Duration::from_millis(2), Duration::from_millis(2));
    let (_, class) = class_on(&env, "cut", proxy.port(), &env.export(), "1s").await?;
    let before = proxy.accepted();
    let claims = claims_of(&env, &class, "claim", 50).await?;
    for _ in 0..15 {
        // The moment is random; the sleep waits for nothing.
        let pause = rand::rng().random_range(5..150);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        proxy.cut().await;
    }
    bound_once(&env, &claims).await?;
    assert!(proxy.accepted() > before, "it was cut at least once while in use");
    Ok(())
}
