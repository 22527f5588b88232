//! Backups that share the files that did not change with the previous backup of the same volume.

use std::ffi::OsStr;
use std::fs::{self, File, FileTimes, Permissions};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use export_store::{
    ArchiveRef, ArchiveRequest, CopyError, CopyLimits, CopyProgress, CopyProgressSnapshot, CopySource,
    DirectoryRequest, ErrorKind, ExportStore, PurgeLimits, RecordsKey, RetentionTerms, VerifyReport, copy_to_archive,
    copy_volume,
};
use nfs_client::{Protocol, VersionChoice};
use rig::{Action, Direction};
use serde_json::Value;

use crate::archive_crash::{begin_purge, object};
use crate::copy::volume;
use crate::fixture::{CLUSTER, StoreFixture, claim, names, reclaim, request};
use crate::nfs::TIMEOUT;
use crate::trust::forge;

/// Time for which a file must not have changed before a backup. The servers' clocks have whole seconds here.
pub const MARGIN: Duration = Duration::from_secs(1);

/// Returns the request for a backup of the volume `old`, with earlier ones that it may share files with.
pub fn backup_request(name: &str, file_id: u64, bases: &[&str]) -> ArchiveRequest {
    ArchiveRequest {
        name: name.into(),
        requested_by: format!("uid-of-{name}"),
        claim: claim("old"),
        of: reclaim("old", "old", file_id),
        terms: RetentionTerms::default(),
        revision: object("object"),
        bases: bases.iter().map(ToString::to_string).collect(),
        snapshot: None,
    }
}

/// Makes a backup.
pub async fn back_up(
    source: &Arc<ExportStore>,
    target: (&Arc<ExportStore>, &ArchiveRequest),
) -> Result<CopyProgressSnapshot, CopyError> {
    back_up_with(MARGIN, source, target).await
}

async fn back_up_with(
    margin: Duration,
    source: &Arc<ExportStore>,
    target: (&Arc<ExportStore>, &ArchiveRequest),
) -> Result<CopyProgressSnapshot, CopyError> {
    let limits = CopyLimits::default().with_settle_margin(margin);
    let progress = Arc::new(CopyProgress::default());
    copy_to_archive(source, target, &limits, &progress).await?;
    Ok(progress.snapshot())
}

/// A volume on one export, and the export that gets its backups.
pub struct Backups {
    pub source: Arc<ExportStore>,
    pub target: Arc<ExportStore>,
    pub file_id: u64,
    pub data: PathBuf,
    pub disk: PathBuf,
}

impl Backups {
    /// Source and target are on one export.
    pub async fn on(fixture: &StoreFixture) -> Self {
        let export = Arc::new(fixture.store().await);
        Self::between((fixture, &export), (fixture, &export)).await
    }

    pub async fn between(
        (from, source): (&StoreFixture, &Arc<ExportStore>),
        (to, target): (&StoreFixture, &Arc<ExportStore>),
    ) -> Self {
        Self {
            file_id: volume(source, "old").await,
            source: Arc::clone(source),
            target: Arc::clone(target),
            data: from.on_disk("old"),
            disk: to.disk.clone(),
        }
    }

    pub fn request(&self, name: &str, bases: &[&str]) -> ArchiveRequest {
        backup_request(name, self.file_id, bases)
    }

    async fn try_back_up(&self, name: &str, bases: &[&str]) -> Result<CopyProgressSnapshot, CopyError> {
        back_up(&self.source, (&self.target, &self.request(name, bases))).await
    }

    /// Makes a backup once all changes so far are old enough to be told from later ones.
    pub async fn back_up(&self, name: &str, bases: &[&str]) -> CopyProgressSnapshot {
        tokio::time::sleep(MARGIN + Duration::from_millis(1100)).await;
        let copied = self.try_back_up(name, bases).await.unwrap();
        println!("{name}: {copied}");
        copied
    }

    /// Writes a file and makes a backup before the file is older than the margin, again if that took longer. Returns the
    /// name of the backup.
    async fn back_up_fresh(&self, file: &str, margin: Duration) -> String {
        let path = self.data.join(file);
        for attempt in 0..20 {
            fs::write(&path, "new").unwrap();
            let changed = fs::metadata(&path).unwrap().ctime();
            let name = format!("fresh-{attempt}");
            let request = self.request(&name, &[]);
            back_up_with(margin, &self.source, (&self.target, &request))
                .await
                .unwrap();
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
            if (now - margin).as_secs() <= changed.cast_unsigned() {
                return name;
            }
        }
        panic!("no backup was made within {margin:?}");
    }

