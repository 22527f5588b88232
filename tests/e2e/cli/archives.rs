//! `nfs-operator archives`: lists the content of an export without a cluster.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Output;

use serde_json::{Value, json};

use crate::cli::program::{program, text};
use crate::support::store::{CLUSTER, OTHER_CLUSTER, StoreFixture, reclaim, request};

/// The key that signs the records of the fixture.
const KEY: [u8; 32] = [7; 32];

async fn list_archives(fixture: &StoreFixture, more: &[&str]) -> Output {
    let port = fixture.nfs.port().to_string();
    program(&[&["archives", "127.0.0.1:/export", "--port", &port], more].concat()).await
}

/// Returns the rows of the JSON output by volume or else directory, and the exit code.
async fn rows(fixture: &StoreFixture, more: &[&str]) -> (Value, Option<i32>) {
    let output = list_archives(fixture, &[&["--output", "json"], more].concat()).await;
    assert!(output.stdout.is_ascii(), "{output:?}");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let mut by_name = json!({});
    for row in found["rows"].as_array().unwrap() {
        let name = match row["volume"].as_str().unwrap() {
            "" => &row["directory"],
            _ => &row["volume"],
        };
        by_name[name.as_str().unwrap()] = row.clone();
    }
    (by_name, output.status.code())
}

/// Creates two volumes and an archive of one cluster, and a volume of another cluster, each with data.
async fn furnished() -> StoreFixture {
    let fixture = StoreFixture::start().await;
    let ours = fixture.store().await;
    for (uid, directory) in [("1", "team/live"), ("2", "gone")] {
        let created = ours.provision(&request(uid, directory)).await.unwrap();
        fs::write(fixture.on_disk(directory).join("data"), b"data").unwrap();
        if uid == "2" {
            let mut request = reclaim(uid, directory, created.file_id);
            request.archive_metadata.archived_at = Some(1_700_000_000);
            ours.archive(&request, &export_store::Decided).await.unwrap();
        }
    }
    let mut other = fixture.client();
    other.cluster = OTHER_CLUSTER;
    other.backend = "other";
    other.open().await.provision(&request("3", "theirs")).await.unwrap();
    fixture
}

#[tokio::test]
async fn everything_on_an_export_is_listed_and_nothing_is_changed() {
    let fixture = furnished().await;
    let before = rig::snapshot(&fixture.disk).unwrap();
    let (found, code) = rows(&fixture, &[]).await;
    assert_eq!(code, Some(0), "{found:#}");
    let is = |volume: &str, pointer: &str| found[volume][pointer].clone();
    for (volume, cluster, backend, state, directory) in [
        ("pvc-1", CLUSTER, "fast", "Live", "team/live"),
        ("pvc-2", CLUSTER, "fast", "Archived", "archived-gone"),
        ("pvc-3", OTHER_CLUSTER, "other", "Live", "theirs"),
    ] {
        assert_eq!(is(volume, "cluster"), cluster, "{found:#}");
        assert_eq!(is(volume, "backend"), backend);
        assert_eq!(is(volume, "state"), state);
        assert_eq!(is(volume, "directory"), directory);
        assert_eq!(
            (is(volume, "namespace"), is(volume, "claim")),
            (json!("team"), json!("data"))
        );
        assert_eq!(
            (is(volume, "presence"), is(volume, "signature")),
            (json!("Present"), json!("Unchecked"))
        );
    }
    assert_eq!(is("pvc-2", "archiveTime"), "2023-11-14T22:13:20Z", "{found:#}");
    assert_eq!(found.as_object().unwrap().len(), 3);
    let table = list_archives(&fixture, &[]).await;
    assert_eq!(table.status.code(), Some(0));
    let table = text(&table.stdout);
    assert!(table.starts_with("DIRECTORY"), "{table}");
    assert!(
        table
            .lines()
            .any(|line| line.starts_with("archived-gone") && line.contains("team/data")),
        "{table}"
    );
    assert_eq!(rig::snapshot(&fixture.disk).unwrap(), before);
}

#[tokio::test]
async fn with_the_key_the_records_of_its_cluster_are_identified() {
    let fixture = furnished().await;
    let file = fixture.disk.with_extension("key");
    fs::write(&file, KEY).unwrap();
    let record = fixture.on_disk(&format!(".nfs-operator/{CLUSTER}/records/pvc-1"));
    let forged = fs::read_to_string(&record).unwrap().replace("\"team\"", "\"other\"");
    fs::write(&record, forged).unwrap();
    let (found, code) = rows(&fixture, &["--key-file", file.to_str().unwrap()]).await;
    let signature = |volume: &str| found[volume]["signature"].as_str().unwrap();
    assert_eq!(
        (signature("pvc-1"), signature("pvc-2"), signature("pvc-3")),
        ("Invalid", "Valid", "Valid")
    );
    assert_eq!(code, Some(3));
    fs::write(&file, [8; 32]).unwrap();
    let (found, code) = rows(&fixture, &["--key-file", file.to_str().unwrap()]).await;
    assert!(
        found
            .as_object()
            .unwrap()
            .values()
            .all(|row| row["signature"] == "Invalid"),
        "{found:#}"
    );
    assert_eq!(code, Some(3), "another cluster's key");
    fs::write(&file, "no key").unwrap();
    let output = list_archives(&fixture, &["--key-file", file.to_str().unwrap()]).await;
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--key-file"), "{output:?}");
    fs::remove_file(file).unwrap();
}

/// Writes an unsigned record of an archive, as anybody could.
fn forge(fixture: &StoreFixture, volume: &str, change: impl FnOnce(&mut Value)) {
    let mut record = fixture.record("pvc-2");
    record["volume"] = json!(volume);
    record.as_object_mut().unwrap().remove("signature");
    change(&mut record);
    let path = fixture.on_disk(&format!(".nfs-operator/{CLUSTER}/records/{volume}"));
    fs::write(path, record.to_string()).unwrap();
}

