//! The whole operator over NFSv3.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use nfs_client::{Client, NfsError, Protocol, SourcePort, Target, VersionChoice};
use rig::{NfsOptions, NfsServer, RunDir, TestEnv};
use serde_json::{Value, json};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, UnixStream};

use crate::backends::reasons::Broken;
use crate::support::shared::{self, TIMEOUT, Test};

/// A backend's `spec` that pins version 3 on the shared server.
fn pinned(env: &TestEnv) -> Value {
    json!({"nfs": {"version": "3", "mountPort": env.mount_port()}})
}

fn options(volume: &Value) -> Vec<&str> {
    let options = volume.pointer("/spec/mountOptions").and_then(Value::as_array);
    options.into_iter().flatten().filter_map(Value::as_str).collect()
}

#[tokio::test]
async fn a_claim_over_version_3_is_bound_archived_and_deleted_like_any_other() -> Test {
    let env = TestEnv::new("three").await?;
    let backend = shared::backend(&env, "backend", pinned(&env)).await?;
    let seen = env.objects.get(&backend).await?.ok_or("the backend is gone")?;
    assert_eq!(seen.pointer("/status/nfsVersion"), Some(&json!("3")));
    let class = shared::class(&env, "class", "backend", json!({"mode": "2770"})).await?;
    let (claim, volume) = shared::bound_with_data(&env, "kept", &class, "kept").await?;
    let (port, mount_port) = (
        format!("port={}", env.nfs_port()),
        format!("mountport={}", env.mount_port()),
    );
    assert_eq!(options(&volume), ["nfsvers=3", &port, &mount_port, "proto=tcp"]);
    shared::reclaim(&env, &claim, &volume, "VolumeArchived").await?;
    let archives = shared::archives(env.data())?;
    let [archive] = archives.as_slice() else {
        panic!("{archives:?}")
    };
    assert_eq!(fs::read_to_string(env.data().join(archive).join("data"))?, "kept");

    let class = shared::class(&env, "deletes", "backend", json!({"onDelete": "delete"})).await?;
    let (claim, volume) = shared::bound_with_data(&env, "gone", &class, "gone").await?;
    let directory = env.directory(&volume)?;
    for number in 0..100 {
        let below = directory.join(format!("d{number}"));
        fs::create_dir(&below)?;
        fs::write(below.join("file"), "x")?;
    }
    shared::reclaim(&env, &claim, &volume, "VolumeDeleted").await?;
    shared::wait_trash_empty(env.data()).await?;
    assert_eq!(shared::names(env.data())?, archives);
    Ok(())
}

#[tokio::test]
async fn mounts_that_version_3_refuses_are_reported_with_the_reason_and_claims_wait() -> Test {
    let env = TestEnv::new("refused-three").await?;
    symlink("missing", env.data().join("link"))?;
    fs::write(env.data().join("file"), "")?;
    let export = env.export();
    for (word, path, reason) in [
        ("file", format!("{export}/file"), "NotADirectory"),
        ("nowhere", "/nowhere".to_owned(), "ExportNotFound"),
        ("link", format!("{export}/link"), "SymlinkInPath"),
    ] {
        let mut spec = pinned(&env);
        spec["path"] = json!(path);
        let backend = env.objects.create(&env.backend(word, spec)).await?;
        let ready = env
            .objects
            .wait_condition(&backend, "Ready", "False", Some(reason), TIMEOUT);
        let message = ready.await?["message"].clone();
        assert!(
            message.as_str().is_some_and(|message| message.contains(&path)),
            "{message}"
        );
    }
    let mut spec = pinned(&env);
    spec["path"] = json!(format!("{export}/missing"));
    let broken = Broken::from_the_start(&env, spec, &["ExportNotFound"]).await?;
    fs::create_dir(env.data().join("missing"))?;
    broken.recovers().await?;
    Ok(())
}

#[tokio::test]
async fn an_export_that_requires_a_reserved_port_is_reported_over_version_3() -> Test {
    let env = TestEnv::with_export("secure-three", |export| export.extra("PrivilegedPort", "true")).await?;
    let mut spec = pinned(&env);
    spec["nfs"]["sourcePort"] = json!("Any");
    let broken = Broken::from_the_start(&env, spec, &["ReservedPortRequired"]).await?;
    env.objects
        .patch(&broken.backend, json!({"spec": {"nfs": {"sourcePort": "Reserved"}}}))
        .await?;
    broken.recovers().await?;
    Ok(())
}

