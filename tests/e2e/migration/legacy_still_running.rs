//! An nfs-subdir-external-provisioner that still runs under the name of an alias. It watches the same claims and
//! volumes, and creates and archives directories with the same names.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rig::proxy::{encode_rename, has_bytes};
use rig::{Action, Direction, TestEnv};
use serde_json::{Value, json};

use crate::support::legacy_provisioner::LegacyProvisioner;
use crate::support::shared::{self, TIMEOUT, Test, text};

/// Returns the only volume for a claim.
async fn only_volume(env: &TestEnv, claim: &Value) -> rig::Result<Value> {
    let volumes = env
        .objects
        .list(&rig::objects::reference("v1", "PersistentVolume", None, "any"))
        .await?;
    let uid = text(claim, "/metadata/uid");
    let mut created: Vec<Value> = volumes
        .into_iter()
        .filter(|volume| text(volume, "/spec/claimRef/uid") == uid)
        .collect();
    assert_eq!(created.len(), 1, "{created:?}");
    Ok(created.remove(0))
}

#[tokio::test]
async fn a_claim_that_nfs_subdir_serves_while_we_wait_gets_one_directory_and_one_volume() -> Test {
    let env = TestEnv::new("other-first").await?;
    let legacy = LegacyProvisioner::without_backend(&env, "old", json!({})).await?;
    let class = legacy.class("class", json!({})).await?;
    let claim = env.objects.create(&env.claim("data", &class)).await?;
    shared::wait_refused(&env, &claim, "BackendNotFound").await?;
    let created = legacy.provision_for(&claim, &class, None).await?;
    legacy.create_backend().await?;
    // The condition no longer reports that it waits.
    let kind = "nfs-operator.io/Provisioned";
    env.objects
        .wait_condition(&claim, kind, "True", Some("Provisioned"), TIMEOUT)
        .await?;
    shared::bound(&env, "later", &class).await?;
    let volume = only_volume(&env, &claim).await?;
    assert_eq!(text(&volume, "/metadata/uid"), text(&created.volume, "/metadata/uid"));
    assert_eq!(shared::names(env.data())?.len(), 2);
    shared::reclaim(&env, &claim, &created.volume, "VolumeArchived").await?;
    assert_eq!(shared::archives(env.data())?.len(), 1);
    Ok(())
}

#[tokio::test]
async fn a_directory_that_nfs_subdir_created_a_moment_ago_is_used() -> Test {
    let env = TestEnv::new("other-made").await?;
    let legacy = LegacyProvisioner::without_backend(&env, "old", json!({})).await?;
    let class = legacy.class("class", json!({})).await?;
    let claim = env.objects.create(&env.claim("data", &class)).await?;
    let (directory, theirs) = legacy.object(&claim, &class, None)?;
    fs::create_dir(&directory)?;
    let inode = fs::metadata(&directory)?.ino();
    legacy.create_backend().await?;
    let volume = env.wait_bound(&claim).await?;
    assert_eq!(env.directory(&volume)?, directory);
    assert_eq!(fs::metadata(&directory)?.ino(), inode);
    // Now it creates its volume and interprets "already exists" as success.
    let refused = env.objects.create(&theirs).await.map_err(|error| error.to_string());
    assert!(refused.is_err_and(|error| error.contains("already exists")));
    only_volume(&env, &claim).await?;
    Ok(())
}

#[tokio::test]
async fn work_that_nfs_subdir_completed_first_is_rolled_back_or_taken_over() -> Test {
    let env = TestEnv::new("other-faster").await?;
    let legacy = LegacyProvisioner::new(&env, json!({})).await?;
    let class = legacy
        .class("class", json!({ "pathPattern": "all/${.PVC.name}" }))
        .await?;
    for (name, theirs) in [("same", "all/same"), ("different", "all/elsewhere")] {
        let created = name.to_owned();
        let mut lost = legacy
            .proxy
            .lose_reply(Action::Drop, move |request| is_mkdir_of(request, created.as_bytes()));
        // Until nfs-subdir has completed its work, however long that takes, our operator gets no further.
        let (loss, completed) = (lost.clone(), Arc::new(AtomicBool::new(false)));
        let may_pass = Arc::clone(&completed);
        legacy.proxy.on_record(Direction::Up, move |_| {
            match loss.has_happened() && !may_pass.load(Ordering::SeqCst) {
                true => Action::Drop,
                false => Action::Forward,
            }
        });
        let claim = env.objects.create(&env.claim(name, &class)).await?;
        lost.wait(TIMEOUT).await?;
        // Our directory exists but the reply was lost; nfs-subdir uses its own directory and creates the volume.
        let (directory, volume) = legacy.object(&claim, &class, Some(theirs))?;
        fs::create_dir_all(&directory)?;
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777))?;
        let volume = env.objects.create(&volume).await?;
        env.wait_bound(&claim).await?;
        fs::write(directory.join("data"), "data")?;
        completed.store(true, Ordering::SeqCst);
        rig::wait::until("a single directory", TIMEOUT, async || {
            match shared::names(&env.data().join("all")).map_err(|error| error.to_string())? {
                names if names.len() == 1 => Ok(()),
                names => Err(format!("{names:?}")),
            }
        })
        .await?;
        assert!(directory.join("data").exists());
        let saved = only_volume(&env, &claim).await?;
        assert_eq!(text(&saved, "/metadata/uid"), text(&volume, "/metadata/uid"));
        shared::reclaim(&env, &claim, &volume, "VolumeArchived").await?;
        // Our operator made the parent, and removes it with the last directory in it.
        assert!(!env.data().join("all").exists());
    }
    assert_eq!(shared::archives(env.data())?, ["archived-elsewhere", "archived-same"]);
    Ok(())
}

