//! What NetworkPolicies mean for the pods of a node, as nftables rules. Pure: objects go in, text comes out.
//!
//! No network plugin that enforces policies can be had for the rig's node; these rules do what such plugins do:
//!
//! - Rules see where a connection goes after kube-proxy has chosen a Service's endpoint: the port of a policy is the port
//!   behind the Service. Kubernetes leaves that open; most plugins do it so.
//! - What is not allowed is dropped without an answer. Answers within a connection that was let through always pass, also
//!   when it was opened before the policy came.
//! - The node reaches all its pods: probes need that. The other way is stricter than Kubernetes, which lets pods reach their
//!   own node: the servers of the rig stand for servers elsewhere, and have the node's address.
//! - A pod that nobody knows yet reaches nobody and is reached by nobody but the node. So a pod never runs a moment without
//!   the policies that were there before it.
//! - Pods with the node's network are no pods here: Kubernetes leaves them out as well. Pods have IPv4 addresses; what comes
//!   by IPv6 comes from nobody we know.
//!
//! What the rules can't say is an error, never something that passes.

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

/// Our table; beside kube-proxy's, and a packet has to pass both.
pub(super) const TABLE: &str = "inet rig-network-policies";

/// What there is in a cluster. The pods were looked at first: a policy that is older than a pod is among these.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    pub(super) pods: Vec<Pod>,
    pub(super) namespaces: Vec<Namespace>,
    pub(super) policies: Vec<NetworkPolicy>,
}

/// Which end of a connection the selected pod is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Ingress,
    Egress,
}

impl Direction {
    /// As `policyTypes` spell it.
    fn policy_type(self) -> &'static str {
        match self {
            Self::Ingress => "Ingress",
            Self::Egress => "Egress",
        }
    }

    /// The chain that all connections to or from pods go through; each pod's own has its address appended.
    fn chain(self) -> &'static str {
        match self {
            Self::Ingress => "to",
            Self::Egress => "from",
        }
    }

    /// What nftables calls the pod's own address.
    fn own(self) -> &'static str {
        match self {
            Self::Ingress => "ip daddr",
            Self::Egress => "ip saddr",
        }
    }

    /// What nftables calls the other end's.
    fn peer(self) -> &'static str {
        match self {
            Self::Ingress => "ip saddr",
            Self::Egress => "ip daddr",
        }
    }
}

/// The commands for `nft --file` that put these policies in the place of those before, all at once.
pub(super) fn ruleset(snapshot: &Snapshot) -> Result<String> {
    let pods = PolicyPods::of(snapshot);
    let mut text = format!("table {TABLE}\ndelete table {TABLE}\ntable {TABLE} {{\n");
    for direction in [Direction::Egress, Direction::Ingress] {
        text.push_str(&chains(snapshot, &pods, direction)?);
    }
    // The kernel's ends of the pods' cables are called so by the network plugin `ptp`.
    text.push_str(
        "\tchain to-the-node {
\t\ttype filter hook input priority filter
\t\tct state established,related accept
\t\tiifname \"veth*\" jump from
\t}
\tchain through-the-node {
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

/// A chain for each pod that a policy isolates in that direction, and the one that leads there. They return for what is
/// allowed.
fn chains(snapshot: &Snapshot, pods: &PolicyPods<'_>, direction: Direction) -> Result<String> {
    let (mut chains, mut verdicts) = (String::new(), Vec::new());
    for pod in pods.all() {
        let Some(rules) = rules::build_rules(pod, &snapshot.policies, pods, direction)? else {
            verdicts.push(format!("{} : return", pod.address));
            continue;
        };
        let chain = pod_chain(pod, direction);
        verdicts.push(format!("{} : goto {chain}", pod.address));
        let _ = writeln!(chains, "\t# {}/{}\n\tchain {chain} {{", pod.namespace, pod.name);
        for rule in rules {
            let _ = writeln!(chains, "\t\t{rule}");
        }
        chains.push_str("\t\tcounter drop\n\t}\n");
    }
    let _ = writeln!(chains, "\tchain {} {{", direction.chain());
    if !verdicts.is_empty() {
        let _ = writeln!(chains, "\t\t{} vmap {{ {} }}", direction.own(), verdicts.join(", "));
    }
    chains.push_str("\t\tdrop\n\t}\n");
    Ok(chains)
}

fn pod_chain(pod: &PolicyPod<'_>, direction: Direction) -> String {
    format!("{}-{}", direction.chain(), pod.address)
}
