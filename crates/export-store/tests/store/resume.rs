//! Backups that are interrupted, and take over what the interrupted attempt copied.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use export_store::{
    ArchiveRequest, CopyError, CopyLimits, CopyProgress, CopyProgressSnapshot, ExportStore, PurgeLimits,
    RequestedArchive, StagedLimit, VolumeLimit, copy_to_archive,
};
use nfs_client::{Protocol, VersionChoice};
use rig::proxy::has_bytes;
use rig::{Action, Direction, wait};
use serde_json::Value;

use crate::crash::{Operation, dies};
use crate::fixture::{CLUSTER, StoreClient, StoreFixture, claim, names};
use crate::incremental::{Backups, FILES, MARGIN, grow, inode};
use crate::nfs::TIMEOUT;
use crate::trust::forge;

/// Time between two checkpoints.
const INTERVAL: Duration = Duration::from_millis(20);

fn limits() -> CopyLimits {
    CopyLimits::default()
        .with_settle_margin(MARGIN)
        .with_checkpoint_interval(INTERVAL)
}

async fn back_up(
    source: &Arc<ExportStore>,
    target: &Arc<ExportStore>,
    request: &ArchiveRequest,
    limits: &CopyLimits,
) -> Result<CopyProgressSnapshot, CopyError> {
    let progress = Arc::new(CopyProgress::default());
    copy_to_archive(source, (target, request), limits, &progress).await?;
    let copied = progress.snapshot();
    println!("{}: {copied}", request.name);
    Ok(copied)
}

/// Backups from a server to another or the same one, each attempt with its own stores, as in another process.
struct Attempts<'a> {
    from: &'a StoreFixture,
    to: &'a StoreFixture,
    backups: Backups,
}

impl<'a> Attempts<'a> {
    /// Creates a volume with the files of [`grow`] and, deep below, a file `slow`. All of it is old enough to be taken over.
    async fn between(from: &'a StoreFixture, to: &'a StoreFixture) -> Self {
        let (source, target) = (Arc::new(from.store().await), Arc::new(to.store().await));
        let backups = Backups::between((from, &source), (to, &target)).await;
        grow(&backups.data);
        fs::create_dir_all(backups.data.join("deep/er")).unwrap();
        fs::write(backups.data.join("deep/er/beside"), "beside").unwrap();
        fs::write(backups.data.join("deep/er/slow"), vec![1; 100_000]).unwrap();
        let attempts = Self { from, to, backups };
        attempts.pause().await;
        attempts
    }

    async fn on(fixture: &'a StoreFixture) -> Self {
        Self::between(fixture, fixture).await
    }

    /// Waits until all changes so far are old enough to be told from later ones.
    async fn pause(&self) {
        tokio::time::sleep(MARGIN + Duration::from_millis(1100)).await;
    }

    fn record(&self, name: &str) -> Option<Value> {
        let path = self.to.on_disk(&format!(".nfs-operator/{CLUSTER}/records/{name}"));
        serde_json::from_slice(&fs::read(path).ok()?).ok()
    }

    fn staged(&self, name: &str) -> PathBuf {
        self.to.on_disk(&format!(".nfs-operator/{CLUSTER}/staging/{name}"))
    }

