//! The persistent volume controller, and the controllers that protect claims and volumes
//! (<https://kubernetes.io/docs/concepts/storage/persistent-volumes/#lifecycle-of-a-volume-and-claim>).

use std::sync::Arc;

use serde_json::{Value, json};

use crate::api_server::{ApiServer, Key};
use crate::objects::{at, claim_path, has_finalizer, is_deleting, name, namespace, text, uid, volume_path};

/// The kinds of objects that these controllers and those of namespaces depend on.
pub const KINDS: [&str; 4] = [
    "persistentvolumeclaims",
    "persistentvolumes",
    "storageclasses",
    "namespaces",
];

const BY: &str = "binder";
const CLAIM_PROTECTION: &str = "kubernetes.io/pvc-protection";
const VOLUME_PROTECTION: &str = "kubernetes.io/pv-protection";
/// Set on a claim that was bound once.
const BIND_COMPLETED: &str = "/metadata/annotations/pv.kubernetes.io~1bind-completed";
/// Set on a claim by the scheduler.
pub const SELECTED_NODE: &str = "/metadata/annotations/volume.kubernetes.io~1selected-node";

/// Does everything that there is to do now. A write that is refused is repeated at the next step.
pub fn step(api: &ApiServer) {
    for claim in api.all("persistentvolumeclaims") {
        if is_deleting(&claim) {
            remove_finalizer(
                api,
                &claim,
                &claim_path(namespace(&claim), name(&claim)),
                CLAIM_PROTECTION,
            );
        } else if text(&claim, "/spec/volumeName").is_empty() {
            bind_or_request(api, &claim);
        } else if text(&claim, BIND_COMPLETED).is_empty() {
            bind_to_chosen(api, &claim);
        } else {
            check_bound(api, &claim);
        }
    }
    for volume in api.all("persistentvolumes") {
        follow_claim(api, &volume);
    }
}

/// Returns a volume.
fn volume(api: &ApiServer, name: &str) -> Option<Arc<Value>> {
    api.get(&Key {
        plural: "persistentvolumes",
        namespace: String::new(),
        name: name.to_owned(),
    })
}

fn patch(api: &ApiServer, path: &str, body: &Value) {
    // A refusal is a change that this step did not see.
    let _repeated_by_the_next_step = api.call(BY, "PATCH", path, body);
}

/// Binds a claim to the volume that names it, or asks its provisioner for one.
fn bind_or_request(api: &ApiServer, claim: &Value) {
    let volumes = api.all("persistentvolumes");
    let path = claim_path(namespace(claim), name(claim));
    if let Some(volume) = volumes
        .iter()
        .find(|volume| names(volume, claim) && !is_deleting(volume))
    {
        return bind(api, volume, claim);
    }
    let classes = api.all("storageclasses");
    let class = text(claim, "/spec/storageClassName");
    let Some(class) = classes.iter().find(|found| name(found) == class) else {
        return;
    };
    let binds_late = text(class, "/volumeBindingMode") == "WaitForFirstConsumer";
    if binds_late && text(claim, SELECTED_NODE).is_empty() {
        return;
    }
    let provisioner = text(class, "/provisioner");
    let annotation = "/metadata/annotations/volume.kubernetes.io~1storage-provisioner";
    if text(claim, annotation) != provisioner {
        let annotations = json!({"volume.kubernetes.io/storage-provisioner": provisioner});
        patch(api, &path, &json!({"metadata": {"annotations": annotations}}));
    }
}

/// Binds a claim to the volume that its user chose, once nobody else has it.
fn bind_to_chosen(api: &ApiServer, claim: &Value) {
    let chosen = volume(api, text(claim, "/spec/volumeName")).filter(|volume| !is_deleting(volume));
    if let Some(volume) = chosen
        && (at(&volume, "/spec/claimRef").is_none() || names(&volume, claim))
    {
        bind(api, &volume, claim);
    }
}

/// Returns true if a volume is meant for this claim.
fn names(volume: &Value, claim: &Value) -> bool {
    text(volume, "/spec/claimRef/name") == name(claim)
        && text(volume, "/spec/claimRef/namespace") == namespace(claim)
        && matches!(text(volume, "/spec/claimRef/uid"), found if found.is_empty() || found == uid(claim))
}

fn bind(api: &ApiServer, volume: &Arc<Value>, claim: &Value) {
    let reference = json!({"uid": uid(claim), "name": name(claim), "namespace": namespace(claim)});
    let path = volume_path(name(volume));
    patch(api, &path, &json!({"spec": {"claimRef": reference}}));
    patch(api, &format!("{path}/status"), &json!({"status": {"phase": "Bound"}}));
    let path = claim_path(namespace(claim), name(claim));
    let annotations = json!({"pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes"});
    patch(
        api,
        &path,
        &json!({"metadata": {"annotations": annotations}, "spec": {"volumeName": name(volume)}}),
    );
    let status = json!({"phase": "Bound", "capacity": volume.pointer("/spec/capacity"),
        "accessModes": volume.pointer("/spec/accessModes")});
    patch(api, &format!("{path}/status"), &json!({"status": status}));
}

/// Reports a claim whose volume does not exist as lost.
fn check_bound(api: &ApiServer, claim: &Value) {
    let phase = match volume(api, text(claim, "/spec/volumeName")) {
        Some(volume) if text(&volume, "/spec/claimRef/uid") == uid(claim) => "Bound",
        _ => "Lost",
    };
    if text(claim, "/status/phase") != phase {
        let path = claim_path(namespace(claim), name(claim));
        patch(api, &format!("{path}/status"), &json!({"status": {"phase": phase}}));
    }
}

/// Sets the phase of a volume, and removes its protection.
fn follow_claim(api: &ApiServer, volume: &Value) {
    let path = volume_path(name(volume));
    let claim_uid = text(volume, "/spec/claimRef/uid");
    let phase = match text(volume, "/spec/claimRef/name") {
        "" => "Available",
        _ if claim_uid.is_empty() => "Available",
        _ => match api.get(&claim_of(volume)) {
            Some(claim) if uid(&claim) == claim_uid => "Bound",
            _ => "Released",
        },
    };
    if text(volume, "/status/phase") != phase {
        patch(api, &format!("{path}/status"), &json!({"status": {"phase": phase}}));
    }
    if is_deleting(volume) && phase != "Bound" {
        remove_finalizer(api, volume, &path, VOLUME_PROTECTION);
    }
}

/// Returns the key of the claim that a volume names.
fn claim_of(volume: &Value) -> Key {
    Key {
        plural: "persistentvolumeclaims",
        namespace: text(volume, "/spec/claimRef/namespace").to_owned(),
        name: text(volume, "/spec/claimRef/name").to_owned(),
    }
}

fn remove_finalizer(api: &ApiServer, object: &Value, path: &str, finalizer: &str) {
    if !has_finalizer(object, finalizer) {
        return;
    }
    let finalizers = at(object, "/metadata/finalizers").and_then(Value::as_array);
    let left: Vec<&Value> = finalizers
        .into_iter()
        .flatten()
        .filter(|found| *found != finalizer)
        .collect();
    patch(api, path, &json!({"metadata": {"finalizers": left}}));
}
