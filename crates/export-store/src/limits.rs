//! Limits of volumes (ADR 17): orders to the quota agent, and its reports, heartbeat and usage (data-safety rule 27).
//!
//! An order follows the record of its volume: it names the directory and the fileid of the signed record, is written
//! after the record, and is removed with it. What the agent writes is believed only with a valid signature, and only about
//! the order that it names.

use crate::error::{ErrorContext as _, ExportError};
use crate::folders::ensure_folder;
use crate::own_files::{self, OwnFile};
use crate::quota::{Heartbeat, LimitState, Order, QuotaDirectory, QuotaFile, QuotaFileError, QuotaSeal, Report, Usage};
use crate::record::{Record, State};
use crate::records::{self, ReadRecord};
use crate::request::{ClaimRef, DirectoryRequest, ProvisionedDirectory};
use crate::signature::SignatureStatus;
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use crate::{layout, readdir};
use nfs_client::{FileRef, Name};

/// Maximum number of orders that are listed: as many as records.
const MAX_ORDERS: usize = 1_000_000;

/// Limit of one volume. Unset values are not limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VolumeLimit {
    /// Size of all files, in bytes.
    pub bytes: Option<u64>,
    /// Number of inodes.
    pub inodes: Option<u64>,
}

/// An order to the quota agent that is on the export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitOrder {
    /// Number of the order. A later order of the same volume has a greater one.
    pub generation: u64,
    /// Fileid of the directory.
    pub file_id: u64,
    /// The limit.
    pub limit: VolumeLimit,
}

/// What the quota agent reports about an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LimitReport {
    /// There is no report about this order: it is missing, or about another generation or directory.
    Unreported,
    /// The report is about this order.
    Reported(LimitState),
    /// The file is damaged, or not signed with the key of this cluster.
    Unusable(String),
}

impl LimitReport {
    /// Returns true if the limit is in force.
    pub fn is_in_force(&self) -> bool {
        *self == Self::Reported(LimitState::InForce)
    }
}

/// What was found of the quota agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentState {
    /// No heartbeat.
    Missing,
    /// A heartbeat that is damaged, or not signed with the key of this cluster.
    Untrusted(String),
    /// A heartbeat. It does not show whether the agent still runs.
    Heartbeat(Heartbeat),
}

/// Result of ordering a limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ordered {
    /// The order is on the export.
    Order {
        /// The order.
        order: LimitOrder,
        /// It was written just now, so there is no report about it.
        is_new: bool,
        /// The claim of the volume, from its record.
        claim: ClaimRef,
    },
    /// The volume has no directory that can be limited now.
    Nothing(NoLimit),
}

/// Why a volume has no directory that can be limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NoLimit {
    /// Several volumes share the directory.
    Shared,
    /// The volume has no record that this cluster signed: another provisioner created it, or somebody changed the record.
    NoRecord,
    /// The directory is being created, moved or removed. Its limit is ordered later.
    Changing,
}

/// The folders of the quota agent.
#[derive(Debug)]
pub(crate) struct QuotaFolders {
    quota: FileRef,
    orders: FileRef,
    reports: FileRef,
}

/// Returns the folders. Creates them if missing.
async fn folders<'a>(store: &ExportStore, verified: &'a VerifiedRoot) -> Result<&'a QuotaFolders, ExportError> {
    let ensured = verified.quota.get_or_try_init(|| async {
        let nfs = store.for_write(verified)?;
        let (root, owner) = (&verified.root, Some(&verified.reserved));
        let path = format!("{}/{}/{}", layout::RESERVED, store.config.cluster_id, layout::QUOTA);
        let quota = ensure_folder(nfs, root, &verified.cluster, layout::QUOTA, &path, owner).await?;
        let [orders, reports] = [layout::QUOTA_ORDERS, layout::QUOTA_REPORTS];
        let orders = ensure_folder(nfs, root, &quota, orders, &format!("{path}/{orders}"), owner).await?;
        let reports = ensure_folder(nfs, root, &quota, reports, &format!("{path}/{reports}"), owner).await?;
        Ok(QuotaFolders { quota, orders, reports })
    });
    ensured.await
}

