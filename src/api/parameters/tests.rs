#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
use std::collections::BTreeMap;

use super::*;

fn parse(parameters: &[(&str, &str)]) -> Result<ClassParameters, ParameterError> {
    let parameters: BTreeMap<String, String> = parameters.iter().map(|&(k, v)| (k.into(), v.into())).collect();
    ClassParameters::parse(&parameters)
}

#[test]
fn a_class_without_parameters_asks_for_nothing() {
    assert_eq!(parse(&[]).unwrap(), ClassParameters::default());
}

#[test]
fn archive_on_delete_takes_what_go_takes_and_nothing_else() {
    for yes in ["1", "t", "T", "TRUE", "true", "True"] {
        assert_eq!(
            parse(&[("archiveOnDelete", yes)]).unwrap().on_delete,
            Some(OnDelete::Archive)
        );
    }
    for no in ["0", "f", "F", "FALSE", "false", "False"] {
        assert_eq!(
            parse(&[("archiveOnDelete", no)]).unwrap().on_delete,
            Some(OnDelete::Delete)
        );
    }
    for bad in ["", "yes", "tRUE", " true", "2"] {
        assert!(parse(&[("archiveOnDelete", bad)]).is_err(), "{bad:?}");
    }
}

#[test]
fn on_delete_wins_over_archive_on_delete_in_any_case() {
    let parsed = parse(&[("onDelete", "ReTain"), ("archiveOnDelete", "false")]).unwrap();
    assert_eq!(parsed.on_delete, Some(OnDelete::Retain));
    assert!(parse(&[("onDelete", "retain"), ("archiveOnDelete", "perhaps")]).is_err());
}

#[test]
fn an_unknown_parameter_is_named_with_the_known_ones() {
    let message = parse(&[("archiveOnDelte", "true")]).unwrap_err().to_string();
    assert!(
        message.contains("archiveOnDelte") && message.contains("archiveOnDelete"),
        "{message}"
    );
}

#[test]
fn modes_are_octal_with_three_or_four_digits() {
    for (text, mode) in [
        ("777", 0o777),
        ("0777", 0o777),
        ("2770", 0o2770),
        ("02770", 0o2770),
        ("000", 0),
    ] {
        assert_eq!(octal_mode(text), Some(mode), "{text}");
    }
    for bad in ["", "7", "77", "888", "0o777", "-777", "77777", "12770", "+777", " 777"] {
        assert_eq!(octal_mode(bad), None, "{bad:?}");
    }
}

#[test]
fn owners_are_plain_numbers_without_the_reserved_one() {
    assert_eq!(owner("0"), Some(0));
    assert_eq!(owner("4294967294"), Some(4_294_967_294));
    for bad in ["", "4294967295", "-1", "+1", "root", "1.0", "99999999999"] {
        assert_eq!(owner(bad), None, "{bad:?}");
    }
}

#[test]
fn backends_are_listed_by_name_or_chosen_by_labels() {
    let parsed = parse(&[("backend", "fast, slow"), ("backendSelector", "tier in (fast,slow)")]).unwrap();
    assert_eq!(parsed.backends, ["fast", "slow"]);
    assert!(parsed.backend_selector.is_some());
    assert!(parse(&[("backend", "fast,,slow")]).is_err());
    assert!(parse(&[("backend", "")]).is_err());
}
