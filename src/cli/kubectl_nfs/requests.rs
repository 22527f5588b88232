//! `kubectl nfs scan`, `count`, `accept-identity`, `accept-directories` and `readopt`: one-shot requests, as annotations of backends.

mod refusals;

use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgGroup, Args};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::changes::{Change, ChangeState, Changes, print_changes};
use super::completion::object_names;
use super::names::{age, condition, parse_backend, seconds_as_age};
use super::progress::{self, Progress};
use crate::api::conditions::BackendCondition;
use crate::api::orphans::OrphansOfKind;
use crate::api::requests::{ALL, BackendRequest, HandledRequest};
use crate::api::{NfsBackend, NfsBackendStatus, OrphanKind, OrphansStatus};
use crate::background::orphan_scan::CHECKS_PER_SECOND;
use crate::cli::cluster::{ClusterArguments, CommandError, all, failed, get};
use crate::cli::duration::parse_duration;
use crate::cli::output::OutputFormat;
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
    /// Maximum duration of --wait (Go duration). A scan of 10,000 volumes takes 17 minutes, and one that runs already ends first.
    #[arg(long, default_value = "24h", value_parser = parse_duration)]
    timeout: Duration,
    /// Output format.
    #[arg(long, short, value_enum, default_value = "table")]
    output: OutputFormat,
    #[command(flatten)]
    cluster: ClusterArguments,
}

/// Arguments of `kubectl nfs scan` and `count`.
#[derive(Args)]
#[command(group(ArgGroup::new("which").required(true).args(["backends", "all"])))]
pub struct ScanArguments {
    /// Names of the backends.
    #[arg(value_name = "BACKEND", value_parser = parse_backend, add = object_names::backends())]
    backends: Vec<String>,
    /// All backends.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    request: RequestArguments,
}

/// Arguments of `kubectl nfs accept-identity`.
#[derive(Args)]
pub struct AcceptArguments {
    /// Name of the backend.
    #[arg(value_parser = parse_backend, add = object_names::backends())]
    backend: String,
    /// Identity that the condition of the backend names, or `new` to create one on an export that has none.
    #[arg(value_name = "ID", value_parser = parse_identity)]
    identity: String,
    #[command(flatten)]
    request: RequestArguments,
}

/// Arguments of `kubectl nfs accept-directories`.
#[derive(Args)]
#[command(
    group(ArgGroup::new("which").required(true).args(["volumes", "all"])),
    override_usage = "kubectl nfs accept-directories [OPTIONS] <BACKEND> <VOLUME...|--all>"
)]
pub struct AcceptDirectoriesArguments {
    /// Name of the backend.
    #[arg(value_parser = parse_backend, add = object_names::backends())]
    backend: String,
    /// Names of the volumes and archives whose directories are accepted.
    #[arg(value_name = "VOLUME", value_parser = parse_volume)]
    volumes: Vec<String>,
    /// All volumes and archives of the backend.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    request: RequestArguments,
}

/// Arguments of `kubectl nfs readopt`.
#[derive(Args)]
pub struct ReadoptArguments {
    /// Name of the backend.
    #[arg(value_parser = parse_backend, add = object_names::backends())]
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
        let last = match last_scan(status) {
            None => "not scanned yet".to_owned(),
            Some((time, orphans)) => format!("last scan: {}, {}", ago(time), counted(orphans.total, "orphan")),
        };
        format!(
            "reads the records and directories of {}; changes nothing on the export; {last}",
            counted(status.volumes.unwrap_or_default(), "volume"),
        )
    })
    .await
}

/// Requests a usage scan.
pub async fn count(arguments: ScanArguments) -> Result<ExitCode, CommandError> {
    request_each(arguments, BackendRequest::Count, |status| {
        format!(
            "reads every file's attributes of {}, at the rate of --count-rate; changes nothing on the export; {}",
            counted(status.volumes.unwrap_or_default(), "volume"),
            last_count(status),
        )
    })
    .await
}

/// Returns the last scan, if there was one.
fn last_scan(status: &NfsBackendStatus) -> Option<(&Time, &OrphansStatus)> {
    let orphans = status.orphans.as_ref()?;
    Some((orphans.last_scan_time.as_ref()?, orphans))
}

fn last_count(status: &NfsBackendStatus) -> String {
    let usage = status.usage.as_ref();
    match usage.and_then(|usage| usage.last_completion_time.as_ref()) {
        None => "not counted yet".to_owned(),
        Some(time) => format!("last count: {}", ago(time)),
    }
}

