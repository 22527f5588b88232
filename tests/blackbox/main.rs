#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]
//! Black-box tests: the program and its parts against real servers.

mod archive_copy;
mod archive_crash;
mod archive_restore;
mod archive_retention;
mod archive_storm;
mod archives;
mod capacity;
mod check;
mod claims;
mod clones;
mod conformance;
mod crashes;
mod disaster;
mod drop_in;
mod drop_in_races;
mod drop_in_start;
mod expansion;
mod export_adopt;
mod export_copy;
mod export_copy_crash;
mod export_count;
mod export_crash;
mod export_identity;
mod export_lab;
mod export_purge;
mod export_reclaim;
mod export_rules;
mod export_trust;
mod failures;
mod faults;
mod ganesha;
mod guide;
mod identity;
mod identity_unsaid;
mod idle;
mod inherited;
mod inherited_refused;
mod kernel;
mod late_binding;
mod names;
mod next_backend;
mod nfs_client;
mod nfs_sessionless;
mod observability;
mod old;
mod on_demand;
mod on_demand_crash;
mod orphans;
mod outages;
mod overrides;
mod pages;
mod policies;
mod probe;
mod program;
mod readopt;
mod readopt_refused;
mod reasons;
mod refusals;
mod rights;
mod scene;
mod shell;
mod stage;
mod standby;
mod static_volumes;
mod storm;
mod survey;
mod trees;
mod usage;
mod version3;
mod witness;
