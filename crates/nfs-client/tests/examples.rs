#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]
//! The examples against nfs-ganesha.

use std::collections::HashMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use rig::{Export, NfsOptions, NfsServer, RunDir};

/// The programs by name. `cargo test` with a selection of tests does not build them.
static EXAMPLES: LazyLock<HashMap<String, PathBuf>> = LazyLock::new(|| {
    let mut cargo = Command::new(env!("CARGO"));
    // Build scripts of dependencies run again if these differ from those of the surrounding cargo, and all that depends on
    // them is compiled again.
    for (name, _) in std::env::vars() {
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(name);
        }
    }
    let built = cargo
        .args([
            "build",
            "--quiet",
            // With the features of a test of the workspace: those of one package alone build all dependencies once more.
            "--workspace",
            "--examples",
            "--message-format",
            "json",
            "--manifest-path",
        ])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert!(built.status.success(), "cargo build --examples failed");
    String::from_utf8(built.stdout)
        .unwrap()
        .lines()
        .filter_map(|line| {
            let message: serde_json::Value = serde_json::from_str(line).unwrap();
            let executable = message.get("executable")?.as_str()?;
            let name = message.pointer("/target/name")?.as_str()?;
            Some((name.to_owned(), PathBuf::from(executable)))
        })
        .collect()
});

