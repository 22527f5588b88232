//! Messages to administrators and users if a backend cannot serve, and what happens after the fix.

use std::net::SocketAddr;

use nfs_client::{self, Name, Status};
use rig::{Access, Proxy, TestEnv};
use serde_json::{Value, json};

use crate::support::shared::{TIMEOUT, Test, backend, class, text};

const CONDITION: &str = "nfs-operator.io/Provisioned";

/// Creates a backend that is not Ready for this reason, and a claim that waits with the same reason.
async fn fails(env: &TestEnv, spec: Value, reason: &str) -> rig::Result<(Value, Value)> {
    let backend = env.objects.create(&env.backend("backend", spec)).await?;
    let class = class(env, "class", "backend", json!({})).await?;
    let claim = env.objects.create(&env.claim("data", &class)).await?;
    let reported = env
        .objects
        .wait_condition(&backend, "Ready", "False", Some(reason), TIMEOUT)
        .await?;
    assert!(
        reported["message"].as_str().is_some_and(|message| message.len() > 20),
        "a remedy: {reported}"
    );
    let reported = env
        .objects
        .wait_condition(&claim, CONDITION, "False", Some(reason), TIMEOUT)
        .await?;
    assert!(
        reported["message"]
            .as_str()
            .unwrap()
            .contains(&env.unique_name("backend")),
        "names the backend: {reported}"
    );
    Ok((backend, claim))
}

/// Waits until the backend becomes Ready and the claim is Bound. The retry timer of the claim is longer than the
/// timeout, so the backend wakes the claim.
async fn cured(env: &TestEnv, backend: &Value, claim: &Value) -> Test {
    for (object, condition) in [(backend, "Ready"), (claim, CONDITION)] {
        let turned = env.objects.wait_condition(object, condition, "True", None, TIMEOUT);
        turned.await?;
    }
    env.wait_bound(claim).await?;
    Ok(())
}

async fn proxy_to(env: &TestEnv) -> rig::Result<Proxy> {
    Proxy::start(SocketAddr::from(([127, 0, 0, 1], env.nfs_port()))).await
}

