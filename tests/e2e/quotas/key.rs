//! What an administrator runs for the quota agent: `kubectl nfs secret quota-key`, and `nfs-operator probe`.

use export_store::quota::{KeyFile, Order, QuotaSeal};
use export_store::{SignatureStatus, parse_export_id};
use rig::TestEnv;
use serde_json::{Value, json};

use super::agent::{Answer, ScriptedAgent};
use crate::cli::kubectl_nfs::{fine, refused};
use crate::cli::program::{program, text};
use crate::support::shared::{self, Test};

#[tokio::test]
async fn the_printed_key_opens_orders_and_is_not_the_key_of_records() -> Test {
    let env = TestEnv::new("quotakey").await?;
    env.objects
        .create(&env.backend("main", json!({"quota": {"enforce": "Preferred"}})))
        .await?;
    let class = shared::class(&env, "class", "main", json!({})).await?;
    let agent = ScriptedAgent::start(&env.objects, env.data(), Answer::Nothing).await?;
    let (_, volume) = shared::bound(&env, "data", &class).await?;
    let name = shared::text(&volume, "/metadata/name");
    agent.wait_order(name, |_| true).await?;

    let cluster = &rig::shared().await?.cluster;
    let printed = fine(cluster, &["secret", "quota-key"]).await;
    let lines: Vec<&str> = printed.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(lines.len(), 1, "{printed}");
    let keys = KeyFile::parse(&printed)?;
    let cluster_id = agent.quota.parent().unwrap().file_name().unwrap().to_str().unwrap();
    let export_id = parse_export_id(&std::fs::read(env.data().join(".nfs-operator/identity"))?)?.unwrap();
    let key = keys.key(cluster_id).ok_or("no key of this cluster")?;
    let order = std::fs::read(agent.quota.join("orders").join(name))?;
    let opened = QuotaSeal::new(Some(key.clone()), cluster_id, &export_id).open::<Order>(name, &order)?;
    assert_eq!(opened.1, SignatureStatus::Signed);

    // With the key of records, the server could forge whose a directory is.
    let reference = rig::objects::reference("v1", "Secret", Some("nfs-operator-system"), "nfs-operator-records");
    let secret = env.objects.get(&reference).await?.ok_or("no Secret")?;
    let records: k8s_openapi::ByteString = serde_json::from_value(secret["data"]["key"].clone())?;
    let records: String = records.0.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(records.len(), 64);
    assert!(!printed.contains(&records), "the key of records is printed");

    let message = refused(cluster, 1, &["secret", "quota-key", "-n", "default"]).await;
    assert!(message.contains("Secret default/nfs-operator-records"), "{message}");
    Ok(())
}

#[tokio::test]
async fn probe_reports_whether_an_agent_serves_the_export() -> Test {
    let env = TestEnv::new("quotaprobe").await?;
    // The folder for an agent is there, and the heartbeat is not.
    let quota = json!({"quota": {"enforce": "Preferred"}});
    let backend = env.objects.create(&env.backend("main", quota)).await?;
    env.objects
        .wait_condition(&backend, "Ready", "True", None, shared::TIMEOUT)
        .await?;
    let address = format!("127.0.0.1:{}", env.export());
    let port = env.nfs_port().to_string();
    let found = async || {
        let output = program(&["probe", &address, "--port", &port, "--output", "json"]).await;
        let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let rows = report["checks"].as_array().cloned().unwrap_or_default();
        let row = rows.into_iter().find(|row| row["check"] == "quota-agent");
        row.ok_or_else(|| format!("no row: {}", text(&output.stdout)))
    };
    let none = found().await?;
    assert_eq!(
        (&none["result"], &none["seen"]["clusters"]),
        (&json!("ok"), &Value::Null)
    );
    assert!(none.to_string().contains("none: sizes are not enforced"), "{none}");

    let agent = ScriptedAgent::start(&env.objects, env.data(), Answer::InForce).await?;
    let heartbeat = agent.quota.join("agent");
    rig::wait::until("a heartbeat", shared::TIMEOUT, async || match heartbeat.exists() {
        true => Ok(()),
        false => Err("none".to_owned()),
    })
    .await?;
    let cluster_id = agent.quota.parent().unwrap().file_name().unwrap().to_str().unwrap();
    let one = found().await?;
    assert_eq!(one["result"], "ok");
    assert_eq!(one["seen"]["clusters"], json!([cluster_id]), "{one}");
    Ok(())
}
