//! Background copies. Each is identified by the UID of the claim, or of the archive object, that requested it.
//!
//! A limited number of copies runs concurrently ([`slots`]). The duration of a copy depends on the amount of data, so a
//! copy does not block a reconciler: the reconciler starts the copy, reads its progress, and is woken when the copy
//! ends. The state is in memory only; after a restart, the copy starts again.

pub(crate) mod destination;
pub(crate) mod job;
pub(crate) mod slots;
pub(crate) mod source;

use std::collections::HashMap;
use std::fmt::{self, Display};
use std::future::Future;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::api::conditions::{PlannedCondition, Reason};
use crate::state::copy_jobs::slots::CopySlots;
pub use crate::state::copy_jobs::slots::{CopyBackend, SlotRequest};
use export_store::{CopyError, CopyLimits, CopyProgress, CopyProgressSnapshot, ProvisionedDirectory};

/// Identification of a copy, and the labels of its metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyLabels {
    /// UID of the claim or of the archive object.
    pub uid: String,
    /// Namespace of the claim.
    pub namespace: String,
    /// Name of the claim; for an archive, name of the claim that is copied.
    pub claim: String,
    /// Name of the archive; empty for a claim.
    pub archive: String,
}

/// Result of a successful copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopyResult {
    /// Directory of a claim's volume.
    Directory(ProvisionedDirectory),
    /// Archive; its record has the details.
    Archive,
}

/// Result of a copy, and the amount of data copied.
pub type CopyOutcome = (Result<CopyResult, CopyError>, CopyProgressSnapshot);

/// Progress of a copy.
#[derive(Debug)]
pub enum Progress {
    /// No copy: this process did not start one, or it ended.
    None,
    /// Waiting for other copies.
    Waiting,
    /// In progress.
    Copying(CopyProgressSnapshot),
}

impl Progress {
    /// Returns the condition to report while data is copied from `source`, or `None` if there is no copy.
    pub fn condition(&self, source: impl Display) -> Option<PlannedCondition> {
        let message = match self {
            Self::None => return None,
            Self::Waiting => format!("copying {source}: other copies go first"),
            Self::Copying(copied) => format!("copying {source}: {}", copied.progress()),
        };
        Some(PlannedCondition::fails(Reason::Copying, message))
    }
}

enum State {
    /// With the copy, until its task has it.
    Waiting(Option<WaitingCopy>),
    /// With the task that copies.
    Copying(JoinHandle<()>),
    Ended(Box<Result<CopyResult, CopyError>>),
}

/// Creates the future that copies.
type StartCopy = dyn FnOnce(CopyLimits, Arc<CopyProgress>) -> BoxFuture<'static, Result<CopyResult, CopyError>> + Send;

/// The request of a copy without a slot. The future that copies is created once it has one: any number of copies can wait,
/// and the future is many times larger than the request.
struct WaitingCopy {
    copy: Box<StartCopy>,
    on_end: Box<dyn FnOnce() + Send>,
}

struct Job {
    /// Distinguishes it from an aborted copy with the same UID.
    id: u64,
    labels: CopyLabels,
    progress: Arc<CopyProgress>,
    state: State,
}

/// The slot of a copy in progress, until this is dropped.
struct RunningSlot {
    jobs: CopyJobs,
    id: u64,
}

impl Drop for RunningSlot {
    fn drop(&mut self) {
        self.jobs.0.table.lock().slots.remove(self.id);
        self.jobs.start_waiting();
    }
}

/// All copies of this process.
#[derive(Clone, Default)]
pub struct CopyJobs(Arc<Inner>);

#[derive(Default)]
struct Inner {
    table: Mutex<Table>,
    limits: CopyLimits,
}

#[derive(Default)]
struct Table {
    /// By UID.
    jobs: HashMap<String, Job>,
    /// By UID: the backends that refused the copies of a claim so far, while it tries others.
    refusals: HashMap<String, Vec<(String, PlannedCondition)>>,
    slots: CopySlots,
    last_id: u64,
    /// What the copies that ended, by success or not, have copied: those to volumes, and backups.
    copied: [CopiedTotals; 2],
}

/// Bytes of content of copies that ended.
#[derive(Debug, Default, Clone, Copy)]
struct CopiedTotals {
    copied: u64,
    reused: u64,
}

