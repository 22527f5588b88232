//! Each command needs the rights in the table of docs/kubectl-nfs.md, and no others.

use std::fs;

use rig::objects::{merge, reference};
use serde_json::{Value, json};

use super::{OPERATOR_NAMESPACE, json as run_json, nfs_as};
use crate::cli::program::text;
use crate::support::dedicated_cluster::DedicatedCluster;
use crate::support::shared::{TIMEOUT, Test};

const RBAC: &str = "rbac.authorization.k8s.io/v1";
const OWN: &str = "nfs-operator.io";

/// A row of the table: the commands as it names them, their rights, and command lines to try.
type Row<'a> = (&'a str, &'a [Rights<'a>], &'a [&'a [&'a str]]);

/// Rights in a namespace, or in all.
struct Rights<'a> {
    namespace: Option<&'a str>,
    rules: &'a [(&'a str, &'a [&'a str], &'a [&'a str])],
}

/// Rights on the Leases of a namespace.
fn lock(namespace: &str) -> Rights<'_> {
    Rights {
        namespace: Some(namespace),
        rules: &[("coordination.k8s.io", &["leases"], &["get"])],
    }
}

/// Rights on the Deployments of a namespace.
fn deployments(namespace: &str) -> Rights<'_> {
    Rights {
        namespace: Some(namespace),
        rules: &[("apps", &["deployments"], &["list"])],
    }
}

impl DedicatedCluster {
    /// Creates a ServiceAccount with these rights, and returns its name.
    async fn account(&self, name: &str, rights: &[Rights<'_>]) -> rig::Result<()> {
        let account = reference("v1", "ServiceAccount", Some("default"), name);
        self.objects.create(&account).await?;
        for (index, Rights { namespace, rules }) in rights.iter().enumerate() {
            let (role, binding) = match namespace {
                Some(_) => ("Role", "RoleBinding"),
                None => ("ClusterRole", "ClusterRoleBinding"),
            };
            let role_name = format!("{name}-{index}");
            let rules: Vec<Value> = rules
                .iter()
                .map(|(group, resources, verbs)| json!({"apiGroups": [group], "resources": resources, "verbs": verbs}))
                .collect();
            let mut object = reference(RBAC, role, *namespace, &role_name);
            merge(&mut object, &json!({"rules": rules}));
            self.objects.create(&object).await?;
            let mut object = reference(RBAC, binding, *namespace, &role_name);
            let fields = json!({
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role, "name": role_name},
                "subjects": [{"kind": "ServiceAccount", "namespace": "default", "name": name}],
            });
            merge(&mut object, &fields);
            self.objects.create(&object).await?;
        }
        Ok(())
    }
}

