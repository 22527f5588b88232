//! What the operator remembers between two reconciliations. All of it is rebuilt at each start.

pub mod archives;
pub mod backends;
pub mod capacity;
pub mod context;
pub mod copy_jobs;
pub mod last_reported;
pub mod recovery;
pub mod reschedules;
pub mod usage;
pub mod waiting;
