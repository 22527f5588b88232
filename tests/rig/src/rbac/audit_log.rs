//! The operator's requests in an audit log of the API server
//! (<https://kubernetes.io/docs/reference/config-api/apiserver-audit.v1/>).

use serde::Deserialize;

use super::grants::Permission;
use crate::operator::USERNAME;

/// An authorized or denied request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// The permission that the request needs.
    pub(super) permission: Permission,
    pub(super) decision: Decision,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// The binding that allowed it, such as `RoleBinding "name/namespace"`.
    AllowedBy(String),
    Denied,
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

/// Parses a line of the log. Returns `None` unless it is a request of the operator for an object.
///
/// A line that cannot be parsed was truncated when its API server was killed. The effect is at most that a rule
/// seems unused.
pub(super) fn parse_operator_request(line: &str) -> Option<Request> {
    let event: Event = serde_json::from_str(line).ok()?;
    // A watch is logged when it starts and when it ends, which may be after the log is read.
    let is_counted = match event.stage.as_str() {
        "ResponseStarted" => true,
        "ResponseComplete" => event.verb != "watch" || event.annotations.decision == "forbid",
        _ => false,
    };
    if event.user.username != USERNAME || !is_counted {
        return None;
    }
    let decision = match event.annotations.decision.as_str() {
        "forbid" => Decision::Denied,
        // Other responses with status 403 come from admission: a namespace that is being deleted accepts no events.
        "allow" => Decision::AllowedBy(parse_binding(&event.annotations.reason)),
        _ => return None,
    };
    // Requests without an object are for API discovery, which every account may use.
    let object = event.object_ref?;
    let some = |text: String| Some(text).filter(|text| !text.is_empty());
    let resource = match some(object.subresource) {
        Some(part) => format!("{}/{part}", object.resource),
        None => object.resource,
    };
    let permission = Permission {
        group: object.api_group,
        resource,
        verb: event.verb,
        namespace: some(object.namespace),
        name: some(object.name),
    };
    Some(Request { permission, decision })
}

/// Parses `RBAC: allowed by ClusterRoleBinding "x" of ClusterRole "y" to …`.
fn parse_binding(reason: &str) -> String {
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
    fn a_request_is_parsed_with_its_object_and_binding() {
        let read = parse_operator_request(&line("ResponseComplete", "patch", USERNAME, "allow")).unwrap();
        assert_eq!(read.decision, Decision::AllowedBy("RoleBinding \"a/b\"".to_owned()));
        assert_eq!(read.permission.resource, "nfsbackends/status");
        assert_eq!(
            read.permission.to_string(),
            "patch nfsbackends.nfs-operator.io/status named main"
        );
    }

    #[test]
    fn a_watch_counts_once_also_if_denied() {
        assert!(parse_operator_request(&line("ResponseStarted", "watch", USERNAME, "allow")).is_some());
        assert_eq!(
            parse_operator_request(&line("ResponseComplete", "watch", USERNAME, "allow")),
            None
        );
        let denied = parse_operator_request(&line("ResponseComplete", "watch", USERNAME, "forbid")).unwrap();
        assert_eq!(denied.decision, Decision::Denied);
    }

    #[test]
    fn other_users_and_truncated_lines_are_ignored() {
        assert_eq!(
            parse_operator_request(&line("ResponseComplete", "get", "admin", "allow")),
            None
        );
        let whole = line("ResponseComplete", "get", USERNAME, "allow");
        assert_eq!(parse_operator_request(whole.get(..40).unwrap()), None);
    }
}
