//! One scheduled time: the claims that are selected, and the backups that are requested.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::PostParams;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use rand::RngExt as _;

use crate::api::backup::{BackupSource, NfsBackup, NfsBackupSpec, ScheduleReference};
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::schedule::NfsBackupSchedule;
use crate::decide::schedule::{ParsedSchedule, backup_name, is_of_schedule};
use crate::runtime::api_error::api_error_text;
use crate::runtime::reads;
use crate::runtime::writes::{self, WriteError};
use crate::state::context::Context;
use export_store::text::{abbreviate, counted};

/// Maximum number of claims of one schedule: its backups are requested one after the other (docs/security.md, Budget).
const MAX_CLAIMS: usize = 500;
/// Maximum number of backups of all schedules of a namespace that are not complete. Whatever its tenants schedule, no more
/// objects wait for the quota or for a copy (docs/security.md, Budget).
const MAX_UNFINISHED: usize = 500;
/// Maximum number of backups that the API server refuses one after the other at a scheduled time: it would refuse the others,
/// too.
const MAX_REFUSED: usize = 20;
/// Maximum number of claims in the message, which is written to every schedule.
const MAX_NAMED: usize = 10;

/// Maximum length of the API server's refusal of a backup in the message, in bytes.
const MAX_REFUSAL: usize = 300;

/// The result of a scheduled time.
#[derive(Debug, Default)]
pub(super) struct Run {
    requested: usize,
    /// Backups that were requested or refused.
    attempts: usize,
    /// Refused ones since the last one that was requested.
    refused: usize,
    /// Claims without a backup, and why.
    skipped: Vec<(String, Skipped)>,
}

/// Why a claim gets no backup at a scheduled time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum Skipped {
    #[error("does not exist: create it, or remove it from spec.claims.matchNames")]
    Missing,
    #[error("its previous backup is not complete: see the conditions of its NfsBackups")]
    Unfinished,
    #[error("another NfsBackup has the name of its backup: delete that")]
    NameTaken,
    /// By a ResourceQuota or a policy.
    #[error("its NfsBackup is refused: {0}")]
    Refused(String),
    #[error("{MAX_REFUSED} NfsBackups in a row were refused before it: correct what refuses them")]
    TooManyRefused,
    #[error("a schedule backs up at most {MAX_CLAIMS} claims: divide them among several")]
    TooManyClaims,
    #[error("{MAX_UNFINISHED} scheduled backups of the namespace are not complete: see their conditions")]
    TooManyUnfinished,
}

impl Run {
    /// Returns why no more backups are requested, if `unfinished` others of the namespace are not complete. What the API server
    /// refuses counts, too: it takes the same time.
    fn limit(&self, unfinished: usize) -> Option<Skipped> {
        match () {
            () if self.attempts >= MAX_CLAIMS => Some(Skipped::TooManyClaims),
            () if self.refused >= MAX_REFUSED => Some(Skipped::TooManyRefused),
            () if unfinished + self.requested >= MAX_UNFINISHED => Some(Skipped::TooManyUnfinished),
            () => None,
        }
    }

    /// Records the result of an attempt.
    fn record(&mut self, claim: String, skipped: Option<Skipped>) {
        self.attempts += 1;
        match skipped {
            Some(why) => {
                self.refused += usize::from(matches!(why, Skipped::Refused(_)));
                self.skipped.push((claim, why));
            }
            None => {
                self.refused = 0;
                self.requested += 1;
            }
        }
    }

    /// Returns the condition to report.
    pub(super) fn condition(&self, at: Timestamp) -> PlannedCondition {
        if self.requested == 0 && self.skipped.is_empty() {
            let message = format!(
                "nothing was backed up at {at}: spec.claims selects no claim that this operator provisioned; correct \
                 spec.claims, or label the claims"
            );
            return PlannedCondition::fails(Reason::NoClaimsSelected, message);
        }
        let requested = format!("requested {} at {at}", counted(self.requested, "backup"));
        if self.skipped.is_empty() {
            return PlannedCondition::holds(Reason::Scheduled, requested);
        }
        let named = self.skipped.iter().take(MAX_NAMED);
        let mut named: Vec<String> = named.map(|(claim, why)| format!("{claim} ({why})")).collect();
        if self.skipped.len() > MAX_NAMED {
            named.push("…".to_owned());
        }
        let message = format!("{requested}, and skipped {}: {}", self.skipped.len(), named.join(", "));
        PlannedCondition::fails(Reason::ClaimsSkipped, message)
    }
}

/// Backups of the schedules of a namespace that are not complete.
#[derive(Debug, Default)]
struct Unfinished {
    /// Claims with one of this schedule, of another time: their names and UIDs. The UID is empty as long as the archive of the
    /// backup does not have it.
    claims: BTreeSet<(String, String)>,
    /// Number of those of all schedules, without those of this time: they are counted as they are requested.
    count: usize,
}