fn seal(store: &ExportStore, verified: &VerifiedRoot) -> QuotaSeal {
    let key = store.config.records_key.quota_key();
    QuotaSeal::new(
        Some(key),
        store.config.cluster_id.as_str(),
        verified.identity.id.as_str(),
    )
}

/// A file in one of the folders.
enum Found<F> {
    Nothing,
    Trusted(F),
    /// What is wrong with it.
    Untrusted(String),
}

async fn read<F: QuotaFile>(
    store: &ExportStore,
    verified: &VerifiedRoot,
    folder: &FileRef,
    name: &Name,
    what: &str,
) -> Result<Found<F>, ExportError> {
    let doing = || format!("reading {what}");
    let text = name.to_string();
    Ok(
        match own_files::read(&store.nfs, &folder.handle, name, F::MAX_LEN, doing).await? {
            OwnFile::Nothing => Found::Nothing,
            OwnFile::Unusable(why) => Found::Untrusted(why),
            OwnFile::File(file) => match seal(store, verified).open::<F>(&text, &file.content) {
                Ok((file, SignatureStatus::Signed)) => Found::Trusted(file),
                Ok((_, SignatureStatus::Unsigned)) => Found::Untrusted("it is not signed".to_owned()),
                Ok((_, SignatureStatus::Forged)) => {
                    Found::Untrusted("it is not signed with the key of this cluster".to_owned())
                }
                Err(error) => Found::Untrusted(error.to_string()),
            },
        },
    )
}

/// Reads the heartbeat of the agent. Creates the folders if missing, so that the agent finds them.
pub(crate) async fn agent(store: &ExportStore, verified: &VerifiedRoot) -> Result<AgentState, ExportError> {
    let folders = folders(store, verified).await?;
    let name = layout::name(layout::QUOTA_AGENT)?;
    let found = read(
        store,
        verified,
        &folders.quota,
        &name,
        "the heartbeat of the quota agent",
    )
    .await?;
    Ok(match found {
        Found::Nothing => AgentState::Missing,
        Found::Untrusted(why) => AgentState::Untrusted(why),
        Found::Trusted(heartbeat) => AgentState::Heartbeat(heartbeat),
    })
}

/// Reads the usage that the agent wrote. `None` if there is none that can be believed.
pub(crate) async fn usage(store: &ExportStore, verified: &VerifiedRoot) -> Result<Option<Usage>, ExportError> {
    let folders = folders(store, verified).await?;
    let name = layout::name(layout::QUOTA_USAGE)?;
    let found = read(
        store,
        verified,
        &folders.quota,
        &name,
        "the usage that the quota agent wrote",
    )
    .await?;
    Ok(match found {
        Found::Trusted(usage) => Some(usage),
        Found::Nothing | Found::Untrusted(_) => None,
    })
}

/// Orders the limit of a volume or an archive, unless that order is on the export already.
pub(crate) async fn order(
    store: &ExportStore,
    verified: &VerifiedRoot,
    volume: &str,
    limit: VolumeLimit,
) -> Result<Ordered, ExportError> {
    let ReadRecord::Record(record, SignatureStatus::Signed) = records::read(store, verified, volume).await? else {
        return Ok(Ordered::Nothing(NoLimit::NoRecord));
    };
    let (directory, file_id) = match limited_directory(&record) {
        Ok(found) => found,
        Err(why) => return Ok(Ordered::Nothing(why)),
    };
    let target = Target {
        volume,
        directory,
        file_id,
        restores: record.restores.as_deref(),
    };
    let (order, is_new) = write(store, verified, &target, limit).await?;
    Ok(Ordered::Order {
        order,
        is_new,
        claim: record.claim,
    })
}

/// A volume that had no order when it was looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoOrder {
    /// Number of the last order that the agent knows of; 0 if it knows of none.
    generation: u64,
}

