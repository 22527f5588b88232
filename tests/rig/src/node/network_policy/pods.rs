//! The pods that policies apply to, and selectors.

use std::{collections::BTreeMap, net::Ipv4Addr};

use k8s_openapi::{
    api::core::v1::{Namespace, Pod, PodSpec},
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use kube::{
    ResourceExt as _,
    core::{ParseExpressionError, Selector, SelectorExt as _},
};

use super::Snapshot;

/// A pod with its own address.
#[derive(Debug)]
pub(super) struct PolicyPod<'a> {
    pub(super) address: Ipv4Addr,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    labels: &'a BTreeMap<String, String>,
    spec: &'a PodSpec,
}

impl<'a> PolicyPod<'a> {
    /// Returns `None` for a pod without an address, that has ended, or that uses the node's network.
    fn of(pod: &'a Pod) -> Option<Self> {
        let (spec, status) = (pod.spec.as_ref()?, pod.status.as_ref()?);
        let ended = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
        if ended || spec.host_network == Some(true) {
            return None;
        }
        Some(Self {
            address: status.pod_ip.as_ref()?.parse().ok()?,
            namespace: pod.metadata.namespace.as_deref()?,
            name: pod.metadata.name.as_deref()?,
            labels: pod.labels(),
            spec,
        })
    }

    /// Returns the numbers of the pod's ports with a name and a protocol.
    pub(super) fn ports_named(&self, name: &str, protocol: &str) -> Vec<i32> {
        let ports = self
            .spec
            .containers
            .iter()
            .flat_map(|container| container.ports.iter().flatten());
        let named = ports.filter(|port| port.name.as_deref() == Some(name));
        // The API server sets the default of the protocol.
        let of_protocol = named.filter(|port| port.protocol.as_deref() == Some(protocol));
        of_protocol.map(|port| port.container_port).collect()
    }

    pub(super) fn is_selected(&self, selector: Option<&LabelSelector>) -> Result<bool, ParseExpressionError> {
        selects(selector, self.labels)
    }
}

/// All pods with their own address.
pub(super) struct PolicyPods<'a> {
    pods: Vec<PolicyPod<'a>>,
    namespaces: &'a [Namespace],
}

impl<'a> PolicyPods<'a> {
    pub(super) fn of(snapshot: &'a Snapshot) -> Self {
        Self {
            pods: snapshot.pods.iter().filter_map(PolicyPod::of).collect(),
            namespaces: &snapshot.namespaces,
        }
    }

    pub(super) fn all(&self) -> &[PolicyPod<'a>] {
        &self.pods
    }

    /// Returns the addresses of the pods that a peer selects in a policy of namespace `home`.
    pub(super) fn selected(
        &self,
        home: &str,
        namespaces: Option<&LabelSelector>,
        pods: Option<&LabelSelector>,
    ) -> Result<Vec<Ipv4Addr>, ParseExpressionError> {
        let mut addresses = Vec::new();
        for pod in &self.pods {
            let is_in = match namespaces {
                None => pod.namespace == home,
                Some(_) => selects(namespaces, self.labels(pod.namespace))?,
            };
            if is_in && pod.is_selected(pods)? {
                addresses.push(pod.address);
            }
        }
        Ok(addresses)
    }

    fn labels(&self, namespace: &str) -> &BTreeMap<String, String> {
        static NONE: BTreeMap<String, String> = BTreeMap::new();
        let found = self.namespaces.iter().find(|found| found.name_any() == namespace);
        found.map_or(&NONE, |found| found.labels())
    }
}

/// An unset or empty selector matches everything.
fn selects(selector: Option<&LabelSelector>, labels: &BTreeMap<String, String>) -> Result<bool, ParseExpressionError> {
    let selector = Selector::try_from(selector.cloned().unwrap_or_default())?;
    Ok(selector.matches(labels))
}
