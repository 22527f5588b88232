//! Compares a backup with its manifest: names, sizes, and the checksums of all files. Changes nothing and needs no cluster.

use std::fmt;

use futures::StreamExt as _;
use futures::stream::{self, FuturesOrdered};

use super::digest::{BLOCK, BlockDigest, ContentDigest};
use super::reader::{ManifestError, ManifestReader};
use super::{ChunkRef, Digest, EntryKind, FileEntry, ManifestEntry, digest_of};
use crate::error::{ErrorContext as _, ExportError};
use crate::layout;
use crate::readdir::DirectoryReader;
use crate::record::{ArchiveState, MAX_RECORD_LEN, Record, State};
use crate::signature::{RecordsKey, SignatureStatus};
use crate::store::ExportStore;
use crate::tree_walk::MAX_DEPTH;
use nfs_client::{FileHandle, FileKind, FileRef, Name, NfsError};

/// Maximum number of problems that a report names. The others are counted.
const MAX_PROBLEMS: usize = 1000;
/// Number of files that are read at a time.
const FILES: usize = 8;
/// Number of blocks of a file that are read at a time.
const BLOCKS: usize = 4;

/// Result of comparing a backup with its manifest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Files whose content was compared with their checksum.
    pub files: u64,
    /// Size of these files, in bytes.
    pub bytes: u64,
    /// Files without a checksum, because the server copied their content: only their size was compared.
    pub without_checksum: u64,
    /// Symbolic links and directories that were compared.
    pub others: u64,
    /// Number of problems.
    pub problem_count: u64,
    /// The first problems.
    pub problems: Vec<VerifyProblem>,
}

/// A difference between a backup and its manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifyProblem {
    /// The path below the backup's directory. Nonprintable bytes are escaped.
    pub path: String,
    /// The difference.
    pub what: String,
}

impl fmt::Display for VerifyProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.what)
    }
}

/// A directory to compare.
struct Directory {
    path: String,
    handle: FileHandle,
    chunks: Vec<ChunkRef>,
    depth: usize,
}

struct Verifier<'a> {
    store: &'a ExportStore,
    manifest: FileHandle,
    report: VerifyReport,
    /// Directories that are still to be compared.
    queue: Vec<Directory>,
}

/// What was found at an entry.
enum Compared {
    /// A file with this size. It has a checksum or not.
    File(u64, bool),
    Other,
    Enter(Box<Directory>),
    Missing,
    Differs(String),
}

/// Compares the backup of this name in the folder of a cluster. Returns `None` if it has no manifest. If a key is given, the
/// record must be signed with it.
pub(crate) async fn verify(
    store: &ExportStore,
    (cluster, name): (&str, &str),
    key: Option<&RecordsKey>,
) -> Result<Option<VerifyReport>, ExportError> {
    let doing = || format!("verifying the backup {name}");
    let root = store.nfs.root().await.context(doing)?;
    let Some((record, archive)) = read_record(store, (&root, cluster, name), key).await? else {
        return Ok(None);
    };
    let Some(reference) = archive.copy.as_ref().and_then(|copy| copy.manifest.as_ref()) else {
        return Ok(None);
    };
    let lookup = async |names: &[Name]| {
        let nodes = store.nfs.walk(&root.handle, names).await.context(doing)?;
        Ok::<_, ExportError>(
            (nodes.len() == names.len())
                .then(|| nodes.into_iter().next_back())
                .flatten(),
        )
    };
    let (reserved, folder) = (layout::name(layout::RESERVED)?, layout::name(layout::MANIFESTS)?);
    let manifest = lookup(&[reserved, layout::cluster(cluster)?, folder, layout::manifest(name)?]).await?;
    let directory = lookup(&[layout::name(&archive.target)?]).await?;
    let damaged = |what: String| ExportError::ManifestDamaged {
        archive: name.to_owned(),
        why: what,
    };
    let manifest = manifest.ok_or_else(|| damaged("its file is missing".to_owned()))?;
    let directory = directory.filter(|node| record.matches_node(node));
    let directory = directory.ok_or_else(|| ExportError::ArchiveMissing {
        volume: name.to_owned(),
    })?;
    let mut verifier = Verifier {
        store,
        manifest: manifest.handle,
        report: VerifyReport::default(),
        queue: Vec::new(),
    };
    let failed = |error: ManifestError| match error {
        ManifestError::Nfs(error) => Err(error).context(doing),
        error => Err(damaged(error.to_string())),
    };
    let root = match verifier.reader().root(reference).await {
        Ok(root) => root,
        Err(error) => return failed(error),
    };
    verifier.queue.push(Directory {
        path: String::new(),
        handle: directory.handle,
        chunks: root.chunks,
        depth: 0,
    });
    match verifier.run().await {
        Ok(()) => Ok(Some(verifier.report)),
        Err(error) => failed(error),
    }
}