/// Looks for an order of a volume, and in the report about it for an earlier one, at the same time. Returns `None` if it has
/// an order.
pub(crate) async fn find_no_order(
    store: &ExportStore,
    verified: &VerifiedRoot,
    volume: &str,
) -> Result<Option<NoOrder>, ExportError> {
    let folders = folders(store, verified).await?;
    let (order, generation) = tokio::try_join!(
        read_order(store, verified, folders, volume),
        reported_generation(store, verified, folders, volume),
    )?;
    Ok(match order {
        Found::Nothing => Some(NoOrder { generation }),
        Found::Trusted(_) | Found::Untrusted(_) => None,
    })
}

/// Orders the limit of a directory that was provisioned just now, so that its record need not be read again.
pub(crate) async fn order_provisioned(
    store: &ExportStore,
    verified: &VerifiedRoot,
    request: &DirectoryRequest,
    provisioned: &ProvisionedDirectory,
    (limit, no_order): (VolumeLimit, Option<NoOrder>),
) -> Result<Ordered, ExportError> {
    if provisioned.shared {
        return Ok(Ordered::Nothing(NoLimit::Shared));
    }
    let target = Target {
        volume: &request.volume,
        directory: QuotaDirectory::of_volume(&provisioned.directory),
        file_id: provisioned.file_id,
        restores: request.restore.as_ref().map(|archive| archive.volume.as_str()),
    };
    let (order, is_new) = match no_order {
        Some(NoOrder { generation }) => (write_new(store, verified, &target, limit, generation).await?, true),
        None => write(store, verified, &target, limit).await?,
    };
    Ok(Ordered::Order {
        order,
        is_new,
        claim: request.claim.clone(),
    })
}

/// Orders the limit of a copy that is not complete yet, before data flows into it. Without a limit in force until then,
/// a copy of a source that grows could fill the server.
pub(crate) async fn order_staged(
    store: &ExportStore,
    verified: &VerifiedRoot,
    volume: &str,
    tree: &FileRef,
    limit: VolumeLimit,
) -> Result<LimitOrder, ExportError> {
    let directory = QuotaDirectory::of_staged(&store.config.cluster_id, volume);
    let directory = directory.map_err(|why| ExportError::NameUnusable {
        name: volume.to_owned(),
        why,
    })?;
    let target = Target {
        volume,
        directory,
        file_id: tree.attributes.fileid,
        restores: None,
    };
    write(store, verified, &target, limit).await.map(|(order, _)| order)
}

/// A directory to limit.
struct Target<'a> {
    volume: &'a str,
    directory: QuotaDirectory,
    file_id: u64,
    /// Volume whose archive became this directory.
    restores: Option<&'a str>,
}

impl Target<'_> {
    fn order(&self, limit: VolumeLimit, generation: u64) -> Order {
        Order {
            volume: self.volume.to_owned(),
            directory: self.directory.clone(),
            file_id: self.file_id,
            generation,
            bytes: limit.bytes,
            inodes: limit.inodes,
        }
    }

    /// Returns the order as it is on the export.
    fn on_export(&self, limit: VolumeLimit, generation: u64) -> LimitOrder {
        LimitOrder {
            generation,
            file_id: self.file_id,
            limit,
        }
    }
}

/// Returns the directory that a record is about and its fileid, if it exists and nothing is being done with it. Pure.
fn limited_directory(record: &Record) -> Result<(QuotaDirectory, u64), NoLimit> {
    if record.shared {
        return Err(NoLimit::Shared);
    }
    let file_id = record.file_id.ok_or(NoLimit::Changing)?;
    let directory = match &record.state {
        State::Live => QuotaDirectory::of_volume(&record.directory),
        State::Archived(archive) => QuotaDirectory::parse(&archive.target).map_err(|_| NoLimit::Changing)?,
        _ => return Err(NoLimit::Changing),
    };
    Ok((directory, file_id))
}

