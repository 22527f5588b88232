//! What administrators and users request.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::disk::{content, make_file, rewrite};
use super::{CLAIM, DONE, LONG_HELD, NAMESPACE, OBSERVED, OTHER_NAMESPACE, broken, find};
use crate::actors::administrator::ADOPTING;
use crate::actors::archives;
use crate::nfs_server::faults::CallSummary;
use crate::nfs_server::{Fault, Faults};
use crate::objects::{ARCHIVES_PATH, archive_path, has_reason, uid, volume_path};
use crate::oracle::Violation;
use crate::process::SLOTS;
use crate::world::{STEP, World};

/// Groups for volumes.
const GROUPS: std::ops::RangeInclusive<u32> = 5000..=5009;
/// Number of claims that fail: more than a backend works on at the same time.
const FAILING: usize = SLOTS + 8;
/// Time in which each of them is tried again.
const RETRIED: Duration = Duration::from_secs(5);
/// Time in which a new claim is bound meanwhile, before the first attempt ends.
const BOUND: Duration = Duration::from_secs(2);
const _: () = assert!(RETRIED.as_secs() + BOUND.as_secs() < LONG_HELD.as_secs());

impl World {
    /// Two namespaces share the directory of the strangers, which the oracle watches (data-safety rule 26).
    pub(super) async fn share_a_directory(&mut self) -> Result<(), Violation> {
        self.create_class("shared", &[("existing", "Share"), ("pathPattern", "strangers")])?;
        let volume = self.provision((NAMESPACE, CLAIM), "shared").await?;
        self.provision((OTHER_NAMESPACE, CLAIM), "shared").await?;
        // Its record decides, whatever the volume says.
        self.patch_volume(
            &volume,
            &json!({"metadata": {"annotations": {"nfs-operator.io/on-delete": "archive"}}}),
        )?;
        self.delete_claim((NAMESPACE, CLAIM))?;
        self.settle().await
    }

    /// A claim names the directory that the claim of another namespace left: it does not get it (data-safety rule 19).
    pub(super) async fn name_the_directory_of_another_namespace(&mut self) -> Result<(), Violation> {
        self.create_class("by-name", &[("existing", "Adopt"), ("pathPattern", "${pvc.name}")])?;
        let (first, second) = ((NAMESPACE, CLAIM), (OTHER_NAMESPACE, CLAIM));
        let retained = [("nfs-operator.io/on-delete", "retain")];
        self.create_claim(first, "by-name", &retained, &json!({}))?;
        self.wait_until_bound(first).await?;
        self.write_file(first).await?;
        self.delete_claim(first)?;
        self.settle().await?;
        self.create_claim(second, "by-name", &[], &json!({}))?;
        self.check_that("a claim got the directory of another namespace", |world| {
            world.volume_of(second).is_none()
        })
        .await
    }

    /// Each volume has a group of its own (data-safety rule 25).
    pub(super) async fn give_each_volume_a_group(&mut self) -> Result<(), Violation> {
        self.change_backend(&json!({"directory": {"gidRange": {"min": GROUPS.start(), "max": GROUPS.end()}}}))
            .await?;
        let mut groups = Vec::new();
        for number in 0..3 {
            let volume = self
                .provision((NAMESPACE, &format!("{CLAIM}-{number}")), "archived")
                .await?;
            let group = self.on_disk(|disk| Ok(disk.inode(find(disk, &volume.directory)?)?.gid))?;
            if !GROUPS.contains(&group) || groups.contains(&group) {
                return Err(broken(format!(
                    "volume {} has group {group}, after {groups:?}",
                    volume.name
                )));
            }
            groups.push(group);
        }
        self.change_backend(&json!({"directory": {"gidRange": null}})).await
    }

