//! Writes to an object that was changed, deleted, or replaced by another one of the same name.

use std::fmt::Debug;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{Api, Client, Resource, ResourceExt};
use nfs_operator::api::NfsBackend;
use nfs_operator::runtime::writes::{WriteError, apply, apply_status, patch_as_read};
use rig::TestEnv;
use rig::objects::merge;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::support::shared::{Failure, TIMEOUT, Test};

/// Returns the results of all kinds of writes to an object: apply and merge, to the object and to its status.
async fn writes<K>(api: &Api<K>, object: &K) -> [&'static str; 4]
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let fields = || json!({"metadata": {"labels": {"a": "b"}}});
    let condition = json!({
        "type": "Tested", "status": "True", "reason": "Tested", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    // An empty status would change nothing, and the API server accepts such an apply whatever the UID is.
    let status = json!({"conditions": [condition]});
    let with_status = json!({"status": status});
    let result = |written| match written {
        Ok(()) => "Ok",
        Err(WriteError::NotFound) => "NotFound",
        Err(WriteError::Replaced) => "Replaced",
        Err(WriteError::Conflict) => "Conflict",
        Err(WriteError::Api { .. }) => "Api",
    };
    [
        result(apply(api, object, "test", fields(), "write").await),
        result(apply_status(api, object, "test", &status, None, "write").await),
        result(patch_as_read(api, object, fields(), false, "write").await.map(drop)),
        result(patch_as_read(api, object, with_status, true, "write").await.map(drop)),
    ]
}

/// Writes to an object of this kind before and after its deletion, and after another one was created with its name.
async fn check<K>(
    env: &TestEnv,
    api: impl Fn(Client) -> Api<K>,
    object: &Value,
    replaced_status: &str,
) -> Result<(), Failure>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let api = api(env.objects.client());
    let first: K = serde_json::from_value(env.objects.create(object).await?)?;
    let mut changed = first.clone();
    changed.meta_mut().resource_version = Some("1".to_owned());
    assert_eq!(
        writes(&api, &changed).await,
        ["Ok", "Ok", "Conflict", "Conflict"],
        "changed"
    );

    env.objects.delete(object).await?;
    env.objects.wait_gone(object, TIMEOUT).await?;
    assert_eq!(writes(&api, &first).await, ["NotFound"; 4], "deleted {}", K::kind(&()));

    env.objects.create(object).await?;
    let expected = ["Replaced", replaced_status, "Conflict", "Conflict"];
    assert_eq!(writes(&api, &first).await, expected, "replaced {}", K::kind(&()));
    let second = api.get(&first.name_any()).await?;
    assert_eq!(second.labels().get("a"), None, "the write changed the other object");
    env.objects.delete(object).await?;
    Ok(())
}

#[tokio::test]
async fn a_write_distinguishes_a_changed_a_deleted_and_a_replaced_object() -> Test {
    let env = TestEnv::new("replaced").await?;
    // No operator serves the class.
    let mut claim = env.claim("data", &json!({"metadata": {"name": "none"}}));
    merge(&mut claim, &json!({"spec": {"storageClassName": "none"}}));
    check::<PersistentVolumeClaim>(&env, |client| Api::namespaced(client, &env.name), &claim, "Replaced").await?;
    let backend = env.backend("main", json!({"suspend": true}));
    // The API server ignores the UID in an apply to the status of a custom resource.
    check::<NfsBackend>(&env, Api::all, &backend, "Ok").await
}