#[tokio::test]
async fn each_change_of_the_reason_of_ready_is_one_event_about_the_backend() -> Test {
    let env = TestEnv::new("transitions").await?;
    let backend = env.objects.create(&env.backend("backend", json!({}))).await?;
    env.objects.wait_event(&backend, "AllChecksPassed", TIMEOUT).await?;
    for (suspend, reason) in [(true, "Suspended"), (false, "AllChecksPassed"), (true, "Suspended")] {
        env.objects
            .patch(&backend, json!({"spec": {"suspend": suspend}}))
            .await?;
        let status = if suspend { "False" } else { "True" };
        let changed = env
            .objects
            .wait_condition(&backend, "Ready", status, Some(reason), TIMEOUT);
        changed.await?;
    }
    // The proxy's port is closed.
    let proxy = proxy_to(&env).await?;
    proxy.refuse(true).await?;
    let spec = json!({"suspend": false, "nfs": {"port": proxy.port()}});
    env.objects.patch(&backend, json!({"spec": spec})).await?;
    let refused = env.objects.wait_event(&backend, "ConnectionRefused", TIMEOUT).await?;
    assert_eq!(refused["type"], "Warning");
    // Events are sent concurrently, so that an earlier one may arrive later.
    let expected = [
        "AllChecksPassed",
        "Suspended",
        "AllChecksPassed",
        "Suspended",
        "ConnectionRefused",
    ];
    rig::wait::until("one event for each change", TIMEOUT, async || {
        let mut events = env.objects.events(&backend).await.map_err(|error| error.to_string())?;
        events.sort_by_key(|event| text(event, "/eventTime").to_owned());
        let all: Vec<&str> = events.iter().map(|event| text(event, "/reason")).collect();
        let repeats = all.windows(2).any(|pair| pair[0] == pair[1]);
        // A server that answers late, because the machine stalls, is a change as well, and so is its next answer.
        let mut reasons = all.clone();
        reasons.retain(|reason| !["ServerNotResponding", "ConnectionTimedOut"].contains(reason));
        reasons.dedup();
        if !repeats && reasons == expected {
            Ok(())
        } else {
            Err(format!("{all:?}"))
        }
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn a_closed_port_is_reported_and_the_claim_is_provisioned_when_it_opens() -> Test {
    let env = TestEnv::new("refused").await?;
    let proxy = proxy_to(&env).await?;
    proxy.refuse(true).await?;
    let (backend, claim) = fails(&env, json!({"nfs": {"port": proxy.port()}}), "ConnectionRefused").await?;
    proxy.refuse(false).await?;
    cured(&env, &backend, &claim).await
}

#[tokio::test]
async fn a_read_only_export_is_reported_and_the_claim_is_provisioned_when_it_is_writable() -> Test {
    let env = TestEnv::with_export("readonly", |export| export.access(Access::ReadOnly)).await?;
    let (backend, claim) = fails(&env, json!({}), "ReadOnly").await?;
    let mut nfs = env.rig.nfs.lock().await;
    nfs.change_export(&env.export(), |export| export.access = Access::ReadWrite)
        .await?;
    drop(nfs);
    cured(&env, &backend, &claim).await?;
    Ok(())
}

#[tokio::test]
async fn a_full_export_is_reported_and_the_claim_is_provisioned_when_there_is_space() -> Test {
    let env = TestEnv::with_export("full", |export| export.tmpfs(1 << 20, None)).await?;
    let nfs = client(&env).await?;
    let root = nfs.root().await?.handle;
    let mut files = Vec::new();
    for size in [100_000, 4096, 1] {
        for n in 0..1000 {
            let name = Name::new(format!("fill-{size}-{n}"))?;
            match nfs.create_file(&root, &name, &vec![0; size], 0o600).await {
                Ok(node) => files.push((name, node.attributes.fileid)),
                Err(error) if error.status() == Some(Status::NoSpace) => break,
                Err(error) => return Err(error.into()),
            }
        }
    }
    let (backend, claim) = fails(&env, json!({}), "NoSpace").await?;
    for (name, file_id) in files {
        nfs.remove_file(&root, &name, file_id).await?;
    }
    cured(&env, &backend, &claim).await?;
    Ok(())
}

/// Connects a client to the export of the test.
async fn client(env: &TestEnv) -> Result<nfs_client::Client, nfs_client::NfsError> {
    nfs_client::Client::connect(nfs_client::Target {
        version: nfs_client::VersionChoice::Auto,
        port: env.nfs_port(),
        mount_port: None,
        source_port: nfs_client::SourcePort::Any,
        credential: nfs_client::Credential::default(),
        owner: nfs_client::ClientOwner {
            owner: env.name.clone().into_bytes(),
            verifier: [7; 8],
        },
        deadline: TIMEOUT,
        ..nfs_client::Target::new("127.0.0.1", env.export())
    })
    .await
}

#[tokio::test]
async fn a_changed_identity_is_reported_and_nothing_is_created() -> Test {
    let env = TestEnv::new("identity").await?;
    let first = backend(&env, "backend", json!({})).await?;
    let file = env.data().join(".nfs-operator/identity");
    let other = std::fs::read_to_string(&file)?;
    let id = env.objects.get(&first).await?.unwrap()["status"]["export"]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let strange: String = id.chars().rev().collect();
    std::fs::write(&file, other.replace(&id, &strange))?;
    env.objects
        .wait_condition(&first, "Ready", "False", Some("IdentityMismatch"), TIMEOUT)
        .await?;
    let class = class(&env, "class", "backend", json!({})).await?;
    let claim = env.objects.create(&env.claim("data", &class)).await?;
    env.objects
        .wait_condition(&claim, CONDITION, "False", Some("IdentityMismatch"), TIMEOUT)
        .await?;
    assert_eq!(std::fs::read_dir(env.data())?.count(), 1, "only .nfs-operator");
    std::fs::write(&file, other)?;
    cured(&env, &first, &claim).await?;
    Ok(())
}
