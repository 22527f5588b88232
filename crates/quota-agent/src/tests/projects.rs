use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;

use export_store::quota::{LimitState, QuotaDirectory, Report, SizeProblem};

use super::fixture::{CLUSTER, Fixture, GIB};
use crate::plan::{Decision, FileSystem, Found, Subject, Wanted, plan};
use crate::projects::{ProjectRange, ReservedProjects};
use crate::quotas::{Limits, Tag};

#[tokio::test]
async fn a_removed_order_removes_the_limit_and_its_id_is_free_once_no_file_has_it() {
    let mut fixture = Fixture::new();
    fixture.range = "1000-1001".to_owned();
    for name in ["a", "b", "c"] {
        fixture.make(name);
    }
    fixture.place(CLUSTER, &fixture.order("pvc-a", "a", 1, GIB));
    fixture.place(CLUSTER, &fixture.order("pvc-b", "b", 1, GIB));
    let mut agent = fixture.agent();
    agent.poll().await;
    let project = fixture.assert_in_force("pvc-a", "a", GIB);
    fixture.withdraw(CLUSTER, "pvc-a");
    agent.enforce().await;
    assert_eq!(fixture.fake.limit(project), Limits::default());
    assert_eq!(fixture.report("pvc-a"), None);

    fixture.place(CLUSTER, &fixture.order("pvc-c", "c", 1, GIB));
    agent.enforce().await;
    fixture.assert_failed("pvc-c", SizeProblem::ProjectsExhausted);
    fixture.fake.0.borrow_mut().tags.retain(|_, tag| tag.project != project);
    agent.poll().await;
    assert_eq!(fixture.assert_in_force("pvc-c", "c", GIB), project);
}

#[tokio::test]
async fn an_order_that_was_removed_while_no_agent_ran_loses_its_limit() {
    let fixture = Fixture::new();
    fixture.make("a");
    fixture.place(CLUSTER, &fixture.order("pvc-1", "a", 1, GIB));
    fixture.agent().poll().await;
    let project = fixture.assert_in_force("pvc-1", "a", GIB);
    fixture.withdraw(CLUSTER, "pvc-1");
    fixture.agent().poll().await;
    assert_eq!(fixture.fake.limit(project), Limits::default());
    assert_eq!(fixture.report("pvc-1"), None);
}

#[tokio::test]
async fn ids_in_use_or_listed_are_not_taken() {
    let mut fixture = Fixture::new();
    fixture.range = "1000-1003".to_owned();
    let foreign = fixture.make("foreign");
    fixture.make("a");
    let inherits = false;
    fixture.fake.set_tag(
        &foreign,
        Tag {
            project: 1000,
            inherits,
        },
    );
    let bytes = Some(GIB);
    fixture
        .fake
        .0
        .borrow_mut()
        .limits
        .insert(1001, Limits { bytes, inodes: None });
    fixture.place(CLUSTER, &fixture.order("pvc-1", "a", 1, GIB));
    let mut agent = fixture.agent();
    agent.poll().await;
    assert_eq!(fixture.assert_in_force("pvc-1", "a", GIB), 1002);
    assert_eq!(fixture.fake.limit(1001).bytes, Some(GIB));

    let listed = ReservedProjects::parse("# comment\nweb:1000\nbad\n", "1001:/srv/web\n");
    assert!(listed.contains(1000) && listed.contains(1001) && !listed.contains(1002));
}

fn limited(bytes: u64) -> Limits {
    Limits {
        bytes: Some(bytes),
        inodes: None,
    }
}

/// Has somebody else give a directory of their own a project.
fn somebody_uses(fixture: &Fixture, project: u32) {
    let inherits = true;
    fixture
        .fake
        .set_tag(&fixture.make("foreign"), Tag { project, inherits });
}

#[tokio::test]
async fn an_id_that_somebody_uses_since_the_last_poll_is_left_alone() {
    let mut fixture = Fixture::new();
    fixture.range = "1000-1002".to_owned();
    fixture.make("a");
    let mut agent = fixture.agent();
    agent.poll().await;
    // One is used, and the other one is about to be.
    somebody_uses(&fixture, 1000);
    let limits = [(1000, limited(5 * GIB)), (1001, limited(6 * GIB))];
    fixture.fake.0.borrow_mut().limits.extend(limits);
    fixture.place(CLUSTER, &fixture.order("pvc-1", "a", 1, GIB));
    agent.enforce().await;
    assert_eq!(fixture.assert_in_force("pvc-1", "a", GIB), 1002);
    for (project, limits) in limits {
        assert_eq!(fixture.fake.limit(project), limits);
    }
    // None of them was ever changed.
    let set = &fixture.fake.0.borrow().set;
    assert_eq!(set.iter().copied().collect::<Vec<u32>>(), [1002]);
}

