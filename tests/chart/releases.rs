//! The releases of Kubernetes that the chart takes are those that the tests run on.

use rig::assets::Kubernetes;
use rig::operator::repository_root;

use crate::helm::both;
use crate::objects::{chart, documents};
use crate::{Failure, Test};

/// `1.36` of `v1.36.3`.
fn minor(kubernetes: Kubernetes) -> String {
    let (major, minor) = kubernetes.major_and_minor();
    format!("{major}.{minor}")
}

fn read(path: &str) -> Result<String, Failure> {
    std::fs::read_to_string(repository_root().join(path)).map_err(|error| format!("{path}: {error}").into())
}

#[test]
fn the_chart_asks_for_the_oldest_release_that_tests_run_on() -> Test {
    let chart = documents(&std::fs::read_to_string(chart().join("Chart.yaml"))?)?;
    let asks = chart.first().ok_or("Chart.yaml is empty")?;
    assert_eq!(
        asks["kubeVersion"],
        format!(">={}.0-0", minor(Kubernetes::Oldest)),
        "kubeVersion, and tests/rig/control-plane/oldest.mod"
    );
    Ok(())
}

/// Where people read it before they install.
const PAGES: [&str; 3] = ["README.md", "docs/install.md", "docs/quick-start.md"];

#[test]
fn the_pages_name_the_oldest_release_and_what_was_run_on_which() -> Test {
    let oldest = minor(Kubernetes::Oldest);
    for path in PAGES {
        let said = format!("{oldest} or newer");
        assert!(read(path)?.contains(&said), "{path} does not say {said:?}");
    }
    let guide = read("docs/install.md")?;
    for kubernetes in [Kubernetes::Oldest, Kubernetes::Newest] {
        let release = kubernetes.release().trim_start_matches('v');
        assert!(
            guide.contains(release),
            "docs/install.md does not say what was run on {release}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn helm_refuses_the_release_below_and_takes_all_that_tests_run_on() -> Test {
    let (major, oldest) = Kubernetes::Oldest.major_and_minor();
    let below = format!("v{major}.{}.99", oldest.parse::<u32>()? - 1);
    for helm in both().await? {
        let refused = helm.template_for(&below, &[]).await?;
        assert!(
            !refused.success && refused.error.contains("kubeVersion"),
            "{}: {}",
            helm.name(),
            refused.error
        );
        for kubernetes in [Kubernetes::Oldest, Kubernetes::Newest] {
            let release = kubernetes.release();
            helm.template_for(release, &[]).await?.output()?;
            // As the releases of some clouds are called.
            helm.template_for(&format!("{release}-gke.1"), &[]).await?.output()?;
        }
    }
    Ok(())
}
