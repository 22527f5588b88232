//! Background copies. Each is identified by the UID of the claim, or of the archive object, that requested it.
//!
//! A limited number of copies runs concurrently. The duration of a copy depends on the amount of data, so a copy does
//! not block a reconciler: the reconciler starts the copy, reads its progress, and is woken when the copy ends. The
//! state is in memory only; after a restart, the copy starts again.

pub(crate) mod job;
pub(crate) mod source;

use std::collections::HashMap;
use std::fmt::{self, Display};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::api::conditions::{PlannedCondition, Reason};
use export_store::{CopyError, CopyLimits, CopyProgress, CopyProgressSnapshot, ProvisionedDirectory};

/// Maximum number of concurrent copies. They share the memory and the calls of one budget.
const AT_A_TIME: usize = 4;

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
            Self::Copying(tally) => format!("copying {source}: {}", tally.progress()),
        };
        Some(PlannedCondition::fails(Reason::Copying, message))
    }
}

enum State {
    Waiting,
    Copying,
    Ended(Box<Result<CopyResult, CopyError>>),
}

struct Job {
    of: CopyLabels,
    tally: Arc<CopyProgress>,
    state: State,
    task: JoinHandle<()>,
}

/// All copies of this process.
#[derive(Clone, Default)]
pub struct CopyJobs(Arc<Inner>);

struct Inner {
    jobs: Mutex<HashMap<String, Job>>,
    places: Arc<Semaphore>,
    budget: CopyLimits,
}

impl Default for Inner {
    fn default() -> Self {
        Self {
            jobs: Mutex::default(),
            places: Arc::new(Semaphore::new(AT_A_TIME)),
            budget: CopyLimits::default(),
        }
    }
}

impl CopyJobs {
    /// Starts a copy unless one exists for the UID. Calls `ended` when the copy ends.
    pub fn start<F>(
        &self,
        of: CopyLabels,
        make: impl FnOnce(CopyLimits, Arc<CopyProgress>) -> F,
        ended: impl FnOnce() + Send + 'static,
    ) where
        F: Future<Output = Result<CopyResult, CopyError>> + Send + 'static,
    {
        let mut jobs = self.jobs();
        if jobs.contains_key(&of.uid) {
            return;
        }
        let tally = Arc::new(CopyProgress::default());
        let making = make(self.0.budget.clone(), Arc::clone(&tally));
        let (copies, uid) = (self.clone(), of.uid.clone());
        let task = tokio::spawn(async move {
            // The semaphore is never closed.
            let place = Arc::clone(&copies.0.places).acquire_owned().await;
            copies.turn_to(&uid, State::Copying);
            let outcome = making.await;
            drop(place);
            copies.turn_to(&uid, State::Ended(Box::new(outcome)));
            ended();
        });
        jobs.insert(
            of.uid.clone(),
            Job {
                of,
                tally,
                state: State::Waiting,
                task,
            },
        );
    }

    /// Returns the progress of the copy with this UID.
    pub fn progress(&self, uid: &str) -> Progress {
        match self.jobs().get(uid) {
            None => Progress::None,
            Some(job) => match job.state {
                State::Waiting => Progress::Waiting,
                State::Copying => Progress::Copying(job.tally.snapshot()),
                State::Ended(_) => Progress::None,
            },
        }
    }

    /// Removes and returns the result of the copy with this UID, or `None` if it has not ended.
    pub fn take_result(&self, uid: &str) -> Option<CopyOutcome> {
        let mut jobs = self.jobs();
        let job = jobs.remove(uid)?;
        match job.state {
            State::Ended(outcome) => Some((*outcome, job.tally.snapshot())),
            state => {
                jobs.insert(uid.to_owned(), Job { state, ..job });
                None
            }
        }
    }

    /// Aborts the copy with this UID. Garbage collection removes the partial data.
    pub fn abort(&self, uid: &str) {
        if let Some(job) = self.jobs().remove(uid) {
            job.task.abort();
        }
    }

    /// Aborts the copy with this UID, and waits until its task has ended.
    pub async fn abort_and_wait(&self, uid: &str) {
        let job = self.jobs().remove(uid);
        if let Some(job) = job {
            job.task.abort();
            // The result of an aborted copy is not needed.
            let _ = job.task.await;
        }
    }

