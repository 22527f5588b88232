use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::time::Duration;

use export_store::quota::{AgentProblem, LimitState, SizeProblem};

use super::fixture::{CLUSTER, Fixture, GIB};
use crate::quotas::Tag;
use crate::watch::Changes;

const OTHER: &str = "99999999-2222-3333-4444-555555555555";

#[tokio::test]
async fn an_order_gets_a_limit_a_report_and_usage() {
    let fixture = Fixture::new();
    fixture.make("team/data");
    fixture.place(CLUSTER, &fixture.order("pvc-1", "team/data", 1, GIB));
    let mut agent = fixture.agent();
    agent.poll().await;
    let project = fixture.assert_in_force("pvc-1", "team/data", GIB);
    assert_eq!(project, 1000);
    agent.write_heartbeats();
    agent.write_usage().await;
    assert_eq!(fixture.usage().volumes["pvc-1"].inodes, 1);
    let (heartbeat, usage) = (fixture.heartbeat(), fixture.usage());
    assert!(heartbeat.enforced && heartbeat.sequence == 1 && heartbeat.ignored_orders == 0);
    assert_eq!((usage.instance, usage.sequence), (heartbeat.instance, 1));
    // A report is announced at once, without a sign of life.
    assert_eq!(heartbeat.reported, 1);
    fixture.place(CLUSTER, &fixture.order("pvc-1", "team/data", 2, 2 * GIB));
    agent.enforce().await;
    let announced = fixture.heartbeat();
    assert_eq!((announced.reported, announced.sequence), (2, 1));
    // Nothing changes when nothing changed.
    let calls = fixture.fake.0.borrow().calls;
    agent.poll().await;
    assert_eq!(fixture.fake.0.borrow().calls, calls);
}

#[tokio::test]
async fn a_group_of_new_orders_takes_four_runs_of_tools_and_a_group_of_expansions_one() {
    let fixture = Fixture::new();
    let mut agent = fixture.agent();
    agent.poll().await;
    for (generation, runs) in [(1, 4), (2, 1)] {
        for name in ["a", "b", "c"] {
            fixture.make(name);
            fixture.place(
                CLUSTER,
                &fixture.order(&format!("pvc-{name}"), name, generation, generation * GIB),
            );
        }
        let before = fixture.fake.0.borrow().runs;
        agent.enforce().await;
        assert_eq!(fixture.fake.0.borrow().runs - before, runs, "generation {generation}");
        fixture.assert_in_force("pvc-c", "c", generation * GIB);
    }
    let before = fixture.fake.0.borrow().runs;
    agent.enforce().await;
    assert_eq!(fixture.fake.0.borrow().runs, before, "nothing is new");
}

#[tokio::test]
async fn a_round_for_some_orders_looks_at_no_others() {
    let fixture = Fixture::new();
    let place = |generation: u64| {
        for name in ["a", "b", "c"] {
            fixture.make(name);
            let order = fixture.order(&format!("pvc-{name}"), name, generation, generation * GIB);
            fixture.place(CLUSTER, &order);
        }
    };
    let changed = |names: &[&str]| {
        let orders = fs::metadata(fixture.quota(CLUSTER).join("orders")).unwrap();
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        Changes::Files(BTreeMap::from([((orders.dev(), orders.ino()), names)]))
    };
    place(1);
    let mut agent = fixture.agent();
    agent.poll().await;
    place(2);
    fixture.withdraw(CLUSTER, "pvc-c");
    agent.enforce_changed(changed(&["pvc-a", "pvc-unknown"])).await;
    fixture.assert_in_force("pvc-a", "a", 2 * GIB);
    fixture.assert_in_force("pvc-b", "b", GIB);
    fixture.assert_in_force("pvc-c", "c", GIB);
    agent.enforce_changed(changed(&["pvc-c"])).await;
    assert!(fixture.report("pvc-c").is_none());
    fixture.assert_in_force("pvc-b", "b", GIB);
    agent.enforce_changed(Changes::Any).await;
    fixture.assert_in_force("pvc-b", "b", 2 * GIB);
}

#[tokio::test]
async fn all_orders_of_a_folder_are_looked_at_first_and_none_seems_withdrawn_once_it_is_gone() {
    let fixture = Fixture::new();
    fixture.make("a");
    let mut agent = fixture.agent();
    agent.poll().await;
    fixture.add_cluster(OTHER);
    fixture.place(OTHER, &fixture.order("pvc-1", "a", 1, GIB));
    agent.poll_clusters();
    agent.enforce_changed(Changes::default()).await;
    let in_force = || fixture.report_in(OTHER, "pvc-1").unwrap().state == LimitState::InForce;
    assert!(in_force());
    let orders = fixture.quota(OTHER).join("orders");
    let found = fs::metadata(&orders).unwrap();
    fs::remove_dir_all(&orders).unwrap();
    let names = BTreeSet::from(["pvc-1".to_owned()]);
    let changes = Changes::Files(BTreeMap::from([((found.dev(), found.ino()), names)]));
    agent.enforce_changed(changes).await;
    assert!(in_force());
}