/// Returns the record of an archive that is a copy.
async fn read_record(
    store: &ExportStore,
    (root, cluster, name): (&FileRef, &str, &str),
    key: Option<&RecordsKey>,
) -> Result<Option<(Record, ArchiveState)>, ExportError> {
    let doing = || format!("reading the record of {name}");
    let path = [
        layout::name(layout::RESERVED)?,
        layout::cluster(cluster)?,
        layout::name(layout::RECORDS)?,
    ];
    let folders = store.nfs.walk(&root.handle, &path).await.context(doing)?;
    let Some(records) = folders.get(path.len() - 1) else {
        return Ok(None);
    };
    let file = store
        .nfs
        .read_file(&records.handle, &layout::record(name)?, MAX_RECORD_LEN)
        .await;
    let Some(file) = file.context(doing)? else {
        return Ok(None);
    };
    let volume = name.to_owned();
    let record = Record::parse(name, &file.content).map_err(|why| ExportError::RecordDamaged {
        volume: volume.clone(),
        why,
    })?;
    if let Some(key) = key {
        let identity = crate::identity::read(store).await?.map(|identity| identity.id);
        let signer = key.signer(cluster, identity.as_deref().unwrap_or_default());
        if signer.verify(name, &file.content) != SignatureStatus::Signed {
            return Err(ExportError::RecordUnsigned { volume });
        }
    }
    let State::Archived(archive) = record.state.clone() else {
        return Ok(None);
    };
    Ok(Some((record, archive)))
}

impl Verifier<'_> {
    fn reader(&self) -> ManifestReader<'_> {
        ManifestReader {
            nfs: &self.store.nfs,
            file: &self.manifest,
        }
    }

    async fn run(&mut self) -> Result<(), ManifestError> {
        while let Some(directory) = self.queue.pop() {
            let mut expected_found = 0;
            for chunk in &directory.chunks {
                let entries = self.reader().entries(chunk).await?;
                let (store, directory) = (self.store, &directory);
                let compared = stream::iter(&entries)
                    .map(async |entry| (entry, compare(store, directory, entry).await))
                    .buffer_unordered(FILES);
                let compared: Vec<_> = compared.collect().await;
                for (entry, compared) in compared {
                    let compared = compared?;
                    expected_found += usize::from(!matches!(compared, Compared::Missing));
                    self.count(directory, entry, compared);
                }
            }
            let found = self.names(&directory.handle).await?;
            if found > expected_found {
                let more = found - expected_found;
                let what = format!("names that it did not have when the backup was made: {more}");
                self.problem(format!("{}/", directory.path), what);
            }
        }
        Ok(())
    }

    fn count(&mut self, directory: &Directory, entry: &ManifestEntry, compared: Compared) {
        match compared {
            Compared::File(size, true) => {
                self.report.files += 1;
                self.report.bytes += size;
            }
            Compared::File(_, false) => self.report.without_checksum += 1,
            Compared::Other => self.report.others += 1,
            Compared::Enter(directory) => {
                self.report.others += 1;
                self.queue.push(*directory);
            }
            Compared::Missing => self.problem(path(directory, entry), "it is missing".to_owned()),
            Compared::Differs(what) => self.problem(path(directory, entry), what),
        }
    }

    fn problem(&mut self, path: String, what: String) {
        self.report.problem_count += 1;
        if self.report.problems.len() < MAX_PROBLEMS {
            self.report.problems.push(VerifyProblem { path, what });
        }
    }

    /// Returns the number of names in a directory.
    async fn names(&self, directory: &FileHandle) -> Result<usize, NfsError> {
        let (mut count, mut reader) = (0, DirectoryReader::new(directory.clone()));
        while let Some(page) = reader.next_page(&self.store.nfs).await? {
            count = if page.is_first { 0 } else { count } + page.entries.len();
        }
        Ok(count)
    }
}

