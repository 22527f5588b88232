//! Finds the names in a report by the fields that hold them.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::redact::{Kind, Redactor};
use crate::api::duration;
use crate::api::names::DEFAULT_PROVISIONER;

/// Registry of the images of this project.
const PUBLIC_REGISTRY: &str = "ghcr.io/nfs-operator";

/// Learns each name in an object or a list of objects. `parent` is the field that holds it.
pub fn learn_fields(redactor: &mut Redactor, parent: &str, value: &Value) {
    let fields = match value {
        Value::Array(items) => return items.iter().for_each(|item| learn_fields(redactor, parent, item)),
        Value::Object(fields) => fields,
        _ => return,
    };
    if parent == "handledRequests" {
        return learn_request(redactor, fields.get("value"));
    }
    let key = fields.get("key").and_then(Value::as_str).unwrap_or_default();
    for (field, value) in fields {
        let kind = match field.as_str() {
            "values" if matches!(key, "kubernetes.io/hostname" | "metadata.name") => Some(Kind::Node),
            field => kind_of(parent, field),
        };
        if let Some(kind) = kind {
            for text in texts(value) {
                match kind {
                    // The parameter `backend` of a class is a list.
                    Kind::Backend => text.split(',').for_each(|name| redactor.know(kind, name.trim())),
                    _ => redactor.know(kind, text),
                }
            }
        }
        learn_fields(redactor, field, value);
    }
}

/// Returns what a field holds the name of.
fn kind_of(parent: &str, field: &str) -> Option<Kind> {
    Some(match (parent, field) {
        // Numbers and patterns, which mean something.
        ("parameters", "backend") => Kind::Backend,
        ("parameters", _) => return None,
        ("claimRef", "name") | ("claims", "matchNames") | (_, "claimName") => Kind::Claim,
        ("backupRef", "name") => Kind::Backup,
        ("scheduleRef", "name") => Kind::Schedule,
        ("dataSource" | "dataSourceRef" | "snapshot" | "metadata" | "deployments", "name") => Kind::Object,
        (_, "namespace") | ("allowedNamespaces", "matchNames") => Kind::Namespace,
        (_, "archiveName") => Kind::Archive,
        (_, "backendName" | "backend") => Kind::Backend,
        (_, "volumeName" | "volume") => Kind::Volume,
        (_, "storageClassName") => Kind::Class,
        (_, "server") => Kind::Server,
        (_, "path") => Kind::Path,
        (_, "directory") => Kind::Directory,
        (_, "id" | "beacon" | "nextBeacon") => Kind::Identity,
        // A fileid is a number that may be anywhere.
        (_, field) if field.ends_with("FileID") || field == "fileID" => return None,
        (_, field) if field == "uid" || field.ends_with("UID") || field.ends_with("ID") => Kind::Identity,
        _ => return None,
    })
}

fn texts(value: &Value) -> impl Iterator<Item = &str> {
    let (one, many) = match value {
        Value::Array(items) => (None, items.as_slice()),
        one => (Some(one), &[][..]),
    };
    one.into_iter().chain(many).filter_map(Value::as_str)
}

/// Learns the IDs of a request. The text behind `@` may be anything.
fn learn_request(redactor: &mut Redactor, value: Option<&Value>) {
    let parts = value.and_then(Value::as_str).unwrap_or_default().split([',', '@']);
    let is_plain = |part: &&str| *part == "new" || part.parse::<Timestamp>().is_ok() || part.parse::<u64>().is_ok();
    let parts = parts.map(str::trim).filter(|part| !is_plain(part));
    parts.for_each(|part| redactor.know(Kind::Identity, part));
}

/// Learns the values of the operator's arguments that may be names.
pub fn learn_arguments(redactor: &mut Redactor, arguments: &[String]) {
    for argument in arguments {
        let value = match argument.split_once('=') {
            Some((flag, value)) if flag.starts_with('-') => value,
            _ if argument.starts_with('-') => continue,
            // The value of the flag before it, or the subcommand.
            _ => argument,
        };
        let parts = value.split([',', '=']).filter(|part| !is_plain_setting(part));
        parts.for_each(|part| redactor.know(Kind::Setting, part));
    }
}

/// Returns true for values that name nothing: numbers, durations, addresses to listen on, words of the operator.
fn is_plain_setting(value: &str) -> bool {
    matches!(
        value,
        "run" | "true" | "false" | "text" | "json" | "kube-system" | DEFAULT_PROVISIONER
    ) || value.parse::<u64>().is_ok()
        || value.parse::<std::net::SocketAddr>().is_ok()
        || duration::parse(value).is_some_and(|parsed: Duration| parsed >= Duration::ZERO)
}

