//! What clusters that share an export, and clients that are root on it, can and cannot do to others.

use std::fs;

use export_store::quota::{AgentProblem, LimitState, SizeProblem};

use super::fixture::{CLUSTER, Fixture, GIB};
use crate::quotas::{Limits, Tag};

const OTHER: &str = "99999999-2222-3333-4444-555555555555";

#[tokio::test]
async fn a_cluster_whose_folders_cannot_be_written_hinders_no_other() {
    let fixture = Fixture::new();
    fixture.add_cluster(OTHER);
    for name in ["a", "b"] {
        fixture.make(name);
    }
    // The agent writes to this draft first.
    fs::create_dir_all(fixture.quota(CLUSTER).join("reports/.draft-pvc-1")).unwrap();
    fixture.place(CLUSTER, &fixture.order("pvc-1", "a", 1, GIB));
    fixture.place(OTHER, &fixture.order("pvc-2", "b", 1, GIB));
    let mut agent = fixture.agent();
    agent.poll().await;
    assert_eq!(fixture.report("pvc-1"), None);
    // Nothing is changed that is not recorded.
    assert_eq!(fixture.fake.tag(&fixture.root.join("a")), Tag::default());
    let state = fixture.report_in(OTHER, "pvc-2").unwrap().state;
    assert_eq!(state, LimitState::InForce);
    fs::remove_dir(fixture.quota(CLUSTER).join("reports/.draft-pvc-1")).unwrap();
    agent.poll().await;
    fixture.assert_in_force("pvc-1", "a", GIB);
}

#[tokio::test]
async fn a_cluster_whose_orders_cannot_be_listed_keeps_its_limits_and_hinders_no_other() {
    let fixture = Fixture::new();
    fixture.add_cluster(OTHER);
    for name in ["a", "b"] {
        fixture.make(name);
    }
    fixture.place(CLUSTER, &fixture.order("pvc-1", "a", 1, GIB));
    let mut agent = fixture.agent();
    agent.poll().await;
    let orders = fixture.quota(CLUSTER).join("orders");
    fs::remove_dir_all(&orders).unwrap();
    fixture.place(OTHER, &fixture.order("pvc-2", "b", 1, GIB));
    agent.enforce().await;
    agent.write_heartbeats();
    fixture.assert_in_force("pvc-1", "a", GIB);
    assert_eq!(fixture.heartbeat().reason, Some(AgentProblem::ToolFailed));
    assert_eq!(fixture.report_in(OTHER, "pvc-2").unwrap().state, LimitState::InForce);
}

#[tokio::test]
async fn folders_that_look_like_those_of_clusters_use_up_no_descriptors() {
    let fixture = Fixture::new();
    for number in 0..300 {
        fixture.add_cluster(&format!("00000000-0000-0000-0000-{number:012}"));
    }
    fixture.make("a");
    fixture.place(CLUSTER, &fixture.order("pvc-1", "a", 1, GIB));
    let mut agent = fixture.agent();
    agent.poll().await;
    fixture.assert_in_force("pvc-1", "a", GIB);
    let served = fs::read_dir(fixture.root.join(".nfs-operator")).unwrap();
    let served = served.filter(|entry| entry.as_ref().unwrap().path().join("quota").exists());
    assert!(served.count() <= 65);
}

