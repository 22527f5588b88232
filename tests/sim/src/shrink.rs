//! Shrinking: from a run that fails to a shorter one that fails alike.

use sim::world::{CHUNKS, Kind, Scenario};

use crate::child::{self, Failure};

/// Numbers of actions that are tried.
const FEWER: [u32; 12] = [0, 1, 3, 6, 12, 25, 50, 75, 100, 125, 150, 175];

/// Returns the smallest scenario that was found to fail alike, and how it fails.
pub fn shrink(scenario: Scenario, failure: Failure) -> (Scenario, Failure) {
    let mut smallest = Smallest { scenario, failure };
    // Nothing happens after the action at which it failed.
    if let Some(actions) = smallest.failure.actions {
        smallest.try_another(|scenario| scenario.with_actions(actions));
    }
    for (kind, _) in Kind::ALL {
        smallest.try_another(|scenario| scenario.without(kind));
    }
    for replicas in 1..scenario.replicas {
        if smallest.try_another(|scenario| scenario.with_replicas(replicas)) {
            break;
        }
    }
    for actions in FEWER {
        let is_fewer = actions < smallest.scenario.actions;
        if is_fewer && smallest.try_another(|scenario| scenario.with_actions(actions)) {
            break;
        }
    }
    for chunk in 0..CHUNKS {
        smallest.try_another(|scenario| scenario.skipping(chunk));
    }
    (smallest.scenario, smallest.failure)
}

struct Smallest {
    scenario: Scenario,
    failure: Failure,
}

impl Smallest {
    /// Changes the scenario, if the changed one fails alike.
    fn try_another(&mut self, change: impl FnOnce(Scenario) -> Scenario) -> bool {
        let changed = change(self.scenario);
        if changed == self.scenario {
            return false;
        }
        match child::run(&changed) {
            Some(failure) if failure.is_like(&self.failure) => {
                (self.scenario, self.failure) = (changed, failure);
                true
            }
            _ => false,
        }
    }
}
