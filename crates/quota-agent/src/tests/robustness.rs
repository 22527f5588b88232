use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;
use std::time::Duration;

use export_store::quota::SizeProblem;

use super::fixture::{CLUSTER, Fixture, GIB};
use crate::quotas::Tag;

fn tree(fixture: &Fixture) {
    fixture.make("a/b/c");
    fixture.make("new");
    for file in ["a/1", "a/b/2", "a/b/c/3"] {
        fs::write(fixture.root.join(file), "").unwrap();
    }
}

fn assert_assigned(fixture: &Fixture, project: u32) {
    for path in ["a", "a/b", "a/b/c", "a/1", "a/b/2", "a/b/c/3"] {
        assert_eq!(fixture.fake.tag(&fixture.root.join(path)).project, project, "{path}");
    }
}

#[tokio::test]
async fn a_visit_never_leaves_the_volume_and_skips_what_has_no_project() {
    let fixture = Fixture::new();
    tree(&fixture);
    let outside = fixture.make("outside");
    fs::write(outside.join("secret"), "").unwrap();
    symlink(&outside, fixture.root.join("a/link")).unwrap();
    symlink(outside.join("secret"), fixture.root.join("a/b/link")).unwrap();
    symlink("..", fixture.root.join("a/up")).unwrap();
    let fifo = fixture.root.join("a/fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    fs::hard_link(fixture.root.join("a/1"), fixture.root.join("a/b/again")).unwrap();
    fixture.place(CLUSTER, &fixture.order("pvc-1", "a", 1, GIB));
    let mut agent = fixture.agent();
    agent.poll().await;
    agent.visit().await;
    let project = fixture.assert_in_force("pvc-1", "a", GIB);
    assert_assigned(&fixture, project);
    for path in ["outside", "outside/secret", "a/link", "a/fifo", ".", "new"] {
        assert_eq!(fixture.fake.tag(&fixture.root.join(path)), Tag::default(), "{path}");
    }
}

#[tokio::test]
async fn files_that_refuse_a_project_are_reported_and_do_not_hinder_others() {
    let fixture = Fixture::new();
    tree(&fixture);
    let immutable = fs::metadata(fixture.root.join("a/b/2")).unwrap().ino();
    fixture.fake.0.borrow_mut().immutable.push(immutable);
    fixture.place(CLUSTER, &fixture.order("pvc-1", "a", 1, GIB));
    let mut agent = fixture.agent();
    agent.poll().await;
    agent.visit().await;
    fixture.assert_failed("pvc-1", SizeProblem::ChangeRefused);
    let project = fixture.report("pvc-1").unwrap().project.unwrap();
    assert_eq!(fixture.fake.tag(&fixture.root.join("a/b/c/3")).project, project);
    assert_eq!(fixture.fake.limit(project).bytes, Some(GIB));
    // The tree is not visited again in each round.
    let calls = fixture.fake.0.borrow().calls;
    agent.poll().await;
    agent.visit().await;
    assert_eq!(fixture.fake.0.borrow().calls, calls);
}

#[tokio::test]
async fn nothing_in_a_volume_is_an_order() {
    let fixture = Fixture::new();
    let inside = fixture.make("a/.nfs-operator").join(CLUSTER).join("quota/orders");
    fs::create_dir_all(&inside).unwrap();
    fixture.make("b");
    let order = fixture
        .seal(CLUSTER)
        .seal(&fixture.order("pvc-b", "b", 1, GIB))
        .unwrap();
    fs::write(inside.join("pvc-b"), order).unwrap();
    fixture.place(CLUSTER, &fixture.order("pvc-1", "a", 1, GIB));
    let mut agent = fixture.agent();
    agent.poll().await;
    agent.visit().await;
    fixture.assert_in_force("pvc-1", "a", GIB);
    assert_eq!(fixture.fake.tag(&fixture.root.join("b")), Tag::default());
}

#[tokio::test]
async fn a_folder_of_orders_that_vanished_removes_nothing() {
    let fixture = Fixture::new();
    fixture.make("a");
    fixture.place(CLUSTER, &fixture.order("pvc-1", "a", 1, GIB));
    let mut agent = fixture.agent();
    agent.poll().await;
    fs::remove_dir_all(fixture.quota(CLUSTER).join("orders")).unwrap();
    agent.enforce().await;
    fixture.assert_in_force("pvc-1", "a", GIB);
}

#[tokio::test]
async fn ten_thousand_orders_take_few_calls() {
    let mut fixture = Fixture::new();
    fixture.range = "1000-99999".to_owned();
    for number in 0..10_000 {
        let directory = format!("d{number}");
        fixture.make(&directory);
        let order = fixture.order(&format!("pvc-{number}"), &directory, 1, GIB);
        let bytes = fixture.seal(CLUSTER).seal(&order).unwrap();
        fixture.place_bytes(CLUSTER, &order.volume, &bytes);
    }
    let mut agent = fixture.agent();
    agent.poll().await;
    assert!(fixture.fake.0.borrow().calls < 100, "{}", fixture.fake.0.borrow().calls);
    fixture.assert_in_force("pvc-9999", "d9999", GIB);
    let calls = fixture.fake.0.borrow().calls;
    let mut agent = fixture.agent();
    agent.poll().await;
    agent.write_usage().await;
    assert_eq!(fixture.fake.0.borrow().calls, calls, "the next process changes nothing");
    assert_eq!(fixture.usage().volumes.len(), 10_000);
    assert!(Path::new(&fixture.root).exists());
}

#[tokio::test(start_paused = true)]
async fn heartbeats_are_written_while_many_limits_are_set() {
    let fixture = Fixture::new();
    for number in 0..900 {
        let (volume, directory) = (format!("pvc-{number}"), format!("d{number}"));
        fixture.make(&directory);
        fixture.place(CLUSTER, &fixture.order(&volume, &directory, 1, GIB));
    }
    let mut agent = fixture.agent();
    // The next heartbeat is due.
    tokio::time::advance(Duration::from_secs(6)).await;
    agent.poll().await;
    assert!(fixture.heartbeat().enforced);
    for number in 0..900 {
        fixture.assert_in_force(&format!("pvc-{number}"), &format!("d{number}"), GIB);
    }
}

#[tokio::test]
async fn a_report_that_a_crash_left_empty_is_written_again() {
    let fixture = Fixture::new();
    fixture.make("a");
    fixture.place(CLUSTER, &fixture.order("pvc-1", "a", 1, GIB));
    fixture.agent().poll().await;
    let project = fixture.assert_in_force("pvc-1", "a", GIB);
    fs::write(fixture.quota(CLUSTER).join("reports/pvc-1"), "").unwrap();
    fixture.agent().poll().await;
    assert_eq!(fixture.assert_in_force("pvc-1", "a", GIB), project);
}