    /// A file changes between two backups and keeps its size and time: each backup has its own content. Then a claim asks for a
    /// backup to be moved whose files are in another backup: the oracle checks that they are not in the
    /// volume (data-safety rule 28).
    pub(super) async fn move_a_backup(&mut self) -> Result<(), Violation> {
        let claim = (NAMESPACE, CLAIM);
        let volume = self.provision_with_file(claim, "archived").await?;
        let notes = format!("{}/notes", volume.directory);
        self.on_disk(|disk| make_file(disk, &notes, b"first"))?;
        for (backup, found) in [("special-1", b"first"), ("special-2", b"other")] {
            self.on_disk(|disk| rewrite(disk, &notes, found))?;
            // What changed just before a backup is not linked by the next one.
            self.pass(DONE).await?;
            let reference = json!({"claimRef": {"namespace": NAMESPACE, "name": CLAIM}});
            self.administer(
                "POST",
                ARCHIVES_PATH,
                &json!({"metadata": {"name": backup}, "spec": reference}),
            )?;
            self.wait_until("a backup is complete", |world| {
                (!world.archived_directory(backup).is_empty()).then_some(())
            })
            .await?;
            let copy = format!("archived-{backup}/notes");
            if self.on_disk(|disk| content(disk, &copy))? != *found {
                return Err(broken(format!("backup {backup} has a former content of a file")));
            }
        }
        let source = json!({"apiGroup": "nfs-operator.io", "kind": "NfsArchive", "name": "special-2"});
        let restored = (NAMESPACE, "restored");
        let annotations = [("nfs-operator.io/restore", "move")];
        self.create_claim(restored, "archived", &annotations, &json!({"dataSourceRef": source}))?;
        self.wait_until_bound(restored).await?;
        self.write_file(restored).await
    }

    /// The name of a directory leaves room for that of its archive (data-safety rule 9).
    pub(super) async fn use_a_long_name(&mut self) -> Result<(), Violation> {
        let long = "long".repeat(60);
        let claim = (NAMESPACE, long.as_str());
        let volume = self.provision_archive(claim).await?;
        let found = self.archived_directory(&volume.name);
        match found == format!("archived-{}", volume.directory) {
            true => Ok(()),
            false => Err(broken(format!("{} was archived as {found}", volume.directory))),
        }
    }

    /// The directory of a volume does not have a name like that of an archive (data-safety rule 9).
    pub(super) async fn use_the_name_of_an_archive(&mut self) -> Result<(), Violation> {
        self.create_class("by-name", &[("pathPattern", "${pvc.name}")])?;
        let claim = (NAMESPACE, "archived-special");
        self.create_claim(claim, "by-name", &[], &json!({}))?;
        self.check_that("a directory has a name like that of an archive", |world| {
            world.volume_of(claim).is_none()
        })
        .await
    }

    /// An archive with a legal hold has expired: its data stay (data-safety rule 21).
    pub(super) async fn hold_an_expired_archive(&mut self) -> Result<(), Violation> {
        let claim = (NAMESPACE, CLAIM);
        let volume = self.provision_archive(claim).await?;
        let directory = self.archived_directory(&volume.name);
        let archive = archive_path(&volume.name);
        let terms = json!({"legalHold": true, "expirationTime": archives::time_in(&self.api, 0)});
        self.administer("PATCH", &archive, &json!({"spec": terms}))?;
        self.check_that("an archive with a legal hold was purged", |world| {
            world.exists(&directory)
        })
        .await
    }

    /// The server gives each new directory its own mode: a claim that requests another one says so (data-safety rule 10).
    pub(super) async fn refuse_modes(&mut self) -> Result<(), Violation> {
        self.create_class("strict", &[("mode", "0750")])?;
        let claim = (NAMESPACE, CLAIM);
        self.set_inherited_mode(Some(0o777))?;
        self.create_claim(claim, "strict", &[], &json!({}))?;
        self.check_that("a claim is bound although its directory has another mode", |world| {
            world.volume_of(claim).is_none()
        })
        .await?;
        let is_reported = |world: &Self| {
            let claim = world.claim(claim)?;
            has_reason(&claim, "ModeRefused").then_some(())
        };
        self.wait_until("a claim reports that its mode was refused", is_reported)
            .await?;
        self.set_inherited_mode(None)
    }

    /// Many claims failed, and each further attempt takes long: a claim that comes for the first time does not wait for them
    /// (data-safety rule 24).
    pub(super) async fn let_many_claims_fail(&mut self) -> Result<(), Violation> {
        self.create_class("strict", &[("mode", "0750")])?;
        self.set_inherited_mode(Some(0o777))?;
        let names: Vec<String> = (0..FAILING).map(|number| format!("failing-{number}")).collect();
        for name in &names {
            self.create_claim((NAMESPACE, name), "strict", &[], &json!({}))?;
        }
        let have_failed = |world: &Self| {
            let has_failed = |claim: Option<Arc<Value>>| claim.is_some_and(|claim| has_reason(&claim, "ModeRefused"));
            let mut claims = names.iter().map(|name| world.claim((NAMESPACE, name)));
            claims.all(has_failed).then_some(())
        };
        self.wait_until("claims report that their mode was refused", have_failed)
            .await?;
        self.server.with_faults(|faults| {
            for _ in 0..FAILING {
                faults.script(CallSummary::makes_directory, Fault::Hold(LONG_HELD));
            }
        });
        self.pass(RETRIED).await?;
        // Only the calls that are held already still are.
        self.server.with_faults(Faults::clear);
        self.set_inherited_mode(None)?;
        let claim = (NAMESPACE, CLAIM);
        self.create_claim(claim, "archived", &[], &json!({}))?;
        self.pass(BOUND).await?;
        match self.volume_of(claim) {
            Some(_) => Ok(()),
            None => Err(broken("a new claim waits for claims that failed before")),
        }
    }

