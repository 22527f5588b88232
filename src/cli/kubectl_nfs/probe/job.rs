//! The Job of a probe. Pure.

use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{
    Affinity, Capabilities, Container, NFSVolumeSource, NodeAffinity, NodeSelector, NodeSelectorRequirement,
    NodeSelectorTerm, PodReadinessGate, PodSecurityContext, PodSpec, PodTemplateSpec, SeccompProfile, SecurityContext,
    Sysctl, Toleration, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use nfs_client::address::ExportAddress;

/// A condition of pods that nobody sets. The pod has the labels of the operator's pods, so that the same network policies
/// apply; as it is never Ready, it never becomes an endpoint of the operator's Service.
const NEVER_READY: &str = "nfs-operator.io/serves-metrics";
/// Time after which the cluster removes a Job whose creator was killed.
const LIFETIME: i32 = 600;

/// Time that the cluster gives a pod beyond the timeout, so that the cause of a timeout can still be read.
const GRACE: Duration = Duration::from_secs(30);
/// Name of the volume of a pod that mounts an export.
const VOLUME: &str = "export";
/// Where such a pod has its volume. The program does not look into it: without the mount, the container does not start.
const MOUNT_PATH: &str = "/export";

/// A probe in the cluster.
pub struct ProbeJob {
    /// Name of the Job.
    pub name: String,
    /// Arguments of the program.
    pub arguments: Vec<String>,
    /// Image instead of that of the Deployment.
    pub image: Option<String>,
    /// Node to run on.
    pub node: Option<String>,
    /// True if the pod has the operator's account, which exists only in the operator's namespace.
    pub has_account: bool,
    /// Export that the kubelet mounts read-only for the pod.
    pub mount: Option<ExportAddress>,
    /// Maximum duration.
    pub timeout: Duration,
}

impl ProbeJob {
    /// Returns the Job, with a pod like those of the operator's Deployment. Returns `None` if no image is known.
    pub fn manifest(&self, deployment: Option<&Deployment>) -> Option<Job> {
        let template = deployment.and_then(|deployment| Some(deployment.spec.as_ref()?.template.clone()));
        let template = template.unwrap_or_else(restricted);
        let metadata = template.metadata.unwrap_or_default();
        let pod = template.spec?;
        let operator = pod.containers.first()?;
        let container = Container {
            name: "probe".to_owned(),
            image: Some(self.image.clone().or_else(|| operator.image.clone())?),
            image_pull_policy: operator.image_pull_policy.clone(),
            command: operator.command.clone(),
            args: Some(self.arguments.clone()),
            resources: operator.resources.clone(),
            security_context: operator.security_context.clone(),
            volume_mounts: self.mount.as_ref().map(|_| {
                vec![VolumeMount {
                    name: VOLUME.to_owned(),
                    mount_path: MOUNT_PATH.to_owned(),
                    read_only: Some(true),
                    ..VolumeMount::default()
                }]
            }),
            ..Container::default()
        };
        let mut tolerations = pod.tolerations.unwrap_or_default();
        if self.node.is_some() {
            tolerations.push(Toleration {
                operator: Some("Exists".to_owned()),
                ..Toleration::default()
            });
        }
        Some(Job {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                ..ObjectMeta::default()
            },
            spec: Some(JobSpec {
                backoff_limit: Some(0),
                active_deadline_seconds: i64::try_from(self.timeout.saturating_add(GRACE).as_secs()).ok(),
                ttl_seconds_after_finished: Some(LIFETIME),
                template: PodTemplateSpec {
                    metadata: Some(ObjectMeta {
                        labels: metadata.labels,
                        ..ObjectMeta::default()
                    }),
                    spec: Some(PodSpec {
                        containers: vec![container],
                        init_containers: None,
                        volumes: self.mount.as_ref().map(|export| vec![nfs_volume(export)]),
                        service_account_name: pod.service_account_name.filter(|_| self.has_account),
                        service_account: None,
                        affinity: self.node.as_deref().map(on_node),
                        node_selector: pod.node_selector.filter(|_| self.node.is_none()),
                        topology_spread_constraints: None,
                        tolerations: Some(tolerations),
                        readiness_gates: Some(vec![PodReadinessGate {
                            condition_type: NEVER_READY.to_owned(),
                        }]),
                        // The probe does not access the API server.
                        automount_service_account_token: Some(false),
                        restart_policy: Some("Never".to_owned()),
                        termination_grace_period_seconds: Some(1),
                        ..pod
                    }),
                },
                ..JobSpec::default()
            }),
            ..Job::default()
        })
    }
}

/// Returns an inline volume, which the kubelet mounts without options other than `ro`.
fn nfs_volume(export: &ExportAddress) -> Volume {
    Volume {
        name: VOLUME.to_owned(),
        nfs: Some(NFSVolumeSource {
            server: export.server.clone(),
            path: export.path.clone(),
            read_only: Some(true),
        }),
        ..Volume::default()
    }
}

fn on_node(name: &str) -> Affinity {
    let is_node = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![name.to_owned()]),
    };
    let term = NodeSelectorTerm {
        match_fields: Some(vec![is_node]),
        ..NodeSelectorTerm::default()
    };
    Affinity {
        node_affinity: Some(NodeAffinity {
            required_during_scheduling_ignored_during_execution: Some(NodeSelector {
                node_selector_terms: vec![term],
            }),
            ..NodeAffinity::default()
        }),
        ..Affinity::default()
    }
}

