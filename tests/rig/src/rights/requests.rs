//! What the operator asked of an API server, by its audit log
//! (<https://kubernetes.io/docs/reference/config-api/apiserver-audit.v1/>).

use serde::Deserialize;

use super::rules::Right;
use crate::operator::USER;

/// A request that was decided upon.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// What would allow it, were it asked for alone.
    pub(super) right: Right,
    pub(super) decision: Decision,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// By that binding, as in `RoleBinding "name/namespace"`.
    By(String),
    Refused,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    stage: String,
    verb: String,
    user: User,
    object_ref: Option<ObjectRef>,
    #[serde(default)]
    annotations: Annotations,
}

#[derive(Deserialize)]
struct User {
    username: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct ObjectRef {
    resource: String,
    subresource: String,
    api_group: String,
    namespace: String,
    name: String,
}

#[derive(Default, Deserialize)]
struct Annotations {
    #[serde(default, rename = "authorization.k8s.io/decision")]
    decision: String,
    #[serde(default, rename = "authorization.k8s.io/reason")]
    reason: String,
}

/// The request that a line is about, if it is one of the operator's for an object.
///
/// A line that cannot be read was cut short when its API server was killed: that it is missing makes a rule unused at worst.
pub(super) fn by_operator(line: &str) -> Option<Request> {
    let event: Event = serde_json::from_str(line).ok()?;
    // A watch is written down when it begins and when it ends, which may be after the log was read.
    let is_counted = match event.stage.as_str() {
        "ResponseStarted" => true,
        "ResponseComplete" => event.verb != "watch" || event.annotations.decision == "forbid",
        _ => false,
    };
    if event.user.username != USER || !is_counted {
        return None;
    }
    let decision = match event.annotations.decision.as_str() {
        "forbid" => Decision::Refused,
        // Other answers of 403 are admission's: a namespace that is being deleted takes no events.
        "allow" => Decision::By(binding(&event.annotations.reason)),
        _ => return None,
    };
    // Without an object: the API's own description, which everybody may read.
    let object = event.object_ref?;
    let some = |text: String| Some(text).filter(|text| !text.is_empty());
    let resource = match some(object.subresource) {
        Some(part) => format!("{}/{part}", object.resource),
        None => object.resource,
    };
    let right = Right {
        group: object.api_group,
        resource,
        verb: event.verb,
        namespace: some(object.namespace),
        name: some(object.name),
    };
    Some(Request { right, decision })
}

/// Out of `RBAC: allowed by ClusterRoleBinding "x" of ClusterRole "y" to …`.
fn binding(reason: &str) -> String {
    let named = reason
        .strip_prefix("RBAC: allowed by ")
        .and_then(|rest| rest.split_once(" of "));
    named.map_or(reason, |(binding, _)| binding).to_owned()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
mod tests {
    use super::*;
    use serde_json::json;

    fn line(stage: &str, verb: &str, user: &str, decision: &str) -> String {
        json!({
            "stage": stage, "verb": verb, "user": {"username": user},
            "objectRef": {"resource": "nfsbackends", "subresource": "status", "apiGroup": "nfs-operator.io", "name": "main"},
            "annotations": {
                "authorization.k8s.io/decision": decision,
                "authorization.k8s.io/reason": "RBAC: allowed by RoleBinding \"a/b\" of Role \"a\" to ServiceAccount \"c/d\"",
            },
        })
        .to_string()
    }

    #[test]
    fn a_request_is_read_with_its_object_and_the_binding_that_allowed_it() {
        let read = by_operator(&line("ResponseComplete", "patch", USER, "allow")).unwrap();
        assert_eq!(read.decision, Decision::By("RoleBinding \"a/b\"".to_owned()));
        assert_eq!(read.right.resource, "nfsbackends/status");
        assert_eq!(
            read.right.to_string(),
            "patch nfsbackends.nfs-operator.io/status named main"
        );
    }

    #[test]
    fn a_watch_counts_once_and_a_refused_one_counts_too() {
        assert!(by_operator(&line("ResponseStarted", "watch", USER, "allow")).is_some());
        assert_eq!(by_operator(&line("ResponseComplete", "watch", USER, "allow")), None);
        let refused = by_operator(&line("ResponseComplete", "watch", USER, "forbid")).unwrap();
        assert_eq!(refused.decision, Decision::Refused);
    }

    #[test]
    fn others_and_lines_cut_short_are_passed_over() {
        assert_eq!(by_operator(&line("ResponseComplete", "get", "admin", "allow")), None);
        let whole = line("ResponseComplete", "get", USER, "allow");
        assert_eq!(by_operator(whole.get(..40).unwrap()), None);
    }
}
