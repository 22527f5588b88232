//! Visits of trees that are interrupted, changed meanwhile, or deep.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use export_store::quota::LimitState;
use rustix::fs::{Mode, OFlags};

use super::fixture::{CLUSTER, Fixture, GIB};
use crate::agent::Agent;
use crate::quotas::Tag;

/// Number of files and directories of [`tree`].
const FILES: usize = 4 * 12 + 4 + 1;
/// Time in which four entries of [`tree`] are visited.
const PART: Duration = Duration::from_millis(100);

/// A volume with four folders of twelve files, which is visited four entries at a time.
fn tree() -> Fixture {
    let mut fixture = Fixture::new();
    fixture.files_per_second = 40;
    for folder in 0..4 {
        let path = fixture.make(&format!("a/{folder}"));
        for file in 0..12 {
            fs::write(path.join(file.to_string()), "").unwrap();
        }
    }
    fixture.place(CLUSTER, &fixture.order("pvc-1", "a", 1, GIB));
    fixture
}

fn all(top: &Path) -> Vec<PathBuf> {
    let mut paths = vec![top.to_owned()];
    for entry in fs::read_dir(top).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => paths.extend(all(&path)),
            false => paths.push(path),
        }
    }
    paths
}

async fn visit(agent: &mut Agent<super::fixture::Fake>, times: usize) {
    for _ in 0..times {
        tokio::time::advance(PART).await;
        agent.visit().await;
        agent.write_heartbeats();
    }
}

async fn assert_completed(fixture: &Fixture, agent: &mut Agent<super::fixture::Fake>) {
    visit(agent, 100).await;
    let project = fixture.assert_in_force("pvc-1", "a", GIB);
    for path in all(&fixture.root.join("a")) {
        assert_eq!(fixture.fake.tag(&path).project, project, "{}", path.display());
    }
    assert_eq!(fixture.report("pvc-1").unwrap().visit, Vec::new());
}

#[tokio::test(start_paused = true)]
async fn a_visit_is_resumed_at_the_recorded_place_by_the_next_process() {
    let fixture = tree();
    let mut done = 0;
    for killed in 0..4 {
        let mut agent = fixture.agent();
        agent.poll().await;
        visit(&mut agent, 3).await;
        let report = fixture.report("pvc-1").unwrap();
        let LimitState::Pending { visited } = report.state else {
            panic!("{report:?}");
        };
        assert!(visited > done && !report.visit.is_empty(), "{killed}: {report:?}");
        done = visited;
    }
    let mut agent = fixture.agent();
    agent.poll().await;
    assert_completed(&fixture, &mut agent).await;
    // Nothing twice, except what the killed processes did after they last reported: nothing, in this test.
    assert_eq!(fixture.fake.0.borrow().assigned, FILES);
}

#[tokio::test(start_paused = true)]
async fn a_place_is_not_used_after_the_tree_changed_around_it() {
    type Change = fn(&Fixture);
    let changes: [(&str, Change); 4] = [
        ("moved", |fixture| {
            let from = deepest(fixture);
            let other = (0..4).map(|folder| fixture.root.join(format!("a/{folder}")));
            let other = other.rev().find(|other| *other != from).unwrap();
            fs::rename(from, other.join("moved")).unwrap();
        }),
        ("removed", |fixture| fs::remove_dir_all(deepest(fixture)).unwrap()),
        ("lost its project", |fixture| {
            fixture.fake.set_tag(&deepest(fixture), Tag::default());
        }),
        ("lost its project at the root", |fixture| {
            fixture.fake.set_tag(&fixture.root.join("a"), Tag::default());
        }),
    ];
    for (what, change) in changes {
        let fixture = tree();
        let mut agent = fixture.agent();
        agent.poll().await;
        visit(&mut agent, 6).await;
        let report = fixture.report("pvc-1").unwrap();
        assert_eq!(report.visit.len(), 2, "{what}: {report:?}");
        let before = fixture.fake.0.borrow().assigned;
        change(&fixture);
        let mut agent = fixture.agent();
        agent.poll().await;
        visit(&mut agent, 100).await;
        let project = fixture.assert_in_force("pvc-1", "a", GIB);
        let paths = all(&fixture.root.join("a"));
        for path in &paths {
            assert_eq!(fixture.fake.tag(path).project, project, "{what}: {}", path.display());
        }
        let again = fixture.fake.0.borrow().assigned - before;
        assert!(again >= paths.len() - 1, "{what}: only {again} of {}", paths.len());
    }
}

