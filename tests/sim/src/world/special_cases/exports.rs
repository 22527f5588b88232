//! What others do on an export.

use serde_json::json;
use tokio::time::Instant;

use super::disk::{content, make_directory, make_file, mode, remove, rename};
use super::{BACKEND, CLAIM, DONE, LOOK, NAMESPACE, OBSERVED, OTHER_NAMESPACE, Volume, broken, find};
use crate::actors::administrator::{ALIAS, EXPORT, SERVER};
use crate::nfs_server::file_system::Caller;
use crate::nfs_server::{Fault, Faults};
use crate::objects::{VOLUMES_PATH, has_reason, text, volume_path};
use crate::oracle::{OWN_FOLDER, Violation};
use crate::world::{ADDRESS, World};

const ROOT: &Caller = &Caller::ROOT;
/// ID of another cluster, smaller than any other.
const OTHER_CLUSTER: &str = "00000000-0000-4000-8000-000000000001";
/// Names that a purge may still remove after a directory was moved: those of the calls already sent.
const SENT: usize = 6 * 64;
/// Number of subdirectories in a directory that is purged, and of files in each.
const PURGED: (usize, usize) = (8, 400);

impl World {
    /// Somebody lets others enter the operator's folder: no backend may use it (data-safety rule 1).
    pub(super) async fn open_own_folder(&mut self) -> Result<(), Violation> {
        self.let_others_enter().await?;
        self.close_own_folder()?;
        self.settle().await
    }

    /// Lets others enter the operator's folder, until the backend is not used because of that.
    pub(super) async fn let_others_enter(&mut self) -> Result<(), Violation> {
        self.trace.record("nas", "lets others enter the operator's folder");
        self.on_disk(|disk| {
            let folder = find(disk, OWN_FOLDER)?;
            disk.set_attributes(ROOT, folder, mode(0o777))
        })?;
        let is_reported = |world: &Self| {
            let backend = world.object("nfsbackends", ("", BACKEND))?;
            has_reason(&backend, "ReservedDirectoryUnsafe").then_some(())
        };
        self.wait_until(
            "the backend reports that others may enter the operator's folder",
            is_reported,
        )
        .await
    }

    /// Lets nobody else enter the operator's folder.
    pub(super) fn close_own_folder(&self) -> Result<(), Violation> {
        self.on_disk(|disk| {
            let folder = find(disk, OWN_FOLDER)?;
            disk.set_attributes(ROOT, folder, mode(0o700))
        })
    }

    /// Somebody moves the directory of a volume into the trash: it is not purged (data-safety rule 6).
    pub(super) async fn move_into_trash(&mut self) -> Result<(), Violation> {
        let volume = self.provision_with_file((NAMESPACE, CLAIM), "archived").await?;
        let misplaced = format!("{}/trash/misplaced", self.cluster_folder()?);
        let files = self.number_of_names(&volume.directory)?;
        self.trace
            .record("nas", format_args!("moves {} into the trash", volume.directory));
        self.on_disk(|disk| rename(disk, &volume.directory, &misplaced))?;
        self.pass_without_oracle(DONE).await;
        if self.number_of_names(&misplaced).unwrap_or(0) != files {
            return Err(broken(format!(
                "{} of volume {} was purged, because somebody moved it into the trash",
                volume.directory, volume.name
            )));
        }
        self.on_disk(|disk| rename(disk, &misplaced, &volume.directory))?;
        self.settle().await
    }

    /// Somebody replaces the directory of a volume with another one, which is not reclaimed (data-safety rule 4).
    pub(super) async fn replace_a_directory(&mut self) -> Result<(), Violation> {
        let claim = (NAMESPACE, CLAIM);
        let volume = self.provision(claim, "archived").await?;
        let (other, away) = (
            format!("{}/file", volume.directory),
            format!("{}-away", volume.directory),
        );
        self.trace.record("nas", format_args!("replaces {}", volume.directory));
        self.on_disk(|disk| {
            rename(disk, &volume.directory, &away)?;
            make_directory(disk, &volume.directory)?;
            make_file(disk, &other, b"of somebody else")
        })?;
        self.delete_claim(claim)?;
        self.pass_without_oracle(OBSERVED).await;
        if !self.exists(&other) {
            return Err(broken(format!(
                "{} was reclaimed, which is not the volume's",
                volume.directory
            )));
        }
        self.on_disk(|disk| {
            remove(disk, &volume.directory)?;
            rename(disk, &away, &volume.directory)
        })?;
        self.settle().await
    }

