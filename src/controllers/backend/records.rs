//! Records that this cluster did not sign: what the backend says of them, and those that an administrator wants adopted.

use kube::runtime::reflector::ObjectRef;
use kube::{Api, Resource, ResourceExt};

use crate::api::NfsBackend;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::ADOPT_RECORD;
use crate::runtime::events::Severity;
use crate::runtime::writes::{self, WriteError};
use crate::state::backends::Backend;
use crate::state::context::Context;
use export_store::{
    Adopted, ExportError, ExportStore, OtherCluster, RecordName, Trust, UnsignedRecord, UnsignedRecords,
};

/// Records that the condition names; a message of thousands helps nobody, and `nfs-operator archives` lists all.
const NAMED: usize = 10;

/// Whether there are records that this cluster did not sign. Another cluster's are its own, and stop nothing.
pub(crate) fn verdict(doubts: &UnsignedRecords) -> PlannedCondition {
    let others: String = doubts.others.iter().map(of_another).collect();
    if doubts.own.is_empty() {
        let well = "every record without a volume is signed with this cluster's key";
        return PlannedCondition::holds(Reason::RecordsSigned, format!("{well}{others}"));
    }
    let named: Vec<String> = doubts.own.iter().take(NAMED).map(in_words).collect();
    let more = match doubts.own.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    PlannedCondition::fails(
        Reason::RecordsUnsigned,
        format!(
            "nothing is made of {} records that were not signed with this cluster's key: {}{more}. Restore the Secret with \
             the key if it was lost; or look what each is about, and annotate the backend with {ADOPT_RECORD}: <volume> to \
             have it believed{others}",
            doubts.own.len(),
            named.join(", ")
        ),
    )
}

fn in_words(doubted: &UnsignedRecord) -> String {
    let UnsignedRecord {
        volume, claim, state, ..
    } = doubted;
    let signature = match doubted.trust {
        Trust::Forged => "signed wrongly or with another key",
        Trust::Unsigned | Trust::Signed => "not signed",
    };
    format!(
        "{volume} ({state}, of claim {}/{}, {signature})",
        claim.namespace, claim.name
    )
}

fn of_another(other: &OtherCluster) -> String {
    let OtherCluster { id, records, named } = other;
    let more = if *records > named.len() { ", …" } else { "" };
    format!(
        "; cluster {id} has {records} records here ({}{more}), of which nothing is made unless the backend is annotated with \
         {ADOPT_RECORD}: {id}/<volume>",
        named.join(", ")
    )
}

/// Adopts the records that the annotation names, and says what became of each. The annotation goes, unless the export could
/// not be reached.
pub(crate) async fn adopt(
    ctx: &Context,
    object: &NfsBackend,
    backend: &Backend,
    export: &ExportStore,
) -> Result<(), WriteError> {
    let Some(asked) = object.annotations().get(ADOPT_RECORD) else {
        return Ok(());
    };
    for text in asked.split(',').map(str::trim).filter(|text| !text.is_empty()) {
        match adopt_one(ctx, export, text).await {
            Ok(adopted) => tell(ctx, object, Severity::Normal, Reason::RecordAdopted, &done(&adopted)),
            Err(error) if Reason::from(error.kind()).is_backend_wide() || error.outcome_unknown() => {
                tracing::warn!(backend = backend.name, record = text, "not adopted yet: {error}");
                ctx.request_probe(&backend.name);
                return Ok(());
            }
            Err(error) => {
                let note = format!("{text:?}: {error}");
                tell(ctx, object, Severity::Warning, Reason::RecordNotAdopted, &note);
            }
        }
    }
    // The condition is to say what is left.
    ctx.request_probe(&backend.name);
    let backends: Api<NfsBackend> = Api::all(ctx.clients.calls.clone());
    writes::remove_annotation(&backends, object, ADOPT_RECORD, asked).await
}

async fn adopt_one(ctx: &Context, export: &ExportStore, text: &str) -> Result<Adopted, ExportError> {
    let is_backend = |name: &str| ctx.stores.backends.get(&ObjectRef::new(name)).is_some();
    export.adopt(&RecordName::parse(text)?, &is_backend).await
}

fn done(adopted: &Adopted) -> String {
    let Adopted {
        volume,
        directory,
        archive,
    } = adopted;
    let what = if *archive { "archive" } else { "directory" };
    format!("the record of volume {volume} is this cluster's own now, and so is its {what} {directory}")
}

fn tell(ctx: &Context, object: &NfsBackend, severity: Severity, reason: Reason, note: &str) {
    tracing::info!(backend = object.name_any(), %reason, "{note}");
    ctx.events
        .publish(object.object_ref(&()), severity, reason, "Adopt", note);
}

#[cfg(test)]
mod tests {
    use super::*;
    use export_store::ClaimRef;

    fn doubted(number: usize, trust: Trust) -> UnsignedRecord {
        UnsignedRecord {
            volume: format!("pvc-{number}"),
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
    fn other_clusters_are_named_and_are_no_fault_of_this_one() {
        let others = vec![OtherCluster {
            id: "1111".into(),
            records: 5,
            named: vec!["pvc-a".into(), "pvc-b".into()],
        }];
        let said = verdict(&UnsignedRecords {
            own: Vec::new(),
            others: others.clone(),
        });
        assert_eq!((said.status, said.reason), (Some(true), Reason::RecordsSigned));
        assert!(
            said.message
                .contains("cluster 1111 has 5 records here (pvc-a, pvc-b, …)"),
            "{}",
            said.message
        );
        assert!(!verdict(&UnsignedRecords::default()).message.contains("cluster 1111"));
        let own = vec![doubted(1, Trust::Unsigned)];
        assert!(verdict(&UnsignedRecords { own, others }).message.contains("1111"));
    }

    #[test]
    fn records_that_nobody_vouches_for_are_named_with_what_is_wrong_and_the_remedy() {
        let mut own: Vec<UnsignedRecord> = (0..NAMED).map(|number| doubted(number, Trust::Unsigned)).collect();
        own.push(doubted(NAMED, Trust::Forged));
        own.swap(0, NAMED);
        let others = Vec::new();
        let said = verdict(&UnsignedRecords { own, others });
        assert_eq!((said.status, said.reason), (Some(false), Reason::RecordsUnsigned));
        for part in [
            "11 records",
            "pvc-10 (archived, of claim team/data, signed wrongly or with another key)",
            "pvc-1 (archived, of claim team/data, not signed)",
            "and 1 more",
            "nfs-operator.io/adopt-record: <volume>",
        ] {
            assert!(said.message.contains(part), "{part} is not in: {}", said.message);
        }
    }
}