#[tokio::test]
async fn damaged_missing_forged_and_unrecorded_entries_are_distinguished_and_print_no_terminal_escapes() {
    let fixture = furnished().await;
    let escapes = "\u{1b}]0;owned\u{7}\u{9b}31m\u{202e}";
    forge(&fixture, "pvc-missing", |record| {
        record["state"]["target"] = json!("archived-nowhere")
    });
    forge(&fixture, "pvc-other", |record| record["fileID"] = json!(1));
    forge(&fixture, "pvc-escapes", |record| {
        record["claim"]["name"] = json!(format!("{escapes}{}", "x".repeat(5000)));
        record["backend"] = json!(escapes);
    });
    forge(&fixture, "pvc-up", |record| record["directory"] = json!("../../etc"));
    let records = fixture.on_disk(&format!(".nfs-operator/{CLUSTER}/records"));
    fs::write(records.join("pvc-broken"), escapes).unwrap();
    fs::write(records.join(escapes), "{}").unwrap();
    fs::write(records.join("pvc-large"), vec![b' '; 1 << 20]).unwrap();
    symlink("/etc/passwd", records.join("pvc-link")).unwrap();
    symlink("/", fixture.on_disk(".nfs-operator/elsewhere")).unwrap();
    let stray = format!("archived-{escapes}");
    fs::create_dir(fixture.on_disk(&stray)).unwrap();
    fs::create_dir(fixture.on_disk("archived-lost")).unwrap();
    fs::write(fixture.on_disk("archived-file"), b"no directory").unwrap();
    let (found, code) = rows(&fixture, &[]).await;
    assert_eq!(code, Some(3), "{found:#}");
    let is = |name: &str, field: &str| found[name][field].as_str().unwrap_or_default().to_owned();
    assert_eq!(is("pvc-missing", "presence"), "Missing");
    assert_eq!(is("pvc-other", "presence"), "Replaced");
    assert_eq!(
        (is("pvc-escapes", "presence"), is("pvc-escapes", "signature")),
        ("Present".into(), "Missing".into())
    );
    assert!(is("pvc-escapes", "claim").len() <= 253);
    for damaged in ["pvc-up", "pvc-broken", "pvc-large", "pvc-link"] {
        assert_eq!(is(damaged, "state"), "Damaged", "{found:#}");
        assert!(!is(damaged, "why").is_empty());
    }
    assert_eq!(is("archived-lost", "state"), "Unrecorded");
    assert!(
        found["archived-file"].is_null() && found["archived-gone"].is_null(),
        "{found:#}"
    );
    let unrecorded = found
        .as_object()
        .unwrap()
        .values()
        .filter(|row| row["state"] == "Unrecorded");
    assert_eq!(unrecorded.count(), 2, "{found:#}");
    let table = list_archives(&fixture, &[]).await;
    for stream in [&table.stdout, &table.stderr] {
        let printable = |byte: &u8| byte.is_ascii_graphic() || matches!(byte, b' ' | b'\n');
        assert!(stream.iter().all(printable), "{}", String::from_utf8_lossy(stream));
    }
    assert!(text(&table.stdout).contains("Missing"), "{table:?}");
}

/// Makes a path accessible to everybody, from the root of the export.
fn open(fixture: &StoreFixture, path: &str) {
    let mut at = fixture.disk.clone();
    for step in path.split('/') {
        at.push(step);
        let mode = if at.is_dir() { 0o755 } else { 0o644 };
        fs::set_permissions(&at, fs::Permissions::from_mode(mode)).unwrap();
    }
}

#[tokio::test]
async fn partial_refusals_of_the_server_are_reported_and_the_rest_is_listed() {
    let fixture = furnished().await;
    for volume in ["pvc-1", "pvc-2"] {
        open(&fixture, &format!(".nfs-operator/{CLUSTER}/records/{volume}"));
    }
    open(&fixture, ".nfs-operator/identity");
    fs::set_permissions(fixture.on_disk("team"), fs::Permissions::from_mode(0o700)).unwrap();
    let (found, code) = rows(&fixture, &["--credential", "1000:1000"]).await;
    let presence = |volume: &str| found[volume]["presence"].as_str().unwrap_or_default();
    assert_eq!(
        (presence("pvc-1"), presence("pvc-2")),
        ("Unknown", "Present"),
        "{found:#}"
    );
    assert!(found["pvc-3"].is_null(), "{found:#}");
    assert_eq!(code, Some(3));
    let output = list_archives(&fixture, &["--credential", "1000:1000"]).await;
    assert!(text(&output.stderr).contains("records"), "{output:?}");
    // The operator's folder is not accessible: this is not an empty export.
    fs::set_permissions(fixture.on_disk(".nfs-operator"), fs::Permissions::from_mode(0o700)).unwrap();
    let output = list_archives(&fixture, &["--credential", "1000:1000"]).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
}

#[tokio::test]
async fn an_unused_export_is_listed_as_empty_and_gets_no_identity() {
    let fixture = StoreFixture::start().await;
    let (found, code) = rows(&fixture, &[]).await;
    assert_eq!((found, code), (json!({}), Some(0)));
    assert_eq!(fs::read_dir(&fixture.disk).unwrap().count(), 0);
    let output = program(&[
        "archives",
        "127.0.0.1:/missing",
        "--port",
        &fixture.nfs.port().to_string(),
    ])
    .await;
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("ExportNotFound"), "{output:?}");
    assert!(output.stdout.is_empty());
}
