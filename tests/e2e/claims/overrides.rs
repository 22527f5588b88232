//! Annotations by which claims override settings, where they are allowed and where not.

use std::os::unix::fs::MetadataExt;

use rig::TestEnv;
use rig::objects::{condition, merge};
use serde_json::{Value, json};

use crate::support::shared::{self, TIMEOUT, Test, text};

/// Returns a claim with our annotations.
fn annotated(env: &TestEnv, name: &str, class: &Value, words: &Value) -> Value {
    let mut claim = env.claim(name, class);
    for (word, value) in words.as_object().into_iter().flatten() {
        let annotation = format!("nfs-operator.io/{word}");
        merge(&mut claim, &json!({"metadata": {"annotations": {annotation: value}}}));
    }
    claim
}

#[tokio::test]
async fn overrides_that_a_backend_allows_apply_to_the_directory_and_the_volume() -> Test {
    let env = TestEnv::new("overrides").await?;
    let allowed = json!(["Mode", "UID", "GID", "OnDelete", "MountOptions"]);
    let spec = json!({"claimOverrides": allowed, "mountOptions": ["hard", "timeo=100", "noatime"]});
    shared::backend(&env, "backend", spec).await?;
    let mut class = env.class(
        "class",
        json!({"backend": env.unique_name("backend"), "onDelete": "archive"}),
    );
    merge(&mut class, &json!({"mountOptions": ["timeo=200", "relatime"]}));
    let class = env.objects.create(&class).await?;
    let words =
        json!({"mode": "2750", "uid": "1234", "gid": "4321", "on-delete": "delete", "mount-options": "soft,timeo=300"});
    let mut claim = annotated(&env, "data", &class, &words);
    merge(
        &mut claim,
        &json!({"spec": {"accessModes": ["ReadWriteOnce", "ReadOnlyMany"]}}),
    );
    let claim = env.objects.create(&claim).await?;
    let volume = env.wait_bound(&claim).await?;
    let directory = std::fs::metadata(env.directory(&volume)?)?;
    assert_eq!(
        (directory.mode() & 0o7777, directory.uid(), directory.gid()),
        (0o2750, 1234, 4321)
    );
    let mut options: Vec<&str> = volume["spec"]["mountOptions"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .filter(|option| !option.starts_with("port="))
        .collect();
    options.sort_unstable();
    assert_eq!(
        options,
        ["nfsvers=4", "relatime", "soft", "timeo=300"],
        "one for each key"
    );
    assert_eq!(volume["spec"]["accessModes"], json!(["ReadWriteOnce", "ReadOnlyMany"]));
    assert_eq!(volume["metadata"]["annotations"]["nfs-operator.io/on-delete"], "delete");
    std::fs::write(env.directory(&volume)?.join("data"), "gone with it")?;
    shared::reclaim(&env, &claim, &volume, "VolumeDeleted").await?;
    assert_eq!(shared::archives(env.data())?, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn a_forbidden_annotation_is_reported_with_the_remedy_until_it_is_removed() -> Test {
    let env = TestEnv::new("not-allowed").await?;
    let backend = shared::backend(&env, "backend", json!({"claimOverrides": ["Mode", "MountOptions"]})).await?;
    let class = shared::class(&env, "class", "backend", json!({})).await?;
    for (word, value, reason, part) in [
        ("uid", "0", "OverrideRefused", "claimOverrides"),
        ("gid", "0", "OverrideRefused", "claimOverrides"),
        ("on-delete", "retain", "OverrideRefused", "claimOverrides"),
        ("backend", "backend", "OverrideRefused", "remove the annotation"),
        ("mode", "rwxr-x---", "InvalidOverride", "octal"),
        ("mount-options", "ro,suid", "InvalidOverride", "suid"),
    ] {
        let claim = env
            .objects
            .create(&annotated(&env, word, &class, &json!({word: value})))
            .await?;
        let message = shared::wait_refused(&env, &claim, reason).await?;
        for expected in [&format!("nfs-operator.io/{word}"), part, "remove"] {
            assert!(message.contains(expected), "{message}");
        }
        env.objects.wait_event(&claim, "ProvisioningFailed", TIMEOUT).await?;
    }
    assert_eq!(shared::names(env.data())?, Vec::<String>::new(), "nothing was created");
    // The user removes it, or the administrator allows it.
    let off = json!({"metadata": {"annotations": {"nfs-operator.io/uid": null}}});
    env.objects.patch(&env.claim("uid", &class), off).await?;
    env.wait_bound(&env.claim("uid", &class)).await?;
    let allow = json!({"spec": {"claimOverrides": ["Mode", "MountOptions", "GID"]}});
    env.objects.patch(&backend, allow).await?;
    env.wait_bound(&env.claim("gid", &class)).await?;
    Ok(())
}

#[tokio::test]
async fn a_waiting_claim_reports_why_each_backend_was_excluded() -> Test {
    let env = TestEnv::new("left-out").await?;
    let full = json!({"capacity": {"limit": "1Ki"}});
    shared::backend(&env, "full", full).await?;
    shared::backend(&env, "closed", json!({"allowedNamespaces": {"matchNames": ["nobody"]}})).await?;
    // Nothing listens on the discard port (RFC 863).
    for dead in ["dead-a", "dead-b"] {
        let backend = env.backend(dead, json!({"nfs": {"port": 9}}));
        let backend = env.objects.create(&backend).await?;
        env.objects
            .wait_condition(&backend, "Ready", "False", Some("ConnectionRefused"), TIMEOUT)
            .await?;
    }
    let name = |word: &str| env.unique_name(word);
    let all = [
        name("full"),
        name("closed"),
        name("dead-a"),
        name("dead-b"),
        name("missing"),
    ];
    let class = env
        .objects
        .create(&env.class("class", json!({"backend": all.join(",")})))
        .await?;
    let claim = env.objects.create(&env.claim("data", &class)).await?;
    let expected = format!(
        "2 of 5 backends not ready: {} (ConnectionRefused), {} (ConnectionRefused); {}: namespace not allowed; {}: \
         capacity exceeded; {}: not found",
        name("dead-a"),
        name("dead-b"),
        name("closed"),
        name("full"),
        name("missing")
    );
    // If the probe of a backend is late, that is reported first.
    let reported = |claim: &Value| match condition(claim, "nfs-operator.io/Provisioned") {
        Some(found) if found["reason"] == "NoBackendAvailable" && found["message"] == expected => Ok(()),
        _ => Err("another condition".to_owned()),
    };
    let what = format!("to report: {expected}");
    env.objects.wait(&claim, &what, TIMEOUT, reported).await?;
    // A label on the namespace grants access to the closed one.
    let backend = shared::backend_reference(&env, "closed");
    let open = json!({"allowedNamespaces": {"matchNames": [], "selector": {"matchLabels": {"team": &env.name}}}});
    env.objects.patch(&backend, json!({ "spec": open })).await?;
    let namespace = rig::objects::reference("v1", "Namespace", None, &env.name);
    let label = json!({"metadata": {"labels": {"team": &env.name}}});
    env.objects.patch(&namespace, label).await?;
    let volume = env.wait_bound(&claim).await?;
    assert_eq!(
        text(&volume, "/metadata/annotations/nfs-operator.io~1backend"),
        name("closed")
    );
    Ok(())
}
