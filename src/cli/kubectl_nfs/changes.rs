//! What a command changes: lines for people while it happens, or one JSON document at its end.

use std::collections::BTreeMap;
use std::process::ExitCode;

use export_store::text::escape;
use serde::Serialize;
use serde_json::Value;

use crate::cli::cluster::CommandError;
use crate::cli::output::{OutputFormat, print, print_json};

/// How far a change is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ChangeState {
    /// It would be made: the command has `--plan`.
    Planned,
    /// The object has the value already.
    Unchanged,
    /// It was requested, and the operator carries it out.
    Requested,
    /// It is complete.
    Done,
    /// The operator refused it, or a part of it, for the reasons in the message.
    Refused,
}

/// A change of an object.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// Kind and name, as `kubectl get -o name` prints them without the group.
    pub object: String,
    /// Namespace of the object, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Annotation or field that is set.
    pub request: String,
    /// Its value.
    pub value: Value,
    /// How far it is.
    pub state: ChangeState,
    /// What people read; it may have several lines.
    pub message: String,
}

/// The changes of a command.
pub struct Changes {
    format: OutputFormat,
    list: Vec<Change>,
}

impl Changes {
    /// Adds a change, which replaces an earlier state of the same one.
    pub fn add(&mut self, change: Change) -> std::io::Result<()> {
        if self.format == OutputFormat::Table {
            let lines: Vec<_> = change.message.lines().map(escape).collect();
            print(&lines.join("\n"))?;
        }
        let same = |other: &Change| {
            (&other.object, &other.namespace, &other.request) == (&change.object, &change.namespace, &change.request)
        };
        self.list.retain(|other| !same(other));
        self.list.push(change);
        Ok(())
    }
}

/// Runs a command and prints its changes, also those that it made before it failed. The exit code is 1 if one was
/// refused.
pub async fn print_changes(
    format: OutputFormat,
    command: impl AsyncFnOnce(&mut Changes) -> Result<(), CommandError>,
) -> Result<ExitCode, CommandError> {
    let mut changes = Changes {
        format,
        list: Vec::new(),
    };
    let result = command(&mut changes).await;
    if format == OutputFormat::Json {
        print_json(&BTreeMap::from([("changes", &changes.list)]))?;
    }
    let is_refused = changes.list.iter().any(|change| change.state == ChangeState::Refused);
    result.map(|()| match is_refused {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_change_has_its_last_state() {
        let mut changes = Changes {
            format: OutputFormat::Json,
            list: Vec::new(),
        };
        let change = |name: &str, state| Change {
            object: name.to_owned(),
            namespace: None,
            request: "spec.suspend".to_owned(),
            value: json!(true),
            state,
            message: "text".to_owned(),
        };
        for (name, state) in [
            ("nfsbackend/a", ChangeState::Requested),
            ("nfsbackend/b", ChangeState::Requested),
            ("nfsbackend/a", ChangeState::Done),
        ] {
            changes.add(change(name, state)).unwrap();
        }
        let expected = [
            change("nfsbackend/b", ChangeState::Requested),
            change("nfsbackend/a", ChangeState::Done),
        ];
        assert_eq!(changes.list, expected);
    }
}