/// Returns whether a request creates a directory with this name: CREATE (RFC 8881 section 18.4) of NF4DIR, then the
/// name.
fn is_mkdir_of(request: &[u8], name: &[u8]) -> bool {
    let length = u32::try_from(name.len()).unwrap_or_default();
    let words = [6_u32, 2, length].map(u32::to_be_bytes).concat();
    has_bytes(request, &[words.as_slice(), name].concat())
}

#[tokio::test]
async fn an_archive_that_nfs_subdir_made_of_our_volume_is_accepted() -> Test {
    let env = TestEnv::new("other-archives").await?;
    let legacy = LegacyProvisioner::new(&env, json!({ "probeInterval": "1s" })).await?;
    let class = legacy.class("class", json!({})).await?;
    let mut volumes = Vec::new();
    for name in ["before", "between"] {
        let (claim, volume) = shared::bound_with_data(&env, name, &class, name).await?;
        let directory = env.directory(&volume)?;
        let base = directory.file_name().unwrap().to_str().unwrap().to_owned();
        volumes.push((claim, volume, directory, format!("archived-{base}"), base));
    }
    // nfs-subdir archives one before our operator observes it, and one after our operator recorded its intent.
    let (claim, volume, directory, archive, _) = &volumes[0];
    legacy.proxy.refuse(true).await?;
    legacy.proxy.cut().await;
    env.objects.delete(claim).await?;
    env.objects.wait_gone(claim, TIMEOUT).await?;
    fs::rename(directory, env.data().join(archive))?;
    legacy.proxy.refuse(false).await?;
    env.objects.wait_gone(volume, TIMEOUT).await?;

    let (claim, volume, directory, archive, base) = &volumes[1];
    let (from, to) = (directory.clone(), env.data().join(archive));
    let name = encode_rename(base.as_bytes());
    let once = std::sync::Once::new();
    legacy.proxy.on_record(Direction::Up, move |request| {
        if has_bytes(request, &name) {
            once.call_once(|| fs::rename(&from, &to).expect("the other one archives"));
        }
        Action::Forward
    });
    env.objects.delete(claim).await?;
    env.objects.wait_gone(volume, TIMEOUT).await?;
    for (_, volume, directory, archive, _) in &volumes {
        let archive = env.data().join(archive);
        assert!(!directory.exists());
        assert_eq!(fs::metadata(&archive)?.mode() & 0o7777, 0o700);
        let logged = shared::wait_reclaimed(&env, volume, "VolumeArchived").await?;
        assert!(logged.contains("archived-"), "{logged}");
    }
    assert_eq!(shared::names(env.data())?.len(), 2);
    Ok(())
}

#[tokio::test]
async fn a_directory_that_nfs_subdir_deleted_counts_as_deleted() -> Test {
    let env = TestEnv::new("other-deletes").await?;
    let legacy = LegacyProvisioner::new(&env, json!({})).await?;
    let class = legacy.class("class", json!({ "archiveOnDelete": "false" })).await?;
    let (claim, volume) = shared::bound_with_data(&env, "data", &class, "data").await?;
    legacy.proxy.refuse(true).await?;
    legacy.proxy.cut().await;
    env.objects.delete(&claim).await?;
    env.objects.wait_gone(&claim, TIMEOUT).await?;
    fs::remove_dir_all(env.directory(&volume)?)?;
    // It deletes the volume, too; our operator then removes the finalizer.
    env.objects.delete(&volume).await?;
    legacy.proxy.refuse(false).await?;
    env.objects.wait_gone(&volume, TIMEOUT).await?;
    assert_eq!(shared::names(env.data())?, Vec::<String>::new());
    Ok(())
}