/// Returns the pod of the chart's defaults, without an image, for an operator without a Deployment.
fn restricted() -> PodTemplateSpec {
    let container = Container {
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            read_only_root_filesystem: Some(true),
            capabilities: Some(Capabilities {
                drop: Some(vec!["ALL".to_owned()]),
                ..Capabilities::default()
            }),
            ..SecurityContext::default()
        }),
        ..Container::default()
    };
    let security = PodSecurityContext {
        run_as_non_root: Some(true),
        run_as_user: Some(65_532),
        run_as_group: Some(65_532),
        seccomp_profile: Some(SeccompProfile {
            type_: "RuntimeDefault".to_owned(),
            ..SeccompProfile::default()
        }),
        // Servers with the option `secure` allow only source ports below 1024.
        sysctls: Some(vec![Sysctl {
            name: "net.ipv4.ip_unprivileged_port_start".to_owned(),
            value: "0".to_owned(),
        }]),
        ..PodSecurityContext::default()
    };
    PodTemplateSpec {
        metadata: None,
        spec: Some(PodSpec {
            containers: vec![container],
            security_context: Some(security),
            enable_service_links: Some(false),
            ..PodSpec::default()
        }),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn job(image: Option<&str>, node: Option<&str>) -> ProbeJob {
        ProbeJob {
            name: "nfs-operator-probe-1".to_owned(),
            arguments: vec!["probe".to_owned(), "nfs:/export".to_owned()],
            image: image.map(str::to_owned),
            node: node.map(str::to_owned),
            has_account: true,
            mount: None,
            timeout: Duration::from_secs(60),
        }
    }

    fn deployed() -> Deployment {
        let text = include_str!("../../../../config/manager/deployment.yaml");
        serde_norway::from_str(text).unwrap()
    }

    #[test]
    fn the_pod_is_like_that_of_the_operator_except_for_what_it_runs() {
        let deployment = deployed();
        let of_operator = serde_json::to_value(&deployment).unwrap()["spec"]["template"].clone();
        let job = serde_json::to_value(job(None, None).manifest(Some(&deployment))).unwrap();
        let pod = &job["spec"]["template"];
        assert_eq!(pod["metadata"]["labels"], of_operator["metadata"]["labels"]);
        for field in ["securityContext", "serviceAccountName", "enableServiceLinks"] {
            assert_eq!(pod["spec"][field], of_operator["spec"][field], "{field}");
            assert!(!pod["spec"][field].is_null(), "{field}");
        }
        let (container, operator) = (&pod["spec"]["containers"][0], &of_operator["spec"]["containers"][0]);
        for field in ["image", "imagePullPolicy", "securityContext", "resources"] {
            assert_eq!(container[field], operator[field], "{field}");
        }
        assert_eq!(container["args"], json!(["probe", "nfs:/export"]));
        for field in ["livenessProbe", "readinessProbe", "ports", "env", "volumeMounts"] {
            assert!(container[field].is_null(), "{field}: {container}");
        }
        assert_eq!(pod["spec"]["automountServiceAccountToken"], false);
        assert_eq!(pod["spec"]["affinity"], Value::Null);
        assert_eq!(job["spec"]["backoffLimit"], 0);
    }

    #[test]
    fn on_a_node_it_is_pinned_and_tolerates_its_taints() {
        let mut deployment = deployed();
        let pod = deployment.spec.as_mut().unwrap().template.spec.as_mut().unwrap();
        pod.node_selector = Some([("disk".to_owned(), "fast".to_owned())].into());
        let job = serde_json::to_value(job(Some("other:1"), Some("node-1")).manifest(Some(&deployment))).unwrap();
        let pod = &job["spec"]["template"]["spec"];
        assert!(pod["affinity"].to_string().contains(r#""values":["node-1"]"#), "{pod}");
        assert_eq!(pod["tolerations"], json!([{"operator": "Exists"}]));
        assert!(pod["nodeSelector"].is_null());
        assert_eq!(pod["containers"][0]["image"], "other:1");
    }

    #[test]
    fn a_pod_that_mounts_has_the_export_read_only_and_elsewhere_no_account() {
        let export = ExportAddress::parse("nfs.example.com:/data").unwrap();
        let job = ProbeJob {
            has_account: false,
            mount: Some(export),
            ..job(None, Some("node-1"))
        };
        let job = serde_json::to_value(job.manifest(Some(&deployed()))).unwrap();
        let pod = &job["spec"]["template"]["spec"];
        let nfs = json!({"server": "nfs.example.com", "path": "/data", "readOnly": true});
        assert_eq!(pod["volumes"], json!([{"name": "export", "nfs": nfs}]));
        let mounts = json!([{"name": "export", "mountPath": "/export", "readOnly": true}]);
        assert_eq!(pod["containers"][0]["volumeMounts"], mounts);
        assert!(pod["serviceAccountName"].is_null(), "{pod}");
        assert!(pod["affinity"].to_string().contains("node-1"), "{pod}");
    }

    #[test]
    fn without_a_deployment_an_image_is_needed_and_the_pod_is_restricted() {
        assert!(job(None, None).manifest(None).is_none());
        let job = serde_json::to_value(job(Some("nfs-operator:1"), None).manifest(None)).unwrap();
        let of_operator = serde_json::to_value(deployed()).unwrap()["spec"]["template"].clone();
        let pod = &job["spec"]["template"]["spec"];
        assert_eq!(pod["securityContext"], of_operator["spec"]["securityContext"]);
        let expected = &of_operator["spec"]["containers"][0]["securityContext"];
        assert_eq!(pod["containers"][0]["securityContext"], *expected);
    }
}