impl CopiedTotals {
    /// Adds what a copy has copied when its task ends, to the totals of its kind.
    fn add([volumes, backups]: &mut [Self; 2], labels: &CopyLabels, progress: &CopyProgress) {
        let copied = progress.snapshot();
        let totals = if labels.archive.is_empty() { volumes } else { backups };
        // What an interrupted copy copied counted when it ended.
        let taken_over = copied.reused_bytes.saturating_add(copied.resumed_bytes);
        totals.copied = totals.copied.saturating_add(copied.bytes.saturating_sub(taken_over));
        totals.reused = totals.reused.saturating_add(copied.reused_bytes);
    }
}

impl CopyJobs {
    /// Starts a copy unless one exists for the UID, as soon as it gets a slot. Calls `on_end` when the copy ends.
    pub fn start<F>(
        &self,
        labels: CopyLabels,
        request: SlotRequest,
        copy: impl FnOnce(CopyLimits, Arc<CopyProgress>) -> F + Send + 'static,
        on_end: impl FnOnce() + Send + 'static,
    ) where
        F: Future<Output = Result<CopyResult, CopyError>> + Send + 'static,
    {
        let mut table = self.0.table.lock();
        if table.jobs.contains_key(&labels.uid) {
            return;
        }
        table.last_id += 1;
        let id = table.last_id;
        let may_start = table.slots.add(id, request);
        let waiting = WaitingCopy {
            copy: Box::new(|limits, progress| copy(limits, progress).boxed()),
            on_end: Box::new(on_end),
        };
        table.jobs.insert(
            labels.uid.clone(),
            Job {
                id,
                labels,
                progress: Arc::default(),
                state: State::Waiting(Some(waiting)),
            },
        );
        drop(table);
        if may_start {
            self.start_waiting();
        }
    }

    /// Starts the copies for which there are slots.
    fn start_waiting(&self) {
        loop {
            let (id, start) = {
                let mut table = self.0.table.lock();
                let Some(id) = table.slots.start_next() else { return };
                let job = table.jobs.values_mut().find(|job| job.id == id);
                (id, job.and_then(|job| self.spawn(job)))
            };
            let slot = RunningSlot { jobs: self.clone(), id };
            // The task of an aborted copy does not receive its slot, which is then free again.
            drop(start.map(|start| start.send(slot)));
        }
    }

    /// Spawns the task of a waiting copy, and returns the sender that starts it. Until then, the task does nothing, so that
    /// it cannot end before its job has it.
    fn spawn(&self, job: &mut Job) -> Option<oneshot::Sender<RunningSlot>> {
        let State::Waiting(waiting) = &mut job.state else {
            return None;
        };
        let WaitingCopy { copy, on_end } = waiting.take()?;
        let (start, started) = oneshot::channel();
        let (copies, uid) = (self.clone(), job.labels.uid.clone());
        let progress = Arc::clone(&job.progress);
        job.state = State::Copying(tokio::spawn(async move {
            // An aborted copy never starts.
            let Ok(slot) = started.await else { return };
            let result = copy(copies.0.limits.clone(), progress).await;
            copies.end(&uid, slot, result);
            on_end();
        }));
        Some(start)
    }

    /// Saves the result of a copy.
    fn end(&self, uid: &str, slot: RunningSlot, result: Result<CopyResult, CopyError>) {
        let mut table = self.0.table.lock();
        let Table { jobs, copied, .. } = &mut *table;
        if let Some(job) = jobs.get_mut(uid).filter(|job| job.id == slot.id) {
            job.state = State::Ended(Box::new(result));
            CopiedTotals::add(copied, &job.labels, &job.progress);
        }
        drop(table);
        drop(slot);
    }

    /// Returns and forgets the backends that refused copies for the UID.
    pub fn take_refusals(&self, uid: &str) -> Vec<(String, PlannedCondition)> {
        self.0.table.lock().refusals.remove(uid).unwrap_or_default()
    }

    /// Keeps the backends that refused copies for the UID until the next attempt.
    pub fn keep_refusals(&self, uid: String, refusals: Vec<(String, PlannedCondition)>) {
        if !refusals.is_empty() {
            self.0.table.lock().refusals.insert(uid, refusals);
        }
    }

    /// Returns true if the copy with this UID is queued or running, or has a result that was not taken.
    pub fn exists(&self, uid: &str) -> bool {
        self.0.table.lock().jobs.contains_key(uid)
    }

    /// Returns the progress of the copy with this UID.
    pub fn progress(&self, uid: &str) -> Progress {
        match self.0.table.lock().jobs.get(uid) {
            None => Progress::None,
            Some(job) => match job.state {
                State::Waiting(_) => Progress::Waiting,
                State::Copying(_) => Progress::Copying(job.progress.snapshot()),
                State::Ended(_) => Progress::None,
            },
        }
    }

