//! From `helm install` to `helm uninstall`.

use rig::{TIMEOUT, objects::reference};

use crate::{
    Test,
    stage::{NAMESPACE, Stage, backend, is_ready as pod_is_ready},
};

/// So many that the operator works on several at a time.
const CLAIMS: usize = 20;

pub async fn is_ready(stage: &Stage) -> Test {
    stage.install(&Stage::chart(), &[]).await?;
    let pod = stage.pod().await?;
    assert!(pod_is_ready(&pod), "{}", pod["status"]);
    let (spec, container) = (&pod["spec"], &pod["spec"]["containers"][0]);
    assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
    assert_eq!(spec["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
    assert_eq!(container["securityContext"]["allowPrivilegeEscalation"], false);
    assert_eq!(container["securityContext"]["capabilities"]["drop"][0], "ALL");
    assert_eq!(container["resources"]["limits"]["memory"], "64Mi");

    let claims = stage.claims("installed", CLAIMS).await?;
    stage.all_bound("installed", &claims).await?;
    stage.say(&format!("{CLAIMS} claims are Bound"));
    let memory = stage.node.memory(&pod).await?;
    stage.say(&format!(
        "the program takes {:.1} MB of its own, its pod {:.1} MB at most, the limit is {:.1} MB",
        megabytes(memory.anonymous),
        megabytes(memory.peak),
        megabytes(memory.limit)
    ));
    // The kernel has the limit, not just the object.
    assert_eq!(memory.limit, 64 * 1024 * 1024);

    let told = stage.helm(&["test"], None, &["--timeout", "120s"]).await?;
    assert!(told.contains("Succeeded"), "{told}");
    stage.say("helm test has passed");
    Ok(())
}

fn megabytes(bytes: u64) -> f64 {
    // A figure for people: what is lost is below a byte.
    bytes as f64 / 1e6
}

pub async fn is_uninstalled(stage: &Stage) -> Test {
    stage.install(&Stage::chart(), &[]).await?;
    let claims = stage.claims("left", 3).await?;
    stage.all_bound("left", &claims).await?;
    let directories = stage.directories("left")?;
    for directory in &directories {
        std::fs::write(directory.join("kept.txt"), "data of a pod\n")?;
    }

    stage.cleared().await?;
    let deployment = reference("apps/v1", "Deployment", Some(NAMESPACE), "nfs-operator");
    assert!(stage.objects.get(&deployment).await?.is_none());
    for name in ["nfsbackends.nfs-operator.io", "nfsarchives.nfs-operator.io"] {
        let kind = reference("apiextensions.k8s.io/v1", "CustomResourceDefinition", None, name);
        assert!(stage.objects.get(&kind).await?.is_some(), "{name} is gone");
    }
    let kept = stage.objects.get(&backend()).await?.expect("the backend is there");
    assert!(kept["metadata"]["deletionTimestamp"].is_null());
    for claim in &claims {
        let claim = stage.objects.get(claim).await?.expect("the claim is there");
        assert_eq!(claim["status"]["phase"], "Bound");
        let volume = claim["spec"]["volumeName"].as_str().unwrap_or_default();
        let volume = stage
            .objects
            .get(&reference("v1", "PersistentVolume", None, volume))
            .await?;
        assert!(volume.expect("the volume is there")["metadata"]["deletionTimestamp"].is_null());
    }
    for directory in &directories {
        assert!(directory.join("kept.txt").is_file(), "{}", directory.display());
    }
    stage.say("kinds, backend, volumes and data are still there");

    // Installed again it takes up what it finds, and lets go of what is deleted then.
    stage.install(&Stage::chart(), &[]).await?;
    for claim in &claims {
        stage.objects.delete(claim).await?;
        stage.objects.wait_gone(claim, TIMEOUT).await?;
    }
    stage.say("installed again: it reclaims what was made before");
    Ok(())
}