/// Runs an example with this input.
fn run(example: &str, arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(&EXAMPLES[example])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // An example that fails early does not read its input.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

/// Returns the output of a run that succeeded.
fn output(output: Output) -> String {
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{text}{errors}");
    assert_eq!(errors, "");
    text
}

/// Returns the error of a run that failed: one line.
fn error(output: Output) -> String {
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    errors.trim_end().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tree_is_listed_copied_and_removed() {
    let dir = RunDir::new().unwrap();
    let options = NfsOptions {
        exports: vec![Export::new("/data"), Export::new("/other")],
        ..NfsOptions::default()
    };
    let server = NfsServer::start(&dir, options).await.unwrap();
    let (data, other) = (server.data_dir("/data").unwrap(), server.data_dir("/other").unwrap());
    let port = server.port().to_string();
    let nfs =
        |example: &str, arguments: &[&str], input: &str| run(example, &[arguments, &["--port", &port]].concat(), input);

    let tree = data.join("tree");
    fs::create_dir_all(tree.join("sub/deeper")).unwrap();
    fs::write(tree.join("hello.txt"), "hello").unwrap();
    let large: Vec<u8> = (0..5_000_000_u32).map(|at| (at % 251) as u8).collect();
    fs::write(tree.join("sub/large"), &large).unwrap();
    for number in 0..300 {
        fs::write(tree.join(format!("sub/deeper/{number}")), number.to_string()).unwrap();
    }
    symlink("/data/outside", tree.join("link")).unwrap();
    fs::create_dir(data.join("outside")).unwrap();
    fs::write(data.join("outside/kept"), "kept").unwrap();
    chown(tree.join("hello.txt"), Some(1234), Some(4321)).unwrap();
    fs::set_permissions(tree.join("hello.txt"), fs::Permissions::from_mode(0o4751)).unwrap();
    let year_2001 = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    for path in [tree.join("hello.txt"), tree.clone()] {
        fs::File::open(path).unwrap().set_modified(year_2001).unwrap();
    }

    let listed = output(nfs("ls", &["127.0.0.1:/data/tree"], ""));
    let line = |name: &str| {
        let line = listed.lines().find(|line| line.contains(name)).expect(name);
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(listed.lines().count(), 3, "{listed}");
    assert_eq!(line("hello.txt"), "-rwsr-x--x 1 1234 4321 5 hello.txt");
    assert!(line("sub").starts_with("drwxr-xr-x 3 0 0 "), "{listed}");
    assert!(line("link").ends_with(" link -> /data/outside"), "{listed}");
    let many = output(nfs("ls", &["127.0.0.1:/data/tree/sub/deeper"], ""));
    assert_eq!(many.lines().count(), 300);

    let space = output(nfs("df", &["127.0.0.1:/data"], ""));
    let first = format!("127.0.0.1:/data (NFSv4.2, 127.0.0.1:{port})\nspace:  ");
    assert!(space.starts_with(&first), "{space}");
    assert!(space.contains("\ninodes: "), "{space}");

    let copied = output(nfs("copy", &["127.0.0.1:/data/tree", "127.0.0.1:/other/copy"], ""));
    assert_eq!(copied, "306 entries, 4.8 MiB copied\n");
    let copy = other.join("copy");
    assert_eq!(fs::read(copy.join("sub/large")).unwrap(), large);
    assert_eq!(fs::read_to_string(copy.join("sub/deeper/299")).unwrap(), "299");
    assert_eq!(fs::read_dir(copy.join("sub/deeper")).unwrap().count(), 300);
    assert_eq!(
        fs::read_link(copy.join("link")).unwrap(),
        PathBuf::from("/data/outside")
    );
    let hello = fs::metadata(copy.join("hello.txt")).unwrap();
    assert_eq!((hello.mode() & 0o7777, hello.uid(), hello.gid()), (0o4751, 1234, 4321));
    assert_eq!(hello.modified().unwrap(), year_2001);
    assert_eq!(fs::metadata(&copy).unwrap().modified().unwrap(), year_2001);
    let file = ["127.0.0.1:/data/tree/hello.txt", "127.0.0.1:/other/file"];
    assert_eq!(output(nfs("copy", &file, "")), "1 entries, 5 B copied\n");
    assert_eq!(fs::read_to_string(other.join("file")).unwrap(), "hello");

    let again = error(nfs("copy", &["127.0.0.1:/data/tree", "127.0.0.1:/other/copy"], ""));
    assert!(again.ends_with("; choose another name"), "{again}");
    let inside = error(nfs(
        "copy",
        &["127.0.0.1:/data/tree", "127.0.0.1:/data/tree/sub/copy"],
        "",
    ));
    assert_eq!(inside, "error: the target is inside the source; choose another target");
    let missing = error(nfs("copy", &["127.0.0.1:/data/none", "127.0.0.1:/other/none"], ""));
    assert_eq!(missing, "error: none does not exist in the source; check the path");
    assert!(!other.join("none").exists());

    let unconfirmed = error(nfs("rm_rf", &["127.0.0.1:/data/tree"], "yes\n"));
    assert_eq!(unconfirmed, "error: not confirmed; nothing was removed");
    assert_eq!(output(nfs("ls", &["127.0.0.1:/data/tree/sub/deeper"], "")), many);
    let removed = output(nfs("rm_rf", &["127.0.0.1:/data/tree"], "/data/tree\n"));
    assert!(removed.ends_with(" removed\n"), "{removed}");
    assert!(!tree.exists());
    assert_eq!(fs::read_to_string(data.join("outside/kept")).unwrap(), "kept");
    symlink("outside", data.join("link")).unwrap();
    output(nfs("rm_rf", &["127.0.0.1:/data/link"], "/data/link\n"));
    assert!(!data.join("link").is_symlink());
    assert!(data.join("outside/kept").exists());
    let root = error(nfs("rm_rf", &["127.0.0.1:/data"], "/data\n"));
    assert!(root.contains("is the root of a file system"), "{root}");

    let none = error(nfs("ls", &["127.0.0.1:/data/none"], ""));
    assert!(
        none.ends_with("; check the path, and the clients that the server allows"),
        "{none}"
    );
}

#[test]
fn without_a_server_an_error_names_the_remedy() {
    // Nothing listens on port 1.
    for arguments in [
        ["df", "127.0.0.1:/data"].as_slice(),
        &["ls", "127.0.0.1:/data"],
        &["rm_rf", "127.0.0.1:/data/x"],
        &["copy", "127.0.0.1:/data/x", "127.0.0.1:/data/y"],
    ] {
        let (example, rest) = arguments.split_first().unwrap();
        let refused = error(run(example, &[rest, &["--port", "1"]].concat(), ""));
        assert!(
            refused.ends_with("; check that the server runs, and --port"),
            "{refused}"
        );
    }
}