    /// Removes and returns the result of the copy with this UID, or `None` if it has not ended.
    pub fn take_result(&self, uid: &str) -> Option<CopyOutcome> {
        let jobs = &mut self.0.table.lock().jobs;
        let job = jobs.remove(uid)?;
        match job.state {
            State::Ended(result) => Some((*result, job.progress.snapshot())),
            state => {
                jobs.insert(uid.to_owned(), Job { state, ..job });
                None
            }
        }
    }

    /// Aborts the copy with this UID. Garbage collection removes the partial data.
    pub fn abort(&self, uid: &str) {
        if let Some(task) = self.remove(uid) {
            task.abort();
        }
    }

    /// Aborts the copy with this UID, and waits until its task has ended.
    pub async fn abort_and_wait(&self, uid: &str) {
        if let Some(task) = self.remove(uid) {
            task.abort();
            // The result of an aborted copy is not needed.
            let _ = task.await;
        }
    }

    /// Removes a copy, and returns its task if it is in progress. It then keeps its slot until its task has ended.
    fn remove(&self, uid: &str) -> Option<JoinHandle<()>> {
        let mut table = self.0.table.lock();
        table.refusals.remove(uid);
        let job = table.jobs.remove(uid)?;
        match job.state {
            State::Copying(task) => {
                CopiedTotals::add(&mut table.copied, &job.labels, &job.progress);
                Some(task)
            }
            State::Waiting(_) => {
                table.slots.remove(job.id);
                None
            }
            State::Ended(_) => None,
        }
    }
}

impl fmt::Debug for CopyJobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CopyJobs")
    }
}

/// Metric of a copy: name after `nfs_operator_copy_`, help text and value.
type CopyMetric = (&'static str, &'static str, fn(&CopyProgressSnapshot) -> u64);
const METRICS: [CopyMetric; 4] = [
    ("files", "Files of a copy that are done", |copied| copied.files),
    (
        "files_expected",
        "Files that there are to copy, as far as they were counted",
        |copied| copied.of_files,
    ),
    ("bytes", "Bytes of a copy that are done", |copied| copied.bytes),
    (
        "bytes_expected",
        "Bytes that there are to copy, as far as they were counted",
        |copied| copied.of_bytes,
    ),
];

/// Counter of all copies that ended: name without `_total`, help text and value.
type TotalMetric = (&'static str, &'static str, fn(&CopiedTotals) -> u64);
const TOTALS: [TotalMetric; 2] = [
    (
        "nfs_operator_copied_bytes",
        "Bytes that copies to volumes (volume) and backups (backup) have copied, counted when each ends, also if it failed",
        |totals| totals.copied,
    ),
    (
        "nfs_operator_reused_bytes",
        "Bytes of unchanged files that backups have from the previous backup; what they take over from an interrupted attempt counts in neither metric",
        |totals| totals.reused,
    ),
];

