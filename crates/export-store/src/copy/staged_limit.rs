//! The limit of a copy (ADR 17), in force before data flows into it: a source that grows while it is copied cannot fill the
//! server.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::copy::{CopyError, CopyLimits, Outcome, Staging};
use crate::limits::{self, LimitOrder, LimitReport, VolumeLimit};
use crate::quota::{LimitState, SizeProblem};
use crate::store::ExportStore;

/// Time for which a copy waits for its limit. An agent that runs sets that of an empty directory within a second. The copy
/// has a slot, so it fails after that, or once the agent reports a failure, and is tried again later.
const PATIENCE: Duration = Duration::from_secs(30);
/// Delay of the first look at the report of the agent. It doubles with each further one.
const FIRST_DELAY: Duration = Duration::from_millis(100);
/// Longest delay between two looks.
const MAX_DELAY: Duration = Duration::from_secs(2);

/// How to remove a project from the operator's folder on an export, to which a project of the export's root was passed on,
/// and which passes it on to each copy.
const CLEAR_INHERITED_PROJECT: &str = "remove the project from the directories in .nfs-operator on the export too, \
                                           which pass it on to each copy: xfs_io -c 'chattr -D -P' -c 'chproj -D 0' \
                                           .nfs-operator (ZFS: zfs project -C -r .nfs-operator)";

/// Limit of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StagedLimit {
    /// The limit.
    pub limit: VolumeLimit,
    /// The copy waits until the limit is in force.
    pub required: bool,
}

/// Orders the limit of a copy, if it has one, and waits until it is in force, if that is required.
pub(super) async fn order(store: &Arc<ExportStore>, volume: &str, staging: &Staging, limits: &CopyLimits) -> Outcome {
    let Some(StagedLimit { limit, required }) = limits.staged_limit else {
        return Ok(());
    };
    let order = {
        let _lock = store.lock_volume(volume).await?;
        let verified = store.verified_root().await?;
        limits::order_staged(store, &verified, volume, &staging.tree, limit).await?
    };
    match required {
        true => wait_until_in_force(store, volume, &order).await,
        false => Ok(()),
    }
}

async fn wait_until_in_force(store: &ExportStore, volume: &str, order: &LimitOrder) -> Outcome {
    let (end, mut delay) = (Instant::now() + PATIENCE, FIRST_DELAY);
    loop {
        tokio::time::sleep(delay).await;
        delay = (delay * 2).min(MAX_DELAY);
        match progress(store.limit_report(volume, order).await?) {
            Progress::InForce => return Ok(()),
            Progress::Waiting { .. } if Instant::now() < end => {}
            Progress::Waiting { why } | Progress::Failed { why } => return Err(CopyError::LimitNotInForce { why }),
        }
    }
}

/// How far the limit of a copy is.
#[derive(Debug, PartialEq, Eq)]
enum Progress {
    InForce,
    /// The agent may still set it.
    Waiting {
        why: String,
    },
    /// The agent does not set it soon, and the copy has a slot that others wait for.
    Failed {
        why: String,
    },
}

/// Returns how far the limit of a copy is, from the report of the agent. Pure.
fn progress(report: LimitReport) -> Progress {
    match report {
        LimitReport::Reported(LimitState::InForce) => Progress::InForce,
        LimitReport::Reported(LimitState::Failed { reason, message }) => {
            let remedy = match reason {
                // The directory has it from the folders above, and so would the next one.
                SizeProblem::ForeignProject => format!("; {CLEAR_INHERITED_PROJECT}"),
                _ => String::new(),
            };
            Progress::Failed {
                why: format!("{reason:?}: {message}{remedy}"),
            }
        }
        LimitReport::Unusable(why) => Progress::Waiting {
            why: format!("the report of the quota agent cannot be used: {why}"),
        },
        LimitReport::Unreported | LimitReport::Reported(LimitState::Pending { .. }) => Progress::Waiting {
            why: "the quota agent has not set it yet".to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic, reason = "a test fails by panicking")]

    use super::*;

    fn failed(reason: SizeProblem) -> String {
        let message = "why".to_owned();
        match progress(LimitReport::Reported(LimitState::Failed { reason, message })) {
            Progress::Failed { why } => why,
            other => panic!("the copy keeps its slot: {other:?}"),
        }
    }

    #[test]
    fn a_copy_whose_limit_failed_waits_no_longer() {
        assert_eq!(failed(SizeProblem::ProjectsExhausted), "ProjectsExhausted: why");
        for undecided in [
            LimitReport::Unreported,
            LimitReport::Reported(LimitState::Pending { visited: 0 }),
            LimitReport::Unusable("it is not signed".to_owned()),
        ] {
            assert!(matches!(progress(undecided), Progress::Waiting { .. }));
        }
        let in_force = LimitReport::Reported(LimitState::InForce);
        assert_eq!(progress(in_force), Progress::InForce);
    }

    #[test]
    fn a_copy_that_inherits_a_project_names_the_folders_that_pass_it_on() {
        let inherited = failed(SizeProblem::ForeignProject);
        assert!(inherited.starts_with("ForeignProject: why; "), "{inherited}");
        assert!(inherited.contains("chproj -D 0' .nfs-operator"), "{inherited}");
    }
}
