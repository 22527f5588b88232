//! `kubectl nfs scan`, `count`, `accept-identity` and `readopt`: one-shot requests, as annotations of backends.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::names::{age, condition, parse_backend};
use super::progress::{self, Progress};
use crate::api::conditions::BackendCondition;
use crate::api::requests::{BackendRequest, recorded};
use crate::api::{NfsBackend, NfsBackendStatus, OrphanKind};
use crate::cli::cluster::{ClusterArguments, CommandError, all, failed, get};
use crate::cli::duration::parse_duration;
use crate::cli::output::print;
use crate::decide::object_name::is_object_name;
use export_store::text::{counted, escape};

/// Whether to act, and to wait.
#[derive(Args)]
struct RequestArguments {
    /// Only print what would happen, and the annotation that would be written.
    #[arg(long)]
    plan: bool,
    /// Wait until the operator handled the request.
    #[arg(long, conflicts_with = "plan")]
    wait: bool,
    /// Maximum duration of --wait (Go duration).
    #[arg(long, default_value = "10m", value_parser = parse_duration)]
    timeout: Duration,
    #[command(flatten)]
    cluster: ClusterArguments,
}

/// Arguments of `kubectl nfs scan` and `count`.
#[derive(Args)]
pub struct ScanArguments {
    /// Names of the backends.
    #[arg(required_unless_present = "all", value_name = "BACKEND", value_parser = parse_backend)]
    backends: Vec<String>,
    /// All backends.
    #[arg(long, conflicts_with = "backends")]
    all: bool,
    #[command(flatten)]
    request: RequestArguments,
}

/// Arguments of `kubectl nfs accept-identity`.
#[derive(Args)]
pub struct AcceptArguments {
    /// Name of the backend.
    #[arg(value_parser = parse_backend)]
    backend: String,
    /// Identity that the condition of the backend names, or `new` to create one on an export that has none.
    #[arg(value_name = "ID", value_parser = parse_identity)]
    identity: String,
    #[command(flatten)]
    request: RequestArguments,
}

/// Arguments of `kubectl nfs readopt`.
#[derive(Args)]
pub struct ReadoptArguments {
    /// Name of the backend.
    #[arg(value_parser = parse_backend)]
    backend: String,
    /// Names of the lost volumes. If unset, all live records of the backend.
    #[arg(value_name = "VOLUME", value_parser = parse_volume)]
    volumes: Vec<String>,
    #[command(flatten)]
    request: RequestArguments,
}

fn parse_identity(text: &str) -> Result<String, String> {
    let is_allowed = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
    match !text.is_empty() && text.len() <= 64 && text.chars().all(is_allowed) {
        true => Ok(text.to_owned()),
        false => Err("expected the identity in the message of the backend's condition, or `new`".to_owned()),
    }
}

fn parse_volume(text: &str) -> Result<String, String> {
    let name = text.strip_prefix("pv/").unwrap_or(text);
    match is_object_name(name) {
        true => Ok(name.to_owned()),
        false => Err("expected the name of a PersistentVolume, such as pvc-4b2a91f0-…".to_owned()),
    }
}

/// Requests a scan for orphans.
pub async fn scan(arguments: ScanArguments) -> Result<ExitCode, CommandError> {
    request_each(arguments, BackendRequest::Scan, |status| {
        let orphans = status.orphans.as_ref();
        let last = last(orphans.and_then(|orphans| orphans.last_scan_time.as_ref()));
        let found = orphans.map_or(0, |orphans| orphans.total);
        format!(
            "reads the records and directories of {}; changes nothing on the export; last scan: {last}, {}",
            counted(status.volumes.unwrap_or_default(), "volume"),
            counted(found, "orphan"),
        )
    })
    .await
}

/// Requests a usage scan.
pub async fn count(arguments: ScanArguments) -> Result<ExitCode, CommandError> {
    request_each(arguments, BackendRequest::Count, |status| {
        let last = last(status.usage.as_ref().and_then(|usage| usage.last_completion_time.as_ref()));
        format!(
            "reads every file's attributes of {}, at the rate of --count-rate; changes nothing on the export; last count: {last}",
            counted(status.volumes.unwrap_or_default(), "volume"),
        )
    })
    .await
}

