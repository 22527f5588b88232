//! The queries of the dashboard and of the alerts, in a Prometheus that scrapes a running operator.

use std::collections::BTreeSet;
use std::fs;

use rig::objects::{merge, reference};
use rig::operator::repository_root;
use rig::{Error, Prometheus, RunDir, wait};
use serde_json::{Value, json};

use crate::support::dedicated_cluster::DedicatedCluster;
use crate::support::shared::{Failure, TIMEOUT, Test};

/// Queries of the dashboard that have no series in a healthy cluster, by a part of the query, with the reason.
const WITHOUT_DATA: [(&str, &str); 9] = [
    ("nfs_operator_claim_backup_overdue", "the schedule has not run"),
    ("nfs_operator_copy_bytes", "no copy is in progress"),
    ("nfs_operator_copy_bytes_expected", "no copy is in progress"),
    ("nfs_operator_copy_files", "no copy is in progress"),
    ("nfs_operator_copy_files_expected", "no copy is in progress"),
    ("nfs_operator_nfs_call_errors_total", "only failed calls"),
    ("nfs_operator_backend_reason", "only backends that are not Ready"),
    ("nfs_operator_backend_pending_limits", "no quota agent"),
    ("nfs_operator_backend_quotas_enforced_reason", "no quota agent"),
];

/// Returns the queries of all panels, as Grafana sends them for all backends of a Prometheus of one cluster.
fn dashboard() -> Result<Vec<String>, Failure> {
    let text = fs::read_to_string(repository_root().join("config/prometheus/dashboard.json"))?;
    let dashboard: Value = serde_json::from_str(&text)?;
    let panels = dashboard["panels"].as_array().ok_or("no panels")?;
    let inner = panels.iter().filter_map(|panel| panel["panels"].as_array()).flatten();
    let targets = panels
        .iter()
        .chain(inner)
        .filter_map(|panel| panel["targets"].as_array());
    let queries = targets.flatten().filter_map(|target| target["expr"].as_str());
    let values = [("$__rate_interval", "1m"), ("$backend", ".*"), ("$cluster", "")];
    let with_values = |query: &str| {
        values
            .iter()
            .fold(query.to_owned(), |query, (name, value)| query.replace(name, value))
    };
    Ok(queries.map(with_values).collect())
}

/// Something of everything that the metrics describe.
async fn create_data(env: &DedicatedCluster) -> Test {
    for name in ["kept", "deleted"] {
        let claim = env.objects.create(&env.claim(name)).await?;
        env.bound(&claim).await?;
    }
    let mut waiting = env.claim("waiting");
    merge(&mut waiting, &json!({"spec": {"volumeMode": "Block"}}));
    env.objects.create(&waiting).await?;
    let mut schedule = reference(
        "nfs-operator.io/v1alpha1",
        "NfsBackupSchedule",
        Some("default"),
        "often",
    );
    let spec = json!({"schedule": "0 0 1 1 *", "claims": {"matchNames": ["kept"]}});
    merge(&mut schedule, &json!({ "spec": spec }));
    env.objects.create(&schedule).await?;
    env.run_as_admin(
        "kubectl nfs backup pvc/kept --wait && kubectl nfs scan main --wait && kubectl nfs count main --wait",
    )
    .await?;
    let deleted = env.claim("deleted");
    env.objects.delete(&deleted).await?;
    env.objects.wait_gone(&deleted, TIMEOUT).await?;
    Ok(())
}

#[tokio::test]
async fn every_query_of_the_dashboard_and_the_alerts_works_in_a_prometheus() -> Test {
    let spec = json!({"probeInterval": "1s", "usage": {"interval": "24h"}, "backups": {"selfService": {"maxBytesPerNamespace": "20Mi"}}});
    let env = DedicatedCluster::start_in_memory(spec, &["--volume-metrics"]).await?;
    let run = RunDir::new()?;
    let rules = run.new_dir("rules")?.join("rules.yaml");
    let text = fs::read_to_string(repository_root().join("config/prometheus/rules.yaml"))?;
    let object: Value = serde_norway::from_str(&text)?;
    fs::write(&rules, object["spec"].to_string())?;
    let [target, _] = env.operator.http_addresses();
    let prometheus = match Prometheus::start(&run, target, &rules).await {
        Err(missing @ Error::Missing { .. }) => {
            eprintln!("SKIPPED, no query was evaluated: {missing}");
            return Ok(());
        }
        started => started?,
    };
    create_data(&env).await?;

    let queries = dashboard()?;
    assert!(queries.len() > 50, "{queries:#?}");
    let expected: BTreeSet<&str> = WITHOUT_DATA.iter().map(|(part, _)| *part).collect();
    let is_expected = |query: &str| {
        let name = query.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        name.into_iter().any(|word| expected.contains(word))
    };
    // Those that must have data get it from the next scrapes; those that have none are only evaluated.
    wait::until("all queries to return series", TIMEOUT, async || {
        let mut empty = Vec::new();
        for query in &queries {
            let found = prometheus.query(query).await.map_err(|error| error.to_string())?;
            if found.is_empty() && !is_expected(query) {
                empty.push(query);
            }
        }
        match empty.is_empty() {
            true => Ok(()),
            false => Err(format!("no data: {empty:#?}")),
        }
    })
    .await?;

    let all = object
        .pointer("/spec/groups/0/rules")
        .and_then(Value::as_array)
        .ok_or("no rules")?;
    wait::until("all rules to be evaluated and inactive", TIMEOUT, async || {
        let rules = prometheus.rules().await.map_err(|error| error.to_string())?;
        let is_fine = |rule: &&Value| rule["health"] == "ok" && rule["state"] == "inactive";
        match rules.iter().find(|rule| !is_fine(rule)) {
            None if rules.len() == all.len() => Ok(()),
            wrong => Err(format!("{} rules, {wrong:?}", rules.len())),
        }
    })
    .await?;

    // An alert sees what the operator reports.
    env.proxy.refuse(true).await?;
    env.proxy.cut().await;
    wait::until("the alert on a backend that is not Ready", TIMEOUT, async || {
        let rules = prometheus.rules().await.map_err(|error| error.to_string())?;
        let alert = rules.iter().find(|rule| rule["name"] == "NfsBackendNotReady");
        match alert.is_some_and(|rule| rule["state"] == "pending") {
            true => Ok(()),
            false => Err(format!("{alert:?}")),
        }
    })
    .await?;
    Ok(())
}
