//! The chart as a dependency of another chart.

use std::fs;
use std::path::{Path, PathBuf};

use rig::RunDir;
use rig::assets::Kubernetes;
use rig::process::run;

use crate::helm::{both_versions, kube_version_flag};
use crate::objects::{chart, documents};
use crate::render::find_object;
use crate::{Failure, Test};

/// Values of the other chart, among them a global value that only other charts know.
const VALUES: &str = "
global: {imageRegistry: registry.example.com, imagePullSecrets: [shared], storageClass: nfs}
nfs-operator: {enabled: true, replicaCount: 2}
";

/// Creates a chart that contains this one.
async fn parent_chart(run_dir: &RunDir) -> Result<PathBuf, Failure> {
    let folder = run_dir.new_dir("platform")?;
    fs::create_dir(folder.join("charts"))?;
    let version = documents(&fs::read_to_string(chart().join("Chart.yaml"))?)?[0]["version"].clone();
    let manifest = format!(
        "apiVersion: v2\nname: platform\nversion: 1.0.0\ndependencies:\n  - {{name: nfs-operator, version: {version}, \
         condition: nfs-operator.enabled}}\n"
    );
    fs::write(folder.join("Chart.yaml"), manifest)?;
    fs::write(folder.join("values.yaml"), VALUES)?;
    copy(&chart(), &folder.join("charts/nfs-operator")).await?;
    Ok(folder)
}

async fn copy(from: &Path, to: &Path) -> Test {
    let mut command = std::process::Command::new("cp");
    command.arg("-r").args([from, to]);
    run(command).await?;
    Ok(())
}

#[tokio::test]
async fn another_chart_depends_on_the_chart_and_enables_it() -> Test {
    let run_dir = RunDir::new()?;
    let parent = parent_chart(&run_dir).await?;
    let kubernetes = kube_version_flag(Kubernetes::from_env()?.release());
    for helm in both_versions().await? {
        let objects = documents(&helm.template_chart(&parent, &[&kubernetes]).await?.into_stdout()?)?;
        let deployment = find_object(&objects, "Deployment nfs-operator");
        assert_eq!(deployment["spec"]["replicas"], 2);
        let pod = &deployment["spec"]["template"]["spec"];
        let image = pod["containers"][0]["image"].as_str().unwrap_or_default();
        assert!(
            image.starts_with("registry.example.com/nfs-operator/nfs-operator:"),
            "{image}"
        );
        assert_eq!(pod["imagePullSecrets"][0]["name"], "shared");
        let disabled = helm
            .template_chart(&parent, &[&kubernetes, "--set=nfs-operator.enabled=false"])
            .await?;
        assert!(documents(&disabled.into_stdout()?)?.is_empty());
    }
    Ok(())
}
