//! Enforcement of a cluster's NetworkPolicies on its node.

use std::{path::PathBuf, process::Command, time::Duration};

use kube::{Api, Client, api::ListParams};
use serde_json::Value;
use tokio::{sync::oneshot, task::JoinHandle};

use super::network_policy::{Snapshot, TABLE, ruleset};
use crate::{
    error::{Error, Result, ResultExt},
    process::run,
};

/// New pods wait for it; three small lists are negligible load.
const SYNC_INTERVAL: Duration = Duration::from_millis(200);

/// Running enforcement of NetworkPolicies, by the rules of the module `network_policy`, until [`Self::end`].
#[derive(Debug)]
pub struct Enforcement {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<()>>,
}

impl Enforcement {
    /// Starts the enforcement and returns when the existing policies are enforced.
    pub(super) async fn start(client: Client, file: PathBuf) -> Result<Self> {
        let mut syncer = PolicySyncer {
            client,
            file,
            enforced: String::new(),
        };
        syncer.sync().await?;
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let result = syncer.run(stopped).await;
            if let Err(error) = &result {
                // Tests may wait for an effect of a policy that is no longer enforced.
                eprintln!("rig: changes of NetworkPolicies are no longer enforced: {error}");
            }
            result
        });
        Ok(Self { stop, task })
    }

    /// Stops the enforcement and removes all rules.
    ///
    /// # Errors
    /// Also if a change of policies or pods could not be enforced: pods then kept their old rules, and new pods were
    /// isolated.
    pub async fn end(self) -> Result<()> {
        // The receiver is gone if the enforcement has ended with an error.
        let _ = self.stop.send(());
        let ended = self.task.await.map_err(|error| Error::Usage(error.to_string()));
        let mut command = Command::new("nft");
        command.arg(format!("delete table {TABLE}"));
        run(command).await?;
        ended.flatten()
    }
}

/// Returns the number of packets of a pod that policies have dropped since the rules were last written.
pub(super) async fn dropped_packets(pod: &Value) -> Result<u64> {
    let address = pod.pointer("/status/podIP").and_then(Value::as_str);
    let address = address.ok_or_else(|| Error::Usage("the pod has no IP address".into()))?;
    let mut command = Command::new("nft");
    command.arg(format!("list chain {TABLE} from-{address}"));
    let listed = run(command).await?;
    let count = listed
        .lines()
        .find_map(|line| line.trim().strip_prefix("counter packets "));
    let count = count.and_then(|rest| rest.split(' ').next()?.parse().ok());
    count.ok_or_else(|| Error::Usage(format!("no packet counter in {listed}")))
}

struct PolicySyncer {
    client: Client,
    /// Kept with the logs.
    file: PathBuf,
    enforced: String,
}

impl PolicySyncer {
    async fn run(&mut self, mut stopped: oneshot::Receiver<()>) -> Result<()> {
        while tokio::time::timeout(SYNC_INTERVAL, &mut stopped).await.is_err() {
            self.sync().await?;
        }
        Ok(())
    }

    async fn sync(&mut self) -> Result<()> {
        // The order matters, see `Snapshot`.
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