#[tokio::test]
async fn usage_takes_no_run_of_a_tool_after_a_poll() {
    let fixture = Fixture::new();
    fixture.make("a");
    let (mut agent, project) = fixture.limited("pvc-1", "a", GIB).await;
    for inodes in [2, 3] {
        // A file appears in the directory.
        let tag = Tag {
            project,
            inherits: false,
        };
        fixture.fake.0.borrow_mut().tags.insert(u64::MAX - inodes, tag);
        agent.poll().await;
        let before = fixture.fake.0.borrow().runs;
        agent.write_usage().await;
        assert_eq!(fixture.fake.0.borrow().runs, before);
        assert_eq!(fixture.usage().volumes["pvc-1"].inodes, inodes);
    }
}

#[tokio::test]
async fn a_limit_that_is_not_in_force_afterwards_is_reported_as_refused_and_hinders_no_other() {
    let fixture = Fixture::new();
    for name in ["a", "b"] {
        fixture.make(name);
    }
    fixture.fake.0.borrow_mut().fixed.push(1000);
    for name in ["a", "b"] {
        fixture.place(CLUSTER, &fixture.order(&format!("pvc-{name}"), name, 1, GIB));
    }
    let mut agent = fixture.agent();
    agent.poll().await;
    fixture.assert_failed("pvc-a", SizeProblem::ChangeRefused);
    assert_eq!(fixture.fake.tag(&fixture.root.join("a")), Tag::default());
    assert_eq!(fixture.assert_in_force("pvc-b", "b", GIB), 1001);
    fixture.fake.0.borrow_mut().fixed.clear();
    agent.poll().await;
    fixture.assert_in_force("pvc-a", "a", GIB);
}

#[tokio::test]
async fn a_limit_that_is_reported_was_read_just_now() {
    let fixture = Fixture::new();
    fixture.make("a");
    let (mut agent, project) = fixture.limited("pvc-1", "a", GIB).await;
    // Somebody removes it, and the next order is for the same size.
    fixture.fake.0.borrow_mut().limits.clear();
    fixture.place(CLUSTER, &fixture.order("pvc-1", "a", 2, GIB));
    agent.enforce().await;
    assert_eq!(fixture.report("pvc-1").unwrap().generation, 2);
    assert_eq!(fixture.assert_in_force("pvc-1", "a", GIB), project);
}

#[tokio::test]
async fn a_size_that_no_file_system_has_is_no_limit() {
    let fixture = Fixture::new();
    fixture.make("a");
    fixture.place(CLUSTER, &fixture.order("pvc-1", "a", 1, u64::MAX));
    fixture.agent().poll().await;
    let report = fixture.report("pvc-1").unwrap();
    assert_eq!(report.state, LimitState::InForce);
    assert_eq!(
        fixture.fake.limit(report.project.unwrap()),
        crate::quotas::Limits::default()
    );
}

#[tokio::test]
async fn what_the_agent_writes_belongs_to_the_owner_of_the_folder_only() {
    let fixture = Fixture::new();
    fixture.make("a");
    let mut agent = fixture.agent();
    agent.poll().await;
    fixture.place(CLUSTER, &fixture.order("pvc-1", "a", 1, GIB));
    agent.enforce().await;
    agent.write_heartbeats();
    for (path, mode) in [
        ("", 0o700),
        ("reports", 0o700),
        ("reports/pvc-1", 0o600),
        ("agent", 0o600),
    ] {
        let metadata = fs::metadata(fixture.quota(CLUSTER).join(path)).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, mode, "{path}");
    }
}

#[tokio::test]
async fn greater_generations_replace_smaller_ones_and_never_the_other_way() {
    let fixture = Fixture::new();
    fixture.make("a");
    let first = fixture.order("pvc-1", "a", 1, GIB);
    fixture.place(CLUSTER, &first);
    let mut agent = fixture.agent();
    agent.poll().await;
    fixture.place(CLUSTER, &fixture.order("pvc-1", "a", 2, 2 * GIB));
    agent.enforce().await;
    let project = fixture.assert_in_force("pvc-1", "a", 2 * GIB);
    assert_eq!(fixture.report("pvc-1").unwrap().generation, 2);
    // Replayed to this process, and to the next one.
    fixture.place(CLUSTER, &first);
    agent.enforce().await;
    fixture.agent().poll().await;
    assert_eq!(fixture.assert_in_force("pvc-1", "a", 2 * GIB), project);
    assert_eq!(fixture.report("pvc-1").unwrap().generation, 2);
}

