//! Archives and their objects: what changes while the operator is at work on them.

use serde_json::{Value, json};

use super::{CLAIM, HELD, LOOK, NAMESPACE, OTHER_NAMESPACE};
use crate::actors::namespaces;
use crate::nfs_server::Fault;
use crate::objects::{archive_path, at, is_deleting, text};
use crate::oracle::Violation;
use crate::world::World;

/// Annotation of a claim with its backend.
const PLACED_ON: &str = "/metadata/annotations/nfs-operator.io~1placed-on";

impl World {
    /// An archive loses its status, and is deleted with its data while its backend cannot be used: the object stays until the
    /// records were read (data-safety rule 21).
    pub(super) async fn delete_an_archive_without_status(&mut self) -> Result<(), Violation> {
        let claim = (NAMESPACE, CLAIM);
        let volume = self.provision_archive(claim).await?;
        self.let_others_enter().await?;
        let archive = archive_path(&volume.name);
        self.administer("PATCH", &format!("{archive}/status"), &json!({"status": null}))?;
        self.administer("PATCH", &archive, &json!({"spec": {"deletionPolicy": "Delete"}}))?;
        self.administer("DELETE", &archive, &json!({}))?;
        self.check_that("an archive was released before the records were read", |world| {
            world.object("nfsarchives", ("", &volume.name)).is_some()
        })
        .await?;
        self.close_own_folder()?;
        self.settle().await
    }

    /// The `deletionPolicy` of an archive changes while it is released: the new one counts (data-safety rule 21).
    pub(super) async fn change_the_policy_of_a_released_archive(&mut self) -> Result<(), Violation> {
        let claim = (NAMESPACE, CLAIM);
        let volume = self.provision_archive(claim).await?;
        // The operator remembers a new archive for a while, and sends no call.
        self.pass(LOOK * 15).await?;
        // Once the deletion is reported, the object is read for the last time.
        self.script_call(
            Fault::Hold(HELD),
            "nfsarchives",
            ("", &volume.name),
            |archive: &Value| {
                let is_reported = at(archive, "/status/observedGeneration") == at(archive, "/metadata/generation");
                is_deleting(archive) && is_reported
            },
        );
        let archive = archive_path(&volume.name);
        self.administer("DELETE", &archive, &json!({}))?;
        self.wait_until_hit("an archive is released").await?;
        let policy = json!({"spec": {"deletionPolicy": "Delete"}});
        let is_changed = self.api.call("admin", "PATCH", &archive, &policy).is_ok();
        self.trace
            .record("admin", format_args!("is in time to delete the data: {is_changed}"));
        self.settle().await
    }

    /// An archive is released while a claim is restored from it that was checked before: the claim does not get it (data-safety
    /// rule 7).
    pub(super) async fn release_an_archive_during_a_restore(&mut self) -> Result<(), Violation> {
        let (claim, restored) = ((NAMESPACE, CLAIM), (NAMESPACE, "restored"));
        let volume = self.provision_archive(claim).await?;
        let directory = self.archived_directory(&volume.name);
        // The first call for a claim that was checked and placed looks for its record.
        self.script_call(
            Fault::Hold(HELD),
            "persistentvolumeclaims",
            restored,
            |claim: &Value| !text(claim, PLACED_ON).is_empty(),
        );
        self.restore(restored, &volume.name)?;
        self.wait_until_hit("a claim is restored").await?;
        // It is gone already if another call was held.
        let path = archive_path(&volume.name);
        let is_deleted = self.api.call("admin", "DELETE", &path, &json!({})).is_ok();
        self.trace.record(
            "admin",
            format_args!("deletes the archive during the restore: {is_deleted}"),
        );
        self.wait_until_gone("nfsarchives", &volume.name).await?;
        // Otherwise, the restore was faster.
        if self.exists(&directory) {
            self.check_that("a claim got an archive that was released", |world| {
                world.volume_of(restored).is_none()
            })
            .await?;
        }
        self.settle().await
    }

    /// A volume is given to a claim whose namespace is deleted before the record is transferred: a namespace that is created
    /// again does not get the data (data-safety rule 8).
    pub(super) async fn give_a_volume_to_a_namespace_that_is_gone(&mut self) -> Result<(), Violation> {
        let (first, second) = ((NAMESPACE, CLAIM), (OTHER_NAMESPACE, CLAIM));
        self.change_backend(&json!({"archivePolicy": {"restoreByName": false}}))
            .await?;
        let volume = self.provision_with_file(first, "archived").await?;
        self.set_reclaim_policy(&volume, "Retain")?;
        self.delete_claim(first)?;
        self.pass(LOOK * 5).await?;
        // Meanwhile, no record is transferred.
        self.let_others_enter().await?;
        self.give_volume(&volume, second, "archived").await?;
        let namespace = format!("/api/v1/namespaces/{OTHER_NAMESPACE}");
        self.administer("DELETE", &namespace, &json!({}))?;
        self.wait_until_gone("namespaces", OTHER_NAMESPACE).await?;
        namespaces::create_missing(&self.api, &self.trace);
        self.close_own_folder()?;
        self.set_reclaim_policy(&volume, "Delete")?;
        self.settle().await?;
        let restored = (OTHER_NAMESPACE, "restored");
        self.restore(restored, &volume.name)?;
        self.check_that("a claim got the data of a namespace that is gone", |world| {
            world.volume_of(restored).is_none()
        })
        .await
    }

    /// Creates a claim that is restored from an archive.
    pub(super) fn restore(&self, claim: (&str, &str), archive: &str) -> Result<(), Violation> {
        let source = json!({"apiGroup": "nfs-operator.io", "kind": "NfsArchive", "name": archive});
        self.create_claim(claim, "archived", &[], &json!({"dataSourceRef": source}))
    }
}
