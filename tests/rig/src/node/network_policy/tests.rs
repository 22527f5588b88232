#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a panic is how a test fails"
)]

use serde_json::{Value, json};

use super::*;

fn pod(namespace: &str, name: &str, label: &str, address: Option<&str>) -> Value {
    json!({
        "metadata": { "namespace": namespace, "name": name, "labels": { "app": label } },
        "spec": { "containers": [{ "name": "main", "ports": [
            { "name": "http", "containerPort": 8080, "protocol": "TCP" },
            { "name": "http", "containerPort": 8081, "protocol": "UDP" },
        ] }] },
        "status": { "phase": "Running", "podIP": address },
    })
}

/// Returns the tested pod, one in its namespace, one in another, and three without their own address.
fn cluster(policies: &[Value]) -> Snapshot {
    let mut in_host_network = pod("home", "host", "other", Some("192.0.2.10"));
    in_host_network["spec"]["hostNetwork"] = json!(true);
    let mut ended = pod("home", "ended", "other", Some("10.88.0.9"));
    ended["status"]["phase"] = json!("Succeeded");
    let namespace = |name, team| json!({ "metadata": { "name": name, "labels": { "team": team } } });
    let read = |all: Vec<Value>| serde_json::from_value(all.into()).unwrap();
    Snapshot {
        pods: read(vec![
            pod("home", "subject", "subject", Some("10.88.0.2")),
            pod("home", "neighbour", "other", Some("10.88.0.3")),
            pod("away", "stranger", "other", Some("10.88.0.4")),
            in_host_network,
            ended,
            pod("home", "new", "other", None),
        ]),
        namespaces: serde_json::from_value(json!([namespace("home", "a"), namespace("away", "b")])).unwrap(),
        policies: serde_json::from_value(policies.into()).unwrap(),
    }
}

fn policy(spec: Value) -> Value {
    json!({ "metadata": { "namespace": "home", "name": "policy" }, "spec": spec })
}

fn of_subject(types: &[&str], ingress: Value, egress: Value) -> Value {
    let selector = json!({ "matchLabels": { "app": "subject" } });
    policy(json!({ "podSelector": selector, "policyTypes": types, "ingress": ingress, "egress": egress }))
}

/// Returns the rules of a chain, if it exists.
fn chain(text: &str, name: &str) -> Option<Vec<String>> {
    let begin = format!("\tchain {name} {{");
    let lines = text.lines().skip_while(|line| *line != begin);
    let mut rules = lines
        .take_while(|line| *line != "\t}")
        .map(|line| line.trim().to_owned());
    rules.next().map(|_| rules.collect())
}

