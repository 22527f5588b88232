//! The quota of the backups that tenants request.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::ResourceExt;
use parking_lot::Mutex;

use crate::api::NfsArchive;
use crate::api::backend::SelfServiceBackups;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::decide::quantity;
use crate::decide::self_service::{BackupUsage, check_quota};
use crate::state::archives::archived_bytes;
use crate::state::context::Context;
use crate::state::copy_jobs::source::ClaimSource;

/// Archives of tenants' backups that this process creates or created, until the watch cache describes them. Without these,
/// backups that are requested at the same time would exceed a limit together.
#[derive(Debug, Default)]
pub struct BackupAdmissions(Mutex<BTreeMap<String, Admission>>);

/// What an archive counts toward the limits.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Admission {
    /// Namespace of the claim.
    namespace: String,
    /// Backend of the archive.
    backend: String,
    /// Request of the claim.
    bytes: u128,
}

/// Counts a tenant's archive of a claim toward the quota of its namespace with what the claim requests now, if the limits allow
/// it. The claim may be expanded or recreated between the request of the archive and its description, so it is counted at both.
pub(crate) fn admit_backup(
    ctx: &Context,
    archive: &str,
    (namespace, settings): (&str, &SelfServiceBackups),
    source: &ClaimSource,
    destination: &str,
) -> Result<(), PlannedCondition> {
    let size = source.directory.archive_metadata.size.as_deref();
    let bytes = size.and_then(quantity::bytes).ok_or_else(|| {
        let message = "the volume of the claim has no capacity, so that its backup cannot be counted: ask an administrator to \
                       back it up with an NfsArchive";
        PlannedCondition::fails(Reason::CopySourceUnsuitable, message)
    })?;
    let admission = Admission {
        namespace: namespace.to_owned(),
        backend: destination.to_owned(),
        bytes,
    };
    let cached = ctx.stores.archives.state();
    ctx.backup_admissions.admit(archive, admission, &cached, |used| {
        check_quota(&source.backend.name, namespace, settings, used, bytes)
    })
}

impl BackupAdmissions {
    /// Counts an archive that is about to be created or described, if `check` allows it next to the others. `cached` are all
    /// archives of the watch cache.
    fn admit(
        &self,
        archive: &str,
        admission: Admission,
        cached: &[Arc<NfsArchive>],
        check: impl FnOnce(&BackupUsage) -> Result<(), PlannedCondition>,
    ) -> Result<(), PlannedCondition> {
        let mut admitted = self.0.lock();
        let mut used = BackupUsage::default();
        for other in cached.iter().filter(|other| other.is_self_service()) {
            let (name, backend) = (other.name_any(), &other.observed().backend_name);
            let namespace = &other.spec.claim_ref.namespace;
            match backend.as_str() {
                // A previous process created it. Its backend and size are not known yet.
                "" if name != archive && !admitted.contains_key(&name) => {
                    used.count += u64::from(*namespace == admission.namespace)
                }
                "" => {}
                _ => {
                    admitted.remove(&name);
                    if *backend == admission.backend && name != archive {
                        add(&mut used, *namespace == admission.namespace, archived_bytes(other));
                    }
                }
            }
        }
        let others = admitted.iter().filter(|(name, _)| *name != archive);
        for (_, other) in others.filter(|(_, other)| other.backend == admission.backend) {
            add(&mut used, other.namespace == admission.namespace, other.bytes);
        }
        check(&used)?;
        admitted.insert(archive.to_owned(), admission);
        Ok(())
    }

    /// Keeps only the archives that are or may be created.
    pub fn retain(&self, keep: impl Fn(&str) -> bool) {
        let mut admitted = self.0.lock();
        admitted.retain(|archive, _| keep(archive));
    }

    /// Forgets an archive that was deleted, or not created. Returns true if it was counted.
    pub fn forget(&self, archive: &str) -> bool {
        let removed = self.0.lock().remove(archive);
        removed.is_some()
    }
}

