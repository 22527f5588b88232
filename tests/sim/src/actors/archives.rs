//! Administrators of archives: holds, retention, deletion, permission for other namespaces, and backups.

use jiff::SignedDuration;
use serde_json::{Value, json};

use crate::actors::users::NAMESPACES;
use crate::api_server::ApiServer;
use crate::chance::Chance;
use crate::objects::{ARCHIVES_PATH, archive_path, name, namespace};
use crate::trace::Trace;

const BY: &str = "admin";

fn path(archive: &Value) -> String {
    archive_path(name(archive))
}

/// Does something with one of the archives.
pub fn act(api: &ApiServer, chance: &Chance, trace: &Trace) {
    let archives = api.all("nfsarchives");
    let Some(archive) = chance.choose(&archives) else {
        return;
    };
    if chance.below(5) == 0 {
        if api.call(BY, "DELETE", &path(archive), &json!({})).is_ok() {
            trace.record(BY, format_args!("deletes archive {}", name(archive)));
        }
        return;
    }
    let spec = match chance.below(8) {
        0..2 => json!({"legalHold": true}),
        2 => json!({"legalHold": false}),
        3..5 => json!({"deletionPolicy": "Delete"}),
        5 => json!({"deletionPolicy": "Retain"}),
        6 => json!({"expirationTime": expiry(api, chance)}),
        _ => json!({"allowedNamespaces": {"matchNames": [chance.choose(&NAMESPACES)]}}),
    };
    if api.call(BY, "PATCH", &path(archive), &json!({"spec": spec})).is_ok() {
        trace.record(BY, format_args!("changes archive {}: {spec}", name(archive)));
    }
}

/// Deletes all archives with their data, whatever holds them.
pub fn delete_all(api: &ApiServer, trace: &Trace) {
    for archive in api.all("nfsarchives") {
        let spec = json!({"legalHold": false, "deletionPolicy": "Delete"});
        let changed = api.call(BY, "PATCH", &path(&archive), &json!({"spec": spec})).is_ok();
        if changed && api.call(BY, "DELETE", &path(&archive), &json!({})).is_ok() {
            trace.record(BY, format_args!("deletes archive {} with its data", name(&archive)));
        }
    }
}

/// Lets all archives expire some time after `seconds`, within five minutes.
pub fn expire_all(api: &ApiServer, chance: &Chance, trace: &Trace, seconds: i64) {
    for archive in api.all("nfsarchives") {
        let later = i64::try_from(chance.below(300)).unwrap_or(0);
        set_retention(
            api,
            &archive,
            &json!({"expirationTime": time_in(api, seconds + later)}),
            trace,
        );
    }
}

/// Keeps each archive longer: holds it, or lets it expire after a day.
pub fn keep_all(api: &ApiServer, chance: &Chance, trace: &Trace) {
    for archive in api.all("nfsarchives") {
        let spec = match chance.below(2) {
            0 => json!({"legalHold": true}),
            _ => json!({"expirationTime": time_in(api, 86_400)}),
        };
        set_retention(api, &archive, &spec, trace);
    }
}

fn set_retention(api: &ApiServer, archive: &Value, spec: &Value, trace: &Trace) {
    if api.call(BY, "PATCH", &path(archive), &json!({"spec": spec})).is_ok() {
        trace.record(BY, format_args!("changes archive {}: {spec}", name(archive)));
    }
}

/// Returns a time of the API server's clock, as objects have it.
pub fn time_in(api: &ApiServer, seconds: i64) -> Value {
    let at = api.now().saturating_add(SignedDuration::from_secs(seconds));
    json!(format!("{:.0}", at.unwrap_or_else(|_| api.now())))
}

/// Returns a time in the next minutes, or none.
fn expiry(api: &ApiServer, chance: &Chance) -> Value {
    match chance.below(3) {
        0 => Value::Null,
        _ => {
            let seconds = SignedDuration::from_secs(i64::try_from(chance.below(300)).unwrap_or(0));
            let at = api.now().saturating_add(seconds).unwrap_or_else(|_| api.now());
            json!(format!("{at:.0}"))
        }
    }
}

/// Requests a backup of a claim.
pub fn back_up(api: &ApiServer, chance: &Chance, trace: &Trace) {
    let claims = api.all("persistentvolumeclaims");
    let Some(claim) = chance.choose(&claims) else {
        return;
    };
    // Few names, so that some exist already.
    let backup = format!("backup-{}", chance.below(20));
    let object = json!({
        "metadata": {"name": backup},
        "spec": {"claimRef": {"namespace": namespace(claim), "name": name(claim)}},
    });
    if api.call(BY, "POST", ARCHIVES_PATH, &object).is_ok() {
        trace.record(
            BY,
            format_args!("requests {backup} of claim {}/{}", namespace(claim), name(claim)),
        );
    }
}
