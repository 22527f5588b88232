//! `kubectl nfs probe`: an export as a pod of the operator sees it.

mod job;
mod mount;
mod pod;

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use export_store::text::escape;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::{DeleteParams, ListParams, LogParams, PostParams, Preconditions};
use kube::{Api, Client, Resource, ResourceExt};
use rand::RngExt;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use self::job::ProbeJob;
use self::mount::{MountedExport, mount_failure};
use self::pod::{PodState, last_warning};
use super::operator;
use super::progress::{self, Progress};
use crate::cli::cluster::{ClusterArguments, CommandError, failed};
use crate::cli::duration::parse_duration;
use crate::cli::findings::{Findings, StepResult};
use crate::cli::output::{OutputFormat, print};
use crate::cli::probe::{self, CHECK_WIDTH, EXIT_CODES, ProbeArguments};
use crate::runtime::reads;
use crate::runtime::shutdown::shutdown_signal;
use crate::runtime::writes::http_status;

/// Arguments of `kubectl nfs probe`.
#[derive(Args)]
#[command(
    before_long_help = "\
Runs `nfs-operator probe` in a Job in the namespace of the operator, with the image, the security context, the sysctls, the
tolerations and the network policies of its pods, prints the output, and removes the Job. Servers that list the addresses of
nodes or pods answer as they answer the operator.

A node mounts a volume as root, and often with another address than its pods. With --from-node, the kubelet of that node also
mounts the export, read-only, for a pod with a temporary PersistentVolume and claim. Nothing on the export is changed.",
    after_help = EXIT_CODES
)]
pub struct JobArguments {
    #[command(flatten)]
    probe: ProbeArguments,
    /// Probe from this machine instead. Needs no cluster.
    #[arg(long, conflicts_with_all = ["image", "namespace", "from_node"])]
    local: bool,
    /// Image of the operator. If unset, that of its Deployment.
    #[arg(long)]
    image: Option<String>,
    /// Namespace in which to create the Job. If unset, that of the operator's Deployment.
    #[arg(long, short)]
    namespace: Option<String>,
    /// Run the pod on this node, whatever taints it has, and let the node mount the export. Needs the right to create and
    /// delete PersistentVolumes; without it, the mount is skipped. If the mount fails, the exit code is 1.
    #[arg(long, value_name = "NODE")]
    from_node: Option<String>,
    /// Maximum duration until the pod is done (Go duration). The Job is then removed.
    #[arg(long, default_value = "3m", value_parser = parse_duration)]
    timeout: Duration,
    #[command(flatten)]
    cluster: ClusterArguments,
}

/// Where the Jobs of a probe run.
struct Place {
    client: Client,
    namespace: String,
    /// Cancelled when the user interrupts the command.
    stop: CancellationToken,
}

/// Runs the probe, and prints what it printed. Returns its exit code.
pub async fn run(arguments: JobArguments) -> Result<ExitCode, CommandError> {
    if arguments.local {
        return Ok(probe::run(arguments.probe).await);
    }
    let stop = shutdown_signal()?;
    let client = arguments.cluster.client().await?;
    let deployment = operator::find_deployment(&client, arguments.namespace.as_deref()).await?;
    let namespace = arguments.namespace.clone();
    let Some(namespace) = namespace.or_else(|| deployment.as_ref().and_then(ResourceExt::namespace)) else {
        return Err(no_deployment());
    };
    let place = Place {
        client,
        namespace,
        stop,
    };
    let mut job = ProbeJob {
        name: random_name("probe"),
        arguments: arguments.probe.as_arguments(),
        image: arguments.image.clone(),
        node: arguments.from_node.clone(),
        claim: None,
        timeout: arguments.timeout,
    };
    let (mut log, mut code) = run_job(&place, &job, deployment.as_ref()).await?;
    if let Some(node) = arguments.from_node.as_deref().filter(|_| code != 2) {
        job.name = random_name("mount");
        job.arguments = vec!["--version".to_owned()];
        job.claim = Some(job.name.clone());
        let findings = mount(&place, &arguments.probe, &job, node, deployment.as_ref()).await?;
        code = code.max(findings.exit_code());
        log = with_findings(&log, &findings, arguments.probe.output, code)?;
    }
    print(log.lines().map(escape).collect::<Vec<_>>().join("\n").as_str())?;
    Ok(ExitCode::from(code))
}

