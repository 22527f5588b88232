//! Common steps: backends, classes, claims and volumes.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rig::objects::{merge, reference};
use rig::{Objects, TestEnv, wait};
use serde_json::{Value, json};

pub type Test = Result<(), Box<dyn std::error::Error>>;

/// Timeout for a state that is reached in seconds on an idle machine.
pub const TIMEOUT: Duration = Duration::from_secs(240);
/// A directory pattern without a unique part: the next claim with the same name gets the same directory name.
pub const REUSED: &str = "${pvc.namespace}-${pvc.name}";

/// Creates a backend and waits until it is Ready.
pub async fn backend(env: &TestEnv, word: &str, spec: Value) -> rig::Result<Value> {
    let backend = env.objects.create(&env.backend(word, spec)).await?;
    let ready = env.objects.wait_condition(&backend, "Ready", "True", None, TIMEOUT);
    ready.await.map(|_| backend)
}

/// Creates a class on a backend.
pub async fn class(env: &TestEnv, word: &str, backend: &str, parameters: Value) -> rig::Result<Value> {
    let mut all = json!({ "backend": env.unique_name(backend) });
    merge(&mut all, &parameters);
    env.objects.create(&env.class(word, all)).await
}

/// Creates a claim and waits until it is Bound. Returns it with its volume.
pub async fn bound(env: &TestEnv, name: &str, class: &Value) -> rig::Result<(Value, Value)> {
    let claim = env.objects.create(&env.claim(name, class)).await?;
    let volume = env.wait_bound(&claim).await?;
    Ok((claim, volume))
}

/// The same, with a file `data` in its directory that holds `text`.
pub async fn bound_with_data(env: &TestEnv, name: &str, class: &Value, text: &str) -> Result<(Value, Value), Failure> {
    let (claim, volume) = bound(env, name, class).await?;
    fs::write(env.directory(&volume)?.join("data"), text)?;
    Ok((claim, volume))
}

pub type Failure = Box<dyn std::error::Error>;

/// Deletes a claim and waits until its volume is gone. Returns the line of the operator's log with this reason.
pub async fn reclaim(env: &TestEnv, claim: &Value, volume: &Value, reason: &str) -> rig::Result<String> {
    env.objects.delete(claim).await?;
    env.objects.wait_gone(volume, TIMEOUT).await?;
    wait_reclaimed(env, volume, reason).await
}

/// Waits until the operator has logged that it reclaimed a volume, for this reason. Returns the line.
pub async fn wait_reclaimed(env: &TestEnv, volume: &Value, reason: &str) -> rig::Result<String> {
    let fields = [
        "nfs_operator::controllers::volume::report: ".to_owned(),
        format!("volume={:?} ", text(volume, "/metadata/name")),
        format!("reason={reason}"),
    ];
    wait::until(&format!("{} in the log", fields[1..].concat()), TIMEOUT, async || {
        let log = fs::read_to_string(env.rig.operator.log()).map_err(|error| error.to_string())?;
        let line = log.lines().find(|line| fields.iter().all(|field| line.contains(field)));
        line.map(str::to_owned).ok_or_else(|| "no such line".to_owned())
    })
    .await
}

/// Returns the operator's events about an object. The control plane has its own about claims, such as those of a class that
/// it does not know yet.
pub async fn own_events(objects: &Objects, object: &Value) -> rig::Result<Vec<Value>> {
    let mut events = objects.events(object).await?;
    events.retain(|event| text(event, "/reportingController") == "nfs-operator.io/nfs");
    Ok(events)
}

/// Waits until a claim is not provisioned for this reason. Returns the message.
pub async fn wait_refused(env: &TestEnv, claim: &Value, reason: &str) -> rig::Result<String> {
    let kind = "nfs-operator.io/Provisioned";
    let reported = env.objects.wait_condition(claim, kind, "False", Some(reason), TIMEOUT);
    Ok(reported.await?["message"].as_str().unwrap_or_default().to_owned())
}

/// Waits until the reclaim of a volume is refused. Returns the note of the event.
pub async fn wait_reclaim_refused(env: &TestEnv, volume: &Value) -> rig::Result<String> {
    let event = env.objects.wait_event(volume, "VolumeFailedDelete", TIMEOUT).await?;
    Ok(event["note"].as_str().unwrap_or_default().to_owned())
}

/// Returns the sorted names at the root of an export, without the operator's folder.
pub fn names(root: &Path) -> std::io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(root)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.retain(|name| name != ".nfs-operator");
    names.sort();
    Ok(names)
}