/// Writes an order, unless it is on the export already. Returns true with it if it was written.
async fn write(
    store: &ExportStore,
    verified: &VerifiedRoot,
    target: &Target<'_>,
    limit: VolumeLimit,
) -> Result<(LimitOrder, bool), ExportError> {
    let folders = folders(store, verified).await?;
    let former = match read_order(store, verified, folders, target.volume).await? {
        Found::Trusted(found) if found == target.order(limit, found.generation) => {
            // An earlier process may have ended before it.
            remove_restored(store, verified, folders, target).await?;
            return Ok((target.on_export(limit, found.generation), false));
        }
        Found::Trusted(found) => found.generation,
        // What the agent knows of a removed order is in its report.
        Found::Nothing | Found::Untrusted(_) => reported_generation(store, verified, folders, target.volume).await?,
    };
    Ok((write_new(store, verified, target, limit, former).await?, true))
}

/// Writes an order that replaces the one with a number.
async fn write_new(
    store: &ExportStore,
    verified: &VerifiedRoot,
    target: &Target<'_>,
    limit: VolumeLimit,
    former: u64,
) -> Result<LimitOrder, ExportError> {
    let volume = target.volume;
    let folders = folders(store, verified).await?;
    let (name, draft) = (layout::record(volume)?, layout::draft(volume)?);
    let generation = next_generation(former, store.unix_time());
    let content = seal(store, verified).seal(&target.order(limit, generation));
    let content = content.map_err(|error| unusable(volume, &error))?;
    store
        .for_write(verified)?
        .replace_file(&folders.orders.handle, &name, &draft, &content, 0o600)
        .await
        .context(|| format!("writing the quota order of volume {volume}"))?;
    remove_restored(store, verified, folders, target).await?;
    Ok(target.on_export(limit, generation))
}

async fn read_order(
    store: &ExportStore,
    verified: &VerifiedRoot,
    folders: &QuotaFolders,
    volume: &str,
) -> Result<Found<Order>, ExportError> {
    let name = layout::record(volume)?;
    let what = format!("the quota order of volume {volume}");
    read(store, verified, &folders.orders, &name, &what).await
}

/// Removes the order of an archive whose directory became that of a volume: two orders for one directory exclude each other.
/// The volume's order is there before: the agent then hands the project over, so the directory is never without a limit, and
/// its files are not visited again.
async fn remove_restored(
    store: &ExportStore,
    verified: &VerifiedRoot,
    folders: &QuotaFolders,
    target: &Target<'_>,
) -> Result<(), ExportError> {
    let Some(archive) = target.restores else {
        return Ok(());
    };
    let _lock = store.lock_volume(archive).await?;
    let name = layout::record(archive)?;
    let what = format!("the quota order of archive {archive}");
    match read::<Order>(store, verified, &folders.orders, &name, &what).await? {
        Found::Trusted(order) if order.file_id == target.file_id => remove(store, verified, archive).await,
        _ => Ok(()),
    }
}

/// Returns the number of the next order. It is not smaller than the time, so that a report about an order that was removed
/// long ago, and that somebody puts back, is not taken for one about this order. Pure.
fn next_generation(former: u64, now: i64) -> u64 {
    former.saturating_add(1).max(u64::try_from(now).unwrap_or_default())
}

fn unusable(volume: &str, error: &QuotaFileError) -> ExportError {
    ExportError::NameUnusable {
        name: volume.to_owned(),
        why: error.to_string(),
    }
}

async fn reported_generation(
    store: &ExportStore,
    verified: &VerifiedRoot,
    folders: &QuotaFolders,
    volume: &str,
) -> Result<u64, ExportError> {
    Ok(match read_report(store, verified, folders, volume).await? {
        Found::Trusted(report) => report.generation,
        Found::Nothing | Found::Untrusted(_) => 0,
    })
}

async fn read_report(
    store: &ExportStore,
    verified: &VerifiedRoot,
    folders: &QuotaFolders,
    volume: &str,
) -> Result<Found<Report>, ExportError> {
    let name = layout::record(volume)?;
    let what = format!("the quota report about volume {volume}");
    read(store, verified, &folders.reports, &name, &what).await
}