fn ago(time: &Time) -> String {
    format!("{} ago", age(time, Timestamp::now()))
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
    for backend in &backends {
        if request == BackendRequest::Count && backend.spec.usage.is_none() {
            return Err(CommandError::Refused(format!(
                "backend {} does not count: set spec.usage, for example {{interval: 24h}}",
                backend.name_any()
            )));
        }
    }
    print_changes(arguments.request.output, async |changes| {
        let mut requests = Vec::new();
        for backend in backends {
            let effect = effect(backend.status.as_ref().unwrap_or(&NfsBackendStatus::default()));
            let made = Request {
                api: &api,
                backend,
                request,
                value: now(),
            };
            made.make(&effect, &arguments.request, changes).await?;
            requests.push(made);
        }
        for made in &requests {
            made.wait(&arguments.request, changes).await?;
        }
        Ok(())
    })
    .await
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
    let request = Request {
        api: &api,
        backend,
        request: BackendRequest::AcceptIdentity,
        value,
    };
    request.run(&effect, &arguments.request).await
}

/// Accepts directories that have other fileids than recorded.
pub async fn accept_directories(arguments: AcceptDirectoriesArguments) -> Result<ExitCode, CommandError> {
    let api: Api<NfsBackend> = Api::all(arguments.request.cluster.client().await?);
    let backend = get(&api, &arguments.backend, &format!("NfsBackend {}", arguments.backend)).await?;
    let (which, names) = match arguments.all {
        true => ("all volumes and archives of the backend".to_owned(), ALL.to_owned()),
        false => (arguments.volumes.join(", "), arguments.volumes.join(",")),
    };
    let Some(status) = backend.status.clone() else {
        return Err(CommandError::Refused(format!(
            "backend {} has reported nothing yet that could be accepted: wait until the operator has probed it",
            arguments.backend
        )));
    };
    let others = [
        OrphanKind::VolumeWithOtherDirectory,
        OrphanKind::RecordWithOtherDirectory,
        OrphanKind::ArchiveWithOtherDirectory,
    ];
    let others = found_orphans(&status, &arguments.backend, &others, &arguments.volumes);
    let effect = format!(
        "takes the directories that now have the paths of {which} for theirs: released volumes are then archived or \
         deleted by their policy, and archives can be restored and expire; with another directory: {others}"
    );
    let request = Request {
        api: &api,
        backend,
        request: BackendRequest::AcceptDirectories,
        value: format!("{names}@{}", now()),
    };
    request.run(&effect, &arguments.request).await
}

/// Requests that lost volumes are recreated.
pub async fn readopt(arguments: ReadoptArguments) -> Result<ExitCode, CommandError> {
    let api: Api<NfsBackend> = Api::all(arguments.request.cluster.client().await?);
    let backend = get(&api, &arguments.backend, &format!("NfsBackend {}", arguments.backend)).await?;
    let status = backend.status.clone().unwrap_or_default();
    let lost = [
        OrphanKind::DirectoryWithoutVolume,
        OrphanKind::SharedDirectoryWithoutVolume,
    ];
    let lost = found_orphans(&status, &arguments.backend, &lost, &arguments.volumes);
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
    let request = Request {
        api: &api,
        backend,
        request,
        value,
    };
    request.run(&effect, &arguments.request).await
}

/// Describes the orphans of some kinds that the last scan found. If there are `names`, only those with these names.
fn found_orphans(status: &NfsBackendStatus, backend: &str, kinds: &[OrphanKind], names: &[String]) -> String {
    let Some((_, orphans)) = last_scan(status) else {
        return format!("not scanned yet: kubectl nfs scan {backend} --wait");
    };
    let found = orphans.kinds.iter().filter(|found| kinds.contains(&found.kind));
    if !names.is_empty() {
        return found_named(&found.collect::<Vec<_>>(), names);
    }
    let found = found.map(|found| {
        let names: Vec<&str> = found.examples.iter().map(|orphan| orphan.volume.as_str()).collect();
        format!("{} by the last scan: {}", found.count, names.join(", "))
    });
    match found.collect::<Vec<_>>() {
        none if none.is_empty() => "none known by the last scan".to_owned(),
        some => some.join("; "),
    }
}

/// Describes which of the named orphans the last scan found. It lists only some of many.
fn found_named(found: &[&OrphansOfKind], names: &[String]) -> String {
    let listed = |name: &&String| {
        let mut examples = found.iter().flat_map(|found| &found.examples);
        examples.any(|orphan| orphan.volume == **name)
    };
    let named: Vec<&str> = names.iter().filter(listed).map(String::as_str).collect();
    let is_complete = found
        .iter()
        .all(|found| usize::try_from(found.count) == Ok(found.examples.len()));
    let named = match named.as_slice() {
        [] => "none of them".to_owned(),
        named => named.join(", "),
    };
    match is_complete {
        true => format!("{named} by the last scan"),
        false => format!("{named} by the last scan, which lists only some: see the log of the operator"),
    }
}

/// Returns a value that no earlier request had.
fn now() -> String {
    Timestamp::now().to_string()
}

