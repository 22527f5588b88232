//! Completion of the names of objects, which are read from the cluster. Without a cluster, there are none.

use std::ffi::{OsStr, OsString};
use std::fmt::Debug;
use std::iter;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

use crate::api::{NfsArchive, NfsBackend, NfsBackup};
use crate::cli::cluster::{ClusterArguments, value_of};
use crate::runtime::reads;

/// Time for which a user who pressed a key waits: names that are read later are not offered.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of names that are offered.
const MAX_NAMES: usize = 500;

/// Completes names of backends.
pub fn backends() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        candidates(typed, |client, _, found| list(Api::<NfsBackend>::all(client), found))
    })
}

/// Completes names of archives.
pub fn archives() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        candidates(typed, |client, _, found| list(Api::<NfsArchive>::all(client), found))
    })
}

/// Completes names of claims in the namespace of the command line.
pub fn claims() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        candidates(typed, |client, namespace, found| {
            list(namespaced::<PersistentVolumeClaim>(client, namespace), found)
        })
    })
}

/// Completes names of NfsBackups in the namespace of the command line.
pub fn backups() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        candidates(typed, |client, namespace, found| {
            list(namespaced::<NfsBackup>(client, namespace), found)
        })
    })
}

fn namespaced<K>(client: Client, namespace: Option<String>) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    let namespace = namespace.unwrap_or_else(|| client.default_namespace().to_owned());
    Api::namespaced(client, &namespace)
}

/// Sends all names.
async fn list<K>(api: Api<K>, found: Sender<String>) -> kube::Result<()>
where
    K: Clone + DeserializeOwned + Debug,
{
    reads::each_metadata_of(&api, |metadata| {
        // Once there are enough names, or the time is over, nobody receives more, and the program ends.
        let _ = found.send(metadata.name.clone().unwrap_or_default());
    })
    .await
}

/// Returns the names that begin with what is typed, behind the kind that is typed.
fn candidates<F>(
    typed: &OsStr,
    list: impl FnOnce(Client, Option<String>, Sender<String>) -> F + Send + 'static,
) -> Vec<CompletionCandidate>
where
    F: Future<Output = kube::Result<()>>,
{
    let typed = typed.to_string_lossy();
    let (kind, start) = typed.split_at(typed.rfind('/').map_or(0, |slash| slash + 1));
    let (names, end) = (read(list), Instant::now() + TIMEOUT);
    let in_time = iter::from_fn(|| names.recv_timeout(end.saturating_duration_since(Instant::now())).ok());
    in_time
        .filter(|name| name.starts_with(start))
        .take(MAX_NAMES)
        .map(|name| CompletionCandidate::new(format!("{kind}{name}")))
        .collect()
}

/// Reads names in a thread with a runtime of its own, because the engine of clap is not asynchronous.
fn read<F>(list: impl FnOnce(Client, Option<String>, Sender<String>) -> F + Send + 'static) -> Receiver<String>
where
    F: Future<Output = kube::Result<()>>,
{
    let (found, names) = channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .ok()?;
        runtime.block_on(async {
            let words: Vec<OsString> = std::env::args_os().collect();
            let client = ClusterArguments::in_words(&words).client().await.ok()?;
            let namespace = value_of(&words, &["--namespace", "-n"]);
            let namespace = namespace.map(|value| value.to_string_lossy().into_owned());
            list(client, namespace, found).await.ok()
        })
    });
    names
}
