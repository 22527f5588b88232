//! Parents of directories whose pattern has a `/`.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

use rig::proxy::{encode_rename, has_bytes};
use rig::{Action, TestEnv, wait};
use serde_json::json;

use crate::support::dedicated_cluster::DedicatedCluster;
use crate::support::shared::{self, TIMEOUT, Test};

/// What precedes the hash in the name of the draft of a parent's record: the length of the name, and its prefix.
const PARENT_DRAFT: &[u8] = b"\0\0\0\x47.draft-";

#[tokio::test]
async fn the_parents_of_a_pattern_go_with_the_last_claim_below_them() -> Test {
    let env = TestEnv::new("parents").await?;
    shared::backend(&env, "backend", json!({})).await?;
    let top = env.unique_name("top");
    let pattern = format!("{top}/${{pvc.namespace}}/${{pvc.name}}");
    let deleting = json!({ "pathPattern": pattern, "onDelete": "delete" });
    let deleting = shared::class(&env, "deleting", "backend", deleting).await?;
    let archiving = json!({ "pathPattern": pattern, "onDelete": "archive" });
    let archiving = shared::class(&env, "archiving", "backend", archiving).await?;
    let (one, of_one) = shared::bound_with_data(&env, "one", &deleting, "one").await?;
    let (two, of_two) = shared::bound_with_data(&env, "two", &archiving, "two").await?;
    let parent = env.data().join(&top);
    shared::reclaim(&env, &one, &of_one, "VolumeDeleted").await?;
    assert!(env.directory(&of_two)?.is_dir());
    shared::reclaim(&env, &two, &of_two, "VolumeArchived").await?;
    assert!(!parent.exists(), "{parent:?}");
    // One that an administrator made stays, and so does one with files of somebody else.
    fs::create_dir(&parent)?;
    let (three, of_three) = shared::bound(&env, "three", &deleting).await?;
    let below = env.directory(&of_three)?;
    let below = below.parent().ok_or("no parent")?;
    fs::write(below.join("theirs"), "theirs")?;
    shared::reclaim(&env, &three, &of_three, "VolumeDeleted").await?;
    assert_eq!(fs::read_to_string(below.join("theirs"))?, "theirs");
    fs::remove_file(below.join("theirs"))?;
    let (four, of_four) = shared::bound(&env, "four", &deleting).await?;
    shared::reclaim(&env, &four, &of_four, "VolumeDeleted").await?;
    assert!(parent.is_dir() && !below.exists());
    Ok(())
}

#[tokio::test]
async fn an_operator_killed_while_it_makes_or_empties_a_parent_leaves_none() -> Test {
    let spec = json!({
        "probeInterval": "1s", "directory": { "pattern": "${pvc.name}/data" }, "archivePolicy": { "onDelete": "Delete" },
    });
    let mut env = DedicatedCluster::start(spec).await?;
    // The record is written before and after the parent is made, each time in one request.
    for nth in 0..2 {
        let (claim, before) = (env.claim(&format!("claim-{nth}")), AtomicUsize::new(0));
        let mut lost = env.proxy.lose_reply(Action::Drop, move |record| {
            has_bytes(record, PARENT_DRAFT) && before.fetch_add(1, Ordering::Relaxed) == nth
        });
        env.objects.create(&claim).await?;
        lost.wait(TIMEOUT).await?;
        env.operator.kill9().await?;
        env.proxy.clear_hooks();
        env.proxy.cut().await;
        env.operator.restart().await?;
        let volume = env.bound(&claim).await?;
        let directory = env.directory(&volume)?;
        assert!(directory.ends_with(format!("claim-{nth}/data")), "{directory:?}");
        // Killed again after the directory left its parent.
        let mut lost = env
            .proxy
            .lose_reply(Action::Drop, |record| has_bytes(record, &encode_rename(b"data")));
        env.objects.delete(&claim).await?;
        lost.wait(TIMEOUT).await?;
        env.operator.kill9().await?;
        env.proxy.clear_hooks();
        env.proxy.cut().await;
        env.operator.restart().await?;
        env.objects.wait_gone(&volume, TIMEOUT).await?;
    }
    let data = env.data()?;
    wait::until("parents to be gone", TIMEOUT, async || {
        match shared::names(&data).map_err(|error| error.to_string())? {
            names if names.is_empty() => Ok(()),
            names => Err(format!("{names:?}")),
        }
    })
    .await?;
    Ok(())
}
