//! Servers that misbehave. `docs/reliability.md` has a row for each fault.

mod adversarial_copies;
mod adversarial_counts;
pub mod adversarial_trees;
mod referrals;
