//! Administrators of volumes: they change reclaim policies, and give released volumes to other claims.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::actors::users::NAMESPACES;
use crate::api_server::ApiServer;
use crate::chance::Chance;
use crate::objects::{is_deleting, name, text, volume_path};
use crate::trace::Trace;

const BY: &str = "admin";

/// Sets the reclaim policy of a volume.
pub fn change_reclaim_policy(api: &ApiServer, chance: &Chance, trace: &Trace) {
    let volumes = api.all("persistentvolumes");
    let (Some(volume), Some(policy)) = (chance.choose(&volumes), chance.choose(&["Retain", "Retain", "Delete"])) else {
        return;
    };
    set_reclaim_policy(api, volume, policy, trace);
}

fn set_reclaim_policy(api: &ApiServer, volume: &Value, policy: &str, trace: &Trace) {
    let patch = json!({"spec": {"persistentVolumeReclaimPolicy": policy}});
    if api.call(BY, "PATCH", &volume_path(name(volume)), &patch).is_ok() {
        trace.record(
            BY,
            format_args!("sets the reclaim policy of {} to {policy}", name(volume)),
        );
    }
}

/// Follows up on a released volume: keeps one that is still there, and reclaims or gives away one that is kept.
pub fn follow_up(api: &ApiServer, chance: &Chance, trace: &Trace) {
    let volumes = released(api);
    let Some(volume) = chance.choose(&volumes) else {
        return;
    };
    match (is_retained(volume), chance.below(4)) {
        (false, _) => set_reclaim_policy(api, volume, "Retain", trace),
        (true, 0) => set_reclaim_policy(api, volume, "Delete", trace),
        (true, 1) => give_away(api, volume, NAMESPACES[0], (chance, trace)),
        (true, 2) => give_away(api, volume, NAMESPACES[1], (chance, trace)),
        (true, _) => {}
    }
}

/// Reclaims all volumes that were retained.
pub fn reclaim_all(api: &ApiServer, trace: &Trace) {
    for volume in released(api).iter().filter(|volume| is_retained(volume)) {
        set_reclaim_policy(api, volume, "Delete", trace);
    }
}

/// Returns the volumes whose claims were deleted.
pub fn released(api: &ApiServer) -> Vec<Arc<Value>> {
    let mut volumes = api.all("persistentvolumes");
    volumes.retain(|volume| text(volume, "/status/phase") == "Released" && !is_deleting(volume));
    volumes
}

/// Gives a released volume that is retained to a new claim.
pub fn rebind(api: &ApiServer, chance: &Chance, trace: &Trace) {
    let mut volumes = api.all("persistentvolumes");
    volumes.retain(|volume| is_retained(volume));
    let (volume, namespace) = (chance.choose(&volumes), chance.choose(&NAMESPACES));
    if let Some((volume, namespace)) = volume.zip(namespace) {
        give_away(api, volume, namespace, (chance, trace));
    }
}

fn give_away(api: &ApiServer, volume: &Value, namespace: &str, (chance, trace): (&Chance, &Trace)) {
    let path = volume_path(name(volume));
    if api
        .call(BY, "PATCH", &path, &json!({"spec": {"claimRef": null}}))
        .is_err()
    {
        return;
    }
    let claim = format!("rebound-{}", chance.below(3));
    let size = text(volume, "/spec/capacity/storage");
    let object = json!({
        "metadata": {"name": claim},
        "spec": {"accessModes": ["ReadWriteMany"], "storageClassName": text(volume, "/spec/storageClassName"),
            "volumeName": name(volume), "resources": {"requests": {"storage": size}}},
    });
    let claims = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims");
    if api.call(BY, "POST", &claims, &object).is_ok() {
        trace.record(BY, format_args!("gives {} to claim {namespace}/{claim}", name(volume)));
    }
}

/// Returns true if a volume is released and stays as it is.
fn is_retained(volume: &Value) -> bool {
    matches!(text(volume, "/status/phase"), "Released" | "Available")
        && text(volume, "/spec/persistentVolumeReclaimPolicy") == "Retain"
        && !is_deleting(volume)
}
