//! Replaces names by numbers, the same name by the same number everywhere.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde_json::Value;

use super::without_nulls;
use crate::api::names::GROUP;

/// What a name is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Archive,
    Backend,
    Backup,
    Claim,
    Class,
    Directory,
    Identity,
    Instance,
    Namespace,
    Node,
    Object,
    Path,
    Provisioner,
    Registry,
    Schedule,
    Server,
    Setting,
    Volume,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Self::Archive => "archive",
            Self::Backend => "backend",
            Self::Backup => "backup",
            Self::Claim => "claim",
            Self::Class => "class",
            Self::Directory => "directory",
            Self::Identity => "id",
            Self::Instance => "instance",
            Self::Namespace => "namespace",
            Self::Node => "node",
            Self::Object => "object",
            Self::Path => "path",
            Self::Provisioner => "provisioner",
            Self::Registry => "registry",
            Self::Schedule => "schedule",
            Self::Server => "server",
            Self::Setting => "setting",
            Self::Volume => "volume",
        }
    }
}

/// The names that were seen, and their replacements.
#[derive(Default)]
pub struct Redactor {
    replacements: BTreeMap<String, String>,
    counts: BTreeMap<Kind, u32>,
}

impl Redactor {
    /// Replaces this name from now on. A path of `/` says nothing, and stays.
    pub fn know(&mut self, kind: Kind, name: &str) {
        if matches!(name, "" | "/") || self.replacements.contains_key(name) {
            return;
        }
        let count = self.counts.entry(kind).or_default();
        *count += 1;
        self.replacements
            .insert(name.to_owned(), format!("<{}-{count}>", kind.word()));
    }

    /// Returns a value with all names and addresses in its texts replaced. Names of fields stay.
    pub fn redacted(&self, value: Value) -> Value {
        // A longer name first: it may contain a shorter one.
        let mut names: Vec<(&str, &str)> = self
            .replacements
            .iter()
            .map(|(a, b)| (a.as_str(), b.as_str()))
            .collect();
        names.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        redact(value, &names)
    }
}

fn redact(value: Value, names: &[(&str, &str)]) -> Value {
    match value {
        Value::String(text) => Value::String(redact_addresses(&redact_names(&text, names))),
        Value::Array(items) => items.into_iter().map(|item| redact(item, names)).collect(),
        Value::Object(fields) => {
            let fields = without_nulls(fields).into_iter();
            Value::Object(fields.map(|(name, value)| (name, redact(value, names))).collect())
        }
        other => other,
    }
}

fn redact_names(text: &str, names: &[(&str, &str)]) -> String {
    names.iter().fold(text.to_owned(), |text, (name, replacement)| {
        // The API group says nothing about a cluster, and `nfs` or `nfs-operator` is the name of many objects.
        match GROUP.contains(name) {
            true => {
                let parts = text.split(GROUP).map(|part| replace_words(part, name, replacement));
                parts.collect::<Vec<_>>().join(GROUP)
            }
            false => replace_words(&text, name, replacement),
        }
    })
}

/// Replaces a name where it is not a part of a longer word. A path begins where no word ends: the one in
/// `nfs-operator.io/export-id` is none.
fn replace_words(text: &str, name: &str, replacement: &str) -> String {
    let is_word = |letter: Option<char>| letter.is_some_and(char::is_alphanumeric);
    let begins_inside = is_word(name.chars().next()) || name.starts_with('/');
    let mut replaced = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(name) {
        replaced.push_str(before);
        let is_inside = is_word(before.chars().next_back().or(replaced.chars().next_back())) && begins_inside
            || is_word(after.chars().next()) && is_word(name.chars().next_back());
        // A replacement is never replaced again.
        let is_replacement = replaced.ends_with('<') && after.starts_with('-');
        replaced.push_str(if is_inside || is_replacement { name } else { replacement });
        rest = after;
    }
    replaced + rest
}

