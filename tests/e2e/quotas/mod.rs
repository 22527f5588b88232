//! Enforced sizes: the operator and a quota agent that the test plays.

pub mod agent;
mod claims;
mod key;
mod manifests;
mod volumes;

use rig::TestEnv;
use rig::objects::condition;
use serde_json::Value;

use crate::support::shared::{TIMEOUT, Test};

/// Waits until an object does not have a condition about limits any more.
async fn wait_no_condition(env: &TestEnv, object: &Value, kind: &str) -> Test {
    let gone = |object: &Value| match condition(object, kind) {
        None => Ok(()),
        Some(condition) => Err(condition.to_string()),
    };
    env.objects.wait(object, "to report no limit", TIMEOUT, gone).await?;
    Ok(())
}