/// Returns the folder that is being listed, by the inode in the report.
fn deepest(fixture: &Fixture) -> PathBuf {
    use std::os::unix::fs::MetadataExt as _;
    let inode = fixture.report("pvc-1").unwrap().visit.last().unwrap().0;
    let mut paths = all(&fixture.root.join("a")).into_iter();
    paths.find(|path| fs::metadata(path).unwrap().ino() == inode).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_folder_that_is_moved_while_it_is_listed_leaves_nothing_out() {
    let fixture = tree();
    let mut agent = fixture.agent();
    agent.poll().await;
    visit(&mut agent, 6).await;
    let from = deepest(&fixture);
    let other = (0..4).map(|folder| fixture.root.join(format!("a/{folder}")));
    let other = other.rev().find(|other| *other != from).unwrap();
    fs::rename(&from, other.join("moved")).unwrap();
    assert_completed(&fixture, &mut agent).await;
}

#[tokio::test(start_paused = true)]
async fn deep_trees_use_up_no_descriptors() {
    let fixture = Fixture::new();
    let (volumes, depth) = (8, 1500);
    for volume in 0..volumes {
        let name = format!("v{volume}");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let mut folder = rustix::fs::open(fixture.make(&name), flags, Mode::empty()).unwrap();
        for _ in 0..depth {
            rustix::fs::mkdirat(&folder, "d", Mode::RWXU).unwrap();
            folder = rustix::fs::openat(&folder, "d", flags, Mode::empty()).unwrap();
        }
        fixture.place(CLUSTER, &fixture.order(&format!("pvc-{volume}"), &name, 1, GIB));
    }
    let mut agent = fixture.agent();
    agent.poll().await;
    let open = || fs::read_dir("/proc/self/fd").unwrap().count();
    let mut most = 0;
    // Other tests of this process have files open, too.
    for _ in 0..volumes * 4 {
        tokio::time::advance(PART).await;
        agent.visit().await;
        agent.write_heartbeats();
        most = most.max(open());
    }
    for volume in 0..volumes {
        fixture.assert_in_force(&format!("pvc-{volume}"), &format!("v{volume}"), GIB);
    }
    assert_eq!(fixture.fake.0.borrow().tags.len(), volumes * (depth + 1));
    assert!(most < 1000, "{most} open files");
    // Its files are removed by a tool that does not recurse.
    let status = std::process::Command::new("rm").arg("-rf").arg(&fixture.root).status();
    assert!(status.unwrap().success());
}

#[tokio::test(start_paused = true)]
async fn exports_share_what_may_be_visited_however_often_orders_come() {
    let fixtures = [tree(), tree()];
    let mut agent = fixtures[0].agent_of(&[&fixtures[0], &fixtures[1]]);
    agent.poll().await;
    let assigned = || fixtures.each_ref().map(|fixture| fixture.fake.0.borrow().assigned);
    // The directories of the volumes.
    assert_eq!(assigned(), [1, 1]);
    let mut most = 2;
    for second in 0..3 {
        for _ in 0..20 {
            tokio::time::advance(PART / 2).await;
            for _ in 0..10 {
                agent.visit().await;
            }
        }
        most += 40;
        let sum: usize = assigned().iter().sum();
        assert!(sum <= most, "{second}: {sum}");
    }
    // Some entries, such as `.`, are none to assign.
    assert!(assigned().iter().all(|assigned| *assigned >= 40), "{:?}", assigned());
}

#[tokio::test(start_paused = true)]
async fn time_in_which_nothing_is_visited_is_not_made_up_for() {
    let fixture = tree();
    let mut agent = fixture.agent();
    for _ in 0..10 {
        tokio::time::advance(Duration::from_secs(5)).await;
        agent.visit().await;
    }
    agent.poll().await;
    agent.visit().await;
    assert!(fixture.fake.0.borrow().assigned <= 5);
    // A round that takes long is.
    tokio::time::advance(PART * 3).await;
    agent.visit().await;
    let assigned = fixture.fake.0.borrow().assigned;
    assert!((8..=17).contains(&assigned), "{assigned}");
}
