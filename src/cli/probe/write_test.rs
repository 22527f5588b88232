//! Write test of `--write`: creates a directory with a file, sets its mode and owner, lists it as a member of its group, renames
//! it and removes it.

use export_store::{ErrorHints, RootPermissions, remedy_of};
use nfs_client::{Client, Credential, FileRef, Name, NfsError, SetAttributes, Status};
use rand::RngExt;
use serde_json::json;

use crate::api::Reason;
use crate::cli::connection::export_error_with;
use crate::cli::findings::{Findings, StepResult};

/// Default of `spec.directory.mode`.
const REQUESTED_MODE: u32 = 0o777;
/// Owner that is neither root nor a usual credential of a probe.
const REQUESTED_OWNER: u32 = 12_345;

/// User that has the group of the directory as a supplementary group, and the group that it has otherwise.
const MEMBER: u32 = 12_346;

/// What does not work on a server that ignores groups, and the remedy.
const REFUSED_WITHOUT_GROUPS: &str = "pods get Permission denied in volumes with gid or gidRange, because the group that the \
                                      kubelet adds is lost: let the server accept the groups of its clients (Linux: \
                                      manage-gids=n in the section [mountd] of /etc/nfs.conf, which Debian and Ubuntu set \
                                      to y; nfs-ganesha: Manage_Gids = false)";

/// What does not work on a server that knows owners by their names, and the remedy.
const REFUSED_WITHOUT_NUMBERS: &str = "claims that request an owner, clones, backups and copied restores fail with \
                                       IdMappingRequired: enable numeric owners on the server (nfs-ganesha: \
                                       Only_Numeric_Owners = true; Linux: nfs4_disable_idmapping=Y)";

struct WriteTest<'a> {
    export: &'a Client,
    root: &'a FileRef,
    credential: Credential,
    findings: &'a mut Findings,
}

/// Runs all steps. Removes the directory even if a step fails.
pub async fn run(export: &Client, root: &FileRef, credential: Credential, findings: &mut Findings) {
    let random = rand::rng().random::<u64>();
    let name = |suffix| Name::new(format!(".nfs-operator-probe-{random:016x}{suffix}"));
    let (Ok(first), Ok(second)) = (name(""), name("-renamed")) else {
        // Unreachable: both are valid names of at most 43 bytes.
        return;
    };
    let mut test = WriteTest {
        export,
        root,
        credential,
        findings,
    };
    let Some(directory) = test.create_directory(&first).await else {
        return;
    };
    test.check_mode(&directory);
    test.check_file(&directory).await;
    test.check_owner(&directory).await;
    let name = match test.rename(&directory, (&first, &second)).await {
        true => &second,
        false => &first,
    };
    test.remove(&directory, name).await;
}

