//! `kubectl nfs report`: a file for a support request.

mod learn;
mod redact;

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use serde_json::{Map, Value, json};

use self::learn::{learn_arguments, learn_fields, learn_image};
use self::redact::{Kind, Redactor};
use super::names::is_true;
use super::operator::{self, OperatorArguments};
use crate::api::names::{CLAIM_CONDITION, DEFAULT_PROVISIONER, MANAGED_BY, OPERATOR_NAME, PROVISIONED_BY};
use crate::api::{NfsArchive, NfsBackend, NfsBackup, NfsBackupSchedule};
use crate::cli::cluster::{ClusterArguments, CommandError, all, each, failed};
use crate::cli::output::{OutputFormat, escape_non_ascii, print_as};
use crate::decide::reclaim::is_released;

/// Maximum number of claims, volumes and archives in a report: enough to see a pattern.
const MAX_OBJECTS: usize = 50;

/// Provisioner name in the manifests of nfs-subdir-external-provisioner.
const NFS_SUBDIR_PROVISIONER: &str = "k8s-sigs.io/nfs-subdir-external-provisioner";

/// Arguments of `kubectl nfs report`.
#[derive(Args)]
#[command(after_help = "\
The file contains versions, the arguments of the operator, backends, its StorageClasses, and up to 50 claims that wait,
volumes, archives, backups and schedules that have a problem. Names of objects, provisioners, nodes, registries, servers,
paths, directories, addresses and identities are replaced by numbers, the same everywhere in the file. Labels stay. Secrets,
events, logs and data are not read. Look at the file before you send it. To attach the log of the operator, save it with
kubectl -n nfs-operator-system logs deployment/nfs-operator --since=1h, and remove the names from it yourself.")]
pub struct ReportArguments {
    /// File to write. An existing one is not overwritten.
    #[arg(value_name = "FILE", default_value = "nfs-operator-report.json")]
    file: PathBuf,
    /// Output format of the result; the file is JSON.
    #[arg(long, short, value_enum, default_value = "table")]
    output: OutputFormat,
    #[command(flatten)]
    operator: OperatorArguments,
    #[command(flatten)]
    cluster: ClusterArguments,
}

/// Collects the objects, and writes them without names.
pub async fn run(arguments: ReportArguments) -> Result<ExitCode, CommandError> {
    let client = arguments.cluster.client().await?;
    let mut redactor = Redactor::default();
    let found = collect(&client, &arguments.operator, &mut redactor).await?;
    let text = serde_json::to_string_pretty(&redactor.redacted(found))
        .map_err(|error| CommandError::Format(error.to_string()))?;
    let file = arguments.file.display();
    let create = OpenOptions::new().write(true).create_new(true).open(&arguments.file);
    let written = create.and_then(|mut file| writeln!(file, "{}", escape_non_ascii(&text)));
    written.map_err(|error| CommandError::Refused(format!("cannot write {file}: {error}")))?;
    let value = json!({"file": arguments.file});
    print_as(
        arguments.output,
        &format!("wrote {file}: look at it before you send it"),
        &value,
    )?;
    Ok(ExitCode::SUCCESS)
}

async fn collect(
    client: &Client,
    arguments: &OperatorArguments,
    redactor: &mut Redactor,
) -> Result<Value, CommandError> {
    let operator = operator::find(client, arguments).await?;
    let kubernetes = client
        .apiserver_version()
        .await
        .map_err(failed("read the version of Kubernetes"))?;
    let backends: Vec<NfsBackend> = all(&Api::all(client.clone()), "NfsBackends").await?;
    backends.iter().for_each(|backend| know_backend(redactor, backend));
    let classes: Vec<StorageClass> = all(&Api::all(client.clone()), "StorageClasses").await?;
    // Claims and volumes name classes of other provisioners, too.
    classes
        .iter()
        .for_each(|class| redactor.know(Kind::Class, &class.name_any()));
    let served = &operator.served;
    let classes: Vec<StorageClass> = classes
        .into_iter()
        .filter(|class| served.serves(&class.provisioner) || class.provisioner.contains("nfs"))
        .collect();
    let provisioners = classes.iter().map(|class| &class.provisioner);
    let provisioners = provisioners.chain(&served.names).chain(served.aliases.keys());
    let is_public = |name: &&String| matches!(name.as_str(), DEFAULT_PROVISIONER | NFS_SUBDIR_PROVISIONER);
    provisioners
        .filter(|name| !is_public(name))
        .for_each(|name| redactor.know(Kind::Provisioner, name));
    for name in operator.leadership.leader.iter().chain(&operator.leadership.lease) {
        name.split('/').for_each(|part| redactor.know(Kind::Instance, part));
    }
    let claims = claims(client, redactor).await?;
    let volumes = volumes(client, redactor).await?;
    let archives = archives(client, redactor).await?;
    let backups = backups(client, redactor).await?;
    let schedules = schedules(client, redactor).await?;
    for deployment in &operator.deployments {
        learn_image(redactor, &deployment.image);
        learn_arguments(redactor, &deployment.arguments);
    }
    let found = json!({
        "report": 1,
        "time": Timestamp::now().to_string(),
        "versions": {"client": env!("CARGO_PKG_VERSION"), "kubernetes": kubernetes.git_version},
        "operator": operator,
        "backends": backends.into_iter().map(|backend| object(&backend)).collect::<Vec<_>>(),
        "storageClasses": classes.into_iter().map(|class| object(&class)).collect::<Vec<_>>(),
        "claims": claims,
        "volumes": volumes,
        "archives": archives,
        "backups": backups,
        "schedules": schedules,
    });
    // What is left: names in any other field.
    learn_fields(redactor, "", &found);
    Ok(found)
}

