//! Identity of an export (data-safety rule 2): a random ID in a file, with the root's fileid, because a copied
//! export contains a copied file.

use std::sync::Arc;
use std::time::Duration;

use rand::Rng as _;
use serde::{Deserialize, Serialize};

use crate::beacon::Access;
use crate::error::{ErrorContext as _, ExportError};
use crate::folders::{check_folder, check_folder_owner};
use crate::own_files::{self, OwnFile};
use crate::request::{ExpectedIdentity, Identity, OwnFileIds};
use crate::store::ExportStore;
use crate::text::hexadecimal;
use crate::verified_root::VerifiedRoot;
use crate::{beacon, folders, layout};
use nfs_client::{Client, FileRef, FsId, Name, Status};

/// Maximum size of an identity file, in bytes.
const MAX_IDENTITY_LEN: usize = 4096;
/// The version of the format that this release writes, and the newest that it reads.
const VERSION: u32 = 1;
/// Number of reads, and their interval, of a file that another operator is writing (servers without LINK).
const PATIENCE: u32 = 5;
const PAUSE: Duration = Duration::from_millis(200);
/// Maximum number of attempts while the connection changes.
const ATTEMPTS: u32 = 4;

/// Content of the identity file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct IdentityFile {
    version: u32,
    id: String,
    #[serde(rename = "rootFileID")]
    root_file_id: u64,
    #[serde(default)]
    fsid_major: u64,
    #[serde(default)]
    fsid_minor: u64,
}

/// Returns the ID in the content of an identity file; `None` while the file is being written.
///
/// # Errors
/// The file is damaged, or from a newer release.
pub fn parse_export_id(bytes: &[u8]) -> Result<Option<String>, ExportError> {
    Ok(IdentityFile::parse(bytes)?.map(|file| file.id))
}

impl IdentityFile {
    fn new(root: &FileRef) -> Self {
        let mut random = [0_u8; 16];
        rand::rng().fill_bytes(&mut random);
        Self {
            version: VERSION,
            id: hexadecimal(&random),
            root_file_id: root.attributes.fileid,
            fsid_major: root.attributes.fsid.major,
            fsid_minor: root.attributes.fsid.minor,
        }
    }

    fn to_bytes(&self) -> Result<Vec<u8>, ExportError> {
        let mut bytes = serde_json::to_vec(self).map_err(|error| damaged(error.to_string()))?;
        bytes.push(b'\n');
        Ok(bytes)
    }

    /// Parses the file. Returns `None` if it ends early, because it is still being written.
    fn parse(bytes: &[u8]) -> Result<Option<Self>, ExportError> {
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let file: Self = match serde_json::from_slice(bytes) {
            Ok(file) => file,
            Err(error) if error.is_eof() => return Ok(None),
            Err(error) => return Err(damaged(error.to_string())),
        };
        if file.version > VERSION {
            return Err(damaged(format!(
                "it has version {}, newer than this release reads",
                file.version
            )));
        }
        // The ID is used in an annotation and in messages.
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if file.id.is_empty() || file.id.len() > 63 || !file.id.bytes().all(plain) {
            return Err(damaged("its ID is invalid".into()));
        }
        Ok(Some(file))
    }