impl Unfinished {
    fn observe(ctx: &Context, schedule: &NfsBackupSchedule, at: Timestamp) -> Self {
        Self::of(&ctx.stores.backups.state(), (schedule, at), |backup| {
            let archive = ctx.stores.archives.get(&ObjectRef::new(&backup.archive_name()));
            archive.map(|archive| archive.observed().claim_uid.clone())
        })
    }

    fn of(
        backups: &[Arc<NfsBackup>],
        (schedule, at): (&NfsBackupSchedule, Timestamp),
        claim_uid: impl Fn(&NfsBackup) -> Option<String>,
    ) -> Self {
        let mut unfinished = Self::default();
        for backup in backups {
            let reference = backup.spec.schedule_ref.as_ref();
            let is_counted = backup.is_unfinished() && backup.namespace() == schedule.namespace();
            let Some(reference) = reference.filter(|_| is_counted) else {
                continue;
            };
            let is_of_schedule = is_of_schedule(backup, schedule);
            if is_of_schedule && reference.scheduled_time.0 == at {
                continue;
            }
            unfinished.count += 1;
            if let Some(claim) = backup.claim_name().filter(|_| is_of_schedule) {
                let uid = claim_uid(backup).unwrap_or_default();
                unfinished.claims.insert((claim.to_owned(), uid));
            }
        }
        unfinished
    }

    /// Returns true if a claim has an unfinished backup. That of an earlier claim of the name is not one of it.
    fn has(&self, name: &str, uid: &str) -> bool {
        let has = |uid: &str| self.claims.contains(&(name.to_owned(), uid.to_owned()));
        has("") || has(uid)
    }
}

/// Requests the backups of a scheduled time.
pub(super) async fn request_backups(
    ctx: &Context,
    schedule: &NfsBackupSchedule,
    parsed: &ParsedSchedule,
    at: Timestamp,
) -> Result<Run, WriteError> {
    let claims = selected_claims(ctx, schedule, parsed).await?;
    let missing = schedule
        .spec
        .claims
        .match_names
        .iter()
        .filter(|name| !claims.contains_key(*name));
    let mut run = Run {
        skipped: missing.map(|name| (name.clone(), Skipped::Missing)).collect(),
        ..Run::default()
    };
    let unfinished = Unfinished::observe(ctx, schedule, at);
    // Begin anywhere, so that it is not always the same claims that come too late.
    let mut claims: Vec<(String, String)> = claims.into_iter().collect();
    let first = rand::rng().random_range(0..claims.len().max(1));
    claims.rotate_left(first);
    for (claim, uid) in claims {
        let skipped = unfinished.has(&claim, &uid).then_some(Skipped::Unfinished);
        match skipped.or_else(|| run.limit(unfinished.count)) {
            Some(why) => run.skipped.push((claim, why)),
            None => {
                let skipped = create(ctx, schedule, &claim, at).await?;
                run.record(claim, skipped);
            }
        }
    }
    Ok(run)
}

/// Returns the names and UIDs of the claims that the schedule selects. Read from the API server: the watch cache has no claims
/// that need nothing.
async fn selected_claims(
    ctx: &Context,
    schedule: &NfsBackupSchedule,
    parsed: &ParsedSchedule,
) -> Result<BTreeMap<String, String>, WriteError> {
    let namespace = schedule.namespace().unwrap_or_default();
    let claims = |client| Api::<PersistentVolumeClaim>::namespaced(client, &namespace);
    let named = &schedule.spec.claims.match_names;
    let mut found = BTreeMap::new();
    let listed = reads::each_metadata(&ctx.clients, claims, |claim| {
        let name = claim.name.clone().unwrap_or_default();
        let is_selected = || parsed.selects(claim, |provisioner| ctx.settings.serves(provisioner));
        if claim.deletion_timestamp.is_none() && (named.contains(&name) || is_selected()) {
            found.insert(name, claim.uid.clone().unwrap_or_default());
        }
    });
    listed
        .await
        .map_err(WriteError::action("list the claims of the schedule"))?;
    Ok(found)
}

