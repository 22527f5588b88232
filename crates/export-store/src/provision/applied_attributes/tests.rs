#![allow(clippy::unwrap_used)] // A test that cannot continue has failed.

use super::*;
use crate::ClaimRef;
use crate::ErrorKind;
use crate::Existing;
use crate::naming::DirectoryPath;
use nfs_client::{FileKind, FsId};

const ROOT: Credential = Credential {
    uid: 0,
    gid: 0,
    supplementary: None,
};

fn found(mode: u32, uid: Option<u32>, gid: Option<u32>) -> Attributes {
    let text = |number: Option<u32>| number.map_or("nobody@example.org".to_owned(), |number| number.to_string());
    Attributes {
        kind: FileKind::Directory,
        mode,
        uid,
        gid,
        owner: text(uid),
        group: text(gid),
        size: 0,
        fileid: 7,
        fsid: FsId { major: 1, minor: 2 },
        links: 2,
    }
}

/// Returns the reason of the refusal, or the mode that was not set.
fn checked(
    requested: (u32, bool, Option<u32>, Option<u32>),
    attributes: &Attributes,
    owner_refused: Option<Status>,
) -> Result<Option<u32>, ErrorKind> {
    let (mode, mode_requested, uid, gid) = requested;
    let request = DirectoryRequest {
        claim: ClaimRef::default(),
        volume: "pvc-1".into(),
        directory: DirectoryPath::parse("a").unwrap(),
        mode,
        mode_requested,
        adopted_mode: None,
        uid,
        gid,
        gid_range: None,
        existing: Existing::Refuse,
        adoptable: true,
        restore: None,
        metadata: None,
    };
    let kept = AppliedAttributes {
        attributes,
        mode_refused: None,
        owner_refused,
    };
    check(&request, "a", ROOT, &kept).map_err(|error| {
        assert!(error.definite_refusal() && !error.outcome_unknown(), "{error}");
        error.kind()
    })
}

#[test]
fn what_was_asked_for_and_not_got_has_its_reason() {
    let refused = Some(Status::NotPermitted);
    let (one, other) = (Some(1000), Some(65534));
    let (mine, theirs, nobody) = (
        found(0o755, Some(0), Some(0)),
        found(0o755, other, other),
        found(0o755, None, None),
    );
    for (requested, attributes, owner_refused, outcome) in [
        ((0o755, true, None, None), &mine, None, Ok(None)),
        ((0o777, true, None, None), &mine, None, Err(ErrorKind::ModeRefused)),
        ((0o2755, true, None, None), &mine, None, Err(ErrorKind::ModeRefused)),
        ((0o777, false, None, None), &mine, None, Ok(Some(0o755))),
        ((0o755, true, Some(0), Some(0)), &mine, None, Ok(None)),
        ((0o755, true, one, None), &mine, refused, Err(ErrorKind::OwnerRefused)),
        ((0o755, true, None, one), &mine, None, Err(ErrorKind::OwnerRefused)),
        // The server maps the operator's user to another one, and the request needs root.
        ((0o755, true, one, None), &theirs, refused, Err(ErrorKind::RootSquashed)),
        // The server maps the operator's user to another one, and the request does not need root.
        ((0o755, true, None, None), &theirs, None, Ok(None)),
        // The server accepted the request and set another owner.
        ((0o755, true, one, None), &theirs, None, Err(ErrorKind::OwnerRefused)),
        // The server reports names instead of numbers.
        (
            (0o755, true, one, None),
            &nobody,
            None,
            Err(ErrorKind::IdMappingRequired),
        ),
        (
            (0o755, true, one, None),
            &mine,
            Some(Status::BadOwner),
            Err(ErrorKind::IdMappingRequired),
        ),
        ((0o755, true, None, None), &nobody, None, Ok(None)),
    ] {
        assert_eq!(
            checked(requested, attributes, owner_refused),
            outcome,
            "{requested:?} {attributes:?}"
        );
    }
}
