//! One-shot requests: annotations with which an administrator asks for something on a backend once.
//!
//! A value is handled once, whatever happens to the annotation afterwards: the status lists the last handled value of each
//! request. The operator never changes these annotations, so that tools which own them (GitOps) do not fight it. To repeat a
//! request, set another value. A value that carries IDs may end with `@` and any text, which has no other meaning.
//!
//! A manifest may keep an annotation that was handled long ago. An acceptance in the manifest of a new object is therefore not
//! carried out: nothing was reported yet that it could accept.
//!
//! To add a request, add its annotation to `names!` and a line to `requests!`, and call
//! [`RequestLog`](crate::state::requests::RequestLog) where it is carried out.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::NfsBackend;
use super::names;
use export_store::text::hexadecimal;

macro_rules! requests {
    ($($(#[$doc:meta])* $name:ident = $annotation:ident;)*) => {
        /// A one-shot request on a backend.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum BackendRequest { $($(#[$doc])* $name,)* }

        impl BackendRequest {
            /// All requests.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Returns the annotation that makes the request.
            pub fn annotation(self) -> &'static str {
                match self { $(Self::$name => names::$annotation,)* }
            }
        }
    };
}

requests! {
    /// Scan the export for orphans.
    Scan = SCAN_REQUESTED_AT;
    /// Measure the usage of all volumes.
    Count = COUNT_REQUESTED_AT;
    /// Create the objects of released archives.
    ImportArchives = IMPORT_ARCHIVES_REQUESTED_AT;
    /// Recreate the volumes of all live records.
    Readopt = READOPT_REQUESTED_AT;
    /// Recreate the volumes with these names.
    ReadoptVolumes = READOPT;
    /// Accept an export as that of the backend.
    AcceptIdentity = ACCEPT_IDENTITY;
    /// Adopt records that this cluster did not sign.
    AdoptRecords = ADOPT_RECORD;
    /// Accept directories that have other fileids than recorded.
    AcceptDirectories = ACCEPT_DIRECTORIES;
}

/// A request that was handled.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HandledRequest {
    /// Name of the annotation, without the prefix `nfs-operator.io/`.
    #[schemars(length(max = 63))]
    pub name: String,
    /// Last value of the annotation that was handled. A value of more than 256 bytes is replaced by `sha256:` and its digest.
    #[schemars(length(max = 256))]
    pub value: String,
    /// Result, for reading. Only of requests that no condition reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub result: Option<String>,
    /// Time when it was handled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handled_time: Option<Time>,
}

impl HandledRequest {
    /// Reports whether this is about a value of the annotation.
    pub fn is_of(&self, value: &str) -> bool {
        self.value == recorded(value)
    }
}

/// Maximum length of a value in the status, in bytes.
const MAX_VALUE: usize = 256;

impl BackendRequest {
    /// Returns the name in the status: that of the annotation, without its prefix.
    pub fn name(self) -> &'static str {
        self.annotation().split_once('/').map_or("", |(_, name)| name)
    }

    /// Reports whether it accepts something that the backend reported: an answer, which says nothing about another object with
    /// the same name, or about the next thing that is reported.
    pub fn is_acceptance(self) -> bool {
        match self {
            Self::AcceptIdentity | Self::AdoptRecords | Self::AcceptDirectories => true,
            Self::Scan | Self::Count | Self::ImportArchives | Self::Readopt | Self::ReadoptVolumes => false,
        }
    }

    /// Returns the value that an administrator set, handled or not. An empty one requests nothing.
    pub fn value(self, object: &NfsBackend) -> Option<&str> {
        let value = object.annotations().get(self.annotation())?.trim();
        Some(value).filter(|value| !value.is_empty())
    }

    /// Returns the value if the status does not list it as handled.
    pub fn unhandled(self, object: &NfsBackend) -> Option<&str> {
        let value = self.value(object)?;
        let handled = object.status.iter().flat_map(|status| &status.handled_requests);
        let handled = handled.filter(|handled| handled.name == self.name());
        let is_new = !handled.into_iter().any(|handled| handled.is_of(value));
        is_new.then_some(value)
    }
}

/// ID that stands for all of them, where a request allows it. No object can have this name.
pub const ALL: &str = "*";

/// Returns a value as the status lists it.
pub fn recorded(value: &str) -> Cow<'_, str> {
    if value.len() <= MAX_VALUE {
        return Cow::Borrowed(value);
    }
    Cow::Owned(format!("sha256:{}", hexadecimal(&Sha256::digest(value.as_bytes()))))
}

/// Returns the IDs in a value, which are separated by commas, without `@` and what follows it.
pub fn ids(value: &str) -> impl Iterator<Item = &str> {
    let ids = value.split_once('@').map_or(value, |(ids, _)| ids);
    ids.split(',').map(str::trim).filter(|id| !id.is_empty())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::json;

    use super::*;

    fn backend(annotation: &str, value: &str, handled: &str) -> NfsBackend {
        let name = annotation.trim_start_matches("nfs-operator.io/");
        serde_json::from_value(json!({
            "metadata": {"name": "b", "annotations": {annotation: value}},
            "spec": {"server": "s", "path": "/"},
            "status": {"handledRequests": [{"name": name, "value": handled}]},
        }))
        .unwrap()
    }

    #[test]
    fn a_value_is_requested_until_the_status_lists_it() {
        for request in BackendRequest::ALL {
            let unhandled = |value: &str, handled: &str| {
                let object = backend(request.annotation(), value, handled);
                request.unhandled(&object).map(str::to_owned)
            };
            assert_eq!(unhandled("2", "1").as_deref(), Some("2"), "{request:?}");
            assert_eq!(unhandled(" 1 ", "1"), None, "{request:?}");
            assert_eq!(unhandled(" ", "1"), None, "{request:?}");
        }
        let (long, other) = ("a".repeat(300), "b".repeat(300));
        assert!(recorded(&long).len() <= MAX_VALUE);
        let object = backend(names::SCAN_REQUESTED_AT, &long, &recorded(&long));
        assert_eq!(BackendRequest::Scan.unhandled(&object), None);
        let object = backend(names::SCAN_REQUESTED_AT, &long, &recorded(&other));
        assert!(BackendRequest::Scan.unhandled(&object).is_some());
    }

    #[test]
    fn the_text_behind_an_at_sign_is_not_part_of_the_ids() {
        let of = |value: &'static str| ids(value).collect::<Vec<_>>();
        assert_eq!(of("pvc-1, pvc-2,@again"), ["pvc-1", "pvc-2"]);
        assert_eq!(of("id"), ["id"]);
        assert!(of(" , @x").is_empty());
    }
}
