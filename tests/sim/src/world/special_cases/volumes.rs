//! Volumes while they are reclaimed, and after that.

use serde_json::{Value, json};

use super::disk::content;
use super::{CLAIM, LOOK, NAMESPACE, OTHER_NAMESPACE, broken};
use crate::nfs_server::Faults;
use crate::objects::{VOLUMES_PATH, is_deleting, text, volume_path};
use crate::oracle::Violation;
use crate::world::World;

impl World {
    /// A volume is restored from a backup of the cluster after its directory was archived, and given to a claim of another
    /// namespace: the archive stays that of the former claim (data-safety rule 13).
    pub(super) async fn restore_a_reclaimed_volume(&mut self) -> Result<(), Violation> {
        let (first, second) = ((NAMESPACE, CLAIM), (OTHER_NAMESPACE, CLAIM));
        let volume = self.provision_with_file(first, "archived").await?;
        let saved = self.object("persistentvolumes", ("", &volume.name));
        let saved = saved.ok_or_else(|| broken("a bound claim has no volume"))?;
        let mut object = (*saved).clone();
        for (part, field) in [("/metadata", "resourceVersion"), ("/spec", "claimRef")] {
            if let Some(fields) = object.pointer_mut(part).and_then(Value::as_object_mut) {
                fields.remove(field);
            }
        }
        self.delete_claim(first)?;
        self.settle().await?;
        self.administer("POST", VOLUMES_PATH, &object)?;
        self.create_claim(second, "archived", &[], &json!({"volumeName": volume.name}))?;
        self.wait_until_bound(second).await?;
        self.pass(LOOK * 5).await?;
        self.delete_claim(second)?;
        self.settle().await?;
        let restored = (NAMESPACE, "restored");
        self.restore(restored, &volume.name)?;
        self.wait_until_bound(restored).await.map(drop)
    }

    /// A volume is retained after it was deleted, the operator ends when it has removed the record of the directory, and then
    /// the volume is not retained any more: the directory stays (data-safety rule 15).
    pub(super) async fn retain_a_deleted_volume(&mut self) -> Result<(), Violation> {
        let claim = (NAMESPACE, CLAIM);
        let volume = self.provision_with_file(claim, "deleted").await?;
        let record = self.record_of(&volume)?;
        self.slow_down();
        // Nobody reclaims it before it is retained.
        self.processes.restart_all();
        self.delete_claim(claim)?;
        self.administer("DELETE", &volume_path(&volume.name), &json!({}))?;
        self.set_reclaim_policy(&volume, "Retain")?;
        self.bind();
        // Once, so that the oracle knows that it is retained.
        self.look()?;
        self.catch("the record of a retained directory is removed", |world| {
            (!world.exists(&record)).then_some(())
        })
        .await?;
        self.processes.restart_all();
        self.server.with_faults(Faults::clear);
        let is_early = self.object("persistentvolumes", ("", &volume.name)).is_some();
        self.trace
            .record("world", format_args!("before the volume is gone: {is_early}"));
        if is_early {
            self.set_reclaim_policy(&volume, "Delete")?;
        }
        self.settle().await
    }

    /// The policy of a backend changes before a claim is deleted, and the watch of the operator lags behind: the new policy
    /// applies (data-safety rule 15).
    pub(super) async fn change_a_policy_unnoticed(&mut self) -> Result<(), Violation> {
        let claim = (NAMESPACE, CLAIM);
        let policy = |policy: &str| json!({"archivePolicy": {"onDelete": policy}});
        self.change_backend(&policy("Delete")).await?;
        let volume = self.provision_with_file(claim, "undecided").await?;
        self.faults.script(|faults| faults.delay_events = Some("nfsbackends"));
        self.patch_backend(&policy("Archive"))?;
        self.delete_claim(claim)?;
        self.wait_until_gone("persistentvolumes", &volume.name).await?;
        self.faults.script(|faults| faults.delay_events = None);
        self.settle().await
    }

    /// An administrator gives a volume to another claim when its reclaim has begun, just before it is deleted: its directory
    /// stays (data-safety rule 15).
    pub(super) async fn give_a_volume_away_during_its_reclaim(&mut self) -> Result<(), Violation> {
        let (first, second) = ((NAMESPACE, CLAIM), (OTHER_NAMESPACE, CLAIM));
        let volume = self.provision_with_file(first, "deleted").await?;
        self.create_claim(second, "deleted", &[], &json!({"volumeName": volume.name}))?;
        let record = self.record_of(&volume)?;
        let before = self.on_disk(|disk| content(disk, &record)).ok();
        self.slow_down();
        self.delete_claim(first)?;
        // The record announces what is done once the volume is deleted.
        self.catch("the reclaim of a volume is recorded", |world| {
            let record = world.on_disk(|disk| content(disk, &record)).ok();
            (record != before).then_some(())
        })
        .await?;
        let found = self.object("persistentvolumes", ("", &volume.name));
        let is_early = found.is_some_and(|found| text(&found, "/status/phase") == "Released" && !is_deleting(&found));
        self.trace
            .record("world", format_args!("before the volume is deleted: {is_early}"));
        if is_early {
            self.patch_volume(&volume, &json!({"spec": {"claimRef": null}}))?;
            self.bind();
            // Before anything happens to the directory, so that the oracle knows whose it is.
            self.look()?;
        }
        self.server.with_faults(Faults::clear);
        self.settle().await
    }
}