fn no_deployment() -> CommandError {
    CommandError::Usage(
        "no Deployment of the operator was found: set --image and --namespace, or probe from this machine with --local"
            .to_owned(),
    )
}

fn random_name(what: &str) -> String {
    format!("nfs-operator-{what}-{:08x}", rand::rng().random::<u32>())
}

/// Lets the kubelet of a node mount the export for a pod, and removes everything that was created.
async fn mount(
    place: &Place,
    probe: &ProbeArguments,
    job: &ProbeJob,
    node: &str,
    deployment: Option<&Deployment>,
) -> Result<Findings, CommandError> {
    let export = &probe.connection.export;
    let mounted = MountedExport {
        name: &job.name,
        namespace: &place.namespace,
        export,
        options: probe.connection.mount_options(),
    };
    let volumes: Api<PersistentVolume> = Api::all(place.client.clone());
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(place.client.clone(), &place.namespace);
    let mount = async {
        let (parameters, what) = (PostParams::default(), "create a volume for the mount");
        volumes
            .create(&parameters, &mounted.volume())
            .await
            .map_err(failed(what))?;
        claims
            .create(&parameters, &mounted.claim())
            .await
            .map_err(failed(what))?;
        run_job(place, job, deployment).await
    };
    let result = mount.await;
    let removed = [
        remove(&claims, &job.name, "PersistentVolumeClaim").await,
        remove(&volumes, &job.name, "PersistentVolume").await,
    ];
    let mut findings = Findings::default();
    match result {
        Ok((_, 0)) => findings.passed("mount", format!("the kubelet of {node} mounted {export}")),
        Ok((log, code)) => findings.failed("mount", format!("the pod ended with exit code {code}: {log}")),
        Err(error) if place.stop.is_cancelled() => return Err(error),
        Err(CommandError::Refused(cause)) => {
            findings.failed(
                "mount",
                format!("the kubelet of {node} did not mount {export}: {cause}"),
            );
        }
        Err(error @ CommandError::Api { .. }) => {
            findings.add("mount", StepResult::Skipped, error.to_string(), Value::Null);
        }
        Err(error) => return Err(error),
    }
    for error in removed.into_iter().filter_map(Result::err) {
        findings.set_left_behind();
        findings.add("mount", StepResult::Left, error.to_string(), Value::Null);
    }
    Ok(findings)
}

/// Adds findings to the output of the probe.
fn with_findings(log: &str, findings: &Findings, output: OutputFormat, code: u8) -> Result<String, CommandError> {
    if output == OutputFormat::Table {
        return Ok(format!("{}\n{}", log.trim_end(), findings.table_rows(CHECK_WIDTH)));
    }
    let format = |error: serde_json::Error| CommandError::Format(format!("the output of the pod is no JSON: {error}"));
    let mut all: serde_json::Map<String, Value> = serde_json::from_str(log).map_err(format)?;
    all.insert("exitCode".to_owned(), json!(code));
    if let Some(checks) = all.get_mut("checks").and_then(Value::as_array_mut) {
        checks.extend(findings.rows().iter().map(|row| json!(row)));
    }
    serde_json::to_string_pretty(&all).map_err(format)
}

/// Creates a Job, waits until its pod is done, and removes it. Returns the output of the pod and its exit code.
async fn run_job(place: &Place, job: &ProbeJob, deployment: Option<&Deployment>) -> Result<(String, u8), CommandError> {
    let manifest = job.manifest(deployment).ok_or_else(no_deployment)?;
    let jobs: Api<Job> = Api::namespaced(place.client.clone(), &place.namespace);
    let created = jobs.create(&PostParams::default(), &manifest).await;
    // If the answer was lost, the Job may exist; its name is known to nobody else.
    let result = match created {
        Ok(_) => finish(place, job).await,
        Err(error) => Err(failed(format!("create Job {}/{}", place.namespace, job.name))(error)),
    };
    let removed = remove(&jobs, &job.name, "Job").await;
    let done = result?;
    // It is removed automatically within 10 minutes after its end.
    removed?;
    Ok(done)
}

