//! `make bench-copy`: the time of a clone in comparison with `cp -a` of the same tree on the server's disk in the same
//! run.
//!
//! It also measures two backups of one tree, between which one file in a hundred changed.
//!
//! It measures, and never fails on a result. The server is nfs-ganesha on this machine, which does not copy on the
//! server: all data is read and written by the client. `cp -a` leaves its copy in memory, while a clone is on stable
//! storage when it is complete, so `cp -a` is also measured with `sync`.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use comfy_table::{Table, presets::UTF8_FULL_CONDENSED};
use export_store::Existing;
use export_store::naming::DirectoryPath;
use export_store::{
    ArchiveMetadata, ArchiveRequest, ClaimRef, CopyLimits, CopyProgress, CopySource, DirectoryRequest,
    ExpectedIdentity, ExportStore, PathReservations, RecordsKey, ReservedPath, RetentionTerms, StoreConfig,
    TermsRevision, VolumeDirectory, copy_to_archive, copy_volume,
};
use nfs_client::{Client, ClientOwner, Credential, SourcePort, Target, VersionChoice};
use rig::{NfsOptions, NfsServer, RunDir};

type Failure = Box<dyn Error + Send + Sync>;

/// Options of the benchmark.
#[derive(Debug, Parser)]
struct Options {
    /// Number of small files of 4 KiB, 100 in each directory.
    #[arg(long, default_value_t = 10_000)]
    small: usize,
    /// Size of the one large file, in MiB.
    #[arg(long, default_value_t = 1024)]
    large: usize,
    /// Number of files of 4 KiB in the tree that is backed up twice.
    #[arg(long, default_value_t = 100_000)]
    backup: usize,
    /// Cargo passes this option to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

/// Creates a tree in a directory.
type Grow<'a> = &'a dyn Fn(&Path) -> std::io::Result<()>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let options = Options::parse();
    let run = RunDir::new()?;
    let nfs = NfsServer::start(&run, NfsOptions::default()).await?;
    let disk = nfs.data_dir("/export")?;
    let export = Arc::new(connect(nfs.port()).await?);
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(["tree", "clone", "cp -a", "cp -a; sync", "clone / cp -a; sync"]);
    let trees: [(&str, String, Grow<'_>); 2] = [
        ("small", format!("{} files of 4 KiB", options.small), &|root| {
            small_files(root, options.small)
        }),
        ("large", format!("one file of {} MiB", options.large), &|root| {
            large_file(root, options.large)
        }),
    ];
    for (name, what, grow) in trees {
        let created = export.provision(&request(name)).await?;
        let root = disk.join(name);
        grow(&root)?;
        shell("sync", &disk)?;
        let cp = timed(|| shell(&format!("cp -a {name} cp-{name}"), &disk))?;
        shell(&format!("sync; rm -rf cp-{name}; sync"), &disk)?;
        let synced = timed(|| shell(&format!("cp -a {name} cp-{name} && sync"), &disk))?;
        shell(&format!("rm -rf cp-{name}; sync"), &disk)?;
        let (of, tally) = (
            CopySource::Volume(source(name, created.file_id)),
            Arc::new(CopyProgress::default()),
        );
        let began = Instant::now();
        let new = request(&format!("{name}-copy"));
        copy_volume((&export, &of), (&export, &new), &CopyLimits::default(), &tally).await?;
        let clone = began.elapsed();
        println!("{what}: {}", tally.snapshot());
        let ratio = clone.as_secs_f64() / synced.as_secs_f64();
        table.add_row([
            what,
            seconds(clone),
            seconds(cp),
            seconds(synced),
            format!("{ratio:.1}"),
        ]);
    }
    println!("{table}");
    if options.backup > 0 {
        println!("{}", backups(&export, &disk, options.backup).await?);
    }
    Ok(())
}

/// Time for which files must not have changed before a backup, instead of the default, which would only prolong this.
const SETTLE_MARGIN: Duration = Duration::from_secs(1);
/// One file in so many is changed before the second backup.
const CHANGED: usize = 100;

/// Returns a table of two backups of one volume.
async fn backups(export: &Arc<ExportStore>, disk: &Path, files: usize) -> Result<Table, Failure> {
    let created = export.provision(&request("backup")).await?;
    let root = disk.join("backup");
    small_files(&root, files)?;
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header([
        "backup",
        "time",
        "share of the first",
        "transferred",
        "share of the first",
    ]);
    let mut first: Option<(Duration, u64)> = None;
    for (name, bases) in [("first", vec![]), ("second", vec!["first".to_owned()])] {
        if !bases.is_empty() {
            for number in (0..files).step_by(CHANGED) {
                let path = root.join((number / 100).to_string()).join(number.to_string());
                fs::write(path, vec![0xff; 4096])?;
            }
        }
        shell("sync", disk)?;
        tokio::time::sleep(2 * SETTLE_MARGIN + Duration::from_millis(100)).await;
        let request = ArchiveRequest {
            name: name.to_owned(),
            requested_by: name.to_owned(),
            claim: claim("backup"),
            of: source("backup", created.file_id),
            terms: RetentionTerms::default(),
            revision: TermsRevision::default(),
            bases,
            snapshot: None,
        };
        let limits = CopyLimits::default().with_settle_margin(SETTLE_MARGIN);
        let (progress, began) = (Arc::new(CopyProgress::default()), Instant::now());
        copy_to_archive(export, (export, &request), &limits, &progress).await?;
        let (took, copied) = (began.elapsed(), progress.snapshot());
        println!("{name} backup: {copied}");
        let transferred = copied.bytes - copied.reused_bytes;
        let (first_took, first_bytes) = *first.get_or_insert((took, transferred));
        table.add_row([
            format!("{name}, {files} files of 4 KiB"),
            seconds(took),
            percent(took.as_secs_f64(), first_took.as_secs_f64()),
            export_store::text::format_bytes(transferred.into()),
            percent(transferred as f64, first_bytes as f64),
        ]);
    }
    Ok(table)
}

fn percent(part: f64, whole: f64) -> String {
    format!("{:.1} %", 100.0 * part / whole)
}

fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}

