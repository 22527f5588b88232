//! Claims: from creation to a bound volume, and what is refused.

pub mod expansion;
pub mod late_binding;
pub mod names;
pub mod next_backend;
pub mod overrides;
pub mod provisioning;
pub mod refusals;
pub mod waiting;
