//! The beacon: a nonce in this cluster's folder that is renewed constantly (data-safety rule 17).
//!
//! The statuses of the backends know the nonce, and the next one before it is written. An export with another nonce was
//! rolled back to an earlier state, has another writer, or the API server was rolled back. The file also counts the probes
//! of its writer, so that others see whether that one still runs.
//!
//! All backends of this cluster on an export share its folder, and therefore one beacon.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::error::{ErrorContext as _, ExportError};
use crate::layout;
use crate::store::ExportStore;
use crate::verified_root::VerifiedRoot;
use nfs_client::{FileHandle, FileKind, FileRef, NfsError, Status};

/// Maximum size of the file, in bytes.
const MAX_LEN: usize = 1024;
/// The version of the format that this release writes, and the newest that it reads.
const VERSION: u32 = 1;
/// Length of a nonce in hexadecimal digits.
const NONCE_DIGITS: usize = 16;
/// Number of probe intervals of the last writer, and additional time, without a renewal after which it counts as stopped:
/// a probe may be late.
const MISSED: u32 = 3;
const SLACK: Duration = Duration::from_secs(3);
/// Longest probe interval that is believed. Any client may have written the file.
const MAX_INTERVAL: u64 = 600;

/// A nonce, with the number of nonces before it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Beacon {
    number: u64,
    nonce: String,
}

/// A text is not a beacon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a number, `-` and {NONCE_DIGITS} hexadecimal digits")]
pub struct NotABeacon;

impl Beacon {
    /// Creates the successor of a beacon.
    pub fn after(former: Option<&Self>) -> Self {
        Self {
            number: former.map_or(0, |former| former.number).saturating_add(1),
            nonce: format!("{:016x}", rand::random::<u64>()),
        }
    }
}

impl fmt::Display for Beacon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.number, self.nonce)
    }
}

impl From<Beacon> for String {
    fn from(beacon: Beacon) -> Self {
        beacon.to_string()
    }
}

impl TryFrom<String> for Beacon {
    type Error = NotABeacon;

    fn try_from(text: String) -> Result<Self, NotABeacon> {
        text.parse()
    }
}

impl FromStr for Beacon {
    type Err = NotABeacon;

    fn from_str(text: &str) -> Result<Self, NotABeacon> {
        let (number, nonce) = text.split_once('-').ok_or(NotABeacon)?;
        let is_digit = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f');
        if nonce.len() != NONCE_DIGITS || !nonce.bytes().all(is_digit) {
            return Err(NotABeacon);
        }
        Ok(Self {
            number: number.parse().map_err(|_| NotABeacon)?,
            nonce: nonce.to_owned(),
        })
    }
}

/// What the status of a backend knows about the beacon of an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownBeacon {
    /// Identity of the export.
    pub export_id: String,
    /// The beacon, or `None` if there was no file yet.
    pub current: Option<Beacon>,
    /// The beacon that may have been written since.
    pub next: Option<Beacon>,
}

impl KnownBeacon {
    /// Returns true if the status explains what was found.
    pub fn accepts(&self, found: Option<&Beacon>) -> bool {
        found == self.current.as_ref() || (found.is_some() && found == self.next.as_ref())
    }
}

/// Content of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct BeaconFile {
    version: u32,
    beacon: Beacon,
    /// Counter of the renewals by one process, from a random number. It changes with each, so that others see that the process
    /// runs, and the process itself sees that the file is the one that it wrote last.
    renewals: u64,
    /// Interval of the renewals.
    interval_seconds: u64,
}

impl BeaconFile {
    fn patience(&self) -> Duration {
        Duration::from_secs(self.interval_seconds.clamp(1, MAX_INTERVAL)) * MISSED + SLACK
    }
}

/// The beacons that this process wrote or verified, by export. Shared by the stores of all backends.
#[derive(Debug, Default)]
pub struct Beacons {
    by_export: Mutex<HashMap<String, Arc<tokio::sync::Mutex<BeaconState>>>>,
}

impl Beacons {
    fn of(&self, export_id: &str) -> Arc<tokio::sync::Mutex<BeaconState>> {
        let mut by_export = self.by_export.lock();
        Arc::clone(by_export.entry(export_id.to_owned()).or_default())
    }
}

