//! The backups of the backup watch, and what their changes and those of archives and backends requeue.

use std::collections::{HashMap, HashSet};

use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;
use parking_lot::Mutex;

use crate::api::archive::ArchiveSummary;
use crate::api::backend::BackupSettings;
use crate::api::{NfsArchive, NfsBackend, NfsBackup};
use crate::decide::restore_source::RestoreSource;
use crate::state::archives::archives_of;
use crate::state::context::Context;

/// Number of backups that are tried when another one leaves a part of the quota. Each attempt reads several objects.
const MAX_REQUEUED: usize = 8;

/// The backends that refused backups depend on, by the backup's UID: changes of others do not concern them. A backup that is
/// missing here may depend on any.
#[derive(Debug, Default)]
pub struct BackupBackends(Mutex<HashMap<String, Box<[String]>>>);

impl BackupBackends {
    /// A backup was refused, and only changes of these backends may change that.
    pub fn set(&self, uid: &str, backends: impl IntoIterator<Item = String>) {
        let backends = backends.into_iter().collect();
        self.0.lock().insert(uid.to_owned(), backends);
    }

    /// The backup is checked again, or is gone.
    pub fn forget(&self, uid: &str) {
        self.0.lock().remove(uid);
    }

    fn may_concern(&self, backend: &str, uid: &str) -> bool {
        let all = self.0.lock();
        all.get(uid)
            .is_none_or(|backends| backends.iter().any(|name| name == backend))
    }

    fn retain(&self, exists: impl Fn(&str) -> bool) {
        self.0.lock().retain(|uid, _| exists(uid));
    }
}

/// Returns the backup that has an archive: the one that requested it, or the one that shows it.
fn backup_of(archive: &NfsArchive) -> ObjectRef<NfsBackup> {
    let requested_by = archive.spec.backup_ref.as_ref();
    let name = requested_by.map_or_else(|| archive.name_any(), |reference| reference.name.clone());
    ObjectRef::new(&name).within(&archive.spec.claim_ref.namespace)
}

/// Handles a change of the cache of archives: reconciles the backup, and if a tenant's archive was deleted, the next backups
/// that may wait for their share of the quota.
pub fn observe_archive(event: &Event<NfsArchive>, ctx: &Context) {
    match event {
        Event::Apply(archive) | Event::InitApply(archive) => ctx.requeue_backup(backup_of(archive)),
        Event::Delete(archive) => {
            ctx.requeue_backup(backup_of(archive));
            if archive.is_self_service() {
                ctx.backup_admissions.forget(&archive.name_any());
                requeue_next(ctx, &archive.spec.claim_ref.namespace);
            }
        }
        // The watch broke: any archive may be gone.
        Event::InitDone => requeue_all(ctx, |backup| backup.observed().archive_uid.is_some()),
        Event::Init => {}
    }
}

/// Handles a change of the cache of backups: wakes the claims that restore them, and recreates what only showed an archive.
pub fn observe_cached(event: &Event<NfsBackup>, ctx: &Context) {
    let (Event::Apply(backup) | Event::Delete(backup)) = event else {
        if matches!(event, Event::InitDone) {
            ctx.wake_restores(|_, source| matches!(source, RestoreSource::Backup(_)));
            forget_ended(ctx);
        }
        return;
    };
    let (namespace, source) = (backup.namespace(), RestoreSource::Backup(backup.name_any()));
    ctx.wake_restores(|of, requested| Some(of) == namespace.as_deref() && *requested == source);
    let is_available = backup.observed().state == Some(ArchiveSummary::Available);
    if let Some(schedule) = backup.spec.schedule_ref.as_ref().filter(|_| is_available) {
        // Older ones may be more than it keeps.
        let namespace = namespace.as_deref().unwrap_or_default();
        ctx.requeue_schedule(ObjectRef::new(&schedule.name).within(namespace));
    }
    if matches!(event, Event::Delete(_)) {
        let uid = backup.uid().unwrap_or_default();
        ctx.backup_retries.reset(&uid);
        ctx.last_written.forget(&uid);
        ctx.backup_backends.forget(&uid);
        if backup.is_view() {
            ctx.requeue_archive(ObjectRef::new(&backup.name_any()));
        } else if !has_archive(ctx, &backup.archive_name()) && ctx.backup_admissions.forget(&backup.archive_name()) {
            // It was counted, and deleted before its archive was created.
            requeue_next(ctx, namespace.as_deref().unwrap_or_default());
        }
    }
}

