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
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{DeleteParams, ListParams, LogParams, PostParams, Preconditions};
use kube::{Api, Client, ResourceExt};
use rand::RngExt;
use tokio_util::sync::CancellationToken;

use self::job::ProbeJob;
use self::pod::{PodState, admission_refusal, last_warning, mount_failure};
use super::operator::{self, OperatorArguments};
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

The pod runs what the operator's Deployment runs, so that Deployment must not be anybody else's: it is looked for only in the
namespace of the operator, which the cluster lock names, or --operator-namespace.

A node mounts a volume as root, and often with another address than its pods. --from-node therefore ends with a mount: a
second pod on that node has the export as a read-only volume, which the kubelet mounts. Neither pod has privileges. Namespaces
that enforce the Pod Security Standard `restricted` admit no such volume: select another one with --mount-namespace.",
    after_help = EXIT_CODES
)]
pub struct JobArguments {
    #[command(flatten)]
    probe: ProbeArguments,
    /// Probe from this machine instead. Needs no cluster.
    #[arg(long, conflicts_with_all = ["image", "namespace", "operator_namespace", "from_node"])]
    local: bool,
    /// Image of the operator. If unset, that of its Deployment.
    #[arg(long)]
    image: Option<String>,
    /// Namespace in which to create the Job. If unset, that of the operator's Deployment. Elsewhere, the pod has the settings of
    /// the Deployment, but not the operator's account.
    #[arg(long, short)]
    namespace: Option<String>,
    /// Run the pod on this node, whatever taints it has, and then let the kubelet of this node mount the export.
    #[arg(long, value_name = "NODE")]
    from_node: Option<String>,
    /// Namespace of the pod that has the export as a volume. If unset, that of the Job.
    #[arg(long, value_name = "NAMESPACE", requires = "from_node")]
    mount_namespace: Option<String>,
    /// Maximum duration until a pod is done (Go duration). Its Job is then removed.
    #[arg(long, default_value = "3m", value_parser = parse_duration)]
    timeout: Duration,
    #[command(flatten)]
    operator: OperatorArguments,
    #[command(flatten)]
    cluster: ClusterArguments,
}

/// How a Job ended.
pub enum JobEnd {
    /// Its container ended.
    Exited {
        /// Output of the program.
        log: String,
        /// Exit code of the program.
        code: i32,
    },
    /// The API server does not admit its pod.
    NotAdmitted(String),
    /// The kubelet cannot mount the volume of its pod; the text is the kubelet's.
    NotMounted(String),
    /// The pod failed without having run.
    Failed(String),
    /// It was not done in time; the text says what it waits for.
    TimedOut(String),
}

impl JobEnd {
    /// Returns the output and the exit code of a probe.
    fn probe_output(self, what: &str) -> Result<(String, u8), CommandError> {
        let text = match self {
            Self::Exited { log, code } => {
                // Only the codes of the probe are passed on; any other is that of a container that was killed.
                return match u8::try_from(code) {
                    Ok(code @ 0..=3) => Ok((log, code)),
                    _ => Err(CommandError::Refused(format!(
                        "the probe ended with exit code {code}; its last output: {}",
                        log.lines().last().unwrap_or("none")
                    ))),
                };
            }
            Self::Failed(text) => text,
            Self::NotAdmitted(text) => format!("{what} has no pod: {text}"),
            Self::NotMounted(text) | Self::TimedOut(text) => {
                format!("the pod of {what} did not finish, and is removed: {text}")
            }
        };
        Err(CommandError::Refused(text))
    }
}

/// The operator, whose pods the pod of a probe is like.
struct Operator {
    namespace: String,
    deployment: Deployment,
}

impl Operator {
    /// Returns the operator, or why there is none whose Deployment may decide what runs.
    async fn find(client: &Client, arguments: &OperatorArguments) -> Result<Result<Self, String>, CommandError> {
        let namespace = match operator::find_namespace(client, arguments).await? {
            Ok(namespace) => namespace,
            Err(unknown) => {
                return Ok(Err(format!(
                    "{unknown}, and Deployments of other namespaces are not used, because tenants can give theirs the label of \
                     the operator"
                )));
            }
        };
        let found = operator::find_deployment(client, &namespace).await?;
        Ok(match found {
            Some(deployment) => Ok(Self { namespace, deployment }),
            None => Err(format!("namespace {namespace} has no Deployment of the operator")),
        })
    }
}

