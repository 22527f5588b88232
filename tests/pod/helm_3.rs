//! A release with Helm 3, which runs the hooks with code of its own. The other tests use Helm 4.

use rig::{TIMEOUT, objects::reference};
use serde_json::{Value, json};

use crate::{
    Test,
    env::{HELM_TIMEOUT, NAMESPACE, PodEnv, backend, is_pod_ready},
};

pub async fn manages_a_release(env: &PodEnv) -> Test {
    let chart = env.chart();
    let wait = ["--wait", "--timeout", HELM_TIMEOUT];
    let create = ["--create-namespace"];
    env.helm_3(&["install"], Some(chart), &[&create[..], &wait].concat())
        .await?;
    env.objects
        .wait_condition(&backend(), "Ready", "True", None, TIMEOUT)
        .await?;
    let claims = env.create_claims("helm-3", 3).await?;
    env.wait_all_bound("helm-3", &claims).await?;
    env.print_progress("installed with Helm 3");

    // An older CRD, without the short name: only the Job before the upgrade adds it again.
    let name = "nfsbackends.nfs-operator.io";
    let crd = reference("apiextensions.k8s.io/v1", "CustomResourceDefinition", None, name);
    let before = env.objects.get(&crd).await?.expect("the CRD exists");
    let older = json!({"spec": {"names": {"shortNames": null}}});
    env.objects.patch(&crd, older).await?;
    let annotation = ["--set", "podAnnotations.upgraded=yes"];
    env.helm_3(&["upgrade"], Some(chart), &[&wait[..], &annotation].concat())
        .await?;
    let after = env.objects.get(&crd).await?.expect("the CRD exists");
    assert_eq!(after["spec"], before["spec"]);
    let pod = env.pod().await?;
    assert_eq!(pod["metadata"]["annotations"]["upgraded"], "yes");
    env.print_progress("upgraded with Helm 3, and the kinds with the Job");

    let tested = env
        .helm_3(&["test"], None, &["--logs", "--timeout", HELM_TIMEOUT])
        .await?;
    assert!(tested.contains("Succeeded") && tested.contains("reclaim"), "{tested}");

    env.helm_3(&["rollback"], None, &wait).await?;
    let pod = env.pod().await?;
    assert_eq!(pod["metadata"]["annotations"]["upgraded"], Value::Null);
    assert!(is_pod_ready(&pod));
    env.print_progress("rolled back with Helm 3");

    env.helm_3(&["uninstall"], None, &wait).await?;
    let deployment = reference("apps/v1", "Deployment", Some(NAMESPACE), "nfs-operator");
    assert!(env.objects.get(&deployment).await?.is_none());
    assert!(env.objects.get(&backend()).await?.is_some() && env.objects.get(&crd).await?.is_some());
    env.wait_all_bound("helm-3", &claims).await?;
    Ok(())
}
