//! Backups that share the files that did not change.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use rig::TestEnv;
use serde_json::{Value, json};

use super::{SETTLED, archive_of_backup, backup_of, class_with_backups, ready, restoring};
use crate::cli::program::program;
use crate::support::shared::{self, Failure, TIMEOUT, Test, text};

/// Makes a backup. Returns its object, its directory and what it reports.
async fn made(env: &TestEnv, name: &str) -> Result<(Value, PathBuf, String), Failure> {
    let backup = env.objects.create(&backup_of(env, name, "data")).await?;
    let backup = ready(env, &backup).await?;
    let archive = env
        .objects
        .get(&archive_of_backup(&backup))
        .await?
        .ok_or("no archive")?;
    let directory = env.data().join(text(&archive, "/status/directory"));
    let conditions = archive["status"]["conditions"]
        .as_array()
        .ok_or("no conditions")?
        .iter();
    let available = conditions.clone().find(|condition| condition["type"] == "Available");
    let message = available.map(|condition| text(condition, "/message").to_owned());
    Ok((backup, directory, message.unwrap_or_default()))
}

#[tokio::test]
async fn a_second_backup_shares_unchanged_files_is_verified_and_survives_the_first() -> Test {
    let env = TestEnv::new("incremental").await?;
    let class = class_with_backups(&env, json!({"maxBytesPerNamespace": "10Mi"})).await?;
    let (_, volume) = shared::bound(&env, "data", &class).await?;
    let root = env.directory(&volume)?;
    for name in ["same", "other"] {
        fs::write(root.join(name), format!("text of {name}"))?;
    }
    tokio::time::sleep(SETTLED).await;
    let (first, one, message) = made(&env, "one").await?;
    assert!(!message.contains("unchanged"), "{message}");
    fs::write(root.join("other"), "changed")?;
    let (second, two, message) = made(&env, "two").await?;
    assert!(
        message.contains("1 of them, 12 bytes, unchanged since the previous backup"),
        "{message}"
    );
    let inode = |path: PathBuf| fs::metadata(path).map(|found| found.ino());
    assert_eq!(inode(one.join("same"))?, inode(two.join("same"))?);
    assert_ne!(inode(one.join("other"))?, inode(two.join("other"))?);

    let export = format!("127.0.0.1:{}", env.export());
    let port = env.nfs_port().to_string();
    let name = text(&archive_of_backup(&second), "/metadata/name").to_owned();
    let arguments = ["archives", &export, "--port", &port, "--verify", "--archive", &name];
    let verified = program(&arguments).await;
    let printed = String::from_utf8_lossy(&verified.stdout).into_owned();
    assert!(
        printed.contains(&format!("{name}: 2 files verified by checksum, 19 bytes; 0 problems")),
        "{printed}"
    );

    env.objects.delete(&first).await?;
    env.objects.wait_gone(&archive_of_backup(&first), TIMEOUT).await?;
    shared::wait_trash_empty(env.data()).await?;
    let restored = env
        .objects
        .create(&restoring(env.claim("again", &class), "two"))
        .await?;
    let restored = env.directory(&env.wait_bound(&restored).await?)?;
    assert_eq!(fs::read_to_string(restored.join("same"))?, "text of same");
    assert_eq!(fs::read_to_string(restored.join("other"))?, "changed");
    assert_ne!(inode(restored.join("same"))?, inode(two.join("same"))?);
    fs::write(two.join("same"), "text of lame")?;
    let verified = program(&arguments).await;
    let printed = String::from_utf8_lossy(&verified.stdout).into_owned();
    assert!(
        printed.contains("  /same: its content has another checksum"),
        "{printed}"
    );
    assert_eq!(verified.status.code(), Some(3));
    Ok(())
}
