//! A claim whose selected node no backend serves: the node is given back, and the scheduler selects another one.

use std::time::{Duration, Instant};

use kube::ResourceExt;

use super::provision::ProvisionAttempt;
use super::report::{self, Outcome};
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::SELECTED_NODE;
use crate::runtime::events::Severity;
use crate::runtime::writes::{self, WriteError};

/// The claim changed since it was read: its next event is on its way, and this catches one that was missed.
const CHANGED: Duration = Duration::from_secs(1);

impl ProvisionAttempt<'_> {
    /// No backend serves the claim now. Where one would on another node, the selected one is given back after its pause,
    /// unless something was begun for the claim: then it stays until that is known.
    pub(crate) async fn wait_or_reschedule(
        &self,
        verdict: PlannedCondition,
        elsewhere: bool,
    ) -> Result<Outcome, WriteError> {
        let begun = || {
            self.ctx
                .backends
                .all()
                .iter()
                .any(|backend| backend.is_open(&self.volume))
        };
        match &self.request.node {
            Some(node) if elsewhere && !begun() => self.give_back(node, verdict).await,
            _ => Ok(Outcome::Waiting(verdict)),
        }
    }

    async fn give_back(&self, node: &str, verdict: PlannedCondition) -> Result<Outcome, WriteError> {
        let uid = self.claim.uid().unwrap_or_default();
        let pause = self.ctx.reschedules.remaining(&uid, node, Instant::now());
        if !pause.is_zero() {
            return Ok(Outcome::WrongNode { verdict, pause });
        }
        let taken =
            writes::remove_annotation_if_unchanged(&self.claims(), self.claim, SELECTED_NODE, "give the node back")
                .await;
        match taken {
            Ok(()) => {
                self.ctx.reschedules.given_back(&uid);
                let note = format!("node {node} is given back to the scheduler: {}", verdict.message);
                report::event(self.ctx, self.claim, Severity::Normal, Reason::Rescheduled, &note);
                Ok(Outcome::Rescheduled(verdict))
            }
            Err(WriteError::Conflict) => Ok(Outcome::WrongNode {
                verdict,
                pause: CHANGED,
            }),
            Err(WriteError::NotFound) => Ok(Outcome::Gone),
            Err(error) => Err(error),
        }
    }
}
