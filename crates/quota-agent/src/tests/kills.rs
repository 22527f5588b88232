//! An agent that is killed at any step: at each change of a file or folder, and before and after each change of the file
//! system.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::task::Poll;

use export_store::quota::{LimitState, Report, VolumeUsage};

use super::fixture::{CLUSTER, Fixture, GIB};
use crate::quotas::{Limits, Tag};

thread_local! {
    /// The steps of the process that a test kills, and how many it does until then.
    static STEPS: RefCell<Option<(Vec<String>, usize)>> = const { RefCell::new(None) };
}

/// Ends the work at a step.
struct Killed;

/// Counts a step before it is done. The process is killed instead if it has done as many as it shall.
pub fn step(what: &str) {
    let is_killed = STEPS.with_borrow_mut(|steps| match steps {
        Some((done, most)) if done.len() == *most => true,
        Some((done, _)) => {
            done.push(what.to_owned());
            false
        }
        None => false,
    });
    if is_killed {
        // Without the message of a panic.
        resume_unwind(Box::new(Killed));
    }
}

/// Does the work of a process until it ends or has done a number of steps. Returns the steps, and whether it ended.
async fn kill_after(steps: usize, work: impl Future<Output = ()>) -> (Vec<String>, bool) {
    STEPS.set(Some((Vec::new(), steps)));
    let mut work = pin!(work);
    let ended = std::future::poll_fn(
        |context| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context))) {
            Ok(poll) => poll.map(|()| true),
            Err(cause) if cause.is::<Killed>() => Poll::Ready(false),
            Err(cause) => resume_unwind(cause),
        },
    );
    let ended = ended.await;
    (STEPS.take().unwrap().0, ended)
}

/// What an operator does, one after the other. Each is done at most once, whatever happens to the agent.
const COURSE: [fn(&Fixture); 3] = [
    |fixture| {
        fixture.place(CLUSTER, &fixture.order("pvc-1", "a", 1, GIB));
        fixture.place(CLUSTER, &fixture.order("pvc-2", "new", 1, 2 * GIB));
    },
    |fixture| {
        fixture.place(CLUSTER, &fixture.order("pvc-1", "a", 2, 3 * GIB));
    },
    |fixture| {
        fixture.withdraw(CLUSTER, "pvc-2");
        fixture.remove("new");
    },
];
const FILES: [&str; 6] = ["a", "a/b", "a/b/c", "a/1", "a/b/2", "a/b/c/3"];

fn prepared() -> Fixture {
    let fixture = Fixture::new();
    fixture.make("a/b/c");
    fixture.make("new");
    for file in ["a/1", "a/b/2", "a/b/c/3"] {
        fs::write(fixture.root.join(file), "").unwrap();
    }
    if rustix::process::geteuid().is_root() {
        // An operator that is another user than the agent.
        let cluster = fixture.root.join(".nfs-operator").join(CLUSTER);
        chown(cluster, Some(2001), Some(2001)).unwrap();
    }
    fixture
}

/// Runs an agent while the operator does the rest of its course.
async fn run(fixture: &Fixture, done: &Cell<usize>) {
    let mut agent = fixture.agent();
    loop {
        agent.poll().await;
        for _ in 0..5 {
            agent.visit().await;
        }
        agent.write_usage().await;
        agent.write_heartbeats();
        if !act(fixture, done) {
            return;
        }
    }
}

/// Does the next part of the course. Returns false if it is over.
fn act(fixture: &Fixture, done: &Cell<usize>) -> bool {
    let Some(next) = COURSE.get(done.get()) else {
        return false;
    };
    next(fixture);
    done.set(done.get() + 1);
    true
}

/// What is there after the course.
#[derive(Debug, PartialEq)]
struct State {
    /// Without the fileid, in which courses differ.
    reports: BTreeMap<String, Report>,
    usage: BTreeMap<String, VolumeUsage>,
    tags: BTreeMap<&'static str, Tag>,
    limits: BTreeMap<u32, Limits>,
    /// Owner of each folder and file that is no draft.
    owners: BTreeMap<String, u32>,
}

