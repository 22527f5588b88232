//! Text of a tenant in conditions, events and log lines.

use rig::TestEnv;
use rig::objects::merge;
use serde_json::json;

use crate::support::shared::{TIMEOUT, Test, backend, class, wait_refused};

/// Would be a line of its own in a text log. YAML does not allow U+009B, so the API server rejects an apply with it.
const FORGED: &str = "x\n2026-01-01T00:00:00.000000Z  INFO nfs_operator: forged\u{1b}[2J\u{9b}31m";
const ESCAPED: &str = "x\\n2026-01-01T00:00:00.000000Z  INFO nfs_operator: forged\\u{1b}[2J\\u{9b}31m";

#[tokio::test]
async fn control_characters_of_a_tenant_are_escaped_in_conditions_events_and_logs() -> Test {
    let env = TestEnv::new("hostile-text").await?;
    backend(&env, "backend", json!({"claimOverrides": ["Backend"]})).await?;
    let class = class(&env, "class", "backend", json!({})).await?;
    let mut claim = env.claim("forged", &class);
    merge(
        &mut claim,
        &json!({"metadata": {"annotations": {"nfs-operator.io/backend": FORGED}}}),
    );
    let claim = env.objects.create(&claim).await?;
    let message = wait_refused(&env, &claim, "OverrideRefused").await?;
    assert!(message.contains(ESCAPED), "{message}");
    let event = env.objects.wait_event(&claim, "ProvisioningFailed", TIMEOUT).await?;
    let note = event["note"].as_str().unwrap_or_default();
    assert!(note.contains(ESCAPED), "{note}");
    let log = std::fs::read_to_string(env.rig.operator.log())?;
    assert!(log.contains(ESCAPED), "no line about the claim");
    assert!(!log.contains('\u{9b}') && !log.lines().any(|line| line.starts_with("2026-01-01T")));
    Ok(())
}
