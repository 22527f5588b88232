//! NfsBackups: backups that tenants make of the claims of their own namespace.

mod adversarial_tenants;
mod created_snapshots;
mod deletion;
mod destinations;
mod incremental;
mod interruptions;
mod schedules;
mod self_service;
mod server;
mod snapshots;
mod views;

use std::time::Duration;

use rig::objects::{Objects, merge, reference, with_fields};
use rig::{TestEnv, wait};
use serde_json::{Value, json};

use crate::support::shared::{self, TIMEOUT, text};

/// Time after which a change is old enough to be told from one during a backup: 60 s, in seconds of the server's clock.
const SETTLED: Duration = Duration::from_secs(62);

/// Returns an NfsBackup of a namespace.
pub fn nfs_backup(namespace: &str, name: &str, spec: &Value) -> Value {
    let mut object = reference("nfs-operator.io/v1alpha1", "NfsBackup", Some(namespace), name);
    merge(&mut object, &json!({ "spec": spec }));
    object
}

/// Returns an NfsBackup of a claim.
pub fn backup_of(env: &TestEnv, name: &str, claim: &str) -> Value {
    nfs_backup(&env.name, name, &json!({"source": {"claimName": claim}}))
}

/// Returns a claim that restores an NfsBackup.
pub fn restoring(mut claim: Value, backup: &str) -> Value {
    let source = json!({"apiGroup": "nfs-operator.io", "kind": "NfsBackup", "name": backup});
    merge(&mut claim, &json!({"spec": {"dataSourceRef": source}}));
    claim
}

/// Returns the reference of the archive of an NfsBackup.
pub fn archive_of_backup(backup: &Value) -> Value {
    let uid = text(backup, "/metadata/uid");
    reference(
        "nfs-operator.io/v1alpha1",
        "NfsArchive",
        None,
        &format!("nfsbackup-{uid}"),
    )
}

/// Waits until an NfsBackup is Ready.
pub async fn ready(env: &TestEnv, backup: &Value) -> rig::Result<Value> {
    let ready = env.objects.wait_condition(backup, "Ready", "True", None, TIMEOUT);
    ready.await?;
    Ok(env.objects.get(backup).await?.unwrap_or_default())
}

/// Waits until an NfsBackup is not Ready for this reason. Returns the message.
pub async fn refused(env: &TestEnv, backup: &Value, reason: &str) -> rig::Result<String> {
    let reported = env
        .objects
        .wait_condition(backup, "Ready", "False", Some(reason), TIMEOUT);
    Ok(text(&reported.await?, "/message").to_owned())
}

/// Creates a backend with these settings of self-service backups, and a class on it.
pub async fn class_with_backups(env: &TestEnv, self_service: Value) -> rig::Result<Value> {
    let spec = json!({"probeInterval": "1s", "backups": {"selfService": self_service}});
    shared::backend(env, "backend", spec).await?;
    shared::class(env, "class", "backend", json!({})).await
}

/// Returns the API with the permissions of a ServiceAccount that has the role `edit` in the namespace of the test.
pub async fn tenant(env: &TestEnv) -> rig::Result<Objects> {
    let account = reference("v1", "ServiceAccount", Some(&env.name), "tenant");
    env.objects.create(&account).await?;
    let binding = json!({
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"kind": "ServiceAccount", "namespace": env.name, "name": "tenant"}],
    });
    let reference = reference("rbac.authorization.k8s.io/v1", "RoleBinding", Some(&env.name), "edit");
    env.objects.create(&with_fields(reference, binding)).await?;
    let tenant = Objects::new(env.rig.cluster.service_account_client(&env.name, "tenant").await?);
    // Roles are aggregated in the background.
    wait::until("the tenant to have the role", TIMEOUT, async || {
        let like = backup_of(env, "any", "any");
        tenant.list(&like).await.map_err(|error| error.to_string())
    })
    .await?;
    Ok(tenant)
}