impl WriteTest<'_> {
    /// Adds an error with what is known here: the root could be read, so the port is not the cause, and a server refuses root
    /// only if it squashes root. Who may write to the root explains why nothing could be created there.
    fn failed(&mut self, check: &'static str, doing: &str, error: NfsError) {
        let hints = ErrorHints {
            local: Some(self.export.negotiated().local),
            squashed: self.credential.uid == 0,
            root: (check == "make").then(|| RootPermissions::from(&self.root.attributes)),
            ..ErrorHints::default()
        };
        let error = export_error_with(doing, error, hints);
        self.findings.error(check, StepResult::Failed, &error);
    }

    async fn create_directory(&mut self, name: &Name) -> Option<FileRef> {
        let attributes = SetAttributes {
            mode: Some(REQUESTED_MODE),
            ..SetAttributes::default()
        };
        match self.export.make_directory(&self.root.handle, name, attributes).await {
            Ok(created) => {
                self.findings.passed("make", "created a directory");
                Some(created.node)
            }
            Err(error) => {
                let unknown = error.outcome_unknown();
                self.failed("make", "cannot create a directory", error);
                if unknown {
                    self.report_left_behind(name, "it may have been created");
                }
                None
            }
        }
    }

    fn check_mode(&mut self, directory: &FileRef) {
        let mode = directory.attributes.mode;
        let seen = json!({ "asked": format!("{REQUESTED_MODE:04o}"), "got": format!("{mode:04o}") });
        if mode == REQUESTED_MODE {
            let message = format!("applied: {mode:04o} as requested");
            return self.findings.add("mode", StepResult::Ok, message, seen);
        }
        let message = format!(
            "changed: {mode:04o} instead of {REQUESTED_MODE:04o}; claims of a StorageClass that sets a mode fail with \
             ModeRefused: check ACLs and the umask on the server"
        );
        self.findings
            .problem("mode", StepResult::Warning, Reason::ModeRefused, message);
    }

    /// Writes and removes a file, as records are stored in files.
    async fn check_file(&mut self, directory: &FileRef) {
        let Ok(name) = Name::new("probe") else { return };
        match self
            .export
            .create_file(&directory.handle, &name, b"probe\n", 0o600)
            .await
        {
            Ok(file) => {
                let removed = self
                    .export
                    .remove_file(&directory.handle, &name, file.attributes.fileid)
                    .await;
                match removed {
                    Ok(()) => self.findings.passed("file", "wrote and removed a file"),
                    Err(error) => self.failed("file", "cannot remove a file", error),
                }
            }
            Err(error) => self.failed("file", "cannot write a file", error),
        }
    }

    /// Checks the owner of the directory, and whether another owner can be set.
    async fn check_owner(&mut self, directory: &FileRef) {
        let (owner, requested) = (&directory.attributes, self.credential);
        if owner.uid.is_none() || owner.gid.is_none() {
            let message = format!(
                "names instead of numbers: {}:{}; {REFUSED_WITHOUT_NUMBERS}",
                owner.owner, owner.group
            );
            return self
                .findings
                .problem("owner", StepResult::Warning, Reason::IdMappingRequired, message);
        }
        if owner.uid != Some(requested.uid) {
            let message = format!(
                "squashed: created as {}:{} instead of {}:{}; claims that request an owner, clones, backups and copied \
                 restores fail: export with no_root_squash to the address of the operator, or use none of these",
                owner.owner, owner.group, requested.uid, requested.gid
            );
            return self
                .findings
                .problem("owner", StepResult::Warning, Reason::RootSquashed, message);
        }
        if requested.uid != 0 {
            let message = format!(
                "applied: created as {}:{}; setting another owner requires root",
                owner.owner, owner.group
            );
            return self.findings.add(
                "owner",
                StepResult::Ok,
                message,
                json!({ "uid": owner.uid, "gid": owner.gid }),
            );
        }
        self.change_owner(directory).await;
    }

    async fn change_owner(&mut self, directory: &FileRef) {
        let owner = SetAttributes {
            mode: None,
            uid: Some(REQUESTED_OWNER),
            gid: Some(REQUESTED_OWNER),
            ..SetAttributes::default()
        };
        match self.export.set_attributes(&directory.handle, owner).await {
            Ok(now) if now.uid == Some(REQUESTED_OWNER) && now.gid == Some(REQUESTED_OWNER) => {
                let message = format!("applied: created as 0:0, changed to {REQUESTED_OWNER}:{REQUESTED_OWNER}");
                self.findings
                    .add("owner", StepResult::Ok, message, json!({ "uid": 0, "gid": 0 }));
                self.check_groups(directory).await;
            }
            Ok(now) if now.uid.is_none() || now.gid.is_none() => {
                let message = format!(
                    "not applied: {}:{} instead of {REQUESTED_OWNER}:{REQUESTED_OWNER}, names instead of numbers; \
                     {REFUSED_WITHOUT_NUMBERS}",
                    now.owner, now.group
                );
                self.findings
                    .problem("owner", StepResult::Warning, Reason::IdMappingRequired, message);
            }
            Ok(now) => {
                let message = format!(
                    "not applied: {}:{} instead of {REQUESTED_OWNER}:{REQUESTED_OWNER}; claims that request an owner, clones, \
                     backups and copied restores fail",
                    now.owner, now.group
                );
                self.findings
                    .problem("owner", StepResult::Warning, Reason::OwnerRefused, message);
            }
            Err(error) if error.status() == Some(Status::BadOwner) => {
                let message = format!("cannot set the owner: {error}; {REFUSED_WITHOUT_NUMBERS}");
                self.findings
                    .problem("owner", StepResult::Warning, Reason::IdMappingRequired, message);
            }
            Err(error) => {
                let message = format!(
                    "cannot set the owner: {error}; {}",
                    remedy_of(&error, &ErrorHints::default())
                );
                self.findings
                    .problem("owner", StepResult::Warning, Reason::OwnerRefused, message);
            }
        }
    }

    /// Checks whether the server believes the groups of a client: only a member of the directory's group may list it. The
    /// kubelet adds the group of a volume to the groups of its pods.
    async fn check_groups(&mut self, directory: &FileRef) {
        let for_group = SetAttributes {
            mode: Some(0o070),
            ..SetAttributes::default()
        };
        if let Err(error) = self.export.set_attributes(&directory.handle, for_group).await {
            return self.failed("groups", "cannot set a mode", error);
        }
        let list = async |gid, supplementary| {
            let member = Credential {
                uid: MEMBER,
                gid,
                supplementary,
            };
            let export = self.export.with_credential(member);
            export.list(&directory.handle, None).await.map(drop)
        };
        let Err(refusal) = list(MEMBER, Some(REQUESTED_OWNER)).await else {
            let message = "believed: a user has the groups that a client sends";
            return self.findings.passed("groups", message);
        };
        // The same user, whose primary group is not looked up.
        let message = match list(REQUESTED_OWNER, None).await {
            Ok(()) => format!("ignored: a user with the group of the directory is refused ({refusal})"),
            Err(error) => {
                format!("not tested, or ignored: the server refuses user {MEMBER}, whom it may not know ({error})")
            }
        };
        self.findings.problem(
            "groups",
            StepResult::Warning,
            Reason::GroupsIgnored,
            format!("{message}; {REFUSED_WITHOUT_GROUPS}"),
        );
    }

    /// Returns true if the directory has the new name afterwards.
    async fn rename(&mut self, directory: &FileRef, (from, to): (&Name, &Name)) -> bool {
        let fileid = directory.attributes.fileid;
        match self
            .export
            .rename((&self.root.handle, from), fileid, (&self.root.handle, to))
            .await
        {
            Ok(()) => {
                self.findings.passed("rename", "renamed the directory");
                true
            }
            Err(error) => {
                self.failed("rename", "cannot rename a directory", error);
                // The result may be unknown, so look which name to remove.
                matches!(self.export.lookup(&self.root.handle, to).await, Ok(Some(found)) if found.attributes.fileid == fileid)
            }
        }
    }

    async fn remove(&mut self, directory: &FileRef, name: &Name) {
        match self
            .export
            .remove_directory(&self.root.handle, name, directory.attributes.fileid)
            .await
        {
            Ok(()) => self.findings.passed("remove", "removed the directory"),
            Err(error) => {
                let deleted = error.status() == Some(Status::NotFound);
                self.failed("remove", "cannot remove a directory", error);
                if !deleted {
                    self.report_left_behind(name, "it could not be removed");
                }
            }
        }
    }

    fn report_left_behind(&mut self, name: &Name, why: &str) {
        let message = format!("{name} at the export's root: {why}; remove it manually");
        self.findings.add(
            "left-behind",
            StepResult::Warning,
            message,
            json!({ "name": name.to_string() }),
        );
        self.findings.set_left_behind();
    }
}
