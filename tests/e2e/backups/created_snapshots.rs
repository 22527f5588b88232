//! Snapshots that the operator creates for backups.

use std::fs;
use std::time::Duration;

use nfs_client::{Client, Name, Target};
use rig::objects::{condition, merge};
use rig::{Ceph, NfsOptions, NfsServer, RunDir, TestEnv};
use serde_json::{Value, json};

use super::{archive_of_backup, backup_of, class_with_backups, ready, refused, restoring};
use crate::support::shared::{self, Failure, TIMEOUT, Test, text};

/// The content of an export that is not on the disk of this machine.
struct Remote(Client);

impl Remote {
    async fn connect(server: &NfsServer) -> Result<Self, Failure> {
        let target = Target {
            port: server.port(),
            deadline: Duration::from_secs(30),
            ..Target::new("127.0.0.1", "/export")
        };
        Ok(Self(Client::connect(target).await?))
    }

    async fn directory(&self, name: &str) -> Result<nfs_client::FileRef, Failure> {
        let root = self.0.root().await?;
        let names = [Name::new(name.to_owned())?];
        let found = self.0.walk(&root.handle, &names).await?.pop();
        Ok(found.ok_or_else(|| format!("{name} does not exist"))?)
    }

    async fn write(&self, directory: &str, content: &str) -> Test {
        let (directory, name) = (self.directory(directory).await?, Name::new("data".to_owned())?);
        self.0
            .create_file(&directory.handle, &name, content.as_bytes(), 0o644)
            .await?;
        Ok(())
    }

    async fn read(&self, directory: &str) -> Result<String, Failure> {
        let (directory, name) = (self.directory(directory).await?, Name::new("data".to_owned())?);
        let found = self.0.read_file(&directory.handle, &name, 1000).await?;
        Ok(String::from_utf8(found.ok_or("no file")?.content)?)
    }

    async fn snapshots(&self) -> Result<Vec<String>, Failure> {
        let folder = self.directory(".snap").await?;
        let page = self.0.list(&folder.handle, None).await?;
        Ok(page.entries.into_iter().map(|entry| entry.name.to_string()).collect())
    }
}

fn directory_name(volume: &Value) -> &str {
    text(volume, "/spec/nfs/path").trim_start_matches("/export/")
}

fn of_one_moment(env: &TestEnv) -> Value {
    let mut backup = backup_of(env, "nightly", "data");
    merge(&mut backup, &json!({"spec": {"consistency": "Required"}}));
    backup
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_of_one_moment_on_cephfs_is_made_of_a_snapshot_that_is_removed_afterwards() -> Test {
    let env = TestEnv::new("cephfs").await?;
    let run = RunDir::new()?;
    let ceph = Ceph::start(&run).await?;
    let nfs = ceph.serve(&run, NfsOptions::default()).await?;
    let spec = json!({
        "path": "/export",
        "nfs": {"port": nfs.port()},
        "probeInterval": "1s",
        "snapshots": {"create": true},
        "backups": {"selfService": {"maxBytesPerNamespace": "1Gi"}},
    });
    let backend = shared::backend(&env, "backend", spec).await?;
    let creatable = env
        .objects
        .wait_condition(&backend, "SnapshotsCreatable", "True", None, TIMEOUT);
    creatable.await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let (_, volume) = shared::bound(&env, "data", &class).await?;
    let remote = Remote::connect(&nfs).await?;
    remote.write(directory_name(&volume), "as it was").await?;
    let backup = env.objects.create(&of_one_moment(&env)).await?;
    let backup = ready(&env, &backup).await?;
    let snapshot = text(&backup, "/status/snapshot/name");
    let uid = text(&backend, "/metadata/uid");
    assert!(snapshot.starts_with(&format!("nfs-operator-{uid}-")), "{backup}");
    assert_eq!(remote.snapshots().await?, Vec::<String>::new());
    let archive = env
        .objects
        .get(&archive_of_backup(&backup))
        .await?
        .ok_or("no archive")?;
    assert_eq!(remote.read(text(&archive, "/status/directory")).await?, "as it was");
    let restored = env
        .objects
        .create(&restoring(env.claim("again", &class), "nightly"))
        .await?;
    let restored = env.wait_bound(&restored).await?;
    assert_eq!(remote.read(directory_name(&restored)).await?, "as it was");
    Ok(())
}

#[tokio::test]
async fn a_backend_whose_server_creates_no_snapshots_reports_that() -> Test {
    let env = TestEnv::new("not-creatable").await?;
    let class = class_with_backups(&env, json!({"maxBytesPerNamespace": "10Mi"})).await?;
    let backend = shared::backend_reference(&env, "backend");
    let reported = json!({"spec": {"snapshots": {"create": true}}});
    env.objects.patch(&backend, reported).await?;
    let creatable = env
        .objects
        .wait_condition(&backend, "SnapshotsCreatable", "False", None, TIMEOUT);
    let message = text(&creatable.await?, "/message").to_owned();
    assert!(message.contains("exposes no snapshots"), "{message}");
    shared::bound_with_data(&env, "data", &class, "text").await?;
    let backup = env.objects.create(&of_one_moment(&env)).await?;
    refused(&env, &backup, "SnapshotUnavailable").await?;
    // A directory that only has the name creates directories, and no snapshots.
    fs::create_dir(env.data().join(".snap"))?;
    env.objects.delete(&backup).await?;
    env.objects.wait_gone(&backup, TIMEOUT).await?;
    let backup = env.objects.create(&of_one_moment(&env)).await?;
    let message = refused(&env, &backup, "SnapshotUnavailable").await?;
    assert!(message.contains("is not a snapshot"), "{message}");
    assert_eq!(fs::read_dir(env.data().join(".snap"))?.count(), 0);
    let off = json!({"spec": {"snapshots": {"create": false}}});
    env.objects.patch(&backend, off).await?;
    let gone = |found: &Value| match condition(found, "SnapshotsCreatable") {
        None => Ok(()),
        Some(found) => Err(found.to_string()),
    };
    env.objects
        .wait(&backend, "to drop the condition", TIMEOUT, gone)
        .await?;
    Ok(())
}
