//! An etcd that is restored from a snapshot, and a cluster that is cloned from one, while the export goes on.
//!
//! In both cases, somebody with an older state uses the export. It must notice by the beacon, and change nothing.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::{Kind, STEP, World};
use crate::actors::users::Users;
use crate::actors::{administrator::Administrator, archives, binder};
use crate::api_faults::ApiFaults;
use crate::api_server::{ApiServer, Snapshot};
use crate::clock::SimulatedClock;
use crate::objects::{is_deleting, name, text};
use crate::oracle::{KeptArchives, Violation};
use crate::world::processes::Processes;

/// Time for which nothing may change.
const OBSERVED: Duration = Duration::from_secs(600);
/// Time in which backends must have noticed.
const NOTICED: Duration = Duration::from_secs(300);
/// Time between two actions of users.
const PAUSE: Duration = Duration::from_secs(10);
/// Time for which archives are observed after the exports were accepted.
const ACCEPTED: Duration = Duration::from_secs(600);
/// Time in which the operator has recorded the retention of archives.
const RECORDED: Duration = Duration::from_secs(30);
/// Time after which a snapshot is certainly older than the beacon: each minute, there is another one.
const OLD: Duration = Duration::from_secs(180);

impl World {
    /// Restores etcd from the snapshot, and starts the operator again. Nothing that is on the exports may change until an
    /// administrator accepts them.
    pub(super) async fn restore_etcd(&mut self) -> Result<(), Violation> {
        let is_recent = self.scenario.has(Kind::FollowUps) && self.follow_ups.in_thousand(700);
        let snapshot = match is_recent {
            true => self.recent_snapshot().await?,
            false => self.old_snapshot().await?,
        };
        let Some(snapshot) = snapshot else {
            return Ok(());
        };
        // What administrators decide about archives is not recorded on an export that is not confirmed.
        let left = self.oracle.unsettled_backends();
        if !left.is_empty() {
            return Err(Violation(format!("after everything was settled: {}", left.join("; "))));
        }
        self.processes.restart_all();
        let kept = self.oracle.kept_archives();
        self.api.restore(&snapshot);
        self.trace.record("admin", "restores etcd from a snapshot");
        let frozen = self.oracle.freeze();
        let end = Instant::now() + OBSERVED;
        while Instant::now() < end {
            let next = Instant::now() + PAUSE;
            while Instant::now() < next {
                sleep(STEP).await;
                self.bind();
                self.processes.step();
                self.oracle.check_frozen(&frozen)?;
            }
            self.users.act();
        }
        check_noticed(&self.api)?;
        match self.scenario.has(Kind::FollowUps) {
            true => self.accept_exports(&kept).await,
            false => Ok(()),
        }
    }

    /// Accepts all exports. The archives are still kept as long as they were before etcd was restored.
    async fn accept_exports(&mut self, kept: &KeptArchives) -> Result<(), Violation> {
        self.administrator.accept_exports();
        let end = Instant::now() + ACCEPTED;
        while Instant::now() < end {
            sleep(STEP).await;
            self.bind();
            self.processes.step();
            self.oracle.check_kept(kept)?;
        }
        let left = self.oracle.unsettled_backends();
        match left.is_empty() {
            true => Ok(()),
            false => Err(Violation(format!("after exports were accepted: {}", left.join("; ")))),
        }
    }

    /// Returns a snapshot after which administrators decided to keep archives longer.
    async fn recent_snapshot(&mut self) -> Result<Option<Snapshot>, Violation> {
        let due = i64::try_from(OBSERVED.as_secs()).unwrap_or(0);
        archives::expire_all(&self.api, &self.follow_ups, &self.trace, due);
        self.pass(RECORDED).await?;
        self.snapshot = Some(self.api.snapshot());
        archives::keep_all(&self.api, &self.follow_ups, &self.trace);
        self.old_snapshot().await
    }

    /// Starts the operator in a clone of the cluster, whose users delete all claims. The clone must change nothing, and the
    /// operator of this cluster must continue.
    pub(super) async fn clone_cluster(&mut self) -> Result<(), Violation> {
        let Some(snapshot) = self.old_snapshot().await? else {
            return Ok(());
        };
        let seed = self.scenario.seed;
        let api = ApiServer::new(!seed, Arc::new(SimulatedClock::new(self.epoch)));
        api.restore(&snapshot);
        let faults = Arc::new(ApiFaults::new(!seed, self.trace.clone()));
        let mut clone = Processes::new(
            (&self.scenario, !seed, self.epoch),
            2,
            api.clone(),
            self.network.clone(),
            faults,
            self.trace.clone(),
        );
        self.trace.record("admin", "clones the cluster from a snapshot");
        let users = Users::new(!seed, api.clone(), self.trace.clone(), Administrator::classes());
        users.delete_all();
        let end = Instant::now() + NOTICED;
        while Instant::now() < end {
            clone.step();
            binder::step(&api);
            self.users.act();
            self.pass(STEP * 8).await?;
        }
        check_noticed(&api)?;
        self.settle().await
    }

    /// Returns the snapshot once it is old enough, if every backend knew its beacon then.
    async fn old_snapshot(&mut self) -> Result<Option<Snapshot>, Violation> {
        let Some(snapshot) = self.snapshot.take() else {
            return Ok(None);
        };
        let backends = snapshot.all("nfsbackends");
        let all_have_beacons = backends
            .iter()
            .all(|backend| !text(backend, "/status/export/beacon").is_empty() && !is_deleting(backend));
        if !all_have_beacons {
            return Ok(None);
        }
        self.pass(OLD).await?;
        Ok(Some(snapshot))
    }
}

/// Every backend reports that its export is not as expected.
fn check_noticed(api: &ApiServer) -> Result<(), Violation> {
    for backend in api.all("nfsbackends") {
        let conditions = backend.pointer("/status/conditions").and_then(Value::as_array);
        let ready = conditions
            .into_iter()
            .flatten()
            .find(|condition| text(condition, "/type") == "Ready");
        let reason = ready.map_or("", |condition| text(condition, "/reason"));
        if reason != "BeaconMismatch" {
            let ready = ready.cloned().unwrap_or_default();
            return Err(Violation(format!(
                "backend {} has an older state than its export, and reports {ready}",
                name(&backend)
            )));
        }
    }
    Ok(())
}
