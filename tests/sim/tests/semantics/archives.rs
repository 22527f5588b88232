//! Archives, as the operator and administrators write them.

use serde_json::{Value, json};

use crate::requests::{Sequence, Step, apply, delete, get, merge, post, sequence};
use crate::table::*;

pub fn sequences() -> Vec<Sequence> {
    vec![
        sequence(
            "a requested backup gets its defaults, and its status as it was read",
            [
                post(ARCHIVES, backup()),
                merge(
                    ARCHIVE,
                    json!({"metadata": {"uid": "$0.uid", "resourceVersion": "$0.resourceVersion",
                        "finalizers": ["example.org/keep"]}}),
                ),
                apply(
                    ARCHIVE_STATUS_APPLY,
                    archive_with(&json!({"metadata": {"resourceVersion": "$1.resourceVersion"}, "status": source()})),
                ),
                // The object has changed since.
                apply(
                    ARCHIVE_STATUS_APPLY,
                    archive_with(&json!({"metadata": {"resourceVersion": "$1.resourceVersion"}, "status": location()})),
                ),
                apply(
                    ARCHIVE_STATUS_APPLY,
                    archive_with(&json!({"metadata": {"resourceVersion": "$2.resourceVersion"}, "status": location()})),
                ),
            ]
            .into_iter()
            .chain(forget_archive()),
        ),
        sequence(
            "an archive of a deleted volume is created once",
            [post(ARCHIVES, archive()), post(ARCHIVES, archive()), get(ARCHIVE)]
                .into_iter()
                .chain(forget_archive()),
        ),
        sequence(
            "the retention of an archive is changed, and restored as it was read",
            [
                post(ARCHIVES, archive()),
                merge(ARCHIVE, json!({"spec": {"expirationTime": "2026-02-01T00:00:00Z"}})),
                merge(ARCHIVE, json!({"spec": {"legalHold": true}})),
                merge(
                    ARCHIVE,
                    json!({"spec": {"allowedNamespaces": {"matchNames": ["default"]}}}),
                ),
                merge(
                    ARCHIVE,
                    json!({"metadata": {"uid": "$0.uid", "resourceVersion": "$2.resourceVersion"},
                        "spec": {"legalHold": false, "expirationTime": null, "deletionPolicy": "Delete"}}),
                ),
                merge(
                    ARCHIVE,
                    json!({"metadata": {"uid": "$0.uid", "resourceVersion": "$3.resourceVersion"},
                        "spec": {"legalHold": false, "expirationTime": null, "deletionPolicy": "Delete"}}),
                ),
            ]
            .into_iter()
            .chain(forget_archive()),
        ),
        sequence(
            "an archive that expired is deleted only as it was read",
            [
                post(ARCHIVES, archive()),
                merge(ARCHIVE, json!({"spec": {"legalHold": true}})),
                delete(
                    ARCHIVE,
                    json!({"preconditions": {"uid": "$0.uid", "resourceVersion": "$0.resourceVersion"}}),
                ),
                get(ARCHIVE),
                delete(
                    ARCHIVE,
                    json!({"preconditions": {"uid": "$0.uid", "resourceVersion": "$1.resourceVersion"}}),
                ),
                merge(
                    ARCHIVE,
                    json!({"metadata": {"uid": "$0.uid", "resourceVersion": "$4.resourceVersion", "finalizers": []}}),
                ),
                get(ARCHIVE),
            ],
        ),
        sequence(
            "two managers of the status of an archive do not disturb each other",
            [
                post(ARCHIVES, archive()),
                apply(
                    ARCHIVE_STATUS_APPLY,
                    archive_with(&json!({"status": {"state": "Available"}})),
                ),
                apply(
                    "/apis/nfs-operator.io/v1alpha1/nfsarchives/backup/status?fieldManager=n&force=true",
                    archive_with(&json!({"status": {"usage": {"size": "1", "apparentSize": "2", "files": 3}}})),
                ),
                apply(
                    ARCHIVE_STATUS_APPLY,
                    archive_with(&json!({"status": {"state": "Expired", "observedGeneration": 1}})),
                ),
                apply(
                    "/apis/nfs-operator.io/v1alpha1/nfsarchives/backup/status?fieldManager=n&force=true",
                    archive_with(
                        &json!({"status": {"usage": {"size": "4", "apparentSize": "5", "files": 6,
                        "unreadDirectories": 7}}}),
                    ),
                ),
                apply(
                    ARCHIVE_STATUS_APPLY,
                    archive_with(&json!({"status": {"state": "Expired"}})),
                ),
            ]
            .into_iter()
            .chain(forget_archive()),
        ),
    ]
}

const ARCHIVES: &str = "/apis/nfs-operator.io/v1alpha1/nfsarchives";
const ARCHIVE: &str = "/apis/nfs-operator.io/v1alpha1/nfsarchives/backup";
const ARCHIVE_STATUS_APPLY: &str = "/apis/nfs-operator.io/v1alpha1/nfsarchives/backup/status?fieldManager=m&force=true";

/// A backup that a user requests.
fn backup() -> Value {
    json!({"apiVersion": "nfs-operator.io/v1alpha1", "kind": "NfsArchive", "metadata": {"name": "backup"},
        "spec": {"claimRef": {"namespace": "default", "name": "c"}}})
}

/// An archive that the operator creates.
fn archive() -> Value {
    with(
        backup(),
        &json!({"metadata": {"finalizers": ["example.org/keep"]},
            "spec": {"legalHold": false, "deletionPolicy": "Retain"}}),
    )
}

/// The status of a backup whose source is known.
fn source() -> Value {
    json!({"backendName": "main", "exportID": "00000000-0000-4000-a000-000000000001", "volumeName": "pvc-v",
        "claimUID": "u", "namespaceUID": "n"})
}

/// The status of an archive whose data exist.
fn location() -> Value {
    with(
        source(),
        &json!({"directory": "archived-v", "fileID": "17", "requestedSize": "1Gi", "storageClassName": "none",
            "volumeCreationTime": "2026-01-01T00:00:00Z", "archiveTime": "2026-01-02T00:00:00Z",
            "printed": {"backend": "main", "size": "1Gi", "expires": "never"}}),
    )
}

fn archive_with(fields: &Value) -> Value {
    with(
        json!({"apiVersion": "nfs-operator.io/v1alpha1", "kind": "NfsArchive",
            "metadata": {"name": "backup", "namespace": null, "uid": "$0.uid"}}),
        fields,
    )
}

/// Removes the archive of a sequence.
fn forget_archive() -> [Step; 2] {
    [
        delete(ARCHIVE, json!({})),
        merge(ARCHIVE, json!({"metadata": {"finalizers": null}})),
    ]
}
