//! Retention terms: those of an archive's object, compared with those in its record (data-safety rule 21). Pure.
//!
//! An object may be older than the record: etcd was restored from a backup, or the object was created again from a copy.
//! Such an object makes the terms only stricter.

use kube::ResourceExt;
use serde_json::{Value, json};

use crate::api::archive::NfsArchive;
use crate::api::backend::ArchivePolicy;
use crate::decide::archive_object::{deletion_policy, retention_terms, time};
use export_store::{ArchiveState, RetentionTerms, TermsRevision};

/// What to do about the terms of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TermsDecision {
    /// The record has the terms of the object.
    Agreed,
    /// Save the terms of the object in the record.
    Save(RetentionTerms),
    /// The object is older than the record, or may be: write these terms, which are stricter, to the object.
    Restore(RetentionTerms),
}

/// Returns the revision of an object for the record of its archive.
pub fn revision(object: &NfsArchive) -> TermsRevision {
    TermsRevision {
        uid: object.uid().unwrap_or_default(),
        generation: object.metadata.generation.unwrap_or_default(),
    }
}

/// Returns the fields of an object's spec with these terms.
pub fn fields(terms: &RetentionTerms) -> Value {
    json!({"spec": {
        "legalHold": terms.held,
        "expirationTime": terms.expires.and_then(time),
        "deletionPolicy": deletion_policy(terms),
    }})
}

/// Compares the terms of an object with those in the archive's record. `policy` is that of the backend, if known.
pub fn compare(object: &NfsArchive, recorded: &ArchiveState, policy: Option<&ArchivePolicy>) -> TermsDecision {
    let (requested, revision) = (retention_terms(object), revision(object));
    // An object that is being deleted releases its archive.
    let is_released = recorded.released && object.metadata.deletion_timestamp.is_none();
    if recorded.has_terms_of(&requested, &revision) && !is_released {
        return TermsDecision::Agreed;
    }
    if is_current(object, &revision, recorded.revision.as_ref()) {
        return TermsDecision::Save(requested);
    }
    let strictest = strictest(&recorded.terms, &requested, policy);
    match strictest == requested {
        // Saved even if the terms are equal: from now on, this object decides.
        true => TermsDecision::Save(requested),
        false => TermsDecision::Restore(strictest),
    }
}

/// Returns true if an object is the one that the recorded terms are from, and not older.
fn is_current(object: &NfsArchive, revision: &TermsRevision, recorded: Option<&TermsRevision>) -> bool {
    recorded.is_some_and(|recorded| match recorded.uid.is_empty() {
        // The terms are those of a new archive. Its object is created with them, so other terms in an object that nobody
        // has edited are not an edit: another object replaces that one. Nor are those of an object without a status, which
        // may have existed before the archive. A deletion increments the generation, too.
        true => {
            object.observed().observed_generation.is_some()
                && revision.generation > 1 + i64::from(object.metadata.deletion_timestamp.is_some())
        }
        false => recorded.uid == revision.uid && recorded.generation <= revision.generation,
    })
}

