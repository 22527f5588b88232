//! Faults of the network and of servers. `docs/reliability.md` has a row for each.

mod cuts;
mod fencing;
mod restarts;
