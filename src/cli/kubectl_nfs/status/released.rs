//! Volumes whose claims were deleted, and that the operator does not reclaim.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Event, PersistentVolume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use serde::Serialize;

use crate::api::names::{MANAGED_BY, OPERATOR_NAME, PROVISIONED_BY, VOLUME_BACKEND};
use crate::cli::cluster::{CommandError, each, is_forbidden};
use crate::cli::kubectl_nfs::events::{each_event, event_time};
use crate::cli::kubectl_nfs::names::age;
use crate::cli::output::{Table, Tone, print, print_colored};
use crate::decide::reclaim::{is_released, reclaim_policy};
use crate::decide::volume_directory::claim_ref;
use crate::state::context::Provisioners;
use export_store::text::abbreviate;

/// Maximum number of volumes that are shown, the longest released first.
const MAX_VOLUMES: usize = 10;
/// A volume without a warning may be in the queue of its backend for this time.
const GRACE: Duration = Duration::from_secs(600);

/// Volumes that are not reclaimed.
#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct ReleasedVolumes {
    total: u64,
    /// The first of them.
    volumes: Vec<ReleasedVolume>,
    /// What the user has no permission to list.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_shown: Option<&'static str>,
}

#[derive(Serialize, Clone)]
#[serde(rename_all = "camelCase")]
struct ReleasedVolume {
    name: String,
    /// Namespace and name of its former claim.
    claim: String,
    backend: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    released_time: Option<Time>,
    /// Note of the newest warning event about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    warning: Option<String>,
    #[serde(skip)]
    uid: String,
}

/// The newest warning about each volume, by the UID of the volume.
#[derive(Default)]
struct Warnings(BTreeMap<String, (Option<Timestamp>, String)>);

impl ReleasedVolumes {
    /// Reads the volumes of the operator, and the events about them if some are released.
    pub async fn read(client: &Client, served: &Provisioners) -> Result<Self, CommandError> {
        let mut released = Vec::new();
        let volumes: Api<PersistentVolume> = Api::all(client.clone());
        let listed = each(&volumes, "PersistentVolumes", ListParams::default(), |volume| {
            released.extend(ReleasedVolume::of(&volume, served));
        })
        .await;
        match listed {
            Err(error) if is_forbidden(&error) => {
                return Ok(Self {
                    not_shown: Some("PersistentVolumes"),
                    ..Self::default()
                });
            }
            listed => listed?,
        }
        if released.is_empty() {
            return Ok(Self::default());
        }
        let (warnings, not_shown) = match Warnings::read(client).await {
            Err(error) if is_forbidden(&error) => (Warnings::default(), Some("events in the namespace default")),
            warnings => (warnings?, None),
        };
        Ok(Self {
            not_shown,
            ..Self::select(released, &warnings, Timestamp::now())
        })
    }

    /// Selects the volumes that have a warning, or that have been released for long.
    fn select(released: Vec<ReleasedVolume>, warnings: &Warnings, now: Timestamp) -> Self {
        let mut volumes: Vec<ReleasedVolume> = released
            .into_iter()
            .map(|volume| ReleasedVolume {
                warning: warnings.0.get(&volume.uid).map(|(_, note)| note.clone()),
                ..volume
            })
            .filter(|volume| volume.warning.is_some() || volume.is_overdue(now))
            .collect();
        volumes.sort_by_key(|volume| (volume.released_time.as_ref().map(|time| time.0), volume.name.clone()));
        let total = u64::try_from(volumes.len()).unwrap_or(u64::MAX);
        volumes.truncate(MAX_VOLUMES);
        Self {
            total,
            volumes,
            not_shown: None,
        }
    }

    /// Returns true if there is none, as far as the user can see.
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// Prints the volumes, or that the user may not list them. Nothing is printed if there are none.
    pub fn print(&self, now: Timestamp) -> std::io::Result<()> {
        match self.not_shown {
            Some(what) if self.is_empty() => {
                return print(&format!(
                    "\nReleased volumes: not shown, because you may not list {what}"
                ));
            }
            None if self.is_empty() => return Ok(()),
            _ => {}
        }
        print(&format!("\nReleased volumes that are not reclaimed: {}", self.total))?;
        print_colored(&self.table(now).render())
    }

    fn table(&self, now: Timestamp) -> Table {
        let unknown = match self.not_shown {
            Some(what) => format!("not shown, because you may not list {what}"),
            None => "no event: see the log of the operator".to_owned(),
        };
        let mut table = Table::new(&["VOLUME", "CLAIM", "BACKEND", "RELEASED", "MESSAGE"]);
        for volume in &self.volumes {
            let released = volume.released_time.as_ref().map(|time| age(time, now));
            let message = volume.warning.as_ref().unwrap_or(&unknown);
            table.row(
                Tone::Problem,
                [
                    &volume.name,
                    &volume.claim,
                    &volume.backend,
                    &released.unwrap_or_default(),
                    &abbreviate(message, super::MAX_MESSAGE),
                ],
            );
        }
        let listed = u64::try_from(self.volumes.len()).unwrap_or(u64::MAX);
        if self.total > listed {
            let more = format!("and {} more", self.total - listed);
            table.row(Tone::Problem, [&more, "", "", "", ""]);
        }
        table
    }
}

