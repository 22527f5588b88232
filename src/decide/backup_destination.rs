//! The backend that gets a backup. Pure.

use kube::ResourceExt;

use crate::api::{NfsArchive, NfsBackend};

/// Returns the name of the backend that gets the backups of the claims on `backend` that name none themselves.
pub fn destination_of(backend: &NfsBackend) -> String {
    let settings = backend.spec.backups.as_ref();
    let destination = settings.and_then(|settings| settings.destination.as_ref());
    destination.map_or_else(|| backend.name_any(), |destination| destination.backend_name.clone())
}

/// Returns the name of the backend that gets a requested backup, unless the backend of its claim decides that. Once the object
/// has a location, it stays there, also if its status is lost: something may exist there.
pub fn destination_name(object: &NfsArchive) -> Option<&str> {
    let named = object.spec.destination.as_ref();
    match object.backend_name() {
        "" => named.map(|destination| destination.backend_name.as_str()),
        location => Some(location),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_backup_stays_where_it_began_then_its_own_destination_decides_and_then_that_of_the_backend() {
        let backend = |backups: serde_json::Value| -> NfsBackend {
            let spec = json!({"server": "a", "path": "/a", "backups": backups});
            serde_json::from_value(json!({"metadata": {"name": "main"}, "spec": spec})).unwrap()
        };
        let (policy, none) = (
            backend(json!({"destination": {"backendName": "other"}})),
            backend(json!({})),
        );
        let mut object: NfsArchive = serde_json::from_value(json!({
            "metadata": {"name": "b"}, "spec": {"claimRef": {"namespace": "team", "name": "data"}},
        }))
        .unwrap();
        assert_eq!(destination_of(&none), "main");
        assert_eq!(destination_of(&policy), "other");
        assert_eq!(destination_name(&object), None);
        object.spec.destination = serde_json::from_value(json!({"backendName": "third"})).unwrap();
        assert_eq!(destination_name(&object), Some("third"));
        let annotations = json!({"nfs-operator.io/backend": "first"});
        object.metadata.annotations = serde_json::from_value(annotations).unwrap();
        assert_eq!(destination_name(&object), Some("first"), "its status is lost");
    }
}
