//! What `--write` tries: a directory with a file in it, its mode and owner, another name, and its removal.

use export_store::ErrorHints;
use nfs_client::{Client, Credential, FileHandle, FileRef, Name, NfsError, SetAttributes, Status};
use nfs_operator::api::Reason;
use rand::RngExt;
use serde_json::json;

use super::finding::{Findings, Outcome};
use super::steps::{remedy, with};

/// The default of `spec.directory.mode`.
const ASKED_MODE: u32 = 0o777;
/// An owner that is neither root nor the credential of anybody who probes.
const ASKED_OWNER: u32 = 12_345;

struct WriteTest<'a> {
    export: &'a Client,
    root: &'a FileHandle,
    credential: Credential,
    findings: &'a mut Findings,
}

/// Tries it all, and removes what was made whatever fails.
pub async fn look(export: &Client, root: &FileHandle, credential: Credential, findings: &mut Findings) {
    let random = rand::rng().random::<u64>();
    let name = |suffix| Name::new(format!(".nfs-operator-probe-{random:016x}{suffix}"));
    let (Ok(first), Ok(second)) = (name(""), name("-renamed")) else {
        // 43 bytes without a `/`: always names.
        return;
    };
    let mut trial = WriteTest {
        export,
        root,
        credential,
        findings,
    };
    let Some(node) = trial.make(&first).await else { return };
    trial.mode(&node);
    trial.file(&node).await;
    trial.owner(&node).await;
    let name = match trial.rename(&node, (&first, &second)).await {
        true => &second,
        false => &first,
    };
    trial.remove(&node, name).await;
}