    /// Begins a backup whose source never answers about a file, and ends it once there is a checkpoint with all others.
    async fn interrupt(&self, request: &ArchiveRequest, blocked: &'static str) {
        let others = saving(&self.backups.data, blocked);
        let through = StoreClient {
            port: self.from.proxy.port(),
            ..self.from.client()
        };
        let (source, target) = (Arc::new(through.open().await), Arc::new(self.to.store().await));
        let name = rig::proxy::encode_opaque(blocked.as_bytes());
        self.from
            .proxy
            .on_record(Direction::Up, move |record| match has_bytes(record, &name) {
                true => Action::Drop,
                false => Action::Forward,
            });
        let began = request.clone();
        let copying = tokio::spawn(async move { back_up(&source, &target, &began, &limits()).await });
        wait::until("a checkpoint", TIMEOUT, async || {
            let record = self.record(&request.name).unwrap_or_default();
            let tree = record.pointer("/state/copy/checkpoint/tree").and_then(Value::as_u64);
            let saving = record.pointer("/state/copy/checkpoint/saving").and_then(Value::as_u64);
            let own = fs::metadata(self.staged(&request.name).join("tree"));
            let is_own = own.is_ok_and(|own| tree == Some(own.ino()));
            match is_own && saving.unwrap_or_default() >= others {
                true => Ok(()),
                false => Err(format!("{record}")),
            }
        })
        .await
        .unwrap_or_else(|error| {
            let (copied, ended) = (paths(self.staged(&request.name)), copying.is_finished());
            panic!("{error}, copied: {copied:?}, ended: {ended}")
        });
        self.kill(copying).await;
    }

    /// Ends an attempt as the end of its process does.
    async fn kill<T: std::fmt::Debug>(&self, copying: tokio::task::JoinHandle<T>) {
        copying.abort();
        assert!(copying.await.unwrap_err().is_cancelled());
        self.from.proxy.cut().await;
        self.from.proxy.clear_hooks();
    }

    /// Makes the backup in a new process.
    async fn resume(&self, request: &ArchiveRequest) -> CopyProgressSnapshot {
        let (source, target) = (Arc::new(self.from.store().await), Arc::new(self.to.store().await));
        let copied = back_up(&source, &target, request, &limits()).await.unwrap();
        self.is_complete(&target, &request.name).await;
        copied
    }

    /// Checks that a backup is complete, and that nothing else is left.
    async fn is_complete(&self, target: &ExportStore, name: &str) {
        let record = self.record(name).unwrap();
        assert_eq!(record.pointer("/state/name").unwrap(), "Archived");
        assert_eq!(record.pointer("/state/copy/checkpoint"), None);
        let report = self.backups.verify(name).await;
        assert_eq!((report.problem_count, report.without_checksum), (0, 0));
        same_content(&self.backups.data, &self.backups.backup(name));
        assert_eq!(names(self.staged(name).parent().unwrap()), Vec::<String>::new());
        let purged = target.purge_trash(PurgeLimits::default()).await.unwrap();
        assert_eq!((purged.failed, purged.left.entries), (0, 0));
        assert_eq!(self.backups.verify(name).await.problem_count, 0, "after the purge");
    }
}

/// Returns what the files below a directory save, except for one.
fn saving(directory: &Path, except: &str) -> u64 {
    let names = names(directory).into_iter().filter(|name| name != except);
    let saving_of = |path: PathBuf| match fs::symlink_metadata(&path).unwrap() {
        found if found.is_dir() => saving(&path, except),
        found if found.is_file() => found.len() + (64 << 10),
        _ => 0,
    };
    names.map(|name| saving_of(directory.join(name))).sum()
}

/// Returns the paths of a tree.
fn paths(root: PathBuf) -> Vec<PathBuf> {
    let names = if root.is_dir() { names(&root) } else { Vec::new() };
    let below: Vec<PathBuf> = names.into_iter().flat_map(|name| paths(root.join(name))).collect();
    [vec![root], below].concat()
}

/// Compares two trees.
fn same_content(one: &Path, other: &Path) {
    assert_eq!(names(one), names(other), "{}", one.display());
    for name in names(one) {
        let (one, other) = (one.join(&name), other.join(&name));
        let (is, was) = (
            fs::symlink_metadata(&one).unwrap(),
            fs::symlink_metadata(&other).unwrap(),
        );
        assert_eq!(is.file_type(), was.file_type(), "{}", one.display());
        if is.is_dir() {
            same_content(&one, &other);
        } else if is.is_file() {
            assert_eq!(fs::read(&one).unwrap(), fs::read(&other).unwrap(), "{}", one.display());
        }
    }
}

