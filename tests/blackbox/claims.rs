//! From a claim to its volume, as a user sees it.

use std::os::unix::fs::MetadataExt;

use rig::TestEnv;
use serde_json::json;

type Test = Result<(), Box<dyn std::error::Error>>;

#[tokio::test]
async fn a_claim_becomes_bound_and_its_directory_has_the_asked_mode_uid_and_gid() -> Test {
    let env = TestEnv::new("bound").await?;
    let settings = json!({"directory": {"mode": "2770", "uid": 1234, "gid": 4321}});
    let backend = env.objects.create(&env.backend("backend", settings)).await?;
    env.objects
        .wait_condition(&backend, "Ready", "True", None, std::time::Duration::from_secs(20))
        .await?;
    let class = env
        .objects
        .create(&env.class("class", json!({"backend": env.named("backend")})))
        .await?;
    let claim = env.objects.create(&env.claim("data", &class)).await?;
    let volume = env.wait_bound(&claim).await?;
    let directory = std::fs::metadata(env.directory(&volume)?)?;
    assert_eq!(
        (directory.mode() & 0o7777, directory.uid(), directory.gid()),
        (0o2770, 1234, 4321)
    );
    Ok(())
}
