//! When volumes appear and go, by a watch: polling would blur milliseconds and load the API server.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::{
    Api, Client, ResourceExt as _,
    core::PartialObjectMeta,
    runtime::{WatchStreamExt as _, watcher},
};
use tokio::{sync::watch, task::JoinHandle};

use crate::error::{Error, Result};

/// A volume comes within milliseconds; a machine that builds at the same time takes its time.
const TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Debug, Default)]
struct VolumeTimes {
    listed: bool,
    appeared: HashMap<String, Instant>,
    gone: HashMap<String, Instant>,
}

/// The volumes of the cluster, with the moments in which they were first and last seen.
#[derive(Debug)]
pub struct VolumeWatch {
    times: watch::Receiver<VolumeTimes>,
    watching: JoinHandle<()>,
}

impl VolumeWatch {
    /// Begins to watch, and waits until the first list is in.
    pub async fn start(client: Client) -> Result<Self> {
        let (writer, mut times) = watch::channel(VolumeTimes::default());
        let watching = tokio::spawn(follow(client, writer));
        wait(&mut times, "the watch of volumes", |times| times.listed.then_some(())).await?;
        Ok(Self { times, watching })
    }

    /// When this volume first was there.
    pub async fn wait_created(&self, volume: &str) -> Result<Instant> {
        let what = format!("volume {volume} to be there");
        wait(&mut self.times.clone(), &what, |times| {
            times.appeared.get(volume).copied()
        })
        .await
    }

    /// When this volume was gone.
    pub async fn wait_deleted(&self, volume: &str) -> Result<Instant> {
        let what = format!("volume {volume} to be gone");
        wait(&mut self.times.clone(), &what, |times| times.gone.get(volume).copied()).await
    }
}

impl Drop for VolumeWatch {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

async fn wait<T>(
    times: &mut watch::Receiver<VolumeTimes>,
    what: &str,
    look: impl Fn(&VolumeTimes) -> Option<T>,
) -> Result<T> {
    let seen = async {
        loop {
            if let Some(found) = look(&times.borrow_and_update()) {
                return Ok(found);
            }
            if times.changed().await.is_err() {
                return Err(Error::Usage(format!("the watch ended before {what}")));
            }
        }
    };
    let timeout = |_| Error::Timeout {
        what: what.into(),
        waited: TIMEOUT,
        last: "the watch has not shown it".into(),
    };
    tokio::time::timeout(TIMEOUT, seen).await.map_err(timeout)?
}

async fn follow(client: Client, times: watch::Sender<VolumeTimes>) {
    let volumes: Api<PartialObjectMeta<PersistentVolume>> = Api::all(client);
    let events = watcher(volumes, watcher::Config::default()).default_backoff();
    let mut events = events.into_stream().boxed();
    // Errors are those of a watch that is begun again.
    loop {
        let event = match events.try_next().await {
            Ok(Some(event)) => event,
            Ok(None) => return,
            Err(_) => continue,
        };
        let now = Instant::now();
        times.send_modify(|times| match event {
            watcher::Event::Init => {}
            watcher::Event::InitDone => times.listed = true,
            watcher::Event::InitApply(volume) | watcher::Event::Apply(volume) => {
                times.appeared.entry(volume.name_any()).or_insert(now);
            }
            watcher::Event::Delete(volume) => {
                times.gone.entry(volume.name_any()).or_insert(now);
            }
        });
    }
}