#[tokio::test]
async fn each_command_runs_with_the_rights_that_its_documentation_lists() -> Test {
    let env = DedicatedCluster::start(json!({"probeInterval": "1s"})).await?;
    let claim = env.objects.create(&env.claim("data")).await?;
    env.bound(&claim).await?;
    let mut waiting = env.claim("waiting");
    merge(
        &mut waiting,
        &json!({"metadata": {"annotations": {"nfs-operator.io/backend": "nobody-knows"}}}),
    );
    env.objects.create(&waiting).await?;
    let (_, status) = run_json(&env.cluster, &["status"]).await;
    let lease = status["operator"]["lease"].as_str().ok_or("no lease")?;
    let (home, _) = lease.split_once('/').ok_or("no namespace")?;
    let folder = env.data()?.with_file_name("kept");
    fs::create_dir(&folder)?;
    let (report, copy) = (folder.join("report.json"), folder.join("secret.yaml"));
    let (report, copy) = (report.to_str().unwrap(), copy.to_str().unwrap());

    let everywhere = |rules| Rights { namespace: None, rules };
    let here = |rules| Rights {
        namespace: Some("default"),
        rules,
    };
    let rows: &[Row<'_>] = &[
        (
            "status",
            &[
                everywhere(&[
                    (OWN, &["nfsbackends", "nfsarchives", "nfsbackups"], &["list"]),
                    ("", &["persistentvolumeclaims"], &["list"]),
                ]),
                lock("kube-system"),
                lock(home),
                deployments(home),
            ],
            // Without the right to list volumes, it shows the rest.
            &[&["status"]],
        ),
        (
            "report",
            &[
                everywhere(&[
                    (
                        OWN,
                        &["nfsbackends", "nfsarchives", "nfsbackups", "nfsbackupschedules"],
                        &["list"],
                    ),
                    ("", &["persistentvolumeclaims", "persistentvolumes"], &["list"]),
                    ("storage.k8s.io", &["storageclasses"], &["list"]),
                ]),
                lock("kube-system"),
                lock(home),
                deployments(home),
            ],
            &[&["report", report]],
        ),
        (
            "explain",
            &[
                everywhere(&[
                    ("", &["namespaces", "nodes", "persistentvolumes"], &["get"]),
                    ("storage.k8s.io", &["storageclasses"], &["get"]),
                    (OWN, &["nfsbackends"], &["get", "list"]),
                ]),
                here(&[("", &["persistentvolumeclaims"], &["get"])]),
            ],
            &[&["explain", "data"], &["explain", "waiting"]],
        ),
        (
            "archives",
            &[
                everywhere(&[(OWN, &["nfsarchives"], &["get", "list", "create", "patch"])]),
                here(&[("", &["persistentvolumeclaims"], &["get", "create"])]),
            ],
            &[
                &["backup", "data", "--name", "copy", "--wait"],
                &["archives", "list"],
                &["archives", "hold", "copy"],
                &["archives", "release", "copy"],
                &["archives", "expire", "copy", "--in", "1d"],
                &["archives", "restore", "copy", "--to", "again", "--wait"],
            ],
        ),
        (
            "requests",
            &[everywhere(&[(OWN, &["nfsbackends"], &["get", "list", "patch"])])],
            &[
                &["scan", "--all"],
                &["readopt", "main"],
                &["suspend", "main"],
                &["resume", "main"],
                &["orphans"],
            ],
        ),
        (
            "usage",
            &[everywhere(&[("", &["persistentvolumes"], &["list"])])],
            &[&["usage", "top"]],
        ),
        (
            "migrate",
            &[
                everywhere(&[
                    ("", &["persistentvolumes"], &["list"]),
                    ("storage.k8s.io", &["storageclasses"], &["list"]),
                    (OWN, &["nfsbackends"], &["list"]),
                    ("apps", &["deployments"], &["list"]),
                ]),
                lock("kube-system"),
            ],
            &[&["migrate", "--from", "nfs-subdir", "--plan"]],
        ),
        (
            "secret",
            &[
                lock("kube-system"),
                Rights {
                    namespace: Some(home),
                    rules: &[("", &["secrets"], &["get"])],
                },
                everywhere(&[(OWN, &["nfsbackends"], &["list"])]),
            ],
            &[
                &["secret", "backup", copy],
                &["secret", "verify", copy],
                &["secret", "quota-key"],
            ],
        ),
        (
            "check",
            &[
                everywhere(&[
                    ("storage.k8s.io", &["storageclasses"], &["get"]),
                    ("", &["persistentvolumes"], &["get"]),
                ]),
                here(&[("", &["persistentvolumeclaims"], &["get", "create", "delete"])]),
            ],
            &[&["check", "--storage-class", "nfs"]],
        ),
    ];
    for (name, rights, commands) in rows {
        env.account(name, rights).await?;
        let kubeconfig = env.cluster.service_account_kubeconfig("default", name).await?;
        for arguments in *commands {
            // Roles take effect in the background.
            rig::wait::until("the command to be allowed", TIMEOUT, async || {
                let output = nfs_as(&kubeconfig, arguments).await;
                let printed = format!("{}{}", text(&output.stdout), text(&output.stderr));
                // A claim waits, the export was not scanned: these are results.
                let ran = matches!(output.status.code(), Some(0 | 1)) && !printed.contains("kubectl nfs: ");
                match ran && !printed.contains("forbidden") {
                    true => Ok(()),
                    false => Err(format!("{arguments:?}: {output:?}")),
                }
            })
            .await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_probe_needs_the_cluster_lock_or_the_namespace_of_the_operator() -> Test {
    let env = DedicatedCluster::start(json!({})).await?;
    let manifest = include_str!("../../../../config/manager/deployment.yaml");
    let mut deployment: Value = serde_norway::from_str(manifest)?;
    merge(
        &mut deployment,
        &json!({"metadata": {"namespace": OPERATOR_NAMESPACE}, "spec": {"replicas": 0}}),
    );
    env.objects.create(&deployment).await?;
    let jobs = || Rights {
        namespace: Some(OPERATOR_NAMESPACE),
        rules: &[
            ("batch", &["jobs"], &["create", "get", "delete"]),
            ("", &["pods", "events"], &["list"]),
            ("", &["pods/log"], &["get"]),
        ],
    };
    env.account(
        "prober",
        &[lock("kube-system"), deployments(OPERATOR_NAMESPACE), jobs()],
    )
    .await?;
    env.account("unaware", &[deployments(OPERATOR_NAMESPACE), jobs()])
        .await?;
    let probe = ["probe", "nfs.example.com:/export", "--timeout", "3s"];
    let named = [&probe[..], &["--operator-namespace", OPERATOR_NAMESPACE]].concat();
    for (account, arguments, expected, code) in [
        ("prober", &probe[..], "Unschedulable", 1),
        ("unaware", &named[..], "Unschedulable", 1),
        (
            "unaware",
            &probe[..],
            "you may not read the Lease kube-system/nfs-operator-cluster-lock",
            2,
        ),
    ] {
        let kubeconfig = env.cluster.service_account_kubeconfig("default", account).await?;
        // Roles take effect in the background.
        rig::wait::until("the probe to be allowed", TIMEOUT, async || {
            let output = nfs_as(&kubeconfig, arguments).await;
            let is_expected = output.status.code() == Some(code) && text(&output.stderr).contains(expected);
            match is_expected {
                true => Ok(()),
                false => Err(format!("{account}: {output:?}")),
            }
        })
        .await?;
    }
    Ok(())
}
