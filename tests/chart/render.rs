//! What the chart says before anything is installed.

use std::collections::BTreeMap;

use rig::Assets;
use rig::operator::repository_root;
use rig::process::run;
use serde_json::Value;

use crate::helm::{Tool, both};
use crate::objects::{differences, documents, named};
use crate::{Failure, Test};

/// A file of values in this folder.
pub fn values(name: &str) -> String {
    format!(
        "--values={}",
        repository_root().join("tests/chart/values").join(name).display()
    )
}

/// What `kubectl kustomize` makes of folders of config/.
pub async fn kustomized(folders: &[&str]) -> Result<Vec<Value>, Failure> {
    let kubectl = Assets::find_or_install().await?.kubectl;
    let mut objects = Vec::new();
    for folder in folders {
        let mut command = std::process::Command::new(&kubectl);
        command
            .arg("kustomize")
            .arg(repository_root().join("config").join(folder));
        objects.extend(documents(&run(command).await?)?);
    }
    Ok(objects)
}

pub async fn rendered(helm: &Tool, args: &[&str]) -> Result<Vec<Value>, Failure> {
    documents(&helm.template(args).await?.output()?)
}

/// The object of that kind and name.
fn one<'a>(objects: &'a [Value], name: &str) -> &'a Value {
    let found = objects.iter().find(|object| named(object) == name);
    found.unwrap_or_else(|| panic!("no {name} among {:?}", objects.iter().map(named).collect::<Vec<_>>()))
}

/// Takes out what only Helm writes: its labels, wherever labels are.
fn without_helms_labels(value: &mut Value) {
    const HELMS: [&str; 4] = [
        "app.kubernetes.io/instance",
        "app.kubernetes.io/version",
        "app.kubernetes.io/managed-by",
        "helm.sh/chart",
    ];
    match value {
        Value::Object(fields) => {
            fields.retain(|key, _| !HELMS.contains(&key.as_str()));
            fields.values_mut().for_each(without_helms_labels);
        }
        Value::Array(values) => values.iter_mut().for_each(without_helms_labels),
        _ => {}
    }
}

/// Makes 1 of 1.0: kustomize writes numbers anew, Helm does not.
fn whole_numbers(value: &mut Value) {
    match value {
        Value::Object(fields) => fields.values_mut().for_each(whole_numbers),
        Value::Array(values) => values.iter_mut().for_each(whole_numbers),
        Value::Number(number) => {
            if let Some(float) = number.as_f64().filter(|float| float.fract() == 0.0) {
                *number = (float as i64).into();
            }
        }
        _ => {}
    }
}

/// By kind and name, in a form that can be compared.
pub fn comparable(objects: Vec<Value>) -> BTreeMap<String, Value> {
    let comparable = objects.into_iter().map(|mut object| {
        without_helms_labels(&mut object);
        whole_numbers(&mut object);
        (named(&object), object)
    });
    // Helm makes a namespace when it is told so, without labels.
    comparable.filter(|(name, _)| !name.starts_with("Namespace ")).collect()
}

