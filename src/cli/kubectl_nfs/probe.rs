//! `kubectl nfs probe`: an export as a pod of the operator sees it.

mod job;
mod pod;

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use export_store::text::escape;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{DeleteParams, ListParams, LogParams, PostParams, Preconditions};
use kube::{Api, Client, ResourceExt};
use rand::RngExt;
use tokio_util::sync::CancellationToken;

use self::job::ProbeJob;
use self::pod::{PodState, last_warning};
use super::operator;
use super::progress::{self, Progress};
use crate::cli::cluster::{ClusterArguments, CommandError, failed};
use crate::cli::duration::parse_duration;
use crate::cli::output::print;
use crate::cli::probe::{self, EXIT_CODES, ProbeArguments};
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

A node mounts a volume as root, and often with another address than its pods. A pod without privileges cannot mount:
--from-node shows what the network and the server allow a pod on that node, and no more.",
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
    /// Run the pod on this node, whatever taints it has. The export is not mounted, which needs privileges.
    #[arg(long, value_name = "NODE")]
    from_node: Option<String>,
    /// Maximum duration until the pod is done (Go duration). The Job is then removed.
    #[arg(long, default_value = "3m", value_parser = parse_duration)]
    timeout: Duration,
    #[command(flatten)]
    cluster: ClusterArguments,
}

/// Runs the probe, and prints what it printed. Returns its exit code.
pub async fn run(arguments: JobArguments) -> Result<ExitCode, CommandError> {
    if arguments.local {
        return Ok(probe::run(arguments.probe).await);
    }
    let stop = shutdown_signal()?;
    let client = arguments.cluster.client().await?;
    let deployment = operator::find_deployment(&client, arguments.namespace.as_deref()).await?;
    let probe_job = ProbeJob {
        name: format!("nfs-operator-probe-{:08x}", rand::rng().random::<u32>()),
        arguments: arguments.probe.as_arguments(),
        image: arguments.image.clone(),
        node: arguments.from_node.clone(),
        timeout: arguments.timeout,
    };
    let namespace = arguments.namespace.clone();
    let namespace = namespace.or_else(|| deployment.as_ref().and_then(ResourceExt::namespace));
    let (Some(namespace), Some(manifest)) = (namespace, probe_job.manifest(deployment.as_ref())) else {
        return Err(CommandError::Usage(
            "no Deployment of the operator was found: set --image and --namespace, or probe from this machine with --local"
                .to_owned(),
        ));
    };
    let jobs: Api<Job> = Api::namespaced(client.clone(), &namespace);
    let what = format!("Job {namespace}/{}", probe_job.name);
    let created = jobs.create(&PostParams::default(), &manifest).await;
    // If the answer was lost, the Job may exist; its name is known to nobody else.
    let result = match created {
        Ok(_) => finish(&client, &namespace, &probe_job, &stop).await,
        Err(error) => Err(failed(format!("create {what}"))(error)),
    };
    let removed = remove(&jobs, &probe_job.name, &what).await;
    let (log, code) = result?;
    print(log.lines().map(escape).collect::<Vec<_>>().join("\n").as_str())?;
    removed?;
    Ok(ExitCode::from(code))
}

/// Waits until the pod is done. Returns its output and its exit code.
async fn finish(
    client: &Client,
    namespace: &str,
    job: &ProbeJob,
    stop: &CancellationToken,
) -> Result<(String, u8), CommandError> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    let selector = ListParams::default().labels(&format!("batch.kubernetes.io/job-name={}", job.name));
    let look = async || {
        let found = pods.list(&selector).await.map_err(failed("list the pods of the Job"))?;
        let Some(pod) = found.items.first() else {
            let about = ListParams::default().fields(&format!("involvedObject.name={}", job.name));
            // Without the right to read events, only the cause is missing.
            let events = events.list(&about).await.map(|list| list.items).unwrap_or_default();
            return Ok(Progress::Waits(match last_warning(&events) {
                Some(warning) => format!("there is no pod: {warning}"),
                None => "there is no pod yet".to_owned(),
            }));
        };
        match PodState::of(pod) {
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

/// Deletes the Job and its pod.
async fn remove(jobs: &Api<Job>, name: &str, what: &str) -> Result<(), CommandError> {
    let found = reads::get_metadata_opt(jobs, name).await;
    let found = found.map_err(failed(format!("read {what}")))?;
    let Some(found) = found else { return Ok(()) };
    let parameters = DeleteParams::background().preconditions(Preconditions {
        uid: found.uid(),
        resource_version: None,
    });
    match jobs.delete(name, &parameters).await {
        Err(error) if http_status(&error) != Some(404) => Err(failed(format!(
            "remove {what}, which is removed automatically within 10 minutes after its end"
        ))(error)),
        _ => Ok(()),
    }
}