    /// Compares the file with the expected identity. Pure.
    fn check(&self, root: &FileRef, own: OwnFileIds, expected: &ExpectedIdentity) -> Result<Identity, ExportError> {
        let mismatch = |why: String| ExportError::IdentityMismatch {
            expected: expected.export_id.clone(),
            found: Some(self.id.clone()),
            why,
        };
        if expected.must_create {
            return Err(mismatch(format!(
                "it has identity {}, and a new one is requested",
                self.id
            )));
        }
        if let Some(id) = &expected.export_id
            && *id != self.id
        {
            return Err(mismatch(format!("expected identity {}, found {}", id, self.id)));
        }
        let now = root.attributes.fileid;
        let accepted = expected.accepted && expected.export_id.is_some();
        for (known, by) in [
            (expected.root_file_id, "the backend's status"),
            (Some(self.root_file_id), "the identity"),
        ] {
            if let Some(known) = known
                && known != now
                && !accepted
            {
                return Err(mismatch(format!(
                    "it looks like a copy: its identity is {}, and its root has fileid {now}, where {by} knows {known}",
                    self.id
                )));
            }
        }
        let known = expected.own_file_ids.filter(|_| !accepted);
        for (what, known, now) in [
            ("identity file", known.map(|known| known.identity), own.identity),
            ("folder for this cluster", known.map(|known| known.cluster), own.cluster),
        ] {
            if let Some(known) = known
                && known != now
            {
                return Err(mismatch(format!(
                    "it looks like a copy, or like restored from one: its identity is {}, and its {what} has fileid \
                     {now}, where the backend's status knows {known}",
                    self.id
                )));
            }
        }
        let fsid = root.attributes.fsid;
        let mut warnings = Vec::new();
        let known = FsId {
            major: self.fsid_major,
            minor: self.fsid_minor,
        };
        if fsid != known {
            warnings.push(format!(
                "the export's file system has id {}:{}, and had {}:{} when its identity was made; some servers change it \
                 when they restart",
                fsid.major, fsid.minor, known.major, known.minor
            ));
        }
        Ok(Identity {
            id: self.id.clone(),
            root_file_id: now,
            own_file_ids: own,
            fsid,
            created: false,
            warnings,
        })
    }
}

/// Parses an identity. Verifies that a parsed identity can be written, and that reading it gives the same result.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn parse_anything(bytes: &[u8]) {
    if let Ok(Some(file)) = IdentityFile::parse(bytes) {
        let again = file.to_bytes().and_then(|bytes| IdentityFile::parse(&bytes));
        assert!(again.is_ok_and(|again| again == Some(file)), "written and read again");
    }
}

fn damaged(why: String) -> ExportError {
    ExportError::IdentityDamaged {
        path: format!("{}/{}", layout::RESERVED, layout::IDENTITY),
        why,
    }
}

pub(crate) async fn read(store: &ExportStore) -> Result<Option<Identity>, ExportError> {
    let root = store
        .nfs
        .root()
        .await
        .context(|| "looking up the export's path".into())?;
    let reserved = layout::name(layout::RESERVED)?;
    let found = store.nfs.lookup(&root.handle, &reserved).await;
    let Some(reserved) = found.context(|| format!("looking up {}", layout::RESERVED))? else {
        return Ok(None);
    };
    check_folder(&reserved, &root, None, layout::RESERVED)?;
    match read_identity_file(store, &reserved).await? {
        // Nothing is expected, so the folder does not matter.
        Some((file, identity)) => {
            let own = OwnFileIds { identity, cluster: 0 };
            file.check(&root, own, &ExpectedIdentity::default()).map(Some)
        }
        None => Ok(None),
    }
}

/// Reads and compares the identity, and looks up the handles of the operator's folders. Only one task at a time may
/// call this.
pub(crate) async fn confirm(
    store: &ExportStore,
    expected: &ExpectedIdentity,
) -> Result<Arc<VerifiedRoot>, ExportError> {
    for _ in 0..ATTEMPTS {
        store.wait_for_unanswered_changes().await;
        let generation = store.nfs.generation();
        let outcome = confirm_once(store, generation, expected).await;
        if generation != store.nfs.generation() {
            continue;
        }
        // After a failure or a difference, changes in progress stop at their next step and are retried on a newly
        // verified root.
        if let Some(former) = store.last_verified_root()
            && outcome.as_ref().map_or(true, |verified| verified.differs_from(&former))
        {
            former.mark_outdated();
            // Perhaps it is another state of the export.
            store.reserve.set_due();
        }
        let verified = Arc::new(outcome?);
        let (reservations, backend) = (&store.reservations, &store.config.backend);
        reservations.confirm_export(backend, &verified.identity.id);
        let unanswered = store.nfs.unanswered_changes();
        reservations
            .unanswered_changes
            .insert(&verified.identity.id, unanswered);
        store.state().verified = Some(Arc::clone(&verified));
        return Ok(verified);
    }
    Err(ExportError::ConcurrentlyModified {
        doing: "reading the export's identity".into(),
    })
}

