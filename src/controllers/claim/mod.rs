//! Claims: checked for eligibility, placed, provisioned as a directory and a volume, expanded, and reported on.

mod cached_fields;
mod change_fingerprint;
mod claim_writes;
mod content;
mod copy;
mod create_volume;
mod directory;
mod eligibility;
mod expansion;
mod limit;
mod placement;
mod plan;
mod provision;
mod reconcile;
mod recovery_hold;
mod report;
mod restore;
mod rollback;
mod volume_object;
mod volume_settings;

pub use cached_fields::retain_cached_fields;
pub use change_fingerprint::change_fingerprint;
pub use eligibility::{ClaimRequest, Eligibility, check_eligibility, class_name};
pub use reconcile::{forget, is_settled, may_have_created, observe_cached, on_error, reconcile};
pub use report::waiting_by_reason;
