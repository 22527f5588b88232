#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
use proptest::prelude::*;

use super::*;
use crate::hostile_names::any_name;

const UID: &str = "3f2b1c9e-9f64-4f0e-8a53-0d9c1f7a2b11";

#[test]
fn ordinary_names_are_taken_as_they_are() {
    for name in [
        "a",
        "shop-data-pvc-1",
        "shop/data",
        "a/b/c",
        "A.b_c-d",
        "-",
        "_",
        "archived",
        "x-archived-y",
        "a..b",
        "nfs-operator",
    ] {
        assert_eq!(DirectoryPath::parse(name).unwrap().to_string(), name);
        assert_eq!(
            DirectoryPath::parse(name).unwrap().names().len(),
            name.split('/').count()
        );
    }
}

#[test]
fn lengths_are_bounded() {
    let longest = "a".repeat(MAX_NAME_LEN);
    assert!(DirectoryPath::parse(&longest).is_ok());
    assert!(DirectoryPath::parse(&format!("{longest}a")).is_err());
    let full = format!("{longest}/{longest}/{longest}/{}/a", "a".repeat(254));
    assert!(DirectoryPath::parse(&full).is_ok());
    assert_eq!(
        DirectoryPath::parse(&format!("{full}/a")),
        Err(NamingError::PathTooLong {
            length: MAX_PATH_LEN + 2
        })
    );
}

#[test]
fn errors_name_the_segment_the_rule_and_the_remedy_and_are_bounded() {
    let message = DirectoryPath::parse("a/b c").unwrap_err().to_string();
    assert_eq!(
        message,
        "segment \"b c\" holds ' ': only letters, digits, `.`, `_` and `-` are allowed"
    );
}

#[test]
fn what_fits_stays_as_it_is_and_what_cannot_fit_is_refused() {
    let parse = |text: &str| DirectoryPath::parse(text).unwrap();
    assert_eq!(parse("a/b").fit(143).unwrap(), parse("a/b"));
    let long = "p".repeat(144);
    assert_eq!(
        parse(&format!("{long}/b")).fit(143),
        Err(NamingError::SegmentTooLong {
            segment: quoted(&long),
            length: 144,
            limit: 143
        })
    );
    assert_eq!(parse("a").fit(63), Err(NamingError::NameLimitTooSmall { limit: 63 }));
}

#[test]
fn archives_are_named_as_nfs_subdir_names_them_until_the_name_is_taken() {
    assert_eq!(archive_name("data", UID, 0, 255), "archived-data");
    let unique = archive_name("data", UID, 1, 255);
    assert_eq!(unique.len(), "archived-data-".len() + UNIQUE_LENGTH);
    assert_eq!(archive_name("data", UID, 2, 255), format!("{unique}-2"));
    assert_ne!(unique, archive_name("data", "another", 1, 255));
    for name in [
        "archived-x".repeat(25),
        "\u{e9}".repeat(120),
        "x".repeat(255),
        "x".repeat(10_000),
    ] {
        for attempt in [0, 1, 2, u32::MAX] {
            for name_max in [64, 143, 255, 4096] {
                let archive = archive_name(&name, UID, attempt, name_max);
                assert!(archive.len() <= name_max.min(MAX_NAME_LEN), "{archive}");
                assert!(is_archive_name(archive.as_bytes()));
            }
        }
    }
}

fn obeys_the_rules(directory: &DirectoryPath) -> bool {
    directory.to_string().len() <= MAX_PATH_LEN
        && directory.segments().iter().all(|segment| {
            let bytes = segment.as_bytes();
            !bytes.is_empty()
                && bytes.len() <= MAX_NAME_LEN
                && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(b))
                && !segment.starts_with('.')
                && !segment.ends_with('.')
                && !segment.to_lowercase().starts_with("archived-")
        })
        && directory.names().len() == directory.segments().len()
}

proptest! {
    #[test]
    fn whatever_is_parsed_obeys_the_rules_and_is_itself(text in any_name()) {
        if let Ok(directory) = DirectoryPath::parse(&text) {
            prop_assert!(obeys_the_rules(&directory));
            prop_assert_eq!(directory.to_string(), text);
        }
    }

    #[test]
    fn archive_names_fit_whatever_is_archived(name in any::<String>(), attempt in any::<u32>(), name_max in 64_usize..300) {
        prop_assert!(archive_name(&name, UID, attempt, name_max).len() <= name_max.min(MAX_NAME_LEN));
    }
}
