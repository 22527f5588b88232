//! Attacks of a tenant on everybody else, at the scale at which they once succeeded.
//!
//! The attacker is a ServiceAccount with the built-in ClusterRole `edit` in a namespace of its own, and root in pods that
//! write to its volumes. The operator has the memory limit of the chart. Under each attack it must stay ready, serve the
//! claims of another namespace on another backend, and purge the deleted data of others; its requests to the API server
//! and its log must stay within bounds that are stated in proportion to what the attacker does. `docs/security.md`
//! lists the attacks and the budget.
//!
//! No test limits time or CPU time, because they depend on the machine. Each prints how long other tenants waited, and
//! what the operator used.

mod attacked_cluster;
pub mod claims;
pub mod copies;
mod delivered_claims;
pub mod namespaces;
pub mod refusals;
pub mod text;
pub mod trees;
