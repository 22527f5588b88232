//! Answers that are no objects: `Status`, as in
//! <https://github.com/kubernetes/apimachinery/blob/master/pkg/api/errors/errors.go>.

use serde_json::{Value, json};

use super::kinds::Kind;

/// A refusal: the HTTP status code and the body.
#[derive(Debug, Clone)]
pub struct Refusal {
    /// HTTP status code.
    pub code: u16,
    /// Body of the answer: a `Status`.
    pub status: Value,
    /// Value of the header `Retry-After`, in seconds.
    pub retry_after: Option<u64>,
}

impl Refusal {
    /// Returns a refusal without details.
    pub fn new(code: u16, reason: &str, message: &str) -> Self {
        let mut status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "code": code});
        if !reason.is_empty() {
            super::patch::merge(&mut status, &json!({"reason": reason}));
        }
        Self {
            code,
            status,
            retry_after: None,
        }
    }

    fn with_details(mut self, details: Value) -> Self {
        if let Some(status) = self.status.as_object_mut() {
            status.insert("details".to_owned(), details);
        }
        self
    }

    /// The object does not exist.
    pub fn not_found(kind: &Kind, name: &str) -> Self {
        Self::new(404, "NotFound", &format!("{} {name:?} not found", kind.resource()))
            .with_details(json!({"name": name, "group": kind.group, "kind": kind.plural}))
    }

    /// An object of this name exists.
    pub fn already_exists(kind: &Kind, name: &str) -> Self {
        Self::new(
            409,
            "AlreadyExists",
            &format!("{} {name:?} already exists", kind.resource()),
        )
        .with_details(json!({"name": name, "group": kind.group, "kind": kind.plural}))
    }

    /// The write depends on a state of the object that it does not have.
    pub fn conflict(kind: &Kind, name: &str, cause: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {cause}", kind.resource());
        Self::new(409, "Conflict", &message)
            .with_details(json!({"name": name, "group": kind.group, "kind": kind.plural}))
    }

    /// Another manager owns a field that an apply sets to another value.
    pub fn apply_conflict(kind: &Kind, name: &str, field: &str) -> Self {
        let message = format!("Apply failed with 1 conflict: {field}");
        let causes = json!([{"reason": "FieldManagerConflict", "message": "conflict", "field": field}]);
        Self::new(409, "Conflict", &message)
            .with_details(json!({"name": name, "group": kind.group, "kind": kind.plural, "causes": causes}))
    }

    /// The object was changed since it was read.
    pub fn modified(kind: &Kind, name: &str) -> Self {
        let cause = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(kind, name, cause)
    }

    /// The value of a field is invalid.
    pub fn invalid(kind: &Kind, name: &str, field: &str, cause: &str) -> Self {
        let message = format!("{}.{} {name:?} is invalid: {field}: {cause}", kind.kind, kind.group);
        let causes = json!([{"reason": "FieldValueInvalid", "message": cause, "field": field}]);
        Self::new(422, "Invalid", &message)
            .with_details(json!({"name": name, "group": kind.group, "kind": kind.kind, "causes": causes}))
    }

    /// The write names another object of this name.
    pub fn other_uid(kind: &Kind, name: &str) -> Self {
        Self::invalid_metadata(kind, name, "metadata.uid")
    }

    /// A field of the metadata may not be changed like this. Two validations find it, except for volumes.
    pub fn invalid_metadata(kind: &Kind, name: &str, field: &str) -> Self {
        let message = format!(
            "{}.{} {name:?} is invalid: {field}: field is immutable",
            kind.kind, kind.group
        );
        let cause = json!({"reason": "FieldValueInvalid", "message": "field is immutable", "field": field});
        let causes = match kind.plural {
            "persistentvolumes" => vec![cause],
            _ => vec![cause.clone(), cause],
        };
        Self::new(422, "Invalid", &message)
            .with_details(json!({"name": name, "group": kind.group, "kind": kind.kind, "causes": causes}))
    }

    /// The namespace of a new object is being deleted.
    pub fn terminating(kind: &Kind, name: &str, namespace: &str) -> Self {
        let message = format!(
            "{} {name:?} is forbidden: unable to create new content in namespace {namespace} because it is being \
             terminated",
            kind.resource()
        );
        let causes = json!([{"reason": "NamespaceTerminating", "field": "metadata.namespace",
            "message": format!("namespace {namespace} is being terminated")}]);
        Self::new(403, "Forbidden", &message)
            .with_details(json!({"name": name, "group": kind.group, "kind": kind.plural, "causes": causes}))
    }

    /// The request makes no sense.
    pub fn bad_request(message: &str) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// A list cannot be continued, or a watch cannot begin, at a resource version that was compacted.
    pub fn expired(message: &str) -> Self {
        Self::new(410, "Expired", message)
    }

    /// The server is overloaded. It did not execute the request.
    pub fn too_many_requests(retry_after: u64) -> Self {
        Self {
            retry_after: Some(retry_after),
            ..Self::new(429, "TooManyRequests", "too many requests, please try again later")
        }
    }

    /// The server failed. It may have executed the request.
    pub fn internal_error() -> Self {
        Self::new(
            500,
            "InternalError",
            "Internal error occurred: etcdserver: request timed out",
        )
    }
}