#[tokio::test]
async fn an_id_that_somebody_uses_while_its_limit_is_set_is_not_taken() {
    let mut fixture = Fixture::new();
    fixture.range = "1000-1001".to_owned();
    let foreign = fs::metadata(fixture.make("foreign")).unwrap().ino();
    fixture.make("a");
    let mut agent = fixture.agent();
    agent.poll().await;
    let (project, inherits) = (1000, true);
    fixture.fake.0.borrow_mut().raced = [(foreign, Tag { project, inherits })].into();
    fixture.place(CLUSTER, &fixture.order("pvc-1", "a", 1, GIB));
    agent.enforce().await;
    assert_eq!(fixture.assert_in_force("pvc-1", "a", GIB), 1001);
    assert_eq!(fixture.fake.limit(1000), Limits::default());
}

#[tokio::test]
async fn an_id_that_somebody_uses_after_a_process_reported_it_is_not_taken() {
    let mut fixture = Fixture::new();
    fixture.range = "1000-1001".to_owned();
    fixture.make("a");
    let order = fixture.order("pvc-1", "a", 1, GIB);
    fixture.place(CLUSTER, &order);
    // The process was killed before it set the limit.
    let report = Report {
        volume: order.volume.clone(),
        generation: order.generation,
        file_id: order.file_id,
        project: Some(1000),
        state: LimitState::Pending { visited: 0 },
        visit: Vec::new(),
    };
    fixture.place_report(CLUSTER, &report);
    let limits = limited(5 * GIB);
    somebody_uses(&fixture, 1000);
    fixture.fake.0.borrow_mut().limits.insert(1000, limits);
    let mut agent = fixture.agent();
    agent.poll().await;
    assert_eq!(fixture.assert_in_force("pvc-1", "a", GIB), 1001);
    assert_eq!(fixture.fake.limit(1000), limits);
}

#[tokio::test]
async fn a_volume_for_which_no_other_id_is_free_fails_and_takes_none() {
    let mut fixture = Fixture::new();
    fixture.range = "1000-1000".to_owned();
    fixture.make("a");
    let mut agent = fixture.agent();
    agent.poll().await;
    somebody_uses(&fixture, 1000);
    fixture.place(CLUSTER, &fixture.order("pvc-1", "a", 1, GIB));
    agent.enforce().await;
    fixture.assert_failed("pvc-1", SizeProblem::ProjectsExhausted);
    assert_eq!(fixture.report("pvc-1").unwrap().project, None);
    assert_eq!(fixture.fake.tag(&fixture.root.join("a")), Tag::default());
    assert_eq!(fixture.fake.limit(1000), Limits::default());
}

#[tokio::test]
async fn a_limit_that_cannot_be_removed_is_not_forgotten() {
    let fixture = Fixture::new();
    for name in ["a", "b"] {
        fixture.make(name);
        fixture.place(CLUSTER, &fixture.order(&format!("pvc-{name}"), name, 1, GIB));
    }
    let mut agent = fixture.agent();
    agent.poll().await;
    let [stuck, other] = ["a", "b"].map(|name| fixture.assert_in_force(&format!("pvc-{name}"), name, GIB));
    fixture.fake.0.borrow_mut().fixed.push(stuck);
    for name in ["pvc-a", "pvc-b"] {
        fixture.withdraw(CLUSTER, name);
    }
    agent.enforce().await;
    assert_eq!(fixture.report("pvc-a").and_then(|report| report.project), Some(stuck));
    assert_eq!(
        (fixture.report("pvc-b"), fixture.fake.limit(other)),
        (None, Limits::default())
    );
    fixture.fake.0.borrow_mut().fixed.clear();
    agent.enforce().await;
    assert_eq!(
        (fixture.report("pvc-a"), fixture.fake.limit(stuck)),
        (None, Limits::default())
    );
}

#[test]
fn a_range_has_two_numbers_in_order() {
    for wrong in ["", "1", "0-5", "6-5", "1-", "-1-5", "1-2147483648", "a-b"] {
        assert!(wrong.parse::<ProjectRange>().is_err(), "{wrong}");
    }
    let range = "5-6".parse::<ProjectRange>().unwrap();
    assert!(range.contains(5) && range.contains(6) && !range.contains(7));
    assert_eq!(range.to_string(), "5-6");
}