    /// An empty directory has the name of a volume's for a while, as where a disk is not mounted: the volume is not reclaimed
    /// before its own directory is back (data-safety rule 4).
    pub(super) async fn replace_a_directory_with_an_empty_one(&mut self) -> Result<(), Violation> {
        let claim = (NAMESPACE, CLAIM);
        let volume = self.provision_with_file(claim, "archived").await?;
        let away = format!("{}-away", volume.directory);
        self.trace.record(
            "nas",
            format_args!("has an empty directory in the place of {}", volume.directory),
        );
        self.on_disk(|disk| {
            rename(disk, &volume.directory, &away)?;
            make_directory(disk, &volume.directory).map(drop)
        })?;
        self.delete_claim(claim)?;
        self.pass_without_oracle(OBSERVED).await;
        if !self.exists(&volume.directory) {
            return Err(broken(format!(
                "{} was removed, which is not the volume's",
                volume.directory
            )));
        }
        self.on_disk(|disk| remove(disk, &volume.directory))?;
        self.pass_without_oracle(OBSERVED).await;
        if self.object("persistentvolumes", ("", &volume.name)).is_none() {
            return Err(broken(format!(
                "volume {} was reclaimed while its directory was moved away",
                volume.name
            )));
        }
        self.on_disk(|disk| rename(disk, &away, &volume.directory))?;
        self.settle().await
    }

    /// The export is rolled back to before a claim during the first call of its reclaim: what is missing there does not count
    /// as deleted (data-safety rules 2 and 17).
    pub(super) async fn roll_back_during_a_reclaim(&mut self) -> Result<(), Violation> {
        let former = self.on_disk(|disk| Ok(disk.clone()))?;
        let claim = (NAMESPACE, CLAIM);
        let volume = self.provision_with_file(claim, "deleted").await?;
        // The beacon is renewed meanwhile.
        self.pass(OBSERVED).await?;
        self.script_call(Fault::Hang, "persistentvolumes", ("", &volume.name), |volume| {
            text(volume, "/status/phase") == "Released"
        });
        self.delete_claim(claim)?;
        self.catch("a call is sent for a released volume", |world| {
            world.has_hit_calls().then_some(())
        })
        .await?;
        self.storage.roll_back(former);
        let stays = format!(
            "volume {} was deleted, because its directory is missing on a former state of the export",
            volume.name
        );
        self.check_that(&stays, |world| {
            world.object("persistentvolumes", ("", &volume.name)).is_some()
        })
        .await?;
        self.storage.repair();
        self.settle().await
    }

    /// Returns the number of names in a tree.
    pub(super) fn number_of_names(&self, path: &str) -> Result<usize, Violation> {
        self.on_disk(|disk| Ok(disk.walk(find(disk, path)?).len()))
    }

    /// Another cluster has a record of the directory of a volume: the directory is not removed (data-safety rule 20).
    pub(super) async fn record_in_another_cluster(&mut self) -> Result<(), Violation> {
        let claim = (NAMESPACE, CLAIM);
        let volume = self.provision_with_file(claim, "deleted").await?;
        let other = self.create_other_cluster()?;
        self.record_there(&other, &volume)?;
        self.delete_claim(claim)?;
        let stays = format!("{} was removed, which another cluster has recorded", volume.directory);
        self.check_that(&stays, |world| world.exists(&volume.directory)).await?;
        self.on_disk(|disk| remove(disk, &other))?;
        self.settle().await
    }