/// What this process knows about the beacon of one export.
#[derive(Debug, Default)]
struct BeaconState {
    /// The beacon was verified: from now on, only this process may change it.
    verified: bool,
    current: Option<BeaconFile>,
    /// A file whose write has an unknown outcome.
    pending: Option<BeaconFile>,
    /// An administrator accepted an export with a damaged beacon, which is overwritten.
    overwrites: bool,
    /// The counter in the file that this process wrote last.
    renewals: Option<u64>,
    renewed_at: Option<Instant>,
    observed: Option<Observation>,
}

/// A beacon that nothing knows.
#[derive(Debug)]
struct Observation {
    file: BeaconFile,
    /// When it was found unchanged for the first time.
    since: Instant,
    /// Its writer has renewed it.
    renewed: bool,
}

/// What the caller of a check may do if it succeeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Read only. Another process may still change the beacon.
    Observer,
    /// Change the export. From now on, only this process may change the beacon.
    Writer,
}

/// Reason why a beacon is not accepted.
#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    /// It is not the known one.
    Mismatch(String),
    /// It is not known whether its writer still runs: it is, if it renews the beacon within this time.
    Observing(Duration),
}

impl BeaconState {
    /// Checks a beacon that was found, and expects exactly this one from now on.
    fn verify(
        &mut self,
        file: Option<&BeaconFile>,
        known: &[&KnownBeacon],
        accepted: bool,
        now: Instant,
    ) -> Result<(), Refusal> {
        self.check(file, known, accepted, now)?;
        self.verified = true;
        self.current = file.cloned();
        self.observed = None;
        Ok(())
    }

    /// Decides whether a beacon that was found is this cluster's. Pure, apart from what it remembers of an unknown one.
    fn check(
        &mut self,
        file: Option<&BeaconFile>,
        known: &[&KnownBeacon],
        accepted: bool,
        now: Instant,
    ) -> Result<(), Refusal> {
        let found = file.map(|file| &file.beacon);
        let pending = file.is_some() && file == self.pending.as_ref();
        let expected = match (accepted, self.verified, known) {
            // The administrator accepts the export as it is.
            (true, ..) => true,
            (false, true, _) => file == self.current.as_ref() || pending,
            (false, false, []) => match file {
                None => true,
                Some(file) => return self.observe(file, now),
            },
            (false, false, known) => known.iter().any(|known| known.accepts(found)),
        };
        if !expected {
            return Err(Refusal::Mismatch(self.describe(found, known)));
        }
        Ok(())
    }

    fn beacon(&self) -> Option<&Beacon> {
        self.current.as_ref().map(|file| &file.beacon)
    }

    /// Waits until the writer of an unknown beacon missed its renewals.
    fn observe(&mut self, file: &BeaconFile, now: Instant) -> Result<(), Refusal> {
        let patience = file.patience();
        let former = self.observed.take();
        let unchanged = former.as_ref().filter(|former| former.file == *file);
        if unchanged.is_some_and(|former| now.saturating_duration_since(former.since) >= patience) {
            self.observed = former;
            return Ok(());
        }
        let renewed = former
            .as_ref()
            .is_some_and(|former| former.renewed || former.file != *file);
        self.observed = Some(Observation {
            file: file.clone(),
            since: unchanged.map_or(now, |former| former.since),
            renewed,
        });
        Err(match renewed {
            true => Refusal::Mismatch("another process renews it: it works in the folder of this cluster".to_owned()),
            false => Refusal::Observing(patience),
        })
    }

    /// Returns how a beacon differs from the known ones.
    fn describe(&self, found: Option<&Beacon>, known: &[&KnownBeacon]) -> String {
        let own = self.beacon().filter(|_| self.verified);
        let by_status = || known.iter().flat_map(|known| [&known.current, &known.next]).flatten();
        let newest = own.or_else(|| by_status().max_by_key(|beacon| beacon.number));
        match (found, newest) {
            (None, _) => {
                "it does not exist: the export was rolled back to an earlier state, or the file was removed".into()
            }
            (Some(found), Some(newest)) if found.number < newest.number => {
                format!("it is {found}, older than {newest}: the export was rolled back to an earlier state")
            }
            (Some(found), Some(newest)) if !self.verified && found.number > newest.number => format!(
                "it is {found}, newer than {newest}: etcd was restored from a backup, or another process works in the folder of \
                 this cluster"
            ),
            (Some(found), Some(newest)) if found == newest => format!(
                "it is {found}, but not as this process renewed it last: the export was rolled back to an earlier state, or \
                 another process works in the folder of this cluster"
            ),
            (Some(found), Some(newest)) => {
                format!("it is {found} instead of {newest}: another process works in the folder of this cluster")
            }
            (Some(found), None) => format!("it is {found}, which this cluster did not write"),
        }
    }
}

