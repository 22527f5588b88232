//! `kubectl nfs schedules`, `backup` and `restore` with the rights of a tenant.

use rig::TestEnv;
use rig::objects::{merge, reference};
use serde_json::{Value, json};

use super::nfs_as;
use crate::backups::{class_with_backups, tenant};
use crate::cli::program::text;
use crate::support::shared::{TIMEOUT, Test};

#[tokio::test]
async fn a_tenant_backs_up_restores_and_lists_schedules_without_rights_on_archives() -> Test {
    let env = TestEnv::new("nfs-tenant").await?;
    let class = class_with_backups(&env, json!({"maxBytesPerNamespace": "10Gi"})).await?;
    let claim = env.objects.create(&env.claim("data", &class)).await?;
    env.wait_bound(&claim).await?;
    let tenant = tenant(&env).await?;
    let kubeconfig = env.rig.cluster.service_account_kubeconfig(&env.name, "tenant").await?;
    let run = async |args: &[&str]| {
        let args = [args, &["-n", &env.name, "-o", "json"]].concat();
        let output = nfs_as(&kubeconfig, &args).await;
        let printed = serde_json::from_slice::<Value>(&output.stdout);
        printed
            .map(|printed| (output.status.code(), printed))
            .map_err(|error| format!("{error}: {output:?}"))
    };
    let (code, backup) = run(&["backup", "pvc/data", "--expires-in", "30d", "--wait"]).await?;
    assert_eq!((code, &backup["kind"]), (Some(0), &json!("NfsBackup")), "{backup}");
    assert_eq!(
        backup["spec"],
        json!({"source": {"claimName": "data"}, "retention": "2592000s"})
    );
    assert_eq!(backup["status"]["state"], "Available", "{backup}");
    let backup = backup["metadata"]["name"].as_str().ok_or("no name")?;
    // A tenant may not read volumes.
    let explained = nfs_as(&kubeconfig, &["explain", "pvc/data", "-n", &env.name]).await;
    assert_eq!(explained.status.code(), Some(0), "{explained:?}");
    assert!(
        text(&explained.stdout).contains("Not shown: the volume"),
        "{explained:?}"
    );
    // A refusal that only an administrator ends is not waited for.
    let other = env.objects.create(&env.backend("other", json!({}))).await?;
    env.objects
        .wait_condition(&other, "Ready", "True", None, TIMEOUT)
        .await?;
    let closed = env
        .objects
        .create(&env.class("closed", json!({"backend": env.unique_name("other")})))
        .await?;
    let unshared = env.objects.create(&env.claim("unshared", &closed)).await?;
    env.wait_bound(&unshared).await?;
    let refused = nfs_as(&kubeconfig, &["backup", "pvc/unshared", "--wait", "-n", &env.name]).await;
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(text(&refused.stderr).contains("SelfServiceNotAllowed"), "{refused:?}");
    let restore = async |args: &[&str]| {
        let named = ["restore", backup, "--to", "pvc/again", "-n", &env.name];
        let output = nfs_as(&kubeconfig, &[&named, args].concat()).await;
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, plan, _) = restore(&["--plan"]).await;
    assert!(code == Some(0) && plan.contains("kind: NfsBackup"), "{plan}");
    let (code, restored, error) = restore(&["--wait"]).await;
    assert_eq!(code, Some(0), "{error}");
    assert!(restored.contains("has the data of"), "{restored}");
    // The class is that of a claim that does not exist any more.
    tenant.delete(&claim).await?;
    env.objects.wait_gone(&claim, TIMEOUT).await?;
    let (code, _, error) = restore(&[]).await;
    assert!(code == Some(2) && error.contains("set --storage-class"), "{error}");
    let claim = env.objects.create(&env.claim("data", &class)).await?;
    env.wait_bound(&claim).await?;
    let create = async |name: &str, times: &str| {
        let mut object = reference("nfs-operator.io/v1alpha1", "NfsBackupSchedule", Some(&env.name), name);
        merge(
            &mut object,
            &json!({"spec": {"schedule": times, "claims": {"matchNames": ["data"]}}}),
        );
        let object = tenant.create(&object).await?;
        let reported = |found: &Value| match found["status"]["conditions"][0]["type"] == "Ready" {
            true => Ok(()),
            false => Err(found.to_string()),
        };
        env.objects.wait(&object, "to be reported", TIMEOUT, reported).await
    };
    create("good", "@yearly").await?;
    let (code, listed) = run(&["schedules"]).await?;
    assert_eq!(
        (code, &listed["schedules"][0]["name"]),
        (Some(0), &json!("good")),
        "{listed}"
    );
    assert!(
        listed["schedules"][0]["status"]["nextScheduleTime"].is_string(),
        "{listed}"
    );
    create("wrong", "61 * * * *").await?;
    let (code, listed) = run(&["schedules"]).await?;
    assert_eq!(
        (code, listed["schedules"].as_array().map(Vec::len)),
        (Some(1), Some(2)),
        "{listed}"
    );
    Ok(())
}