/// Learns the names that a backend contains, other than those in fields that hold the same in every object.
fn know_backend(redactor: &mut Redactor, backend: &NfsBackend) {
    redactor.know(Kind::Backend, &backend.name_any());
    redactor.know(Kind::Server, &backend.spec.server);
    redactor.know(Kind::Path, &backend.spec.path);
}

/// Returns the parts of an object that say how it is configured and what happened. Annotations and labels may contain
/// anything.
fn object<K: serde::Serialize + ResourceExt>(object: &K) -> Value {
    let Ok(Value::Object(mut fields)) = serde_json::to_value(object) else {
        return Value::Null;
    };
    let meta = object.meta();
    let own = |names: &std::collections::BTreeMap<String, String>| -> Vec<String> {
        names
            .keys()
            .filter(|name| name.contains("nfs-operator.io/"))
            .cloned()
            .collect()
    };
    fields.insert(
        "metadata".to_owned(),
        json!({
            "name": meta.name,
            "namespace": meta.namespace,
            "creationTimestamp": meta.creation_timestamp,
            "deletionTimestamp": meta.deletion_timestamp,
            "generation": meta.generation,
            "finalizers": meta.finalizers,
            "annotationNames": meta.annotations.as_ref().map(own),
        }),
    );
    Value::Object(fields)
}

/// The first objects of a list that matter, and how many there are.
#[derive(Default)]
struct Sample {
    total: u64,
    matching: u64,
    items: Vec<Value>,
}

impl Sample {
    fn add<K: serde::Serialize + ResourceExt>(&mut self, item: &K, matters: bool, know: impl FnOnce()) {
        self.total += 1;
        self.matching += u64::from(matters);
        if matters && self.items.len() < MAX_OBJECTS {
            know();
            self.items.push(object(item));
        }
    }

    fn into_json(self) -> Value {
        json!({"total": self.total, "withProblem": self.matching, "items": self.items})
    }
}

async fn claims(client: &Client, redactor: &mut Redactor) -> Result<Value, CommandError> {
    let api: Api<PersistentVolumeClaim> = Api::all(client.clone());
    let mut sample = Sample::default();
    each(&api, "PersistentVolumeClaims", ListParams::default(), |claim| {
        let status = claim.status.as_ref();
        let conditions = status
            .and_then(|status| status.conditions.as_deref())
            .unwrap_or_default();
        let reported = conditions.iter().find(|condition| condition.type_ == CLAIM_CONDITION);
        let waits = reported.is_some_and(|condition| condition.status != "True");
        let is_bound = status.and_then(|status| status.phase.as_deref()) == Some("Bound");
        if reported.is_some() {
            sample.add(&claim, waits && !is_bound, || {
                redactor.know(Kind::Namespace, &claim.namespace().unwrap_or_default());
                redactor.know(Kind::Claim, &claim.name_any());
                redactor.know(Kind::Identity, &claim.uid().unwrap_or_default());
            });
        }
    })
    .await?;
    Ok(sample.into_json())
}

async fn volumes(client: &Client, redactor: &mut Redactor) -> Result<Value, CommandError> {
    let api: Api<PersistentVolume> = Api::all(client.clone());
    let mut sample = Sample::default();
    let ours = ListParams::default().labels(&format!("{MANAGED_BY}={OPERATOR_NAME}"));
    each(&api, "PersistentVolumes", ours, |volume| {
        let is_stuck = volume.annotations().contains_key(PROVISIONED_BY) && is_released(&volume);
        sample.add(&volume, is_stuck, || redactor.know(Kind::Volume, &volume.name_any()));
    })
    .await?;
    Ok(sample.into_json())
}

async fn archives(client: &Client, redactor: &mut Redactor) -> Result<Value, CommandError> {
    let api: Api<NfsArchive> = Api::all(client.clone());
    let mut sample = Sample::default();
    each(&api, "NfsArchives", ListParams::default(), |archive| {
        let has_problem = !is_true(&archive.observed().conditions, "Available");
        sample.add(&archive, has_problem, || {
            redactor.know(Kind::Archive, &archive.name_any())
        });
    })
    .await?;
    Ok(sample.into_json())
}

async fn backups(client: &Client, redactor: &mut Redactor) -> Result<Value, CommandError> {
    let api: Api<NfsBackup> = Api::all(client.clone());
    let mut sample = Sample::default();
    each(&api, "NfsBackups", ListParams::default(), |backup| {
        let has_problem = !is_true(&backup.observed().conditions, "Ready");
        sample.add(&backup, has_problem, || redactor.know(Kind::Backup, &backup.name_any()));
    })
    .await?;
    Ok(sample.into_json())
}

async fn schedules(client: &Client, redactor: &mut Redactor) -> Result<Value, CommandError> {
    let api: Api<NfsBackupSchedule> = Api::all(client.clone());
    let mut sample = Sample::default();
    each(&api, "NfsBackupSchedules", ListParams::default(), |schedule| {
        let conditions = schedule.status.as_ref().map(|status| status.conditions.as_slice());
        let has_problem = !is_true(conditions.unwrap_or_default(), "Ready");
        sample.add(&schedule, has_problem, || {
            redactor.know(Kind::Schedule, &schedule.name_any())
        });
    })
    .await?;
    Ok(sample.into_json())
}

/// Returns an object without fields that are null.
fn without_nulls(fields: Map<String, Value>) -> Map<String, Value> {
    fields.into_iter().filter(|(_, value)| !value.is_null()).collect()
}
