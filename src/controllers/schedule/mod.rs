//! Schedules of backups: requests NfsBackups at regular times, and deletes those that are more than a schedule keeps.
//!
//! Between two times, a schedule is one timer of the controller. The name of each backup is derived from the schedule, the
//! claim and the time, so that a time that is handled twice requests each backup once.

mod prune;
mod reconcile;
mod run;
mod status;

pub use reconcile::{on_error, reconcile};
