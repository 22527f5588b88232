//! Copies of snapshots of the server.
//!
//! The server of these tests has none. `.snapshot/NAME` is a directory in which the operator's folder is a copy, and the
//! directory of the volume is the original one, with the fileid that its record has; a copy took its place outside.

use std::fs::{self, File, FileTimes};
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use export_store::{
    ArchiveRequest, CopyError, CopyLimits, CopyProgressSnapshot, CopySource, Decided, DirectoryRequest, ErrorKind,
    ExportStore, SnapshotSelector, SnapshotUse, copy_volume,
};
use nfs_client::{Protocol, VersionChoice};
use serde_json::json;

use crate::copy::volume;
use crate::fixture::{CLUSTER, StoreFixture, claim, reclaim, request};
use crate::incremental::{MARGIN, back_up, backup_request};

/// Uses a snapshot that exists.
fn using(selector: SnapshotSelector, required: bool) -> SnapshotUse {
    SnapshotUse {
        selector,
        required,
        create: false,
    }
}

struct Snapshots {
    fixture: StoreFixture,
    export: Arc<ExportStore>,
    file_id: u64,
}

impl Snapshots {
    async fn start(version: VersionChoice) -> Self {
        let fixture = StoreFixture::over(version, rig::Export::new("/export")).await;
        let export = Arc::new(fixture.store().await);
        let file_id = volume(&export, "old").await;
        fs::write(fixture.on_disk("old/file"), "then").unwrap();
        Self {
            fixture,
            export,
            file_id,
        }
    }

    fn copy(&self, from: &str, to: &str) {
        let (from, to) = (self.fixture.on_disk(from), self.fixture.on_disk(to));
        assert!(
            Command::new("cp")
                .arg("-a")
                .args([from, to])
                .status()
                .unwrap()
                .success()
        );
    }

    /// Returns a path in a snapshot.
    fn path(&self, snapshot: &str, path: &str) -> PathBuf {
        self.fixture.on_disk(&format!(".snapshot/{snapshot}/{path}"))
    }

    /// Makes a snapshot that does not prove whose the volume's directory in it is, which is a copy.
    fn take_copy(&self, name: &str) {
        fs::create_dir_all(self.fixture.on_disk(&format!(".snapshot/{name}"))).unwrap();
        for folder in [".nfs-operator", "old"] {
            self.copy(folder, &format!(".snapshot/{name}/{folder}"));
        }
        fs::write(self.beacon(name), "renewed").unwrap();
    }

    /// Makes a snapshot with the directory of the volume.
    fn take(&self, name: &str) {
        self.take_copy(name);
        fs::remove_dir_all(self.path(name, "old")).unwrap();
        fs::rename(self.fixture.on_disk("old"), self.path(name, "old")).unwrap();
        self.copy(&format!(".snapshot/{name}/old"), "old");
    }

    fn beacon(&self, snapshot: &str) -> PathBuf {
        self.path(snapshot, &format!(".nfs-operator/{CLUSTER}/beacon"))
    }

    fn record(&self, snapshot: &str) -> PathBuf {
        self.path(snapshot, &format!(".nfs-operator/{CLUSTER}/records/pvc-old"))
    }

    /// Sets how long ago the beacon was renewed before a snapshot.
    fn renewed(&self, snapshot: &str, ago: Duration) {
        let times = FileTimes::new().set_modified(SystemTime::now() - ago);
        File::open(self.beacon(snapshot)).unwrap().set_times(times).unwrap();
    }

    async fn back_up_as(
        &self,
        name: &str,
        bases: &[&str],
        snapshot: Option<SnapshotUse>,
    ) -> Result<CopyProgressSnapshot, CopyError> {
        let request = ArchiveRequest {
            snapshot,
            ..backup_request(name, self.file_id, bases)
        };
        back_up(&self.export, (&self.export, &request)).await
    }