/// Number of files of an attempt that ended at the file `slow`: those of [`grow`], of which one has two names, and one beside
/// it.
const TAKEN_OVER: u64 = FILES;

async fn only_what_is_missing(attempts: &Attempts<'_>) {
    let request = attempts.backups.request("one", &[]);
    attempts.interrupt(&request, "slow").await;
    let (data, staged) = (&attempts.backups.data, attempts.staged("one").join("tree"));
    let names = ["a/file-7", "big", "a/b/one", "two", "none", "deep/er/beside"];
    let were = names.map(|name| inode(&staged.join(name)));
    fs::write(data.join("a/file-7"), "changed").unwrap();
    fs::remove_file(data.join("a/file-8")).unwrap();
    fs::write(data.join("a/b/new"), "new").unwrap();
    // The next backup takes these, too, for which they must be old enough now.
    attempts.pause().await;
    let copied = attempts.resume(&request).await;
    assert_eq!((copied.resumed_files, copied.reused_files), (TAKEN_OVER - 2, 0));
    assert_eq!(copied.bytes - copied.resumed_bytes, 100_000 + 7 + 3);
    let one = attempts.backups.backup("one");
    for (name, was) in names.into_iter().zip(were) {
        assert_eq!(inode(&one.join(name)) == was, name != "a/file-7", "{name}");
    }
    assert_eq!(
        inode(&one.join("a/b/one")),
        inode(&one.join("two")),
        "the two names of one file"
    );
    // It is a backup like any other.
    attempts.pause().await;
    let next = attempts.resume(&attempts.backups.request("two", &["one"])).await;
    assert_eq!((next.resumed_files, next.reused_files), (0, FILES + 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_that_was_interrupted_transfers_only_what_is_missing() {
    let fixture = StoreFixture::start().await;
    only_what_is_missing(&Attempts::on(&fixture).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_that_was_interrupted_transfers_only_what_is_missing_to_another_server_over_nfsv3() {
    let fixture = StoreFixture::start().await;
    let other = StoreFixture::over(VersionChoice::Exactly(Protocol::V3), rig::Export::new("/export")).await;
    only_what_is_missing(&Attempts::between(&fixture, &other).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_that_was_interrupted_shares_files_with_the_previous_one_and_takes_over_the_others() {
    let fixture = StoreFixture::start().await;
    let attempts = Attempts::on(&fixture).await;
    attempts.resume(&attempts.backups.request("one", &[])).await;
    for number in 0..10 {
        fs::write(attempts.backups.data.join(format!("a/file-{number}")), "other").unwrap();
    }
    fs::write(attempts.backups.data.join("slower"), "slower").unwrap();
    attempts.pause().await;
    let request = attempts.backups.request("two", &["one"]);
    attempts.interrupt(&request, "slower").await;
    let copied = attempts.resume(&request).await;
    assert_eq!((copied.resumed_files, copied.reused_files), (10, FILES + 2 - 10));
    assert_eq!(copied.bytes - copied.resumed_bytes - copied.reused_bytes, 6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_with_several_names_of_which_one_was_copied_keeps_its_names() {
    let fixture = StoreFixture::start().await;
    let attempts = Attempts::on(&fixture).await;
    fs::hard_link(
        attempts.backups.data.join("big"),
        attempts.backups.data.join("deep/er/slower"),
    )
    .unwrap();
    attempts.pause().await;
    let request = attempts.backups.request("one", &[]);
    attempts.interrupt(&request, "slower").await;
    attempts.resume(&request).await;
    let one = attempts.backups.backup("one");
    assert_eq!(inode(&one.join("big")), inode(&one.join("deep/er/slower")));
    assert_eq!(fs::metadata(one.join("big")).unwrap().nlink(), 2);
}

/// During a copy, a file can be removed, and another file with several names get its fileid. Here, the file gets another
/// content, which is the same for whoever knows only its fileid.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_of_a_file_that_changed_since_its_other_name_was_copied_gets_its_content() {
    let fixture = StoreFixture::start().await;
    let attempts = Attempts::on(&fixture).await;
    let data = attempts.backups.data.clone();
    fs::hard_link(data.join("big"), data.join("deep/er/late")).unwrap();
    attempts.pause().await;
    let name = rig::proxy::encode_opaque(b"late");
    let has_changed = Arc::new(AtomicBool::new(false));
    let may_pass = Arc::clone(&has_changed);
    fixture.proxy.on_record(Direction::Up, move |record| {
        match has_bytes(record, &name) && !may_pass.load(Ordering::SeqCst) {
            true => Action::Drop,
            false => Action::Forward,
        }
    });
    let through = StoreClient {
        port: fixture.proxy.port(),
        ..fixture.client()
    };
    let (source, target) = (Arc::new(through.open().await), Arc::new(fixture.store().await));
    let request = attempts.backups.request("one", &[]);
    let copying = tokio::spawn(async move { back_up(&source, &target, &request, &limits()).await });
    let links = attempts.staged("one").join("links");
    // `grow` creates another file with several names.
    wait::until("the copies of both files", TIMEOUT, async || {
        let copied = fs::read_dir(&links).map_or(0, Iterator::count);
        match copied {
            2 => Ok(()),
            _ => Err(format!("{copied} of 2")),
        }
    })
    .await
    .unwrap();
    fs::write(data.join("deep/er/late"), "other content").unwrap();
    has_changed.store(true, Ordering::SeqCst);
    // The client asks again.
    fixture.proxy.cut().await;
    copying.await.unwrap().unwrap();
    let one = attempts.backups.backup("one");
    let size = |name| fs::metadata(one.join(name)).unwrap().len();
    assert_eq!((size("big"), size("deep/er/late")), (3_000_001, 13));
    assert_eq!(inode(&one.join("two")), inode(&one.join("a/b/one")));
    assert_eq!(attempts.backups.verify("one").await.problem_count, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_that_is_interrupted_twice_loses_nothing_of_either_attempt() {
    let fixture = StoreFixture::start().await;
    let attempts = Attempts::on(&fixture).await;
    let request = attempts.backups.request("one", &[]);
    attempts.interrupt(&request, "slow").await;
    let first = inode(&attempts.staged("one").join("tree"));
    // The second one ends before it has taken over everything: the third one has what the first one copied.
    for _ in 0..2 {
        let through = StoreClient {
            port: fixture.proxy.port(),
            ..fixture.client()
        };
        let source = Arc::new(through.open().await);
        let (target, began) = (Arc::new(fixture.store().await), request.clone());
        let (reached, mut waits) = tokio::sync::mpsc::unbounded_channel();
        let name = rig::proxy::encode_opaque(b"deep");
        fixture.proxy.on_record(Direction::Up, move |record| {
            if has_bytes(record, &name) {
                let _ = reached.send(());
                return Action::Drop;
            }
            Action::Forward
        });
        let copying = tokio::spawn(async move { back_up(&source, &target, &began, &limits()).await });
        waits.recv().await.unwrap();
        tokio::time::sleep(INTERVAL * 5).await;
        attempts.kill(copying).await;
        assert_eq!(inode(&attempts.staged("one").join("former/tree")), first);
    }
    // This one copies more than it takes over, so that the first one is not needed any more.
    fs::write(attempts.backups.data.join("slower"), "slower").unwrap();
    attempts.pause().await;
    attempts.interrupt(&request, "slower").await;
    let copied = attempts.resume(&request).await;
    assert_eq!(copied.resumed_files, TAKEN_OVER + 1);
    assert_eq!(copied.bytes - copied.resumed_bytes, 6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_of_an_interrupted_backup_that_somebody_changed_is_transferred() {
    let fixture = StoreFixture::start().await;
    let attempts = Attempts::on(&fixture).await;
    let request = attempts.backups.request("one", &[]);
    attempts.interrupt(&request, "slow").await;
    let tree = attempts.staged("one").join("tree");
    // Replaced, so that it has another fileid; with other attributes; with another size; removed; another type.
    fs::remove_file(tree.join("a/file-1")).unwrap();
    fs::write(tree.join("a/file-1"), "1").unwrap();
    fs::set_permissions(tree.join("a/file-2"), Permissions::from_mode(0o777)).unwrap();
    fs::write(tree.join("a/file-3"), "longer").unwrap();
    fs::remove_file(tree.join("a/file-4")).unwrap();
    fs::remove_file(tree.join("a/file-5")).unwrap();
    symlink("/etc/passwd", tree.join("a/file-5")).unwrap();
    fs::remove_dir_all(tree.join("a/b")).unwrap();
    symlink("/etc", tree.join("a/b")).unwrap();
    let copied = attempts.resume(&request).await;
    // The file in `b` has another name, by which it may have been taken over before.
    assert!([5, 6].contains(&(TAKEN_OVER - copied.resumed_files)), "{copied}");
    let one = attempts.backups.backup("one");
    assert_eq!(inode(&one.join("a/b/one")), inode(&one.join("two")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forged_checkpoint_or_manifest_starts_a_backup_over() {
    let fixture = StoreFixture::start().await;
    let attempts = Attempts::on(&fixture).await;
    let root_of = |record: &Value| {
        let at = |field: &str| record.pointer(field).and_then(Value::as_u64).unwrap();
        at("/state/copy/checkpoint/manifest/offset")
    };
    // A change of: the root chunk, the whole file, its type, the record, and the tree.
    for case in ["root", "short", "link", "record", "tree", "none"] {
        let request = attempts.backups.request(case, &[]);
        attempts.interrupt(&request, "slow").await;
        let (staged, record) = (attempts.staged(case), attempts.record(case).unwrap());
        let manifest = staged.join("manifest");
        match case {
            "root" => {
                let mut written = fs::read(&manifest).unwrap();
                written[usize::try_from(root_of(&record)).unwrap()] ^= 1;
                fs::write(&manifest, written).unwrap();
            }
            "short" => fs::write(&manifest, b"\x01").unwrap(),
            "link" => {
                fs::remove_file(&manifest).unwrap();
                symlink("/etc/passwd", &manifest).unwrap();
            }
            "record" => forge(&fixture, case, |record| {
                *record.pointer_mut("/state/copy/checkpoint/saving").unwrap() = Value::from(1);
            }),
            "tree" => {
                fs::rename(staged.join("tree"), staged.join("other")).unwrap();
                symlink("other", staged.join("tree")).unwrap();
            }
            _ => {}
        }
        let copied = attempts.resume(&request).await;
        assert_eq!(
            copied.resumed_files,
            if case == "none" { TAKEN_OVER } else { 0 },
            "{case}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_interrupted_is_not_used_for_another_claim_or_requester() {
    let fixture = StoreFixture::start().await;
    let attempts = Attempts::on(&fixture).await;
    let request = attempts.backups.request("one", &[]);
    attempts.interrupt(&request, "slow").await;
    let of_another_claim = ArchiveRequest {
        claim: claim("other"),
        ..request.clone()
    };
    assert_eq!(attempts.resume(&of_another_claim).await.resumed_files, 0);
    let request = attempts.backups.request("two", &[]);
    attempts.interrupt(&request, "slow").await;
    let of_another_object = ArchiveRequest {
        requested_by: "other".into(),
        ..request.clone()
    };
    let (source, target) = (&attempts.backups.source, &attempts.backups.target);
    let refused = back_up(source, target, &of_another_object, &limits()).await;
    println!("{}", refused.unwrap_err());
    assert_eq!(attempts.resume(&request).await.resumed_files, TAKEN_OVER);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_backup_that_is_not_wanted_any_more_leaves_nothing() {
    let fixture = StoreFixture::start().await;
    let attempts = Attempts::on(&fixture).await;
    let request = attempts.backups.request("one", &[]);
    attempts.interrupt(&request, "slow").await;
    fs::write(attempts.backups.data.join("slower"), "slower").unwrap();
    attempts.pause().await;
    attempts.interrupt(&request, "slower").await;
    let next = fixture.store().await;
    next.discard_requested_archive("one", &request.requested_by)
        .await
        .unwrap();
    assert_eq!(attempts.record("one"), None);
    assert_eq!(names(attempts.staged("one").parent().unwrap()), Vec::<String>::new());
    let purged = next.purge_trash(PurgeLimits::default()).await.unwrap();
    assert_eq!((purged.failed, purged.left.entries), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_with_an_enforced_limit_starts_over() {
    let fixture = StoreFixture::start().await;
    let attempts = Attempts::on(&fixture).await;
    let request = attempts.backups.request("one", &[]);
    attempts.interrupt(&request, "slow").await;
    let limit = StagedLimit {
        limit: VolumeLimit {
            bytes: Some(1 << 30),
            inodes: None,
        },
        required: false,
    };
    let (source, target) = (&attempts.backups.source, &attempts.backups.target);
    let limits = limits().with_staged_limit(Some(limit));
    let copied = back_up(source, target, &request, &limits).await.unwrap();
    assert_eq!(copied.resumed_files, 0);
    attempts.is_complete(target, "one").await;
}

/// Interrupts the second attempt at a backup before each of its calls. The third one has all that the first one
/// copied.
async fn interrupted_anywhere(version: VersionChoice) {
    let fixture = StoreFixture::over(version, rig::Export::new("/export")).await;
    let source = Arc::new(fixture.store().await);
    let backups = Backups::between((&fixture, &source), (&fixture, &source)).await;
    fs::create_dir(backups.data.join("below")).unwrap();
    for name in ["file", "below/other"] {
        fs::write(backups.data.join(name), name).unwrap();
    }
    fs::hard_link(backups.data.join("file"), backups.data.join("below/again")).unwrap();
    fs::write(backups.data.join("slow"), "slow").unwrap();
    let attempts = Attempts {
        from: &fixture,
        to: &fixture,
        backups,
    };
    attempts.pause().await;
    for death in 0.. {
        let request = attempts.backups.request(&format!("n{death}"), &[]);
        attempts.interrupt(&request, "slow").await;
        let began = request.clone();
        let died = dies(&fixture, Direction::Up, death, |export| -> Operation {
            Box::pin(async move {
                let export = Arc::new(export);
                back_up(&export, &export, &began, &limits()).await.unwrap();
            })
        })
        .await;
        let next = Arc::new(fixture.store().await);
        next.recover(&|_: &str| true).await.unwrap();
        let copied = back_up(&next, &next, &request, &limits()).await.unwrap();
        println!("{version:?} {death}: died {died}");
        // The second one may have completed the backup, and then the third one does nothing.
        assert!(
            matches!((copied.files, copied.resumed_files), (0, 0) | (5, 2 | 3)),
            "{copied}"
        );
        // As the operator does it, which moves what is left into the trash.
        let done = next.requested_archive(&request.name, &request.requested_by).await;
        assert!(matches!(done.unwrap(), RequestedArchive::Done(_)));
        attempts.is_complete(&next, &request.name).await;
        if !died {
            assert!(death > 20, "only {death}");
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resumed_backup_that_is_interrupted_before_any_call_keeps_what_was_copied() {
    interrupted_anywhere(VersionChoice::Auto).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resumed_backup_that_is_interrupted_before_any_call_over_nfsv3_keeps_what_was_copied() {
    interrupted_anywhere(VersionChoice::Exactly(Protocol::V3)).await;
}
