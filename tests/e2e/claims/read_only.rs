//! Claims that only read.

use std::fs;

use rig::TestEnv;
use rig::objects::merge;
use serde_json::{Value, json};

use crate::archives::objects::archived;
use crate::archives::restore::asking;
use crate::support::shared::{Test, bound_with_data, text};

/// Returns a claim with the access mode ReadOnlyMany alone.
fn reading(mut claim: Value) -> Value {
    merge(&mut claim, &json!({"spec": {"accessModes": ["ReadOnlyMany"]}}));
    claim
}

fn is_mounted_read_only(volume: &Value) -> bool {
    let options = volume["spec"]["mountOptions"].as_array().cloned().unwrap_or_default();
    options.iter().any(|option| option == "ro")
}

#[tokio::test]
async fn a_claim_with_read_only_many_alone_is_mounted_read_only_if_new_cloned_or_restored() -> Test {
    let env = TestEnv::new("rox").await?;
    let class = env.create_ready_class().await?;
    let [_, _, moved] = archived(&env, "first", &class, "first").await?;
    let [_, _, copied] = archived(&env, "second", &class, "second").await?;
    let (_, writable) = bound_with_data(&env, "source", &class, "source").await?;
    assert!(!is_mounted_read_only(&writable), "{writable}");

    let of = |archive: &Value, name: &str| asking(env.claim(name, &class), text(archive, "/metadata/name"));
    let mut clone = env.claim("clone", &class);
    let source = json!({"kind": "PersistentVolumeClaim", "name": "source"});
    merge(&mut clone, &json!({"spec": {"dataSource": source}}));
    let mut copy = of(&copied, "copy");
    merge(
        &mut copy,
        &json!({"metadata": {"annotations": {"nfs-operator.io/restore": "copy"}}}),
    );
    for (claim, content) in [
        (env.claim("new", &class), None),
        (clone, Some("source")),
        (of(&moved, "move"), Some("first")),
        (copy, Some("second")),
    ] {
        let claim = env.objects.create(&reading(claim)).await?;
        let volume = env.wait_bound(&claim).await?;
        assert!(is_mounted_read_only(&volume), "{volume}");
        assert_eq!(volume["spec"]["accessModes"], json!(["ReadOnlyMany"]));
        let data = fs::read_to_string(env.directory(&volume)?.join("data")).ok();
        assert_eq!(data.as_deref(), content, "{}", text(&claim, "/metadata/name"));
    }
    Ok(())
}