#[tokio::test]
async fn a_directory_with_a_foreign_project_is_left_alone() {
    let fixture = Fixture::new();
    let path = fixture.make("a");
    let foreign = Tag {
        project: 7,
        inherits: true,
    };
    fixture.fake.set_tag(&path, foreign);
    fixture.place(CLUSTER, &fixture.order("pvc-1", "a", 1, GIB));
    fixture.agent().poll().await;
    fixture.assert_failed("pvc-1", SizeProblem::ForeignProject);
    assert_eq!(fixture.fake.tag(&path), foreign);
}

#[test]
fn a_project_that_was_listed_later_is_reported_with_the_file() {
    let order = Wanted {
        directory: QuotaDirectory::parse("a").unwrap(),
        file_id: 7,
        generation: 1,
        limits: Limits::default(),
    };
    let (project, inherits) = (1000, true);
    let found = Found::Directory(Tag { project, inherits });
    let subject = Subject {
        order: &order,
        report: None,
        found: &found,
    };
    let key = ("cluster".into(), "pvc-1".into());
    for (projid, projects, expected) in [
        ("web:1000", "", "/etc/projid"),
        ("", "1000:/srv/web", "/etc/projects"),
        ("", "", ""),
    ] {
        let file_system = FileSystem {
            accounted: &BTreeMap::new(),
            range: &"1000-1999".parse().unwrap(),
            reserved: &ReservedProjects::parse(projid, projects),
            taken: &BTreeSet::new(),
            released: &BTreeMap::new(),
        };
        let decisions = plan(&[(Clone::clone(&key), subject)], file_system);
        match &decisions[0].1 {
            Decision::Fail(SizeProblem::ForeignProject, message) => {
                assert!(
                    !expected.is_empty() && message.contains(&format!("listed in {expected}:")),
                    "{message}"
                );
            }
            decision => assert!(
                expected.is_empty() && matches!(decision, Decision::Enforce(_)),
                "{decision:?}"
            ),
        }
    }
}

#[tokio::test]
async fn a_moved_directory_keeps_its_limit_and_gets_another_one_also_after_a_restart() {
    let fixture = Fixture::new();
    fixture.make("a");
    let order = fixture.order("pvc-1", "a", 1, GIB);
    fixture.place(CLUSTER, &order);
    let mut agent = fixture.agent();
    agent.poll().await;
    let project = fixture.assert_in_force("pvc-1", "a", GIB);
    fs::rename(fixture.root.join("a"), fixture.root.join("archived-a")).unwrap();
    let mut larger = order;
    larger.generation = 2;
    larger.bytes = Some(2 * GIB);
    fixture.place(CLUSTER, &larger);
    for mut agent in [agent, fixture.agent()] {
        agent.poll().await;
        assert_eq!(fixture.report("pvc-1").unwrap().generation, 2);
        assert_eq!(fixture.assert_in_force("pvc-1", "archived-a", 2 * GIB), project);
    }
}

#[tokio::test]
async fn a_limit_is_confirmed_for_no_other_directory_that_took_the_name() {
    let fixture = Fixture::new();
    fixture.make("a");
    let mut order = fixture.order("pvc-1", "a", 1, GIB);
    fixture.place(CLUSTER, &order);
    let mut agent = fixture.agent();
    agent.poll().await;
    let project = fixture.assert_in_force("pvc-1", "a", GIB);
    fs::rename(fixture.root.join("a"), fixture.root.join("archived-a")).unwrap();
    let stranger = fixture.make("a");
    // The operator names the new place later.
    for mut agent in [agent, fixture.agent()] {
        agent.poll().await;
        assert_eq!(fixture.assert_in_force("pvc-1", "archived-a", GIB), project);
    }
    order.generation = 2;
    order.bytes = Some(2 * GIB);
    fixture.place(CLUSTER, &order);
    for _ in 0..2 {
        fixture.agent().poll().await;
        fixture.assert_failed("pvc-1", SizeProblem::DirectoryReplaced);
        assert_eq!(fixture.fake.limit(project).bytes, Some(GIB), "what is in force stays");
        assert_eq!(fixture.fake.tag(&stranger), Tag::default());
    }
    let mut order = fixture.order("pvc-1", "archived-a", 3, 2 * GIB);
    order.generation = 3;
    fixture.place(CLUSTER, &order);
    fixture.agent().poll().await;
    assert_eq!(fixture.assert_in_force("pvc-1", "archived-a", 2 * GIB), project);
}

