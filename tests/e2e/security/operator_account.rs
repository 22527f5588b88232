//! What the ValidatingAdmissionPolicy for the operator's account prevents. The rig installs it for all tests, which prove
//! that it allows what the operator needs.

use rig::Objects;
use rig::objects::{merge, reference, with_fields};
use serde_json::{Value, json};

use crate::support::dedicated_cluster::DedicatedCluster;
use crate::support::shared::{Failure, TIMEOUT, Test, text};

const NAMESPACE: &str = "nfs-operator-system";
const ACCOUNT: &str = "system:serviceaccount:nfs-operator-system:nfs-operator";
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

/// Returns a client of the operator's account. It impersonates the account, so that the refused requests do not count as
/// requests of the operator in the audit log.
async fn as_operator(env: &DedicatedCluster) -> Result<Objects, Failure> {
    let admin = kube::config::Kubeconfig::read_from(env.cluster.kubeconfig())?;
    let mut config = kube::Config::from_custom_kubeconfig(admin, &kube::config::KubeConfigOptions::default()).await?;
    config.auth_info.impersonate = Some(ACCOUNT.to_owned());
    Ok(Objects::new(kube::Client::try_from(config)?))
}

fn volume(name: &str, source: Value, provisioner: &str, claim: Option<&str>) -> Value {
    let mut volume = reference("v1", "PersistentVolume", None, name);
    let spec = json!({"capacity": {"storage": "1Mi"}, "accessModes": ["ReadWriteMany"], "storageClassName": ""});
    merge(&mut volume, &json!({ "spec": spec }));
    merge(&mut volume, &json!({ "spec": source }));
    merge(
        &mut volume,
        &json!({"metadata": {"annotations": {PROVISIONED_BY: provisioner}}}),
    );
    if let Some(claim) = claim {
        merge(
            &mut volume,
            &json!({"spec": {"claimRef": {"namespace": "default", "name": claim}}}),
        );
    }
    volume
}

