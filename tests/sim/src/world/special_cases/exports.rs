//! What others do on an export.

use std::time::Duration;

use nfs_client::FsId;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::disk::{content, make_directory, make_file, mode, remove, rename};
use super::{ARCHIVES, BACKEND, CLAIM, DONE, LOOK, NAMESPACE, OBSERVED, OTHER_NAMESPACE, Volume, broken, find};
use crate::actors::administrator::EXPORT;
use crate::nfs_server::file_system::Caller;
use crate::nfs_server::{FaultRates, Place};
use crate::objects::has_reason;
use crate::oracle::{DISK, OWN_FOLDER, Violation};
use crate::world::{ADDRESS, STEP, World};

const ROOT: &Caller = &Caller::ROOT;
/// ID of another cluster, smaller than any other.
const OTHER_CLUSTER: &str = "00000000-0000-4000-8000-000000000001";
/// Another name of the server.
const ALIAS: &str = "alias.example.org";
/// Time between two looks at a change in progress.
const MOMENT: Duration = Duration::from_micros(200);
/// Names that a purge may still remove after a directory was moved: those of the calls already sent.
const SENT: usize = 6 * 64;
/// Number of subdirectories in a directory that is purged, and of files in each.
const PURGED: (usize, usize) = (8, 400);
/// The same of one that is copied.
const COPIED: (usize, usize) = (8, 50);
/// Directory with the snapshots of the server.
const SNAPSHOTS: &str = ".snapshot";

