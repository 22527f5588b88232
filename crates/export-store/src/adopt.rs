//! Taking a record that this cluster did not sign for its own, on an administrator's word for this one record.
//!
//! The word is that the record may be believed, and nothing more: its names, the directory's place and fileid, and who
//! else is there are looked at all the same (design 6.5, 6.8).

use super::error::{ErrorContext as _, ExportError};
use super::ground::VerifiedRoot;
use super::ledger::Holder;
use super::record::{ArchiveState, Record, RetentionTerms, State, handle_of};
use super::records::{Created, Found};
use super::signature::Trust;
use super::{ExportStore, PoisonError, layout};
use nfs_client::{FileRef, Name, Status};

/// Which record is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordName {
    /// The cluster in whose folder it lies; absent: this one's.
    pub cluster: Option<String>,
    /// The volume that it is about.
    pub volume: String,
}

/// A record that is this cluster's own now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adopted {
    /// The volume that it is about.
    pub volume: String,
    /// The archive, or the directory, relative to the export's path.
    pub directory: String,
    /// It is an archive.
    pub archive: bool,
}

impl RecordName {
    /// Reads `<volume>` or `<cluster id>/<volume>`.
    pub fn parse(text: &str) -> Result<Self, ExportError> {
        let (cluster, volume) = match text.split_once('/') {
            Some((cluster, volume)) => (Some(cluster), volume),
            None => (None, text),
        };
        layout::record(volume)?;
        cluster.map(layout::cluster).transpose()?;
        Ok(Self {
            cluster: cluster.map(str::to_owned),
            volume: volume.to_owned(),
        })
    }
}

impl ExportStore {
    pub(super) async fn adopt_on(
        &self,
        ground: &VerifiedRoot,
        name: &RecordName,
        is_backend: &(dyn Fn(&str) -> bool + Send + Sync),
    ) -> Result<Adopted, ExportError> {
        let foreign = name.cluster.as_ref().filter(|id| **id != self.keeper.cluster_id);
        match foreign {
            Some(cluster) => self.adopt_foreign(ground, cluster, &name.volume).await,
            None => self.adopt_own(ground, &name.volume, is_backend).await,
        }
    }

    /// A record in this cluster's folder without a good signature.
    async fn adopt_own(
        &self,
        ground: &VerifiedRoot,
        volume: &str,
        is_backend: &(dyn Fn(&str) -> bool + Send + Sync),
    ) -> Result<Adopted, ExportError> {
        let record = match self.read_record(ground, volume).await? {
            Found::Nothing => return Err(refused(volume, "there is no such record")),
            Found::Unreadable(why) => return Err(refused(volume, &why.to_string())),
            Found::Record(record, Trust::Signed) if record.backend == self.keeper.backend => {
                return Ok(adopted(&record));
            }
            Found::Record(record, _) if record.backend != self.keeper.backend && is_backend(&record.backend) => {
                let why = format!("it is of backend {}: annotate that one", record.backend);
                return Err(refused(volume, &why));
            }
            Found::Record(record, _) => record,
        };
        let record = self.checked(ground, &record, None).await?;
        self.replace_record(ground, &record).await?;
        self.take_in(ground, &record);
        Ok(adopted(&record))
    }

    /// A record of another cluster: ours first, and then theirs goes, so that one of the two is there at any time.
    async fn adopt_foreign(&self, ground: &VerifiedRoot, cluster: &str, volume: &str) -> Result<Adopted, ExportError> {
        let name = layout::cluster(cluster)?;
        let folder = self.records_of(ground, &name).await?;
        let theirs = match &folder {
            Some(folder) => self.read_record_in(ground, &folder.handle, volume).await?,
            None => Found::Nothing,
        };
        let own = match self.read_record(ground, volume).await? {
            Found::Record(record, Trust::Signed) => Some(record),
            Found::Nothing => None,
            _ => {
                return Err(refused(
                    volume,
                    "this cluster has a record of that name, which comes first",
                ));
            }
        };
        let record = match (theirs, own) {
            (Found::Nothing, Some(own)) => return Ok(adopted(&own)),
            (Found::Nothing, None) => return Err(refused(volume, &format!("cluster {cluster} has no such record"))),
            (Found::Unreadable(why), _) => return Err(refused(volume, &why.to_string())),
            // An adoption that was cut off.
            (Found::Record(theirs, _), Some(own)) if is_same(&theirs, &own) => *own,
            (Found::Record(..), Some(_)) => {
                return Err(refused(volume, "this cluster has another record of that name"));
            }
            (Found::Record(theirs, _), None) => {
                let record = self.checked(ground, &theirs, Some(cluster)).await?;
                if self.create_record(ground, &record).await? == Created::Exists {
                    let doing = format!("adopting the record of volume {volume}");
                    return Err(ExportError::Unsettled { doing });
                }
                record
            }
        };
        if let Some(folder) = &folder {
            self.remove_theirs(ground, folder, volume).await?;
        }
        self.take_in(ground, &record);
        *self.foreign.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.count_others(ground).await;
        Ok(adopted(&record))
    }

