//! Lists what an export contains, for all clusters and without access to a cluster. Changes and creates nothing.
//!
//! Nothing in the listing is trusted: texts are truncated to the maximum length of names in Kubernetes, and the number
//! of rows is bounded.

mod row;

use std::collections::HashSet;

use futures::{StreamExt as _, TryStreamExt as _, stream};

use crate::error::{ErrorContext as _, ExportError};
pub use crate::listing::row::{ExportListing, ListedDirectory, Presence, Signature};
use crate::listing::row::{nothing, state, text};
use crate::readdir::DirectoryReader;
use crate::record::{MAX_RECORD_LEN, Record, State};
use crate::signature::{RecordsKey, SignatureStatus};
use crate::store::ExportStore;
use crate::{identity, layout};
use nfs_client::{FileHandle, FileKind, FileRef, FsId, Name, NfsError, Status};

/// Maximum number of rows: with the longest possible texts, they take about 100 MiB.
const MAX_ROWS: usize = 100_000;
/// Maximum number of names to read in one directory, so that an endless listing ends.
const MAX_NAMES: usize = 1_000_000;
/// Number of concurrent reads of records.
const READS: usize = 16;

/// A listing in progress.
struct ExportLister<'a> {
    store: &'a ExportStore,
    key: Option<&'a RecordsKey>,
    root: FileRef,
    listing: ExportListing,
    /// Names of archives in records.
    recorded: HashSet<String>,
}

