//! An export that was restored file by file, where each directory has the fileid that another one had before.

use std::collections::BTreeMap;
use std::sync::Arc;

use export_store::{
    Acceptance, AcceptanceScope, ArchiveMetadata, Decided, DirectoryRequest, ExportStore, PathReservations, Reclaimed,
    RollbackOutcome, VolumeDirectory,
};

use super::super::file_system::{AttributeChanges, Caller, Content, Directory, Ino, Kind, Removal};
use super::late_changes::{exists, request, store};
use super::*;

const ROOT: &Caller = &Caller::ROOT;
/// More numbers than the export has objects.
const NUMBERS: Ino = 1000;

/// Returns a copy of the files of a disk, in which some directories have these numbers, and a file system of its own unless
/// handles have no generations.
fn restored(disk: &FileSystem, numbers: &BTreeMap<Vec<u8>, Ino>) -> FileSystem {
    let mut options = disk.options().clone();
    options.fsid.major += u64::from(options.generations);
    let mut copy = FileSystem::new(options);
    let root = copy.root();
    let fillers: Vec<String> = (0..NUMBERS).map(|number| format!("filler-{number}")).collect();
    for filler in &fillers {
        let folder = Kind::Directory(Directory::new(root));
        let created = copy.create(ROOT, root, filler.as_bytes(), folder, AttributeChanges::default());
        created.unwrap();
    }
    // The first one stays, so that no other object has its former number by chance.
    for filler in fillers.iter().skip(1) {
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

fn reclaim(request: &DirectoryRequest, file_id: u64) -> VolumeDirectory {
    VolumeDirectory {
        claim: request.claim.clone(),
        volume: request.volume.clone(),
        directory: request.directory.clone(),
        file_id: Some(file_id),
        archive_metadata: ArchiveMetadata::default(),
    }
}

/// Provisions a claim with a file. Returns the volume's directory.
async fn provision(server: &NfsServer, store: &ExportStore, claim: &str) -> VolumeDirectory {
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
async fn accept(store: &ExportStore, scope: AcceptanceScope, volume: &VolumeDirectory) -> Result<u64, String> {
    match store
        .accept_directory(&volume.volume, scope, Ok(Some(volume)))
        .await
        .unwrap()
    {
        Acceptance::Accepted(accepted) => Ok(accepted.file_id),
        Acceptance::Refused(why) => Err(why),
        Acceptance::OtherBackend(other) => Err(other),
    }
}

fn id(volume: &VolumeDirectory) -> u64 {
    volume.file_id.unwrap()
}

/// Returns the volume as its object is once it has another fileid.
fn with_id(volume: &VolumeDirectory, file_id: u64) -> VolumeDirectory {
    VolumeDirectory {
        file_id: Some(file_id),
        ..volume.clone()
    }
}

/// Two volumes with files, and the archive of a third one.
struct Exported {
    server: NfsServer,
    host: Arc<Host>,
    store: ExportStore,
    one: VolumeDirectory,
    two: VolumeDirectory,
    gone: VolumeDirectory,
    archive: String,
}

impl Exported {
    async fn start(protocol: Protocol, generations: bool) -> Self {
        let (server, host) = start();
        server.insert_disk(
            "disk",
            FileSystem::new(FileSystemOptions {
                generations,
                ..FileSystemOptions::default()
            }),
        );
        let store = store(&host, protocol, 1, &Arc::new(PathReservations::new())).await;
        let one = provision(&server, &store, "one").await;
        let two = provision(&server, &store, "two").await;
        let gone = provision(&server, &store, "gone").await;
        let archive = match store.archive(&gone, &Decided).await.unwrap() {
            Reclaimed::Archived { name, .. } => Some(name),
            _ => None,
        };
        Self {
            archive: archive.unwrap(),
            server,
            host,
            store,
            one,
            two,
            gone,
        }
    }

    /// Changes the disk behind the operator's back.
    fn change_disk(&self, change: impl FnOnce(&mut FileSystem)) {
        let mut disk = self.server.snapshot("disk").unwrap();
        change(&mut disk);
        self.server.insert_disk("disk", disk);
    }

    /// Renames directories at the root of the export.
    fn rename(&self, names: &[(&str, &str)]) {
        self.change_disk(|disk| {
            let root = disk.root();
            for (from, to) in names {
                let renamed = disk.rename(ROOT, (root, from.as_bytes()), (root, to.as_bytes()));
                renamed.unwrap();
            }
        });
    }

    /// Restores the export, such that each directory has the fileid that another one had.
    fn restore(&self) {
        let numbers = [
            ("one", id(&self.two)),
            ("two", id(&self.gone)),
            (self.archive.as_str(), id(&self.one)),
        ];
        let numbers = numbers.map(|(path, number)| (path.as_bytes().to_vec(), number));
        self.change_disk(|disk| *disk = restored(disk, &BTreeMap::from(numbers)));
    }

    /// Starts the operator again.
    async fn restart(&mut self, protocol: Protocol) {
        self.store = store(&self.host, protocol, 1, &Arc::new(PathReservations::new())).await;
        self.store.recover(&|_| false).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn directories_that_swapped_their_fileids_in_a_restore_are_accepted() {
    for (protocol, generations) in ALL
        .into_iter()
        .flat_map(|protocol| [(protocol, true), (protocol, false)])
    {
        let what = format!("{protocol}, generations: {generations}");
        let mut exported = Exported::start(protocol, generations).await;
        exported.restore();
        exported.restart(protocol).await;
        let Exported {
            server,
            store,
            one,
            two,
            gone,
            archive,
            ..
        } = &exported;
        store.delete(one, &Decided).await.unwrap_err();
        assert!(exists(server, "one/data"));
        assert_eq!(accept(store, AcceptanceScope::All, one).await, Ok(id(two)), "{what}");
        // Although a record that is not accepted yet has its fileid.
        store.delete(&with_id(one, id(two)), &Decided).await.unwrap();
        assert!(!exists(server, "one") && exists(server, "two/data"), "{what}");

        assert_eq!(accept(store, AcceptanceScope::All, two).await, Ok(id(gone)), "{what}");
        // Again, as after a lost reply, and with the object as it is now.
        let two = with_id(two, id(gone));
        assert_eq!(
            accept(store, AcceptanceScope::Named, &two).await,
            Ok(id(gone)),
            "{what}"
        );
        let accepted = store
            .accept_directory(&gone.volume, AcceptanceScope::All, Ok(None))
            .await;
        let Acceptance::Accepted(accepted) = accepted.unwrap() else {
            unreachable!("an archive")
        };
        let found = (accepted.directory.as_str(), accepted.file_id, accepted.changed);
        assert_eq!(found, (archive.as_str(), id(one), true), "{what}");
        assert!(store.find_archive(&gone.volume).await.unwrap().unwrap().exists);
        store.delete(&two, &Decided).await.unwrap();
        assert!(exists(server, &format!("{archive}/data")), "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn directories_that_somebody_renamed_or_replaced_are_not_accepted_as_copies() {
    for protocol in ALL {
        let exported = Exported::start(protocol, true).await;
        let Exported { store, one, two, .. } = &exported;
        exported.rename(&[("one", "aside"), ("two", "one"), ("aside", "two")]);
        for scope in [AcceptanceScope::All, AcceptanceScope::Named] {
            for (volume, other) in [(one, two), (two, one)] {
                let why = accept(store, scope, volume).await.unwrap_err();
                let expected = format!("has the fileid of the directory of volume {}", other.volume);
                assert!(why.contains(&expected), "{protocol}: {why}");
            }
        }
        exported.rename(&[("two", "aside"), ("one", "two")]);
        let why = accept(store, AcceptanceScope::Named, one).await.unwrap_err();
        assert!(why.contains("does not exist"), "{protocol}: {why}");
        // An administrator may restore a single directory, but has to name it.
        exported.change_disk(|disk| {
            let root = disk.root();
            let folder = Kind::Directory(Directory::new(root));
            let restored = disk.create(ROOT, root, b"one", folder, AttributeChanges::default());
            restored.unwrap();
        });
        let why = accept(store, AcceptanceScope::All, one).await.unwrap_err();
        assert!(why.contains("only its directory was replaced"), "{protocol}: {why}");
        let mut of_another = one.clone();
        of_another.claim.uid = "another".into();
        let why = accept(store, AcceptanceScope::Named, &of_another).await.unwrap_err();
        assert!(why.contains("another claim or directory"), "{protocol}: {why}");
        let accepted = accept(store, AcceptanceScope::Named, one).await;
        assert!(accepted.is_ok_and(|file_id| file_id != id(one)), "{protocol}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_directory_of_another_volume_is_not_accepted_after_the_server_changed_all_handles() {
    for protocol in ALL {
        let mut exported = Exported::start(protocol, true).await;
        exported.rename(&[("one", "aside"), ("two", "one")]);
        exported.change_disk(|disk| disk.options_mut().fsid.major = 2);
        exported.restart(protocol).await;
        for scope in [AcceptanceScope::All, AcceptanceScope::Named] {
            let why = accept(&exported.store, scope, &exported.one).await.unwrap_err();
            let expected = "has the fileid of the directory of volume pvc-two";
            assert!(why.contains(expected), "{protocol}: {why}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_record_whose_claim_is_gone_stays_in_a_copy_until_its_directory_is_accepted() {
    for protocol in ALL {
        let mut exported = Exported::start(protocol, true).await;
        exported.restore();
        exported.restart(protocol).await;
        let Exported { store, one, two, .. } = &exported;
        let kept = store.rollback(&one.volume, &one.claim.uid).await.unwrap();
        assert_eq!(kept, RollbackOutcome::NotEmpty, "{protocol}");
        assert_eq!(
            accept(store, AcceptanceScope::All, one).await,
            Ok(id(two)),
            "{protocol}"
        );
    }
}