/// Checks that the policy refused a request.
fn assert_refused<T>(what: &str, result: Result<T, impl std::fmt::Display>) {
    let Err(error) = result else {
        panic!("{what}: it was allowed");
    };
    let error = error.to_string();
    assert!(
        error.contains("nfs-operator-account") && error.contains("operator's account may"),
        "{what}: {error}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stolen_token_writes_only_what_the_operator_writes() -> Test {
    let env = DedicatedCluster::start(json!({})).await?;
    let thief = as_operator(&env).await?;
    let nfs = json!({"nfs": {"server": "127.0.0.1", "path": "/export/x"}});
    let ours = "nfs-operator.io/nfs";
    rig::wait::until("the policy to be enforced", TIMEOUT, async || {
        match thief
            .create(&volume("probe", nfs.clone(), "other/nfs", Some("c")))
            .await
        {
            Ok(created) => {
                env.objects.delete(&created).await.map_err(|error| error.to_string())?;
                Err("it was created".into())
            }
            Err(error) if error.to_string().contains("nfs-operator-account") => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    })
    .await?;

    // Creations.
    let role = "rbac.authorization.k8s.io/v1";
    let secret = |name: &str| reference("v1", "Secret", Some(NAMESPACE), name);
    let token = json!({"type": "kubernetes.io/service-account-token", "metadata": {"annotations": {"kubernetes.io/service-account.name": "default"}}});
    let event = json!({
        "action": "a", "reason": "r", "note": "n", "type": "Normal", "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "c", "reportingInstance": "i",
        "regarding": {"kind": "Pod", "namespace": "default", "name": "x", "apiVersion": "v1"},
    });
    for (what, object) in [
        (
            "a hostPath volume",
            volume("v", json!({"hostPath": {"path": "/"}}), ours, Some("c")),
        ),
        (
            "another's volume",
            volume("v", nfs.clone(), "k8s-sigs.io/other", Some("c")),
        ),
        ("a volume for anyone", volume("v", nfs.clone(), ours, None)),
        ("another Secret", secret("other")),
        ("a token", with_fields(secret("nfs-operator-records"), token)),
        (
            "another Lease",
            reference("coordination.k8s.io/v1", "Lease", Some(NAMESPACE), "other"),
        ),
        (
            "an event about a pod",
            with_fields(reference("events.k8s.io/v1", "Event", Some("default"), "x.1"), event),
        ),
        (
            "a backend",
            with_fields(
                reference("nfs-operator.io/v1alpha1", "NfsBackend", None, "other"),
                json!({"spec": {"server": "nfs.example.com", "path": "/"}}),
            ),
        ),
    ] {
        assert_refused(what, thief.create(&object).await);
    }
    let refused = thief
        .create(&reference(role, "ClusterRole", None, "any"))
        .await
        .expect_err("it was created");
    assert!(refused.to_string().contains("cannot create resource"), "{refused}");

    // Changes of a volume and a claim of the operator.
    let claim = env.objects.create(&env.claim("data")).await?;
    let bound = env.bound(&claim).await?;
    let foreign = env
        .objects
        .create(&volume("foreign", nfs.clone(), "other/nfs", None))
        .await?;
    let annotated = |key: &str, value: Value| json!({"metadata": {"annotations": {key: value}}});
    for (what, patch) in [
        (
            "its reclaim policy",
            json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}}),
        ),
        ("its claim", json!({"spec": {"claimRef": null}})),
        ("its mount options", json!({"spec": {"mountOptions": ["sec=sys"]}})),
        ("its directory", annotated("nfs-operator.io/directory", json!("other"))),
        ("its provisioner", annotated(PROVISIONED_BY, Value::Null)),
        ("its labels", json!({"metadata": {"labels": {"a": "b"}}})),
        (
            "a finalizer",
            json!({"metadata": {"finalizers": ["other.example.com/hold"]}}),
        ),
        (
            "another policy",
            annotated("nfs-operator.io/on-delete", json!("delete")),
        ),
    ] {
        assert_refused(what, thief.patch(&bound, patch).await);
    }
    assert_refused(
        "another's volume",
        thief
            .patch(
                &foreign,
                json!({"metadata": {"finalizers": ["nfs-operator.io/reclaim"]}}),
            )
            .await,
    );
    assert_refused("deletion of a bound volume", thief.delete(&bound).await);
    assert_refused("deletion of another's volume", thief.delete(&foreign).await);
    for (what, patch) in [
        (
            "its size",
            json!({"spec": {"resources": {"requests": {"storage": "2Mi"}}}}),
        ),
        ("a wish", annotated("nfs-operator.io/on-delete", json!("delete"))),
        ("another's annotation", annotated("example.com/a", json!("b"))),
        ("its labels", json!({"metadata": {"labels": {"a": "b"}}})),
        ("a finalizer", json!({"metadata": {"finalizers": []}})),
    ] {
        assert_refused(what, thief.patch(&claim, patch).await);
    }
    for (what, patch) in [
        ("its phase", json!({"status": {"phase": "Lost"}})),
        (
            "a condition",
            json!({"status": {"conditions": [{"type": "example.com/Other", "status": "True"}]}}),
        ),
    ] {
        assert_refused(what, thief.patch_status(&claim, patch).await);
    }

    // An empty directory is not archived.
    std::fs::write(env.directory(&bound)?.join("data"), "x")?;

    // Decisions of administrators.
    let main = reference("nfs-operator.io/v1alpha1", "NfsBackend", None, "main");
    assert_refused(
        "its server",
        thief.patch(&main, json!({"spec": {"server": "nfs.example.com"}})).await,
    );
    let accept = annotated("nfs-operator.io/accept-identity", json!("x"));
    assert_refused("an acceptance", thief.patch(&main, accept).await);
    env.objects.delete(&claim).await?;
    env.objects.wait_gone(&bound, TIMEOUT).await?;
    let archive = reference(
        "nfs-operator.io/v1alpha1",
        "NfsArchive",
        None,
        text(&bound, "/metadata/name"),
    );
    rig::wait::until("the archive", TIMEOUT, async || {
        let held = json!({"spec": {"legalHold": true}});
        env.objects
            .patch(&archive, held)
            .await
            .map_err(|error| error.to_string())
    })
    .await?;
    for (what, patch) in [
        ("its hold", json!({"spec": {"legalHold": false}})),
        ("its deletion policy", json!({"spec": {"deletionPolicy": "Delete"}})),
        (
            "its expiry",
            json!({"spec": {"expirationTime": "2020-01-01T00:00:00Z"}}),
        ),
        (
            "its readers",
            json!({"spec": {"allowedNamespaces": {"matchNames": ["thief"]}}}),
        ),
    ] {
        assert_refused(what, thief.patch(&archive, patch).await);
    }
    Ok(())
}