#[tokio::test]
async fn an_order_that_cannot_be_believed_changes_nothing_and_is_counted() {
    let fixture = Fixture::new();
    for name in ["a", "b"] {
        fixture.make(name);
    }
    fixture.place(CLUSTER, &fixture.order("pvc-a", "a", 1, GIB));
    let mut agent = fixture.agent();
    agent.poll().await;
    let larger = fixture.order("pvc-a", "a", 2, 9 * GIB);
    let unsigned = export_store::quota::QuotaSeal::new(None, CLUSTER, "export")
        .seal(&larger)
        .unwrap();
    let of_other = fixture.seal(OTHER).seal(&larger).unwrap();
    let new = export_store::quota::QuotaSeal::new(None, CLUSTER, "export");
    let new = new.seal(&fixture.order("pvc-b", "b", 1, GIB)).unwrap();
    for forged in [unsigned, of_other, b"{".to_vec(), Vec::new(), vec![b' '; 100_000]] {
        fixture.place_bytes(CLUSTER, "pvc-a", &forged);
        fixture.place_bytes(CLUSTER, "pvc-b", &new);
        agent.enforce().await;
        agent.write_heartbeats();
        assert_eq!(fixture.heartbeat().ignored_orders, 2);
        fixture.assert_in_force("pvc-a", "a", GIB);
        // A process that has not seen the valid order leaves what is in force.
        let mut next = fixture.agent();
        next.poll().await;
        fixture.assert_in_force("pvc-a", "a", GIB);
        assert_eq!(fixture.report("pvc-b"), None);
        assert_eq!(fixture.fake.tag(&fixture.root.join("b")), Tag::default());
    }
    fixture.place(CLUSTER, &larger);
    agent.enforce().await;
    fixture.assert_in_force("pvc-a", "a", 9 * GIB);
}

#[tokio::test]
async fn a_cluster_without_a_key_is_not_served_and_others_are() {
    let fixture = Fixture::new();
    let third = "33333333-2222-3333-4444-555555555555";
    fixture.add_cluster(third);
    for name in ["a", "b"] {
        fixture.make(name);
    }
    fixture.place(CLUSTER, &fixture.order("pvc-1", "a", 1, GIB));
    fixture.place(third, &fixture.order("pvc-1", "b", 1, GIB));
    let mut agent = fixture.agent();
    agent.poll().await;
    agent.write_heartbeats();
    fixture.assert_in_force("pvc-1", "a", GIB);
    assert_eq!(fixture.fake.tag(&fixture.root.join("b")), Tag::default());
    // Not signed, so the operator reports that the agent has no key.
    let heartbeat = fs::read_to_string(fixture.quota(third).join("agent")).unwrap();
    assert!(
        heartbeat.contains("KeyMissing") && !heartbeat.contains("signature"),
        "{heartbeat}"
    );
}

#[tokio::test]
async fn two_clusters_have_projects_of_their_own_and_cannot_take_each_others_directory() {
    let fixture = Fixture::new();
    fixture.add_cluster(OTHER);
    for name in ["a", "b"] {
        fixture.make(name);
    }
    fixture.place(CLUSTER, &fixture.order("pvc-1", "a", 1, GIB));
    fixture.place(OTHER, &fixture.order("pvc-1", "b", 1, 2 * GIB));
    fixture.place(OTHER, &fixture.order("pvc-2", "a", 1, 3 * GIB));
    let mut agent = fixture.agent();
    agent.poll().await;
    let project = fixture.assert_in_force("pvc-1", "a", GIB);
    let others = fixture.fake.tag(&fixture.root.join("b")).project;
    assert_ne!(project, others);
    assert_eq!(fixture.fake.limit(others).bytes, Some(2 * GIB));
    fixture.withdraw(OTHER, "pvc-1");
    agent.enforce().await;
    fixture.assert_in_force("pvc-1", "a", GIB);
    assert_eq!(fixture.fake.limit(others).bytes, None);
}

