//! Namespaces that are deleted and created again, and the controller that empties deleted ones.

use serde_json::json;

use crate::actors::users::NAMESPACES;
use crate::api_server::ApiServer;
use crate::chance::Chance;
use crate::objects::{claim_path, is_deleting, name, namespace};
use crate::trace::Trace;

fn path(name: &str) -> String {
    format!("/api/v1/namespaces/{name}")
}

/// Deletes one of the users' namespaces, or creates those again that were deleted.
pub fn delete_or_create(api: &ApiServer, chance: &Chance, trace: &Trace) {
    if create_missing(api, trace) {
        return;
    }
    if let Some(namespace) = chance.choose(&NAMESPACES)
        && api.call("admin", "DELETE", &path(namespace), &json!({})).is_ok()
    {
        trace.record("admin", format_args!("deletes namespace {namespace}"));
    }
}

/// Creates the namespaces of users that do not exist. Returns true if there was one.
pub fn create_missing(api: &ApiServer, trace: &Trace) -> bool {
    let mut created = false;
    for namespace in NAMESPACES {
        let object = json!({"metadata": {"name": namespace}});
        if api.call("admin", "POST", "/api/v1/namespaces", &object).is_ok() {
            trace.record("admin", format_args!("creates namespace {namespace} again"));
            created = true;
        }
    }
    created
}

/// Deletes what is in deleted namespaces, and then the namespaces.
pub fn step(api: &ApiServer) {
    for deleted in api.all("namespaces").iter().filter(|found| is_deleting(found)) {
        let mut claims = api.all("persistentvolumeclaims");
        claims.retain(|claim| namespace(claim) == name(deleted));
        for claim in claims.iter().filter(|claim| !is_deleting(claim)) {
            let _already_deleted = api.call(
                "namespaces",
                "DELETE",
                &claim_path(namespace(claim), name(claim)),
                &json!({}),
            );
        }
        if claims.is_empty() {
            let _repeated_by_the_next_step = api.call(
                "namespaces",
                "PATCH",
                &path(name(deleted)),
                &json!({"spec": {"finalizers": null}}),
            );
        }
    }
}