fn add(used: &mut BackupUsage, is_of_namespace: bool, bytes: u128) {
    used.all_bytes = used.all_bytes.saturating_add(bytes);
    if is_of_namespace {
        used.count += 1;
        used.bytes = used.bytes.saturating_add(bytes);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::json;

    use super::*;

    fn archive(name: &str, backend: &str) -> Arc<NfsArchive> {
        let spec = json!({"claimRef": {"namespace": "team", "name": "data"}, "backupRef": {"name": "b", "uid": name}});
        let status = json!({"backendName": backend, "requestedSize": "10"});
        Arc::new(serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec, "status": status})).unwrap())
    }

    fn admission(namespace: &str, backend: &str) -> Admission {
        Admission {
            namespace: namespace.to_owned(),
            backend: backend.to_owned(),
            bytes: 10,
        }
    }

    /// Admits an archive of namespace `team` on backend `main`, and returns what it was compared with.
    fn used(admissions: &BackupAdmissions, name: &str, cached: &[Arc<NfsArchive>]) -> BackupUsage {
        let mut found = BackupUsage::default();
        let admitted = admissions.admit(name, admission("team", "main"), cached, |used| {
            found = *used;
            Ok(())
        });
        assert_eq!(admitted, Ok(()));
        found
    }

    fn usage(count: u64, bytes: u128, all_bytes: u128) -> BackupUsage {
        BackupUsage {
            count,
            bytes,
            all_bytes,
        }
    }

    #[test]
    fn backups_that_are_requested_at_the_same_time_count_once_before_and_after_the_cache_has_them() {
        let admissions = BackupAdmissions::default();
        assert_eq!(used(&admissions, "a", &[]), usage(0, 0, 0));
        assert_eq!(used(&admissions, "a", &[]), usage(0, 0, 0), "itself, again");
        assert_eq!(used(&admissions, "b", &[]), usage(1, 10, 10));
        let undescribed = [archive("a", ""), archive("b", "main")];
        assert_eq!(used(&admissions, "c", &undescribed), usage(2, 20, 20));
        let described = [archive("a", "main"), archive("b", "main"), archive("c", "main")];
        assert_eq!(used(&admissions, "d", &described), usage(3, 30, 30));
        admissions.forget("d");
        assert_eq!(used(&admissions, "e", &described), usage(3, 30, 30));
        admissions.retain(|archive| archive != "e");
        assert_eq!(used(&admissions, "f", &described), usage(3, 30, 30));
    }

    #[test]
    fn other_namespaces_and_backends_have_quotas_of_their_own() {
        let admissions = BackupAdmissions::default();
        let check = |_: &BackupUsage| Ok(());
        assert_eq!(admissions.admit("a", admission("other", "main"), &[], check), Ok(()));
        assert_eq!(admissions.admit("b", admission("team", "second"), &[], check), Ok(()));
        assert_eq!(used(&admissions, "c", &[archive("d", "second")]), usage(0, 0, 10));
    }

    #[test]
    fn archives_of_a_previous_process_count_before_their_backend_is_known() {
        assert_eq!(
            used(&BackupAdmissions::default(), "b", &[archive("a", "")]),
            usage(1, 0, 0)
        );
        let itself = [archive("a", ""), archive("b", "")];
        assert_eq!(used(&BackupAdmissions::default(), "b", &itself), usage(1, 0, 0));
    }

    #[test]
    fn a_claim_that_grew_before_its_backup_was_described_counts_with_its_new_size() {
        let admissions = BackupAdmissions::default();
        let larger = || Admission {
            bytes: 30,
            ..admission("team", "main")
        };
        let refuse = |_: &BackupUsage| Err(PlannedCondition::fails(crate::api::Reason::BackupQuotaExceeded, "full"));
        assert_eq!(used(&admissions, "a", &[]), usage(0, 0, 0));
        let created = [archive("a", "")];
        assert!(admissions.admit("a", larger(), &created, refuse).is_err());
        assert_eq!(used(&admissions, "b", &created), usage(1, 10, 10));
        assert_eq!(admissions.admit("a", larger(), &created, |_| Ok(())), Ok(()));
        assert_eq!(used(&admissions, "b", &created), usage(1, 30, 30));
    }

    #[test]
    fn a_refused_backup_does_not_count() {
        let admissions = BackupAdmissions::default();
        let refuse = |_: &BackupUsage| Err(PlannedCondition::fails(crate::api::Reason::BackupQuotaExceeded, "full"));
        assert!(admissions.admit("a", admission("team", "main"), &[], refuse).is_err());
        assert_eq!(used(&admissions, "b", &[]), usage(0, 0, 0));
    }
}