impl WriteTest<'_> {
    /// What an error means here: the root was seen, so the port is not the reason; and root is refused nothing, unless
    /// the server takes it for somebody else.
    fn failed(&mut self, check: &'static str, doing: &str, error: NfsError) {
        let circumstances = ErrorHints {
            local: Some(self.export.negotiated().local),
            squashed: self.credential.uid == 0,
            ..ErrorHints::default()
        };
        self.findings.failed(check, &with(doing, error, circumstances));
    }

    async fn make(&mut self, name: &Name) -> Option<FileRef> {
        let asked = SetAttributes {
            mode: Some(ASKED_MODE),
            ..SetAttributes::default()
        };
        match self.export.make_directory(self.root, name, asked).await {
            Ok(made) => {
                self.findings.add("make", Outcome::Ok, "made a directory", json!({}));
                Some(made.node)
            }
            Err(error) => {
                let unknown = error.outcome_unknown();
                self.failed("make", "cannot make a directory", error);
                if unknown {
                    self.left_behind(name, "it may have been made");
                }
                None
            }
        }
    }

    fn mode(&mut self, node: &FileRef) {
        let mode = node.attributes.mode;
        let seen = json!({ "asked": format!("{ASKED_MODE:04o}"), "got": format!("{mode:04o}") });
        if mode == ASKED_MODE {
            return self
                .findings
                .add("mode", Outcome::Ok, format!("kept: {mode:04o} as asked"), seen);
        }
        let message = format!(
            "masked: {mode:04o} where {ASKED_MODE:04o} was asked for; a class that asks for a mode fails with ModeRefused: \
             look for ACLs or a umask on the server"
        );
        self.findings
            .wrong("mode", Outcome::Warning, Reason::ModeRefused, message);
    }

    /// A file, as records are kept in.
    async fn file(&mut self, node: &FileRef) {
        let Ok(name) = Name::new("probe") else { return };
        match self.export.create_file(&node.handle, &name, b"probe\n", 0o600).await {
            Ok(file) => {
                let removed = self
                    .export
                    .remove_file(&node.handle, &name, file.attributes.fileid)
                    .await;
                match removed {
                    Ok(()) => self
                        .findings
                        .add("file", Outcome::Ok, "wrote and removed a file", json!({})),
                    Err(error) => self.failed("file", "cannot remove a file", error),
                }
            }
            Err(error) => self.failed("file", "cannot write a file", error),
        }
    }

    /// As whom we made it, and whether another owner can be set.
    async fn owner(&mut self, node: &FileRef) {
        let (made, asked) = (&node.attributes, self.credential);
        if made.uid.is_none() || made.gid.is_none() {
            let message = format!(
                "names instead of numbers: {}:{}; a class that asks for an owner fails: let the server take owners as \
                 numbers (numeric id mapping)",
                made.owner, made.group
            );
            return self
                .findings
                .wrong("owner", Outcome::Warning, Reason::IdMappingRequired, message);
        }
        if made.uid != Some(asked.uid) {
            let message = format!(
                "squashed: made as {}:{}, and not as {}:{}; a class that asks for an owner fails: export with \
                 no_root_squash for the operator's address, or ask for no owner",
                made.owner, made.group, asked.uid, asked.gid
            );
            return self
                .findings
                .wrong("owner", Outcome::Warning, Reason::RootSquashed, message);
        }
        if asked.uid != 0 {
            let message = format!("kept: made as {}:{}; another owner takes root", made.owner, made.group);
            return self.findings.add(
                "owner",
                Outcome::Ok,
                message,
                json!({ "uid": made.uid, "gid": made.gid }),
            );
        }
        self.give_away(node).await;
    }

    async fn give_away(&mut self, node: &FileRef) {
        let owner = SetAttributes {
            mode: None,
            uid: Some(ASKED_OWNER),
            gid: Some(ASKED_OWNER),
            ..SetAttributes::default()
        };
        match self.export.set_attributes(&node.handle, owner).await {
            Ok(now) if now.uid == Some(ASKED_OWNER) && now.gid == Some(ASKED_OWNER) => {
                let message = format!("kept: made as 0:0, given to {ASKED_OWNER}:{ASKED_OWNER}");
                self.findings
                    .add("owner", Outcome::Ok, message, json!({ "uid": 0, "gid": 0 }));
            }
            Ok(now) => {
                let message = format!(
                    "masked: {}:{} where {ASKED_OWNER}:{ASKED_OWNER} was asked for; a class that asks for an owner fails",
                    now.owner, now.group
                );
                self.findings
                    .wrong("owner", Outcome::Warning, Reason::OwnerRefused, message);
            }
            Err(error) => {
                let message = format!("cannot be set: {error}; {}", remedy(&error));
                self.findings
                    .wrong("owner", Outcome::Warning, Reason::OwnerRefused, message);
            }
        }
    }

    /// Whether it has the new name.
    async fn rename(&mut self, node: &FileRef, (from, to): (&Name, &Name)) -> bool {
        let fileid = node.attributes.fileid;
        match self.export.rename((self.root, from), fileid, (self.root, to)).await {
            Ok(()) => {
                self.findings
                    .add("rename", Outcome::Ok, "renamed the directory", json!({}));
                true
            }
            Err(error) => {
                self.failed("rename", "cannot rename a directory", error);
                // Whatever the answer: it is removed under the name that it has.
                matches!(self.export.lookup(self.root, to).await, Ok(Some(found)) if found.attributes.fileid == fileid)
            }
        }
    }

    async fn remove(&mut self, node: &FileRef, name: &Name) {
        match self
            .export
            .remove_directory(self.root, name, node.attributes.fileid)
            .await
        {
            Ok(()) => self
                .findings
                .add("remove", Outcome::Ok, "removed the directory", json!({})),
            Err(error) => {
                let gone = error.status() == Some(Status::NotFound);
                self.failed("remove", "cannot remove a directory", error);
                if !gone {
                    self.left_behind(name, "it could not be removed");
                }
            }
        }
    }

    fn left_behind(&mut self, name: &Name, why: &str) {
        let message = format!("{name} at the export's root: {why}; remove it by hand");
        self.findings.add(
            "left-behind",
            Outcome::Warning,
            message,
            json!({ "name": name.to_string() }),
        );
        self.findings.leave_behind();
    }
}