/// Replaces IP addresses, with or without a port.
fn redact_addresses(text: &str) -> String {
    let is_part = |letter: char| letter.is_ascii_hexdigit() || matches!(letter, '.' | ':' | '[' | ']' | '%');
    let mut redacted = String::new();
    let mut word = String::new();
    for letter in text.chars() {
        if is_part(letter) {
            word.push(letter);
        } else {
            redacted.push_str(&redact_address(&word));
            word.clear();
            redacted.push(letter);
        }
    }
    redacted + &redact_address(&word)
}

fn redact_address(word: &str) -> String {
    let address = word.trim_end_matches(['.', ':']);
    let bare = address.trim_start_matches('[').trim_end_matches(']');
    let is_address = address.parse::<SocketAddr>().is_ok() || bare.parse::<IpAddr>().is_ok();
    match is_address && address.contains(['.', ':']) && bare != "::" {
        true => format!("<address>{}", word.strip_prefix(address).unwrap_or_default()),
        false => word.to_owned(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_name_is_replaced_everywhere_by_the_same_number_and_not_inside_words() {
        let mut redactor = Redactor::default();
        for (kind, name) in [
            (Kind::Namespace, "shop"),
            (Kind::Claim, "db"),
            (Kind::Claim, "db-2"),
            (Kind::Claim, "claim"),
            (Kind::Server, "nfs.example.com"),
            (Kind::Path, "/export"),
            (Kind::Path, "/"),
        ] {
            redactor.know(kind, name);
        }
        let redacted = redactor.redacted(json!({
            "name": "db", "gone": null,
            "message": "shop/db-2 on nfs.example.com:/export/shop-db-x: shopping, adb; this claim / 10.0.0.5:2049, [fe80::1]:111.",
        }));
        let message = "<namespace-1>/<claim-2> on <server-1>:<path-1>/<namespace-1>-<claim-1>-x: shopping, adb; this \
                       <claim-3> / <address>, <address>.";
        assert_eq!(redacted, json!({"name": "<claim-1>", "message": message}));
    }

    #[test]
    fn a_path_is_replaced_as_a_whole_only() {
        let mut redactor = Redactor::default();
        redactor.know(Kind::Path, "/export");
        redactor.know(Kind::Server, "nfs.example.com");
        let redacted = redactor.redacted(json!([
            "nfs-operator.io/export-id",
            "nfs.example.com:/export, /export/team, at \"/export\"",
            "/exports",
        ]));
        let expected = json!([
            "nfs-operator.io/export-id",
            "<server-1>:<path-1>, <path-1>/team, at \"<path-1>\"",
            "/exports",
        ]);
        assert_eq!(redacted, expected);
    }

    #[test]
    fn the_api_group_stays_readable_whatever_objects_are_called() {
        let mut redactor = Redactor::default();
        redactor.know(Kind::Instance, "nfs-operator");
        redactor.know(Kind::Class, "nfs");
        redactor.know(Kind::Namespace, "my-nfs-operator.io");
        let redacted = redactor.redacted(json!([
            "nfs-operator.io/v1alpha1",
            "nfs-operator.io/nfs",
            "nfs-operator-7d-x, nfs: my-nfs-operator.io/nfs-operator"
        ]));
        let expected = json!([
            "nfs-operator.io/v1alpha1",
            "nfs-operator.io/<class-1>",
            "<instance-1>-7d-x, <class-1>: <namespace-1>/<instance-1>"
        ]);
        assert_eq!(redacted, expected);
    }

    #[test]
    fn versions_times_and_sizes_are_not_addresses() {
        for text in [
            "v1.36.3",
            "2026-11-23T12:00:00Z",
            "4.2",
            "4.1.0",
            "1.5Gi",
            "a: b",
            "dead:beef",
        ] {
            assert_eq!(redact_addresses(text), text);
        }
        assert_eq!(redact_addresses("10.0.0.5, 192.168.1.1."), "<address>, <address>.");
    }
}
