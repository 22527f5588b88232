//! When the API server delivers a tenant's claims to those that watch all claims.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::{AsyncBufReadExt as _, TryStreamExt as _};
use jiff::Timestamp;
use kube::Client;
use kube::api::WatchParams;
use kube::core::Request;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::task::JoinSet;

use super::attacked_cluster::TIMEOUT;
use crate::support::shared::{Failure, Test, text};

/// Pause before a watch is established again.
const PAUSE: Duration = Duration::from_millis(100);

/// Times of deliveries by the UID of the claim, written like those in the audit log.
type Times = Arc<Mutex<HashMap<String, String>>>;

/// A watch of all claims, like the operator's. It ends when this is dropped.
pub struct DeliveredClaims {
    times: Times,
    _watch: JoinSet<Infallible>,
}

impl DeliveredClaims {
    /// Watches claims from now on, and notes when those of a namespace are delivered for the first time.
    pub fn watch(client: Client, namespace: &'static str) -> Self {
        let times = Times::default();
        let mut watch = JoinSet::new();
        watch.spawn(watch_until_dropped(client, namespace, Arc::clone(&times)));
        Self { times, _watch: watch }
    }

    /// Waits until a claim is delivered. Returns the time, written like those in the audit log.
    pub async fn wait_delivery(&self, claim: &Value) -> Result<String, Failure> {
        let delivered = rig::wait::until("the claim to be delivered", TIMEOUT, async || {
            let times = self.times.lock();
            let time = times.get(text(claim, "/metadata/uid")).cloned();
            time.ok_or_else(|| "it is not".to_owned())
        });
        Ok(delivered.await?)
    }
}

async fn watch_until_dropped(client: Client, namespace: &'static str, times: Times) -> Infallible {
    loop {
        // The API server ends a watch after minutes. The next one begins with what exists.
        if let Err(error) = watch_once(&client, namespace, &times).await {
            println!("watch of claims: {error}");
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn watch_once(client: &Client, namespace: &str, times: &Times) -> Test {
    let request = Request::new("/api/v1/persistentvolumeclaims").watch(&WatchParams::default(), "0")?;
    let events = client.request_stream(request).await?;
    let mut lines = Box::pin(events).lines();
    // Only what is about the namespace is parsed: to parse all would take the processors from those that are observed.
    let of_namespace = format!("\"namespace\":\"{namespace}\"");
    while let Some(event) = lines.try_next().await? {
        if event.contains(&of_namespace) {
            let event: Value = serde_json::from_str(&event)?;
            let uid = text(&event, "/object/metadata/uid").to_owned();
            let mut times = times.lock();
            times.entry(uid).or_insert_with(|| format!("{:.6}", Timestamp::now()));
        }
    }
    Ok(())
}