impl World {
    /// Somebody lets others enter the operator's folder: no backend may use it (data-safety rule 1).
    pub(super) async fn open_own_folder(&mut self) -> Result<(), Violation> {
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
        .await?;
        self.on_disk(|disk| {
            let folder = find(disk, OWN_FOLDER)?;
            disk.set_attributes(ROOT, folder, mode(0o700))
        })?;
        self.settle().await
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

    /// Lets time pass without the oracle, which misses a directory.
    async fn pass_without_oracle(&mut self, duration: Duration) {
        let end = Instant::now() + duration;
        while Instant::now() < end {
            sleep(STEP).await;
            self.processes.step();
            self.bind();
        }
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

    /// Returns the number of names in a tree.
    fn number_of_names(&self, path: &str) -> Result<usize, Violation> {
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
        let uid = self.claim(claim).map(|claim| crate::objects::uid(&claim).to_owned());
        let name = format!("pvc-{}", uid.unwrap_or_default());
        let volume = Volume {
            directory: known.directory.replace(&known.name, &name).replace("first", CLAIM),
            name,
        };
        let own = format!("{}/records/{}", self.cluster_folder()?, volume.name);
        let end = Instant::now() + DONE;
        while !self.exists(&own) {
            self.observe_until(end, "no record was written for a claim").await?;
        }
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
        self.server.with_faults(crate::nfs_server::Faults::clear);
        self.settle().await
    }

    /// Lets a moment of a change in progress pass, without the oracle. Fails at the end of the time for it.
    async fn observe_until(&mut self, end: Instant, otherwise: &str) -> Result<(), Violation> {
        if Instant::now() >= end {
            return Err(broken(otherwise));
        }
        sleep(MOMENT).await;
        self.bind();
        self.processes.step();
        Ok(())
    }

    /// Lets each call take a while.
    fn slow_down(&self) {
        self.server.with_faults(|faults| {
            faults.set_rates(FaultRates {
                latency: Duration::from_millis(5),
                ..FaultRates::default()
            });
        });
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
        let own = format!("{}/records/{}", self.cluster_folder()?, volume.name);
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
        let claim = (NAMESPACE, CLAIM);
        let volume = self.provision_with_file(claim, "deleted").await?;
        self.network.name(ALIAS, ADDRESS);
        let path = "/api/v1/persistentvolumes";
        let source = json!({"server": ALIAS, "path": format!("{EXPORT}/{}", volume.directory)});
        self.administer(
            "POST",
            path,
            &json!({"metadata": {"name": "static", "labels": {"static": "true"}}, "spec": {"capacity": {"storage": "1Mi"},
                "accessModes": ["ReadWriteMany"], "persistentVolumeReclaimPolicy": "Retain", "nfs": source}}),
        )?;
        self.pass(LOOK * 5).await?;
        self.delete_claim(claim)?;
        let stays = format!("{} was removed, which another volume has by an alias", volume.directory);
        self.check_that(&stays, |world| world.exists(&volume.directory)).await?;
        self.administer("DELETE", &format!("{path}/static"), &json!({}))?;
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
            self.observe_until(end, "a deleted directory is not purged").await?;
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
        self.server.with_faults(crate::nfs_server::Faults::clear);
        self.settle().await
    }

    /// The source of a clone is deleted while it is copied: no claim gets a part of it (data-safety rule 23).
    pub(super) async fn delete_the_source_of_a_copy(&mut self) -> Result<(), Violation> {
        let (source, clone) = ((NAMESPACE, CLAIM), (NAMESPACE, "clone"));
        let volume = self.provision(source, "deleted").await?;
        let (subdirectories, files) = COPIED;
        self.fill(&volume.directory, COPIED)?;
        let staging = format!("{}/staging", self.cluster_folder()?);
        self.slow_down();
        let reference = json!({"kind": "PersistentVolumeClaim", "name": CLAIM});
        self.create_claim(clone, "deleted", &[], &json!({"dataSource": reference}))?;
        let end = Instant::now() + DONE;
        while self.number_of_names(&staging).unwrap_or(0) < files {
            self.observe_until(end, "a claim is not copied").await?;
        }
        self.delete_claim(source)?;
        let is_complete = |world: &Self, copy: &Volume| {
            let found = world.number_of_names(&copy.directory).unwrap_or(0);
            found > subdirectories * files
        };
        self.check_that(
            "a claim has a part of its source, which was deleted during the copy",
            |world| world.volume_of(clone).is_none_or(|copy| is_complete(world, &copy)),
        )
        .await?;
        self.server.with_faults(crate::nfs_server::Faults::clear);
        Ok(())
    }

    /// A snapshot is older than the claim that an administrator gave a volume: no backup of that claim has what it shows
    /// (data-safety rule 29).
    pub(super) async fn copy_the_snapshot_of_another_claim(&mut self) -> Result<(), Violation> {
        let (first, second) = ((NAMESPACE, CLAIM), (OTHER_NAMESPACE, CLAIM));
        let volume = self.provision_with_file(first, "deleted").await?;
        self.patch_volume(&volume, &json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}}))?;
        let place = self.make_snapshot()?;
        self.delete_claim(first)?;
        self.pass(LOOK * 5).await?;
        self.create_claim(second, "deleted", &[], &json!({"volumeName": volume.name}))?;
        self.patch_volume(&volume, &json!({"spec": {"claimRef": null}}))?;
        self.wait_until("a claim is bound to the volume that it names", |world| {
            world.volume_of(second)
        })
        .await?;
        self.pass(LOOK * 5).await?;
        let spec = json!({"claimRef": {"namespace": OTHER_NAMESPACE, "name": CLAIM}, "consistency": "Required"});
        self.administer("POST", ARCHIVES, &json!({"metadata": {"name": CLAIM}, "spec": spec}))?;
        self.check_that("a backup was copied from a snapshot of another claim", |world| {
            world.archived_directory(CLAIM).is_empty()
        })
        .await?;
        self.server.unmount(&place);
        self.on_disk(|disk| remove(disk, SNAPSHOTS))
    }

    /// Takes a snapshot that clients can read. Returns where it is mounted.
    fn make_snapshot(&self) -> Result<Place, Violation> {
        let ino = self.on_disk(|disk| {
            make_directory(disk, SNAPSHOTS)?;
            make_directory(disk, &format!("{SNAPSHOTS}/one"))
        })?;
        let snapshot = self.server.snapshot(DISK);
        let mut snapshot = snapshot.map_err(|status| broken(format!("there is no disk: {status:?}")))?;
        // A file system of its own, whose objects have the same numbers.
        snapshot.options_mut().fsid = FsId { major: 99, minor: 0 };
        self.server.insert_disk("snapshot", snapshot);
        let place = Place {
            disk: DISK.to_owned(),
            ino,
        };
        self.server.mount(place.clone(), "snapshot");
        Ok(place)
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