#[tokio::test]
async fn a_directory_that_is_gone_has_no_limit_in_force() {
    for (is_restored, expected) in [
        (false, SizeProblem::DirectoryMissing),
        (true, SizeProblem::DirectoryReplaced),
    ] {
        let fixture = Fixture::new();
        let path = fixture.make("a");
        let (agent, project) = fixture.limited("pvc-1", "a", GIB).await;
        fs::remove_dir(&path).unwrap();
        fixture.fake.0.borrow_mut().tags.clear();
        if is_restored {
            // From a backup: another inode.
            fixture.make("other");
            fs::rename(fixture.root.join("other"), &path).unwrap();
        }
        for mut agent in [agent, fixture.agent()] {
            agent.poll().await;
            fixture.assert_failed("pvc-1", expected);
            assert_eq!(fixture.report("pvc-1").unwrap().project, Some(project));
        }
        fixture.withdraw(CLUSTER, "pvc-1");
        fixture.agent().poll().await;
        assert_eq!(fixture.fake.limit(project), Limits::default());
    }
}

#[tokio::test]
async fn a_new_limit_for_a_directory_that_is_gone_since_the_last_poll_is_not_confirmed() {
    let fixture = Fixture::new();
    let path = fixture.make("a");
    let mut order = fixture.order("pvc-1", "a", 1, GIB);
    fixture.place(CLUSTER, &order);
    let mut agent = fixture.agent();
    agent.poll().await;
    agent.poll().await;
    fs::remove_dir(&path).unwrap();
    fixture.fake.0.borrow_mut().tags.clear();
    agent.forget_directories();
    order.generation = 2;
    order.bytes = Some(2 * GIB);
    fixture.place(CLUSTER, &order);
    agent.enforce().await;
    fixture.assert_failed("pvc-1", SizeProblem::DirectoryMissing);
}

#[tokio::test]
async fn another_directory_of_a_volume_releases_the_project_of_the_former_one() {
    for is_there in [true, false] {
        let fixture = Fixture::new();
        for name in ["a", "b"] {
            fixture.make(name);
        }
        let former = fixture.order("pvc-1", "a", 1, GIB);
        fixture.place(CLUSTER, &former);
        let mut agent = fixture.agent();
        agent.poll().await;
        let project = fixture.assert_in_force("pvc-1", "a", GIB);
        let next = fixture.order("pvc-1", "b", 2, 2 * GIB);
        fixture.place(CLUSTER, &next);
        if !is_there {
            fs::remove_dir(fixture.root.join("b")).unwrap();
        }
        agent.enforce().await;
        assert_eq!(fixture.fake.limit(project), Limits::default());
        match is_there {
            true => assert_ne!(fixture.assert_in_force("pvc-1", "b", 2 * GIB), project),
            false => fixture.assert_failed("pvc-1", SizeProblem::DirectoryMissing),
        }
        // Put back by somebody: it releases nothing.
        let limits = fixture.fake.0.borrow().limits.clone();
        fixture.place(CLUSTER, &former);
        fixture.agent().poll().await;
        assert_eq!(fixture.fake.0.borrow().limits, limits);
        assert_eq!(fixture.report("pvc-1").unwrap().generation, 2);
    }
}

#[tokio::test]
async fn a_project_that_cannot_be_released_is_not_forgotten() {
    let fixture = Fixture::new();
    for name in ["a", "b"] {
        fixture.make(name);
    }
    let (mut agent, project) = fixture.limited("pvc-1", "a", GIB).await;
    fixture.fake.0.borrow_mut().fixed.push(project);
    fixture.place(CLUSTER, &fixture.order("pvc-1", "b", 2, 2 * GIB));
    agent.enforce().await;
    assert_eq!(fixture.report("pvc-1").unwrap().project, Some(project));
    fixture.fake.0.borrow_mut().fixed.clear();
    agent.enforce().await;
    assert_eq!(fixture.fake.limit(project), Limits::default());
    assert_ne!(fixture.assert_in_force("pvc-1", "b", 2 * GIB), project);
}

#[tokio::test]
async fn volumes_that_exchange_their_directories_keep_the_projects_there() {
    let fixture = Fixture::new();
    for name in ["a", "b"] {
        fixture.make(name);
        fs::write(fixture.root.join(name).join("file"), "").unwrap();
    }
    fixture.place(CLUSTER, &fixture.order("pvc-1", "a", 1, GIB));
    fixture.place(CLUSTER, &fixture.order("pvc-2", "b", 1, GIB));
    let mut agent = fixture.agent();
    agent.poll().await;
    agent.visit().await;
    let [a, b] = [("pvc-1", "a"), ("pvc-2", "b")].map(|(volume, name)| fixture.assert_in_force(volume, name, GIB));
    let assigned = fixture.fake.0.borrow().assigned;
    fixture.place(CLUSTER, &fixture.order("pvc-1", "b", 2, 2 * GIB));
    fixture.place(CLUSTER, &fixture.order("pvc-2", "a", 2, 3 * GIB));
    agent.poll().await;
    assert_eq!(fixture.assert_in_force("pvc-1", "b", 2 * GIB), b);
    assert_eq!(fixture.assert_in_force("pvc-2", "a", 3 * GIB), a);
    assert_eq!(fixture.fake.0.borrow().assigned, assigned);
}

