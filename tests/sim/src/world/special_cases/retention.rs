//! Which archives count, and how long they are kept.

use serde_json::{Value, json};

use super::{BACKEND, CLAIM, DONE, LOOK, NAMESPACE, broken};
use crate::objects::{ARCHIVES_PATH, VOLUMES_PATH, archive_path, at, volume_path};
use crate::oracle::Violation;
use crate::world::World;

impl World {
    /// The object of an archive can only be created once it has expired: until then, the volume stays (data-safety rule 7),
    /// and from then on, the data are kept for the whole retention (data-safety rule 14).
    pub(super) async fn create_the_object_of_an_archive_late(&mut self) -> Result<(), Violation> {
        let claim = (NAMESPACE, CLAIM);
        self.change_backend(&json!({"archivePolicy": {"retention": "300s"}}))
            .await?;
        let volume = self.provision_with_file(claim, "archived").await?;
        self.faults
            .script(|faults| faults.refuse_creations = Some(ARCHIVES_PATH));
        self.delete_claim(claim)?;
        self.check_that("a volume was deleted before its archive had an object", |world| {
            world.object("persistentvolumes", ("", &volume.name)).is_some()
        })
        .await?;
        // Together, that is longer than the retention by any clock.
        self.pass(DONE).await?;
        self.faults.script(|faults| faults.refuse_creations = None);
        let directory = format!("archived-{}", volume.directory);
        self.check_that(
            "an archive was purged before its object was as old as its retention",
            |world| world.exists(&directory),
        )
        .await
    }

    /// The older of two volumes of a claim is archived last: `keepLast` keeps the newer data (data-safety rule 14). The
    /// oracle checks that they are not purged.
    pub(super) async fn archive_the_older_volume_last(&mut self) -> Result<(), Violation> {
        let claim = (NAMESPACE, CLAIM);
        let older = self.provision_with_file(claim, "archived").await?;
        self.set_reclaim_policy(&older, "Retain")?;
        self.delete_claim(claim)?;
        self.settle().await?;
        self.change_backend(&json!({"archivePolicy": {"keepLast": 1}})).await?;
        self.provision_archive(claim).await?;
        self.set_reclaim_policy(&older, "Delete")?;
        self.wait_until_gone("persistentvolumes", &older.name).await?;
        self.wait_until_gone("nfsarchives", &older.name).await
    }

    /// A tool restores the volume of an archive that was released, and the operator starts again: once somebody removes the
    /// volume by hand, the archive counts again (data-safety rule 7).
    pub(super) async fn restore_the_volume_of_an_archive(&mut self) -> Result<(), Violation> {
        let claim = (NAMESPACE, CLAIM);
        let volume = self.provision_with_file(claim, "archived").await?;
        let saved = self.object("persistentvolumes", ("", &volume.name));
        let saved = saved.ok_or_else(|| broken(format!("{} does not exist", volume.name)))?;
        self.delete_claim(claim)?;
        self.settle().await?;
        self.administer("DELETE", &archive_path(&volume.name), &json!({}))?;
        self.settle().await?;
        // The backend is probed meanwhile.
        self.pass(DONE).await?;
        let archives = self.number_of_archives();
        let mut spec = at(&saved, "/spec").cloned().unwrap_or_default();
        if let Some(spec) = spec.as_object_mut() {
            spec.insert("persistentVolumeReclaimPolicy".to_owned(), json!("Retain"));
        }
        let annotations = at(&saved, "/metadata/annotations");
        self.administer(
            "POST",
            VOLUMES_PATH,
            &json!({"metadata": {"name": volume.name, "annotations": annotations}, "spec": spec}),
        )?;
        self.pass(LOOK * 5).await?;
        self.processes.restart_all();
        // The records are read meanwhile.
        self.pass(DONE).await?;
        self.administer("DELETE", &volume_path(&volume.name), &json!({}))?;
        self.wait_until("an archive counts whose volume was removed by hand", |world| {
            (world.number_of_archives() == archives).then_some(())
        })
        .await
    }

    /// Returns the number of archives that the backend reports.
    fn number_of_archives(&self) -> Option<i64> {
        let backend = self.object("nfsbackends", ("", BACKEND))?;
        at(&backend, "/status/archives").and_then(Value::as_i64)
    }
}
