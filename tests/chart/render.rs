//! Output of the chart without a cluster.

use std::collections::BTreeMap;

use rig::Assets;
use rig::operator::repository_root;
use rig::process::run;
use serde_json::Value;

use crate::helm::{HelmCli, both_versions};
use crate::objects::{differences, documents, kind_and_name};
use crate::{Failure, Test};

/// Returns the flag for a file of values in this directory.
pub fn values(name: &str) -> String {
    format!(
        "--values={}",
        repository_root().join("tests/chart/values").join(name).display()
    )
}

/// Returns the output of `kubectl kustomize` for a directory of config/.
pub async fn kustomize_text(folder: &str) -> Result<String, Failure> {
    let mut command = std::process::Command::new(Assets::find_or_install().await?.kubectl);
    command
        .arg("kustomize")
        .arg(repository_root().join("config").join(folder));
    Ok(run(command).await?)
}

/// Returns the objects in directories of config/.
pub async fn kustomize(folders: &[&str]) -> Result<Vec<Value>, Failure> {
    let mut objects = Vec::new();
    for folder in folders {
        objects.extend(documents(&kustomize_text(folder).await?)?);
    }
    Ok(objects)
}

pub async fn render(helm: &HelmCli, args: &[&str]) -> Result<Vec<Value>, Failure> {
    documents(&helm.template(args).await?.into_stdout()?)
}

/// Finds an object by kind and name.
pub fn find_object<'a>(objects: &'a [Value], name: &str) -> &'a Value {
    let found = objects.iter().find(|object| kind_and_name(object) == name);
    found.unwrap_or_else(|| {
        panic!(
            "no {name} among {:?}",
            objects.iter().map(kind_and_name).collect::<Vec<_>>()
        )
    })
}

/// Removes the labels that only Helm adds.
fn remove_helm_labels(value: &mut Value) {
    const HELM_LABELS: [&str; 4] = [
        "app.kubernetes.io/instance",
        "app.kubernetes.io/version",
        "app.kubernetes.io/managed-by",
        "helm.sh/chart",
    ];
    match value {
        Value::Object(fields) => {
            fields.retain(|key, _| !HELM_LABELS.contains(&key.as_str()));
            fields.values_mut().for_each(remove_helm_labels);
        }
        Value::Array(values) => values.iter_mut().for_each(remove_helm_labels),
        _ => {}
    }
}

/// Replaces 1.0 by 1: kustomize converts numbers, Helm does not.
fn normalize_numbers(value: &mut Value) {
    match value {
        Value::Object(fields) => fields.values_mut().for_each(normalize_numbers),
        Value::Array(values) => values.iter_mut().for_each(normalize_numbers),
        Value::Number(number) => {
            if let Some(float) = number.as_f64().filter(|float| float.fract() == 0.0) {
                *number = (float as i64).into();
            }
        }
        _ => {}
    }
}

/// Returns the objects by kind and name, without differences between Helm and kustomize.
pub fn normalize(objects: Vec<Value>) -> BTreeMap<String, Value> {
    let normalized = objects.into_iter().map(|mut object| {
        remove_helm_labels(&mut object);
        normalize_numbers(&mut object);
        (kind_and_name(&object), object)
    });
    // Helm creates a namespace on request, without labels.
    normalized.filter(|(name, _)| !name.starts_with("Namespace ")).collect()
}