fn state(fixture: &Fixture) -> State {
    let mut owners = BTreeMap::new();
    for folder in ["", "orders", "reports"] {
        let path = fixture.quota(CLUSTER).join(folder);
        owners.insert(folder.to_owned(), fs::metadata(&path).unwrap().uid());
        for entry in fs::read_dir(path).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            // The operator writes orders.
            if folder != "orders" && !name.starts_with('.') {
                owners.insert(format!("{folder}/{name}"), entry.metadata().unwrap().uid());
            }
        }
    }
    let volumes = ["pvc-1", "pvc-2"];
    let reports = volumes.map(|volume| {
        let file_id = 0;
        Some((
            volume.to_owned(),
            Report {
                file_id,
                ..fixture.report(volume)?
            },
        ))
    });
    let heartbeat = fixture.heartbeat();
    assert!(heartbeat.enforced && heartbeat.ignored_orders == 0, "{heartbeat:?}");
    let mut limits = fixture.fake.0.borrow().limits.clone();
    limits.retain(|_, limits| *limits != Limits::default());
    State {
        reports: reports.into_iter().flatten().collect(),
        usage: fixture.usage().volumes,
        tags: FILES
            .map(|file| (file, fixture.fake.tag(&fixture.root.join(file))))
            .into(),
        limits,
        owners,
    }
}

/// Checks that what is confirmed is in force, at any time.
fn assert_true(fixture: &Fixture, context: &str) {
    let sizes = [("pvc-1", 1, GIB), ("pvc-1", 2, 3 * GIB), ("pvc-2", 1, 2 * GIB)];
    for (volume, directory) in [("pvc-1", "a"), ("pvc-2", "new")] {
        let is_ordered = fixture.quota(CLUSTER).join("orders").join(volume).exists();
        let Some(report) = fixture.report(volume).filter(|_| is_ordered) else {
            continue;
        };
        if report.state != LimitState::InForce {
            continue;
        }
        let found = fixture.fake.limit(report.project.unwrap()).bytes;
        // That of the generation in the report, or of a later one that is about to be reported.
        let expected = |(name, generation, size): &(&str, u64, u64)| {
            *name == volume && *generation >= report.generation && Some(*size) == found
        };
        assert!(sizes.iter().any(expected), "{context}: {report:?}, {found:?}");
        for file in FILES.iter().chain(&["new"]).filter(|file| file.starts_with(directory)) {
            let tag = fixture.fake.tag(&fixture.root.join(file));
            assert_eq!(Some(tag.project), report.project, "{context}: {file}");
        }
    }
}

#[tokio::test]
async fn an_agent_that_is_killed_at_any_step_is_resumed_by_the_next_one() {
    let fixture = prepared();
    let (steps, ended) = kill_after(usize::MAX, run(&fixture, &Cell::new(0))).await;
    assert!(ended);
    let kinds: BTreeSet<&str> = steps.iter().map(String::as_str).collect();
    let expected = [
        "assign",
        "assigned",
        "create",
        "create folder",
        "publish",
        "remove",
        "set limits",
        "set owner",
        "sync",
        "limits are set",
        "write",
    ];
    assert_eq!(kinds, expected.into());
    let expected = state(&fixture);
    assert_eq!(fixture.assert_in_force("pvc-1", "a", 3 * GIB), 1000);
    assert_eq!((expected.reports.len(), expected.limits.len()), (1, 1));

    // The operator waits for the next process, or does not notice.
    for continues in [false, true] {
        for (killed, step) in steps.iter().enumerate() {
            let context = format!("killed at step {killed} ({step}), the operator continues: {continues}");
            let (fixture, done) = (prepared(), Cell::new(0));
            let (_, ended) = kill_after(killed, run(&fixture, &done)).await;
            assert!(!ended, "{context}");
            assert_true(&fixture, &context);
            if continues {
                act(&fixture, &done);
            }
            run(&fixture, &done).await;
            assert_eq!(state(&fixture), expected, "{context}");
        }
    }
}