    pub fn backup(&self, name: &str) -> PathBuf {
        self.disk.join(format!("archived-{name}"))
    }

    pub async fn verify(&self, name: &str) -> VerifyReport {
        let key = RecordsKey::new(&[7; 32]);
        let report = self.target.verify_backup((CLUSTER, name), Some(&key)).await;
        let report = report.unwrap().unwrap();
        println!("{name}: {report:?}");
        report
    }

    async fn which(&self, name: &str) -> ArchiveRef {
        let found = self.target.find_archive(name).await.unwrap().unwrap();
        ArchiveRef {
            volume: name.into(),
            claim_uid: "old".into(),
            file_id: found.file_id,
        }
    }

    async fn purge(&self, name: &str) {
        let which = self.which(name).await;
        begin_purge(&self.target, &which).await.unwrap();
        self.target.end_purge(&which).await.unwrap();
        let purged = self.target.purge_trash(PurgeLimits::default()).await.unwrap();
        assert_eq!((purged.failed, purged.left.entries), (0, 0));
    }

    fn manifests(&self) -> Vec<String> {
        names(&self.disk.join(format!(".nfs-operator/{CLUSTER}/manifests")))
    }
}

pub fn inode(path: &Path) -> u64 {
    fs::symlink_metadata(path).unwrap().ino()
}

/// Creates 300 files in one directory, so that the manifest has several chunks for it, and some others.
pub fn grow(root: &Path) {
    fs::create_dir_all(root.join("a/b")).unwrap();
    for number in 0..300 {
        fs::write(root.join(format!("a/file-{number}")), number.to_string()).unwrap();
    }
    fs::write(root.join("big"), vec![5; 3_000_001]).unwrap();
    fs::write(root.join("a/b/one"), "several names").unwrap();
    fs::hard_link(root.join("a/b/one"), root.join("two")).unwrap();
    fs::write(root.join("none"), "").unwrap();
    symlink("big", root.join("link")).unwrap();
}

/// Number of regular names that [`grow`] creates.
pub const FILES: u64 = 304;

