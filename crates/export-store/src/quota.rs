//! Files through which the operator and the quota agent talk: orders, reports, the heartbeat and the usage. Pure.
//!
//! ```text
//! .nfs-operator/<cluster ID>/quota/orders/<volume>    Order: what the operator wants for one volume
//! .nfs-operator/<cluster ID>/quota/reports/<volume>   Report: what is in force for that volume, or why not
//! .nfs-operator/<cluster ID>/quota/agent              Heartbeat
//! .nfs-operator/<cluster ID>/quota/usage              Usage
//! ```
//!
//! Each file is written to a draft, `.draft-<name>` in the same folder, and renamed. Both sides read files that anyone
//! with access to the folder may have written: the size is limited before the file is read, and content is checked.

mod directory;
mod heartbeat;
mod key;
mod order;
mod report;
mod sealed;
mod usage;

pub use directory::QuotaDirectory;
pub use heartbeat::{AgentProblem, Heartbeat, MAX_HEARTBEAT_AGE, MAX_HEARTBEAT_LEN};
pub use key::{KeyFile, KeyFileError, QuotaKey};
pub use order::{MAX_ORDER_LEN, Order};
pub use report::{LimitState, MAX_REPORT_LEN, MAX_VISIT_PLACE, Report, SizeProblem};
pub use sealed::{QuotaFile, QuotaFileError, QuotaSeal};
pub use usage::{MAX_USAGE_LEN, Usage, VolumeUsage};

#[cfg(test)]
mod tests;
