//! Administrators: they set up the cluster, and change, suspend, delete and recreate backends.

use serde_json::{Value, json};

use crate::actors::users::NAMESPACES;
use crate::actors::{archives, namespaces, volumes};
use crate::api_server::ApiServer;
use crate::chance::Chance;
use crate::objects::{is_deleting, name, text};
use crate::process::NAMESPACE;
use crate::trace::Trace;

const BY: &str = "admin";
/// Name of the server in the backends `main` and `second`, and path of their export.
pub const SERVER: &str = "nas.example.org";
/// Path of the export.
pub const EXPORT: &str = "/export";
/// Another name of that server.
pub const ALIAS: &str = "alias.example.org";
/// Name of the server of the backend `remote`, and path of its export.
pub const REMOTE_SERVER: &str = "far.example.org";
/// Path of the export of `remote`.
pub const REMOTE_EXPORT: &str = "/data";

/// Backends: the first two are on one export, and the third one is on another server.
pub const BACKENDS: [&str; 3] = ["main", "second", "remote"];

const KIND: &str = "/apis/nfs-operator.io/v1alpha1/nfsbackends";

/// A class: its name, and its parameters. Without `onDelete`, the policy of the backend applies to its claims.
static CLASSES: [(&str, &[(&str, &str)]); 6] = [
    ("archived", &[("onDelete", "archive")]),
    ("deleted", &[("onDelete", "delete")]),
    ("retained", &[("onDelete", "retain")]),
    ("undecided", &[]),
    ("remote", &[("backend", "remote,second")]),
    (
        ADOPTING,
        &[("existing", "Adopt"), ("pathPattern", "${pvc.namespace}/${pvc.name}")],
    ),
];

/// The class whose claims get directories that exist.
pub const ADOPTING: &str = "adopting";

/// Policies of a backend.
const POLICIES: [&str; 3] = ["Archive", "Delete", "Retain"];
/// Retentions of a backend, in seconds.
pub const RETENTIONS: [i64; 3] = [60, 120, 300];

/// The administrators, and the backends that they have.
#[derive(Debug)]
pub struct Administrator {
    api: ApiServer,
    chance: Chance,
    trace: Trace,
    backends: Vec<&'static str>,
}

impl Administrator {
    /// Creates what an installed operator finds in a cluster, and one to three backends.
    ///
    /// # Errors
    /// An object is refused: the simulation is wrong.
    pub fn install(seed: u64, api: ApiServer, trace: Trace) -> Result<Self, String> {
        let chance = Chance::new(seed, "administrator");
        let mut backends = BACKENDS.to_vec();
        backends.retain(|backend| *backend == "main" || chance.in_thousand(400));
        let administrator = Self {
            api,
            chance,
            trace,
            backends,
        };
        administrator.create_cluster()?;
        for backend in &administrator.backends {
            administrator.create(KIND, &object(backend))?;
        }
        Ok(administrator)
    }

    fn create(&self, path: &str, object: &Value) -> Result<(), String> {
        let created = self.api.call(BY, "POST", path, object);
        created
            .map(drop)
            .map_err(|refusal| format!("{path}: {}", refusal.status))
    }

    fn create_cluster(&self) -> Result<(), String> {
        for namespace in ["kube-system", "default", NAMESPACE].into_iter().chain(NAMESPACES) {
            self.create("/api/v1/namespaces", &json!({"metadata": {"name": namespace}}))?;
        }
        self.create("/api/v1/nodes", &json!({"metadata": {"name": "node-1"}}))?;
        self.create(
            "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases",
            &json!({"metadata": {"name": "nfs-operator-cluster-lock"}, "spec": {}}),
        )?;
        for definition in ["nfsbackends", "nfsarchives"] {
            self.create(
                "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
                &json!({"metadata": {"name": format!("{definition}.nfs-operator.io")}, "spec": {}}),
            )?;
        }
        for (class, parameters) in CLASSES {
            let parameters: serde_json::Map<String, Value> = parameters
                .iter()
                .map(|(name, value)| ((*name).to_owned(), json!(value)))
                .collect();
            self.create(
                "/apis/storage.k8s.io/v1/storageclasses",
                &json!({"metadata": {"name": class}, "provisioner": "nfs-operator.io/nfs", "parameters": parameters,
                    "allowVolumeExpansion": true}),
            )?;
        }
        Ok(())
    }

    /// Does one thing.
    pub fn act(&self) {
        let (api, chance, trace) = (&self.api, &self.chance, &self.trace);
        match self.chance.below(20) {
            0..3 => self.change_policy(),
            3 => self.suspend(),
            4 => self.delete_or_create_backend(),
            5..7 => archives::back_up(api, chance, trace),
            7..12 => archives::act(api, chance, trace),
            12..15 => volumes::change_reclaim_policy(api, chance, trace),
            15..18 => volumes::rebind(api, chance, trace),
            18 => self.allow_restores_by_name(),
            _ => namespaces::delete_or_create(api, chance, trace),
        }
    }