#[tokio::test]
async fn only_the_directory_itself_is_touched() {
    let fixture = Fixture::new();
    let outside = fixture.make("outside");
    fixture.make("real/data");
    fixture.make("swapped");
    let (linked, parent) = (fixture.root.join("link"), fixture.root.join("parent"));
    symlink(&outside, &linked).unwrap();
    symlink(fixture.root.join("real"), &parent).unwrap();
    fs::write(fixture.root.join("file"), "").unwrap();
    for (volume, directory, expected) in [
        ("pvc-link", "link", SizeProblem::NotADirectory),
        ("pvc-parent", "parent/data", SizeProblem::NotADirectory),
        ("pvc-file", "file", SizeProblem::NotADirectory),
        ("pvc-swapped", "swapped", SizeProblem::DirectoryReplaced),
        ("pvc-missing", "missing", SizeProblem::DirectoryMissing),
    ] {
        let mut order = fixture.order("pvc-x", "outside", 1, GIB);
        if directory != "swapped" && directory != "missing" {
            // The inode is right: only the path leads through a link.
            order.file_id = fixture.order("pvc-x", directory, 1, GIB).file_id;
        }
        order.volume = volume.to_owned();
        order.directory = export_store::quota::QuotaDirectory::parse(directory).unwrap();
        // One at a time: two orders for the directory outside would hinder each other.
        fixture.place(CLUSTER, &order);
        fixture.agent().poll().await;
        fixture.assert_failed(volume, expected);
        fixture.withdraw(CLUSTER, volume);
        fixture.agent().poll().await;
    }
    assert!(fixture.fake.0.borrow().tags.is_empty() && fixture.fake.0.borrow().limits.is_empty());
}

#[tokio::test]
async fn a_file_system_without_quotas_is_reported_and_nothing_is_changed() {
    let fixture = Fixture::new();
    fixture.make("a");
    fixture.place(CLUSTER, &fixture.order("pvc-1", "a", 1, GIB));
    fixture.fake.0.borrow_mut().problem = Some((AgentProblem::QuotasOff, "mount it with prjquota".to_owned()));
    let mut agent = fixture.agent();
    agent.poll().await;
    agent.write_heartbeats();
    let heartbeat = fixture.heartbeat();
    assert_eq!(
        (heartbeat.enforced, heartbeat.reason),
        (false, Some(AgentProblem::QuotasOff))
    );
    assert_eq!(fixture.report("pvc-1"), None);
    fixture.fake.0.borrow_mut().problem = None;
    agent.poll().await;
    fixture.assert_in_force("pvc-1", "a", GIB);
    // The root got a project that it passes on.
    let root = Tag {
        project: 7,
        inherits: true,
    };
    fixture.fake.set_tag(&fixture.root, root);
    agent.poll().await;
    agent.write_heartbeats();
    let heartbeat = fixture.heartbeat();
    assert_eq!(heartbeat.reason, Some(AgentProblem::RootInheritsProject));
    // What was created meanwhile has the project, too.
    let message = heartbeat.message.unwrap();
    assert!(
        message.ends_with(&format!(" -c 'chproj -D 0' {}/.nfs-operator", fixture.root.display())),
        "{message}"
    );
}

#[tokio::test]
async fn a_staged_copy_gets_its_limit_before_its_data() {
    let fixture = Fixture::new();
    let tree = format!(".nfs-operator/{CLUSTER}/staging/pvc-1/tree");
    fixture.make(&tree);
    fixture.place(CLUSTER, &fixture.order("pvc-1", &tree, 1, GIB));
    let mut agent = fixture.agent();
    agent.poll().await;
    let project = fixture.assert_in_force("pvc-1", &tree, GIB);
    // Moved to its place.
    fs::rename(fixture.root.join(&tree), fixture.root.join("pvc-1")).unwrap();
    fixture.place(CLUSTER, &fixture.order("pvc-1", "pvc-1", 2, GIB));
    agent.enforce().await;
    assert_eq!(fixture.assert_in_force("pvc-1", "pvc-1", GIB), project);
}

#[tokio::test(start_paused = true)]
async fn progress_is_reported_while_a_tree_is_assigned() {
    let mut fixture = Fixture::new();
    fixture.files_per_second = 40;
    for name in ["a/x", "a/y/z"] {
        fixture.make(name);
    }
    for number in 0..20 {
        fs::write(fixture.root.join(format!("a/y/{number}")), "").unwrap();
    }
    fixture.place(CLUSTER, &fixture.order("pvc-1", "a", 1, GIB));
    let mut agent = fixture.agent();
    agent.poll().await;
    let state = fixture.report("pvc-1").unwrap().state;
    assert_eq!(state, LimitState::Pending { visited: 0 });
    let mut rounds = 0;
    while fixture.report("pvc-1").unwrap().state != LimitState::InForce {
        tokio::time::advance(Duration::from_millis(100)).await;
        agent.visit().await;
        agent.write_heartbeats();
        rounds += 1;
        assert!(rounds < 100);
    }
    assert!(rounds >= 6, "{rounds}");
    let project = fixture.assert_in_force("pvc-1", "a", GIB);
    for path in ["a/x", "a/y", "a/y/z", "a/y/7"] {
        assert_eq!(fixture.fake.tag(&fixture.root.join(path)).project, project, "{path}");
    }
}