/// A request on a backend.
struct Request<'a> {
    api: &'a Api<NfsBackend>,
    backend: NfsBackend,
    request: BackendRequest,
    value: String,
}

impl Request<'_> {
    /// Makes a single request, and waits for it.
    async fn run(&self, effect: &str, arguments: &RequestArguments) -> Result<ExitCode, CommandError> {
        print_changes(arguments.output, async |changes| {
            self.make(effect, arguments, changes).await?;
            self.wait(arguments, changes).await
        })
        .await
    }

    fn change(&self, state: ChangeState, message: String) -> Change {
        Change {
            object: format!("nfsbackend/{}", self.backend.name_any()),
            namespace: None,
            request: self.request.annotation().to_owned(),
            value: json!(self.value),
            state,
            message,
        }
    }

    /// Writes the annotation, or prints what it would do.
    async fn make(
        &self,
        effect: &str,
        arguments: &RequestArguments,
        changes: &mut Changes,
    ) -> Result<(), CommandError> {
        let (name, annotation) = (self.backend.name_any(), self.request.annotation());
        if arguments.plan {
            let effect = escape(effect);
            let text = format!("{name}: {effect}\n{name}: would set {annotation}={}", self.value);
            return Ok(changes.add(self.change(ChangeState::Planned, text))?);
        }
        if let Some(open) = self.request.unhandled(&self.backend) {
            eprintln!("{name}: replaces the open request {}", escape(open));
        }
        // With the UID, so that a successor of the same name is not asked for what was decided about this one.
        let patch = json!({"metadata": {"uid": self.backend.uid(), "annotations": {annotation: self.value}}});
        let patched = self
            .api
            .patch(&name, &PatchParams::default(), &Patch::Merge(patch))
            .await;
        patched.map_err(failed(format!("annotate NfsBackend {name}")))?;
        let text = format!("{name}: requested {}", self.request.name());
        Ok(changes.add(self.change(ChangeState::Requested, text))?)
    }

    /// Waits until the status lists the value as handled.
    async fn wait(&self, arguments: &RequestArguments, changes: &mut Changes) -> Result<(), CommandError> {
        if !arguments.wait {
            return Ok(());
        }
        let (name, request) = (self.backend.name_any(), self.request.name());
        let what = format!("{request} of NfsBackend {name}");
        let object = format!("NfsBackend {name}");
        let handled = progress::wait(&what, arguments.timeout, async || {
            let found = get(self.api, &name, &object).await?;
            let status = found.status.clone().unwrap_or_default();
            let mut handled = status.handled_requests.iter();
            if handled.any(|handled| handled.name == request && handled.is_of(&self.value)) {
                return Ok(Progress::Done(status));
            }
            if self.request.value(&found) != Some(&self.value) {
                return Err(CommandError::Refused(format!("{what} was replaced by another request")));
            }
            Ok(Progress::Waits(describe_progress(self.request, &status)))
        })
        .await?;
        if let Some(refusal) = self.refusal(&handled).await? {
            return Ok(changes.add(refusal)?);
        }
        let result = match self.request {
            BackendRequest::Readopt | BackendRequest::ReadoptVolumes => {
                let readopted = condition(&handled.conditions, &BackendCondition::Readopted.to_string());
                readopted.map(|condition| format!(": {}", condition.message))
            }
            BackendRequest::Scan => {
                last_scan(&handled).map(|(_, orphans)| format!(": {}", counted(orphans.total, "orphan")))
            }
            request => {
                let result = handled_request(request, &handled).and_then(|handled| handled.result.as_ref());
                result.map(|result| format!(": {result}"))
            }
        };
        let result = result.unwrap_or_default();
        let text = format!("{name}: {request} is done{}", escape(&result));
        Ok(changes.add(self.change(ChangeState::Done, text))?)
    }

    /// Returns the change with the reasons if the operator did not accept some of the directories.
    async fn refusal(&self, status: &NfsBackendStatus) -> Result<Option<Change>, CommandError> {
        let handled = handled_request(BackendRequest::AcceptDirectories, status);
        let Some(handled) = handled.filter(|_| self.request == BackendRequest::AcceptDirectories) else {
            return Ok(None);
        };
        let result = handled.result.as_deref().unwrap_or_default();
        let refused = refusals::count(result);
        if refused == 0 {
            return Ok(None);
        }
        let (name, client) = (self.backend.name_any(), self.api.clone().into_client());
        let reasons = refusals::reasons(&client, &name, handled, refused).await?;
        let text = format!(
            "{name}: {} is handled: {result}\n{}",
            self.request.name(),
            reasons.join("\n")
        );
        Ok(Some(self.change(ChangeState::Refused, text)))
    }
}

fn handled_request(request: BackendRequest, status: &NfsBackendStatus) -> Option<&HandledRequest> {
    let mut handled = status.handled_requests.iter();
    handled.find(|handled| handled.name == request.name())
}