async fn changed_files_only(fixture: &StoreFixture, backups: &Backups) {
    grow(&backups.data);
    let first = backups.back_up("one", &[]).await;
    assert_eq!((first.files, first.reused_files), (FILES + 3, 0));
    fs::write(backups.data.join("a/file-7"), "changed").unwrap();
    fs::remove_file(backups.data.join("a/file-8")).unwrap();
    fs::write(backups.data.join("a/b/new"), "new").unwrap();
    let second = backups.back_up("two", &["one"]).await;
    assert_eq!((second.files, second.reused_files), (FILES + 3, FILES - 2));
    assert_eq!(second.bytes - second.reused_bytes, 10);
    let (one, two) = (backups.backup("one"), backups.backup("two"));
    for (name, shared) in [
        ("a/file-6", true),
        ("big", true),
        ("a/b/one", true),
        ("none", true),
        ("a/file-7", false),
    ] {
        assert_eq!(inode(&one.join(name)) == inode(&two.join(name)), shared, "{name}");
    }
    assert_eq!(
        inode(&two.join("a/b/one")),
        inode(&two.join("two")),
        "the two names of one file"
    );
    assert_eq!(fs::read_to_string(one.join("a/file-7")).unwrap(), "7");
    assert_eq!(fs::read_to_string(two.join("a/file-7")).unwrap(), "changed");
    assert_eq!(fs::read_to_string(two.join("a/b/new")).unwrap(), "new");
    assert!(one.join("a/file-8").exists() && !two.join("a/file-8").exists());
    // The third one has the second as its base, files of the first included.
    let third = backups.back_up("three", &["two", "one"]).await;
    assert_eq!(third.reused_files, FILES);
    for name in ["one", "two", "three"] {
        let report = backups.verify(name).await;
        assert_eq!((report.files, report.problem_count), (FILES, 0));
    }
    // The volume is not part of it.
    assert_ne!(inode(&backups.data.join("big")), inode(&one.join("big")));
    assert_eq!(backups.manifests(), ["one", "three", "two"]);
    let staging = fixture.on_disk(&format!(".nfs-operator/{CLUSTER}/staging"));
    assert_eq!(names(&staging), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_backup_transfers_changed_files_only() {
    let fixture = StoreFixture::start().await;
    changed_files_only(&fixture, &Backups::on(&fixture).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_backup_on_another_server_over_nfsv3_transfers_changed_files_only() {
    let fixture = StoreFixture::start().await;
    let other = StoreFixture::over(VersionChoice::Exactly(Protocol::V3), rig::Export::new("/export")).await;
    let (source, target) = (Arc::new(fixture.store().await), Arc::new(other.store().await));
    let backups = Backups::between((&fixture, &source), (&other, &target)).await;
    changed_files_only(&other, &backups).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_backup_can_be_purged_alone_and_restored_without_the_others() {
    let fixture = StoreFixture::start().await;
    let backups = Backups::on(&fixture).await;
    grow(&backups.data);
    backups.back_up("one", &[]).await;
    backups.back_up("two", &["one"]).await;
    backups.back_up("three", &["two"]).await;
    backups.purge("one").await;
    backups.purge("three").await;
    assert_eq!(backups.manifests(), ["two"]);
    assert_eq!(backups.verify("two").await.problem_count, 0);
    let of = CopySource::Archive(backups.which("two").await);
    let (export, new) = (&backups.target, request("new", "new"));
    let restored = copy_volume((export, &of), (export, &new), &CopyLimits::default(), &Arc::default()).await;
    restored.unwrap();
    let (restored, two) = (fixture.on_disk("new"), backups.backup("two"));
    assert_eq!(
        fs::read(restored.join("big")).unwrap(),
        fs::read(two.join("big")).unwrap()
    );
    assert_ne!(inode(&restored.join("big")), inode(&two.join("big")));
    assert_eq!(fs::metadata(restored.join("big")).unwrap().nlink(), 1);
    assert_eq!(fs::metadata(restored.join("two")).unwrap().nlink(), 2);
    // What a pod writes there changes no backup.
    File::options()
        .append(true)
        .open(restored.join("big"))
        .unwrap()
        .write_all(b"more")
        .unwrap();
    assert_eq!(backups.verify("two").await.problem_count, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_attributes_alone_changes_no_earlier_backup() {
    let fixture = StoreFixture::start().await;
    let backups = Backups::on(&fixture).await;
    for name in ["mode", "owner", "time", "same"] {
        fs::write(backups.data.join(name), "content").unwrap();
    }
    backups.back_up("one", &[]).await;
    let before = |name: &str| {
        let is = fs::metadata(backups.backup("one").join(name)).unwrap();
        (is.mode(), is.uid(), is.gid(), is.mtime())
    };
    let was = ["mode", "owner", "time", "same"].map(before);
    fs::set_permissions(backups.data.join("mode"), Permissions::from_mode(0o400)).unwrap();
    std::os::unix::fs::chown(backups.data.join("owner"), Some(1234), Some(4321)).unwrap();
    let times = FileTimes::new().set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000));
    File::open(backups.data.join("time")).unwrap().set_times(times).unwrap();
    assert_eq!(backups.back_up("two", &["one"]).await.reused_files, 1);
    assert_eq!(["mode", "owner", "time", "same"].map(before), was);
    let two = |name: &str| fs::metadata(backups.backup("two").join(name)).unwrap();
    assert_eq!(two("mode").mode() & 0o7777, 0o400);
    assert_eq!((two("owner").uid(), two("owner").gid()), (1234, 4321));
    assert_eq!(two("time").mtime(), 1_000_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_with_the_same_size_and_time_and_other_content_is_transferred() {
    let fixture = StoreFixture::start().await;
    let backups = Backups::on(&fixture).await;
    let (path, times) = (
        backups.data.join("file"),
        FileTimes::new().set_modified(SystemTime::UNIX_EPOCH),
    );
    for (name, bases, content) in [("one", &[][..], "first"), ("two", &["one"][..], "other")] {
        let file = File::create(&path).unwrap();
        file.write_all_at(content.as_bytes(), 0).unwrap();
        file.set_times(times).unwrap();
        assert_eq!(backups.back_up(name, bases).await.reused_files, 0);
        assert_eq!(fs::read_to_string(backups.backup(name).join("file")).unwrap(), content);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_changed_just_before_a_backup_is_transferred_by_the_next_one() {
    let fixture = StoreFixture::start().await;
    let backups = Backups::on(&fixture).await;
    fs::write(backups.data.join("settled"), "old").unwrap();
    // Longer than a backup takes on a machine that is busy.
    let margin = Duration::from_secs(15);
    tokio::time::sleep(margin + Duration::from_millis(1100)).await;
    let first = backups.back_up_fresh("fresh", margin).await;
    let reused = backups.back_up("two", &[&first]).await.reused_files;
    assert_eq!(reused, 1);
    let shared = |name: &str| inode(&backups.backup(&first).join(name)) == inode(&backups.backup("two").join(name));
    assert!(shared("settled") && !shared("fresh"));
    assert_eq!(backups.back_up("three", &["two"]).await.reused_files, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_base_that_somebody_changed_is_not_used() {
    let fixture = StoreFixture::start().await;
    let backups = Backups::on(&fixture).await;
    grow(&backups.data);
    backups.back_up("one", &[]).await;
    let one = backups.backup("one");
    // Replaced, so that it has another fileid; and with other attributes.
    fs::remove_file(one.join("a/file-1")).unwrap();
    fs::write(one.join("a/file-1"), "1").unwrap();
    fs::set_permissions(one.join("a/file-2"), Permissions::from_mode(0o777)).unwrap();
    fs::write(one.join("a/file-3"), "longer").unwrap();
    assert_eq!(backups.back_up("two", &["one"]).await.reused_files, FILES - 3);
    assert_eq!(backups.verify("two").await.problem_count, 0);
    let mode = fs::metadata(one.join("a/file-2")).unwrap().mode();
    assert_eq!(mode & 0o7777, 0o777, "an earlier backup is never written");
    assert_eq!(fs::metadata(one.join("a/file-2")).unwrap().nlink(), 1);
}

/// The server of the tests cannot copy, so that the file is transferred.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_with_too_many_links_gets_a_copy_of_its_own() {
    let fixture = StoreFixture::start().await;
    let backups = Backups::on(&fixture).await;
    for name in ["file", "other"] {
        fs::write(backups.data.join(name), "content").unwrap();
    }
    backups.back_up("one", &[]).await;
    let links = fixture.on_disk("links");
    fs::create_dir(&links).unwrap();
    // ext4 has a maximum of 65,000.
    let linked = |number: u32| fs::hard_link(backups.backup("one").join("file"), links.join(number.to_string()));
    let refused = (0..70_000).find_map(|number| linked(number).err());
    let is_limited = refused.is_some_and(|error| error.kind() == std::io::ErrorKind::TooManyLinks);
    println!("the file system of the test has a maximum number of links: {is_limited}");
    assert_eq!(
        backups.back_up("two", &["one"]).await.reused_files,
        if is_limited { 1 } else { 2 }
    );
    assert_eq!(backups.back_up("three", &["two"]).await.reused_files, 2);
    assert_eq!(backups.verify("three").await.problem_count, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forged_manifest_or_record_makes_no_base() {
    let fixture = StoreFixture::start().await;
    let backups = Backups::on(&fixture).await;
    grow(&backups.data);
    backups.back_up("one", &[]).await;
    let path = fixture.on_disk(&format!(".nfs-operator/{CLUSTER}/manifests/one"));
    let written = fs::read(&path).unwrap();
    // One bit of each chunk, the root included.
    for position in [0, written.len() / 2, written.len() - 1] {
        let mut forged = written.clone();
        forged[position] ^= 1;
        fs::write(&path, &forged).unwrap();
        let key = RecordsKey::new(&[7; 32]);
        let refused = backups
            .target
            .verify_backup((CLUSTER, "one"), Some(&key))
            .await
            .unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::RecordUnusable, "{refused}");
    }
    // The root: nothing of it is used.
    assert_eq!(backups.back_up("two", &["one"]).await.reused_files, 0);
    for content in [&b""[..], b"\x01"] {
        fs::write(&path, content).unwrap();
        let name = format!("short-{}", content.len());
        assert_eq!(backups.back_up(&name, &["one"]).await.reused_files, 0);
    }
    fs::remove_file(&path).unwrap();
    symlink("/etc/passwd", &path).unwrap();
    assert_eq!(backups.back_up("link", &["one"]).await.reused_files, 0);
    // Without a signature, a record names no base, even if the manifest is the one that was written.
    forge(&fixture, "two", |record| {
        *record.pointer_mut("/state/copy/outcome").unwrap() = Value::from("changed");
    });
    assert_eq!(backups.back_up("last", &["two"]).await.reused_files, 0);
    assert_eq!(backups.verify("last").await.problem_count, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_complete_backup_of_the_same_claim_and_volume_is_a_base() {
    let fixture = StoreFixture::start().await;
    let backups = Backups::on(&fixture).await;
    grow(&backups.data);
    backups.back_up("one", &[]).await;
    let other = Backups {
        file_id: {
            let created = backups.source.provision(&request("other", "other")).await.unwrap();
            grow(&fixture.on_disk("other"));
            created.file_id
        },
        source: Arc::clone(&backups.source),
        target: Arc::clone(&backups.target),
        data: fixture.on_disk("other"),
        disk: fixture.disk.clone(),
    };
    let foreign = ArchiveRequest {
        claim: claim("other"),
        of: reclaim("other", "other", other.file_id),
        ..other.request("foreign", &["missing", "one"])
    };
    // The files are the same ones, and the backup is of another claim.
    let of_another_claim = ArchiveRequest {
        claim: claim("other"),
        ..backups.request("of-another-claim", &["one"])
    };
    tokio::time::sleep(MARGIN + Duration::from_millis(1100)).await;
    for request in [foreign, of_another_claim] {
        let limits = CopyLimits::default().with_settle_margin(MARGIN);
        let progress = Arc::new(CopyProgress::default());
        copy_to_archive(&other.source, (&other.target, &request), &limits, &progress)
            .await
            .unwrap();
        assert_eq!(progress.snapshot().reused_files, 0, "{}", request.name);
    }
    let which = backups.which("one").await;
    begin_purge(&backups.target, &which).await.unwrap();
    assert_eq!(backups.back_up("two", &["one"]).await.reused_files, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_base_is_not_purged_while_it_is_in_use() {
    let fixture = StoreFixture::start().await;
    let backups = Backups::on(&fixture).await;
    grow(&backups.data);
    backups.back_up("one", &[]).await;
    fs::write(backups.data.join("slow"), vec![1; 3_000_000]).unwrap();
    let which = backups.which("one").await;
    let through = crate::fixture::StoreClient {
        port: fixture.proxy.port(),
        ..fixture.client()
    };
    let held = Backups {
        source: Arc::new(through.open().await),
        target: Arc::clone(&backups.target),
        file_id: backups.file_id,
        data: backups.data.clone(),
        disk: backups.disk.clone(),
    };
    // The source does not answer until the purge was tried.
    let (reached, mut waits) = tokio::sync::mpsc::unbounded_channel();
    fixture.proxy.on_record(Direction::Down, move |record| {
        if record.len() > 100_000 {
            let _ = reached.send(());
            return Action::Drop;
        }
        Action::Forward
    });
    let copying = tokio::spawn(async move { held.try_back_up("two", &["one"]).await });
    waits.recv().await.unwrap();
    let refused = begin_purge(&backups.target, &which).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ArchiveBusy, "{refused}");
    copying.abort();
    assert!(copying.await.unwrap_err().is_cancelled());
    // The tasks of the copy end after the copy itself, and use the base until then.
    rig::wait::until("the end of the tasks", TIMEOUT, async || {
        match begin_purge(&backups.target, &which).await {
            Err(error) if error.kind() == ErrorKind::ArchiveBusy => Err(error.to_string()),
            begun => {
                begun.unwrap();
                Ok(())
            }
        }
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_whose_files_may_be_in_others_is_never_moved_to_a_volume() {
    let fixture = StoreFixture::start().await;
    let backups = Backups::on(&fixture).await;
    grow(&backups.data);
    backups.back_up("one", &[]).await;
    let moved = DirectoryRequest {
        restore: Some(backups.which("one").await),
        ..request("new", "new")
    };
    let refused = backups.target.provision(&moved).await.unwrap_err();
    println!("{refused}");
    assert_eq!(
        (refused.kind(), refused.definite_refusal()),
        (ErrorKind::ArchiveBusy, true)
    );
    assert!(backups.backup("one").exists() && !fixture.on_disk("new").exists());
    assert_eq!(fixture.record("one").pointer("/version").unwrap(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_verification_names_what_differs() {
    let fixture = StoreFixture::start().await;
    let backups = Backups::on(&fixture).await;
    grow(&backups.data);
    backups.back_up("one", &[]).await;
    let one = backups.backup("one");
    fs::write(one.join("a/file-9"), "8").unwrap();
    fs::write(one.join("a/b/one"), "short").unwrap();
    fs::remove_file(one.join("none")).unwrap();
    File::options()
        .write(true)
        .open(one.join("big"))
        .unwrap()
        .write_all_at(b"\0", 2_500_000)
        .unwrap();
    // Beside one that is missing.
    fs::write(one.join("added"), "").unwrap();
    fs::write(one.join("a/b/added"), "").unwrap();
    fs::remove_file(one.join("link")).unwrap();
    symlink("other", one.join("link")).unwrap();
    let report = backups.verify("one").await;
    let mut found: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
    found.sort();
    assert_eq!(
        found,
        [
            "/: names that it did not have when the backup was made: 1",
            "/a/b/: names that it did not have when the backup was made: 1",
            "/a/b/one: it has 5 bytes instead of 13",
            "/a/file-9: its content has another checksum",
            "/big: its content has another checksum",
            "/link: the link has another target",
            "/none: it is missing",
            "/two: it has 5 bytes instead of 13",
        ]
    );
    assert_eq!(report.problem_count, found.len() as u64);
    let other = RecordsKey::new(&[8; 32]);
    let refused = backups
        .target
        .verify_backup((CLUSTER, "one"), Some(&other))
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::RecordUnusable);
    assert_eq!(
        backups.target.verify_backup((CLUSTER, "pvc-old"), None).await.unwrap(),
        None
    );
}

/// The process ends in the middle: the next one begins again, from the same base.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_that_is_interrupted_has_the_same_base_the_next_time() {
    let fixture = StoreFixture::start().await;
    let backups = Backups::on(&fixture).await;
    grow(&backups.data);
    backups.back_up("one", &[]).await;
    let before = inode(&backups.backup("one").join("big"));
    fs::write(backups.data.join("slow"), vec![1; 3_000_000]).unwrap();
    let through = crate::fixture::StoreClient {
        port: fixture.proxy.port(),
        ..fixture.client()
    };
    let source = Arc::new(through.open().await);
    let interrupted = Backups {
        source,
        target: Arc::clone(&backups.target),
        file_id: backups.file_id,
        data: backups.data.clone(),
        disk: backups.disk.clone(),
    };
    let (reached, mut waits) = tokio::sync::mpsc::unbounded_channel();
    fixture
        .proxy
        .on_record(Direction::Down, move |record| match record.len() > 100_000 {
            true => {
                let _ = reached.send(());
                Action::Drop
            }
            false => Action::Forward,
        });
    let copying = tokio::spawn(async move { interrupted.try_back_up("two", &["one"]).await });
    waits.recv().await.unwrap();
    copying.abort();
    assert!(copying.await.unwrap_err().is_cancelled());
    let next = Backups {
        target: Arc::new(fixture.store().await),
        source: Arc::new(fixture.store().await),
        ..backups
    };
    let copied = next.back_up("two", &["one"]).await;
    assert_eq!(copied.reused_files, FILES);
    assert_eq!(inode(&next.backup("two").join("big")), before);
    let purged = next.target.purge_trash(PurgeLimits::default()).await.unwrap();
    assert_eq!((purged.failed, purged.left.entries), (0, 0));
    for name in ["one", "two"] {
        assert_eq!(next.verify(name).await.problem_count, 0);
    }
}

/// Returns a name of up to 40 bytes, which need not be text, by its number.
fn unusual_name(number: usize) -> Vec<u8> {
    let mut state = number as u64;
    let mut name = format!("{number}-").into_bytes();
    for _ in 0..number % 36 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let byte = (state >> 56) as u8;
        name.push(if matches!(byte, 0 | b'/') { b'\n' } else { byte });
    }
    name
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_of_10_000_files_with_unusual_names_is_complete_and_shares_all_of_them() {
    let fixture = StoreFixture::start().await;
    let backups = Backups::on(&fixture).await;
    let at = |root: &Path, number: usize| {
        let name = unusual_name(number);
        root.join((number % 20).to_string()).join(OsStr::from_bytes(&name))
    };
    for number in 0..20 {
        fs::create_dir(backups.data.join(number.to_string())).unwrap();
    }
    for number in 0..10_000 {
        fs::write(at(&backups.data, number), number.to_string()).unwrap();
    }
    assert_eq!(backups.back_up("one", &[]).await.files, 10_020);
    let second = backups.back_up("two", &["one"]).await;
    assert_eq!((second.files, second.reused_files), (10_020, 10_000));
    for number in 0..10_000 {
        let copy = at(&backups.backup("two"), number);
        assert_eq!(fs::read_to_string(copy).unwrap(), number.to_string());
    }
    assert_eq!(backups.verify("two").await.problem_count, 0);
}