fn timed(work: impl FnOnce() -> Result<(), Failure>) -> Result<Duration, Failure> {
    let began = Instant::now();
    work().map(|()| began.elapsed())
}

fn shell(script: &str, folder: &Path) -> Result<(), Failure> {
    let ended = Command::new("sh").args(["-c", script]).current_dir(folder).status()?;
    if ended.success() {
        return Ok(());
    }
    Err(format!("{script}: {ended}").into())
}

fn small_files(root: &Path, count: usize) -> std::io::Result<()> {
    for number in 0..count {
        let folder = root.join((number / 100).to_string());
        if number % 100 == 0 {
            fs::create_dir(&folder)?;
        }
        fs::write(folder.join(number.to_string()), vec![number.to_le_bytes()[0] | 1; 4096])?;
    }
    Ok(())
}

fn large_file(root: &Path, mebibytes: usize) -> std::io::Result<()> {
    let mut file = fs::File::create(root.join("large"))?;
    for number in 0..mebibytes {
        std::io::Write::write_all(&mut file, &vec![number.to_le_bytes()[0] | 1; 1 << 20])?;
    }
    Ok(())
}

async fn connect(port: u16) -> Result<ExportStore, Failure> {
    let export = Client::connect(Target {
        version: VersionChoice::Auto,
        port,
        mount_port: None,
        source_port: SourcePort::Any,
        credential: Credential::default(),
        owner: ClientOwner {
            owner: b"bench".to_vec(),
            verifier: rand::random(),
        },
        deadline: Duration::from_secs(20),
        ..Target::new("127.0.0.1", "/export")
    })
    .await?;
    let keeper = StoreConfig {
        cluster_id: "11111111-2222-3333-4444-555555555555".into(),
        records_key: RecordsKey::random(),
        backend: "bench".into(),
        backend_uid: "bench".into(),
        credential: Credential::default(),
        roots: vec![ReservedPath::on_server("127.0.0.1", "/export")],
    };
    let managed = ExportStore::new(export, keeper, Arc::new(PathReservations::new()));
    let expected = ExpectedIdentity {
        may_create: true,
        ..ExpectedIdentity::default()
    };
    managed.confirm_identity(expected).await?;
    Ok(managed)
}

fn claim(name: &str) -> ClaimRef {
    ClaimRef {
        namespace: "bench".into(),
        namespace_uid: "bench".into(),
        name: name.into(),
        uid: name.into(),
    }
}

fn request(name: &str) -> DirectoryRequest {
    DirectoryRequest {
        claim: claim(name),
        volume: format!("pvc-{name}"),
        directory: directory(name),
        mode: 0o777,
        mode_requested: false,
        adopted_mode: None,
        uid: None,
        gid: None,
        gid_range: None,
        existing: Existing::Refuse,
        adoptable: true,
        restore: None,
        metadata: None,
    }
}

#[allow(clippy::expect_used, reason = "the names are this file's own")]
fn directory(name: &str) -> DirectoryPath {
    DirectoryPath::parse(name).expect("a name of this file")
}

fn source(name: &str, file_id: u64) -> VolumeDirectory {
    VolumeDirectory {
        claim: claim(name),
        volume: format!("pvc-{name}"),
        directory: directory(name),
        file_id: Some(file_id),
        archive_metadata: ArchiveMetadata::default(),
    }
}