    fn turn_to(&self, uid: &str, state: State) {
        if let Some(job) = self.jobs().get_mut(uid) {
            job.state = state;
        }
    }

    fn jobs(&self) -> MutexGuard<'_, HashMap<String, Job>> {
        self.0.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for CopyJobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Copies")
    }
}

/// Metric of a copy: name after `nfs_operator_copy_`, help text and value.
type Figure = (&'static str, &'static str, fn(&CopyProgressSnapshot) -> u64);
const FIGURES: [Figure; 4] = [
    ("files", "Files of a copy that are done", |tally| tally.files),
    (
        "files_expected",
        "Files that there are to copy, as far as they were counted",
        |tally| tally.of_files,
    ),
    ("bytes", "Bytes of a copy that are done", |tally| tally.bytes),
    (
        "bytes_expected",
        "Bytes that there are to copy, as far as they were counted",
        |tally| tally.of_bytes,
    ),
];

impl Collector for CopyJobs {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let copies: Vec<(CopyLabels, CopyProgressSnapshot)> = self
            .jobs()
            .values()
            .filter(|job| !matches!(job.state, State::Ended(_)))
            .map(|job| (job.of.clone(), job.tally.snapshot()))
            .collect();
        for (name, help, figure) in FIGURES {
            let name = format!("nfs_operator_copy_{name}");
            let mut family = encoder.encode_descriptor(&name, help, None, MetricType::Gauge)?;
            for (of, tally) in &copies {
                let labels = [
                    ("namespace", of.namespace.clone()),
                    ("claim", of.claim.clone()),
                    ("archive", of.archive.clone()),
                ];
                let value = i64::try_from(figure(tally)).unwrap_or(i64::MAX);
                ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
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

    fn of(uid: &str) -> CopyLabels {
        CopyLabels {
            uid: uid.to_owned(),
            namespace: "team".to_owned(),
            claim: uid.to_owned(),
            archive: String::new(),
        }
    }

    #[tokio::test]
    async fn more_copies_than_places_wait_and_each_end_is_told_once() {
        let copies = CopyJobs::default();
        let go = Arc::new(Notify::new());
        let mut ends = Vec::new();
        for number in 0..=AT_A_TIME {
            let (told, end) = oneshot::channel();
            ends.push(end);
            let go = Arc::clone(&go);
            let make = move |_: CopyLimits, _: Arc<CopyProgress>| async move {
                go.notified().await;
                Err(CopyError::ExportChanged)
            };
            copies.start(of(&number.to_string()), make, move || told.send(()).unwrap());
        }
        tokio::task::yield_now().await;
        let waiting = |copies: &CopyJobs| {
            let waits = |number: &usize| matches!(copies.progress(&number.to_string()), Progress::Waiting);
            (0..=AT_A_TIME).filter(waits).count()
        };
        assert_eq!(waiting(&copies), 1);
        for end in ends {
            go.notify_one();
            end.await.unwrap();
        }
        assert!(copies.take_result("0").is_some());
        assert!(copies.take_result("0").is_none());
    }

    #[tokio::test]
    async fn a_copy_that_is_stopped_gives_its_place_to_the_next() {
        let copies = CopyJobs::default();
        for number in 0..AT_A_TIME {
            let make = |_: CopyLimits, _: Arc<CopyProgress>| std::future::pending();
            copies.start(of(&number.to_string()), make, || ());
        }
        let (told, end) = oneshot::channel();
        let make = |_: CopyLimits, _: Arc<CopyProgress>| async { Err(CopyError::ExportChanged) };
        copies.start(of("next"), make, move || told.send(()).unwrap());
        copies.abort("0");
        end.await.unwrap();
        assert!(copies.take_result("next").is_some());
        assert!(matches!(copies.progress("0"), Progress::None));
    }

    #[test]
    fn progress_is_told_while_there_is_any() {
        let source = "claim team/data";
        assert_eq!(Progress::None.condition(source), None);
        let waits = Progress::Waiting.condition(source).unwrap();
        assert_eq!(waits.message, "copying claim team/data: other copies go first");
        let begun = Progress::Copying(CopyProgressSnapshot::default())
            .condition(source)
            .unwrap();
        assert_eq!((begun.status, begun.reason), (Some(false), Reason::Copying));
        assert!(
            begun.message.starts_with("copying claim team/data: 0 files"),
            "{begun:?}"
        );
    }
}
