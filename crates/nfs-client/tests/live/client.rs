//! The client with a real server.

use std::os::unix::fs::{MetadataExt, symlink};
use std::path::PathBuf;

use nfs_client::{
    Attributes, Client, ClientOwner, Conditional, FileHandle, FileKind, NewDirectory, NewFile, NfsError, Protocol,
    RemoveOutcome, Rename, SetAttributes, SourcePort, Status, Target, Unchanged, VersionChoice,
};
use rig::{NfsServer, RunDir};

use crate::support::{self, DedicatedServer, mode, name};

fn target(server: &DedicatedServer, owner: &str, verifier: u64) -> Target {
    Target {
        source_port: SourcePort::Reserved,
        owner: ClientOwner {
            owner: owner.as_bytes().to_vec(),
            verifier: verifier.to_be_bytes(),
        },
        ..support::target(server.port, VersionChoice::Auto)
    }
}

async fn connected(server: &DedicatedServer) -> Client {
    Client::connect(target(server, "test", 1)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_is_created_with_mode_and_owner_then_found_renamed_and_removed() {
    let server = DedicatedServer::start().await;
    let export = connected(&server).await;
    println!("{:?}", export.negotiated());
    let root = export.root().await.unwrap().handle;
    let set = SetAttributes {
        mode: Some(0o3771),
        uid: Some(1234),
        gid: Some(4321),
        ..SetAttributes::default()
    };
    let created = export.make_directory(&root, &name("one"), set).await.unwrap();
    assert_eq!((created.mode_refused, created.owner_refused), (None, None));
    let attributes = &created.node.attributes;
    assert_eq!(
        (attributes.mode, attributes.uid, attributes.gid),
        (0o3771, Some(1234), Some(4321))
    );
    let on_disk = std::fs::metadata(server.data().join("one")).unwrap();
    assert_eq!(
        (on_disk.mode() & 0o7777, on_disk.uid(), on_disk.gid()),
        (0o3771, 1234, 4321)
    );
    let again = export.make_directory(&root, &name("one"), set).await.unwrap_err();
    assert_eq!(again.status(), Some(Status::Exists));

    let fileid = attributes.fileid;
    let found = export.lookup(&root, &name("one")).await.unwrap().unwrap();
    assert_eq!(found.attributes.fileid, fileid);
    let stranger = export
        .rename((&root, &name("one")), fileid + 1, (&root, &name("two")))
        .await
        .unwrap_err();
    assert_eq!(stranger.status(), Some(Status::NotSame));
    export
        .rename((&root, &name("one")), fileid, (&root, &name("two")))
        .await
        .unwrap();
    assert_eq!(export.lookup(&root, &name("one")).await.unwrap(), None);
    let deleted = export
        .rename((&root, &name("one")), fileid, (&root, &name("three")))
        .await
        .unwrap_err();
    assert_eq!(deleted.status(), Some(Status::NotFound));

    let stranger = export
        .remove_directory(&root, &name("two"), fileid + 1)
        .await
        .unwrap_err();
    assert_eq!(stranger.status(), Some(Status::NotSame));
    let wrong = export.remove_file(&root, &name("two"), fileid).await.unwrap_err();
    assert_eq!(wrong.status(), Some(Status::IsDirectory));
    export.remove_directory(&root, &name("two"), fileid).await.unwrap();
    assert!(!server.data().join("two").exists());
    export.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_files_are_created_once_read_replaced_and_linked() {
    let server = DedicatedServer::start().await;
    let export = connected(&server).await;
    let root = export.root().await.unwrap().handle;
    let file = export
        .create_file(&root, &name("file"), b"content", 0o600)
        .await
        .unwrap();
    assert_eq!(
        (file.attributes.kind, file.attributes.size, file.attributes.mode),
        (FileKind::Regular, 7, 0o600)
    );
    let again = export
        .create_file(&root, &name("file"), b"other", 0o600)
        .await
        .unwrap_err();
    assert_eq!(again.status(), Some(Status::Exists));
    let read = export.read_file(&root, &name("file"), 7).await.unwrap().unwrap();
    assert_eq!(read.content, b"content");
    assert!(matches!(
        export.read_file(&root, &name("file"), 6).await,
        Err(NfsError::Limit { .. })
    ));
    assert_eq!(export.read_file(&root, &name("none"), 6).await.unwrap(), None);
    let big = vec![7; 300_000];
    export
        .replace_file(&root, &name("file"), &name("file.new"), &big, 0o640)
        .await
        .unwrap();
    assert_eq!(
        export
            .read_file(&root, &name("file"), 1 << 20)
            .await
            .unwrap()
            .unwrap()
            .content,
        big
    );
    assert_eq!(export.lookup(&root, &name("file.new")).await.unwrap(), None);
    let empty = export.create_file(&root, &name("empty"), b"", 0o600).await.unwrap();
    assert_eq!(
        export
            .read_file(&root, &name("empty"), 0)
            .await
            .unwrap()
            .unwrap()
            .content,
        b""
    );
    export.link(&empty.handle, &root, &name("linked")).await.unwrap();
    let taken = export.link(&empty.handle, &root, &name("linked")).await.unwrap_err();
    assert_eq!(taken.status(), Some(Status::Exists));
    assert_eq!(export.attributes(&empty.handle).await.unwrap().links, 2);
    symlink("/etc/passwd", server.data().join("link")).unwrap();
    let link = export.read_file(&root, &name("link"), 10_000).await.unwrap_err();
    assert_eq!(link.status(), Some(Status::Symlink));
    std::fs::create_dir(server.data().join("directory")).unwrap();
    let directory = export.read_file(&root, &name("directory"), 10).await.unwrap_err();
    assert_eq!(directory.status(), Some(Status::IsDirectory));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_directory_is_listed_in_pages_and_emptied_with_many_removals_per_compound() {
    let server = DedicatedServer::start().await;
    let export = connected(&server).await;
    let root = export.root().await.unwrap().handle;
    let trash = export
        .make_directory(&root, &name("trash"), mode(0o700))
        .await
        .unwrap()
        .node
        .handle;
    for number in 0..5000 {
        std::fs::write(
            server
                .data()
                .join(format!("trash/a rather long name to fill pages {number}")),
            b"",
        )
        .unwrap();
    }
    std::fs::create_dir(server.data().join("trash/full")).unwrap();
    std::fs::write(server.data().join("trash/full/file"), b"").unwrap();
    let (mut names, mut pages, mut next) = (vec![name("never there")], 0, None);
    loop {
        let page = export.list(&trash, next).await.unwrap();
        assert!(
            page.entries
                .iter()
                .all(|entry| entry.fileid.is_some() && entry.fsid.is_some())
        );
        names.extend(page.entries.into_iter().map(|entry| entry.name));
        pages += 1;
        next = page.next;
        if next.is_none() {
            break;
        }
    }
    assert_eq!(names.len(), 5002);
    assert!(pages > 1, "{pages} pages");
    let outcomes = export.remove_batch(&trash, &names).await.unwrap();
    let count = |outcome: RemoveOutcome| outcomes.iter().filter(|other| **other == outcome).count();
    assert_eq!(count(RemoveOutcome::Removed), 5000);
    assert_eq!(count(RemoveOutcome::Absent), 1);
    assert_eq!(count(RemoveOutcome::Refused(Status::NotEmpty)), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_path_to_the_export_fails_with_the_reason_and_the_component() {
    let server = DedicatedServer::start().await;
    std::fs::create_dir_all(server.data().join("a/b")).unwrap();
    std::fs::write(server.data().join("a/file"), b"").unwrap();
    symlink("b", server.data().join("a/link")).unwrap();
    let at = |path: &str| {
        let mut target = target(&server, "test", 1);
        target.path = path.to_owned();
        Client::connect(target)
    };
    at("/data/a/b").await.unwrap();
    at("/").await.unwrap();
    let missing = at("/data/a/none/c").await.unwrap_err();
    assert!(
        matches!(&missing, NfsError::ExportNotFound { missing, .. } if missing == "none"),
        "{missing}"
    );
    let link = at("/data/a/link/c").await.unwrap_err();
    assert!(
        matches!(&link, NfsError::SymlinkInPath { component, .. } if component == "link"),
        "{link}"
    );
    let link = at("/data/a/link").await.unwrap_err();
    assert!(
        matches!(&link, NfsError::SymlinkInPath { component, .. } if component == "link"),
        "{link}"
    );
    for path in ["/data/a/file", "/data/a/file/c"] {
        let file = at(path).await.unwrap_err();
        assert!(
            matches!(&file, NfsError::NotADirectory { component, .. } if component == "file"),
            "{file}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_walk_exceeds_one_compound_and_ends_where_a_name_is_missing() {
    let server = DedicatedServer::start().await;
    let export = connected(&server).await;
    let root = export.root().await.unwrap().handle;
    let names: Vec<_> = (0..100).map(|number| name(&format!("d{number}"))).collect();
    let deep: Vec<_> = names.iter().map(ToString::to_string).collect();
    std::fs::create_dir_all(server.data().join(deep.join("/"))).unwrap();
    assert_eq!(export.walk(&root, &names).await.unwrap().len(), 100);
    let mut beyond = names.clone();
    beyond.push(name("missing"));
    beyond.push(name("further"));
    assert_eq!(export.walk(&root, &beyond).await.unwrap().len(), 100);
    assert!(export.statistics().await.unwrap().total > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_statistics_of_an_export_that_was_replaced_are_refused_with_the_reason() {
    let server = DedicatedServer::start().await;
    let whole = connected(&server).await;
    let root = whole.root().await.unwrap().handle;
    let (above, export) = (name("above"), name("export"));
    let above = whole
        .make_directory(&root, &above, mode(0o755))
        .await
        .unwrap()
        .node
        .handle;
    let made = whole.make_directory(&above, &export, mode(0o755)).await.unwrap();
    let fileid = made.node.attributes.fileid;
    let target = Target {
        path: "/data/above/export".to_owned(),
        ..target(&server, "other", 1)
    };
    let client = Client::connect(target).await.unwrap();
    assert!(client.statistics().await.unwrap().total > 0);

    let away = name("away");
    whole.rename((&above, &export), fileid, (&above, &away)).await.unwrap();
    let missing = client.statistics().await.unwrap_err();
    assert!(
        matches!(&missing, NfsError::ExportNotFound { missing, .. } if missing == "export"),
        "{missing}"
    );
    let link = whole.create_symlink(&above, &export, b"away").await.unwrap();
    let refused = client.statistics().await.unwrap_err();
    assert!(
        matches!(&refused, NfsError::SymlinkInPath { component, .. } if component == "export"),
        "{refused}"
    );
    whole
        .remove_file(&above, &export, link.attributes.fileid)
        .await
        .unwrap();
    whole.create_file(&above, &export, b"", 0o600).await.unwrap();
    let refused = client.statistics().await.unwrap_err();
    assert!(
        matches!(&refused, NfsError::NotADirectory { component, .. } if component == "export"),
        "{refused}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operations_continue_after_a_server_restart() {
    let mut server = DedicatedServer::start().await;
    let export = connected(&server).await;
    let root = export.root().await.unwrap().handle;
    let generation = export.generation();
    server.restart().await;
    export.make_directory(&root, &name("after"), mode(0o755)).await.unwrap();
    assert!(export.generation() > generation);
    assert!(server.data().join("after").is_dir());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_leader_fences_the_old_one_and_is_not_fenced_in_turn() {
    let server = DedicatedServer::start().await;
    let old = connected(&server).await;
    let root = old.root().await.unwrap().handle;
    let new = Client::connect(target(&server, "test", 2)).await.unwrap();
    for _ in 0..3 {
        let fenced = old.make_directory(&root, &name("old"), mode(0o755)).await.unwrap_err();
        assert!(matches!(fenced, NfsError::Fenced { .. }), "{fenced}");
        new.root().await.unwrap();
    }
    assert_eq!(new.generation(), 1);
    let other = Client::connect(target(&server, "other", 1)).await.unwrap();
    other.root().await.unwrap();
    new.root().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_versions_that_a_server_offers_are_probed() {
    let server = DedicatedServer::speaking(&[1, 2]).await;
    let offered = Client::probe_versions(&target(&server, "asks", 1)).await.unwrap();
    assert_eq!(
        (offered.v3, offered.v4_0, offered.v4_1, offered.v4_2),
        (false, false, true, true)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_concurrent_calls_share_the_slots_and_all_get_replies() {
    let server = DedicatedServer::start().await;
    let export = connected(&server).await;
    let root = export.root().await.unwrap().handle;
    let calls = (0..1000).map(|number| {
        let (export, root) = (export.clone(), root.clone());
        tokio::spawn(async move {
            export
                .make_directory(&root, &name(&format!("d{number}")), mode(0o750))
                .await
        })
    });
    for call in calls.collect::<Vec<_>>() {
        let created = call.await.unwrap().unwrap();
        assert_eq!(created.node.attributes.mode, 0o750);
    }
    assert_eq!(std::fs::read_dir(server.data()).unwrap().count(), 1000);
    assert_eq!(export.generation(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_whose_reply_is_lost_is_executed_once() {
    let server = DedicatedServer::start().await;
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], server.port));
    let proxy = rig::Proxy::start(address).await.unwrap();
    let mut through = target(&server, "test", 1);
    through.port = proxy.port();
    let export = Client::connect(through).await.unwrap();
    let root = export.root().await.unwrap().handle;
    let created = export.make_directory(&root, &name("a"), mode(0o755)).await.unwrap();
    // Without the reply cache, the repeated call would fail, because the source is gone.
    let lost = proxy.lose_reply(rig::Action::Cut, |record| {
        rig::proxy::has_bytes(record, &rig::proxy::encode_rename(b"a"))
    });
    export
        .rename((&root, &name("a")), created.node.attributes.fileid, (&root, &name("b")))
        .await
        .unwrap();
    assert!(lost.has_happened());
    assert_eq!(export.generation(), 2);
    assert!(server.data().join("b").is_dir());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_squashed_root_gets_a_directory_and_the_refused_owner_is_reported() {
    let server = DedicatedServer::naming_nobody().await;
    std::os::unix::fs::chown(server.data(), Some(65534), Some(65534)).unwrap();
    let export = connected(&server).await;
    let root = export.root().await.unwrap().handle;
    let set = SetAttributes {
        mode: Some(0o711),
        uid: Some(1234),
        gid: None,
        ..SetAttributes::default()
    };
    let created = export.make_directory(&root, &name("d"), set).await.unwrap();
    assert!(
        matches!(created.owner_refused, Some(Status::NotPermitted | Status::Access)),
        "{created:?}"
    );
    assert_eq!((created.mode_refused, created.node.attributes.mode), (None, 0o711));
    // The server sends 65534 as a name without a number.
    let Attributes { uid, owner, .. } = created.node.attributes;
    assert!(uid.is_none() && owner.starts_with("nobody"), "{uid:?} {owner}");
}

/// Connects to a server over each version. Returns the folder of its export, too.
async fn each_version() -> Vec<(Protocol, NfsServer, RunDir, Client, PathBuf)> {
    let mut connected = Vec::new();
    for version in [Protocol::V4_2, Protocol::V4_1, Protocol::V4_0, Protocol::V3] {
        let (server, run) = support::server(version).await;
        let target = Target {
            mount_port: Some(server.mount_port()),
            ..support::target(server.port(), VersionChoice::Exactly(version))
        };
        let data = server.data_dir("/data").unwrap();
        let export = Client::connect(target).await.unwrap();
        connected.push((version, server, run, export, data));
    }
    connected
}

async fn unchanged(export: &Client, directory: &FileHandle) -> Unchanged {
    Unchanged {
        directory: directory.clone(),
        change: export.full_attributes(directory).await.unwrap().change,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rename_is_refused_once_a_directory_was_changed() {
    for (version, _server, _run, export, data) in each_version().await {
        let root = export.root().await.unwrap().handle;
        let watched = export
            .make_directory(&root, &name("watched"), mode(0o755))
            .await
            .unwrap();
        let object = export
            .make_directory(&root, &name("a"), mode(0o755))
            .await
            .unwrap()
            .node;
        let (a, b) = (name("a"), name("b"));
        let condition = [unchanged(&export, &watched.node.handle).await];
        let rename = Rename {
            from: (&root, &a),
            fileid: object.attributes.fileid,
            to: (&root, &b),
            replaces: false,
            unchanged: &condition,
            then_set: Some((&object.handle, mode(0o700))),
        };
        assert!(export.are_unchanged(&condition).await.unwrap(), "{version:?}");
        export
            .create_file(&watched.node.handle, &a, b"new", 0o600)
            .await
            .unwrap();
        assert!(!export.are_unchanged(&condition).await.unwrap(), "{version:?}");
        assert_eq!(
            export.rename_if(&rename).await.unwrap(),
            Conditional::Changed,
            "{version:?}"
        );
        assert!(data.join("a").is_dir() && !data.join("b").exists(), "{version:?}");

        let condition = [unchanged(&export, &watched.node.handle).await];
        let rename = Rename {
            unchanged: &condition,
            ..rename
        };
        let other = Rename {
            fileid: rename.fileid + 1,
            ..rename
        };
        let error = export.rename_if(&other).await.unwrap_err();
        assert_eq!(error.status(), Some(Status::NotSame), "{version:?}");
        let Conditional::Done(set) = export.rename_if(&rename).await.unwrap() else {
            panic!("{version:?}");
        };
        // NFSv3 has no request that does both.
        assert_eq!(set.map(|set| set.mode), (version != Protocol::V3).then_some(0o700));
        let found = std::fs::metadata(data.join("b")).unwrap();
        let expected = if version == Protocol::V3 { 0o755 } else { 0o700 };
        assert_eq!(
            (found.ino(), found.mode() & 0o7777),
            (rename.fileid, expected),
            "{version:?}"
        );

        // The new name is taken; a directory that is gone is changed.
        let taken = Rename {
            from: (&root, &b),
            to: (&root, &name("watched")),
            ..rename
        };
        let error = export.rename_if(&taken).await.unwrap_err();
        assert_eq!(error.status(), Some(Status::Exists), "{version:?}");
        std::fs::remove_dir_all(data.join("watched")).unwrap();
        let back = Rename {
            to: (&root, &a),
            ..taken
        };
        assert_eq!(
            export.rename_if(&back).await.unwrap(),
            Conditional::Changed,
            "{version:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_is_created_after_its_file_and_only_if_nothing_was_changed() {
    for (version, _server, _run, export, data) in each_version().await {
        let root = export.root().await.unwrap().handle;
        let watched = export
            .make_directory(&root, &name("watched"), mode(0o755))
            .await
            .unwrap();
        let (watched, has_session) = (watched.node.handle, matches!(version, Protocol::V4_1 | Protocol::V4_2));
        let create = async |number: u32, condition: &Unchanged, directory: &str| {
            let (file, directory) = (name(&format!("file-{number}")), name(directory));
            let file = NewFile {
                at: (&root, &file),
                content: b"announced",
                mode: 0o600,
            };
            let directory = NewDirectory {
                at: (&root, &directory),
                attributes: SetAttributes {
                    uid: Some(1234),
                    ..mode(0o3771)
                },
            };
            let condition = std::slice::from_ref(condition);
            export.create_file_and_directory(&file, condition, &directory).await
        };
        let has_content = |number: u32| std::fs::read(data.join(format!("file-{number}"))).unwrap() == b"announced";
        let condition = unchanged(&export, &watched).await;
        let made = create(1, &condition, "one").await.unwrap();
        assert!(has_content(1), "{version:?}");
        assert_eq!(
            (made.is_some(), data.join("one").exists()),
            (has_session, has_session),
            "{version:?}"
        );
        if let Some(made) = made {
            assert_eq!((made.mode_refused, made.owner_refused), (None, None));
            let found = std::fs::metadata(data.join("one")).unwrap();
            let attributes = made.node.attributes;
            assert_eq!(
                (attributes.fileid, attributes.mode, attributes.uid),
                (found.ino(), 0o3771, Some(1234))
            );
            assert_eq!((found.mode() & 0o7777, found.uid()), (0o3771, 1234));
        }
        // The name of the file is taken: there is no directory.
        let error = create(1, &condition, "two").await.unwrap_err();
        assert_eq!(error.status(), Some(Status::Exists), "{version:?}");
        assert!(!data.join("two").exists(), "{version:?}");
        // The name of the directory is taken: only the file is created.
        assert_eq!(create(2, &condition, "watched").await.unwrap(), None, "{version:?}");
        assert!(has_content(2), "{version:?}");
        export.create_file(&watched, &name("new"), b"", 0o600).await.unwrap();
        assert_eq!(create(3, &condition, "three").await.unwrap(), None, "{version:?}");
        assert!(has_content(3) && !data.join("three").exists(), "{version:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_walk_lists_the_directory_in_which_the_last_name_is_looked_up() {
    for (version, _server, _run, export, data) in each_version().await {
        let root = export.root().await.unwrap().handle;
        let inside = data.join("a/b");
        std::fs::create_dir_all(&inside).unwrap();
        std::fs::write(data.join("a/file"), b"").unwrap();
        let walk = async |path: &[&str]| {
            let names: Vec<_> = path.iter().map(|part| name(part)).collect();
            let walked = export.walk_and_list(&root, &names).await;
            walked.map(|walked| {
                let is_empty = walked.entries.map(|page| page.entries.is_empty());
                (walked.nodes.len(), is_empty)
            })
        };
        // With NFSv3, the caller lists the directory.
        let listed = |is_empty: bool| (version != Protocol::V3).then_some(is_empty);
        assert_eq!(
            walk(&["a", "b", "none"]).await.unwrap(),
            (2, listed(true)),
            "{version:?}"
        );
        std::fs::create_dir(inside.join("c")).unwrap();
        assert_eq!(
            walk(&["a", "b", "none"]).await.unwrap(),
            (2, listed(false)),
            "{version:?}"
        );
        assert_eq!(walk(&["a", "b", "c"]).await.unwrap(), (3, listed(false)), "{version:?}");
        assert_eq!(walk(&["a", "none", "c"]).await.unwrap(), (1, None), "{version:?}");
        let error = walk(&["a", "file", "c"]).await.unwrap_err();
        assert_eq!(error.status(), Some(Status::NotDirectory), "{version:?}");
        for number in 0..1000 {
            std::fs::write(inside.join(format!("file {number}")), b"").unwrap();
        }
        assert_eq!(walk(&["a", "b", "c"]).await.unwrap(), (3, listed(false)), "{version:?}");
    }
}
