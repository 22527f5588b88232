//! Refusals of a server, and their errors.

use nfs_client::{NfsError, Protocol, SetAttributes, SourcePort, Status};

use super::{Bench, Outcome, listed, mode, name, refused};

pub async fn a_link_in_the_path(bench: Bench) -> Outcome {
    let path = |below: &str| format!("{}/prepared/{below}", bench.server.plain);
    let last = match bench.connect(&path("link")).await {
        Err(error) => error,
        // MOUNT of some servers follows the link without notice.
        Ok(export) => {
            assert_eq!(bench.version, Protocol::V3);
            let led = export.root().await.unwrap().attributes.fileid;
            let direct = bench.connect(&path("directory")).await.unwrap();
            assert_eq!(led, direct.root().await.unwrap().attributes.fileid);
            return Some("followed".to_owned());
        }
    };
    let within = bench.connect(&path("link/further")).await.unwrap_err();
    assert_eq!(refused(&last), refused(&within));
    refused(&last)
}

pub async fn a_file_in_the_path(bench: Bench) -> Outcome {
    let path = |below: &str| format!("{}/prepared/{below}", bench.server.plain);
    let last = bench.connect(&path("file")).await.unwrap_err();
    let within = bench.connect(&path("file/further")).await.unwrap_err();
    assert_eq!(refused(&last), refused(&within));
    refused(&last)
}

pub async fn not_exported(bench: Bench) -> Outcome {
    refused(&bench.connect("/nowhere/at-all").await.unwrap_err())
}

pub async fn read_only(bench: Bench) -> Outcome {
    let export = bench.connect(bench.server.read_only.as_ref()?).await.unwrap();
    let root = export.root().await.unwrap().handle;
    let before = listed(&export, &root).await;
    let made = export.make_directory(&root, &name("new"), mode(0o755)).await;
    let created = export.create_file(&root, &name("new"), b"x", 0o600).await;
    assert_eq!(listed(&export, &root).await, before);
    export.close().await;
    let made = made.unwrap_err();
    assert_eq!(created.unwrap_err().status(), made.status());
    refused(&made)
}

pub async fn root_squashed(bench: Bench) -> Outcome {
    let export = bench.connect(bench.server.root_squash.as_ref()?).await.unwrap();
    let root = export.root().await.unwrap().handle;
    let called = name(&format!("owned-{}", bench.version));
    let set = SetAttributes {
        mode: Some(0o711),
        uid: Some(1234),
        gid: None,
        ..SetAttributes::default()
    };
    let created = export.make_directory(&root, &called, set).await.unwrap();
    let refusal = created.owner_refused.unwrap();
    assert!(matches!(refusal, Status::NotPermitted | Status::Access), "{refusal:?}");
    // Attributes that do not need root are set nevertheless.
    assert_eq!((created.mode_refused, created.node.attributes.mode), (None, 0o711));
    assert_ne!(created.node.attributes.uid, Some(1234));
    export
        .remove_directory(&root, &called, created.node.attributes.fileid)
        .await
        .unwrap();
    export.close().await;
    Some(format!("{refusal:?}"))
}

pub async fn not_a_reserved_port(bench: Bench) -> Outcome {
    let secure = bench.server.secure.as_ref()?;
    // From a reserved port, it is accessible.
    let export = bench.connect(secure).await.unwrap();
    assert!(export.negotiated().reserved_port);
    export.close().await;
    let mut target = bench.server.target(secure, bench.version);
    target.source_port = SourcePort::Any;
    let error = match bench.server.connect(target).await {
        Err(error) => error,
        // Some servers accept the connection and refuse the operations.
        Ok(export) => {
            let root = export.root().await.unwrap().handle;
            let error = export.make_directory(&root, &name("no"), mode(0o755)).await;
            export.close().await;
            error.unwrap_err()
        }
    };
    refused(&error)
}

pub async fn full(bench: Bench) -> Outcome {
    let export = bench.connect(bench.server.small.as_ref()?).await.unwrap();
    let root = export.root().await.unwrap().handle;
    let before = listed(&export, &root).await;
    let content = vec![1; 256 << 10];
    let mut created = Vec::new();
    let error = loop {
        assert!(created.len() < 64, "never full");
        let called = name(&format!("{}-{}", bench.version, created.len()));
        match export.create_file(&root, &called, &content, 0o600).await {
            Ok(_) => created.push(called),
            Err(error) => break error,
        }
    };
    assert!(!created.is_empty());
    // A file without its content would look complete.
    assert_eq!(listed(&export, &root).await.len(), before.len() + created.len());
    assert!(matches!(error.status(), Some(Status::NoSpace | Status::QuotaExceeded)));
    // There is space again after a removal.
    export.remove_batch(&root, &created).await.unwrap();
    let again = export.create_file(&root, &created[0], &content, 0o600).await.unwrap();
    export
        .remove_file(&root, &created[0], again.attributes.fileid)
        .await
        .unwrap();
    export.close().await;
    refused(&error)
}

pub async fn version_not_spoken(bench: Bench) -> Outcome {
    let (server, port, mount_port) = bench.server.without_version.clone()?;
    let mut target = bench.server.target(&bench.server.plain, bench.version);
    (target.server, target.port, target.mount_port) = (server, port, mount_port);
    let error = bench.server.connect(target).await.unwrap_err();
    assert!(matches!(error, NfsError::ProtocolNotSupported { .. }), "{error}");
    refused(&error)
}