#[tokio::test]
async fn lint_finds_nothing_in_the_defaults_and_in_all_options() -> Test {
    for helm in both_versions().await? {
        for args in [vec![], vec![values("everything.yaml")]] {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            let output = helm
                .lint(&args)
                .await?
                .into_stdout()
                .map_err(|error| format!("{}: {error}", helm.name()))?;
            assert!(output.contains("0 chart(s) failed"), "{output}");
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
    let capacity = ["--set=operator.provisionerNames={nfs-operator.io/nfs,nfs.nfs-operator.io}"];
    for (folders, set) in [
        (&["default"][..], &[][..]),
        (&["default", "prometheus"], &monitoring),
        (&["../tests/chart/kustomize/storage-capacity"], &capacity),
    ] {
        let expected = normalize(kustomize(folders).await?);
        assert!(expected.len() >= 8, "{:?}", expected.keys());
        for helm in both_versions().await? {
            let args = [&["--include-crds", "--no-hooks"], set].concat();
            let found = normalize(render(&helm, &args).await?);
            assert!(
                found.keys().eq(expected.keys()),
                "{:?}\n{:?}",
                found.keys(),
                expected.keys()
            );
            for (name, object) in &expected {
                let mut differences_found = Vec::new();
                differences(object, &found[name], name, &mut differences_found);
                assert!(differences_found.is_empty(), "{}: {differences_found:#?}", helm.name());
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn the_error_names_an_unknown_or_invalid_value() -> Test {
    // The value, and what the error must contain.
    let invalid = [
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
        ("podSecurityContext.runAsUser=0", &["runAsUser"]),
        ("podDisruptionBudget.minAvailable=half", &["minAvailable"]),
        ("service.type=NodePort", &["type", "ClusterIP"]),
        ("crds.keep=false", &["crds.keep", "must be true", "Uninstalling"]),
        (
            "operator.extraArgs={--records-secret=mine}",
            &["extraArgs", "--records-secret", "cannot be changed"],
        ),
        (
            "operator.extraEnv[0].name=NFS_OPERATOR_LEASE_NAME",
            &["extraEnv", "NFS_OPERATOR_LEASE_NAME", "cannot be changed"],
        ),
    ];
    for helm in both_versions().await? {
        for (set, names) in invalid {
            let valid = "--set=backends.main.spec.server=nfs.example.com,backends.main.spec.path=/export";
            let output = helm.template(&[valid, &format!("--set={set}")]).await?;
            assert!(!output.success, "{}: {set} was accepted", helm.name());
            for name in names {
                assert!(
                    output.stderr.contains(name),
                    "{}: {set}: {}",
                    helm.name(),
                    output.stderr
                );
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_mode_without_quotes_is_refused_rather_than_read_as_another_number() -> Test {
    for helm in both_versions().await? {
        let output = helm.template(&[&values("unquoted-mode.yaml")]).await?;
        assert!(
            !output.success && output.stderr.contains("mode"),
            "{}{}",
            output.stdout,
            output.stderr
        );
    }
    Ok(())
}

const DEPLOYMENT: &str = "Deployment nfs-operator";

/// Returns the arguments of the operator's container.
fn arguments(deployment: &Value) -> Vec<&str> {
    let args = deployment.pointer("/spec/template/spec/containers/0/args");
    args.unwrap()
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect()
}

/// The program refuses a flag that is set twice.
#[tokio::test]
async fn a_flag_that_the_chart_sets_is_refused_as_an_additional_argument() -> Test {
    for helm in both_versions().await? {
        let everything = values("everything.yaml");
        let token = "--set=metricsToken.secretName=scrape";
        let objects = render(&helm, &[&everything, token]).await?;
        let args = arguments(find_object(&objects, DEPLOYMENT));
        let flags = args.iter().filter(|arg| arg.starts_with("--"));
        let flags: Vec<&str> = flags.filter_map(|arg| arg.split('=').next()).collect();
        assert!(flags.len() > 15, "{flags:?}");
        // The only additional one.
        for flag in flags.into_iter().filter(|flag| *flag != "--archive-purge-pause") {
            for set in [
                format!("--set=operator.extraArgs={{{flag}=x}}"),
                format!(
                    "--set=operator.extraEnv[0].name=NFS_OPERATOR_{},operator.extraEnv[0].value=x",
                    flag.trim_start_matches('-').to_uppercase().replace('-', "_")
                ),
            ] {
                let output = helm.template(&[&set]).await?;
                assert!(
                    !output.success && output.stderr.contains("use the value "),
                    "{set}: {}",
                    output.stderr
                );
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn settings_of_pods_reach_the_pods_of_hooks_and_all_objects_have_the_common_labels() -> Test {
    for helm in both_versions().await? {
        let objects = render(&helm, &[&values("everything.yaml")]).await?;
        let is_own = |object: &&Value| kind_and_name(object).split(' ').nth(1) != Some("nfs-operator-extra");
        let is_own = |object: &&Value| is_own(object) && kind_and_name(object) != "ConfigMap nfs-operator-text";
        for object in objects.iter().filter(is_own) {
            let labels = &object["metadata"]["labels"];
            assert_eq!(labels["example.com/team"], "storage", "{object}");
            assert!(labels["app.kubernetes.io/component"].is_string(), "{object}");
            let pod = match object["kind"].as_str() {
                Some("Pod") => object,
                Some("Deployment" | "Job") => &object["spec"]["template"],
                _ => continue,
            };
            let (labels, annotations) = (&pod["metadata"]["labels"], &pod["metadata"]["annotations"]);
            assert_eq!(labels["example.com/team"], "storage", "{object}");
            assert_eq!(labels["example.com/a"], "b", "{object}");
            assert_eq!(annotations["example.com/a"], "b", "{object}");
            assert_eq!(pod["spec"]["dnsPolicy"], "ClusterFirst", "{object}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn sysctls_are_added_to_that_for_reserved_ports_and_a_spread_constraint_keeps_its_selector() -> Test {
    for helm in both_versions().await? {
        let set = "--set-json=podSecurityContext.sysctls=[{\"name\":\"net.ipv4.tcp_keepalive_time\",\"value\":\"60\"}]";
        let constraint = r#"{"maxSkew":1,"topologyKey":"zone","whenUnsatisfiable":"ScheduleAnyway""#;
        let constraints = format!(
            "--set-json=topologySpreadConstraints=[{constraint}}},{constraint},\"labelSelector\":{{\"matchLabels\":{{\"a\":\"b\"}}}}}}]"
        );
        let objects = render(&helm, &[set, &constraints]).await?;
        let pod = &find_object(&objects, DEPLOYMENT)["spec"]["template"]["spec"];
        let sysctls = serde_json::json!([
            {"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"},
            {"name": "net.ipv4.tcp_keepalive_time", "value": "60"},
        ]);
        assert_eq!(pod["securityContext"]["sysctls"], sysctls);
        let selector = |number: usize| &pod["topologySpreadConstraints"][number]["labelSelector"]["matchLabels"];
        assert_eq!(selector(0)["app.kubernetes.io/name"], "nfs-operator");
        assert_eq!(*selector(1), serde_json::json!({"a": "b"}));
    }
    Ok(())
}

#[tokio::test]
async fn a_budget_names_the_replicas_that_are_kept_or_those_that_may_be_missing() -> Test {
    for helm in both_versions().await? {
        for (set, field, expected) in [
            ("enabled=true", "minAvailable", serde_json::json!(1)),
            ("minAvailable=2", "minAvailable", serde_json::json!(2)),
            ("maxUnavailable=0", "maxUnavailable", serde_json::json!(0)),
            ("maxUnavailable=50%", "maxUnavailable", serde_json::json!("50%")),
        ] {
            let set = format!("--set=replicaCount=3,podDisruptionBudget.{set}");
            let objects = render(&helm, &[&set]).await?;
            let spec = find_object(&objects, "PodDisruptionBudget nfs-operator")["spec"].as_object();
            let mut spec = spec.unwrap().clone();
            spec.remove("selector");
            assert_eq!(Value::Object(spec), serde_json::json!({field: expected}), "{set}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn the_job_for_the_kinds_is_left_out_if_another_tool_manages_them() -> Test {
    for helm in both_versions().await? {
        let job = async |set: &str| -> Result<bool, Failure> {
            let objects = render(&helm, &[set]).await?;
            Ok(objects.iter().any(|object| object["kind"] == "Job"))
        };
        assert!(job("--set=crds.keep=true,crds.enabled=true").await?);
        assert!(!job("--set=crds.enabled=false").await?);
        assert!(!job("--set=crds.upgrade=false").await?);
    }
    Ok(())
}

/// `kubectl nfs` reads the version of the operator from it.
#[tokio::test]
async fn the_deployment_has_the_label_of_the_version() -> Test {
    let label = |objects: &[Value]| find_object(objects, DEPLOYMENT)["metadata"]["labels"].clone();
    let mut all = vec![label(&kustomize(&["default"]).await?)];
    for helm in both_versions().await? {
        all.push(label(&render(&helm, &[]).await?));
    }
    for labels in all {
        assert_eq!(labels["app.kubernetes.io/version"], env!("CARGO_PKG_VERSION"));
    }
    Ok(())
}

#[tokio::test]
async fn one_replica_is_recreated_and_several_elect_a_leader_and_roll() -> Test {
    for helm in both_versions().await? {
        for (set, strategy) in [
            ("replicaCount=1", "RollingUpdate"),
            ("leaderElection=false", "Recreate"),
            ("leaderElection=false,replicaCount=2", "RollingUpdate"),
        ] {
            let objects = render(&helm, &[&format!("--set={set}")]).await?;
            let deployment = find_object(&objects, DEPLOYMENT);
            assert_eq!(deployment["spec"]["strategy"]["type"], strategy, "{set}");
            let elects = arguments(deployment).contains(&"--leader-elect");
            assert_eq!(elects, strategy == "RollingUpdate", "{set}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn the_sysctl_for_reserved_ports_goes_with_the_hosts_network() -> Test {
    for helm in both_versions().await? {
        let sysctls = async |args: &[&str]| -> Result<Option<Value>, Failure> {
            let objects = render(&helm, args).await?;
            let pod = find_object(&objects, DEPLOYMENT)
                .pointer("/spec/template/spec")
                .cloned();
            Ok(pod.unwrap().pointer("/securityContext/sysctls").cloned())
        };
        assert!(sysctls(&[]).await?.is_some());
        assert_eq!(sysctls(&["--set=reservedPorts=false"]).await?, None);
        assert_eq!(sysctls(&["--set=hostNetwork=true"]).await?, None);
    }
    Ok(())
}

#[tokio::test]
async fn every_pod_satisfies_the_restricted_level() -> Test {
    for helm in both_versions().await? {
        let objects = render(&helm, &[&values("everything.yaml")]).await?;
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
async fn crds_and_backends_are_not_hooks_and_backends_are_kept() -> Test {
    const HOOK: &str = "helm.sh/hook";
    for helm in both_versions().await? {
        let objects = render(&helm, &["--include-crds", &values("everything.yaml")]).await?;
        let of_kind = |kind: &'static str| objects.iter().filter(move |object| object["kind"] == kind);
        assert!(of_kind("CustomResourceDefinition").count() >= 1);
        assert_eq!(of_kind("NfsBackend").count(), 2);
        for object in of_kind("CustomResourceDefinition").chain(of_kind("NfsBackend")) {
            assert!(object["metadata"]["annotations"].get(HOOK).is_none(), "{object}");
        }
        for backend in of_kind("NfsBackend") {
            assert_eq!(backend["metadata"]["annotations"]["helm.sh/resource-policy"], "keep");
        }
        // The Job before an upgrade may only access the CRDs by name.
        let role = find_object(&objects, "ClusterRole nfs-operator-crds");
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
async fn the_user_of_a_pod_can_be_left_to_the_cluster() -> Test {
    for helm in both_versions().await? {
        let args = [
            "--set=podSecurityContext.runAsUser=null",
            "--set=podSecurityContext.runAsGroup=null",
        ];
        let objects = render(&helm, &args).await?;
        let context = &find_object(&objects, DEPLOYMENT)["spec"]["template"]["spec"]["securityContext"];
        assert_eq!(context["runAsNonRoot"], true);
        assert!(context.get("runAsUser").is_none() && context.get("runAsGroup").is_none());
    }
    Ok(())
}

#[tokio::test]
async fn every_object_of_the_operators_namespace_follows_the_override() -> Test {
    for helm in both_versions().await? {
        let flags = [&values("everything.yaml"), "--set=namespaceOverride=storage"];
        let output = helm.template(&flags).await?.into_stdout()?;
        let rendered = documents(&output)?;
        let text = serde_json::to_string(&rendered)?;
        assert!(!text.contains("nfs-operator-system"), "{text}");
        assert_eq!(find_object(&rendered, DEPLOYMENT)["metadata"]["namespace"], "storage");
    }
    Ok(())
}

#[tokio::test]
async fn additional_objects_and_labels_are_expanded_and_replace_no_selector() -> Test {
    for helm in both_versions().await? {
        let labels =
            "--set-json=commonLabels={\"app.kubernetes.io/part-of\":\"platform\",\"app.kubernetes.io/name\":\"x\"}";
        let objects = render(&helm, &[&values("everything.yaml"), labels]).await?;
        for name in ["ConfigMap nfs-operator-extra", "ConfigMap nfs-operator-text"] {
            find_object(&objects, name);
        }
        let labels = &find_object(&objects, DEPLOYMENT)["metadata"]["labels"];
        assert_eq!(labels["app.kubernetes.io/part-of"], "platform");
        assert_eq!(labels["app.kubernetes.io/name"], "nfs-operator");
    }
    Ok(())
}

#[tokio::test]
async fn the_plugin_finds_the_operator_whatever_it_is_named() -> Test {
    for helm in both_versions().await? {
        let labels = "--set-json=commonLabels={\"nfs-operator.io/component\":\"x\"}";
        for flags in [
            &[][..],
            &["--set=nameOverride=x"],
            &["--set=fullnameOverride=x", labels],
        ] {
            let objects = render(&helm, flags).await?;
            let found = objects.iter().filter(|object| {
                let label = &object["metadata"]["labels"]["nfs-operator.io/component"];
                object["kind"] == "Deployment" && label == "operator"
            });
            assert_eq!(found.count(), 1, "{}: {flags:?}", helm.name());
        }
    }
    let kustomized = include_str!("../../config/manager/deployment.yaml");
    assert!(kustomized.contains("nfs-operator.io/component: operator"));
    Ok(())
}

#[tokio::test]
async fn the_chart_refuses_kube_system() -> Test {
    for helm in both_versions().await? {
        let output = helm.template(&["--namespace=kube-system"]).await?;
        assert!(!output.success, "{}: it was accepted", helm.name());
        assert!(output.stderr.contains("a namespace of its own"), "{}", output.stderr);
    }
    Ok(())
}

#[tokio::test]
async fn the_policy_for_the_operators_account_names_its_account_and_its_provisioners() -> Test {
    for helm in both_versions().await? {
        let args = [
            "--namespace=storage",
            "--set=serviceAccount.name=keeper",
            "--set=operator.provisionerNames={example.com/nfs,nfs.example.com}",
            "--set=operator.provisionerAliases.old/nfs=main",
            "--set=operator.extraEnv[0].name=PROVISIONER_NAME,operator.extraEnv[0].value=older/nfs",
        ];
        let objects = render(&helm, &args).await?;
        let spec = &find_object(&objects, "ValidatingAdmissionPolicy nfs-operator-account")["spec"];
        let username = "request.userInfo.username == 'system:serviceaccount:storage:keeper'";
        assert_eq!(spec["matchConditions"][0]["expression"], username);
        assert_eq!(spec["variables"][0]["name"], "provisioners");
        let names = "['example.com/nfs', 'nfs.example.com', 'old/nfs', 'older/nfs']";
        assert_eq!(spec["variables"][0]["expression"], names);
        let off = render(&helm, &["--set=admissionPolicy.restrictOperator=false"]).await?;
        assert!(
            off.iter()
                .all(|object| object["metadata"]["name"] != "nfs-operator-account")
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_csi_driver_exists_for_each_provisioner_name_that_can_have_one() -> Test {
    for helm in both_versions().await? {
        let drivers = async |args: &[&str]| -> Result<Vec<String>, Failure> {
            let objects = render(&helm, args).await?;
            let permitted = objects
                .iter()
                .any(|object| kind_and_name(object) == "Role nfs-operator-storage-capacity");
            let drivers = objects.iter().filter(|object| object["kind"] == "CSIDriver");
            let names: Vec<String> = drivers.map(|driver| driver["metadata"]["name"].to_string()).collect();
            assert_eq!(permitted, !names.is_empty(), "{names:?}");
            Ok(names)
        };
        assert_eq!(drivers(&[]).await?, Vec::<String>::new());
        let several = "--set=operator.provisionerNames={nfs.example.com,example.com/nfs,Nfs,nfs}";
        assert_eq!(drivers(&[several]).await?, ["\"nfs.example.com\"", "\"nfs\""]);
        let aliases = ["--set=operator.provisionerAliases.nfs-client=main"];
        assert_eq!(drivers(&aliases).await?, Vec::<String>::new(), "aliases have none");
    }
    Ok(())
}

#[tokio::test]
async fn a_class_has_the_first_provisioner_name_unless_it_sets_another() -> Test {
    for helm in both_versions().await? {
        let args = [
            "--set=operator.provisionerNames={example.com/nfs,nfs.example.com}",
            "--set=storageClasses.a.reclaimPolicy=Delete,storageClasses.b.provisioner=nfs.example.com",
        ];
        let objects = render(&helm, &args).await?;
        assert_eq!(
            find_object(&objects, "StorageClass a")["provisioner"],
            "example.com/nfs"
        );
        assert_eq!(
            find_object(&objects, "StorageClass b")["provisioner"],
            "nfs.example.com"
        );
        let args = arguments(find_object(&objects, DEPLOYMENT));
        let names = args.iter().filter(|arg| arg.starts_with("--provisioner-name=")).count();
        assert_eq!(names, 2, "{args:?}");
    }
    Ok(())
}

#[tokio::test]
async fn the_token_of_the_metrics_is_mounted_and_sent_by_the_service_monitor() -> Test {
    for helm in both_versions().await? {
        let args = [
            "--set=metricsToken.secretName=scrape",
            "--set=serviceMonitor.enabled=true",
        ];
        let objects = render(&helm, &args).await?;
        let deployment = find_object(&objects, DEPLOYMENT);
        let file = "--metrics-token-file=/etc/nfs-operator/metrics/token";
        assert!(arguments(deployment).contains(&file));
        let pod = &deployment["spec"]["template"]["spec"];
        assert_eq!(pod["volumes"][0]["secret"]["secretName"], "scrape");
        let mount = &pod["containers"][0]["volumeMounts"][0];
        assert_eq!(mount["mountPath"], "/etc/nfs-operator/metrics");
        let monitor = find_object(&objects, "ServiceMonitor nfs-operator");
        let authorization = &monitor["spec"]["endpoints"][0]["authorization"];
        let credentials = serde_json::json!({"name": "scrape", "key": "token"});
        assert_eq!(authorization["credentials"], credentials);
    }
    Ok(())
}

#[tokio::test]
async fn the_pod_is_found_by_service_monitor_budget_and_network_policy() -> Test {
    for helm in both_versions().await? {
        let objects = render(&helm, &[&values("everything.yaml")]).await?;
        let labels = find_object(&objects, DEPLOYMENT)
            .pointer("/spec/template/metadata/labels")
            .unwrap();
        for (name, selector) in [
            (DEPLOYMENT, "/spec/selector/matchLabels"),
            ("Service nfs-operator", "/spec/selector"),
            ("PodDisruptionBudget nfs-operator", "/spec/selector/matchLabels"),
            ("NetworkPolicy nfs-operator", "/spec/podSelector/matchLabels"),
            ("ServiceMonitor nfs-operator", "/spec/selector/matchLabels"),
        ] {
            let selector = find_object(&objects, name)
                .pointer(selector)
                .unwrap()
                .as_object()
                .unwrap();
            assert!(!selector.is_empty());
            assert!(selector.iter().all(|(key, value)| labels[key] == *value), "{name}");
        }
        let policy = find_object(&objects, "NetworkPolicy nfs-operator").to_string();
        assert!(
            policy.contains("2050") && policy.contains("20049"),
            "the backends' ports: {policy}"
        );
    }
    Ok(())
}
