//! `helm install`, `helm test` and `helm uninstall`, and `kubectl apply` of the bundle of a release.

use rig::{TIMEOUT, objects::reference};
use serde_json::Value;

use crate::{
    Test,
    env::{HELM_TIMEOUT, IMAGE, NAMESPACE, PodEnv, backend, is_pod_ready},
};

/// Enough that the operator handles several at the same time.
const CLAIMS: usize = 20;

pub async fn becomes_ready(env: &PodEnv) -> Test {
    env.install(env.chart(), &[]).await?;
    let pod = env.pod().await?;
    assert!(is_pod_ready(&pod), "{}", pod["status"]);
    let (spec, container) = (&pod["spec"], &pod["spec"]["containers"][0]);
    assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
    assert_eq!(spec["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
    assert_eq!(container["securityContext"]["allowPrivilegeEscalation"], false);
    assert_eq!(container["securityContext"]["capabilities"]["drop"][0], "ALL");
    assert_eq!(container["resources"]["limits"]["memory"], "64Mi");

    let claims = env.create_claims("installed", CLAIMS).await?;
    env.wait_all_bound("installed", &claims).await?;
    env.print_progress(&format!("{CLAIMS} claims are Bound"));
    let memory = env.node.memory(&pod).await?;
    env.print_progress(&format!(
        "anonymous memory {:.1} MB, peak of the cgroup {:.1} MB, limit {:.1} MB",
        megabytes(memory.anonymous),
        megabytes(memory.peak),
        megabytes(memory.limit)
    ));
    // The limit is enforced by the kernel, not only present in the object.
    assert_eq!(memory.limit, 64 * 1024 * 1024);

    let output = env.helm(&["test"], None, &["--timeout", HELM_TIMEOUT]).await?;
    assert!(output.contains("Succeeded"), "{output}");
    env.print_progress("helm test succeeded");
    Ok(())
}

fn megabytes(bytes: u64) -> f64 {
    // Rounded for display.
    bytes as f64 / 1e6
}

pub async fn uninstall_keeps_data_that_the_bundle_takes_over(env: &PodEnv) -> Test {
    env.install(env.chart(), &[]).await?;
    let claims = env.create_claims("left", 3).await?;
    env.wait_all_bound("left", &claims).await?;
    let directories = env.directories("left")?;
    for directory in &directories {
        std::fs::write(directory.join("kept.txt"), "data of a pod\n")?;
    }

    env.clean_up().await?;
    let deployment = reference("apps/v1", "Deployment", Some(NAMESPACE), "nfs-operator");
    assert!(env.objects.get(&deployment).await?.is_none());
    for name in ["nfsbackends.nfs-operator.io", "nfsarchives.nfs-operator.io"] {
        let crd = reference("apiextensions.k8s.io/v1", "CustomResourceDefinition", None, name);
        assert!(env.objects.get(&crd).await?.is_some(), "{name} was deleted");
    }
    let backend = env.objects.get(&backend()).await?.expect("the backend exists");
    assert!(backend["metadata"]["deletionTimestamp"].is_null());
    for claim in &claims {
        let claim = env.objects.get(claim).await?.expect("the claim exists");
        assert_eq!(claim["status"]["phase"], "Bound");
        let volume = claim["spec"]["volumeName"].as_str().unwrap_or_default();
        let volume = env
            .objects
            .get(&reference("v1", "PersistentVolume", None, volume))
            .await?;
        assert!(volume.expect("the volume exists")["metadata"]["deletionTimestamp"].is_null());
    }
    for directory in &directories {
        assert!(directory.join("kept.txt").is_file(), "{}", directory.display());
    }
    env.print_progress("CRDs, backend, volumes and data still exist");

    // After the next installation, the operator uses existing objects and reclaims volumes of deleted claims.
    let bundle = env.apply_bundle().await?;
    let status = ["rollout", "status", "deployment/nfs-operator", "--namespace", NAMESPACE];
    let timeout = format!("--timeout={HELM_TIMEOUT}");
    env.cluster.kubectl(status.iter().chain([&timeout.as_str()])).await?;
    let pod = env.pod().await?;
    assert!(is_pod_ready(&pod), "{}", pod["status"]);
    assert_eq!(pod["spec"]["containers"][0]["image"], IMAGE);
    for claim in &claims {
        env.objects.delete(claim).await?;
        env.objects.wait_gone(claim, TIMEOUT).await?;
    }
    let class = env.create_class().await?;
    let claims = env.create_claims("bundle", 1).await?;
    env.wait_all_bound("bundle", &claims).await?;
    env.print_progress("installed again from install.yaml: existing volumes are reclaimed, and a claim is Bound");

    let is_removed = |object: &&Value| object["kind"] != "Namespace" && object["kind"] != "CustomResourceDefinition";
    for object in bundle.iter().filter(is_removed).chain([&class]) {
        env.objects.delete(object).await?;
    }
    Ok(())
}