/// Checks the beacon of an export, which is in the folder of this `cluster` if there is one, unless the caller does not use
/// beacons.
pub(crate) async fn check(
    store: &ExportStore,
    cluster: Option<&FileRef>,
    export_id: &str,
    known: Option<&[KnownBeacon]>,
    accepted: bool,
    access: Access,
) -> Result<(), ExportError> {
    let Some(known) = known else { return Ok(()) };
    let state = store.beacons.of(export_id);
    let mut state = state.lock().await;
    let file = match cluster.filter(|cluster| cluster.attributes.kind == FileKind::Directory) {
        Some(folder) => read(store, &folder.handle, export_id).await,
        None => Ok(None),
    };
    let file = match file {
        Err(ExportError::BeaconMismatch { .. }) if accepted || state.overwrites => {
            state.overwrites |= access == Access::Writer;
            None
        }
        file => file?,
    };
    let known: Vec<&KnownBeacon> = known.iter().filter(|known| known.export_id == export_id).collect();
    let (file, now) = (file.as_ref(), Instant::now());
    let checked = match access {
        Access::Observer => state.check(file, &known, accepted, now),
        Access::Writer => state.verify(file, &known, accepted, now),
    };
    checked.map_err(|refusal| refused(refusal, export_id))
}

fn refused(refusal: Refusal, export_id: &str) -> ExportError {
    let export_id = export_id.to_owned();
    match refusal {
        Refusal::Mismatch(why) => ExportError::BeaconMismatch { export_id, why },
        Refusal::Observing(patience) => ExportError::BeaconObserved {
            export_id,
            seconds: patience.as_secs(),
        },
    }
}