    /// A volume is retained and removed by hand: its directory is not given to the next claim of the name (data-safety rule
    /// 19).
    pub(super) async fn remove_a_volume_by_hand(&mut self) -> Result<(), Violation> {
        let claim = (NAMESPACE, CLAIM);
        let volume = self.provision_with_file(claim, ADOPTING).await?;
        self.set_reclaim_policy(&volume, "Retain")?;
        self.delete_claim(claim)?;
        self.settle().await?;
        self.administer("DELETE", &volume_path(&volume.name), &json!({}))?;
        self.settle().await?;
        self.create_claim(claim, ADOPTING, &[], &json!({}))?;
        self.check_that("a claim got the directory in the record of another volume", |world| {
            world.volume_of(claim).is_none()
        })
        .await
    }

    /// A volume is marked as released although its claim exists: it is not reclaimed (data-safety rule 8).
    pub(super) async fn mark_as_released(&mut self) -> Result<(), Violation> {
        let volume = self.provision_with_file((NAMESPACE, CLAIM), "deleted").await?;
        let path = format!("{}/status", volume_path(&volume.name));
        self.administer("PATCH", &path, &json!({"status": {"phase": "Released"}}))?;
        let end = Instant::now() + OBSERVED;
        // The volume controller, which would correct it, does nothing meanwhile.
        while Instant::now() < end {
            sleep(STEP).await;
            self.look()?;
        }
        self.settle().await
    }

    /// Somebody edits the annotations of a volume, which then says something else than its record: it is not reclaimed
    /// (data-safety rule 8).
    pub(super) async fn edit_a_volume(&mut self) -> Result<(), Violation> {
        let claim = (NAMESPACE, CLAIM);
        let volume = self.provision_with_file(claim, "deleted").await?;
        let fileid = self.on_disk(|disk| find(disk, &volume.directory))?;
        let annotate =
            |fileid: u64| json!({"metadata": {"annotations": {"nfs-operator.io/file-id": fileid.to_string()}}});
        self.patch_volume(&volume, &annotate(fileid + 1000))?;
        self.delete_claim(claim)?;
        let stays = format!("{} was removed, whose record has another fileid", volume.directory);
        self.check_that(&stays, |world| world.exists(&volume.directory)).await?;
        self.patch_volume(&volume, &annotate(fileid))?;
        self.settle().await
    }

    /// Somebody gives a volume to another claim, and says that its record is that claim's, which it is not: it is not
    /// reclaimed (data-safety rule 8).
    pub(super) async fn edit_the_claim_of_a_volume(&mut self) -> Result<(), Violation> {
        let (first, second) = ((NAMESPACE, CLAIM), (OTHER_NAMESPACE, CLAIM));
        let volume = self.provision_with_file(first, "deleted").await?;
        self.set_reclaim_policy(&volume, "Retain")?;
        self.delete_claim(first)?;
        self.settle().await?;
        self.create_claim(second, "deleted", &[], &json!({"volumeName": volume.name}))?;
        let claim = self.claim(second).map(|claim| uid(&claim).to_owned());
        let annotate = |claim: Option<&str>| json!({"nfs-operator.io/claim-uid": claim});
        self.patch_volume(
            &volume,
            &json!({"metadata": {"annotations": annotate(claim.as_deref())}, "spec": {"claimRef": null}}),
        )?;
        self.wait_until_bound(second).await?;
        self.set_reclaim_policy(&volume, "Delete")?;
        self.delete_claim(second)?;
        let stays = format!(
            "{} was removed, whose record is that of another claim",
            volume.directory
        );
        self.check_that(&stays, |world| world.exists(&volume.directory)).await?;
        self.patch_volume(&volume, &json!({"metadata": {"annotations": annotate(None)}}))?;
        self.settle().await
    }

    fn set_inherited_mode(&self, mode: Option<u32>) -> Result<(), Violation> {
        self.trace
            .record("nas", format_args!("gives directories the mode {mode:?}"));
        self.on_disk(|disk| {
            disk.options_mut().inherited_mode = mode;
            Ok(())
        })
    }
}