fn last(time: Option<&Time>) -> String {
    time.map_or_else(
        || "never".to_owned(),
        |time| format!("{} ago", age(time, Timestamp::now())),
    )
}

async fn request_each(
    arguments: ScanArguments,
    request: BackendRequest,
    effect: impl Fn(&NfsBackendStatus) -> String,
) -> Result<ExitCode, CommandError> {
    let api: Api<NfsBackend> = Api::all(arguments.request.cluster.client().await?);
    let mut backends = Vec::new();
    for name in &arguments.backends {
        backends.push(get(&api, name, &format!("NfsBackend {name}")).await?);
    }
    if arguments.all {
        backends = all(&api, "NfsBackends").await?;
    }
    let value = now();
    for backend in &backends {
        if request == BackendRequest::Count && backend.spec.usage.is_none() {
            return Err(CommandError::Refused(format!(
                "backend {} does not count: set spec.usage, for example {{interval: 24h}}",
                backend.name_any()
            )));
        }
    }
    for backend in &backends {
        let effect = effect(backend.status.as_ref().unwrap_or(&NfsBackendStatus::default()));
        make(&api, backend, request, &value, &effect, &arguments.request).await?;
    }
    for backend in &backends {
        wait(&api, backend, request, &value, &arguments.request).await?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Accepts another identity of an export.
pub async fn accept_identity(arguments: AcceptArguments) -> Result<ExitCode, CommandError> {
    let api: Api<NfsBackend> = Api::all(arguments.request.cluster.client().await?);
    let backend = get(&api, &arguments.backend, &format!("NfsBackend {}", arguments.backend)).await?;
    let status = backend.status.clone().unwrap_or_default();
    let expected = backend.spec.export_id.clone().or(status.export.id.clone());
    let expected = expected.unwrap_or_else(|| "none".to_owned());
    let identity = &arguments.identity;
    if backend.spec.export_id.as_ref().is_some_and(|pinned| pinned != identity) {
        return Err(CommandError::Refused(format!(
            "spec.exportID of backend {} pins the identity {expected}: change or remove it first",
            arguments.backend
        )));
    }
    // A request for an export that the backend did not find would stay open, and accept such an export whenever it appears.
    let asks_for_it = status.export.acceptable_id.as_ref() == Some(identity);
    let confirmed = condition(&status.conditions, &BackendCondition::IdentityConfirmed.to_string());
    let reported = confirmed.filter(|condition| condition.status != "True");
    let Some(Condition { reason, message, .. }) = reported.filter(|_| asks_for_it) else {
        return Err(CommandError::Refused(match reported {
            Some(Condition { reason, message, .. }) => format!(
                "backend {} does not ask for the identity {identity}: {reason}: {message}",
                arguments.backend
            ),
            None => format!(
                "backend {} has its expected export, {expected}: there is nothing to accept",
                arguments.backend
            ),
        }));
    };
    let effect = format!(
        "accepts the export with the identity {identity} in the place of {expected}; volumes whose directories are not on it \
         stay as they are, and cannot be reclaimed; the backend reports {reason}: {message}"
    );
    // The same identity may have been accepted before: the text behind the @ makes it a new request.
    let value = format!("{identity}@{}", now());
    make(
        &api,
        &backend,
        BackendRequest::AcceptIdentity,
        &value,
        &effect,
        &arguments.request,
    )
    .await?;
    wait(
        &api,
        &backend,
        BackendRequest::AcceptIdentity,
        &value,
        &arguments.request,
    )
    .await?;
    Ok(ExitCode::SUCCESS)
}

/// Requests that lost volumes are recreated.
pub async fn readopt(arguments: ReadoptArguments) -> Result<ExitCode, CommandError> {
    let api: Api<NfsBackend> = Api::all(arguments.request.cluster.client().await?);
    let backend = get(&api, &arguments.backend, &format!("NfsBackend {}", arguments.backend)).await?;
    let status = backend.status.clone().unwrap_or_default();
    let lost = status.orphans.iter().flat_map(|orphans| &orphans.kinds);
    let is_lost = |kind| {
        matches!(
            kind,
            OrphanKind::DirectoryWithoutVolume | OrphanKind::SharedDirectoryWithoutVolume
        )
    };
    let lost = lost.filter(|kind| is_lost(kind.kind));
    let lost: Vec<String> = lost
        .map(|kind| {
            let names: Vec<&str> = kind.examples.iter().map(|orphan| orphan.volume.as_str()).collect();
            format!("{} by the last scan: {}", kind.count, names.join(", "))
        })
        .collect();
    let lost = match lost.is_empty() {
        true => "none known by the last scan".to_owned(),
        false => lost.join("; "),
    };
    let which = match arguments.volumes.as_slice() {
        [] => "of all live records of the backend that have none".to_owned(),
        names => names.join(", "),
    };
    let effect = format!(
        "recreates PersistentVolumes {which}; claims that the backend could serve wait meanwhile; directories without a \
         volume: {lost}"
    );
    let (request, value) = match arguments.volumes.as_slice() {
        [] => (BackendRequest::Readopt, now()),
        names => (BackendRequest::ReadoptVolumes, format!("{}@{}", names.join(","), now())),
    };
    make(&api, &backend, request, &value, &effect, &arguments.request).await?;
    wait(&api, &backend, request, &value, &arguments.request).await?;
    Ok(ExitCode::SUCCESS)
}

/// Returns a value that no earlier request had.
fn now() -> String {
    Timestamp::now().to_string()
}

/// Writes the annotation, or prints what it would do.
async fn make(
    api: &Api<NfsBackend>,
    backend: &NfsBackend,
    request: BackendRequest,
    value: &str,
    effect: &str,
    arguments: &RequestArguments,
) -> Result<(), CommandError> {
    let name = backend.name_any();
    if arguments.plan {
        print(&format!("{name}: {}", escape(effect)))?;
        print(&format!("{name}: would set {}={value}", request.annotation()))?;
        return Ok(());
    }
    if let Some(open) = request.unhandled(backend) {
        eprintln!("{name}: replaces the open request {}", escape(open));
    }
    // With the UID, so that a successor of the same name is not asked for what was decided about this one.
    let patch = json!({"metadata": {"uid": backend.uid(), "annotations": {request.annotation(): value}}});
    let patched = api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
    patched.map_err(failed(format!("annotate NfsBackend {name}")))?;
    print(&format!("{name}: requested {}", request.name()))?;
    Ok(())
}

/// Waits until the status lists the value as handled.
async fn wait(
    api: &Api<NfsBackend>,
    backend: &NfsBackend,
    request: BackendRequest,
    value: &str,
    arguments: &RequestArguments,
) -> Result<(), CommandError> {
    if !arguments.wait {
        return Ok(());
    }
    let name = backend.name_any();
    let what = format!("{} of NfsBackend {name}", request.name());
    let object = format!("NfsBackend {name}");
    progress::wait(&what, arguments.timeout, async || {
        let found = get(api, &name, &object).await?;
        let status = found.status.clone().unwrap_or_default();
        let mut handled = status
            .handled_requests
            .iter()
            .filter(|handled| handled.name == request.name());
        if handled.any(|handled| handled.value == recorded(value)) {
            return Ok(Progress::Done(()));
        }
        if request.value(&found) != Some(value) {
            return Err(CommandError::Refused(format!("{what} was replaced by another request")));
        }
        let ready = condition(&status.conditions, "Ready");
        Ok(Progress::Waits(match ready {
            Some(ready) if ready.status == "True" => "the operator has not handled it yet".to_owned(),
            Some(ready) => format!("the backend is {}: {}", ready.reason, ready.message),
            None => "the backend was not probed yet".to_owned(),
        }))
    })
    .await?;
    print(&format!("{name}: {} is done", request.name()))?;
    Ok(())
}
