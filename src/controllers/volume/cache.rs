//! Keeps the inventory and the ledger in step with the volumes of the cluster.

use std::collections::HashSet;

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt;
use kube::runtime::watcher::Event;

use crate::api::names;
use crate::decide::policy::is_released;
use crate::state::capacity::CapacityTracker;
use crate::state::context::{Context, Settings};
use export_store::ledger::FileKey;
use export_store::{Holder, PathReservations, ReservedPath};

/// Follows the volume watch, so that a volume counts and its directory is taken from the moment it is seen.
#[derive(Default)]
pub struct VolumeIndexer {
    relisting: Relisting,
}

/// A list that is coming in.
#[derive(Default)]
struct Relisting {
    before: HashSet<String>,
    listed: HashSet<String>,
}

impl Relisting {
    /// A list is asked for, and these volumes were known before.
    fn begin(before: HashSet<String>) -> Self {
        let listed = HashSet::new();
        Self { before, listed }
    }

    /// The volumes that are gone, at the list's end. One that was made since it was asked for is in no page of it, and is
    /// none of these: the watch tells of it.
    fn gone(&mut self) -> Vec<String> {
        let Self { before, listed } = std::mem::take(self);
        before.into_iter().filter(|name| !listed.contains(name)).collect()
    }
}

impl VolumeIndexer {
    /// Takes in one event of the watch.
    pub fn observe(&mut self, event: &Event<PersistentVolume>, ctx: &Context) {
        match event {
            Event::Init => {
                // Those that take neither room nor a place are not missed when they go.
                let mut before = ctx.capacity.saved_volumes();
                before.extend(ctx.path_reservations.volumes());
                self.relisting = Relisting::begin(before);
            }
            Event::InitApply(volume) => {
                self.relisting.listed.insert(volume.name_any());
                see(volume, ctx);
            }
            Event::InitDone => {
                let gone = self.relisting.gone();
                gone.iter().for_each(|name| forget(name, ctx));
            }
            Event::Apply(volume) => see(volume, ctx),
            Event::Delete(volume) => {
                let uid = volume.uid().unwrap_or_default();
                ctx.volume_retries.forget(&uid);
                ctx.last_reported.forget(&uid);
                forget(&volume.name_any(), ctx);
            }
        }
    }
}

fn see(volume: &PersistentVolume, ctx: &Context) {
    saved(volume, &ctx.settings, &ctx.capacity, &ctx.path_reservations);
    ctx.recovery_holds.see(volume);
    let name = volume.name_any();
    match ctx.capacity.saved_on(&name) {
        Some(backend) => ctx.usage.see(volume, &backend),
        None => ctx.usage.forget(&name),
    }
}

/// A volume is gone: its room and its directory's name are free, which claims may have waited for.
fn forget(name: &str, ctx: &Context) {
    ctx.capacity.gone(name);
    ctx.recovery_holds.gone(name);
    ctx.usage.forget(name);
    ctx.path_reservations.remove(&Holder::Volume(name.to_owned()));
    ctx.waiting_claims.wake_soon();
}

/// A volume exists: ours counts on its backend, and whoever made it, its directory is taken.
pub fn saved(volume: &PersistentVolume, settings: &Settings, inventory: &CapacityTracker, ledger: &PathReservations) {
    let name = volume.name_any();
    let annotations = volume.annotations();
    let by = annotations.get(names::PROVISIONED_BY);
    let ours = by.is_some_and(|by| settings.serves(by));
    // What nfs-subdir made under an alias counts on the alias' backend, where it must be to be reclaimed.
    let inherited = by.and_then(|by| settings.aliases.get(by));
    let backend = annotations.get(names::VOLUME_BACKEND).or(inherited);
    if let Some(backend) = backend.filter(|_| ours) {
        let export_id = annotations.get(names::VOLUME_EXPORT_ID).map(String::as_str);
        inventory.saved(&name, backend, requested(volume), export_id);
        if is_released(volume) {
            // Nobody asks it to grow any more; that its claim went may have been missed.
            inventory.settle(&name);
        }
    }
    let places = places(volume, ours);
    if !places.is_empty() {
        ledger.insert(Holder::Volume(name), places, file(volume).filter(|_| ours));
    }
}

/// The places that a volume takes: its absolute path on its server, and its directory on its export.
fn places(volume: &PersistentVolume, ours: bool) -> Vec<ReservedPath> {
    let mut places = Vec::new();
    if let Some(nfs) = volume.spec.as_ref().and_then(|spec| spec.nfs.as_ref()) {
        places.push(ReservedPath::on_server(&nfs.server, &nfs.path));
    }
    let annotations = volume.annotations();
    let named = (
        annotations.get(names::VOLUME_EXPORT_ID),
        annotations.get(names::VOLUME_DIRECTORY),
    );
    if let (true, (Some(export), Some(directory))) = (ours, named) {
        places.push(ReservedPath::on_export(export, directory));
    }
    places
}

fn file(volume: &PersistentVolume) -> Option<FileKey> {
    let annotations = volume.annotations();
    let file_id = annotations.get(names::VOLUME_FILE_ID)?.parse().ok()?;
    Some((annotations.get(names::VOLUME_EXPORT_ID)?.clone(), file_id))
}

/// A volume's size in bytes; 0 when it says none that makes sense, which no volume of ours does.
pub fn requested(volume: &PersistentVolume) -> u128 {
    volume
        .spec
        .as_ref()
        .and_then(|spec| spec.capacity.as_ref()?.get("storage"))
        .and_then(|quantity| crate::decide::placement::quantity::bytes(&quantity.0))
        .unwrap_or(0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    fn settings() -> Settings {
        Settings::for_tests("p", &[])
    }

    #[test]
    fn a_released_volume_holds_no_room_for_a_growth_that_nobody_asks_for_any_more() {
        let volume = |phase: &str| -> PersistentVolume {
            let annotations = BTreeMap::from([(names::PROVISIONED_BY, "p"), (names::VOLUME_BACKEND, "a")]);
            serde_json::from_value(json!({
                "metadata": {"name": "v", "annotations": annotations},
                "spec": {"capacity": {"storage": "5"}}, "status": {"phase": phase},
            }))
            .unwrap()
        };
        let (settings, inventory, ledger) = (settings(), CapacityTracker::default(), PathReservations::default());
        let see = |phase| saved(&volume(phase), &settings, &inventory, &ledger);
        see("Bound");
        inventory.grow("v", 15, |_| Ok::<(), ()>(())).unwrap();
        see("Bound");
        assert_eq!(inventory.totals("a").bytes, 15, "as it was before it grows");
        // Its claim is gone, which nobody told while the watch of claims was cut off.
        see("Released");
        assert_eq!(inventory.totals("a").bytes, 5);
    }

    #[test]
    fn a_volume_that_is_made_while_the_volumes_are_listed_is_not_taken_for_gone() {
        let inventory = CapacityTracker::default();
        inventory.saved("stays", "a", 1, None);
        inventory.saved("deleted", "a", 1, None);
        let mut relisting = Relisting::begin(inventory.saved_volumes());
        relisting.listed.insert("stays".to_owned());
        inventory.saved("made meanwhile", "a", 1, None);
        assert_eq!(relisting.gone(), ["deleted"]);
        assert!(relisting.gone().is_empty(), "each is forgotten once");
    }
}
