//! Rules of one pod's chain, built from all policies.

use k8s_openapi::{
    api::networking::v1::{IPBlock, NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec},
    apimachinery::pkg::util::intstr::IntOrString,
};

use super::{
    Direction,
    pods::{PolicyPod, PolicyPods},
};
use crate::error::{Error, Result};

/// Returns rules for what is allowed to or from a pod; `None` if no policy isolates it in this direction.
pub(super) fn build_rules(
    pod: &PolicyPod<'_>,
    policies: &[NetworkPolicy],
    pods: &PolicyPods<'_>,
    direction: Direction,
) -> Result<Option<Vec<String>>> {
    let mut rules: Option<Vec<String>> = None;
    for policy in policies {
        let builder = RuleBuilder {
            policy,
            pod,
            pods,
            direction,
        };
        if let Some(more) = builder.rules()? {
            rules.get_or_insert_default().extend(more);
        }
    }
    Ok(rules)
}

/// Builds the rules of one policy for one pod.
struct RuleBuilder<'a> {
    policy: &'a NetworkPolicy,
    pod: &'a PolicyPod<'a>,
    pods: &'a PolicyPods<'a>,
    direction: Direction,
}

impl RuleBuilder<'_> {
    fn rules(&self) -> Result<Option<Vec<String>>> {
        let Some(spec) = &self.policy.spec else {
            return Err(self.unsupported("it has no spec"));
        };
        if !(self.selects_pod(spec)? && self.isolates(spec)?) {
            return Ok(None);
        }
        let mut rules = Vec::new();
        for (peers, ports) in peers_and_ports(spec, self.direction) {
            let (peers, ports) = (
                self.expressions(peers, Self::peer)?,
                self.expressions(ports, Self::port)?,
            );
            for peer in &peers {
                for port in &ports {
                    let parts = [peer.as_str(), port.as_str(), "return"];
                    rules.push(
                        parts
                            .into_iter()
                            .filter(|part| !part.is_empty())
                            .collect::<Vec<_>>()
                            .join(" "),
                    );
                }
            }
        }
        Ok(Some(rules))
    }

    fn selects_pod(&self, spec: &NetworkPolicySpec) -> Result<bool> {
        let is_here = self.policy.metadata.namespace.as_deref() == Some(self.pod.namespace);
        let is_selected = self.pod.is_selected(spec.pod_selector.as_ref());
        Ok(is_here && is_selected.map_err(|error| self.unsupported(&error.to_string()))?)
    }

    fn isolates(&self, spec: &NetworkPolicySpec) -> Result<bool> {
        match &spec.policy_types {
            Some(types) => Ok(types.iter().any(|found| found == self.direction.policy_type())),
            None => Err(self.unsupported("it has no policyTypes, which the API server sets by default")),
        }
    }

    /// Returns the nftables expressions of all items. Without items, one empty expression, which always matches.
    fn expressions<T>(&self, items: &[T], convert: impl Fn(&Self, &T) -> Result<Vec<String>>) -> Result<Vec<String>> {
        if items.is_empty() {
            return Ok(vec![String::new()]);
        }
        let expressions: Result<Vec<_>> = items.iter().map(|item| convert(self, item)).collect();
        Ok(expressions?.concat())
    }

    fn peer(&self, peer: &NetworkPolicyPeer) -> Result<Vec<String>> {
        if let Some(block) = &peer.ip_block {
            return Ok(vec![self.block(block)?]);
        }
        let home = self.pod.namespace;
        let selected = self
            .pods
            .selected(home, peer.namespace_selector.as_ref(), peer.pod_selector.as_ref());
        let addresses = selected.map_err(|error| self.unsupported(&error.to_string()))?;
        let side = self.direction.peer_address();
        Ok(addresses.iter().map(|address| format!("{side} {address}")).collect())
    }

    fn block(&self, block: &IPBlock) -> Result<String> {
        let except = block.except.as_deref().unwrap_or_default();
        if let Some(other) = except.iter().chain([&block.cidr]).find(|cidr| cidr.contains(':')) {
            return Err(self.unsupported(&format!("{other}: only IPv4 is supported")));
        }
        let side = self.direction.peer_address();
        let mut rule = format!("{side} {}", block.cidr);
        for cidr in except {
            rule.push_str(&format!(" {side} != {cidr}"));
        }
        Ok(rule)
    }

    fn port(&self, port: &NetworkPolicyPort) -> Result<Vec<String>> {
        // The API server sets this default.
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        let keyword = match protocol {
            "TCP" => "tcp",
            "UDP" => "udp",
            "SCTP" => "sctp",
            other => return Err(self.unsupported(&format!("protocol {other}"))),
        };
        match (&port.port, port.end_port, self.direction) {
            (None, ..) => Ok(vec![format!("meta l4proto {keyword}")]),
            (Some(IntOrString::Int(first)), Some(last), _) => Ok(vec![format!("{keyword} dport {first}-{last}")]),
            (Some(IntOrString::Int(number)), None, _) => Ok(vec![format!("{keyword} dport {number}")]),
            (Some(IntOrString::String(name)), None, Direction::Ingress) => {
                let numbers = self.pod.ports_named(name, protocol);
                Ok(numbers
                    .iter()
                    .map(|number| format!("{keyword} dport {number}"))
                    .collect())
            }
            // Each destination may map the name to another number.
            (Some(IntOrString::String(name)), ..) => Err(self.unsupported(&format!("port {name} by name"))),
        }
    }

    fn unsupported(&self, what: &str) -> Error {
        let metadata = &self.policy.metadata;
        Error::UnsupportedPolicy {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            what: what.into(),
        }
    }
}

/// Returns the peers and ports of each rule. An empty list means all.
fn peers_and_ports(
    spec: &NetworkPolicySpec,
    direction: Direction,
) -> Vec<(&[NetworkPolicyPeer], &[NetworkPolicyPort])> {
    match direction {
        Direction::Ingress => {
            let rules = spec.ingress.as_deref().unwrap_or_default().iter();
            rules.map(|rule| (items(&rule.from), items(&rule.ports))).collect()
        }
        Direction::Egress => {
            let rules = spec.egress.as_deref().unwrap_or_default().iter();
            rules.map(|rule| (items(&rule.to), items(&rule.ports))).collect()
        }
    }
}

fn items<T>(list: &Option<Vec<T>>) -> &[T] {
    list.as_deref().unwrap_or_default()
}