#[tokio::test]
async fn a_limit_counts_as_removed_only_when_that_was_read() {
    let fixture = Fixture::new();
    fixture.make("a");
    let (mut agent, project) = fixture.limited("pvc-1", "a", GIB).await;
    fixture.fake.0.borrow_mut().is_mute = true;
    // An order without limits.
    let mut order = fixture.order("pvc-1", "a", 2, GIB);
    order.bytes = None;
    fixture.place(CLUSTER, &order);
    agent.enforce().await;
    fixture.assert_failed("pvc-1", SizeProblem::ChangeRefused);
    // No order at all.
    fixture.withdraw(CLUSTER, "pvc-1");
    agent.enforce().await;
    assert_eq!(fixture.report("pvc-1").and_then(|report| report.project), Some(project));
    fixture.fake.0.borrow_mut().is_mute = false;
    agent.enforce().await;
    assert_eq!(
        (fixture.report("pvc-1"), fixture.fake.limit(project)),
        (None, Limits::default())
    );
}

#[tokio::test]
async fn a_restored_directory_is_handed_over_with_its_project() {
    let fixture = Fixture::new();
    fixture.make("a");
    fs::write(fixture.root.join("a/file"), "").unwrap();
    fixture.place(CLUSTER, &fixture.order("pvc-1", "a", 1, GIB));
    let mut agent = fixture.agent();
    agent.poll().await;
    agent.visit().await;
    let project = fixture.assert_in_force("pvc-1", "a", GIB);
    fs::rename(fixture.root.join("a"), fixture.root.join("restored")).unwrap();
    fixture.place(CLUSTER, &fixture.order("pvc-2", "restored", 1, 2 * GIB));
    agent.enforce().await;
    fixture.assert_failed("pvc-2", SizeProblem::DirectoryTaken);
    assert_eq!(fixture.fake.limit(project).bytes, Some(GIB));
    fixture.withdraw(CLUSTER, "pvc-1");
    agent.enforce().await;
    assert_eq!(fixture.assert_in_force("pvc-2", "restored", 2 * GIB), project);
}

#[tokio::test]
async fn a_directory_in_a_volume_is_not_taken_from_it() {
    let fixture = Fixture::new();
    fixture.make("a/b");
    fixture.place(CLUSTER, &fixture.order("pvc-1", "a", 1, GIB));
    fixture.place(CLUSTER, &fixture.order("pvc-2", "a/b", 1, 2 * GIB));
    let mut agent = fixture.agent();
    agent.poll().await;
    agent.visit().await;
    let project = fixture.assert_in_force("pvc-1", "a", GIB);
    fixture.assert_failed("pvc-2", SizeProblem::DirectoryTaken);
    assert_eq!(fixture.fake.tag(&fixture.root.join("a/b")).project, project);
}

#[tokio::test]
async fn limits_and_projects_that_somebody_changed_are_repaired() {
    let fixture = Fixture::new();
    let path = fixture.make("a");
    let (mut agent, project) = fixture.limited("pvc-1", "a", GIB).await;
    fixture.fake.0.borrow_mut().limits.clear();
    agent.poll().await;
    fixture.assert_in_force("pvc-1", "a", GIB);
    fixture.fake.set_tag(&path, Tag::default());
    // Another process, or the verification of this one.
    fixture.agent().poll().await;
    assert_eq!(fixture.assert_in_force("pvc-1", "a", GIB), project);
}

#[tokio::test]
async fn a_directory_that_was_copied_with_its_project_gets_one_of_its_own() {
    let fixture = Fixture::new();
    fixture.make("a");
    let copy = fixture.make("copy");
    let (mut agent, project) = fixture.limited("pvc-1", "a", GIB).await;
    let inherits = true;
    fixture.fake.set_tag(&copy, Tag { project, inherits });
    fixture.place(CLUSTER, &fixture.order("pvc-0", "copy", 1, GIB));
    agent.enforce().await;
    assert_ne!(fixture.assert_in_force("pvc-0", "copy", GIB), project);
    assert_eq!(fixture.assert_in_force("pvc-1", "a", GIB), project);
}
