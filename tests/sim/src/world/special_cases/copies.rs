//! Copies of volumes, while others change what is copied.

use nfs_client::FsId;
use serde_json::json;

use super::disk::{make_directory, make_file, remove, rename};
use super::{CLAIM, LOOK, NAMESPACE, OTHER_NAMESPACE, Volume, broken};
use crate::nfs_server::file_system::Ino;
use crate::nfs_server::{Faults, FileSystem, FileSystemOptions, Place};
use crate::objects::ARCHIVES_PATH;
use crate::oracle::{DISK, Violation};
use crate::world::World;

/// Number of files in a directory whose copy is interrupted: they take longer than its deletion.
const COPIED: usize = 3000;
/// Number of files in a directory whose listing has one page.
const LISTED: usize = 200;
/// Number of names in the staging folder once a copy has begun.
const BEGUN: usize = 50;
/// Directory with the snapshots of the server.
const SNAPSHOTS: &str = ".snapshot";

impl World {
    /// The source of a clone is deleted while it is copied: no claim gets a part of it (data-safety rule 23).
    pub(super) async fn delete_the_source_of_a_copy(&mut self) -> Result<(), Violation> {
        let (source, clone) = ((NAMESPACE, CLAIM), (NAMESPACE, "clone"));
        let volume = self.provision(source, "deleted").await?;
        self.make_files(&volume.directory, COPIED)?;
        // The purge leaves the directory itself, so that its handle stays valid.
        let place = self.mount_in(&volume.directory)?;
        self.begin_clone(clone).await?;
        self.delete_claim(source)?;
        let is_complete = |world: &Self, copy: &Volume| world.number_of_names(&copy.directory).unwrap_or(0) > COPIED;
        self.check_that(
            "a claim has a part of its source, which was deleted during the copy",
            |world| world.volume_of(clone).is_none_or(|copy| is_complete(world, &copy)),
        )
        .await?;
        self.server.unmount(&place);
        self.server.with_faults(Faults::clear);
        Ok(())
    }

    /// A file gets another name after its directory was listed, and before it is copied: the copy has it (data-safety rule
    /// 23).
    pub(super) async fn rename_during_a_copy(&mut self) -> Result<(), Violation> {
        let clone = (NAMESPACE, "clone");
        let volume = self.provision((NAMESPACE, CLAIM), "deleted").await?;
        self.make_files(&volume.directory, LISTED)?;
        self.begin_clone(clone).await?;
        let last = format!("{}/{}", volume.directory, LISTED - 1);
        self.trace.record("node", format_args!("renames {last}"));
        self.on_disk(|disk| rename(disk, &last, &format!("{}/renamed", volume.directory)))?;
        let copy = self.wait_until_bound(clone).await?;
        self.server.with_faults(Faults::clear);
        match self.exists(&format!("{}/renamed", copy.directory)) {
            true => Ok(()),
            false => Err(broken("a file that was renamed during a copy is not in the copy")),
        }
    }

    /// Creates a clone of the claim, and waits until a part of it is copied. From then on, each call takes a while.
    async fn begin_clone(&mut self, clone: (&str, &str)) -> Result<(), Violation> {
        let staging = format!("{}/staging", self.cluster_folder()?);
        self.slow_down();
        let reference = json!({"kind": "PersistentVolumeClaim", "name": CLAIM});
        self.create_claim(clone, "deleted", &[], &json!({"dataSource": reference}))?;
        self.catch("a claim is copied", |world| {
            (world.number_of_names(&staging).unwrap_or(0) >= BEGUN).then_some(())
        })
        .await
    }

    /// Creates so many empty files in a directory.
    fn make_files(&self, directory: &str, files: usize) -> Result<(), Violation> {
        self.on_disk(|disk| (0..files).try_for_each(|file| make_file(disk, &format!("{directory}/{file}"), b"")))
    }

    /// Mounts another file system in a directory. Returns where.
    fn mount_in(&self, directory: &str) -> Result<Place, Violation> {
        let ino = self.on_disk(|disk| make_directory(disk, &format!("{directory}/mounted")))?;
        let options = FileSystemOptions {
            fsid: FsId { major: 98, minor: 0 },
            ..FileSystemOptions::default()
        };
        Ok(self.mount(ino, "mounted", FileSystem::new(options)))
    }

    /// Mounts a disk of this name in a directory. Returns where.
    fn mount(&self, directory: Ino, name: &str, disk: FileSystem) -> Place {
        self.server.insert_disk(name, disk);
        let place = Place {
            disk: DISK.to_owned(),
            ino: directory,
        };
        self.server.mount(place.clone(), name);
        place
    }

    /// A snapshot is older than the claim that an administrator gave a volume: no backup of that claim has what it shows
    /// (data-safety rule 29).
    pub(super) async fn copy_the_snapshot_of_another_claim(&mut self) -> Result<(), Violation> {
        let (first, second) = ((NAMESPACE, CLAIM), (OTHER_NAMESPACE, CLAIM));
        let volume = self.provision_with_file(first, "deleted").await?;
        self.set_reclaim_policy(&volume, "Retain")?;
        let place = self.make_snapshot()?;
        self.delete_claim(first)?;
        self.pass(LOOK * 5).await?;
        self.give_volume(&volume, second, "deleted").await?;
        self.pass(LOOK * 5).await?;
        let spec = json!({"claimRef": {"namespace": OTHER_NAMESPACE, "name": CLAIM}, "consistency": "Required"});
        self.administer(
            "POST",
            ARCHIVES_PATH,
            &json!({"metadata": {"name": CLAIM}, "spec": spec}),
        )?;
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
        Ok(self.mount(ino, "snapshot", snapshot))
    }
}
