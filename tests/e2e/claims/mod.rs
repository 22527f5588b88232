//! Claims: from creation to a bound volume, and what is refused.

pub mod expansion;
pub mod groups;
pub mod late_binding;
pub mod names;
pub mod next_backend;
pub mod overrides;
pub mod populators;
pub mod provisioning;
mod read_only;
pub mod refusals;
mod requests;
mod sharing;
pub mod storage_capacity;
pub mod waiting;
