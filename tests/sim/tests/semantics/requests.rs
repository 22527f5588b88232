//! Requests, and sequences of them.

use serde_json::Value;

/// The method of a step that is no request.
pub const FORGET_HISTORY: &str = "forget history";

/// A request.
pub struct Step {
    pub method: &'static str,
    /// Path and query; `$N.uid` and the like stand for values in the answer to request `N`.
    pub path: &'static str,
    pub content_type: &'static str,
    /// The form of the answer; empty for whole objects.
    pub accept: &'static str,
    pub body: Value,
}

/// Requests that are sent one after the other.
pub struct Sequence {
    pub name: &'static str,
    pub steps: Vec<Step>,
}

pub fn sequence(name: &'static str, steps: impl IntoIterator<Item = Step>) -> Sequence {
    Sequence {
        name,
        steps: steps.into_iter().collect(),
    }
}

fn step(method: &'static str, path: &'static str, content_type: &'static str, body: Value) -> Step {
    Step {
        method,
        path,
        content_type,
        accept: "",
        body,
    }
}

pub fn get(path: &'static str) -> Step {
    step("GET", path, "", Value::Null)
}

pub fn post(path: &'static str, body: Value) -> Step {
    step("POST", path, "application/json", body)
}

pub fn put(path: &'static str, body: Value) -> Step {
    step("PUT", path, "application/json", body)
}

pub fn merge(path: &'static str, body: Value) -> Step {
    step("PATCH", path, "application/merge-patch+json", body)
}

pub fn strategic(path: &'static str, body: Value) -> Step {
    step("PATCH", path, "application/strategic-merge-patch+json", body)
}

pub fn json_patch(path: &'static str, body: Value) -> Step {
    step("PATCH", path, "application/json-patch+json", body)
}

pub fn apply(path: &'static str, body: Value) -> Step {
    step("PATCH", path, "application/apply-patch+yaml", body)
}

pub fn delete(path: &'static str, body: Value) -> Step {
    step("DELETE", path, "application/json", body)
}

/// Lets the server forget the history of all objects.
pub fn forget_history() -> Step {
    step(FORGET_HISTORY, "", "", Value::Null)
}

/// Returns the request with another type of its body.
pub fn as_type(content_type: &'static str, step: Step) -> Step {
    Step { content_type, ..step }
}

/// Returns the request for the metadata alone.
pub fn metadata_of(step: Step) -> Step {
    Step {
        accept: "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
        ..step
    }
}

/// Returns the request of a list for the metadata alone.
pub fn metadata_of_all(step: Step) -> Step {
    Step {
        accept: "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
        ..step
    }
}
