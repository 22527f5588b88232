//! Has a node enforce the NetworkPolicies of its cluster.

use std::{path::PathBuf, process::Command, time::Duration};

use kube::{Api, Client, api::ListParams};
use serde_json::Value;
use tokio::{sync::oneshot, task::JoinHandle};

use super::network_policy::{Snapshot, TABLE, ruleset};
use crate::{
    error::{Error, Result, ResultExt},
    process::run,
};

/// A new pod waits for it; three small lists are next to no load.
const SYNC_INTERVAL: Duration = Duration::from_millis(200);

/// NetworkPolicies are enforced, on what the module `policies` says. It goes on until [`Self::end`].
#[derive(Debug)]
pub struct Enforcement {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<()>>,
}

impl Enforcement {
    /// Begins, and comes back when the policies that there are now are enforced.
    pub(super) async fn start(client: Client, file: PathBuf) -> Result<Self> {
        let mut synchronizer = Synchronizer {
            client,
            file,
            enforced: String::new(),
        };
        synchronizer.sync().await?;
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let result = synchronizer.run(stopped).await;
            if let Err(error) = &result {
                // Whoever waits for something meanwhile wants to know why it doesn't come.
                eprintln!("rig: NetworkPolicies are enforced no longer as they are: {error}");
            }
            result
        });
        Ok(Self { stop, task })
    }

    /// Nothing is enforced any more.
    ///
    /// # Errors
    /// Also what could not be enforced meanwhile: pods had the rules of before, new ones were cut off.
    pub async fn end(self) -> Result<()> {
        // When nobody listens, it has ended with an error.
        let _ended = self.stop.send(());
        let ended = self.task.await.map_err(|error| Error::Usage(error.to_string()));
        let mut command = Command::new("nft");
        command.arg(format!("delete table {TABLE}"));
        run(command).await?;
        ended.flatten()
    }
}

/// How many packets of that pod the policies have refused, since they were last written down.
pub(super) async fn dropped_packets(pod: &Value) -> Result<u64> {
    let address = pod.pointer("/status/podIP").and_then(Value::as_str);
    let address = address.ok_or_else(|| Error::Usage("the pod has no address".into()))?;
    let mut command = Command::new("nft");
    command.arg(format!("list chain {TABLE} from-{address}"));
    let listed = run(command).await?;
    let count = listed
        .lines()
        .find_map(|line| line.trim().strip_prefix("counter packets "));
    let count = count.and_then(|rest| rest.split(' ').next()?.parse().ok());
    count.ok_or_else(|| Error::Usage(format!("no count in {listed}")))
}

struct Synchronizer {
    client: Client,
    /// Stays with the logs.
    file: PathBuf,
    enforced: String,
}

impl Synchronizer {
    async fn run(&mut self, mut stopped: oneshot::Receiver<()>) -> Result<()> {
        while tokio::time::timeout(SYNC_INTERVAL, &mut stopped).await.is_err() {
            self.sync().await?;
        }
        Ok(())
    }

    async fn sync(&mut self) -> Result<()> {
        // In this order; see there.
        let snapshot = Snapshot {
            pods: self.list().await?,
            namespaces: self.list().await?,
            policies: self.list().await?,
        };
        let text = ruleset(&snapshot)?;
        if text == self.enforced {
            return Ok(());
        }
        std::fs::write(&self.file, &text).with_context(|| format!("write {}", self.file.display()))?;
        let mut command = Command::new("nft");
        command.arg("--file").arg(&self.file);
        run(command).await?;
        self.enforced = text;
        Ok(())
    }

    async fn list<K>(&self) -> Result<Vec<K>>
    where
        K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
    {
        let listed = Api::<K>::all(self.client.clone()).list(&ListParams::default()).await;
        Ok(listed.with_context(|| format!("list {}", K::plural(&())))?.items)
    }
}
