//! The status of an archive's object. Pure.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::plan::Report;
use crate::api::archive::{NfsArchive, NfsArchiveStatus, PrintedArchive, unknown};
use crate::api::conditions::{ArchiveCondition, Reason};

/// Column of an archive without an expiration time.
const NEVER: &str = "never";
/// Column of an archive that expires when there are enough newer ones.
const KEEP_LAST: &str = "keepLast";

/// Returns the status to write: the description of the archive that the object has, and the report.
pub fn status(object: &NfsArchive, report: &Report, now: Timestamp) -> NfsArchiveStatus {
    let (generation, previous) = (object.metadata.generation, object.observed());
    let conditions = [
        (ArchiveCondition::Available, &report.available),
        (ArchiveCondition::Retained, &report.retained),
    ];
    let conditions = conditions
        .map(|(type_, planned)| planned.to_condition(&type_.to_string(), generation, &previous.conditions, Time(now)));
    let expires = match (&object.spec.expiration_time, report.retained.reason) {
        (Some(at), _) => at.0.to_string(),
        (None, Reason::NotExpired | Reason::ArchiveExpired) => KEEP_LAST.to_owned(),
        (None, _) => NEVER.to_owned(),
    };
    NfsArchiveStatus {
        observed_generation: generation,
        state: Some(report.state),
        printed: Some(printed(previous, expires)),
        conditions: conditions.into(),
        // Owned by another field manager, which writes it with each usage scan.
        usage: None,
        ..previous.clone()
    }
}

/// Returns the columns of an archive with this description.
fn printed(described: &NfsArchiveStatus, expires: String) -> PrintedArchive {
    let backend = Some(&described.backend_name).filter(|name| !name.is_empty());
    PrintedArchive {
        backend: backend.cloned().unwrap_or_else(unknown),
        size: described
            .requested_size
            .as_ref()
            .map_or_else(unknown, |size| size.0.clone()),
        expires,
    }
}