    /// Another cluster records the directory of a claim just after this one: the directory is not used (data-safety rule
    /// 20).
    pub(super) async fn record_in_another_cluster_meanwhile(&mut self) -> Result<(), Violation> {
        let (first, claim) = ((NAMESPACE, "first"), (NAMESPACE, CLAIM));
        let other = self.create_other_cluster()?;
        // The records of the other cluster are known from now on.
        let known = self.provision(first, "deleted").await?;
        self.slow_down();
        self.create_claim(claim, "deleted", &[], &json!({}))?;
        let name = self.volume_name(claim);
        let volume = Volume {
            directory: known.directory.replace(&known.name, &name).replace("first", CLAIM),
            name,
        };
        let own = self.record_of(&volume)?;
        self.catch("a record is written for a claim", |world| {
            world.exists(&own).then_some(())
        })
        .await?;
        let is_early = !self.exists(&volume.directory);
        self.record_there(&other, &volume)?;
        self.trace
            .record("world", format_args!("before the directory exists: {is_early}"));
        if is_early {
            self.check_that(
                "a claim is bound whose directory another cluster has recorded",
                |world| world.volume_of(claim).is_none(),
            )
            .await?;
        }
        self.on_disk(|disk| remove(disk, &other))?;
        self.server.with_faults(Faults::clear);
        self.settle().await
    }

    /// Creates the folder of another cluster on the export, without records. Returns its path.
    fn create_other_cluster(&self) -> Result<String, Violation> {
        let folder = format!("{OWN_FOLDER}/{OTHER_CLUSTER}");
        self.trace
            .record("nas", format_args!("has the folder of another cluster: {folder}"));
        self.on_disk(|disk| {
            make_directory(disk, &folder)?;
            make_directory(disk, &format!("{folder}/records"))
        })?;
        Ok(folder)
    }

    /// Lets another cluster record the directory of a volume.
    fn record_there(&self, other: &str, volume: &Volume) -> Result<(), Violation> {
        let own = self.record_of(volume)?;
        self.trace.record(
            "nas",
            format_args!("has a record of {} of another cluster", volume.directory),
        );
        self.on_disk(|disk| {
            let record = content(disk, &own)?;
            make_file(disk, &format!("{other}/records/{}", volume.name), &record)
        })
    }

    /// A volume of somebody else is at the same directory, and names the server differently: the directory is not moved
    /// (data-safety rule 16).
    pub(super) async fn use_another_name_of_the_server(&mut self) -> Result<(), Violation> {
        let volume = self.provision_with_file((NAMESPACE, CLAIM), "deleted").await?;
        self.network.name(ALIAS, ADDRESS);
        let stays = format!("{} was removed, which another volume has by an alias", volume.directory);
        self.delete_while_used(&volume, (ALIAS, &volume.directory), &stays)
            .await
    }

    /// A volume of somebody else is inside the directory of another one: the directory is not moved (data-safety rule 5).
    pub(super) async fn use_a_subdirectory(&mut self) -> Result<(), Violation> {
        let volume = self.provision_with_file((NAMESPACE, CLAIM), "deleted").await?;
        let part = format!("{}/part", volume.directory);
        self.on_disk(|disk| make_directory(disk, &part))?;
        let stays = format!("{} was removed, which contains another volume", volume.directory);
        self.delete_while_used(&volume, (SERVER, &part), &stays).await
    }

    /// Deletes the claim of a volume while an administrator has a volume of their own at a directory of the export. The
    /// directory of the claim stays until that one is gone.
    async fn delete_while_used(
        &mut self,
        volume: &Volume,
        (server, directory): (&str, &str),
        stays: &str,
    ) -> Result<(), Violation> {
        let source = json!({"server": server, "path": format!("{EXPORT}/{directory}")});
        self.administer(
            "POST",
            VOLUMES_PATH,
            &json!({"metadata": {"name": "static", "labels": {"static": "true"}}, "spec": {"capacity": {"storage": "1Mi"},
                "accessModes": ["ReadWriteMany"], "persistentVolumeReclaimPolicy": "Retain", "nfs": source}}),
        )?;
        self.pass(LOOK * 5).await?;
        self.delete_claim((NAMESPACE, CLAIM))?;
        self.check_that(stays, |world| world.exists(&volume.directory)).await?;
        self.administer("DELETE", &volume_path("static"), &json!({}))?;
        self.settle().await
    }