/// Returns true if the folder of this cluster has a beacon, whichever it is.
///
/// # Errors
/// It cannot be read.
pub(crate) async fn exists(store: &ExportStore, cluster: &FileRef, export_id: &str) -> Result<bool, ExportError> {
    if cluster.attributes.kind != FileKind::Directory {
        return Ok(false);
    }
    match read(store, &cluster.handle, export_id).await {
        Ok(file) => Ok(file.is_some()),
        Err(ExportError::BeaconMismatch { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns the beacon that was verified last.
pub(crate) async fn current(store: &ExportStore, export_id: &str) -> Option<Beacon> {
    let state = store.beacons.of(export_id);
    let state = state.lock().await;
    state.beacon().filter(|_| state.verified).cloned()
}

/// Returns true if the write of this beacon failed and may have been executed nevertheless.
pub(crate) async fn is_pending(store: &ExportStore, export_id: &str, beacon: &Beacon) -> bool {
    let state = store.beacons.of(export_id);
    let state = state.lock().await;
    state.pending.as_ref().is_some_and(|pending| pending.beacon == *beacon)
}

/// Renews the file, with `next` as the beacon if it is set. Without it, the file is written at most twice per `interval`.
///
/// # Errors
/// Another process changed the beacon, or the file cannot be written.
pub(crate) async fn renew(
    store: &ExportStore,
    verified: &VerifiedRoot,
    next: Option<&Beacon>,
    interval: Duration,
) -> Result<(), ExportError> {
    let export_id = &verified.identity.id;
    let state = store.beacons.of(export_id);
    let mut state = state.lock().await;
    // Another backend on the export may have failed to write it a moment ago.
    store.wait_for_unanswered_changes().await;
    let next = next.filter(|next| Some(*next) != state.beacon());
    let recent = state.renewed_at.is_some_and(|renewed| renewed.elapsed() < interval / 2);
    let Some(beacon) = next.or(state.beacon()).cloned() else {
        return Ok(());
    };
    if next.is_none() && recent {
        return Ok(());
    }
    let folder = &verified.cluster.handle;
    if !state.overwrites {
        let file = read(store, folder, export_id).await?;
        let checked = state.verify(file.as_ref(), &[], false, Instant::now());
        checked.map_err(|refusal| refused(refusal, export_id))?;
    }
    let first = || u64::from(rand::random::<u32>());
    let renewals = state.renewals.map_or_else(first, |last| last.wrapping_add(1));
    state.renewals = Some(renewals);
    let file = BeaconFile {
        version: VERSION,
        beacon,
        renewals,
        interval_seconds: interval.as_secs().max(1),
    };
    state.pending = Some(file.clone());
    let content = serde_json::to_vec(&file).map_err(|error| damaged(export_id, &error.to_string()))?;
    let (name, draft) = (
        layout::name(layout::BEACON)?,
        layout::beacon_draft(&store.config.backend_uid)?,
    );
    let written = store
        .for_write(verified)?
        .replace_file(folder, &name, &draft, &content, 0o600)
        .await;
    written.context(|| "writing the beacon".to_owned())?;
    state.current = Some(file);
    state.pending = None;
    state.overwrites = false;
    state.renewed_at = Some(Instant::now());
    Ok(())
}

async fn read(store: &ExportStore, folder: &FileHandle, export_id: &str) -> Result<Option<BeaconFile>, ExportError> {
    let damaged = |why: String| damaged(export_id, &why);
    let content = match store
        .nfs
        .read_file(folder, &layout::name(layout::BEACON)?, MAX_LEN)
        .await
    {
        Ok(None) => return Ok(None),
        Ok(Some(file)) => file.content,
        Err(NfsError::Limit { .. }) => return Err(damaged(format!("it has more than {MAX_LEN} bytes"))),
        Err(error) => match error.status() {
            Some(Status::Symlink | Status::IsDirectory | Status::Invalid) => {
                return Err(damaged("it is not a regular file".to_owned()));
            }
            _ => return Err(error).context(|| "reading the beacon".to_owned()),
        },
    };
    let file: BeaconFile = serde_json::from_slice(&content).map_err(|error| damaged(error.to_string()))?;
    if file.version > VERSION {
        return Err(damaged(format!(
            "it has version {}, newer than this release reads",
            file.version
        )));
    }
    Ok(Some(file))
}

fn damaged(export_id: &str, why: &str) -> ExportError {
    ExportError::BeaconMismatch {
        export_id: export_id.to_owned(),
        why: format!("the file is damaged: {why}"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn beacon(number: u64) -> Beacon {
        format!("{number}-{number:016x}").parse().unwrap()
    }

    fn file(number: u64, renewals: u64) -> BeaconFile {
        BeaconFile {
            version: VERSION,
            beacon: beacon(number),
            renewals,
            interval_seconds: 10,
        }
    }

    fn known(current: Option<u64>, next: Option<u64>) -> KnownBeacon {
        KnownBeacon {
            export_id: "export".to_owned(),
            current: current.map(beacon),
            next: next.map(beacon),
        }
    }

    fn check(state: &mut BeaconState, found: Option<u64>, known: &[KnownBeacon]) -> Result<(), String> {
        let known: Vec<&KnownBeacon> = known.iter().collect();
        let found = found.map(|number| file(number, 1));
        match state.verify(found.as_ref(), &known, false, Instant::now()) {
            Ok(()) => Ok(()),
            Err(Refusal::Mismatch(why)) => Err(why),
            Err(Refusal::Observing(_)) => Err("observing".to_owned()),
        }
    }

    #[test]
    fn a_beacon_is_written_and_read_as_text_and_its_successor_has_the_next_number() {
        let first = Beacon::after(None);
        assert_eq!(first.to_string().parse(), Ok(first.clone()));
        let second = Beacon::after(Some(&first));
        assert!(second.to_string().starts_with("2-") && second != Beacon::after(Some(&first)));
        for text in [
            "",
            "1",
            "1-",
            "1-abc",
            "x-0000000000000001",
            "1-000000000000000G",
            "1-0000000000000001 ",
        ] {
            assert_eq!(text.parse::<Beacon>(), Err(NotABeacon), "{text:?}");
        }
    }

    #[test]
    fn a_process_that_ended_at_any_step_of_a_renewal_is_recognized_as_the_own_one() {
        // The status has the next beacon before the file does.
        for (found, statuses) in [
            (None, vec![known(None, Some(1))]),
            (Some(1), vec![known(None, Some(1))]),
            (Some(1), vec![known(Some(1), Some(2))]),
            (Some(2), vec![known(Some(1), Some(2))]),
            // The status of another backend on the export is older.
            (Some(5), vec![known(Some(1), Some(2)), known(Some(4), Some(5))]),
            // A new backend, or an upgrade.
            (None, vec![]),
        ] {
            let mut state = BeaconState::default();
            assert_eq!(check(&mut state, found, &statuses), Ok(()), "{found:?} {statuses:?}");
            assert_eq!(state.beacon(), found.map(beacon).as_ref());
        }
    }

    #[test]
    fn a_rolled_back_export_a_restored_etcd_and_another_writer_are_told_apart() {
        let statuses = [known(Some(4), Some(5))];
        for (found, why) in [
            (Some(3), "the export was rolled back"),
            (Some(6), "etcd was restored from a backup"),
            (None, "it does not exist"),
        ] {
            let mut state = BeaconState::default();
            let refused = check(&mut state, found, &statuses).unwrap_err();
            assert!(refused.contains(why), "{found:?}: {refused}");
            assert!(check(&mut state, found, &statuses).is_err(), "it stays refused");
            let accepted = state.verify(found.map(|number| file(number, 1)).as_ref(), &[], true, Instant::now());
            assert_eq!(accepted, Ok(()));
            assert_eq!(
                check(&mut state, found, &statuses),
                Ok(()),
                "an administrator accepted it"
            );
        }
        let mut state = BeaconState::default();
        check(&mut state, Some(4), &statuses).unwrap();
        let refused = check(&mut state, Some(5), &statuses).unwrap_err();
        assert!(
            refused.contains("another process"),
            "this process did not write it: {refused}"
        );
        state.pending = Some(file(5, 1));
        assert_eq!(
            check(&mut state, Some(5), &statuses),
            Ok(()),
            "the reply to its write was lost"
        );
    }

    #[test]
    fn a_running_process_recognizes_every_renewal_that_is_not_its_last_one() {
        let mut state = BeaconState::default();
        let mut at = |renewals: u64| {
            state.verify(
                Some(&file(4, renewals)),
                &[&known(Some(4), None)],
                false,
                Instant::now(),
            )
        };
        assert_eq!(at(7), Ok(()), "a new process knows only the beacon");
        assert_eq!(at(7), Ok(()));
        for renewals in [6, 8] {
            let refused = at(renewals);
            assert!(
                matches!(&refused, Err(Refusal::Mismatch(why)) if why.contains("rolled back") && why.contains("another process")),
                "{renewals}: {refused:?}"
            );
        }
        assert_eq!(at(7), Ok(()));
    }

    #[test]
    fn an_unknown_beacon_is_taken_over_only_if_nothing_renews_it() {
        let (mut state, start) = (BeaconState::default(), Instant::now());
        let mut at = |seconds: u64, found: &BeaconFile| {
            state.check(Some(found), &[], false, start + Duration::from_secs(seconds))
        };
        let patience = file(3, 1).patience();
        assert_eq!(at(0, &file(3, 1)), Err(Refusal::Observing(patience)));
        assert_eq!(
            at(patience.as_secs() - 1, &file(3, 1)),
            Err(Refusal::Observing(patience))
        );
        for (seconds, renewals) in [(50, 2), (60, 2), (70, 3), (69 + patience.as_secs(), 3)] {
            let refused = at(seconds, &file(3, renewals));
            assert!(
                matches!(&refused, Err(Refusal::Mismatch(why)) if why.contains("another process")),
                "its time begins again with each renewal: {refused:?}"
            );
        }
        assert_eq!(at(70 + patience.as_secs(), &file(3, 3)), Ok(()));
        assert!(!state.verified, "an observer does not take it over");
        let since = start + Duration::from_secs(70 + patience.as_secs());
        assert_eq!(state.verify(Some(&file(3, 3)), &[], false, since), Ok(()));
        assert!(state.verified);
        let forever = BeaconFile {
            interval_seconds: u64::MAX,
            ..file(3, 1)
        };
        assert!(
            forever.patience() < Duration::from_secs(3600),
            "any client may have written it"
        );
    }
}