/// Waits until the pod is done. Returns its output and its exit code.
async fn finish(place: &Place, job: &ProbeJob) -> Result<(String, u8), CommandError> {
    let Place {
        client,
        namespace,
        stop,
    } = place;
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    let selector = ListParams::default().labels(&format!("batch.kubernetes.io/job-name={}", job.name));
    // Without the right to read events, only the cause of a wait is missing.
    let events_of = async |name: &str| {
        let about = ListParams::default().fields(&format!("involvedObject.name={name}"));
        events.list(&about).await.map(|list| list.items).unwrap_or_default()
    };
    let look = async || {
        let found = pods.list(&selector).await.map_err(failed("list the pods of the Job"))?;
        let Some(pod) = found.items.first() else {
            return Ok(Progress::Waits(match last_warning(&events_of(&job.name).await) {
                Some(warning) => format!("there is no pod: {warning}"),
                None => "there is no pod yet".to_owned(),
            }));
        };
        match PodState::of(pod) {
            PodState::Waits(_)
                if job.claim.is_some()
                    && let Some(cause) = mount_failure(&events_of(&pod.name_any()).await) =>
            {
                Err(CommandError::Refused(cause))
            }
            PodState::Waits(text) => Ok(Progress::Waits(text)),
            PodState::Refused(text) => Err(CommandError::Refused(text)),
            PodState::Done(code) => Ok(Progress::Done((pod.name_any(), code))),
        }
    };
    let what = format!("the pod of Job {namespace}/{}", job.name);
    let (pod, code) = tokio::select! {
        done = progress::wait_or_text(&what, job.timeout, look) => done?.map_err(|text| {
            CommandError::Refused(format!("{what} did not finish, and is removed: {text}"))
        })?,
        () = stop.cancelled() => return Err(CommandError::Refused("interrupted; the Job is removed".to_owned())),
    };
    let log = pods.logs(&pod, &LogParams::default()).await;
    let log = log.map_err(failed(format!("read the log of Pod {namespace}/{pod}")))?;
    // Only the codes of the probe are passed on; any other is that of a container that was killed.
    match u8::try_from(code) {
        Ok(code @ 0..=3) => Ok((log, code)),
        _ => Err(CommandError::Refused(format!(
            "the probe ended with exit code {code}; its last output: {}",
            log.lines().last().unwrap_or("none")
        ))),
    }
}

/// Deletes what was created for the probe; with a Job, its pod too.
async fn remove<K>(api: &Api<K>, name: &str, kind: &str) -> Result<(), CommandError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let found = reads::get_metadata_opt(api, name).await;
    let found = found.map_err(failed(format!("read {kind} {name}")))?;
    let Some(found) = found else { return Ok(()) };
    let parameters = DeleteParams::background().preconditions(Preconditions {
        uid: found.uid(),
        resource_version: None,
    });
    match api.delete(name, &parameters).await {
        Err(error) if http_status(&error) != Some(404) => {
            Err(failed(format!("remove {kind} {name}, which the probe created"))(error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn the_mount_is_a_row_of_the_table_and_a_check_of_the_document() {
        let mut findings = Findings::default();
        findings.failed("mount", "the kubelet says no");
        let table = with_findings("CHECK RESULT DETAIL\n", &findings, OutputFormat::Table, 1).unwrap();
        assert_eq!(table.lines().count(), 2, "{table}");
        assert!(table.ends_with("mount         FAILED   the kubelet says no"), "{table}");
        let log = json!({"checks": [{"check": "connect"}], "exitCode": 0, "ready": true}).to_string();
        let document = with_findings(&log, &findings, OutputFormat::Json, 1).unwrap();
        let document: Value = serde_json::from_str(&document).unwrap();
        assert_eq!(document["checks"][1]["result"], "failed");
        assert_eq!((&document["exitCode"], &document["ready"]), (&json!(1), &json!(true)));
        assert!(with_findings("killed", &findings, OutputFormat::Json, 1).is_err());
    }
}
