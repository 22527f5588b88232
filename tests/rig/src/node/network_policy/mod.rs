//! Translation of NetworkPolicies to nftables rules for the pods of one node. Pure functions without I/O.
//!
//! No network plugin that enforces policies is available for the rig's node. The rules behave like such plugins:
//!
//! - Rules apply after kube-proxy has selected an endpoint: a policy's port is the port behind a Service. Kubernetes
//!   leaves this open, and most plugins do so.
//! - Packets that are not allowed are dropped. Replies on an established connection always pass, even if the connection
//!   is older than the policy.
//! - The node reaches all its pods, because probes need that. The opposite direction is stricter than in Kubernetes,
//!   where pods always reach their node: the rig's servers, which have the node's address, represent servers elsewhere.
//! - An unknown pod can connect only with the node. Therefore a pod never runs without the policies that existed before
//!   it.
//! - Pods in the node's network are ignored, as in Kubernetes. Pods have IPv4 addresses; IPv6 traffic matches no pod.
//!
//! A policy that the rules cannot express is an error.

mod pods;
mod rules;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;

use k8s_openapi::api::{
    core::v1::{Namespace, Pod},
    networking::v1::NetworkPolicy,
};

use self::pods::{PolicyPod, PolicyPods};
use crate::error::Result;

/// The nftables table. Packets must also pass kube-proxy's table.
pub(super) const TABLE: &str = "inet rig-network-policies";

/// Pods, namespaces and policies of a cluster. Pods are listed first, so that all policies older than a pod are
/// included.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    pub(super) pods: Vec<Pod>,
    pub(super) namespaces: Vec<Namespace>,
    pub(super) policies: Vec<NetworkPolicy>,
}

/// The role of the selected pod in a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Ingress,
    Egress,
}

impl Direction {
    /// Returns the value in `policyTypes`.
    fn policy_type(self) -> &'static str {
        match self {
            Self::Ingress => "Ingress",
            Self::Egress => "Egress",
        }
    }

    /// Returns the chain for all connections to or from pods, which is also the prefix of each pod's chain.
    fn chain(self) -> &'static str {
        match self {
            Self::Ingress => "to",
            Self::Egress => "from",
        }
    }

    /// Returns the nftables expression for the pod's own address.
    fn own_address(self) -> &'static str {
        match self {
            Self::Ingress => "ip daddr",
            Self::Egress => "ip saddr",
        }
    }

    /// Returns the nftables expression for the peer's address.
    fn peer_address(self) -> &'static str {
        match self {
            Self::Ingress => "ip saddr",
            Self::Egress => "ip daddr",
        }
    }
}

/// Returns commands for `nft --file` that replace all rules atomically.
pub(super) fn ruleset(snapshot: &Snapshot) -> Result<String> {
    let pods = PolicyPods::of(snapshot);
    let mut text = format!("table {TABLE}\ndelete table {TABLE}\ntable {TABLE} {{\n");
    for direction in [Direction::Egress, Direction::Ingress] {
        text.push_str(&chains(snapshot, &pods, direction)?);
    }
    // The network plugin `ptp` names the node's end of each pod's link like this.
    text.push_str(
        "\tchain input {
\t\ttype filter hook input priority filter
\t\tct state established,related accept
\t\tiifname \"veth*\" jump from
\t}
\tchain forward {
\t\ttype filter hook forward priority filter
\t\tct state established,related accept
\t\tiifname \"veth*\" jump from
\t\toifname \"veth*\" jump to
\t}
}
",
    );
    Ok(text)
}

/// Returns a chain for each pod that a policy isolates in this direction, and the chain that dispatches to them. A
/// chain returns for allowed packets.
fn chains(snapshot: &Snapshot, pods: &PolicyPods<'_>, direction: Direction) -> Result<String> {
    let (mut chains, mut dispatch) = (String::new(), Vec::new());
    for pod in pods.all() {
        let Some(rules) = rules::build_rules(pod, &snapshot.policies, pods, direction)? else {
            dispatch.push(format!("{} : return", pod.address));
            continue;
        };
        let chain = pod_chain(pod, direction);
        dispatch.push(format!("{} : goto {chain}", pod.address));
        let _ = writeln!(chains, "\t# {}/{}\n\tchain {chain} {{", pod.namespace, pod.name);
        for rule in rules {
            let _ = writeln!(chains, "\t\t{rule}");
        }
        chains.push_str("\t\tcounter drop\n\t}\n");
    }
    let _ = writeln!(chains, "\tchain {} {{", direction.chain());
    if !dispatch.is_empty() {
        let _ = writeln!(
            chains,
            "\t\t{} vmap {{ {} }}",
            direction.own_address(),
            dispatch.join(", ")
        );
    }
    chains.push_str("\t\tdrop\n\t}\n");
    Ok(chains)
}

fn pod_chain(pod: &PolicyPod<'_>, direction: Direction) -> String {
    format!("{}-{}", direction.chain(), pod.address)
}
