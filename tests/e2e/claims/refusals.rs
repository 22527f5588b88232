//! Invalid objects: a clear error as early as possible, and no damage.

use rig::TestEnv;
use rig::objects::merge;
use serde_json::{Value, json};

use crate::support::shared::{self, TIMEOUT, Test};

#[tokio::test]
async fn the_api_server_refuses_a_bad_backend_and_names_the_field_and_the_remedy() -> Test {
    let env = TestEnv::new("schema").await?;
    for (spec, field, remedy) in [
        (json!({"path": "export"}), "spec.path", "start it with `/`"),
        (json!({"path": "/export/../etc"}), "spec.path", "`..` segments"),
        (json!({"path": "/export//data"}), "spec.path", "segments"),
        (json!({"path": "/export/"}), "spec.path", "must not end with `/`"),
        (
            json!({"server": "nfs.example.com/export"}),
            "spec.server",
            "put the export's path into `path`",
        ),
        (json!({"server": "nfs.example.com:2049"}), "spec.server", "`nfs.port`"),
        (json!({"server": ""}), "spec.server", "at least 1"),
        (json!({"directory": {"mode": "-1"}}), "spec.directory.mode", "octal"),
        (json!({"directory": {"mode": "0999"}}), "spec.directory.mode", "octal"),
        (
            json!({"directory": {"uid": -1}}),
            "spec.directory.uid",
            "greater than or equal to 0",
        ),
        (
            json!({"directory": {"pattern": "../x"}}),
            "spec.directory.pattern",
            "relative",
        ),
        (
            json!({"directory": {"pattern": "/x"}}),
            "spec.directory.pattern",
            "relative",
        ),
        (
            json!({"directory": {"pattern": "${pvc.nam}"}}),
            "spec.directory.pattern",
            "${pvc.name}",
        ),
        (
            json!({"directory": {"pattern": "${pvc.namespace}-${pvc.uid"}}),
            "spec.directory.pattern",
            "${pvc.uid}",
        ),
        (
            json!({"capacity": {"limit": "-1Gi"}}),
            "spec.capacity.limit",
            "0 or more",
        ),
        (
            json!({"capacity": {"limit": "much"}}),
            "spec.capacity.limit",
            "quantities of 0 or more",
        ),
        (
            json!({"nfs": {"port": 0}}),
            "spec.nfs.port",
            "greater than or equal to 1",
        ),
        (json!({"nfs": {"version": "5"}}), "spec.nfs.version", "Auto"),
        (json!({"nfs": {"auth": {}}}), "spec.nfs.auth", "exactly one member"),
        (json!({"probeInterval": "2d"}), "spec.probeInterval", "from 1s to 24h"),
        (
            json!({"archivePolicy": {"retention": "1.5d"}}),
            "spec.archivePolicy.retention",
            "must be a duration",
        ),
        (json!({"probeInterval": "0s"}), "spec.probeInterval", "from 1s to 24h"),
        (
            json!({"mountOptions": ["hard,ro"]}),
            "spec.mountOptions",
            "must be a single option",
        ),
        (
            json!({"archivePolicy": {"onDelete": "Shred"}}),
            "spec.archivePolicy.onDelete",
            "Archive",
        ),
        (json!({"claimOverrides": ["root"]}), "spec.claimOverrides", "Mode"),
    ] {
        let refused = env.objects.create(&env.backend("bad", spec.clone())).await;
        let message = refused.expect_err("it was taken").to_string();
        assert!(message.contains(field) && message.contains(remedy), "{spec}: {message}");
    }
    for server in ["10.0.0.1", "::1", "fe80::2", "nfs", "nfs-1.example.com"] {
        let days = json!({"server": server, "suspend": true, "probeInterval": "1d", "usage": {"interval": "7d12h"},
            "archivePolicy": {"retention": "90d"}});
        let mut backend = env.backend("good", days);
        merge(&mut backend, &json!({"metadata": {"name": env.unique_name("good")}}));
        let good = env.objects.create(&backend).await?;
        env.objects.delete(&good).await?;
        env.objects.wait_gone(&good, TIMEOUT).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_claim_that_cannot_be_served_reports_the_reason_once_and_creates_nothing() -> Test {
    let env = TestEnv::new("bad-claim").await?;
    env.create_ready_class().await?;
    let backend = env.unique_name("backend");
    let cases: [(Value, Value, &str, &str); 6] = [
        (json!({"backend": "no-such"}), json!({}), "BackendNotFound", "no-such"),
        (
            json!({"backend": backend, "archiveOnDelte": "true"}),
            json!({}),
            "InvalidParameter",
            "archiveOnDelte",
        ),
        (
            json!({"backend": backend, "mode": "-1"}),
            json!({}),
            "InvalidParameter",
            "mode",
        ),
        (
            json!({"backend": backend, "pathPattern": "${pvc.nmae}"}),
            json!({}),
            "InvalidDirectoryName",
            "pvc.nmae",
        ),
        (
            json!({"backend": backend}),
            json!({"volumeMode": "Block"}),
            "BlockVolumeUnsupported",
            "Filesystem",
        ),
        (
            json!({"backend": backend}),
            json!({"selector": {"matchLabels": {"a": "b"}}}),
            "SelectorUnsupported",
            "selector",
        ),
    ];
    for (n, (parameters, spec, reason, word)) in cases.into_iter().enumerate() {
        let class = env
            .objects
            .create(&env.class(&format!("class-{n}"), parameters))
            .await?;
        let mut claim = env.claim(&format!("data-{n}"), &class);
        merge(&mut claim, &json!({"spec": spec}));
        let claim = env.objects.create(&claim).await?;
        let message = shared::wait_refused(&env, &claim, reason).await?;
        assert!(message.contains(word), "{message}");
        // The controller manager sends events with the same reason, so the note identifies ours.
        rig::wait::until("our event", TIMEOUT, async || {
            let events = env.objects.events(&claim).await.map_err(|error| error.to_string())?;
            let ours = |event: &Value| {
                event["reason"] == "ProvisioningFailed" && shared::text(event, "/note").contains(reason)
            };
            if events.iter().any(ours) {
                Ok(())
            } else {
                Err(format!("{events:?}"))
            }
        })
        .await?;
    }
    assert_eq!(shared::names(env.data())?, Vec::<String>::new());
    Ok(())
}