/// Runs the probe, and prints what it printed. Returns its exit code.
pub async fn run(arguments: JobArguments) -> Result<ExitCode, CommandError> {
    if arguments.local {
        return Ok(probe::run(arguments.probe).await);
    }
    let stop = shutdown_signal()?;
    let client = arguments.cluster.client().await?;
    let found = Operator::find(&client, &arguments.operator).await?;
    let deployment = found.as_ref().map(|operator| &operator.deployment).ok();
    let home = found.as_ref().map(|operator| &operator.namespace).ok();
    let namespace = arguments.namespace.as_ref().or(home);
    let mut probe_job = ProbeJob {
        name: format!("nfs-operator-probe-{:08x}", rand::rng().random::<u32>()),
        arguments: arguments.probe.as_arguments(),
        image: arguments.image.clone(),
        node: arguments.from_node.clone(),
        has_account: namespace == home,
        mount: None,
        timeout: arguments.timeout,
    };
    let (Some(namespace), Some(manifest)) = (namespace, probe_job.manifest(deployment)) else {
        return Err(CommandError::Usage(format!(
            "{}: set --operator-namespace, or --image and --namespace, or probe from this machine with --local",
            found
                .err()
                .unwrap_or_else(|| "the Deployment of the operator has no image".to_owned())
        )));
    };
    if let Err(cause) = &found {
        let note = format!("the pod has the defaults of the chart: {cause}");
        eprintln!("kubectl nfs: {}", escape(&note));
    }
    let what = format!("Job {namespace}/{}", probe_job.name);
    let end = run_job(&client, namespace, &probe_job, &manifest, &stop).await?;
    let (log, code) = end.probe_output(&what)?;
    // Arguments that the probe refused say nothing about an export.
    let Some(node) = arguments.from_node.as_deref().filter(|_| code != 2) else {
        print_lines(&log)?;
        return Ok(ExitCode::from(code));
    };
    let findings = if let Some(findings) = mount::unsupported(&arguments.probe.connection) {
        Ok(findings)
    } else {
        probe_job.name.push_str("-mount");
        // Without the mount, the container does not start, whatever the program does.
        probe_job.arguments = vec!["--version".to_owned()];
        probe_job.mount = Some(arguments.probe.connection.export.clone());
        probe_job.has_account = false;
        let namespace = arguments.mount_namespace.as_ref().unwrap_or(namespace);
        match probe_job.manifest(deployment) {
            Some(manifest) => run_job(&client, namespace, &probe_job, &manifest, &stop)
                .await
                .map(|end| mount::finding(node, end, arguments.timeout)),
            None => return Err(CommandError::Format("the Job of the mount has no image".to_owned())),
        }
    };
    match findings {
        Ok(findings) => {
            let appended = mount::append(&log, code, arguments.probe.output, &findings);
            let (text, code) =
                appended.map_err(|error| CommandError::Format(format!("output of the probe: {error}")))?;
            print_lines(&text)?;
            Ok(ExitCode::from(code))
        }
        Err(error) => {
            print_lines(&log)?;
            Err(error)
        }
    }
}

fn print_lines(text: &str) -> std::io::Result<()> {
    print(text.lines().map(escape).collect::<Vec<_>>().join("\n").as_str())
}

/// Creates a Job, waits until its pod is done, and removes both.
async fn run_job(
    client: &Client,
    namespace: &str,
    job: &ProbeJob,
    manifest: &Job,
    stop: &CancellationToken,
) -> Result<JobEnd, CommandError> {
    let jobs: Api<Job> = Api::namespaced(client.clone(), namespace);
    let what = format!("Job {namespace}/{}", job.name);
    let created = jobs.create(&PostParams::default(), manifest).await;
    // If the answer was lost, the Job may exist; its name is known to nobody else.
    let result = match created {
        Ok(_) => finish(client, namespace, job, stop).await,
        Err(error) => Err(failed(format!("create {what}"))(error)),
    };
    let removed = remove(&jobs, &job.name, &what).await;
    let end = result?;
    if let Err(error) = removed {
        // What was found is worth more than a Job that the cluster removes itself.
        eprintln!("kubectl nfs: {}", escape(&error.to_string()));
    }
    Ok(end)
}

/// The end of a wait for a pod.
enum Look {
    /// The container of this pod ended; its log is still to be read.
    Exited { pod: String, code: i32 },
    /// There is no log.
    Ended(JobEnd),
}

/// Waits until the pod is done.
async fn finish(
    client: &Client,
    namespace: &str,
    job: &ProbeJob,
    stop: &CancellationToken,
) -> Result<JobEnd, CommandError> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    let selector = ListParams::default().labels(&format!("batch.kubernetes.io/job-name={}", job.name));
    let events_of = async |name: &str| {
        let about = ListParams::default().fields(&format!("involvedObject.name={name}"));
        // Without the right to read events, only the cause is missing.
        events.list(&about).await.map(|list| list.items).unwrap_or_default()
    };
    let look = async || {
        let found = pods.list(&selector).await.map_err(failed("list the pods of the Job"))?;
        let Some(pod) = found.items.first() else {
            let events = events_of(&job.name).await;
            return Ok(match (admission_refusal(&events), last_warning(&events)) {
                (Some(refusal), _) => Progress::Done(Look::Ended(JobEnd::NotAdmitted(refusal))),
                (None, Some(warning)) => Progress::Waits(format!("there is no pod: {warning}")),
                (None, None) => Progress::Waits("there is no pod yet".to_owned()),
            });
        };
        let name = pod.name_any();
        Ok(match PodState::of(pod) {
            PodState::Waits(text) if job.mount.is_some() => match mount_failure(&events_of(&name).await) {
                Some(failure) => Progress::Done(Look::Ended(JobEnd::NotMounted(failure))),
                None => Progress::Waits(text),
            },
            PodState::Waits(text) => Progress::Waits(text),
            PodState::Refused(text) => Progress::Done(Look::Ended(JobEnd::Failed(text))),
            PodState::Done(code) => Progress::Done(Look::Exited { pod: name, code }),
        })
    };
    let what = format!("the pod of Job {namespace}/{}", job.name);
    let done = tokio::select! {
        done = progress::wait_or_text(&what, job.timeout, look) => done?,
        () = stop.cancelled() => return Err(CommandError::Refused("interrupted; the Job is removed".to_owned())),
    };
    match done {
        Ok(Look::Exited { pod, code }) => {
            let log = pods.logs(&pod, &LogParams::default()).await;
            let log = log.map_err(failed(format!("read the log of Pod {namespace}/{pod}")))?;
            Ok(JobEnd::Exited { log, code })
        }
        Ok(Look::Ended(end)) => Ok(end),
        Err(text) => Ok(JobEnd::TimedOut(text)),
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