/// An export that may be used, before anything is created on it.
struct CheckedExport {
    root: FileRef,
    reserved: Option<FileRef>,
    /// The identity that it has.
    existing: Option<(IdentityFile, Identity)>,
    /// The ID of the identity that it had, whose file is missing: an administrator accepted that it is created again.
    lost_id: Option<String>,
    /// The folder of this cluster.
    cluster: Option<FileRef>,
}

/// Reads and compares the identity, and changes nothing.
pub(crate) async fn check(store: &ExportStore, expected: &ExpectedIdentity) -> Result<(), ExportError> {
    check_as(store, expected, Access::Observer).await.map(drop)
}

async fn check_as(
    store: &ExportStore,
    expected: &ExpectedIdentity,
    access: Access,
) -> Result<CheckedExport, ExportError> {
    let root = store
        .nfs
        .root()
        .await
        .context(|| "looking up the export's path".into())?;
    let name = layout::name(layout::RESERVED)?;
    let found = store.nfs.lookup(&root.handle, &name).await;
    let reserved = found.context(|| format!("looking up {}", layout::RESERVED))?;
    if let Some(reserved) = &reserved {
        check_folder(reserved, &root, None, layout::RESERVED)?;
        if let Some((file, file_id)) = read_identity_file(store, reserved).await? {
            let cluster = find_cluster(store, reserved, &file, expected).await?;
            let own = OwnFileIds {
                identity: file_id,
                // 0: this cluster is new here.
                cluster: cluster.as_ref().map_or(0, |cluster| cluster.attributes.fileid),
            };
            let identity = file.check(&root, own, expected)?;
            check_beacon(store, cluster.as_ref(), &identity.id, expected, access).await?;
            return Ok(CheckedExport {
                root,
                reserved: Some(reserved.clone()),
                existing: Some((file, identity)),
                lost_id: None,
                cluster,
            });
        }
        if let Some((export_id, cluster)) = find_lost(store, &root, reserved, expected).await? {
            if !expected.accepted {
                return Err(ExportError::IdentityMissing { export_id });
            }
            return Ok(CheckedExport {
                root,
                reserved: Some(reserved.clone()),
                existing: None,
                lost_id: Some(export_id),
                cluster: Some(cluster),
            });
        }
    }
    // Never create an identity if one is expected: an unmounted disk looks the same.
    if expected.export_id.is_some() || !expected.may_create {
        return Err(ExportError::IdentityMismatch {
            expected: expected.export_id.clone(),
            found: None,
            why: match &expected.export_id {
                Some(id) => format!("expected identity {id}, found none"),
                None => "it has no identity, and none may be created here".into(),
            },
        });
    }
    Ok(CheckedExport {
        root,
        reserved,
        existing: None,
        lost_id: None,
        cluster: None,
    })
}

