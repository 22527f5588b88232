//! The status of an archive. Pure.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::plan::Report;
use crate::api::archive::{NfsArchive, NfsArchiveStatus};
use crate::api::conditions::ArchiveCondition;

/// The status to be, given the one that is.
pub fn status(object: &NfsArchive, report: &Report, now: Timestamp) -> NfsArchiveStatus {
    let generation = object.metadata.generation;
    let former = object.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let available = (ArchiveCondition::Available, &report.available);
    let others = report.others.iter().map(|(type_, verdict)| (*type_, verdict));
    let conditions = std::iter::once(available)
        .chain(others)
        .map(|(type_, verdict)| verdict.condition(&type_.to_string(), generation, former, Time(now)));
    NfsArchiveStatus {
        observed_generation: generation,
        state: Some(report.state.to_owned()),
        conditions: conditions.collect(),
        // Another manager's: what an archive takes is counted elsewhere.
        usage: None,
    }
}
