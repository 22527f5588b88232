//! The operator on its node's network, for servers that admit nodes alone.

use rig::PATIENCE;

use crate::{
    Test,
    stage::{Stage, backend, is_ready},
};

/// A server on it admits ports above 1023; the one on the usual port does not.
const OPEN_PORT: u16 = 2050;

pub async fn serves(stage: &Stage) -> Test {
    let server = stage.another_server(OPEN_PORT).await?;
    let open = stage.other_backend(OPEN_PORT).await?;
    upgrade_or_install(stage, "1").await?;
    let pod = stage.pod().await?;
    assert!(is_ready(&pod), "{}", pod["status"]);
    assert_eq!(pod["status"]["podIP"], pod["status"]["hostIP"]);
    stage
        .objects
        .wait_condition(&open, "Ready", "True", None, PATIENCE)
        .await?;
    // The API server refuses the sysctl that would let the operator use those ports.
    let reason = Some("ReservedPortRequired");
    stage
        .objects
        .wait_condition(&backend(), "Ready", "False", reason, PATIENCE)
        .await?;
    stage.say("on the node's network it reaches servers that don't ask for a reserved port, and says which do");

    // The next pod needs the same port of the node, so the former one has to go first.
    upgrade_or_install(stage, "2").await?;
    let next = stage.pod().await?;
    assert!(is_ready(&next), "{}", next["status"]);
    assert_ne!(pod["metadata"]["uid"], next["metadata"]["uid"]);
    stage.say("its next pod takes its place on the same node");
    stage.objects.delete(&open).await?;
    stage.objects.wait_gone(&open, PATIENCE).await?;
    Ok(server.stop().await?)
}

/// A pod with another annotation is another pod.
async fn upgrade_or_install(stage: &Stage, annotation: &str) -> Test {
    let annotation = format!("podAnnotations.number=n{annotation}");
    let wait = ["--install", "--create-namespace", "--wait", "--timeout", "120s"];
    let values = ["--set", "hostNetwork=true", "--set", &annotation];
    stage
        .helm(&["upgrade"], Some(&Stage::chart()), &[&wait[..], &values].concat())
        .await?;
    Ok(())
}
