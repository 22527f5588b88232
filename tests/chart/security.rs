//! Optional security settings: off by default, and the same in the chart and in config/security.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::helm::both_versions;
use crate::render::{kustomize, normalize, render, values};
use crate::{Failure, Test};

/// Returns the objects of some kinds, without their namespaces.
fn select_kinds(objects: Vec<Value>, kinds: &[&str]) -> Vec<Value> {
    let is_one = |object: &Value| object["kind"].as_str().is_some_and(|kind| kinds.contains(&kind));
    // The policies that protect archives on hold and restrict the operator's account are installed by default.
    let is_option = |object: &Value| {
        object
            .pointer("/metadata/name")
            .is_none_or(|name| name != "nfs-operator-archive-hold" && name != "nfs-operator-account")
    };
    let mut objects: Vec<Value> = objects.into_iter().filter(is_one).filter(is_option).collect();
    for object in &mut objects {
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("namespace");
        }
    }
    objects
}

async fn assert_same(folder: &str, set: &str, kinds: &[&str]) -> Result<usize, Failure> {
    let expected = normalize(kustomize(&[folder]).await?);
    for helm in both_versions().await? {
        let off = select_kinds(render(&helm, &[]).await?, kinds);
        assert!(off.is_empty(), "{}: not off by default: {off:?}", helm.name());
        let found = normalize(select_kinds(render(&helm, &[set]).await?, kinds));
        assert_eq!(found, expected, "{}", helm.name());
    }
    Ok(expected.len())
}

#[tokio::test]
async fn the_charts_admission_policies_are_kustomizes_and_off_by_default() -> Test {
    let kinds = ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"];
    let count = assert_same(
        "security/admission-policy",
        "--set=admissionPolicy.enabled=true",
        &kinds,
    )
    .await?;
    assert_eq!(count, 4);
    Ok(())
}

#[tokio::test]
async fn the_charts_policy_of_a_closed_namespace_is_kustomizes_and_off_by_default() -> Test {
    let set = "--set=networkPolicy.closedNamespaces={team-a}";
    let count = assert_same("security/network-policy", set, &["NetworkPolicy"]).await?;
    assert_eq!(count, 1);
    Ok(())
}

#[tokio::test]
async fn any_closed_ports_leave_the_others_open_and_the_operators_namespace_cannot_be_closed() -> Test {
    for helm in both_versions().await? {
        let set = "--set=networkPolicy.closedNamespaces={team-a},networkPolicy.closedPorts={65535,2049,1}";
        let policies = select_kinds(render(&helm, &[set]).await?, &["NetworkPolicy"]);
        let ports = policies[0].pointer("/spec/egress/0/ports").and_then(Value::as_array);
        let tcp = ports.into_iter().flatten().filter(|rule| rule["protocol"] == "TCP");
        let open: Vec<_> = tcp
            .map(|rule| (rule["port"].as_u64(), rule["endPort"].as_u64()))
            .collect();
        assert_eq!(open, [(Some(2), Some(2048)), (Some(2050), Some(65534))]);
        let own = "--set=networkPolicy.closedNamespaces={nfs-operator-system}";
        let output = helm.template(&[own]).await?;
        assert!(
            !output.success && output.stderr.contains("closedNamespaces"),
            "{}",
            output.stderr
        );
    }
    Ok(())
}

#[tokio::test]
async fn the_operators_network_policy_opens_dns_and_the_ports_of_the_values_alone() -> Test {
    let cases = [
        (
            "--set=networkPolicy.egressPorts={6443,2049}",
            vec![53, 2049, 5353, 6443],
        ),
        ("--set-json=networkPolicy.egressPorts=[]", vec![53, 5353]),
    ];
    for helm in both_versions().await? {
        for (set, expected) in &cases {
            let args = ["--set=networkPolicy.enabled=true", set];
            let policies = select_kinds(render(&helm, &args).await?, &["NetworkPolicy"]);
            let rules = policies[0].pointer("/spec/egress").and_then(Value::as_array);
            let mut open = BTreeSet::new();
            for rule in rules.into_iter().flatten() {
                // A rule without ports allows all ports.
                let ports = rule["ports"].as_array().filter(|ports| !ports.is_empty());
                let ports = ports.ok_or_else(|| format!("{set}: all ports are open: {}", policies[0]))?;
                open.extend(ports.iter().filter_map(|port| port["port"].as_u64()));
            }
            assert_eq!(Vec::from_iter(open), *expected, "{set}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn of_the_charts_pods_the_network_policy_is_about_the_operators_alone() -> Test {
    for helm in both_versions().await? {
        let objects = render(&helm, &[&values("everything.yaml")]).await?;
        let policies = objects.iter().filter(|object| object["kind"] == "NetworkPolicy");
        let selectors = policies.filter_map(|policy| policy.pointer("/spec/podSelector/matchLabels")?.as_object());
        let selectors: Vec<_> = selectors.collect();
        assert_eq!(selectors.len(), 1);
        let mut bound = Vec::new();
        for object in &objects {
            let labels = match object["kind"].as_str() {
                Some("Pod") => &object["metadata"]["labels"],
                Some("Job" | "Deployment") => &object["spec"]["template"]["metadata"]["labels"],
                _ => continue,
            };
            bound.push((
                object["kind"].as_str(),
                selectors[0].iter().all(|(key, value)| labels[key] == *value),
            ));
        }
        bound.sort();
        let expected = [(Some("Deployment"), true), (Some("Job"), false), (Some("Pod"), false)];
        assert_eq!(bound, expected, "{}", helm.name());
    }
    Ok(())
}