#[tokio::test]
async fn auto_uses_version_3_if_there_is_no_other_and_keeps_it_while_volumes_exist() -> Test {
    let env = TestEnv::new("auto-three").await?;
    let run = RunDir::new()?;
    let options = NfsOptions {
        minor_versions: vec![],
        v3: true,
        ..NfsOptions::default()
    };
    let mut server = NfsServer::start(&run, options).await?;
    let nfs = json!({"port": server.port(), "mountPort": server.mount_port()});
    let backend = shared::backend(&env, "backend", json!({"path": "/export", "nfs": nfs})).await?;
    wait_version(&env, &backend, "3").await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let (claim, volume) = shared::bound(&env, "first", &class).await?;
    assert!(self::options(&volume).contains(&"nfsvers=3"), "{volume}");

    // A newer version becomes available. A backend with volumes keeps its version, even for a new connection.
    server.set_minor_versions(vec![0, 1, 2]).await?;
    let edited = json!({"spec": {"nfs": {"sourcePort": "Any"}}});
    env.objects.patch(&backend, edited).await?;
    let (second, volume_of_second) = shared::bound(&env, "second", &class).await?;
    assert!(self::options(&volume_of_second).contains(&"nfsvers=3"));
    wait_version(&env, &backend, "3").await?;

    // Without volumes, the next connection uses the newest version.
    shared::reclaim(&env, &claim, &volume, "VolumeDeleted").await?;
    shared::reclaim(&env, &second, &volume_of_second, "VolumeDeleted").await?;
    wait_version(&env, &backend, "4.2").await?;
    let (_, volume) = shared::bound(&env, "third", &class).await?;
    assert!(self::options(&volume).contains(&"nfsvers=4"), "{volume}");

    // It does not fall back automatically.
    server.set_minor_versions(vec![]).await?;
    env.objects
        .wait_condition(&backend, "Ready", "False", Some("ProtocolNotSupported"), TIMEOUT)
        .await?;
    Ok(())
}

/// Forwards connections from `at` to the socket.
async fn forward(at: SocketAddr, socket: PathBuf) -> std::io::Result<()> {
    let listener = TcpListener::bind(at).await?;
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            if let Ok(mut server) = UnixStream::connect(&socket).await {
                tokio::spawn(async move { copy_bidirectional(&mut client, &mut server).await });
            }
        }
    });
    Ok(())
}

#[tokio::test]
async fn without_a_mount_port_rpcbind_is_queried() -> Test {
    let run = RunDir::new()?;
    let options = NfsOptions {
        v3: true,
        ..NfsOptions::default()
    };
    let server = NfsServer::start(&run, options).await?;
    // Port 111 belongs to an rpcbind of this machine, if one runs.
    let rpcbind = SocketAddr::from(([127, 0, 0, 1], rig::ports::free()?));
    let target = Target {
        rpcbind_port: rpcbind.port(),
        version: VersionChoice::Exactly(Protocol::V3),
        port: server.port(),
        source_port: SourcePort::Any,
        deadline: TIMEOUT,
        ..Target::new("127.0.0.1", "/export")
    };
    let closed = Client::connect(target.clone())
        .await
        .err()
        .ok_or("connected without rpcbind")?;
    assert!(
        matches!(closed, NfsError::ConnectionRefused { peer } if peer == rpcbind),
        "{closed}"
    );
    forward(rpcbind, server.rpcbind().ok_or("a server without rpcbind")?).await?;
    let export = Client::connect(target).await?;
    assert_eq!(export.negotiated().protocol, Protocol::V3);
    export.root().await?;
    export.close().await;
    Ok(())
}

async fn wait_version(env: &TestEnv, backend: &Value, version: &str) -> rig::Result<()> {
    let what = format!("to speak {version}");
    let speaks = |backend: &Value| match backend.pointer("/status/nfsVersion").and_then(Value::as_str) {
        Some(spoken) if spoken == version => Ok(()),
        other => Err(format!("{other:?}")),
    };
    env.objects.wait(backend, &what, TIMEOUT, speaks).await
}
