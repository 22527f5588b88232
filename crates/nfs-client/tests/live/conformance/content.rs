//! Operations for copies: ranges of files, symbolic links, all attributes, and operations of NFSv4.2.

use bytes::Bytes;
use nfs_client::{FileKind, FullAttributes, NfsError, SetAttributes, Status, Time, Times};

use super::{Bench, Outcome, name, refused, yes};

/// Returns bytes that depend on their offset.
fn marked(size: usize) -> Bytes {
    (0..size).map(|place| (place / 251) as u8 ^ place as u8).collect()
}

/// Writes all data, even if the server accepts little at a time, and commits it. A server that lost some of it
/// meanwhile (the kernel's server reports this for all files when one disk is full) gets it again.
async fn write_all(bench: &Bench, file: &nfs_client::FileHandle, at: u64, content: &Bytes) {
    for _ in 0..10 {
        let (mut done, mut verifiers) = (0, Vec::new());
        while done < content.len() {
            let rest = content.slice(done..);
            let written = bench.export.write(file, at + done as u64, &rest).await.unwrap();
            assert!(written.count >= 1 && written.count <= rest.len());
            verifiers.push(written.verifier);
            done += written.count;
        }
        let verifier = bench.export.commit(file).await.unwrap();
        if verifiers.iter().all(|seen| *seen == verifier) {
            return;
        }
    }
    panic!("the verifier is never the same");
}

async fn read_all(bench: &Bench, file: &nfs_client::FileHandle) -> Vec<u8> {
    let mut content = Vec::new();
    loop {
        let most = bench.export.max_transfer_sizes().0;
        let data = bench.export.read(file, content.len() as u64, most).await.unwrap();
        assert!(data.bytes.len() <= most);
        content.extend_from_slice(&data.bytes);
        if data.eof {
            return content;
        }
    }
}

pub async fn written_in_parts(bench: Bench) -> Outcome {
    let file = bench
        .export
        .create_file(&bench.folder, &name("file"), b"", 0o600)
        .await
        .unwrap();
    let content = marked(1_500_001);
    write_all(&bench, &file.handle, 0, &content).await;
    assert!(read_all(&bench, &file.handle).await == content);
    // In the middle, and after the end.
    write_all(&bench, &file.handle, 700_000, &Bytes::from_static(b"in the middle")).await;
    write_all(&bench, &file.handle, 2_000_000, &Bytes::from_static(b"behind")).await;
    let read = read_all(&bench, &file.handle).await;
    assert_eq!(read.len(), 2_000_006);
    assert_eq!(&read[700_000..700_013], b"in the middle");
    assert!(read[1_500_001..2_000_000].iter().all(|byte| *byte == 0));
    let behind = bench.export.read(&file.handle, 3_000_000, 10).await.unwrap();
    assert!(behind.bytes.is_empty() && behind.eof);
    yes()
}

pub async fn found_with_its_beginning(bench: Bench) -> Outcome {
    let Bench { export, folder, .. } = bench;
    let content = marked(100_000);
    export
        .create_file(&folder, &name("file"), &content, 0o640)
        .await
        .unwrap();
    let found = export
        .lookup_and_read(&folder, &name("file"), 70_000)
        .await
        .unwrap()
        .unwrap();
    let (data, mark) = found.begin.unwrap();
    assert!(!data.bytes.is_empty() && data.bytes.len() <= 70_000);
    assert_eq!(data.bytes[..], content[..data.bytes.len()]);
    assert!(!mark.differs_from(&found.details.change_token()));
    let mut again = export.full_attributes(&found.handle).await.unwrap();
    // The read changed the access time.
    again.times.accessed = found.details.times.accessed;
    assert_eq!(again, found.details);
    // A change is visible.
    export.write(&found.handle, 5, &Bytes::from_static(b"x")).await.unwrap();
    export.commit(&found.handle).await.unwrap();
    assert!(
        export
            .full_attributes(&found.handle)
            .await
            .unwrap()
            .change_token()
            .differs_from(&mark)
    );
    assert_eq!(export.lookup_and_read(&folder, &name("none"), 10).await.unwrap(), None);
    let prepared = export.root().await.unwrap().handle;
    let prepared = export
        .lookup_and_read(&prepared, &name("prepared"), 10)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(prepared.details.attributes.kind, FileKind::Directory);
    assert!(prepared.begin.is_none());
    let link = export
        .lookup_and_read(&prepared.handle, &name("link"), 10)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(link.details.attributes.kind, FileKind::Symlink);
    assert!(link.begin.is_none());
    yes()
}

pub async fn times_and_size_are_set(bench: Bench) -> Outcome {
    let Bench { export, folder, .. } = bench;
    let file = export
        .create_file(&folder, &name("file"), b"1234567", 0o600)
        .await
        .unwrap();
    let times = Times {
        accessed: Time {
            seconds: 1_000_000_000,
            nanos: 123_456_789,
        },
        modified: Time {
            seconds: 1_234_567_890,
            nanos: 987_654_321,
        },
    };
    let set = SetAttributes {
        mode: Some(0o4751),
        uid: Some(1234),
        gid: Some(4321),
        size: Some(100_000),
        times: Some(times),
    };
    export.set_attributes(&file.handle, set).await.unwrap();
    let FullAttributes {
        attributes,
        times: kept,
        ..
    } = export.full_attributes(&file.handle).await.unwrap();
    assert_eq!(
        (attributes.mode, attributes.uid, attributes.gid, attributes.size),
        (0o4751, Some(1234), Some(4321), 100_000)
    );
    assert_eq!(kept, times);
    yes()
}

