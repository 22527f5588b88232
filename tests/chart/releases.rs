//! The chart supports the versions of Kubernetes that the tests use.

use rig::assets::Kubernetes;
use rig::operator::repository_root;

use crate::helm::both_versions;
use crate::objects::{chart, documents};
use crate::{Failure, Test};

/// Returns the minor version, such as `1.36` for `v1.36.3`.
fn minor(kubernetes: Kubernetes) -> String {
    let (major, minor) = kubernetes.major_and_minor();
    format!("{major}.{minor}")
}

fn read(path: &str) -> Result<String, Failure> {
    std::fs::read_to_string(repository_root().join(path)).map_err(|error| format!("{path}: {error}").into())
}

#[test]
fn the_chart_requires_the_oldest_tested_version() -> Test {
    let chart = documents(&std::fs::read_to_string(chart().join("Chart.yaml"))?)?;
    let manifest = chart.first().ok_or("Chart.yaml is empty")?;
    assert_eq!(
        manifest["kubeVersion"],
        format!(">={}.0-0", minor(Kubernetes::Oldest)),
        "kubeVersion, and tests/rig/control-plane/oldest.mod"
    );
    Ok(())
}

/// Pages that users read before they install.
const PAGES: [&str; 3] = ["README.md", "docs/install.md", "docs/quick-start.md"];

#[test]
fn the_pages_name_the_oldest_and_the_tested_versions() -> Test {
    let oldest = minor(Kubernetes::Oldest);
    for path in PAGES {
        let text = format!("{oldest} or newer");
        assert!(read(path)?.contains(&text), "{path} does not contain {text:?}");
    }
    for path in ["README.md", "docs/install.md"] {
        for kubernetes in [Kubernetes::Oldest, Kubernetes::Newest] {
            let release = kubernetes.release().trim_start_matches('v');
            assert!(
                read(path)?.contains(release),
                "{path} does not name the version {release}"
            );
        }
    }
    Ok(())
}

#[tokio::test]
async fn helm_refuses_an_older_version_and_accepts_tested_ones() -> Test {
    let (major, oldest) = Kubernetes::Oldest.major_and_minor();
    let below = format!("v{major}.{}.99", oldest.parse::<u32>()? - 1);
    for helm in both_versions().await? {
        let refused = helm.template_for(&below, &[]).await?;
        assert!(
            !refused.success && refused.stderr.contains("kubeVersion"),
            "{}: {}",
            helm.name(),
            refused.stderr
        );
        for kubernetes in [Kubernetes::Oldest, Kubernetes::Newest] {
            let release = kubernetes.release();
            helm.template_for(release, &[]).await?.into_stdout()?;
            // Versions in some clouds have such a suffix.
            helm.template_for(&format!("{release}-gke.1"), &[])
                .await?
                .into_stdout()?;
        }
    }
    Ok(())
}