impl Collector for CopyJobs {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let copies: Vec<(CopyLabels, CopyProgressSnapshot)> = self
            .0
            .table
            .lock()
            .jobs
            .values()
            // Any number of copies can wait.
            .filter(|job| matches!(job.state, State::Copying(_)))
            .map(|job| (job.labels.clone(), job.progress.snapshot()))
            .collect();
        for (name, help, value) in METRICS {
            let name = format!("nfs_operator_copy_{name}");
            let mut family = encoder.encode_descriptor(&name, help, None, MetricType::Gauge)?;
            for (copy, copied) in &copies {
                let labels = [
                    ("claim_namespace", copy.namespace.clone()),
                    ("claim", copy.claim.clone()),
                    ("archive", copy.archive.clone()),
                ];
                let value = i64::try_from(value(copied)).unwrap_or(i64::MAX);
                ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
            }
        }
        let [volumes, backups] = self.0.table.lock().copied;
        for (name, help, value) in TOTALS {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (kind, totals) in [("volume", volumes), ("backup", backups)] {
                ConstCounter::new(value(&totals)).encode(family.encode_family(&[("to", kind)])?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use tokio::sync::{Notify, oneshot};

    use super::*;
    use crate::state::copy_jobs::slots::CopyBackend;
    use export_store::MAX_COPIES;

    fn labels(uid: &str) -> CopyLabels {
        CopyLabels {
            uid: uid.to_owned(),
            namespace: "team".to_owned(),
            claim: uid.to_owned(),
            archive: String::new(),
        }
    }

    /// Returns the request of a copy that only the number of slots limits: it shares neither namespace nor backend with
    /// others, and every other one is of an administrator.
    fn request(number: usize) -> SlotRequest {
        SlotRequest {
            namespace: format!("team-{number}"),
            backends: ["from", "to"].map(|end| CopyBackend {
                name: format!("{end}-{number}"),
                max_copies: MAX_COPIES,
            }),
            is_of_administrator: number.is_multiple_of(2),
        }
    }

    #[tokio::test]
    async fn copies_above_the_limit_wait_and_each_end_is_reported_once() {
        let copies = CopyJobs::default();
        let may_end = Arc::new(Notify::new());
        let mut ends = Vec::new();
        for number in 0..=MAX_COPIES {
            let (ended, end) = oneshot::channel();
            ends.push(end);
            let may_end = Arc::clone(&may_end);
            let copy = move |_: CopyLimits, _: Arc<CopyProgress>| async move {
                may_end.notified().await;
                Err(CopyError::ExportChanged)
            };
            copies.start(labels(&number.to_string()), request(number), copy, move || {
                ended.send(()).unwrap()
            });
        }
        tokio::task::yield_now().await;
        let waiting = |copies: &CopyJobs| {
            let waits = |number: &usize| matches!(copies.progress(&number.to_string()), Progress::Waiting);
            (0..=MAX_COPIES).filter(waits).count()
        };
        assert_eq!(waiting(&copies), 1);
        for end in ends {
            may_end.notify_one();
            end.await.unwrap();
        }
        assert!(copies.take_result("0").is_some());
        assert!(copies.take_result("0").is_none());
    }

    #[tokio::test]
    async fn only_running_copies_have_metrics() {
        let copies = CopyJobs::default();
        for number in 0..2 * MAX_COPIES {
            let copy = |_: CopyLimits, _: Arc<CopyProgress>| std::future::pending();
            copies.start(labels(&number.to_string()), request(number), copy, || ());
        }
        let mut registry = prometheus_client::registry::Registry::default();
        registry.register_collector(Box::new(copies));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let series = text.lines().filter(|line| line.starts_with("nfs_operator_copy_"));
        assert_eq!(series.count(), MAX_COPIES * METRICS.len(), "{text}");
    }

    #[tokio::test]
    async fn what_copies_have_copied_is_counted_once_they_ended_or_were_aborted() {
        let copies = CopyJobs::default();
        let backup = CopyLabels {
            archive: "nightly".to_owned(),
            ..labels("backup")
        };
        let (ended, end) = oneshot::channel();
        let copy = |_: CopyLimits, _: Arc<CopyProgress>| async { Err(CopyError::ExportChanged) };
        copies.start(backup.clone(), request(0), copy, move || ended.send(()).unwrap());
        end.await.unwrap();
        let pending = |_: CopyLimits, _: Arc<CopyProgress>| std::future::pending();
        copies.start(labels("clone"), request(2), pending, || ());
        let progress = |copied: u64, reused: u64| CopyProgress::of_bytes(copied, reused);
        let mut table = copies.0.table.lock();
        table.jobs.get_mut("clone").unwrap().progress = Arc::new(progress(7, 0));
        CopiedTotals::add(&mut table.copied, &backup, &progress(100, 40));
        drop(table);
        copies.abort("clone");
        let totals = copies
            .0
            .table
            .lock()
            .copied
            .map(|totals| (totals.copied, totals.reused));
        assert_eq!(totals, [(7, 0), (60, 40)]);
    }

    #[tokio::test]
    async fn an_aborted_copy_releases_its_slot() {
        let copies = CopyJobs::default();
        for number in 0..MAX_COPIES {
            let copy = |_: CopyLimits, _: Arc<CopyProgress>| std::future::pending();
            copies.start(labels(&number.to_string()), request(number), copy, || ());
        }
        let (ended, end) = oneshot::channel();
        let copy = |_: CopyLimits, _: Arc<CopyProgress>| async { Err(CopyError::ExportChanged) };
        copies.start(labels("next"), request(MAX_COPIES), copy, move || {
            ended.send(()).unwrap()
        });
        copies.abort("0");
        end.await.unwrap();
        assert!(copies.take_result("next").is_some());
        assert!(matches!(copies.progress("0"), Progress::None));
    }

    #[test]
    fn only_a_queued_or_running_copy_has_a_condition() {
        let source = "claim team/data";
        assert_eq!(Progress::None.condition(source), None);
        let waiting = Progress::Waiting.condition(source).unwrap();
        assert_eq!(waiting.message, "copying claim team/data: other copies go first");
        let running = Progress::Copying(CopyProgressSnapshot::default())
            .condition(source)
            .unwrap();
        assert_eq!((running.status, running.reason), (Some(false), Reason::Copying));
        assert!(
            running.message.starts_with("copying claim team/data: 0 files"),
            "{running:?}"
        );
    }
}
