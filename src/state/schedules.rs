//! The schedules of the schedule watch: how many of a namespace are served, and what their changes requeue.

use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;

use crate::api::NfsBackupSchedule;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::state::context::Context;

/// Maximum number of schedules of a namespace that request backups. Each may run once a minute, which costs a few requests
/// (docs/security.md, Budget).
const MAX_PER_NAMESPACE: usize = 100;

/// Position among the schedules of a namespace: the oldest ones are served.
type Rank = (Option<Timestamp>, String);

fn rank(schedule: &NfsBackupSchedule) -> Rank {
    let created = schedule.metadata.creation_timestamp.as_ref().map(|time| time.0);
    (created, schedule.name_any())
}

/// Checks that a schedule is one of those of its namespace that are served.
///
/// # Errors
/// The condition to report.
pub fn check_number(ctx: &Context, schedule: &NfsBackupSchedule) -> Result<(), PlannedCondition> {
    let (namespace, rank_of_this) = (schedule.namespace(), rank(schedule));
    let older = ctx
        .stores
        .schedules
        .state()
        .into_iter()
        .filter(|other| other.namespace() == namespace && rank(other) < rank_of_this);
    if older.count() < MAX_PER_NAMESPACE {
        return Ok(());
    }
    let message = format!(
        "the namespace has {MAX_PER_NAMESPACE} older schedules, the maximum, so this one requests no backups: delete schedules, \
         or select more claims in one"
    );
    Err(PlannedCondition::fails(Reason::TooManySchedules, message))
}

/// Handles a change of the cache of schedules: the place of a deleted one is taken by the next one.
pub fn observe_cached(event: &Event<NfsBackupSchedule>, ctx: &Context) {
    let Event::Delete(deleted) = event else { return };
    ctx.last_written.forget(&deleted.uid().unwrap_or_default());
    ctx.backup_retries.reset(&deleted.uid().unwrap_or_default());
    let namespace = deleted.namespace();
    let all = ctx.stores.schedules.state().into_iter();
    let mut others: Vec<Arc<NfsBackupSchedule>> = all.filter(|other| other.namespace() == namespace).collect();
    if others.len() < MAX_PER_NAMESPACE {
        return;
    }
    others.sort_by_cached_key(|other| rank(other));
    if let Some(next) = others.get(MAX_PER_NAMESPACE - 1) {
        ctx.requeue_schedule(ObjectRef::from_obj(next.as_ref()));
    }
}