/// Describes how far a request is, as the status of its backend shows it.
fn describe_progress(request: BackendRequest, status: &NfsBackendStatus) -> String {
    match condition(&status.conditions, "Ready") {
        None => return "the backend was not probed yet".to_owned(),
        Some(ready) if ready.status != "True" => return format!("the backend is {}: {}", ready.reason, ready.message),
        Some(_) => {}
    }
    let volumes = status.volumes.unwrap_or_default();
    match request {
        BackendRequest::Readopt | BackendRequest::ReadoptVolumes => {
            let readopted = condition(&status.conditions, &BackendCondition::Readopted.to_string());
            match readopted.filter(|condition| condition.status == "False") {
                Some(condition) => format!("{}: {}", condition.reason, condition.message),
                None => "the operator has not begun yet".to_owned(),
            }
        }
        BackendRequest::Scan => {
            let last = last_scan(status).map_or_else(
                || "not scanned yet".to_owned(),
                |(time, _)| format!("the last scan ended at {}", time.0),
            );
            format!(
                "{} at up to {CHECKS_PER_SECOND} per second take {} or more; a scan that runs already ends first; {last}",
                counted(volumes, "volume"),
                seconds_as_age(volumes / i64::from(CHECKS_PER_SECOND) + 1),
            )
        }
        BackendRequest::Count => {
            let usage = status.usage.clone().unwrap_or_default();
            let last = usage.last_completion_time.map_or_else(
                || "no count is complete yet".to_owned(),
                |time| format!("the last count ended at {}", time.0),
            );
            format!(
                "{} of {} counted at least once, {} files in them; {last}",
                usage.volumes,
                counted(volumes, "volume"),
                usage.files
            )
        }
        _ => "the operator has not handled it yet".to_owned(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn status(fields: serde_json::Value) -> NfsBackendStatus {
        serde_json::from_value(fields).unwrap()
    }

    fn reported(type_: &str, status: &str, reason: &str, message: &str) -> serde_json::Value {
        let time = "2026-01-01T00:00:00Z";
        json!({"type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": time})
    }

    #[test]
    fn progress_is_what_the_status_shows() {
        let ready = reported("Ready", "True", "AllChecksPassed", "");
        let readopting = reported("Readopted", "False", "Readopting", "processed 3 of 7 records");
        let found = status(json!({"conditions": [ready.clone(), readopting], "volumes": 10_000}));
        let of = |request| describe_progress(request, &found);
        assert_eq!(of(BackendRequest::Readopt), "Readopting: processed 3 of 7 records");
        assert!(of(BackendRequest::Scan).contains("10000 volumes at up to 10 per second take 16m or more"));
        assert!(of(BackendRequest::Scan).ends_with("not scanned yet"));
        assert!(of(BackendRequest::Count).starts_with("0 of 10000 volumes"));
        let down =
            status(json!({"conditions": [reported("Ready", "False", "ConnectionRefused", "no process listens")]}));
        assert_eq!(
            describe_progress(BackendRequest::Scan, &down),
            "the backend is ConnectionRefused: no process listens"
        );
        let idle = status(json!({"conditions": [ready, reported("Readopted", "True", "NothingToReadopt", "")]}));
        assert_eq!(
            describe_progress(BackendRequest::Readopt, &idle),
            "the operator has not begun yet"
        );
    }

    #[test]
    fn volumes_are_not_called_known_without_a_scan() {
        let searched = [OrphanKind::DirectoryWithoutVolume, OrphanKind::VolumeWithOtherDirectory];
        let found = |status: &NfsBackendStatus| found_orphans(status, "main", &searched, &[]);
        let never = status(json!({}));
        assert_eq!(found(&never), "not scanned yet: kubectl nfs scan main --wait");
        let time = "2026-01-01T00:00:00Z";
        let clean = status(json!({"orphans": {"lastScanTime": time}}));
        assert_eq!(found(&clean), "none known by the last scan");
        let kinds = json!([
            {"kind": "RecordUnreadable", "count": 7, "examples": [{"volume": "pvc-7"}]},
            {"kind": "DirectoryWithoutVolume", "count": 2, "examples": [{"volume": "pvc-1"}]},
        ]);
        let lost = status(json!({"orphans": {"lastScanTime": time, "kinds": kinds}}));
        assert_eq!(found(&lost), "2 by the last scan: pvc-1");
        let named = |name: &str| found_orphans(&lost, "main", &searched, &[name.to_owned()]);
        assert!(named("pvc-1").starts_with("pvc-1 by the last scan, which lists only some"));
        let other = named("pvc-2");
        assert!(
            other.starts_with("none of them by the last scan, which") && !other.contains("pvc-1"),
            "{other}"
        );
    }
}