impl ExportLister<'_> {
    fn fsid(&self) -> FsId {
        self.root.attributes.fsid
    }

    fn room(&self) -> usize {
        MAX_ROWS.saturating_sub(self.listing.rows.len())
    }

    async fn clusters(&mut self) -> Result<(), ExportError> {
        let reserved = layout::name(layout::RESERVED)?;
        let root = self.root.handle.clone();
        let Some(reserved) = self.folder(&root, &reserved).await? else {
            return Ok(());
        };
        for name in self.names(&reserved.handle, layout::RESERVED, |_| true).await? {
            let Some(folder) = self.folder(&reserved.handle, &name).await? else {
                continue;
            };
            let Some(records) = self.folder(&folder.handle, &layout::name(layout::RECORDS)?).await? else {
                continue;
            };
            self.records(&text(&name.to_string()), &records.handle).await?;
        }
        Ok(())
    }

    /// Returns a directory on the export's own file system. Does not follow links. Adds an error of the server to the
    /// unread parts.
    async fn folder(&mut self, parent: &FileHandle, name: &Name) -> Result<Option<FileRef>, ExportError> {
        let doing = || format!("looking up {name}");
        let found = match self.store.nfs.lookup(parent, name).await {
            Err(error) if error.status().is_some() => {
                self.listing.unseen.push(format!("{}: {error}", doing()));
                return Ok(None);
            }
            found => found.context(doing)?,
        };
        let fsid = self.fsid();
        Ok(found.filter(|node| node.attributes.kind == FileKind::Directory && node.attributes.fsid == fsid))
    }

    async fn records(&mut self, cluster: &str, records: &FileHandle) -> Result<(), ExportError> {
        let what = format!("the records of cluster {cluster}");
        let names = self.names(records, &what, |name| !layout::is_draft(name)).await?;
        let this = &*self;
        let rows = stream::iter(names).map(async |name| this.record(cluster, records, &name).await);
        let rows: Vec<(ListedDirectory, Option<String>)> = rows.buffered(READS).try_collect().await?;
        for (row, archive) in rows {
            self.recorded.extend(archive);
            self.listing.rows.push(row);
        }
        Ok(())
    }

    /// Returns the row of a record, and the name of the archive in it.
    async fn record(
        &self,
        cluster: &str,
        records: &FileHandle,
        name: &Name,
    ) -> Result<(ListedDirectory, Option<String>), ExportError> {
        let row = |why: String| ListedDirectory {
            cluster: cluster.to_owned(),
            volume: text(&name.to_string()),
            why: Some(text(&why)),
            ..nothing("Damaged")
        };
        let volume = std::str::from_utf8(name.as_bytes()).unwrap_or_default();
        if layout::record(volume).is_err() {
            return Ok((row("no volume has this name".to_owned()), None));
        }
        let content = match self.store.nfs.read_file(records, name, MAX_RECORD_LEN).await {
            Ok(Some(file)) => file.content,
            Ok(None) => return Ok((row("it was removed while it was read".to_owned()), None)),
            Err(error @ (NfsError::Status { .. } | NfsError::Limit { .. })) => {
                return Ok((row(error.to_string()), None));
            }
            Err(error) => return Err(error).context(|| format!("reading the record of volume {volume}")),
        };
        let record = match Record::parse(volume, &content) {
            Ok(record) => record,
            Err(why) => return Ok((row(why.to_string()), None)),
        };
        let archive = record.state.archive_info();
        let (directory, presence) = self.locate(&record).await?;
        let row = ListedDirectory {
            cluster: cluster.to_owned(),
            volume: text(volume),
            state: state(&record.state),
            directory,
            namespace: text(&record.claim.namespace),
            claim: text(&record.claim.name),
            backend: text(&record.backend),
            archived_at: archive.and_then(|archive| archive.since),
            size: archive.and_then(|archive| archive.size.as_deref()).map(text),
            presence,
            signature: self.signature(cluster, volume, &content),
            why: None,
            expected: matches!(
                record.state,
                State::Live | State::Archiving(_) | State::Archived(_) | State::Restoring { .. }
            ),
        };
        Ok((row, archive.map(|archive| archive.target.clone())))
    }

    fn signature(&self, cluster: &str, volume: &str, content: &[u8]) -> Signature {
        let unknown = RecordsKey::random();
        let export_id = self.listing.identity.as_deref().unwrap_or_default();
        let signer = self.key.unwrap_or(&unknown).signer(cluster, export_id);
        match signer.verify(volume, content) {
            SignatureStatus::Signed => Signature::Valid,
            SignatureStatus::Unsigned => Signature::Missing,
            SignatureStatus::Forged if self.key.is_some() => Signature::Invalid,
            SignatureStatus::Forged => Signature::Unchecked,
        }
    }

    /// Returns the path of a record's directory, and its presence. While a move to or from the archive's name is in
    /// progress, the directory may be at either path.
    async fn locate(&self, record: &Record) -> Result<(String, Presence), ExportError> {
        let own = record.directory.to_string();
        let Some(archive) = record.state.archive_info() else {
            return Ok((own, self.presence(&record.directory.names(), record.file_id).await?));
        };
        let at_archive = self.presence(&[layout::name(&archive.target)?], record.file_id).await?;
        let between = matches!(record.state, State::Archiving(_) | State::Restoring { .. });
        if between && at_archive == Presence::Missing {
            let path = match &record.state {
                State::Restoring { to, .. } => crate::naming::DirectoryPath::parse(&to.directory).ok(),
                _ => Some(record.directory.clone()),
            };
            if let Some(path) = path {
                return Ok((path.to_string(), self.presence(&path.names(), record.file_id).await?));
            }
        }
        Ok((archive.target.clone(), at_archive))
    }

    async fn presence(&self, names: &[Name], file_id: Option<u64>) -> Result<Presence, ExportError> {
        let nodes = match self.store.nfs.walk(&self.root.handle, names).await {
            Ok(nodes) => nodes,
            Err(error) if matches!(error.status(), Some(Status::Symlink | Status::NotDirectory)) => {
                return Ok(Presence::Replaced);
            }
            // The server refuses the lookup.
            Err(error) if error.status().is_some() => return Ok(Presence::Unknown),
            Err(error) => return Err(error).context(|| "looking up a directory".into()),
        };
        let Some(leaf) = names.len().checked_sub(1).and_then(|last| nodes.get(last)) else {
            return Ok(Presence::Missing);
        };
        let found = &leaf.attributes;
        let is_it = found.kind == FileKind::Directory
            && found.fsid == self.fsid()
            && file_id.is_none_or(|file_id| file_id == found.fileid);
        Ok(if is_it { Presence::Present } else { Presence::Replaced })
    }

    /// Adds the archives at the root that have no record: those of nfs-subdir, and those whose record was lost.
    async fn unrecorded(&mut self) -> Result<(), ExportError> {
        let root = self.root.handle.clone();
        let recorded = std::mem::take(&mut self.recorded);
        let archived = |name: &Name| {
            let known = std::str::from_utf8(name.as_bytes()).is_ok_and(|name| recorded.contains(name));
            name.as_bytes().starts_with(layout::ARCHIVED.as_bytes()) && !known
        };
        for name in self.names(&root, "the export", archived).await? {
            if self.folder(&root, &name).await?.is_some() {
                self.listing.rows.push(ListedDirectory {
                    directory: text(&name.to_string()),
                    presence: Presence::Present,
                    ..nothing("Unrecorded")
                });
            }
        }
        Ok(())
    }

    /// Returns the names in a directory that match `wanted`, sorted, up to the remaining number of rows. Adds an
    /// incomplete listing to the unread parts.
    async fn names(
        &mut self,
        directory: &FileHandle,
        path: &str,
        wanted: impl Fn(&Name) -> bool,
    ) -> Result<Vec<Name>, ExportError> {
        let mut reader = DirectoryReader::new(directory.clone()).with_max_entries(MAX_NAMES);
        let mut names = Vec::new();
        let incomplete = loop {
            let page = match reader.next_page(&self.store.nfs).await {
                Ok(Some(page)) => page,
                Ok(None) => break None,
                Err(error) if error.is_server_reply() => break Some(error.to_string()),
                Err(error) => return Err(error).context(|| format!("listing {path}")),
            };
            if page.is_first {
                names.clear();
            }
            let found = page.entries.into_iter().map(|entry| entry.name);
            names.extend(found.filter(|name| wanted(name)));
            if names.len() > self.room() {
                break Some("more names than are listed here".to_owned());
            }
        };
        names.truncate(self.room());
        names.sort();
        let incomplete = incomplete.map(|why| format!("{path}: {why}"));
        self.listing.unseen.extend(incomplete);
        Ok(names)
    }
}

/// Lists the records of all clusters, and archives without a record. Verifies the records if a key is given.
///
/// # Errors
/// The export cannot be read at all. [`ExportListing::unseen`] names the parts that could not be read.
pub(crate) async fn list(store: &ExportStore, key: Option<&RecordsKey>) -> Result<ExportListing, ExportError> {
    let listed = list_all(store, key).await;
    store.with_hints(listed).await
}

async fn list_all(store: &ExportStore, key: Option<&RecordsKey>) -> Result<ExportListing, ExportError> {
    let root = store
        .nfs
        .root()
        .await
        .context(|| "looking up the export's path".into())?;
    let mut lister = ExportLister {
        store,
        key,
        root,
        listing: ExportListing::default(),
        recorded: HashSet::new(),
    };
    match identity::read(store).await {
        Ok(identity) => lister.listing.identity = identity.map(|identity| identity.id),
        Err(error @ ExportError::Nfs { .. }) => return Err(error),
        Err(error) => lister.listing.unseen.push(error.to_string()),
    }
    lister.clusters().await?;
    lister.unrecorded().await?;
    Ok(lister.listing)
}