impl ReleasedVolume {
    /// Returns the volume if the operator has to reclaim it. One with the policy Retain stays as it is.
    fn of(volume: &PersistentVolume, served: &Provisioners) -> Option<Self> {
        let annotation = |name: &str| volume.annotations().get(name);
        let is_ours = annotation(PROVISIONED_BY).is_some_and(|by| served.serves(by))
            || volume.labels().get(MANAGED_BY).is_some_and(|by| by == OPERATOR_NAME);
        if !is_ours || !is_released(volume) || reclaim_policy(volume) == "Retain" {
            return None;
        }
        let claim = claim_ref(volume);
        let status = volume.status.as_ref();
        Some(Self {
            name: volume.name_any(),
            claim: format!("{}/{}", claim.namespace, claim.name),
            backend: annotation(VOLUME_BACKEND).cloned().unwrap_or_default(),
            released_time: status.and_then(|status| status.last_phase_transition_time.clone()),
            warning: None,
            uid: volume.uid().unwrap_or_default(),
        })
    }

    /// Returns true if it should be reclaimed by now. A volume without a time was released before Kubernetes recorded
    /// times.
    fn is_overdue(&self, now: Timestamp) -> bool {
        let grace = SignedDuration::try_from(GRACE).unwrap_or_default();
        let released = self.released_time.as_ref();
        released.is_none_or(|time| now.duration_since(time.0) > grace)
    }
}

impl Warnings {
    async fn read(client: &Client) -> Result<Self, CommandError> {
        let mut warnings = Self::default();
        let about_volumes = "involvedObject.kind=PersistentVolume,type=Warning";
        each_event(client, about_volumes, |event| warnings.add(event)).await?;
        Ok(warnings)
    }

    /// Adds an event, unless a newer one about the same volume is known.
    fn add(&mut self, event: Event) {
        let warning = (event_time(&event), event.message.unwrap_or_default());
        let known = self.0.entry(event.involved_object.uid.unwrap_or_default()).or_default();
        if warning.0 >= known.0 {
            *known = warning;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const NOW: &str = "2026-01-01T12:00:00Z";

    fn volume(name: &str, phase: &str, policy: &str, since: &str) -> Option<ReleasedVolume> {
        let volume: Value = json!({
            "metadata": {"name": name, "uid": format!("uid-{name}"), "labels": {MANAGED_BY: OPERATOR_NAME},
                "annotations": {VOLUME_BACKEND: "main"}},
            "spec": {"persistentVolumeReclaimPolicy": policy, "claimRef": {"namespace": "team", "name": "data"}},
            "status": {"phase": phase, "lastPhaseTransitionTime": since},
        });
        let served = Provisioners {
            names: Vec::new(),
            aliases: BTreeMap::new(),
        };
        ReleasedVolume::of(&serde_json::from_value(volume).unwrap(), &served)
    }

    fn warnings(events: &[(&str, &str, &str)]) -> Warnings {
        let mut warnings = Warnings::default();
        for (volume, time, note) in events {
            let event = json!({"metadata": {}, "eventTime": time, "message": note,
                "involvedObject": {"kind": "PersistentVolume", "uid": format!("uid-{volume}")}});
            warnings.add(serde_json::from_value(event).unwrap());
        }
        warnings
    }

    #[test]
    fn only_a_released_volume_that_the_operator_reclaims_counts() {
        assert!(volume("a", "Released", "Delete", NOW).is_some());
        assert!(volume("a", "Failed", "Recycle", NOW).is_some());
        assert!(volume("a", "Released", "Retain", NOW).is_none());
        assert!(volume("a", "Bound", "Delete", NOW).is_none());
    }

    #[test]
    fn a_volume_is_listed_with_its_newest_warning_or_after_some_minutes_without() {
        let released = [
            ("new", "2026-01-01T11:59:55Z"),
            ("refused", "2026-01-01T11:59:50Z"),
            ("old", "2026-01-01T10:00:00Z"),
        ];
        let released = released.map(|(name, since)| volume(name, "Released", "Delete", since).unwrap());
        let warnings = warnings(&[
            ("refused", "2026-01-01T11:59:54.000000Z", "RecordMissing: second"),
            ("refused", "2026-01-01T11:59:53.000000Z", "DirectoryMissing: first"),
        ]);
        let found = ReleasedVolumes::select(released.to_vec(), &warnings, NOW.parse().unwrap());
        let names: Vec<&str> = found.volumes.iter().map(|volume| volume.name.as_str()).collect();
        assert_eq!((names, found.total), (vec!["old", "refused"], 2));
        let table = found.table(NOW.parse().unwrap()).render();
        for expected in [
            "no event: see the log",
            "RecordMissing: second",
            "team/data",
            "main",
            "2h",
        ] {
            assert!(table.contains(expected), "{expected}: {table}");
        }
    }

    #[test]
    fn the_number_of_rows_is_bounded() {
        let since = "2026-01-01T10:00:00Z";
        let released = (0..15).map(|number| volume(&format!("pvc-{number}"), "Released", "Delete", since).unwrap());
        let found = ReleasedVolumes::select(released.collect(), &Warnings::default(), NOW.parse().unwrap());
        assert_eq!((found.total, found.volumes.len()), (15, MAX_VOLUMES));
        assert!(found.table(NOW.parse().unwrap()).render().contains("and 5 more"));
    }
}
