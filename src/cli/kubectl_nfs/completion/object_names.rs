//! Completion of the names of objects, which are read from the cluster. Without a cluster, there are none.

use std::ffi::{OsStr, OsString};
use std::fmt::Debug;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::ListParams;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

use crate::api::{NfsArchive, NfsBackend, NfsBackup};
use crate::cli::cluster::{ClusterArguments, value_of};

/// Time after which a user who pressed a key gets no names.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of names.
const MAX_NAMES: u32 = 500;

/// Completes names of backends.
pub fn backends() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| candidates(typed, |client, _| list(Api::<NfsBackend>::all(client))))
}

/// Completes names of archives.
pub fn archives() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| candidates(typed, |client, _| list(Api::<NfsArchive>::all(client))))
}

/// Completes names of claims in the namespace of the command line.
pub fn claims() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        candidates(typed, |client, namespace| {
            list(namespaced::<PersistentVolumeClaim>(client, namespace))
        })
    })
}

/// Completes names of NfsBackups in the namespace of the command line.
pub fn backups() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        candidates(typed, |client, namespace| {
            list(namespaced::<NfsBackup>(client, namespace))
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

async fn list<K>(api: Api<K>) -> kube::Result<Vec<String>>
where
    K: Clone + DeserializeOwned + Debug,
{
    let found = api.list_metadata(&ListParams::default().limit(MAX_NAMES)).await?;
    Ok(found.items.into_iter().filter_map(|item| item.metadata.name).collect())
}

/// Returns the names that begin with what is typed, behind the kind that is typed.
fn candidates<F>(
    typed: &OsStr,
    list: impl FnOnce(Client, Option<String>) -> F + Send + 'static,
) -> Vec<CompletionCandidate>
where
    F: Future<Output = kube::Result<Vec<String>>>,
{
    let typed = typed.to_string_lossy();
    let (kind, start) = typed.split_at(typed.rfind('/').map_or(0, |slash| slash + 1));
    let names = read(list).unwrap_or_default();
    let names = names.iter().filter(|name| name.starts_with(start));
    names
        .map(|name| CompletionCandidate::new(format!("{kind}{name}")))
        .collect()
}

/// Reads names in a thread with a runtime of its own, because the engine of clap is not asynchronous.
fn read<F>(list: impl FnOnce(Client, Option<String>) -> F + Send + 'static) -> Option<Vec<String>>
where
    F: Future<Output = kube::Result<Vec<String>>>,
{
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let names = runtime.ok().and_then(|runtime| {
            runtime.block_on(async {
                let words: Vec<OsString> = std::env::args_os().collect();
                let client = ClusterArguments::in_words(&words).client().await.ok()?;
                let namespace = value_of(&words, &["--namespace", "-n"]);
                list(client, namespace.map(|value| value.to_string_lossy().into_owned()))
                    .await
                    .ok()
            })
        });
        // Nobody receives it after the timeout.
        let _ = sender.send(names);
    });
    receiver.recv_timeout(TIMEOUT).ok().flatten()
}
