//! The beacon of an export while its backends are created and deleted.

use std::time::Duration;

use nfs_client::FsId;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{BACKEND, DONE, LOOK, MOMENT, OBSERVED, broken};
use crate::actors::administrator::SERVER;
use crate::actors::storage;
use crate::nfs_server::{Export, FileSystem, FileSystemOptions};
use crate::objects::{BACKENDS_PATH, backend_path, has_reason, name, text};
use crate::oracle::{DISK, Violation};
use crate::world::World;

/// Name of another backend on the export.
const NEIGHBOR: &str = "third";
/// Name of a backend that is alone on its export, and of its disk.
const LONE: &str = "lone";
/// Path of its export.
const LONE_EXPORT: &str = "/lone";
/// Time for which a new backend changes all the time.
const CHANGING: Duration = Duration::from_secs(1);

impl World {
    /// The backend whose status alone has the beacon of its export is deleted. The export is full, so the other backends
    /// cannot write another beacon: they still recognize it after a restart (data-safety rule 17).
    pub(super) async fn delete_the_backend_that_knows_the_beacon(&mut self) -> Result<(), Violation> {
        self.create_neighbor()?;
        self.wait_until("a new backend alone has the beacon of its export", |world| {
            world.alone_has_beacon(NEIGHBOR).then_some(())
        })
        .await?;
        self.trace.record("nas", "is full");
        let capacity = self.on_disk(|disk| {
            let space = disk.statistics();
            let used = space.total - space.available;
            Ok(std::mem::replace(&mut disk.options_mut().capacity, used))
        })?;
        self.administer("DELETE", &backend_path(NEIGHBOR), &json!({}))?;
        self.pass(LOOK * 2).await?;
        self.trace.record("world", "starts all processes again");
        self.processes.restart_all();
        self.on_disk(|disk| {
            disk.options_mut().capacity = capacity;
            Ok(())
        })?;
        self.wait_until_gone("nfsbackends", NEIGHBOR).await?;
        // Until then, statuses may be those of the former processes.
        self.pass(OBSERVED).await?;
        self.settle().await
    }

    /// etcd is restored from just before the deletion of the last backend on an export: the backend notices (data-safety rule
    /// 17).
    pub(super) async fn restore_etcd_after_the_last_backend(&mut self) -> Result<(), Violation> {
        let options = FileSystemOptions {
            fsid: FsId { major: 98, minor: 0 },
            ..FileSystemOptions::default()
        };
        self.server.insert_disk(LONE, FileSystem::new(options));
        self.server.export(Export::new(LONE_EXPORT, LONE));
        let spec = json!({"server": SERVER, "path": LONE_EXPORT});
        self.administer(
            "POST",
            BACKENDS_PATH,
            &json!({"metadata": {"name": LONE}, "spec": spec}),
        )?;
        self.wait_until("a new backend has a beacon", |world| {
            let backend = world.object("nfsbackends", ("", LONE))?;
            (!text(&backend, "/status/export/beacon").is_empty()).then_some(())
        })
        .await?;
        let snapshot = self.api.snapshot();
        self.administer("DELETE", &backend_path(LONE), &json!({}))?;
        self.wait_until_gone("nfsbackends", LONE).await?;
        self.processes.restart_all();
        self.api.restore(&snapshot);
        self.trace.record("admin", "restores etcd from a snapshot");
        self.pass_without_oracle(DONE).await;
        let backend = self.object("nfsbackends", ("", LONE));
        match backend.is_some_and(|backend| has_reason(&backend, "BeaconMismatch")) {
            true => Ok(()),
            false => Err(broken(
                "a backend that had been deleted does not report that etcd was restored",
            )),
        }
    }

    /// A new backend changes all the time until it is deleted, and the operator starts again: the other backends on the
    /// export recognize its beacon (data-safety rule 17).
    pub(super) async fn patch_a_new_backend_constantly(&mut self) -> Result<(), Violation> {
        self.create_neighbor()?;
        let path = backend_path(NEIGHBOR);
        let end = Instant::now() + CHANGING;
        let mut changes = 0_u32;
        while Instant::now() < end && !self.has_announced_beacon(NEIGHBOR) {
            changes += 1;
            let annotations = json!({"example.org/changes": changes.to_string()});
            let patch = json!({"metadata": {"annotations": annotations}});
            let changed = self.api.call("admin", "PATCH", &path, &patch);
            changed.map_err(|refusal| broken(format!("PATCH {path}: {}", refusal.status)))?;
            sleep(MOMENT).await;
            self.processes.step();
        }
        self.administer("DELETE", &path, &json!({}))?;
        self.trace.record("world", "starts all processes again");
        self.processes.restart_all();
        // Until then, statuses may be those of the former processes.
        self.pass(OBSERVED).await?;
        self.settle().await
    }

    /// Creates another backend on the export.
    fn create_neighbor(&self) -> Result<(), Violation> {
        let main = self.object("nfsbackends", ("", BACKEND));
        let spec = main.as_deref().and_then(|main| main.get("spec"));
        self.administer(
            "POST",
            BACKENDS_PATH,
            &json!({"metadata": {"name": NEIGHBOR}, "spec": spec}),
        )
    }

    /// Returns true if the status of this backend has the beacon that is on the export, and no other one has.
    fn alone_has_beacon(&self, alone: &str) -> bool {
        let Some(beacon) = self.beacon() else { return false };
        let known = ["/status/export/beacon", "/status/export/nextBeacon"];
        let backends = self.api.all("nfsbackends");
        let having = backends
            .iter()
            .filter(|backend| known.iter().any(|path| text(backend, path) == beacon));
        having.map(|backend| name(backend)).eq([alone])
    }

    /// Returns true if the beacon on the export is the next one in the status of this backend.
    fn has_announced_beacon(&self, backend: &str) -> bool {
        let backend = self.object("nfsbackends", ("", backend));
        let next = backend
            .as_deref()
            .map_or("", |backend| text(backend, "/status/export/nextBeacon"));
        !next.is_empty() && self.beacon().is_some_and(|beacon| beacon == next)
    }

    /// Returns the beacon that is on the export.
    fn beacon(&self) -> Option<String> {
        self.server.inspect(DISK, storage::beacon).ok().flatten()
    }
}