/// Returns the expected identity and the folder of this cluster, if only the identity file is missing: the folder has a
/// beacon, which an administrator accepts, or which the backends' status knows.
async fn find_lost(
    store: &ExportStore,
    root: &FileRef,
    reserved: &FileRef,
    expected: &ExpectedIdentity,
) -> Result<Option<(String, FileRef)>, ExportError> {
    let Some(id) = &expected.export_id else { return Ok(None) };
    let Some(cluster) = lookup_cluster(store, reserved).await? else {
        return Ok(None);
    };
    if !beacon::exists(store, &cluster, id).await? {
        return Ok(None);
    }
    if !expected.accepted {
        let own = expected.own_file_ids.map(|own| own.cluster);
        let found = (Some(root.attributes.fileid), Some(cluster.attributes.fileid));
        if (expected.root_file_id, own) != found {
            return Ok(None);
        }
        match check_beacon(store, Some(&cluster), id, expected, Access::Observer).await {
            Ok(()) => {}
            Err(ExportError::BeaconMismatch { .. } | ExportError::BeaconObserved { .. }) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(Some((id.clone(), cluster)))
}

async fn check_beacon(
    store: &ExportStore,
    cluster: Option<&FileRef>,
    id: &str,
    expected: &ExpectedIdentity,
    access: Access,
) -> Result<(), ExportError> {
    let (known, accepted) = (expected.beacons.as_deref(), expected.accepted);
    beacon::check(store, cluster, id, known, accepted, access).await
}

async fn confirm_once(
    store: &ExportStore,
    generation: u64,
    expected: &ExpectedIdentity,
) -> Result<VerifiedRoot, ExportError> {
    let checked = check_as(store, expected, Access::Writer).await?;
    let (root, accepted) = (checked.root, expected.accepted);
    // After a reconnection, the export is perhaps not the one that was checked.
    let nfs = store.nfs.on_connection(generation);
    let reserved = match checked.reserved {
        Some(reserved) => reserved,
        None => folders::ensure_folder(&nfs, &root, &root, layout::RESERVED, layout::RESERVED, None).await?,
    };
    let Some((file, mut identity)) = checked.existing else {
        let found = checked.cluster;
        let folders = folders::ensure_folders(store, &nfs, (&root, &reserved), None, found, accepted).await?;
        let [cluster, ..] = &folders;
        let identity = publish(store, &nfs, (&root, &reserved), cluster, checked.lost_id).await?;
        check_beacon(store, Some(cluster), &identity.id, expected, Access::Writer).await?;
        return Ok(VerifiedRoot::new(nfs, generation, identity, root, reserved, folders));
    };
    if file.root_file_id != root.attributes.fileid {
        accept_root(store, &nfs, &reserved, &root, &file).await?;
        if let Some((_, replaced)) = read_identity_file(store, &reserved).await? {
            identity.own_file_ids.identity = replaced;
        }
    }
    let (id, found) = (Some(&*file.id), checked.cluster);
    let folders = folders::ensure_folders(store, &nfs, (&root, &reserved), id, found, accepted).await?;
    let [cluster, ..] = &folders;
    identity.own_file_ids.cluster = cluster.attributes.fileid;
    Ok(VerifiedRoot::new(nfs, generation, identity, root, reserved, folders))
}

/// Looks up the folder of this cluster. Fails if it is missing on the export on which it is expected.
async fn find_cluster(
    store: &ExportStore,
    reserved: &FileRef,
    file: &IdentityFile,
    expected: &ExpectedIdentity,
) -> Result<Option<FileRef>, ExportError> {
    let is_expected = expected.own_file_ids.is_some() && expected.export_id.as_ref().is_none_or(|id| *id == file.id);
    match lookup_cluster(store, reserved).await? {
        None if is_expected && !expected.accepted => Err(ExportError::FolderMissing {
            path: format!("{}/{}", layout::RESERVED, store.config.cluster_id),
            export_id: Some(file.id.clone()),
        }),
        found => Ok(found),
    }
}

/// Looks up the folder of this cluster.
async fn lookup_cluster(store: &ExportStore, reserved: &FileRef) -> Result<Option<FileRef>, ExportError> {
    let name = layout::cluster(&store.config.cluster_id)?;
    let found = store.nfs.lookup(&reserved.handle, &name).await;
    found.context(|| format!("looking up {}/{name}", layout::RESERVED))
}

/// Returns the identity file and its fileid.
async fn read_identity_file(
    store: &ExportStore,
    reserved: &FileRef,
) -> Result<Option<(IdentityFile, u64)>, ExportError> {
    let name = layout::name(layout::IDENTITY)?;
    for _ in 0..PATIENCE {
        let doing = || "reading the export's identity".to_owned();
        let file = match own_files::read(&store.nfs, &reserved.handle, &name, MAX_IDENTITY_LEN, doing).await? {
            OwnFile::Nothing => return Ok(None),
            OwnFile::File(file) => file,
            OwnFile::Unusable(why) => return Err(damaged(why)),
        };
        if let Some(identity) = IdentityFile::parse(&file.content)? {
            let path = format!("{}/{}", layout::RESERVED, layout::IDENTITY);
            check_folder_owner(&file.node, reserved, &path)?;
            return Ok(Some((identity, file.node.attributes.fileid)));
        }
        tokio::time::sleep(PAUSE).await;
    }
    Err(damaged(
        "it is incomplete, and no process seems to be writing it".into(),
    ))
}

/// Publishes an identity, with the ID of one that was lost if there is one, or reads the one that another process published
/// first.
async fn publish(
    store: &ExportStore,
    nfs: &Client,
    (root, reserved): (&FileRef, &FileRef),
    cluster: &FileRef,
    lost_id: Option<String>,
) -> Result<Identity, ExportError> {
    let doing = || "creating the export's identity".to_owned();
    let expected = ExpectedIdentity {
        export_id: lost_id.clone(),
        ..ExpectedIdentity::default()
    };
    let mut file = IdentityFile::new(root);
    if let Some(id) = lost_id {
        file.id = id;
    }
    let content = file.to_bytes()?;
    let (name, draft_name) = (layout::name(layout::IDENTITY)?, layout::identity_draft(&file.id)?);
    // Linked once it is complete and synced, so that no process ever reads a partial identity.
    let draft = create_fresh_file(nfs, cluster, &draft_name, &content).await?;
    match nfs.link(&draft.handle, &reserved.handle, &name).await {
        Ok(()) => {}
        Err(error) => match error.status() {
            Some(Status::Exists) => {}
            // No hard links here. An exclusive create lets one win too; its content may be short for a moment.
            Some(
                Status::NotSupported
                | Status::NotPermitted
                | Status::CrossDevice
                | Status::TooManyLinks
                | Status::Invalid,
            ) => {
                let made = nfs.create_file(&reserved.handle, &name, &content, 0o600).await;
                match made {
                    Err(error) if error.status() != Some(Status::Exists) => return Err(error).context(doing),
                    _ => {}
                }
            }
            _ => return Err(error).context(doing),
        },
    }
    own_files::remove(nfs, &cluster.handle, &draft_name, draft.attributes.fileid, doing).await?;
    let winner = read_identity_file(store, reserved).await?;
    let (winner, file_id) = winner.ok_or_else(|| ExportError::ConcurrentlyModified { doing: doing() })?;
    let own = OwnFileIds {
        identity: file_id,
        cluster: cluster.attributes.fileid,
    };
    let identity = winner.check(root, own, &expected)?;
    Ok(Identity {
        created: winner == file,
        ..identity
    })
}

/// Creates a file under a name that only this cluster uses. Removes one left by an interrupted process first.
pub(crate) async fn create_fresh_file(
    nfs: &Client,
    folder: &FileRef,
    name: &Name,
    content: &[u8],
) -> Result<FileRef, ExportError> {
    let doing = || format!("creating {name} in {}", layout::RESERVED);
    for _ in 0..ATTEMPTS {
        match nfs.create_file(&folder.handle, name, content, 0o600).await {
            Ok(node) => return Ok(node),
            Err(error) if error.status() == Some(Status::Exists) => {}
            Err(error) => return Err(error).context(doing),
        }
        if let Some(old) = nfs.lookup(&folder.handle, name).await.context(doing)? {
            own_files::remove(nfs, &folder.handle, name, old.attributes.fileid, doing).await?;
        }
    }
    Err(ExportError::ConcurrentlyModified { doing: doing() })
}

/// Saves the root that an administrator accepted for this identity.
async fn accept_root(
    store: &ExportStore,
    nfs: &Client,
    reserved: &FileRef,
    root: &FileRef,
    file: &IdentityFile,
) -> Result<(), ExportError> {
    let file = IdentityFile {
        id: file.id.clone(),
        ..IdentityFile::new(root)
    };
    let draft = layout::name(&format!("{}-{}", layout::IDENTITY, store.config.cluster_id))?;
    let name = layout::name(layout::IDENTITY)?;
    nfs.replace_file(&reserved.handle, &name, &draft, &file.to_bytes()?, 0o600)
        .await
        .context(|| "accepting the export's root".into())
        .map(drop)
}