fn path(directory: &Directory, entry: &ManifestEntry) -> String {
    format!("{}/{}", directory.path, entry.name.escape_ascii())
}

async fn compare(store: &ExportStore, directory: &Directory, entry: &ManifestEntry) -> Result<Compared, ManifestError> {
    let name = Name::new(entry.name.clone()).map_err(|_| ManifestError::Damaged("it has an invalid name"))?;
    let found = match store.nfs.lookup(&directory.handle, &name).await {
        Err(error) if error.is_server_reply() => return Ok(Compared::Differs(error.to_string())),
        found => found?,
    };
    let Some(found) = found else {
        return Ok(Compared::Missing);
    };
    match (&entry.kind, found.attributes.kind) {
        (EntryKind::File(file), FileKind::Regular) => compare_file(store, file, &found).await,
        (EntryKind::Symlink(target), FileKind::Symlink) => {
            let found = store.nfs.read_link(&found.handle).await?;
            Ok(match digest_of(&found) == *target {
                true => Compared::Other,
                false => Compared::Differs("the link has another target".to_owned()),
            })
        }
        (EntryKind::Directory(_), FileKind::Directory) if directory.depth >= MAX_DEPTH => {
            Err(ManifestError::Damaged("its directories are too deep"))
        }
        (EntryKind::Directory(chunks), FileKind::Directory) => Ok(Compared::Enter(Box::new(Directory {
            path: path(directory, entry),
            handle: found.handle,
            chunks: chunks.clone(),
            depth: directory.depth + 1,
        }))),
        (_, kind) => Ok(Compared::Differs(format!("it is another type of file: {kind:?}"))),
    }
}

async fn compare_file(store: &ExportStore, file: &FileEntry, found: &FileRef) -> Result<Compared, ManifestError> {
    let size = file.source.size;
    if found.attributes.size != size {
        let found = found.attributes.size;
        return Ok(Compared::Differs(format!("it has {found} bytes instead of {size}")));
    }
    let Some(checksum) = file.checksum else {
        return Ok(Compared::File(size, false));
    };
    match content_digest(store, &found.handle, size).await {
        Err(error) if error.is_server_reply() => Ok(Compared::Differs(error.to_string())),
        Err(error) => Err(error.into()),
        Ok(Some(found)) if found == checksum => Ok(Compared::File(size, true)),
        Ok(_) => Ok(Compared::Differs("its content has another checksum".to_owned())),
    }
}

/// Reads a file. Returns `None` if it does not have `size` bytes.
async fn content_digest(store: &ExportStore, file: &FileHandle, size: u64) -> Result<Option<Digest>, NfsError> {
    let (mut content, mut blocks, mut position) = (ContentDigest::new(), FuturesOrdered::new(), 0);
    loop {
        while position < size && blocks.len() < BLOCKS {
            let length = BLOCK.min(size - position);
            blocks.push_back(block_digest(store, file, position, length));
            position += length;
        }
        match blocks.next().await {
            Some(block) => content.add(block?),
            None => return Ok(content.finish(size)),
        }
    }
}

async fn block_digest(
    store: &ExportStore,
    file: &FileHandle,
    begin: u64,
    length: u64,
) -> Result<(Digest, u64), NfsError> {
    let (mut block, mut position) = (BlockDigest::new(), begin);
    while position < begin + length {
        let rest = usize::try_from(begin + length - position).unwrap_or(usize::MAX);
        let data = store.nfs.read(file, position, rest).await?;
        if data.bytes.is_empty() {
            break;
        }
        block.update(&data.bytes);
        position += data.bytes.len() as u64;
    }
    Ok(block.finish())
}