    async fn back_up(&self, name: &str, max_age: Option<Duration>, required: bool) -> Result<(), CopyError> {
        let selector = SnapshotSelector::Newest { max_age };
        let made = self.back_up_as(name, &[], Some(using(selector, required))).await;
        made.map(drop)
    }

    /// Fails to make a backup of the newest snapshot, and returns why.
    async fn refused(&self, max_age: Option<Duration>) -> String {
        let error = self.back_up("refused", max_age, true).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SnapshotUnavailable, "{error}");
        assert_eq!(self.fixture.records(), ["pvc-old"], "nothing was begun");
        error.to_string()
    }

    fn content(&self, archive: &str) -> String {
        fs::read_to_string(self.fixture.on_disk(&format!("archived-{archive}/file"))).unwrap()
    }
}

async fn backs_up_one_moment(version: VersionChoice) {
    let snapshots = Snapshots::start(version).await;
    snapshots.take("nightly");
    fs::write(snapshots.fixture.on_disk("old/file"), "now").unwrap();
    fs::write(snapshots.fixture.on_disk("old/later"), "now").unwrap();
    snapshots.back_up("one", None, true).await.unwrap();
    assert_eq!(snapshots.content("one"), "then");
    assert!(!snapshots.fixture.on_disk("archived-one/later").exists());
    let copy = snapshots.fixture.record("one").pointer("/state/copy").unwrap().clone();
    assert_eq!(copy.pointer("/snapshot/name").unwrap(), "nightly");
    let renewed = fs::metadata(snapshots.beacon("nightly")).unwrap().mtime();
    assert_eq!(copy.pointer("/snapshot/takenAfter").unwrap(), &json!(renewed));
    let outcome = copy["outcome"].as_str().unwrap();
    assert!(outcome.ends_with("; from snapshot nightly"), "{outcome}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_of_a_snapshot_has_the_data_of_that_moment() {
    backs_up_one_moment(VersionChoice::Auto).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_of_a_snapshot_has_the_data_of_that_moment_over_nfsv3() {
    backs_up_one_moment(VersionChoice::Exactly(Protocol::V3)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_is_cloned_from_a_snapshot_by_its_name() {
    let snapshots = Snapshots::start(VersionChoice::Auto).await;
    snapshots.take("hourly.2026-11-22_0205");
    fs::write(snapshots.fixture.on_disk("old/file"), "now").unwrap();
    snapshots.take_copy("newer");
    let clone = async |uid: &str, name: &str| {
        let of = reclaim("old", "old", snapshots.file_id);
        let of = CopySource::Snapshot(of, SnapshotSelector::Named(name.to_owned()));
        let (limits, new) = (CopyLimits::default(), request(uid, uid));
        let export = &snapshots.export;
        copy_volume((export, &of), (export, &new), &limits, &Arc::default()).await
    };
    clone("new", "hourly.2026-11-22_0205").await.unwrap();
    assert_eq!(
        fs::read_to_string(snapshots.fixture.on_disk("new/file")).unwrap(),
        "then"
    );
    for name in ["missing", "..", "hourly.2026-11-22_0205/old", ""] {
        let error = clone("other", name).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SnapshotUnavailable, "{error}");
        assert!(!error.is_target_error(), "another backend would not have it either");
    }
    assert!(!snapshots.fixture.on_disk("other").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_newest_snapshot_is_the_one_with_the_newest_beacon() {
    let snapshots = Snapshots::start(VersionChoice::Auto).await;
    for (name, ago) in [("z", 300), ("b", 100), ("m", 200)] {
        snapshots.take_copy(name);
        snapshots.renewed(name, Duration::from_secs(ago));
    }
    // Made before the operator used the export.
    fs::create_dir(snapshots.fixture.on_disk(".snapshot/zz")).unwrap();
    assert!(snapshots.refused(None).await.contains("snapshot b "));
    snapshots.take("a");
    snapshots.back_up("one", None, true).await.unwrap();
    assert_eq!(snapshots.content("one"), "then");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_that_may_be_too_old_is_not_copied() {
    let snapshots = Snapshots::start(VersionChoice::Auto).await;
    snapshots.take("old");
    snapshots.renewed("old", Duration::from_secs(1000));
    let why = snapshots.refused(Some(Duration::from_secs(900))).await;
    assert!(why.contains("the maximum is 900 s"), "{why}");
    snapshots
        .back_up("one", Some(Duration::from_secs(2000)), true)
        .await
        .unwrap();
}

/// Changes a snapshot so that it does not prove whose the directory in it is.
type Tamper = (&'static str, fn(&Snapshots));

const WITHOUT_PROOF: [Tamper; 7] = [
    ("is not the directory in the record", |snapshots| {
        // The name had another directory at that time.
        fs::rename(snapshots.path("s", "old"), snapshots.path("s", "elsewhere")).unwrap();
        snapshots.copy(".snapshot/s/elsewhere", ".snapshot/s/old");
    }),
    ("is not the directory in the record", |snapshots| {
        fs::rename(snapshots.path("s", "old"), snapshots.path("s", "elsewhere")).unwrap();
        symlink("elsewhere", snapshots.path("s", "old")).unwrap();
    }),
    ("has no record of volume pvc-old", |snapshots| {
        fs::remove_file(snapshots.record("s")).unwrap();
    }),
    ("did not sign", |snapshots| {
        let record = fs::read_to_string(snapshots.record("s")).unwrap();
        fs::write(snapshots.record("s"), record.replace("\"team\"", "\"other\"")).unwrap();
    }),
    ("unreadable record", |snapshots| {
        // The signed record of another volume, under the name of this one.
        let (own, other) = (snapshots.record("s"), snapshots.record("s").with_file_name("pvc-1"));
        let signed = snapshots
            .fixture
            .on_disk(&format!(".nfs-operator/{CLUSTER}/records/pvc-1"));
        fs::copy(signed, &other).unwrap();
        fs::rename(other, own).unwrap();
    }),
    ("unfinished", |snapshots| {
        // Signed when the directory was an archive.
        fs::copy(snapshots.fixture.on_disk("archived"), snapshots.record("s")).unwrap();
    }),
    ("another claim", |snapshots| {
        fs::copy(snapshots.fixture.on_disk("former"), snapshots.record("s")).unwrap();
    }),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_without_proof_whose_the_directory_was_is_not_read() {
    for (expected, tamper) in WITHOUT_PROOF {
        let snapshots = Snapshots::start(VersionChoice::Auto).await;
        signed_records(&snapshots).await;
        snapshots.take("s");
        fs::write(snapshots.fixture.on_disk("old/file"), "now").unwrap();
        tamper(&snapshots);
        let error = snapshots.back_up("one", None, true).await.unwrap_err();
        assert!(
            error.kind() == ErrorKind::SnapshotUnavailable && error.to_string().contains(expected),
            "{expected}: {error}"
        );
        assert!(!snapshots.fixture.on_disk("archived-one").exists());
    }
}

/// Keeps records that this cluster signed: of another volume; of `pvc-old` as an archive; and of `pvc-old` when another claim
/// had it.
async fn signed_records(snapshots: &Snapshots) {
    let (fixture, export) = (&snapshots.fixture, &snapshots.export);
    volume(export, "1").await;
    let path = fixture.on_disk(&format!(".nfs-operator/{CLUSTER}/records/pvc-old"));
    let (current, live, kept) = (
        fs::read(&path).unwrap(),
        fixture.on_disk("old"),
        fixture.on_disk("kept"),
    );
    fs::rename(&live, &kept).unwrap();
    fs::remove_file(&path).unwrap();
    let former = DirectoryRequest {
        claim: claim("former"),
        ..request("old", "old")
    };
    export.provision(&former).await.unwrap();
    fs::rename(&path, fixture.on_disk("former")).unwrap();
    fs::remove_dir(&live).unwrap();
    let file_id = export.provision(&request("old", "old")).await.unwrap().file_id;
    fs::write(live.join("data"), "data").unwrap();
    export.archive(&reclaim("old", "old", file_id), &Decided).await.unwrap();
    fs::rename(&path, fixture.on_disk("archived")).unwrap();
    fs::rename(kept, live).unwrap();
    fs::write(path, current).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_usable_snapshot_the_data_in_use_are_copied_only_if_one_is_merely_preferred() {
    let snapshots = Snapshots::start(VersionChoice::Auto).await;
    assert_eq!(snapshots.export.snapshot_directory().await.unwrap(), None);
    let why = snapshots.refused(None).await;
    assert!(why.contains("exposes no snapshots"), "{why}");
    snapshots.back_up("one", None, false).await.unwrap();
    assert_eq!(snapshots.content("one"), "then");
    let copy = snapshots.fixture.record("one").pointer("/state/copy").unwrap().clone();
    assert!(copy.get("snapshot").is_none(), "{copy}");
    let outcome = copy["outcome"].as_str().unwrap();
    assert!(
        outcome.contains("there is no snapshot: the server exposes no snapshots"),
        "{outcome}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_directory_that_servers_use_for_snapshots_is_found() {
    let snapshots = Snapshots::start(VersionChoice::Auto).await;
    for path in [".snap", ".snapshot", ".zfs/snapshot"] {
        fs::create_dir_all(snapshots.fixture.on_disk(path)).unwrap();
        assert_eq!(snapshots.export.snapshot_directory().await.unwrap(), Some(path));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_may_have_changed_after_the_snapshot_are_not_those_of_the_previous_backup() {
    let snapshots = Snapshots::start(VersionChoice::Auto).await;
    tokio::time::sleep(MARGIN + Duration::from_millis(1100)).await;
    snapshots.back_up_as("one", &[], None).await.unwrap();
    snapshots.take("s");
    let selector = SnapshotSelector::Newest { max_age: None };
    let using = Some(using(selector, true));
    // Taken before the file was written, as far as the beacon shows.
    snapshots.renewed("s", Duration::from_secs(100));
    let copied = snapshots.back_up_as("two", &["one"], using.clone()).await.unwrap();
    assert_eq!((copied.files, copied.reused_files), (1, 0));
    snapshots.renewed("s", Duration::ZERO);
    let copied = snapshots.back_up_as("three", &["one"], using.clone()).await.unwrap();
    assert_eq!((copied.files, copied.reused_files), (1, 1));
    // Nor does the second backup serve as a base for what it does not know for certain.
    let copied = snapshots.back_up_as("four", &["two"], using.clone()).await.unwrap();
    assert_eq!((copied.files, copied.reused_files), (1, 0));
    let copied = snapshots.back_up_as("five", &["three"], using).await.unwrap();
    assert_eq!((copied.files, copied.reused_files), (1, 1));
}

/// A server whose `.snapshot` shows the current data would not make a backup of one moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_that_change_in_a_snapshot_are_no_backup_of_one_moment() {
    let snapshots = Snapshots::start(VersionChoice::Auto).await;
    fs::write(snapshots.fixture.on_disk("old/file"), vec![1; 30 << 20]).unwrap();
    snapshots.take("s");
    let path = snapshots.path("s", "old/file");
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let writer = std::thread::spawn(move || {
        while stopped.try_recv().is_err() {
            File::options()
                .append(true)
                .open(&path)
                .unwrap()
                .set_len(31 << 20)
                .unwrap();
            File::options()
                .append(true)
                .open(&path)
                .unwrap()
                .set_len(30 << 20)
                .unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let required = snapshots.back_up("one", None, true).await;
    let preferred = snapshots.back_up("two", None, false).await;
    stop.send(()).unwrap();
    writer.join().unwrap();
    let error = required.unwrap_err();
    assert!(matches!(error, CopyError::SnapshotChanged { .. }), "{error}");
    preferred.unwrap();
    assert!(!snapshots.fixture.on_disk("archived-one").exists());
}