#[tokio::test]
async fn lint_finds_nothing_in_the_defaults_and_in_all_options() -> Test {
    for helm in both().await? {
        for args in [vec![], vec![values("everything.yaml")]] {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            let said = helm
                .lint(&args)
                .await?
                .output()
                .map_err(|said| format!("{}: {said}", helm.name()))?;
            assert!(said.contains("0 chart(s) failed"), "{said}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn the_chart_and_kustomize_install_the_same() -> Test {
    let monitoring = [
        "--set=serviceMonitor.enabled=true",
        "--set=prometheusRule.enabled=true",
        "--set=dashboard.enabled=true",
    ];
    for (folders, set) in [(&["default"][..], &[][..]), (&["default", "prometheus"], &monitoring)] {
        let expected = comparable(kustomized(folders).await?);
        assert!(expected.len() >= 8, "{:?}", expected.keys());
        for helm in both().await? {
            let args = [&["--include-crds", "--no-hooks"], set].concat();
            let found = comparable(rendered(&helm, &args).await?);
            assert!(
                found.keys().eq(expected.keys()),
                "{:?}\n{:?}",
                found.keys(),
                expected.keys()
            );
            for (name, object) in &expected {
                let mut differ = Vec::new();
                differences(object, &found[name], name, &mut differ);
                assert!(differ.is_empty(), "{}: {differ:#?}", helm.name());
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_value_that_does_not_exist_or_has_no_sense_is_named() -> Test {
    // What is set, and what the complaint must name.
    let wrong = [
        ("replica=2", &["replica'"][..]),
        ("image.tagg=1", &["image", "tagg"]),
        ("image.digest=latest", &["image", "digest"]),
        ("operator.lease.duratoin=1s", &["lease", "duratoin"]),
        ("operator.retryMin=soon", &["retryMin"]),
        ("hostNetwork=maybe", &["hostNetwork"]),
        ("backends.main.spec.sever=x", &["main", "sever"]),
        ("backends.main.server=x", &["main", "server"]),
        ("backends.main.spec.nfs.version=5", &["main", "version"]),
        ("backends.main.spec.nfs.port=70000", &["main", "port"]),
        ("backends.main.spec.directory.mode=0888", &["main", "mode"]),
        ("backends.main.spec.archivePolicy.onDelete=Keep", &["main", "onDelete"]),
        ("backends.Main.spec.path=/", &["Main"]),
        ("storageClasses.nfs.parameters.backends=main", &["nfs", "backends"]),
        ("storageClasses.nfs.reclaimPolicy=Recycle", &["nfs", "reclaimPolicy"]),
        ("runAs.user=0", &["user"]),
    ];
    for helm in both().await? {
        for (set, names) in wrong {
            let good = "--set=backends.main.spec.server=nfs.example.com,backends.main.spec.path=/export";
            let said = helm.template(&[good, &format!("--set={set}")]).await?;
            assert!(!said.success, "{}: {set} was taken", helm.name());
            for name in names {
                assert!(said.error.contains(name), "{}: {set}: {}", helm.name(), said.error);
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_mode_without_quotes_is_refused_rather_than_read_as_another_number() -> Test {
    for helm in both().await? {
        let said = helm.template(&[&values("unquoted-mode.yaml")]).await?;
        assert!(
            !said.success && said.error.contains("mode"),
            "{}{}",
            said.out,
            said.error
        );
    }
    Ok(())
}

const DEPLOYMENT: &str = "Deployment nfs-operator";

/// Arguments of the operator's container.
fn arguments(deployment: &Value) -> Vec<&str> {
    let args = deployment.pointer("/spec/template/spec/containers/0/args");
    args.unwrap()
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect()
}

#[tokio::test]
async fn one_replica_is_recreated_and_several_elect_a_leader_and_roll() -> Test {
    for helm in both().await? {
        for (set, strategy) in [
            ("replicas=1", "Recreate"),
            ("leaderElection=true", "RollingUpdate"),
            ("replicas=2", "RollingUpdate"),
        ] {
            let objects = rendered(&helm, &[&format!("--set={set}")]).await?;
            let deployment = one(&objects, DEPLOYMENT);
            assert_eq!(deployment["spec"]["strategy"]["type"], strategy, "{set}");
            let elects = arguments(deployment).contains(&"--leader-elect");
            assert_eq!(elects, strategy == "RollingUpdate", "{set}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn the_sysctl_for_reserved_ports_goes_with_the_hosts_network() -> Test {
    for helm in both().await? {
        let sysctls = async |args: &[&str]| -> Result<Option<Value>, Failure> {
            let objects = rendered(&helm, args).await?;
            let pod = one(&objects, DEPLOYMENT).pointer("/spec/template/spec").cloned();
            Ok(pod.unwrap().pointer("/securityContext/sysctls").cloned())
        };
        assert!(sysctls(&[]).await?.is_some());
        assert_eq!(sysctls(&["--set=reservedPorts=false"]).await?, None);
        assert_eq!(sysctls(&["--set=hostNetwork=true"]).await?, None);
    }
    Ok(())
}

#[tokio::test]
async fn every_pod_is_what_the_strictest_level_admits() -> Test {
    for helm in both().await? {
        let objects = rendered(&helm, &[&values("everything.yaml")]).await?;
        let pods: Vec<_> = objects
            .iter()
            .filter_map(|object| match object["kind"].as_str() {
                Some("Pod") => Some((object, "/spec")),
                Some("Deployment" | "Job") => Some((object, "/spec/template/spec")),
                _ => None,
            })
            .collect();
        assert_eq!(pods.len(), 3, "the operator, the CRDs' job and the test");
        for (object, path) in pods {
            let pod = object.pointer(path).unwrap();
            assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "{object}");
            assert_eq!(
                pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault",
                "{object}"
            );
            let container = &pod["containers"][0]["securityContext"];
            assert_eq!(container["allowPrivilegeEscalation"], false, "{object}");
            assert_eq!(container["readOnlyRootFilesystem"], true, "{object}");
            assert_eq!(
                container["capabilities"]["drop"],
                serde_json::json!(["ALL"]),
                "{object}"
            );
        }
    }
    Ok(())
}

#[tokio::test]
async fn kinds_and_backends_are_no_hooks_and_backends_stay() -> Test {
    const HOOK: &str = "helm.sh/hook";
    for helm in both().await? {
        let objects = rendered(&helm, &["--include-crds", &values("everything.yaml")]).await?;
        let of_kind = |kind: &'static str| objects.iter().filter(move |object| object["kind"] == kind);
        assert!(of_kind("CustomResourceDefinition").count() >= 1);
        assert_eq!(of_kind("NfsBackend").count(), 2);
        for object in of_kind("CustomResourceDefinition").chain(of_kind("NfsBackend")) {
            assert!(object["metadata"]["annotations"].get(HOOK).is_none(), "{object}");
        }
        for backend in of_kind("NfsBackend") {
            assert_eq!(backend["metadata"]["annotations"]["helm.sh/resource-policy"], "keep");
        }
        // What the Job before an upgrade may do is bound to the names of the kinds.
        let role = one(&objects, "ClusterRole nfs-operator-crds");
        for rule in role["rules"].as_array().unwrap() {
            let names = rule["resourceNames"].as_array().unwrap();
            assert!(
                names
                    .iter()
                    .all(|name| name.as_str().unwrap().ends_with(".nfs-operator.io"))
            );
        }
    }
    Ok(())
}

#[tokio::test]
async fn the_pod_is_found_by_service_monitor_budget_and_network_policy() -> Test {
    for helm in both().await? {
        let objects = rendered(&helm, &[&values("everything.yaml")]).await?;
        let labels = one(&objects, DEPLOYMENT)
            .pointer("/spec/template/metadata/labels")
            .unwrap();
        for (name, selector) in [
            (DEPLOYMENT, "/spec/selector/matchLabels"),
            ("Service nfs-operator", "/spec/selector"),
            ("PodDisruptionBudget nfs-operator", "/spec/selector/matchLabels"),
            ("NetworkPolicy nfs-operator", "/spec/podSelector/matchLabels"),
            ("ServiceMonitor nfs-operator", "/spec/selector/matchLabels"),
        ] {
            let selector = one(&objects, name).pointer(selector).unwrap().as_object().unwrap();
            assert!(!selector.is_empty());
            assert!(selector.iter().all(|(key, value)| labels[key] == *value), "{name}");
        }
        let policy = one(&objects, "NetworkPolicy nfs-operator").to_string();
        assert!(
            policy.contains("2050") && policy.contains("20049"),
            "the backends' ports: {policy}"
        );
    }
    Ok(())
}