    fn change(&self, backend: &str, spec: &Value) -> bool {
        let path = format!("{KIND}/{backend}");
        let changed = self.api.call(BY, "PATCH", &path, &json!({"spec": spec})).is_ok();
        if changed {
            self.trace.record(BY, format_args!("changes backend {backend}: {spec}"));
        }
        changed
    }

    fn change_policy(&self) {
        let (Some(backend), Some(policy)) = (self.chance.choose(&self.backends), self.chance.choose(&POLICIES)) else {
            return;
        };
        let retention = match self.chance.below(3) {
            0 => Value::Null,
            _ => self
                .chance
                .choose(&RETENTIONS)
                .map_or(Value::Null, |seconds| json!(format!("{seconds}s"))),
        };
        let keep_last = match self.chance.below(3) {
            0 => json!(1 + self.chance.below(2)),
            _ => Value::Null,
        };
        let policy = json!({"onDelete": policy, "retention": retention, "keepLast": keep_last});
        self.change(backend, &json!({"archivePolicy": policy}));
    }

    /// Suspends a backend, or lets it continue.
    pub fn suspend(&self) {
        if let Some(backend) = self.chance.choose(&self.backends) {
            self.change(backend, &json!({"suspend": self.chance.in_thousand(500)}));
        }
    }

    fn allow_restores_by_name(&self) {
        if let Some(backend) = self.chance.choose(&self.backends) {
            let allowed = self.chance.in_thousand(500);
            self.change(backend, &json!({"archivePolicy": {"restoreByName": allowed}}));
        }
    }

    /// Deletes a backend other than `main`, or creates those again that do not exist any more.
    pub fn delete_or_create_backend(&self) {
        if self.create_missing_backends() {
            return;
        }
        let Some(backend) = self.chance.choose(&self.backends).filter(|backend| **backend != "main") else {
            return;
        };
        let path = format!("{KIND}/{backend}");
        if self.api.call(BY, "DELETE", &path, &json!({})).is_ok() {
            self.trace.record(BY, format_args!("deletes backend {backend}"));
        }
    }

    /// Creates the backends that do not exist. Returns true if there was one.
    fn create_missing_backends(&self) -> bool {
        let mut created = false;
        for backend in &self.backends {
            if self.create(KIND, &object(backend)).is_ok() {
                self.trace.record(BY, format_args!("creates backend {backend} again"));
                created = true;
            }
        }
        created
    }

    /// Lets every backend serve claims, as far as it is not being deleted, and creates namespaces that were deleted.
    pub fn restore_service(&self) {
        self.create_missing_backends();
        namespaces::create_missing(&self.api, &self.trace);
        for backend in self.api.all("nfsbackends") {
            if backend.pointer("/spec/suspend") == Some(&json!(true)) && !is_deleting(&backend) {
                self.change(name(&backend), &json!({"suspend": false}));
            }
        }
    }

    /// Lets every backend keep nothing but the newest archive of a claim.
    pub fn keep_last(&self) {
        for backend in &self.backends {
            self.change(backend, &json!({"archivePolicy": {"retention": null, "keepLast": 1}}));
        }
    }

    /// Lets every backend accept its export as it is.
    pub fn accept_exports(&self) {
        for backend in self.api.all("nfsbackends") {
            let accepted = json!({"nfs-operator.io/accept-identity": text(&backend, "/status/export/id")});
            let path = format!("{KIND}/{}", name(&backend));
            let annotated = json!({"metadata": {"annotations": accepted}});
            if self.api.call(BY, "PATCH", &path, &annotated).is_ok() {
                self.trace
                    .record(BY, format_args!("accepts the export of {}", name(&backend)));
            }
        }
    }

    /// Returns true if two backends are on one export.
    pub fn shares_an_export(&self) -> bool {
        self.backends.contains(&"second")
    }

    /// Returns the names of the classes.
    pub fn classes() -> Vec<String> {
        CLASSES.iter().map(|(class, _)| (*class).to_owned()).collect()
    }
}

/// Returns the policy of a class, if it has one.
pub fn policy_of_class(class: &str) -> Option<&'static str> {
    let (_, parameters) = CLASSES.iter().find(|(name, _)| *name == class)?;
    let (_, policy) = parameters.iter().find(|(name, _)| *name == "onDelete")?;
    Some(*policy)
}

/// Returns a backend as it is created.
fn object(backend: &str) -> Value {
    let (server, path) = match backend {
        "remote" => (REMOTE_SERVER, REMOTE_EXPORT),
        _ => (SERVER, EXPORT),
    };
    json!({"metadata": {"name": backend}, "spec": {"server": server, "path": path,
        "claimOverrides": ["OnDelete", "Backend"]}})
}

/// Returns the policy of a backend in the words of a class.
pub fn policy_of_backend(backend: &Value) -> String {
    text(backend, "/spec/archivePolicy/onDelete").to_ascii_lowercase()
}