/// Creates the backup of a claim unless it exists. Returns why it cannot be created, if the next attempt could not either.
async fn create(
    ctx: &Context,
    schedule: &NfsBackupSchedule,
    claim: &str,
    at: Timestamp,
) -> Result<Option<Skipped>, WriteError> {
    let namespace = schedule.namespace().unwrap_or_default();
    let backup = NfsBackup {
        metadata: ObjectMeta {
            name: Some(backup_name(schedule, claim, at)),
            namespace: Some(namespace.clone()),
            ..ObjectMeta::default()
        },
        spec: NfsBackupSpec {
            source: BackupSource {
                claim_name: Some(claim.to_owned()),
                archive_name: None,
            },
            retention: schedule.spec.retention.clone(),
            consistency: schedule.spec.consistency,
            max_snapshot_age: schedule.spec.max_snapshot_age.clone(),
            schedule_ref: Some(ScheduleReference {
                name: schedule.name_any(),
                uid: schedule.uid().unwrap_or_default(),
                scheduled_time: Time(at),
            }),
        },
        status: None,
    };
    // An earlier attempt may have created it, perhaps before the retention was edited.
    let is_same = |existing: &NfsBackup| {
        existing.spec.schedule_ref == backup.spec.schedule_ref && existing.claim_name() == Some(claim)
    };
    let key = ObjectRef::new(&backup.name_any()).within(&namespace);
    if ctx.stores.backups.get(&key).is_some_and(|existing| is_same(&existing)) {
        return Ok(None);
    }
    let api: Api<NfsBackup> = Api::namespaced(ctx.clients.calls.clone(), &namespace);
    match api.create(&PostParams::default(), &backup).await {
        Ok(_) => Ok(None),
        Err(error) if writes::http_status(&error) == Some(409) => {
            let existing = reads::get_backup(&ctx.clients.calls, &namespace, &backup.name_any()).await;
            let existing = existing.map_err(WriteError::action("read the backup of a schedule"))?;
            // A ResourceQuota changed at the same time, or the object was deleted since.
            let existing = existing.ok_or(WriteError::Conflict)?;
            Ok((!is_same(&existing)).then_some(Skipped::NameTaken))
        }
        Err(error) if writes::http_status(&error).is_some_and(writes::is_refusal) => {
            Ok(Some(Skipped::Refused(abbreviate(&api_error_text(&error), MAX_REFUSAL))))
        }
        Err(error) => Err(WriteError::action("create the backup of a schedule")(error)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_unfinished_backup_of_the_same_time_or_of_an_earlier_claim_blocks_nothing() {
        let at: Timestamp = "2026-01-02T00:00:00Z".parse().unwrap();
        let schedule: NfsBackupSchedule = serde_json::from_value(json!({
            "metadata": {"name": "daily", "namespace": "team", "uid": "u"},
            "spec": {"schedule": "@daily", "claims": {"selector": {}}},
        }))
        .unwrap();
        let backup = |claim: &str, time: &str| -> Arc<NfsBackup> {
            let reference = json!({"name": "daily", "uid": "u", "scheduledTime": time});
            let mut backup: NfsBackup = serde_json::from_value(json!({
                "metadata": {"name": "b", "namespace": "team", "uid": claim},
                "spec": {"source": {"claimName": claim}, "scheduleRef": reference},
            }))
            .unwrap();
            let time = time.parse().unwrap();
            backup.metadata.name = Some(backup_name(&schedule, claim, time));
            Arc::new(backup)
        };
        let (earlier, now) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
        let backups = [
            backup("requested-now", now),
            backup("recreated", earlier),
            backup("waits", earlier),
        ];
        let unfinished = Unfinished::of(&backups, (&schedule, at), |backup| {
            (backup.claim_name() == Some("recreated")).then(|| "former".to_owned())
        });
        assert_eq!(unfinished.count, 2);
        let of = ["requested-now", "recreated", "waits"].map(|claim| unfinished.has(claim, "uid"));
        assert_eq!(of, [false, false, true]);
        assert!(unfinished.has("recreated", "former"));
    }

    #[test]
    fn a_run_ends_whatever_becomes_of_its_backups() {
        let attempts = |result: Option<Skipped>| {
            let mut run = Run::default();
            while run.limit(0).is_none() {
                run.record("a".to_owned(), result.clone());
            }
            (run.attempts, run.limit(0))
        };
        assert_eq!(attempts(None), (MAX_CLAIMS, Some(Skipped::TooManyClaims)));
        assert_eq!(
            attempts(Some(Skipped::NameTaken)),
            (MAX_CLAIMS, Some(Skipped::TooManyClaims))
        );
        let refused = Skipped::Refused("exceeded quota".to_owned());
        assert_eq!(attempts(Some(refused)), (MAX_REFUSED, Some(Skipped::TooManyRefused)));
        assert_eq!(Run::default().limit(MAX_UNFINISHED), Some(Skipped::TooManyUnfinished));
    }

    fn condition(requested: usize, skipped: &[(&str, Skipped)]) -> PlannedCondition {
        let skipped = skipped
            .iter()
            .map(|(claim, why)| ((*claim).to_owned(), why.clone()))
            .collect();
        let run = Run {
            requested,
            skipped,
            ..Run::default()
        };
        run.condition(Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn a_claim_without_a_backup_is_reported() {
        let all = condition(2, &[]);
        assert_eq!((all.status, all.reason), (Some(true), Reason::Scheduled));
        assert_eq!(all.message, "requested 2 backups at 1970-01-01T00:00:00Z");
        let some = condition(1, &[("a", Skipped::Unfinished), ("b", Skipped::Missing)]);
        assert_eq!((some.status, some.reason), (Some(false), Reason::ClaimsSkipped));
        assert!(some.message.starts_with("requested 1 backup at"), "{}", some.message);
        assert!(some.message.contains("skipped 2: a (its previous"), "{}", some.message);
        assert_eq!(condition(0, &[]).reason, Reason::NoClaimsSelected);
        let many = condition(0, &vec![("a", Skipped::Refused("x".repeat(MAX_REFUSAL))); 100]);
        assert!(many.message.len() < 4500, "{}", many.message);
    }
}