#[tokio::test]
async fn things_that_are_no_files_among_the_orders_are_ignored() {
    let fixture = Fixture::new();
    fixture.make("a");
    fixture.place(CLUSTER, &fixture.order("pvc-1", "a", 1, GIB));
    let orders = fixture.quota(CLUSTER).join("orders");
    fs::create_dir(orders.join("pvc-folder")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", orders.join("pvc-endless")).unwrap();
    let fifo = orders.join("pvc-fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    // A hole takes no space: an order of a terabyte.
    let huge = fs::File::create(orders.join("pvc-huge")).unwrap();
    huge.set_len(1 << 40).unwrap();
    let mut agent = fixture.agent();
    agent.poll().await;
    agent.write_heartbeats();
    fixture.assert_in_force("pvc-1", "a", GIB);
    assert_eq!(fixture.heartbeat().ignored_orders, 4);
}

#[tokio::test]
async fn a_fileid_that_was_reused_belongs_to_the_directory_that_has_it_now() {
    let fixture = Fixture::new();
    let path = fixture.make("old");
    fixture.place(CLUSTER, &fixture.order("pvc-1", "old", 1, GIB));
    let mut agent = fixture.agent();
    agent.poll().await;
    let former = fixture.assert_in_force("pvc-1", "old", GIB);
    // Somebody removed the directory, and the next one got its inode.
    let new = fixture.root.join("new");
    fs::rename(&path, &new).unwrap();
    fixture.fake.set_tag(&new, Tag::default());
    fixture.place(CLUSTER, &fixture.order("pvc-2", "new", 1, 2 * GIB));
    agent.poll().await;
    let project = fixture.assert_in_force("pvc-2", "new", 2 * GIB);
    assert_ne!(project, former);
    fixture.assert_failed("pvc-1", SizeProblem::DirectoryTaken);
    // Its project is not forgotten: the limit goes with the order.
    assert_eq!(fixture.fake.limit(former).bytes, Some(GIB));
    fixture.withdraw(CLUSTER, "pvc-1");
    agent.poll().await;
    assert_eq!(fixture.fake.limit(former), Limits::default());
    assert_eq!(fixture.assert_in_force("pvc-2", "new", 2 * GIB), project);
}

#[tokio::test]
async fn an_order_of_another_cluster_for_the_same_fileid_takes_nothing() {
    let fixture = Fixture::new();
    fixture.add_cluster(OTHER);
    fixture.make("a");
    fixture.place(OTHER, &fixture.order("pvc-1", "a", 1, GIB));
    let mut agent = fixture.agent();
    agent.poll().await;
    let project = fixture.fake.tag(&fixture.root.join("a")).project;
    // Moved to an archive, and its order still names the old place.
    fs::rename(fixture.root.join("a"), fixture.root.join("archived-a")).unwrap();
    fixture.place(CLUSTER, &fixture.order("pvc-0", "archived-a", 1, 9 * GIB));
    for mut agent in [agent, fixture.agent()] {
        agent.poll().await;
        fixture.assert_failed("pvc-0", SizeProblem::DirectoryTaken);
    }
    assert_eq!(fixture.fake.tag(&fixture.root.join("archived-a")).project, project);
    assert_eq!(fixture.fake.limit(project).bytes, Some(GIB));
}

#[tokio::test]
async fn an_order_for_a_directory_above_a_limited_one_takes_nothing() {
    let fixture = Fixture::new();
    fixture.add_cluster(OTHER);
    fixture.make("team/data");
    fixture.make("team-2");
    fs::write(fixture.root.join("team/data/file"), "").unwrap();
    fixture.place(OTHER, &fixture.order("pvc-1", "team/data", 1, GIB));
    let mut agent = fixture.agent();
    agent.poll().await;
    agent.visit().await;
    let limited = fixture.root.join("team/data");
    let tag = fixture.fake.tag(&limited);
    fixture.place(CLUSTER, &fixture.order("pvc-0", "team", 1, 9 * GIB));
    // A sibling whose name begins alike is not above it.
    fixture.place(CLUSTER, &fixture.order("pvc-2", "team-2", 1, GIB));
    for mut agent in [agent, fixture.agent()] {
        agent.poll().await;
        agent.visit().await;
        fixture.assert_failed("pvc-0", SizeProblem::DirectoryTaken);
        fixture.assert_in_force("pvc-2", "team-2", GIB);
        assert_eq!(fixture.fake.tag(&limited), tag);
        assert_eq!(
            fixture.fake.tag(&fixture.root.join("team/data/file")).project,
            tag.project
        );
        assert_eq!(fixture.report_in(OTHER, "pvc-1").unwrap().state, LimitState::InForce);
        assert_eq!(fixture.fake.limit(tag.project).bytes, Some(GIB));
    }
    fixture.withdraw(OTHER, "pvc-1");
    let mut agent = fixture.agent();
    agent.poll().await;
    agent.visit().await;
    let project = fixture.assert_in_force("pvc-0", "team", 9 * GIB);
    assert_eq!(fixture.fake.tag(&limited).project, project);
}
