//! Trees that are hard to remove.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use rig::TestEnv;
use serde_json::json;

use crate::support::shared::{self, TIMEOUT, Test};

/// Number of folders, and of files in each.
const FOLDERS: usize = 100;
const FILES: usize = 98;
const DEPTH: usize = 100;

/// More than 10,000 files, with names and permissions that make `rm -rf` fail.
fn grow(root: &Path, outside: &Path) -> std::io::Result<()> {
    for folder in 0..FOLDERS {
        // Latin-1 and control characters, which are not UTF-8.
        let folder = root.join(OsStr::from_bytes(
            &[b"\xf6rdner\x01", folder.to_string().as_bytes()].concat(),
        ));
        fs::create_dir(&folder)?;
        for number in 0..FILES {
            let name = [b"\xe4\xff\n -rf * ".as_slice(), number.to_string().as_bytes()].concat();
            fs::write(folder.join(OsStr::from_bytes(&name)), b"data")?;
        }
        symlink(outside, folder.join("to a directory"))?;
        symlink(outside.join("canary"), folder.join("to a file"))?;
        symlink("../../../..", folder.join("upwards"))?;
        symlink("nowhere", folder.join("dangling"))?;
        fs::create_dir(folder.join("without bits"))?;
        fs::write(folder.join("without bits/file"), b"data")?;
        fs::set_permissions(folder.join("without bits"), fs::Permissions::from_mode(0o0))?;
    }
    let mut deep = root.to_owned();
    for level in 0..DEPTH {
        deep.push(format!("level{level}"));
        fs::create_dir(&deep)?;
        fs::write(deep.join("file"), b"data")?;
    }
    fs::write(root.join("x".repeat(255)), b"data")?;
    fs::hard_link(outside.join("canary"), root.join("hard link"))?;
    fs::set_permissions(root, fs::Permissions::from_mode(0o0))
}

#[tokio::test]
async fn a_hostile_tree_of_10_000_files_is_removed_completely_and_nothing_outside_it_is_touched() -> Test {
    let env = TestEnv::new("hostile").await?;
    let backend = shared::backend(&env, "backend", json!({ "archivePolicy": { "onDelete": "Delete" } })).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    let (claim, volume) = shared::bound(&env, "data", &class).await?;
    let (_neighbour, beside) = shared::bound_with_data(&env, "neighbour", &class, "stays").await?;
    // Outside the tree: on the export, and on the same disk beside the export.
    let outside = env.data().join("outside");
    let further = env.data().with_extension("outside");
    for folder in [&outside, &further] {
        fs::create_dir(folder)?;
        fs::write(folder.join("canary"), "sings")?;
    }
    grow(&env.directory(&volume)?, &outside)?;
    symlink(&further, env.directory(&volume)?.join("away"))?;
    let canaries = [outside, further, env.directory(&beside)?];
    let before: Vec<_> = canaries
        .iter()
        .map(|path| rig::snapshot(path))
        .collect::<Result<_, _>>()?;
    shared::reclaim(&env, &claim, &volume, "VolumeDeleted").await?;
    assert!(!env.directory(&volume)?.exists(), "half a tree is to be seen");
    if let Err(error) = shared::wait_trash_empty(env.data()).await {
        let backend = env.objects.get(&backend).await?.unwrap_or_default();
        return Err(format!("{error}: {}", backend["status"]).into());
    }
    let after: Vec<_> = canaries
        .iter()
        .map(|path| rig::snapshot(path))
        .collect::<Result<_, _>>()?;
    assert_eq!(after, before);
    let purged = env
        .objects
        .wait_condition(&backend, "TrashPurgeable", "True", Some("TrashEmpty"), TIMEOUT);
    purged.await?;
    Ok(())
}