    /// The directory of a retained volume is removed by hand, and that of the next claim gets its fileid: this one is
    /// reclaimed nevertheless (data-safety rule 22).
    pub(super) async fn reuse_a_fileid(&mut self) -> Result<(), Violation> {
        let (first, second) = ((NAMESPACE, CLAIM), (OTHER_NAMESPACE, CLAIM));
        let gone = self.provision(first, "archived").await?;
        self.set_reclaim_policy(&gone, "Retain")?;
        self.delete_claim(first)?;
        self.settle().await?;
        self.trace.record("nas", format_args!("removes {}", gone.directory));
        let fileid = self.on_disk(|disk| {
            let fileid = find(disk, &gone.directory)?;
            remove(disk, &gone.directory)?;
            disk.reserve_number(fileid)?;
            Ok(fileid)
        })?;
        let next = self.provision(second, "archived").await?;
        if self.on_disk(|disk| find(disk, &next.directory))? != fileid {
            return Err(broken(format!("{} does not have fileid {fileid}", next.directory)));
        }
        self.delete_claim(second)?;
        // Although the fileid is that of another directory, which is gone.
        self.wait_until_gone("persistentvolumes", &next.name).await?;
        self.administer("DELETE", &volume_path(&gone.name), &json!({}))?;
        self.settle().await
    }

    /// Somebody moves a directory out of the trash while it is purged: what is left in it stays (data-safety rule 23).
    pub(super) async fn move_out_of_trash(&mut self) -> Result<(), Violation> {
        let claim = (NAMESPACE, CLAIM);
        let volume = self.provision(claim, "deleted").await?;
        self.fill(&volume.directory, PURGED)?;
        let all = self.number_of_names(&volume.directory)?;
        let trash = format!("{}/trash", self.cluster_folder()?);
        self.slow_down();
        self.delete_claim(claim)?;
        let end = Instant::now() + DONE;
        let (name, left) = loop {
            self.pass_moment(end, "a deleted directory is purged").await?;
            let Some(name) = self.name_in(&trash)? else { continue };
            // Once, so that the oracle knows that it was deleted.
            self.look()?;
            let left = self.number_of_names(&format!("{trash}/{name}")).unwrap_or(0);
            if left < all {
                break (name, left);
            }
        };
        if left > SENT {
            self.trace.record(
                "nas",
                format_args!("moves a directory with {left} names out of the trash"),
            );
            self.on_disk(|disk| rename(disk, &format!("{trash}/{name}"), "rescued"))?;
            self.pass(DONE).await?;
            let rescued = self.number_of_names("rescued").unwrap_or(0);
            if rescued + SENT < left {
                return Err(broken(format!(
                    "of {left} names that were moved out of the trash, the purge left {rescued}"
                )));
            }
            self.on_disk(|disk| remove(disk, "rescued"))?;
        }
        self.server.with_faults(Faults::clear);
        self.settle().await
    }

    /// Creates so many subdirectories in a directory, and so many files in each.
    fn fill(&self, directory: &str, (subdirectories, files): (usize, usize)) -> Result<(), Violation> {
        self.on_disk(|disk| {
            for subdirectory in 0..subdirectories {
                let subdirectory = format!("{directory}/{subdirectory}");
                make_directory(disk, &subdirectory)?;
                for file in 0..files {
                    make_file(disk, &format!("{subdirectory}/{file}"), b"")?;
                }
            }
            Ok(())
        })
    }

    /// Returns a name in a directory.
    fn name_in(&self, path: &str) -> Result<Option<String>, Violation> {
        self.on_disk(|disk| {
            let (_, directory) = disk.directory(find(disk, path)?)?;
            let name = directory.entries().next();
            Ok(name.map(|entry| String::from_utf8_lossy(&entry.name).into_owned()))
        })
    }
}
