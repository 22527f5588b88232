//! Times when volumes are created and deleted, from a watch. Polling would be less precise and load the API server.

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

/// A volume is created within milliseconds, but later on a machine that also builds.
const TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Debug, Default)]
struct VolumeTimes {
    is_listed: bool,
    created: HashMap<String, Instant>,
    deleted: HashMap<String, Instant>,
}

/// A watch of all volumes that records when each was created and deleted.
#[derive(Debug)]
pub struct VolumeWatch {
    times: watch::Receiver<VolumeTimes>,
    watching: JoinHandle<()>,
}

impl VolumeWatch {
    /// Starts the watch and waits until the first list is complete.
    pub async fn start(client: Client) -> Result<Self> {
        let (writer, mut times) = watch::channel(VolumeTimes::default());
        let watching = tokio::spawn(follow(client, writer));
        wait(&mut times, "the watch of volumes", |times| {
            times.is_listed.then_some(())
        })
        .await?;
        Ok(Self { times, watching })
    }

    /// Waits until a volume exists, and returns the time of its creation.
    pub async fn wait_created(&self, volume: &str) -> Result<Instant> {
        let what = format!("volume {volume} to exist");
        wait(&mut self.times.clone(), &what, |times| {
            times.created.get(volume).copied()
        })
        .await
    }

    /// Waits until a volume is deleted, and returns the time of its deletion.
    pub async fn wait_deleted(&self, volume: &str) -> Result<Instant> {
        let what = format!("volume {volume} to be deleted");
        wait(&mut self.times.clone(), &what, |times| {
            times.deleted.get(volume).copied()
        })
        .await
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
    find: impl Fn(&VolumeTimes) -> Option<T>,
) -> Result<T> {
    let found = async {
        loop {
            if let Some(found) = find(&times.borrow_and_update()) {
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
        last: "the watch has not reported it".into(),
    };
    tokio::time::timeout(TIMEOUT, found).await.map_err(timeout)?
}

async fn follow(client: Client, times: watch::Sender<VolumeTimes>) {
    let volumes: Api<PartialObjectMeta<PersistentVolume>> = Api::all(client);
    let events = watcher(volumes, watcher::Config::default()).default_backoff();
    let mut events = events.into_stream().boxed();
    // The watcher recovers from errors.
    loop {
        let event = match events.try_next().await {
            Ok(Some(event)) => event,
            Ok(None) => return,
            Err(_) => continue,
        };
        let now = Instant::now();
        times.send_modify(|times| match event {
            watcher::Event::Init => {}
            watcher::Event::InitDone => times.is_listed = true,
            watcher::Event::InitApply(volume) | watcher::Event::Apply(volume) => {
                times.created.entry(volume.name_any()).or_insert(now);
            }
            watcher::Event::Delete(volume) => {
                times.deleted.entry(volume.name_any()).or_insert(now);
            }
        });
    }
}
