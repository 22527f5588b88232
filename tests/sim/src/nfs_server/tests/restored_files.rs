//! An export that was restored file by file, where each directory has the fileid that another one had before.

use std::collections::BTreeMap;
use std::sync::Arc;

use export_store::{
    Acceptance, ArchiveMetadata, Decided, DirectoryRequest, ExportStore, PathReservations, ReclaimRequest, Reclaimed,
};
use nfs_client::FsId;

use super::super::file_system::{AttributeChanges, Caller, Content, Directory, Ino, Kind, Removal};
use super::late_changes::{exists, request, store};
use super::*;

const ROOT: &Caller = &Caller::ROOT;
/// More numbers than the export has objects.
const NUMBERS: Ino = 1000;

/// Returns a copy of the files of a disk, in which some directories have these numbers.
fn restored(disk: &FileSystem, numbers: &BTreeMap<Vec<u8>, Ino>) -> FileSystem {
    let mut copy = FileSystem::new(FileSystemOptions {
        fsid: FsId { major: 2, minor: 0 },
        ..FileSystemOptions::default()
    });
    let root = copy.root();
    let fillers: Vec<String> = (0..NUMBERS).map(|number| format!("filler-{number}")).collect();
    for filler in &fillers {
        let folder = Kind::Directory(Directory::new(root));
        let created = copy.create(ROOT, root, filler.as_bytes(), folder, AttributeChanges::default());
        created.unwrap();
    }
    for filler in &fillers {
        copy.remove(ROOT, root, filler.as_bytes(), Removal::Any).unwrap();
    }
    let mut found = disk.walk(disk.root());
    // Before anything else takes the numbers.
    found.sort_by_key(|found| !numbers.contains_key(&found.path));
    // By the number in the original.
    let mut copies = BTreeMap::from([(disk.root(), root)]);
    for found in found.iter().filter(|found| found.ino != disk.root()) {
        let (parent, name) = found.inode.names.first().unwrap();
        let parent = *copies.get(parent).unwrap();
        let kind = match &found.inode.kind {
            Kind::Directory(_) => Kind::Directory(Directory::new(parent)),
            Kind::Regular(_) => Kind::Regular(Content::default()),
            other => other.clone(),
        };
        if let Some(number) = numbers.get(&found.path) {
            copy.reserve_number(*number).unwrap();
        }
        let attributes = AttributeChanges {
            mode: Some(found.inode.mode),
            uid: Some(found.inode.uid),
            gid: Some(found.inode.gid),
            ..AttributeChanges::default()
        };
        let ino = copy.create(ROOT, parent, name, kind, attributes).unwrap();
        if let Some(content) = found.inode.content() {
            copy.set_content(ino, content.clone()).unwrap();
        }
        copies.insert(found.ino, ino);
    }
    copy
}

fn reclaim(request: &DirectoryRequest, file_id: u64) -> ReclaimRequest {
    ReclaimRequest {
        claim: request.claim.clone(),
        volume: request.volume.clone(),
        directory: request.directory.clone(),
        file_id: Some(file_id),
        archive_metadata: ArchiveMetadata::default(),
    }
}

/// Provisions a claim with a file. Returns the request to reclaim it.
async fn provision(server: &NfsServer, store: &ExportStore, claim: &str) -> ReclaimRequest {
    let wanted = request(claim);
    let file_id = store.provision(&wanted).await.unwrap().file_id;
    let mut disk = server.snapshot("disk").unwrap();
    let file = Kind::Regular(Content::default());
    let created = disk.create(ROOT, file_id, b"data", file, AttributeChanges::default());
    created.unwrap();
    server.insert_disk("disk", disk);
    reclaim(&wanted, file_id)
}

/// Accepts the directory of a volume. Returns its fileid, or why it is refused.
async fn accept(store: &ExportStore, volume: &ReclaimRequest) -> Result<u64, String> {
    match store.accept_directory(&volume.volume, Some(volume)).await.unwrap() {
        Acceptance::Accepted(accepted) => Ok(accepted.file_id),
        Acceptance::Refused(why) => Err(why),
        Acceptance::OtherBackend(other) => Err(other),
    }
}

#[tokio::test(start_paused = true)]
async fn directories_that_swapped_their_fileids_are_accepted_after_a_restore_and_not_if_somebody_renamed_them() {
    for protocol in ALL {
        for renamed in [false, true] {
            let (server, host) = start();
            let reservations = Arc::new(PathReservations::new());
            let former = store(&host, protocol, 1, &reservations).await;
            let (one, two) = (
                provision(&server, &former, "one").await,
                provision(&server, &former, "two").await,
            );
            let gone = provision(&server, &former, "gone").await;
            let archive = match former.archive(&gone, &Decided).await.unwrap() {
                Reclaimed::Archived { name, .. } => Some(name),
                _ => None,
            };
            let archive = archive.unwrap();
            let mut disk = server.snapshot("disk").unwrap();
            if renamed {
                let root = disk.root();
                for (from, to) in [("one", "aside"), ("two", "one"), ("aside", "two")] {
                    disk.rename(ROOT, (root, from.as_bytes()), (root, to.as_bytes()))
                        .unwrap();
                }
            } else {
                let id = |volume: &ReclaimRequest| volume.file_id.unwrap();
                let numbers = [("one", id(&two)), ("two", id(&gone)), (archive.as_str(), id(&one))];
                let numbers = numbers.map(|(path, number)| (path.as_bytes().to_vec(), number));
                disk = restored(&disk, &BTreeMap::from(numbers));
            }
            server.insert_disk("disk", disk);
            // The operator starts again.
            let store = store(&host, protocol, 1, &Arc::new(PathReservations::new())).await;
            store.recover(&|_| false).await.unwrap();
            let refused = store.delete(&one, &Decided).await.unwrap_err();
            assert!(exists(&server, "one/data"), "{refused}");

            let accepted = [accept(&store, &one).await, accept(&store, &two).await];
            if renamed {
                let expected =
                    ["two", "one"].map(|other| Err(format!("has the fileid of the directory of volume pvc-{other}")));
                let accepted =
                    accepted.map(|accepted| accepted.map_err(|why| why.split_once(' ').unwrap().1.to_owned()));
                assert_eq!(accepted, expected, "{protocol}");
                continue;
            }
            let id = |volume: &ReclaimRequest| volume.file_id.unwrap();
            assert_eq!(accepted, [Ok(id(&two)), Ok(id(&gone))], "{protocol}");
            let of_archive = store.accept_directory(&gone.volume, None).await.unwrap();
            assert!(
                matches!(&of_archive, Acceptance::Accepted(found) if found.archive && found.changed && found.file_id == id(&one)),
                "{protocol}: {of_archive:?}"
            );
            assert!(store.find_archive(&gone.volume).await.unwrap().unwrap().exists);
            let now = ReclaimRequest {
                file_id: Some(id(&two)),
                ..one.clone()
            };
            // Again, as after a lost reply, and with the volume as it is now.
            assert_eq!(accept(&store, &now).await, Ok(id(&two)));
            store.delete(&now, &Decided).await.unwrap();
            assert!(!exists(&server, "one") && exists(&server, "two/data"), "{protocol}");
            assert!(exists(&server, &format!("{archive}/data")));
        }
    }
}
