//! One scheduled time: the claims that are selected, and the backups that are requested.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{ListParams, PostParams};
use kube::{Api, ResourceExt};

use crate::api::backup::{BackupSource, NfsBackup, NfsBackupSpec, ScheduleReference};
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::schedule::NfsBackupSchedule;
use crate::decide::schedule::{ParsedSchedule, backup_name, is_of_schedule};
use crate::runtime::api_error::api_error_text;
use crate::runtime::reads;
use crate::runtime::writes::{self, WriteError};
use crate::state::context::Context;
use export_store::text::abbreviate;

/// Maximum number of claims of one schedule: its backups are requested one after the other (docs/security.md, Budget).
const MAX_CLAIMS: usize = 500;
/// Maximum number of backups of all schedules of a namespace that are not complete. Whatever its tenants schedule, no more
/// objects wait for the quota or for a copy (docs/security.md, Budget).
const MAX_UNFINISHED: usize = 500;
/// Claims in one page of the list.
const PAGE: u32 = 500;
/// Maximum number of claims in the message, which is written to every schedule.
const MAX_NAMED: usize = 10;

/// Maximum length of the API server's refusal of a backup in the message, in bytes.
const MAX_REFUSAL: usize = 300;

/// The result of a scheduled time.
#[derive(Debug, Default)]
pub(super) struct Run {
    requested: usize,
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
    #[error("a schedule backs up at most {MAX_CLAIMS} claims: divide them among several")]
    TooManyClaims,
    #[error("{MAX_UNFINISHED} scheduled backups of the namespace are not complete: see their conditions")]
    TooManyUnfinished,
}

impl Run {
    /// Returns the condition to report.
    pub(super) fn condition(&self, at: Timestamp) -> PlannedCondition {
        if self.requested == 0 && self.skipped.is_empty() {
            let message = format!(
                "nothing was backed up at {at}: spec.claims selects no claim that this operator provisioned; correct \
                 spec.claims, or label the claims"
            );
            return PlannedCondition::fails(Reason::NoClaimsSelected, message);
        }
        let backups = if self.requested == 1 { "backup" } else { "backups" };
        let requested = format!("requested {} {backups} at {at}", self.requested);
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
    /// Claims with one of this schedule, of another time.
    claims: BTreeSet<String>,
    /// Number of those of all schedules.
    count: usize,
}

impl Unfinished {
    fn observe(ctx: &Context, schedule: &NfsBackupSchedule, at: Timestamp) -> Self {
        let mut unfinished = Self::default();
        for backup in ctx.stores.backups.state() {
            let reference = backup.spec.schedule_ref.as_ref();
            let is_counted = backup.is_unfinished() && backup.namespace() == schedule.namespace();
            let Some(reference) = reference.filter(|_| is_counted) else {
                continue;
            };
            unfinished.count += 1;
            if reference.scheduled_time.0 != at && is_of_schedule(&backup, schedule) {
                unfinished.claims.extend(backup.claim_name().map(str::to_owned));
            }
        }
        unfinished
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
        .filter(|name| !claims.contains(*name));
    let mut run = Run {
        requested: 0,
        skipped: missing.map(|name| (name.clone(), Skipped::Missing)).collect(),
    };
    let unfinished = Unfinished::observe(ctx, schedule, at);
    for claim in claims {
        let skipped = match () {
            () if unfinished.claims.contains(&claim) => Some(Skipped::Unfinished),
            () if run.requested >= MAX_CLAIMS => Some(Skipped::TooManyClaims),
            () if unfinished.count + run.requested >= MAX_UNFINISHED => Some(Skipped::TooManyUnfinished),
            () => create(ctx, schedule, &claim, at).await?,
        };
        match skipped {
            Some(why) => run.skipped.push((claim, why)),
            None => run.requested += 1,
        }
    }
    Ok(run)
}

/// Returns the claims that the schedule selects. Read from the API server: the watch cache has no claims that need nothing.
async fn selected_claims(
    ctx: &Context,
    schedule: &NfsBackupSchedule,
    parsed: &ParsedSchedule,
) -> Result<BTreeSet<String>, WriteError> {
    let namespace = schedule.namespace().unwrap_or_default();
    let api: Api<PersistentVolumeClaim> = Api::namespaced(ctx.clients.calls.clone(), &namespace);
    let named = &schedule.spec.claims.match_names;
    let mut found = BTreeSet::new();
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = api.list_metadata(&params).await;
        let page = page.map_err(WriteError::action("list the claims of the schedule"))?;
        let selected = page.items.iter().filter(|claim| {
            let is_selected = || parsed.selects(&claim.metadata, |provisioner| ctx.settings.serves(provisioner));
            claim.metadata.deletion_timestamp.is_none() && (named.contains(&claim.name_any()) || is_selected())
        });
        found.extend(selected.map(|claim| claim.name_any()));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(found),
        }
    }
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
    let api: Api<NfsBackup> = Api::namespaced(ctx.clients.calls.clone(), &namespace);
    match api.create(&PostParams::default(), &backup).await {
        Ok(_) => Ok(None),
        Err(error) if matches!(writes::http_status(&error), Some(403 | 422)) => {
            Ok(Some(Skipped::Refused(abbreviate(&api_error_text(&error), MAX_REFUSAL))))
        }
        Err(error) if writes::http_status(&error) == Some(409) => {
            let existing = reads::get_backup(&ctx.clients.calls, &namespace, &backup.name_any()).await;
            let existing = existing.map_err(WriteError::action("read the backup of a schedule"))?;
            // An earlier attempt created it, perhaps before the retention was edited.
            let is_same = |existing: NfsBackup| {
                existing.spec.schedule_ref == backup.spec.schedule_ref && existing.claim_name() == Some(claim)
            };
            Ok((!existing.is_some_and(is_same)).then_some(Skipped::NameTaken))
        }
        Err(error) => Err(WriteError::action("create the backup of a schedule")(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(requested: usize, skipped: &[(&str, Skipped)]) -> PlannedCondition {
        let skipped = skipped
            .iter()
            .map(|(claim, why)| ((*claim).to_owned(), why.clone()))
            .collect();
        Run { requested, skipped }.condition(Timestamp::UNIX_EPOCH)
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