    /// The record as ours, if all that it says is so.
    async fn checked(
        &self,
        ground: &VerifiedRoot,
        record: &Record,
        cluster: Option<&str>,
    ) -> Result<Record, ExportError> {
        let volume = &record.volume;
        if self.ledger.knows(&Holder::Volume(volume.clone())) {
            return Err(refused(volume, "there is a PersistentVolume of that name"));
        }
        let (holder, place) = match &record.state {
            State::Archived(note) => (Holder::Archive(volume.clone()), note.target.clone()),
            State::Live => (Holder::Volume(volume.clone()), record.directory.to_string()),
            other => return Err(refused(volume, &format!("it is {}", other.name()))),
        };
        let places = self.places_of(&ground.identity.id, &place);
        if let Some(conflict) = self.ledger.overlap(&places, &holder, &self.keeper.backend) {
            return Err(refused(volume, &conflict.to_string()));
        }
        let node = match &record.state {
            State::Archived(note) => self.archive_to_adopt(ground, note).await?,
            _ => self.directory_to_adopt(ground, record, cluster).await?,
        };
        let Some(node) =
            node.filter(|node| ground.is_plain_directory(node) && record.file_id == Some(node.attributes.fileid))
        else {
            return Err(refused(
                volume,
                &format!("{place} is not there, or another directory than it says"),
            ));
        };
        if let Some(other) = self
            .ledger
            .holder_of(&ground.file_key(node.attributes.fileid), Some(&holder))
        {
            return Err(refused(volume, &format!("{place} is {other}, by its fileid")));
        }
        if self.holds_reserved(&node, &place).await? {
            return Err(refused(volume, &format!("{place} is the path of a backend")));
        }
        if let State::Archived(note) = &record.state {
            self.close_archive(ground, &node, &note.target).await?;
        }
        Ok(self.as_ours(record, &node))
    }

    async fn archive_to_adopt(
        &self,
        ground: &VerifiedRoot,
        note: &ArchiveState,
    ) -> Result<Option<FileRef>, ExportError> {
        let found = self.nfs.lookup(&ground.root.handle, &layout::name(&note.target)?).await;
        found.while_(|| format!("looking up {}", note.target))
    }

    async fn directory_to_adopt(
        &self,
        ground: &VerifiedRoot,
        record: &Record,
        cluster: Option<&str>,
    ) -> Result<Option<FileRef>, ExportError> {
        let directory = &record.directory;
        let nodes = self.walk(ground, directory).await?;
        self.judge_parents(ground, directory, &nodes).await?;
        let except = cluster.map(|cluster| (cluster, record.volume.as_str()));
        self.refuse_foreign_but(ground, directory, &nodes, except).await?;
        Ok(self.leaf_of(&nodes, directory).cloned())
    }

    /// What a record says that nobody vouched for must not delete anything: it neither expires nor goes with its object,
    /// and a directory is archived where the policy says Delete.
    fn as_ours(&self, record: &Record, node: &FileRef) -> Record {
        let state = match &record.state {
            State::Archived(note) => State::Archived(note.on(&RetentionTerms {
                held: note.terms.held,
                ..RetentionTerms::default()
            })),
            other => other.clone(),
        };
        Record {
            backend: self.keeper.backend.clone(),
            handle: Some(handle_of(node)),
            adopted: true,
            restores: None,
            ..record.in_state(state)
        }
    }

    fn take_in(&self, ground: &VerifiedRoot, record: &Record) {
        match record.state {
            State::Archived(_) => self.enter_archive(ground, record),
            _ => self.hold(ground, record),
        }
    }

    async fn remove_theirs(&self, ground: &VerifiedRoot, folder: &FileRef, volume: &str) -> Result<(), ExportError> {
        let doing = || format!("removing the former record of volume {volume}");
        let name: Name = layout::record(volume)?;
        let Some(node) = self.nfs.lookup(&folder.handle, &name).await.while_(doing)? else {
            return Ok(());
        };
        let removed = self
            .changing(ground)?
            .remove_file(&folder.handle, &name, node.attributes.fileid)
            .await;
        match removed {
            Err(error) if error.status() == Some(Status::NotFound) => Ok(()),
            other => other.while_(doing),
        }
    }
}

/// Whether one became the other when it was adopted.
fn is_same(theirs: &Record, own: &Record) -> bool {
    (&theirs.claim, theirs.file_id, &theirs.directory) == (&own.claim, own.file_id, &own.directory)
}

fn adopted(record: &Record) -> Adopted {
    let archive = record.state.archive();
    Adopted {
        volume: record.volume.clone(),
        directory: archive.map_or_else(|| record.directory.to_string(), |note| note.target.clone()),
        archive: archive.is_some(),
    }
}

fn refused(volume: &str, why: &str) -> ExportError {
    ExportError::NotAdopted {
        volume: volume.to_owned(),
        why: why.to_owned(),
    }
}