#[test]
fn the_rules_of_a_pod_allow_what_its_policies_allow() {
    let from = |egress: Value| vec![of_subject(&["Egress"], Value::Null, egress)];
    let to = |ingress: Value| vec![of_subject(&["Ingress"], ingress, Value::Null)];
    let ports = |ports: Value| json!([{ "ports": ports }]);
    let peers = |peers: Value| json!([{ "from": peers }]);
    let app = |operator: &str, values: Value| json!({ "podSelector": { "matchExpressions": [{ "key": "app", "operator": operator, "values": values }] } });
    // Name, policies, rules that allow connections from the pod, and to the pod. `None`: everything is allowed.
    type Case<'a> = (&'a str, Vec<Value>, Option<&'a [&'a str]>, Option<&'a [&'a str]>);
    let cases: [Case<'_>; 17] = [
        ("no policy", vec![], None, None),
        (
            "both directions, no rules",
            vec![of_subject(&["Ingress", "Egress"], Value::Null, Value::Null)],
            Some(&[]),
            Some(&[]),
        ),
        (
            "one direction, an empty rule",
            from(json!([{}])),
            Some(&["return"]),
            None,
        ),
        (
            "a policy for another pod",
            vec![policy(
                json!({ "podSelector": { "matchLabels": { "app": "other" } }, "policyTypes": ["Egress"] }),
            )],
            None,
            None,
        ),
        (
            "numbers, ranges and protocols",
            from(ports(json!([
                { "port": 53, "protocol": "UDP" },
                { "port": 443 },
                { "port": 1, "endPort": 110, "protocol": "TCP" },
                { "port": 1, "endPort": 65535, "protocol": "SCTP" },
                { "protocol": "UDP" },
            ]))),
            Some(&[
                "udp dport 53 return",
                "tcp dport 443 return",
                "tcp dport 1-110 return",
                "sctp dport 1-65535 return",
                "meta l4proto udp return",
            ]),
            None,
        ),
        (
            "a port name selects the port with that protocol",
            to(ports(json!([{ "port": "http", "protocol": "TCP" }]))),
            None,
            Some(&["tcp dport 8080 return"]),
        ),
        (
            "a port name that the pod does not have",
            to(ports(json!([{ "port": "https", "protocol": "TCP" }]))),
            None,
            Some(&[]),
        ),
        (
            "an IP block with exceptions",
            from(
                json!([{ "to": [{ "ipBlock": { "cidr": "10.0.0.0/8", "except": ["10.1.0.0/16", "10.2.0.0/16"] } }] }]),
            ),
            Some(&["ip daddr 10.0.0.0/8 ip daddr != 10.1.0.0/16 ip daddr != 10.2.0.0/16 return"]),
            None,
        ),
        (
            "every peer and every port",
            from(json!([{
                "to": [{ "ipBlock": { "cidr": "10.0.0.0/8" } }, { "ipBlock": { "cidr": "192.0.2.0/24" } }],
                "ports": [{ "port": 1 }, { "port": 2 }],
            }])),
            Some(&[
                "ip daddr 10.0.0.0/8 tcp dport 1 return",
                "ip daddr 10.0.0.0/8 tcp dport 2 return",
                "ip daddr 192.0.2.0/24 tcp dport 1 return",
                "ip daddr 192.0.2.0/24 tcp dport 2 return",
            ]),
            None,
        ),
        (
            "pods of the same namespace",
            to(peers(json!([{ "podSelector": {} }]))),
            None,
            Some(&["ip saddr 10.88.0.2 return", "ip saddr 10.88.0.3 return"]),
        ),
        (
            "values of a label",
            to(peers(json!([app("In", json!(["other"]))]))),
            None,
            Some(&["ip saddr 10.88.0.3 return"]),
        ),
        (
            "an absent label",
            to(peers(json!([app("DoesNotExist", Value::Null)]))),
            None,
            Some(&[]),
        ),
        (
            "pods of all namespaces",
            to(peers(json!([{ "namespaceSelector": {} }]))),
            None,
            Some(&[
                "ip saddr 10.88.0.2 return",
                "ip saddr 10.88.0.3 return",
                "ip saddr 10.88.0.4 return",
            ]),
        ),
        (
            "pods of some namespaces",
            to(peers(
                json!([{ "namespaceSelector": { "matchLabels": { "team": "b" } } }]),
            )),
            None,
            Some(&["ip saddr 10.88.0.4 return"]),
        ),
        (
            "some pods of all namespaces",
            to(peers(
                json!([{ "namespaceSelector": {}, "podSelector": { "matchLabels": { "app": "other" } } }]),
            )),
            None,
            Some(&["ip saddr 10.88.0.3 return", "ip saddr 10.88.0.4 return"]),
        ),
        (
            "several policies are additive",
            [from(ports(json!([{ "port": 1 }]))), from(ports(json!([{ "port": 2 }])))].concat(),
            Some(&["tcp dport 1 return", "tcp dport 2 return"]),
            None,
        ),
        (
            "a policy of another namespace",
            vec![json!({
                "metadata": { "namespace": "away", "name": "policy" },
                "spec": { "podSelector": {}, "policyTypes": ["Ingress"] },
            })],
            None,
            None,
        ),
    ];
    for (name, policies, from, to) in cases {
        let text = ruleset(&cluster(&policies)).unwrap();
        for (direction, expected) in [("from", from), ("to", to)] {
            let found = chain(&text, &format!("{direction}-10.88.0.2"));
            // Every chain ends with a drop.
            let expected = expected.map(|rules| [rules, &["counter drop"]].concat());
            assert_eq!(
                found,
                expected.map(|rules| rules.iter().map(ToString::to_string).collect()),
                "{name}, {direction}"
            );
        }
    }
}

#[test]
fn an_unknown_pod_is_isolated_and_one_without_a_policy_is_not() {
    let text = ruleset(&cluster(&[of_subject(&["Egress"], Value::Null, Value::Null)])).unwrap();
    let known = "ip saddr vmap { 10.88.0.2 : goto from-10.88.0.2, 10.88.0.3 : return, 10.88.0.4 : return }";
    assert_eq!(chain(&text, "from").unwrap(), [known, "drop"]);
    let known = "ip daddr vmap { 10.88.0.2 : return, 10.88.0.3 : return, 10.88.0.4 : return }";
    assert_eq!(chain(&text, "to").unwrap(), [known, "drop"]);

    let text = ruleset(&Snapshot::default()).unwrap();
    assert_eq!(chain(&text, "from").unwrap(), ["drop"]);
}

#[test]
fn an_unsupported_policy_is_an_error_with_its_name() {
    let cases = [
        (
            of_subject(&["Egress"], Value::Null, json!([{ "ports": [{ "port": "http" }] }])),
            "port http by name",
        ),
        (
            of_subject(
                &["Egress"],
                Value::Null,
                json!([{ "to": [{ "ipBlock": { "cidr": "fd00::/8" } }] }]),
            ),
            "fd00::/8",
        ),
        (
            of_subject(
                &["Ingress"],
                json!([{ "ports": [{ "protocol": "ICMP" }] }]),
                Value::Null,
            ),
            "protocol ICMP",
        ),
        (policy(json!({ "podSelector": {} })), "policyTypes"),
    ];
    for (policy, expected) in cases {
        let error = ruleset(&cluster(&[policy])).unwrap_err().to_string();
        assert!(error.contains("home/policy") && error.contains(expected), "{error}");
    }
}