/// Returns terms that keep an archive at least as long as both.
fn strictest(one: &RetentionTerms, other: &RetentionTerms, policy: Option<&ArchivePolicy>) -> RetentionTerms {
    // An archive without an expiry is kept forever, unless `keepLast` is the only rule of the backend. It then is kept
    // longer with an expiry.
    let keep_last_only = policy.is_some_and(|policy| policy.keep_last.is_some() && policy.retention.is_none());
    let expires = match (one.expires, other.expires) {
        (Some(one), Some(other)) => Some(one.max(other)),
        (one, other) if keep_last_only => one.or(other),
        _ => None,
    };
    RetentionTerms {
        held: one.held || other.held,
        expires,
        delete: one.delete && other.delete,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn object(uid: &str, generation: i64, terms: &RetentionTerms) -> NfsArchive {
        let expires = terms
            .expires
            .map(|at| jiff::Timestamp::from_second(at).unwrap().to_string());
        let object = json!({
            "apiVersion": "nfs-operator.io/v1alpha1", "kind": "NfsArchive",
            "metadata": {"name": "pvc-1", "uid": uid, "generation": generation},
            "spec": {
                "claimRef": {"namespace": "team", "name": "data"},
                "legalHold": terms.held, "expirationTime": expires,
                "deletionPolicy": if terms.delete { "Delete" } else { "Retain" },
            },
            "status": {"observedGeneration": 1},
        });
        serde_json::from_value(object).unwrap()
    }

    fn recorded(revision: Option<(&str, i64)>, terms: &RetentionTerms) -> ArchiveState {
        let revision = revision.map(|(uid, generation)| json!({"uid": uid, "generation": generation}));
        let state = json!({"target": "archived-x", "mode": 0, "terms": terms, "revision": revision});
        serde_json::from_value(state).unwrap()
    }

    fn terms(held: bool, expires: Option<i64>, delete: bool) -> RetentionTerms {
        RetentionTerms { held, expires, delete }
    }

    #[test]
    fn an_older_object_neither_lifts_a_hold_nor_shortens_an_expiry_nor_deletes() {
        use TermsDecision::{Agreed, Restore, Save};
        let (loose, strict) = (terms(false, Some(10), true), terms(true, Some(20), false));
        let mixed = terms(true, Some(10), true);
        for (what, revision, generation, requested, recorded_terms, decision) in [
            ("no change", Some(("u", 3)), 3, &loose, &loose, Agreed),
            ("another field was edited", Some(("u", 3)), 4, &loose, &loose, Agreed),
            ("edited", Some(("u", 3)), 4, &loose, &strict, Save(loose.clone())),
            ("new", Some(("", 0)), 1, &strict, &strict, Save(strict.clone())),
            ("first edit", Some(("", 0)), 2, &loose, &strict, Save(loose.clone())),
            (
                "recreated before the record had a UID",
                Some(("", 0)),
                1,
                &loose,
                &strict,
                Restore(strict.clone()),
            ),
            ("older", Some(("u", 3)), 2, &loose, &strict, Restore(strict.clone())),
            (
                "older and stricter",
                Some(("u", 3)),
                2,
                &strict,
                &loose,
                Save(strict.clone()),
            ),
            (
                "older, after the terms were restored",
                Some(("u", 3)),
                2,
                &strict,
                &strict,
                Save(strict.clone()),
            ),
            (
                "older, partly stricter",
                Some(("u", 3)),
                2,
                &mixed,
                &terms(false, Some(20), false),
                Restore(strict.clone()),
            ),
            (
                "another object",
                Some(("other", 1)),
                9,
                &loose,
                &strict,
                Restore(strict.clone()),
            ),
            (
                "recreated from the record",
                Some(("other", 1)),
                1,
                &strict,
                &strict,
                Save(strict.clone()),
            ),
            (
                "a record of an earlier release",
                None,
                9,
                &loose,
                &strict,
                Restore(strict.clone()),
            ),
        ] {
            let (object, recorded) = (object("u", generation, requested), recorded(revision, recorded_terms));
            assert_eq!(compare(&object, &recorded, None), decision, "{what}");
        }
    }

    #[test]
    fn an_object_that_existed_before_the_archive_only_makes_its_terms_stricter() {
        let (loose, strict) = (terms(false, Some(10), true), terms(true, Some(20), false));
        let mut imported = object("u", 5, &loose);
        imported.status = None;
        let decision = compare(&imported, &recorded(Some(("", 0)), &strict), None);
        assert_eq!(decision, TermsDecision::Restore(strict));
    }

    #[test]
    fn a_released_archive_gets_an_object_again_and_loses_it_only_by_a_deletion() {
        let loose = terms(false, Some(10), true);
        let released = ArchiveState {
            released: true,
            ..recorded(Some(("u", 1)), &loose)
        };
        let mut object = object("u", 1, &loose);
        assert_eq!(compare(&object, &released, None), TermsDecision::Save(loose.clone()));
        object.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
            jiff::Timestamp::UNIX_EPOCH,
        ));
        assert_eq!(compare(&object, &released, None), TermsDecision::Agreed);
    }

    #[test]
    fn the_deletion_of_a_recreated_object_is_not_an_edit() {
        let (loose, strict) = (terms(false, Some(10), true), terms(true, Some(20), false));
        let mut object = object("u", 2, &loose);
        object.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
            jiff::Timestamp::UNIX_EPOCH,
        ));
        let decision = compare(&object, &recorded(Some(("", 0)), &strict), None);
        assert_eq!(decision, TermsDecision::Restore(strict));
    }

    #[test]
    fn an_archive_without_expiry_is_kept_longest_unless_only_keep_last_applies() {
        let policy = |keep_last, retention: Option<&str>| ArchivePolicy {
            keep_last,
            retention: retention.map(Into::into),
            ..ArchivePolicy::default()
        };
        let (none, some) = (terms(false, None, false), terms(false, Some(10), false));
        for (policy, expires) in [
            (policy(None, None), None),
            (policy(None, Some("1h")), None),
            (policy(Some(1), Some("1h")), None),
            (policy(Some(1), None), Some(10)),
        ] {
            for (one, other) in [(&none, &some), (&some, &none)] {
                assert_eq!(strictest(one, other, Some(&policy)).expires, expires, "{policy:?}");
            }
        }
    }
}