/// Forgets the archives that neither exist nor are requested any more, and the backups that do not exist any more: a watch that
/// broke does not say what was deleted meanwhile.
fn forget_ended(ctx: &Context) {
    let backups = ctx.stores.backups.state();
    let existing: HashSet<&str> = backups
        .iter()
        .filter_map(|backup| backup.metadata.uid.as_deref())
        .collect();
    ctx.backup_backends.retain(|uid| existing.contains(uid));
    let requested: HashSet<String> = backups.iter().map(|backup| backup.archive_name()).collect();
    ctx.backup_admissions
        .retain(|archive| requested.contains(archive) || has_archive(ctx, archive));
}

fn has_archive(ctx: &Context, name: &str) -> bool {
    ctx.stores.archives.get(&ObjectRef::new(name)).is_some()
}

/// Requeues the oldest backups of a namespace that have no archive yet. More than one: the oldest may wait for something else, or
/// be too large for what became free.
fn requeue_next(ctx: &Context, namespace: &str) {
    let all = ctx.stores.backups.state();
    let waiting = all.iter().filter(|backup| {
        let is_deleting = backup.metadata.deletion_timestamp.is_some();
        backup.namespace().as_deref() == Some(namespace) && backup.observed().archive_uid.is_none() && !is_deleting
    });
    let mut waiting: Vec<_> = waiting.collect();
    waiting.sort_by_key(|backup| backup.metadata.creation_timestamp.as_ref().map(|at| at.0));
    for backup in waiting.into_iter().take(MAX_REQUEUED) {
        ctx.requeue_backup(ObjectRef::from_obj(backup.as_ref()));
    }
}

/// Requeues the backups that have no archive yet, and may depend on this backend.
pub fn requeue_waiting(ctx: &Context, backend: &str) {
    requeue_all(ctx, |backup| {
        let uid = backup.metadata.uid.as_deref().unwrap_or_default();
        backup.observed().archive_uid.is_none() && ctx.backup_backends.may_concern(backend, uid)
    });
}

fn requeue_all(ctx: &Context, selected: impl Fn(&NfsBackup) -> bool) {
    for backup in ctx.stores.backups.state().iter().filter(|backup| selected(backup)) {
        ctx.requeue_backup(ObjectRef::from_obj(backup.as_ref()));
    }
}

/// Notices changes of `spec.backups` of the backends.
#[derive(Default)]
pub struct BackupPolicies(HashMap<String, BackupSettings>);

impl BackupPolicies {
    /// Handles one event of the watch of backends: if the settings changed, requeues the backups that wait and the archives
    /// that may be shown now.
    pub fn observe(&mut self, event: &Event<NfsBackend>, ctx: &Context) {
        let (backend, settings) = match event {
            Event::Apply(backend) | Event::InitApply(backend) => (backend, backend.spec.backups.clone()),
            Event::Delete(backend) => (backend, None),
            Event::Init | Event::InitDone => return,
        };
        let name = backend.name_any();
        let former = match settings.clone() {
            Some(settings) => self.0.insert(name.clone(), settings),
            None => self.0.remove(&name),
        };
        if former == settings {
            return;
        }
        requeue_waiting(ctx, &name);
        for archive in archives_of(ctx, &name) {
            ctx.requeue_archive(archive);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_backup_is_concerned_by_its_backends_alone() {
        let known = BackupBackends::default();
        assert!(known.may_concern("main", "new"), "nobody knows yet");
        known.set("refused", ["main".to_owned(), "backups".to_owned()]);
        known.set("without claim", []);
        for (backend, uid, concerns) in [
            ("main", "refused", true),
            ("backups", "refused", true),
            ("other", "refused", false),
            ("main", "without claim", false),
        ] {
            assert_eq!(known.may_concern(backend, uid), concerns, "{backend} {uid}");
        }
        known.forget("refused");
        assert!(known.may_concern("other", "refused"), "it is being checked again");
        known.retain(|uid| uid == "refused");
        assert!(known.may_concern("main", "without claim"));
    }
}
