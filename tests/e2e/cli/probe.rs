//! `nfs-operator probe` against good and bad exports.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Output;

use rig::{Access, Action, Direction, NfsOptions, NfsServer, Proxy, RunDir, Squash, TestEnv, proxy};
use serde_json::Value;

use crate::cli::program::{program, text};
use crate::support::shared::Test;

/// Returns everything below a directory, with the attributes that a change modifies.
fn listing(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(path) = open.pop() {
        let meta = std::fs::symlink_metadata(&path).unwrap();
        let changed = (meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec());
        found.push(format!("{} {:o} {changed:?}", path.display(), meta.mode()));
        if meta.is_dir() {
            open.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    found.sort();
    found
}

/// Returns the JSON report on an export, and the exit code.
async fn probe(address: &str, port: u16, more: &[&str]) -> (Value, Option<i32>) {
    let output = output(address, port, &[&["--output", "json"], more].concat()).await;
    let value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    (value, output.status.code())
}

async fn output(address: &str, port: u16, more: &[&str]) -> Output {
    let port = port.to_string();
    program(&[&["probe", address, "--port", &port], more].concat()).await
}

fn of(env: &TestEnv) -> String {
    format!("127.0.0.1:{}", env.export())
}

/// Returns the result and the reason of a check.
fn row<'a>(report: &'a Value, check: &str) -> (&'a str, &'a str) {
    let rows = report["checks"].as_array().unwrap();
    let row = rows.iter().find(|row| row["check"] == check);
    let row = row.unwrap_or_else(|| panic!("no row {check} in {report:#}"));
    (
        row["result"].as_str().unwrap(),
        row["reason"].as_str().unwrap_or_default(),
    )
}

#[tokio::test]
async fn probe_reports_a_good_export_and_changes_nothing() -> Test {
    let env = TestEnv::new("probe").await?;
    let before = listing(env.data());
    let table = output(&of(&env), env.nfs_port(), &[]).await;
    let (table, code) = (text(&table.stdout), table.status.code());
    assert_eq!(code, Some(0), "{table}");
    let checks: Vec<_> = table
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    let all = [
        "CHECK",
        "resolve",
        "connect",
        "versions",
        "session",
        "reserved-port",
        "export",
        "space",
        "inodes",
        "identity",
        "quota-agent",
        "write",
    ];
    assert_eq!(checks, all, "{table}");
    assert!(table.contains("NFS 4.2"), "{table}");

    let (report, code) = probe(&of(&env), env.nfs_port(), &[]).await;
    assert_eq!((code, &report["ready"]), (Some(0), &Value::Bool(true)), "{report:#}");
    let rows = report["checks"].as_array().unwrap();
    let seen = |check: &str| &rows.iter().find(|row| row["check"] == check).unwrap()["seen"];
    assert_eq!(seen("resolve")["addresses"], serde_json::json!(["127.0.0.1"]));
    assert!(seen("connect")["local"].as_str().unwrap().starts_with("127.0.0.1:"));
    let offered = seen("versions")["offered"].as_array().unwrap();
    assert!(
        offered.contains(&"4.1".into()) && offered.contains(&"4.2".into()),
        "{report:#}"
    );
    assert_eq!(seen("session")["version"], "4.2");
    let root = std::fs::metadata(env.data())?.ino().to_string();
    assert_eq!(seen("export")["fileID"], root);
    assert!(seen("space")["total"].as_u64().unwrap() > 0);
    assert_eq!(row(&report, "write"), ("skipped", ""));
    assert_eq!(listing(env.data()), before, "a probe without --write changes nothing");
    Ok(())
}

#[tokio::test]
async fn probe_shows_the_identity_of_a_backend_and_never_creates_one() -> Test {
    let env = TestEnv::new("probe-identity").await?;
    probe(&of(&env), env.nfs_port(), &["--write"]).await;
    assert_eq!(std::fs::read_dir(env.data())?.count(), 0, "nothing is made");
    let class = env.create_ready_class().await?;
    drop(class);
    let (report, code) = probe(&of(&env), env.nfs_port(), &[]).await;
    let identity: Value = serde_json::from_slice(&std::fs::read(env.data().join(".nfs-operator/identity"))?)?;
    let rows = report["checks"].as_array().unwrap();
    let seen = rows.iter().find(|row| row["check"] == "identity").unwrap();
    assert_eq!(
        (&seen["seen"]["exportID"], code),
        (&identity["id"], Some(0)),
        "{report:#}"
    );
    Ok(())
}

#[tokio::test]
async fn probe_with_write_tests_everything_and_leaves_nothing_behind() -> Test {
    let env = TestEnv::new("probe-write").await?;
    let (report, code) = probe(&of(&env), env.nfs_port(), &["--write"]).await;
    assert_eq!(code, Some(0), "{report:#}");
    for check in ["make", "mode", "file", "owner", "groups", "rename", "remove"] {
        assert_eq!(row(&report, check), ("ok", ""), "{report:#}");
    }
    assert_eq!(std::fs::read_dir(env.data())?.count(), 0);
    Ok(())
}

#[tokio::test]
async fn probe_with_write_warns_of_a_server_that_looks_up_groups() -> Test {
    let looks_up = |export: rig::Export| rig::Export {
        extra: vec![("Manage_Gids".to_owned(), "true".to_owned())],
        ..export
    };
    let env = TestEnv::with_export("probe-groups", looks_up).await?;
    let mount_port = env.mount_port().to_string();
    for version in [&["4.2"][..], &["4.0"], &["3", "--mount-port", &mount_port]] {
        let arguments = [&["--write", "--nfs-version"], version].concat();
        let (report, code) = probe(&of(&env), env.nfs_port(), &arguments).await;
        assert_eq!(code, Some(0), "{report:#}");
        assert_eq!(row(&report, "groups"), ("warning", "GroupsIgnored"), "{report:#}");
        assert_eq!(row(&report, "remove"), ("ok", ""), "{report:#}");
    }
    assert_eq!(std::fs::read_dir(env.data())?.count(), 0);
    Ok(())
}

#[tokio::test]
async fn probe_warns_of_a_heartbeat_that_a_quota_agent_left() -> Test {
    let env = TestEnv::new("probe-heartbeat").await?;
    let _class = env.create_ready_class().await?;
    let quota = env.data().join(".nfs-operator/some-cluster/quota");
    std::fs::create_dir_all(&quota)?;
    let heartbeat = quota.join("agent");
    std::fs::write(&heartbeat, "{}")?;
    let (report, _) = probe(&of(&env), env.nfs_port(), &[]).await;
    assert_eq!(row(&report, "quota-agent"), ("ok", ""), "{report:#}");
    // The folders changed a minute later, by the clock of the server.
    let old = std::fs::metadata(&quota)?.modified()? - std::time::Duration::from_secs(60);
    std::fs::File::options()
        .write(true)
        .open(&heartbeat)?
        .set_modified(old)?;
    for arguments in [&[] as &[&str], &["--write"]] {
        let (report, code) = probe(&of(&env), env.nfs_port(), arguments).await;
        assert_eq!(
            row(&report, "quota-agent"),
            ("warning", "QuotaAgentNotResponding"),
            "{report:#}"
        );
        assert_eq!(code, Some(0), "{report:#}");
    }
    Ok(())
}

#[tokio::test]
async fn probe_supports_version_3_with_a_mount_port() -> Test {
    let env = TestEnv::new("probe-three").await?;
    let mount_port = env.mount_port().to_string();
    let arguments = ["--nfs-version", "3", "--mount-port", &mount_port, "--write"];
    let (report, code) = probe(&of(&env), env.nfs_port(), &arguments).await;
    assert_eq!(code, Some(0), "{report:#}");
    let rows = report["checks"].as_array().unwrap();
    let session = rows.iter().find(|row| row["check"] == "session").unwrap();
    assert_eq!(session["seen"]["version"], "3");
    assert_eq!(row(&report, "groups"), ("ok", ""), "{report:#}");
    assert_eq!(std::fs::read_dir(env.data())?.count(), 0);
    Ok(())
}

#[tokio::test]
async fn probe_reports_errors_and_exits_with_1() -> Test {
    let env = TestEnv::new("probe-bad").await?;
    let closed = rig::ports::free()?;
    let missing = format!("{}/missing", of(&env));
    let cases = [
        (missing.as_str(), env.nfs_port(), "export", "ExportNotFound"),
        ("127.0.0.1:/any", closed, "connect", "ConnectionRefused"),
        ("no-such-host.invalid:/any", closed, "resolve", "NameResolutionFailed"),
    ];
    for (address, port, check, reason) in cases {
        let (report, code) = probe(address, port, &[]).await;
        assert_eq!((code, &report["exitCode"]), (Some(1), &1.into()), "{report:#}");
        assert_eq!(row(&report, check), ("failed", reason), "{report:#}");
        let last = report["checks"].as_array().unwrap().last().unwrap();
        assert_eq!(last["check"], check, "nothing is looked at behind what failed");
        assert!(last["message"].as_str().unwrap().contains("; "), "a remedy: {last}");
        let table = output(address, port, &[]).await;
        assert!(
            text(&table.stdout).contains(&format!("FAILED   {reason}: ")),
            "{table:?}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn probe_distinguishes_a_silent_server_from_an_absent_one() -> Test {
    let env = TestEnv::new("probe-hang").await?;
    let proxy = Proxy::start(([127, 0, 0, 1], env.nfs_port()).into()).await?;
    proxy.hang(true);
    let (report, code) = probe(&of(&env), proxy.port(), &[]).await;
    assert_eq!(code, Some(1), "{report:#}");
    assert_eq!(row(&report, "connect"), ("ok", ""), "{report:#}");
    assert_eq!(
        row(&report, "versions"),
        ("failed", "ServerNotResponding"),
        "{report:#}"
    );
    Ok(())
}

#[tokio::test]
async fn probe_with_write_reports_a_read_only_export() -> Test {
    let env = TestEnv::with_export("probe-read-only", |export| export.access(Access::ReadOnly)).await?;
    let (report, code) = probe(&of(&env), env.nfs_port(), &[]).await;
    assert_eq!(code, Some(0), "it can be read: {report:#}");
    let (report, code) = probe(&of(&env), env.nfs_port(), &["--write"]).await;
    assert_eq!(
        (code, row(&report, "make")),
        (Some(1), ("failed", "ReadOnly")),
        "{report:#}"
    );
    Ok(())
}

#[tokio::test]
async fn probe_with_write_reports_a_squashed_root() -> Test {
    let env = TestEnv::with_export("probe-squash", |export| export.squash(Squash::Root)).await?;
    let (report, code) = probe(&of(&env), env.nfs_port(), &["--write"]).await;
    assert_eq!(
        (code, row(&report, "make")),
        (Some(1), ("failed", "AccessDenied")),
        "{report:#}"
    );
    let make = report["checks"].as_array().unwrap().last().unwrap();
    assert!(make["message"].as_str().unwrap().contains("--credential"), "{make}");
    // Another user who may not write there either.
    let (report, code) = probe(&of(&env), env.nfs_port(), &["--write", "--credential", "1000:1000"]).await;
    assert_eq!(
        (code, row(&report, "make")),
        (Some(1), ("failed", "AccessDenied")),
        "{report:#}"
    );
    let make = report["checks"].as_array().unwrap().last().unwrap();
    let message = make["message"].as_str().unwrap();
    assert!(
        message.contains("belongs to 0:0: set --credential to a user who may write there"),
        "{make}"
    );
    std::os::unix::fs::chown(env.data(), Some(1000), Some(1000))?;
    let (report, code) = probe(&of(&env), env.nfs_port(), &["--write", "--credential", "1000:1000"]).await;
    assert_eq!((code, row(&report, "owner")), (Some(0), ("ok", "")), "{report:#}");
    std::fs::set_permissions(env.data(), std::os::unix::fs::PermissionsExt::from_mode(0o777))?;
    let (report, code) = probe(&of(&env), env.nfs_port(), &["--write"]).await;
    assert_eq!(
        (code, row(&report, "owner")),
        (Some(0), ("warning", "RootSquashed")),
        "only a class that asks for an owner fails: {report:#}"
    );
    assert_eq!(std::fs::read_dir(env.data())?.count(), 0);
    Ok(())
}

#[tokio::test]
async fn probe_with_write_reports_a_server_that_knows_owners_by_name() -> Test {
    let run = RunDir::new()?;
    let options = NfsOptions {
        named_owners: true,
        ..NfsOptions::default()
    };
    let nfs = NfsServer::start(&run, options).await?;
    let (report, code) = probe("127.0.0.1:/export", nfs.port(), &["--write"]).await;
    assert_eq!(
        (code, row(&report, "owner")),
        (Some(0), ("warning", "IdMappingRequired")),
        "{report:#}"
    );
    let checks = report["checks"].as_array().unwrap();
    let owner = checks.iter().find(|check| check["check"] == "owner").unwrap();
    let message = owner["message"].as_str().unwrap();
    assert!(
        message.contains("backups") && message.contains("Only_Numeric_Owners"),
        "{message}"
    );
    Ok(())
}

#[tokio::test]
async fn probe_reports_whether_the_server_requires_a_reserved_port() -> Test {
    let open = rig::Export::new("/data");
    let reserved = open.clone().extra("PrivilegedPort", "true");
    for (export, needed) in [(open, false), (reserved, true)] {
        let run = RunDir::new()?;
        let options = NfsOptions {
            exports: vec![export],
            ..NfsOptions::default()
        };
        let server = NfsServer::start(&run, options).await?;
        let (report, code) = probe("127.0.0.1:/data", server.port(), &[]).await;
        assert_eq!(
            (code, row(&report, "reserved-port")),
            (Some(0), ("ok", "")),
            "{report:#}"
        );
        let rows = report["checks"].as_array().unwrap();
        let seen = rows.iter().find(|row| row["check"] == "reserved-port").unwrap();
        assert_eq!(seen["seen"]["needed"], needed, "{report:#}");
    }
    Ok(())
}

/// Returns whether a request removes the renamed directory: REMOVE (operation 28, RFC 8881 section 18.25), then its
/// name, which its length distinguishes from the former one. The number alone can also be a sequence number.
fn is_removal_of_renamed(request: &[u8]) -> bool {
    let length = u32::try_from(".nfs-operator-probe-0123456789abcdef-renamed".len()).unwrap();
    let words = [28_u32, length].map(u32::to_be_bytes).concat();
    proxy::has_bytes(request, &[words.as_slice(), b".nfs-operator-probe-"].concat())
}

#[tokio::test]
async fn probe_reports_what_it_could_not_remove_and_exits_with_3() -> Test {
    let env = TestEnv::new("probe-left").await?;
    let proxy = Proxy::start(([127, 0, 0, 1], env.nfs_port()).into()).await?;
    // The removal of the directory is dropped, but not that of the file in it.
    proxy.on_record(Direction::Up, |request| match is_removal_of_renamed(request) {
        true => Action::Drop,
        false => Action::Forward,
    });
    let (report, code) = probe(&of(&env), proxy.port(), &["--write"]).await;
    assert_eq!(code, Some(3), "{report:#}");
    assert_eq!(row(&report, "remove").0, "failed", "{report:#}");
    let left: Vec<_> = std::fs::read_dir(env.data())?
        .map(|entry| entry.unwrap().file_name())
        .collect();
    let reported = report["checks"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (reported["check"].as_str(), left.len()),
        (Some("left-behind"), 1),
        "{report:#}"
    );
    assert_eq!(reported["seen"]["name"].as_str(), left.first().unwrap().to_str());
    Ok(())
}

#[tokio::test]
async fn a_mistake_on_the_command_line_exits_with_2() {
    for wrong in [
        "no-path-here",
        "server:relative",
        ":/path",
        "server:/a/../b",
        "a b:/path",
        "[nfs]:/path",
        "server:/a//b",
    ] {
        let output = program(&["probe", wrong]).await;
        assert_eq!(output.status.code(), Some(2), "{wrong}: {output:?}");
        assert!(text(&output.stderr).contains(wrong), "{output:?}");
    }
    let help = text(&program(&["probe", "--help"]).await.stdout);
    assert!(help.contains("Exit code:"), "{help}");
}