/// Learns the registry and the path of an image; its last part, the tag and the digest stay.
pub fn learn_image(redactor: &mut Redactor, image: &str) {
    match image.rsplit_once('/') {
        Some((registry, _)) if registry != PUBLIC_REGISTRY => redactor.know(Kind::Registry, registry),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_are_found_wherever_an_object_has_them() {
        let objects = json!([
            {"kind": "NfsBackend", "metadata": {"name": "main"}, "spec": {
                "server": "nfs.corp", "path": "/vol/team", "exportID": "export-1",
                "allowedNamespaces": {"matchNames": ["ns-a"]},
                "backups": {"destination": {"backendName": "second"},
                    "selfService": {"allowedNamespaces": {"matchNames": ["ns-b"]}}},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{
                    "matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["host-a"]}],
                    "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["host-b"]}],
                }]}},
            }, "status": {"export": {"acceptableID": "other-export", "rootFileID": "64", "beacon": "nonce"},
                "handledRequests": [{"name": "readopt", "value": "pvc-9,pvc-8@ticket"}]}},
            {"kind": "NfsArchive", "metadata": {"name": "arch"}, "spec": {
                "claimRef": {"namespace": "ns-c", "name": "claim-a"}, "backupRef": {"name": "backup-a", "uid": "uid-a"},
                "allowedNamespaces": {"matchNames": ["ns-d"]}},
                "status": {"snapshot": {"name": "snap-a"}, "namespaceUID": "uid-b", "fileID": "7"}},
            {"kind": "PersistentVolumeClaim", "metadata": {"name": "claim-b", "namespace": "ns-e"}, "spec": {
                "storageClassName": "gold", "volumeName": "pvc-1", "dataSourceRef": {"name": "origin"}}},
            {"kind": "NfsBackupSchedule", "metadata": {"name": "nightly"}, "spec": {"claims": {"matchNames": ["claim-c"]}}},
            {"kind": "NfsBackup", "metadata": {"name": "backup-b"}, "spec": {"source": {"claimName": "claim-d"},
                "scheduleRef": {"name": "weekly"}}},
            {"kind": "StorageClass", "metadata": {"name": "gold"}, "parameters": {"backend": "main,third", "uid": "1000"}},
        ]);
        let mut redactor = Redactor::default();
        learn_fields(&mut redactor, "items", &objects);
        let image = "registry.corp:5000/mirror/nfs-operator:0.1.0";
        learn_image(&mut redactor, image);
        learn_image(&mut redactor, "ghcr.io/nfs-operator/nfs-operator:0.1.0");
        let arguments = [
            "run",
            "--concurrency=64",
            "--http-addr=0.0.0.0:8080",
            "--provisioner-name=nfs-operator.io/nfs,corp/fast",
            "--provisioner-alias",
            "corp/old=main",
            "--lease-namespace=infra",
            "--retry-min=15s",
        ]
        .map(str::to_owned);
        learn_arguments(&mut redactor, &arguments);
        let text = redactor
            .redacted(json!([
                objects,
                image,
                arguments,
                "ghcr.io/nfs-operator/nfs-operator:0.1.0"
            ]))
            .to_string();
        for name in [
            "main",
            "nfs.corp",
            "/vol/team",
            "export-1",
            "ns-a",
            "ns-b",
            "ns-c",
            "ns-d",
            "ns-e",
            "second",
            "third",
            "host-a",
            "host-b",
            "other-export",
            "nonce",
            "pvc-9",
            "pvc-8",
            "ticket",
            "arch",
            "claim-a",
            "claim-b",
            "claim-c",
            "claim-d",
            "backup-a",
            "backup-b",
            "uid-a",
            "uid-b",
            "snap-a",
            "gold",
            "pvc-1",
            "origin",
            "nightly",
            "weekly",
            "registry.corp",
            "mirror",
            "corp/fast",
            "corp/old",
            "infra",
        ] {
            let quoted = text.split(['"', ',', '=']).any(|part| part == name);
            assert!(!quoted && !text.contains(&format!("{name}/")), "{name}: {text}");
        }
        for kept in [
            "\"64\"",
            "\"1000\"",
            "--concurrency=64",
            "--retry-min=15s",
            "nfs-operator.io/nfs",
            "/nfs-operator:0.1.0",
            "ghcr.io/nfs-operator/nfs-operator:0.1.0",
            "--lease-namespace=<setting-",
        ] {
            assert!(text.contains(kept), "{kept}: {text}");
        }
    }
}
