//! Records that this cluster did not sign: the condition that reports them, and the adoption of those that an
//! administrator names.

use kube::runtime::reflector::ObjectRef;

use crate::api::NfsBackend;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::ADOPT_RECORD;
use crate::api::requests::{BackendRequest, ids};
use crate::runtime::events::Severity;
use crate::state::backends::Backend;
use crate::state::context::Context;
use export_store::text::counted;
use export_store::{
    Adopted, ExportError, ExportStore, OtherCluster, RecordName, SignatureStatus, UnsignedRecord, UnsignedRecords,
};

/// Maximum number of records that the condition names; `nfs-operator archives` lists all.
const MAX_NAMED: usize = 10;

/// Returns the condition RecordsTrusted. The records of other clusters belong to them and are not a fault.
pub(super) fn condition(unsigned_records: &UnsignedRecords) -> PlannedCondition {
    let others: String = unsigned_records.others.iter().map(describe_cluster).collect();
    let count = unsigned_records.own.len() + unsigned_records.further;
    if count == 0 {
        let summary = "every record without a volume is signed with this cluster's key";
        return PlannedCondition::holds(Reason::RecordsSigned, format!("{summary}{others}"));
    }
    let named: Vec<String> = unsigned_records
        .own
        .iter()
        .take(MAX_NAMED)
        .map(describe_record)
        .collect();
    let more = match count - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    PlannedCondition::fails(
        Reason::RecordsUnsigned,
        format!(
            "this cluster's key did not sign {}, so nothing is created from them: {}{more}. Restore the Secret with \
             the key if it was lost; or inspect each record, and annotate the backend with {ADOPT_RECORD}: <volume> to \
             adopt it{others}",
            counted(count, "record"),
            named.join(", ")
        ),
    )
}

fn describe_record(doubted: &UnsignedRecord) -> String {
    let UnsignedRecord {
        volume, claim, state, ..
    } = doubted;
    let signature = match doubted.trust {
        SignatureStatus::Forged => "signed incorrectly or with another key",
        SignatureStatus::Unsigned | SignatureStatus::Signed => "not signed",
    };
    format!(
        "{volume} ({state}, of claim {}/{}, {signature})",
        claim.namespace, claim.name
    )
}

fn describe_cluster(other: &OtherCluster) -> String {
    let OtherCluster { id, records, named } = other;
    let more = if *records > named.len() { ", …" } else { "" };
    format!(
        "; cluster {id} has {} here ({}{more}), from which nothing is created unless the backend is annotated with \
         {ADOPT_RECORD}: {id}/<volume>",
        counted(*records, "record"),
        named.join(", ")
    )
}

/// Adopts the records that the annotation names, and reports each result. The request is handled unless the export cannot be
/// reached.
pub(super) async fn adopt(ctx: &Context, object: &NfsBackend, backend: &Backend, export: &ExportStore) {
    let request = BackendRequest::AdoptRecords;
    let Some(requested) = backend.requests.due(object, request) else {
        return;
    };
    let (mut done, mut refused) = (0, 0);
    for text in ids(requested) {
        match adopt_one(ctx, export, text).await {
            Ok(adopted) => {
                done += 1;
                let note = describe_adopted(&adopted);
                ctx.publish_about_backend(object, Severity::Normal, Reason::RecordAdopted, "Adopt", &note);
            }
            Err(error) if Reason::needs_probe(&error) => {
                tracing::warn!(
                    backend = backend.name,
                    record = text,
                    "failed to adopt a record; retrying: {error}"
                );
                ctx.request_probe(&backend.name);
                return;
            }
            Err(error) => {
                refused += 1;
                let note = format!("{text:?}: {error}; to try again, append @ and any text to the annotation");
                ctx.publish_about_backend(object, Severity::Warning, Reason::RecordNotAdopted, "Adopt", &note);
            }
        }
    }
    let result = format!("{} adopted, {refused} not adopted", counted(done, "record"));
    let now = ctx.clock.now();
    backend.requests.complete_with(request, requested, Some(result), now);
    // The next probe updates the condition, and the list of handled requests.
    ctx.request_probe(&backend.name);
}

async fn adopt_one(ctx: &Context, export: &ExportStore, text: &str) -> Result<Adopted, ExportError> {
    let is_backend = |name: &str| ctx.stores.backends.get(&ObjectRef::new(name)).is_some();
    export.adopt(&RecordName::parse(text)?, &is_backend).await
}

fn describe_adopted(adopted: &Adopted) -> String {
    let Adopted {
        volume,
        directory,
        archive,
    } = adopted;
    let what = if *archive { "archive" } else { "directory" };
    format!("the record of volume {volume} now belongs to this cluster, and so does its {what} {directory}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use export_store::ClaimRef;

    fn doubted(number: usize, trust: SignatureStatus) -> UnsignedRecord {
        UnsignedRecord {
            volume: format!("pvc-{number}"),
            backend: "main".into(),
            claim: ClaimRef {
                namespace: "team".into(),
                name: "data".into(),
                ..ClaimRef::default()
            },
            state: "archived",
            trust,
        }
    }

    #[test]
    fn records_of_other_clusters_are_listed_without_failing_the_condition() {
        let others = vec![OtherCluster {
            id: "1111".into(),
            records: 5,
            named: vec!["pvc-a".into(), "pvc-b".into()],
        }];
        let planned = condition(&UnsignedRecords {
            own: Vec::new(),
            further: 0,
            others: others.clone(),
        });
        assert_eq!((planned.status, planned.reason), (Some(true), Reason::RecordsSigned));
        assert!(
            planned
                .message
                .contains("cluster 1111 has 5 records here (pvc-a, pvc-b, …)"),
            "{}",
            planned.message
        );
        assert!(!condition(&UnsignedRecords::default()).message.contains("cluster 1111"));
        let own = vec![doubted(1, SignatureStatus::Unsigned)];
        assert!(
            condition(&UnsignedRecords {
                own,
                further: 0,
                others,
            })
            .message
            .contains("1111")
        );
    }

    #[test]
    fn unsigned_records_are_listed_with_the_problem_and_the_remedy() {
        let mut own: Vec<UnsignedRecord> = (0..MAX_NAMED)
            .map(|number| doubted(number, SignatureStatus::Unsigned))
            .collect();
        own.push(doubted(MAX_NAMED, SignatureStatus::Forged));
        own.swap(0, MAX_NAMED);
        let others = Vec::new();
        let planned = condition(&UnsignedRecords {
            own,
            further: 0,
            others,
        });
        assert_eq!((planned.status, planned.reason), (Some(false), Reason::RecordsUnsigned));
        for part in [
            "11 records",
            "pvc-10 (archived, of claim team/data, signed incorrectly or with another key)",
            "pvc-1 (archived, of claim team/data, not signed)",
            "and 1 more",
            "nfs-operator.io/adopt-record: <volume>",
        ] {
            assert!(planned.message.contains(part), "{part} is not in: {}", planned.message);
        }
    }
}