pub async fn symbolic_links(bench: Bench) -> Outcome {
    let Bench { export, folder, .. } = bench;
    for (called, target) in [("short", &b"../some where/\xff"[..]), ("long", &[b'x'; 1000][..])] {
        let created = export.create_symlink(&folder, &name(called), target).await.unwrap();
        assert_eq!(created.attributes.kind, FileKind::Symlink);
        assert_eq!(export.read_link(&created.handle).await.unwrap(), target);
        let owner = SetAttributes {
            uid: Some(1234),
            gid: Some(4321),
            ..SetAttributes::default()
        };
        let now = export.set_attributes(&created.handle, owner).await.unwrap();
        assert_eq!((now.uid, now.gid), (Some(1234), Some(4321)));
    }
    let again = export
        .create_symlink(&folder, &name("short"), b"other")
        .await
        .unwrap_err();
    assert_eq!(again.status(), Some(Status::Exists));
    let file = export.create_file(&folder, &name("file"), b"", 0o600).await.unwrap();
    assert!(export.read_link(&file.handle).await.unwrap_err().status().is_some());
    yes()
}

/// Creates a file of 4 MiB with data in the first and third MiB only.
async fn sparse(bench: &Bench, called: &str) -> nfs_client::FileHandle {
    let file = bench
        .export
        .create_file(&bench.folder, &name(called), b"", 0o600)
        .await
        .unwrap();
    write_all(bench, &file.handle, 0, &marked(4096)).await;
    write_all(bench, &file.handle, 2 << 20, &marked(4096)).await;
    let size = SetAttributes {
        size: Some(4 << 20),
        ..SetAttributes::default()
    };
    bench.export.set_attributes(&file.handle, size).await.unwrap();
    file.handle
}

pub async fn holes(bench: Bench) -> Outcome {
    let file = sparse(&bench, "file").await;
    let details = bench.export.full_attributes(&file).await.unwrap();
    assert!(details.used < details.attributes.size, "{details:?}");
    let first = match bench.export.seek_data(&file, 0).await {
        Ok(first) => first.unwrap(),
        Err(error) => return refused(&error),
    };
    assert_eq!(first, (0, 4096));
    assert_eq!(
        bench.export.seek_data(&file, 4096).await.unwrap(),
        Some((2 << 20, (2 << 20) + 4096))
    );
    assert_eq!(bench.export.seek_data(&file, (2 << 20) + 4096).await.unwrap(), None);
    yes()
}

pub async fn copied_on_the_server(bench: Bench) -> Outcome {
    let from = sparse(&bench, "from").await;
    let to = bench
        .export
        .create_file(&bench.folder, &name("to"), b"", 0o600)
        .await
        .unwrap()
        .handle;
    let mut done = 0;
    while done < 4096 {
        let (from, to) = ((&from, (2 << 20) + done), (&to, 100 + done));
        match bench.export.copy(from, to, 4096 - done).await {
            Ok(copied) => {
                assert!(copied.count >= 1 && copied.count <= 4096 - done);
                done += copied.count;
            }
            Err(error) => return refused(&error),
        }
    }
    bench.export.commit(&to).await.unwrap();
    let read = read_all(&bench, &to).await;
    assert_eq!(read[100..], marked(4096)[..]);
    yes()
}

pub async fn cloned(bench: Bench) -> Outcome {
    let from = sparse(&bench, "from").await;
    let to = bench
        .export
        .create_file(&bench.folder, &name("to"), b"", 0o600)
        .await
        .unwrap()
        .handle;
    if let Err(error) = bench.export.clone_file(&from, &to).await {
        return refused(&error);
    }
    assert!(read_all(&bench, &to).await == read_all(&bench, &from).await);
    yes()
}

pub async fn user_attributes(bench: Bench) -> Outcome {
    let Bench { export, folder, .. } = bench;
    let file = export.create_file(&folder, &name("file"), b"", 0o600).await.unwrap();
    match export.list_xattrs(&file.handle).await {
        Ok(names) => assert!(names.is_empty(), "{names:?}"),
        Err(error) => return refused(&error),
    }
    let long = vec![7; 500];
    for (called, value) in [("colour", &b"blue"[..]), ("empty", b""), ("long", &long)] {
        match export.set_xattr(&file.handle, called.as_bytes(), value).await {
            Ok(()) => {}
            Err(error @ NfsError::Status { .. }) => return refused(&error),
            Err(error) => panic!("{error}"),
        }
        assert_eq!(
            export
                .get_xattr(&file.handle, called.as_bytes())
                .await
                .unwrap()
                .unwrap(),
            value
        );
    }
    export.set_xattr(&file.handle, b"colour", b"red").await.unwrap();
    let mut names = export.list_xattrs(&file.handle).await.unwrap();
    names.sort();
    assert_eq!(names, ["colour", "empty", "long"]);
    assert_eq!(export.get_xattr(&file.handle, b"colour").await.unwrap().unwrap(), "red");
    assert_eq!(export.get_xattr(&file.handle, b"none").await.unwrap(), None);
    yes()
}