/// Returns the sorted archives at the root of an export.
pub fn archives(root: &Path) -> std::io::Result<Vec<String>> {
    let mut names = names(root)?;
    names.retain(|name| name.starts_with("archived-"));
    Ok(names)
}

/// Waits until this cluster's trash on an export is empty.
pub async fn wait_trash_empty(root: &Path) -> rig::Result<()> {
    wait::until("the trash to be empty", TIMEOUT, async || {
        let folders = fs::read_dir(root.join(".nfs-operator")).map_err(|error| error.to_string())?;
        let mut left = Vec::new();
        for folder in folders.flatten().filter(|folder| folder.path().is_dir()) {
            let trash = fs::read_dir(folder.path().join("trash")).map_err(|error| error.to_string())?;
            left.extend(trash.flatten().map(|entry| entry.path()));
        }
        match left.first() {
            None => Ok(()),
            Some(entry) => Err(format!(
                "{} entries, {} among them",
                left.len(),
                first_leaf(entry).display()
            )),
        }
    })
    .await
}

/// Returns the path of something in a tree that contains nothing else: it shows what a purge could not remove.
fn first_leaf(tree: &Path) -> PathBuf {
    let child = fs::read_dir(tree).ok().and_then(|mut entries| entries.next()?.ok());
    match child {
        Some(child) if child.file_type().is_ok_and(|kind| kind.is_dir()) => first_leaf(&child.path()),
        Some(child) => child.path(),
        None => tree.to_owned(),
    }
}

/// Creates a static volume of a class: a directory `word` on the export, with `word` in its file `data`.
pub async fn static_volume(env: &TestEnv, word: &str, class: &str) -> Result<Value, Failure> {
    let directory = env.data().join(word);
    fs::create_dir(&directory)?;
    fs::write(directory.join("data"), word)?;
    let mut volume = reference("v1", "PersistentVolume", None, &env.unique_name(word));
    let spec = json!({
        "accessModes": ["ReadWriteMany"],
        "capacity": { "storage": "1Mi" },
        "nfs": { "server": "127.0.0.1", "path": format!("{}/{word}", env.export()) },
        "persistentVolumeReclaimPolicy": "Delete",
        "storageClassName": class,
    });
    merge(&mut volume, &json!({ "spec": spec }));
    let volume = env.objects.create(&volume).await?;
    // Until the binder knows the volume, it would request another one.
    let available = |volume: &Value| match text(volume, "/status/phase") {
        "Available" => Ok(()),
        phase => Err(phase.to_owned()),
    };
    env.objects.wait(&volume, "to be Available", TIMEOUT, available).await?;
    Ok(volume)
}

/// Creates a claim bound to a static volume without a class. Returns both.
pub async fn bound_static_volume(env: &TestEnv, word: &str, claim: &str) -> Result<(Value, Value), Failure> {
    let volume = static_volume(env, word, "").await?;
    let mut wants = env.claim(claim, &Value::Null);
    let spec = json!({"storageClassName": "", "volumeName": text(&volume, "/metadata/name")});
    merge(&mut wants, &json!({ "spec": spec }));
    let claim = env.objects.create(&wants).await?;
    env.wait_bound(&claim).await?;
    Ok((claim, volume))
}

/// Returns a reference to a backend of this test.
pub fn backend_reference(env: &TestEnv, word: &str) -> Value {
    reference("nfs-operator.io/v1alpha1", "NfsBackend", None, &env.unique_name(word))
}

/// Returns a text of an object; empty if it does not exist.
pub fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Checks that the present value of a one-shot request on a backend was handled. The annotation itself stays.
pub fn is_handled(backend: &Value, annotation: &str) -> Result<(), String> {
    let asked = &backend["metadata"]["annotations"][annotation];
    let name = annotation.trim_start_matches("nfs-operator.io/");
    let handled = backend["status"]["handledRequests"].as_array();
    let handled = handled.into_iter().flatten().find(|handled| handled["name"] == name);
    match handled {
        Some(handled) if asked.is_string() && handled["value"] == *asked => Ok(()),
        handled => Err(format!("it asks for {asked}, and handled {handled:?}")),
    }
}

/// Annotates a backend that is being deleted with its UID, which lets go of it.
pub async fn abandon(env: &TestEnv, backend: &Value) -> Test {
    let found = env.objects.get(backend).await?.ok_or("the backend is gone")?;
    let uid = text(&found, "/metadata/uid");
    let abandon = serde_json::json!({ "metadata": { "annotations": { "nfs-operator.io/abandon-volumes": uid } } });
    env.objects.patch(backend, abandon).await?;
    Ok(())
}