/// Returns what the agent reports about an order.
pub(crate) async fn report(
    store: &ExportStore,
    verified: &VerifiedRoot,
    volume: &str,
    order: &LimitOrder,
) -> Result<LimitReport, ExportError> {
    let folders = folders(store, verified).await?;
    Ok(match read_report(store, verified, folders, volume).await? {
        Found::Nothing => LimitReport::Unreported,
        Found::Untrusted(why) => LimitReport::Unusable(why),
        Found::Trusted(report) => judge(report, order),
    })
}

/// Compares a report with the order that it should be about. Pure.
fn judge(report: Report, order: &LimitOrder) -> LimitReport {
    match (report.generation, report.file_id) == (order.generation, order.file_id) {
        true => LimitReport::Reported(report.state),
        false => LimitReport::Unreported,
    }
}

/// Removes the order of a volume, if it exists. The agent then lifts the limit.
pub(crate) async fn remove(store: &ExportStore, verified: &VerifiedRoot, volume: &str) -> Result<(), ExportError> {
    let folders = folders(store, verified).await?;
    let doing = || format!("removing the quota order of volume {volume}");
    for name in [layout::record(volume)?, layout::draft(volume)?] {
        if let Some(node) = store.nfs.lookup(&folders.orders.handle, &name).await.context(doing)? {
            let nfs = store.for_write(verified)?;
            own_files::remove(nfs, &folders.orders.handle, &name, node.attributes.fileid, doing).await?;
        }
    }
    Ok(())
}

/// Removes an order that has no record, or with `withdraw` any order whose record is not that of another backend. Returns
/// true if it was removed.
pub(crate) async fn remove_stale(
    store: &ExportStore,
    verified: &VerifiedRoot,
    volume: &str,
    withdraw: bool,
) -> Result<bool, ExportError> {
    let is_stale = match records::read(store, verified, volume).await? {
        ReadRecord::Nothing => true,
        ReadRecord::Record(record, _) => withdraw && record.backend == store.config.backend,
        // Nobody knows whose it is.
        ReadRecord::Unreadable(_) => false,
    };
    if is_stale {
        remove(store, verified, volume).await?;
    }
    Ok(is_stale)
}

/// Returns the names of the volumes with an order that `leave_out` does not match, sorted.
pub(crate) async fn ordered_volumes(
    store: &ExportStore,
    verified: &VerifiedRoot,
    leave_out: &(dyn Fn(&str) -> bool + Send + Sync),
) -> Result<Vec<String>, ExportError> {
    let folders = folders(store, verified).await?;
    let volume_of = |name: Name| {
        let text = layout::drafted_volume(&name).or_else(|| std::str::from_utf8(name.as_bytes()).ok())?;
        (layout::record(text).is_ok() && !leave_out(text)).then(|| text.to_owned())
    };
    let orders = &folders.orders.handle;
    let mut volumes = readdir::select_names(store, orders, "the quota orders", MAX_ORDERS, |entry| {
        volume_of(entry.name)
    })
    .await?;
    volumes.sort_unstable();
    volumes.dedup();
    Ok(volumes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_counts_only_for_the_order_that_it_is_about() {
        let order = LimitOrder {
            generation: 7,
            file_id: 40,
            limit: VolumeLimit::default(),
        };
        let report = |generation, file_id| Report {
            volume: "pvc-1".to_owned(),
            file_id,
            generation,
            project: Some(1),
            state: LimitState::InForce,
            visit: Vec::new(),
        };
        for (generation, file_id, expected) in [
            (7, 40, LimitReport::Reported(LimitState::InForce)),
            (6, 40, LimitReport::Unreported),
            (8, 40, LimitReport::Unreported),
            (7, 41, LimitReport::Unreported),
        ] {
            assert_eq!(
                judge(report(generation, file_id), &order),
                expected,
                "{generation} {file_id}"
            );
        }
    }

    #[test]
    fn generations_grow_whatever_the_clock_shows() {
        assert_eq!(next_generation(0, 1_700_000_000), 1_700_000_000);
        assert_eq!(next_generation(1_700_000_000, 1_700_000_000), 1_700_000_001);
        assert_eq!(next_generation(1_800_000_000, 1_700_000_000), 1_800_000_001);
        assert_eq!(next_generation(5, -1), 6);
    }
}
