//! The status of an archive's object. Pure.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::plan::Report;
use crate::api::archive::{NfsArchive, NfsArchiveStatus};
use crate::api::conditions::ArchiveCondition;

/// Returns the status to write.
pub fn status(object: &NfsArchive, report: &Report, now: Timestamp) -> NfsArchiveStatus {
    let generation = object.metadata.generation;
    let previous = object.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let available = (ArchiveCondition::Available, &report.available);
    let others = report.others.iter().map(|(type_, planned)| (*type_, planned));
    let conditions = std::iter::once(available)
        .chain(others)
        .map(|(type_, planned)| planned.to_condition(&type_.to_string(), generation, previous, Time(now)));
    NfsArchiveStatus {
        observed_generation: generation,
        state: Some(report.state.to_owned()),
        conditions: conditions.collect(),
        // Owned by another field manager, which writes it with each usage scan.
        usage: None,
    }
}
