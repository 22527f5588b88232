//! What a pod that was created for a probe does. Pure.

use k8s_openapi::api::core::v1::{Event, Pod};

/// State of the pod.
#[derive(Debug, PartialEq, Eq)]
pub enum PodState {
    /// It is not done; the text says why.
    Waits(String),
    /// It never runs; the text has the cause.
    Refused(String),
    /// Its container ended with this exit code.
    Done(i32),
}

impl PodState {
    /// Returns the state of a pod with one container.
    pub fn of(pod: &Pod) -> Self {
        let status = pod.status.clone().unwrap_or_default();
        let container = status.container_statuses.iter().flatten().next();
        let state = container
            .and_then(|container| container.state.clone())
            .unwrap_or_default();
        if let Some(terminated) = state.terminated {
            return Self::Done(terminated.exit_code);
        }
        let text = |reason: Option<&String>, message: Option<&String>| {
            let parts = [reason, message].into_iter().flatten().filter(|part| !part.is_empty());
            parts.map(String::as_str).collect::<Vec<_>>().join(": ")
        };
        let cause = text(status.reason.as_ref(), status.message.as_ref());
        // The kubelet refuses a pod before it has a container, for example because of a sysctl.
        if status.phase.as_deref() == Some("Failed") {
            return Self::Refused(format!("the pod failed: {cause}"));
        }
        if let Some(waiting) = state.waiting {
            return Self::Waits(text(waiting.reason.as_ref(), waiting.message.as_ref()));
        }
        if state.running.is_some() {
            return Self::Waits("the probe runs".to_owned());
        }
        let mut conditions = status.conditions.iter().flatten();
        let unscheduled = conditions.find(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
        Self::Waits(match unscheduled {
            Some(condition) => text(condition.reason.as_ref(), condition.message.as_ref()),
            None => "the pod has no container yet".to_owned(),
        })
    }
}

/// Returns why the API server does not admit the pod of a Job, from the events of the Job. Repeating the request does not help.
pub fn admission_refusal(events: &[Event]) -> Option<String> {
    let messages = events
        .iter()
        .filter(|event| event.reason.as_deref() == Some("FailedCreate"))
        .filter_map(|event| event.message.as_deref());
    messages
        .filter(|message| message.contains("is forbidden"))
        .map(|message| format!("FailedCreate: {message}"))
        .next_back()
}

/// Returns the message of the kubelet about a volume that it could not mount, from the events of the pod.
pub fn mount_failure(events: &[Event]) -> Option<String> {
    let failed = events
        .iter()
        .filter(|event| event.reason.as_deref() == Some("FailedMount"));
    failed.filter_map(|event| event.message.clone()).next_back()
}

/// Returns the reason and the message of the last warning.
pub fn last_warning(events: &[Event]) -> Option<String> {
    let warnings = events.iter().filter(|event| event.type_.as_deref() == Some("Warning"));
    let last = warnings.max_by_key(|event| event.last_timestamp.as_ref().map(|time| time.0))?;
    let reason = last.reason.as_deref().unwrap_or_default();
    Some(format!("{reason}: {}", last.message.as_deref().unwrap_or_default()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn state(status: &Value) -> PodState {
        PodState::of(&serde_json::from_value(json!({"metadata": {}, "status": status})).unwrap())
    }

    fn container(state: &Value) -> Value {
        json!({"phase": "Pending", "containerStatuses": [{
            "name": "probe", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state,
        }]})
    }

    #[test]
    fn the_text_names_what_the_pod_waits_for() {
        let waits = |text: &str| PodState::Waits(text.to_owned());
        let unscheduled = json!({"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no nodes"},
        ]});
        let pull = container(&json!({"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}));
        assert_eq!(state(&unscheduled), waits("Unschedulable: no nodes"));
        assert_eq!(state(&pull), waits("ImagePullBackOff: not found"));
        assert_eq!(state(&container(&json!({"running": {}}))), waits("the probe runs"));
        assert_eq!(state(&json!({})), waits("the pod has no container yet"));
    }

    #[test]
    fn a_pod_is_done_with_its_exit_code_and_refused_without_a_container() {
        let ended = container(&json!({"terminated": {"exitCode": 1}}));
        assert_eq!(state(&ended), PodState::Done(1));
        let forbidden = json!({"phase": "Failed", "reason": "SysctlForbidden", "message": "not allowed"});
        let expected = "the pod failed: SysctlForbidden: not allowed";
        assert_eq!(state(&forbidden), PodState::Refused(expected.to_owned()));
    }

    fn reported(reason: &str, message: &str) -> Vec<Event> {
        let event =
            json!({"metadata": {}, "involvedObject": {}, "type": "Warning", "reason": reason, "message": message});
        serde_json::from_value(json!([event])).unwrap()
    }

    #[test]
    fn only_what_admission_forbids_is_final() {
        let forbidden = reported(
            "FailedCreate",
            r#"pods "a" is forbidden: violates PodSecurity "restricted:latest""#,
        );
        assert!(admission_refusal(&forbidden).unwrap().contains("PodSecurity"));
        assert_eq!(admission_refusal(&reported("FailedCreate", "the server is busy")), None);
        assert_eq!(admission_refusal(&reported("Killing", "it is forbidden")), None);
    }

    #[test]
    fn the_kubelets_message_about_a_mount_is_found() {
        assert_eq!(
            mount_failure(&reported("FailedMount", "exit status 32")).unwrap(),
            "exit status 32"
        );
        assert_eq!(mount_failure(&reported("FailedScheduling", "no nodes")), None);
    }

    #[test]
    fn the_last_warning_is_shown() {
        let event = |kind: &str, time: &str, message: &str| {
            serde_json::from_value(json!({
                "metadata": {}, "involvedObject": {}, "type": kind, "reason": "FailedCreate", "message": message,
                "lastTimestamp": time,
            }))
            .unwrap()
        };
        let events = [
            event("Warning", "2026-01-01T00:00:01Z", "second"),
            event("Warning", "2026-01-01T00:00:00Z", "first"),
            event("Normal", "2026-01-01T00:00:02Z", "normal"),
        ];
        assert_eq!(last_warning(&events).unwrap(), "FailedCreate: second");
        assert!(last_warning(&[]).is_none());
    }
}
