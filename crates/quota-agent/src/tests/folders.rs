//! Folders and keys of clusters that change while the agent runs.

use std::fs;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::fixture::{CLUSTER, Fixture, GIB};

const OTHER: &str = "99999999-2222-3333-4444-555555555555";

#[tokio::test]
async fn a_rotated_key_continues_the_heartbeats_and_signs_the_reports_again() {
    let mut fixture = Fixture::new();
    fixture.make("a");
    fs::write(fixture.root.join("a/file"), "").unwrap();
    fixture.place(CLUSTER, &fixture.order("pvc-1", "a", 1, GIB));
    let mut agent = fixture.agent();
    agent.poll().await;
    agent.visit().await;
    let project = fixture.assert_in_force("pvc-1", "a", GIB);
    for _ in 0..3 {
        agent.write_heartbeats();
    }
    let before = fixture.heartbeat();

    // The new key, then the previous one.
    let previous = fixture.key_lines();
    fixture.salt = 1;
    fixture.write_keys(&(fixture.key_lines() + &previous));
    agent.reload();
    agent.poll().await;
    agent.write_heartbeats();
    let after = fixture.heartbeat();
    assert_eq!(
        (&after.instance, after.sequence),
        (&before.instance, before.sequence + 1)
    );
    assert_eq!(fixture.assert_in_force("pvc-1", "a", GIB), project);

    // The previous one is removed, as is that of the operator.
    fixture.write_keys(&fixture.key_lines());
    agent.reload();
    let assigned = fixture.fake.0.borrow().assigned;
    fixture.place(CLUSTER, &fixture.order("pvc-1", "a", 2, 2 * GIB));
    agent.poll().await;
    agent.write_heartbeats();
    assert_eq!(fixture.heartbeat().sequence, before.sequence + 2);
    assert_eq!(fixture.assert_in_force("pvc-1", "a", 2 * GIB), project);
    assert_eq!(
        fixture.fake.0.borrow().assigned,
        assigned,
        "the tree is not visited again"
    );
}

#[tokio::test]
async fn heartbeats_continue_when_folders_are_recreated() {
    let fixture = Fixture::new();
    let mut agent = fixture.agent();
    agent.poll().await;
    for _ in 0..3 {
        agent.write_heartbeats();
    }
    let quota = fixture.quota(CLUSTER);
    for folder in [&quota.join("orders"), &quota, quota.parent().unwrap()] {
        let before = fixture.heartbeat();
        fs::remove_dir_all(folder).unwrap();
        agent.poll().await;
        fixture.add_cluster(CLUSTER);
        agent.poll().await;
        agent.write_heartbeats();
        let after = fixture.heartbeat();
        assert_eq!(after.instance, before.instance);
        assert!(
            after.sequence > before.sequence,
            "{}: {}",
            folder.display(),
            after.sequence
        );
    }
}

#[tokio::test]
async fn reports_go_to_the_folder_that_is_there_now() {
    let fixture = Fixture::new();
    for name in ["a", "b"] {
        fixture.make(name);
    }
    let (mut agent, project) = fixture.limited("pvc-1", "a", GIB).await;
    let reports = fixture.quota(CLUSTER).join("reports");
    fs::rename(&reports, reports.with_extension("old")).unwrap();
    fs::create_dir(&reports).unwrap();
    fixture.place(CLUSTER, &fixture.order("pvc-2", "b", 1, 2 * GIB));
    agent.poll().await;
    fixture.assert_in_force("pvc-2", "b", 2 * GIB);
    assert_eq!(fixture.assert_in_force("pvc-1", "a", GIB), project);
}

#[tokio::test]
async fn a_cluster_whose_usage_cannot_be_written_keeps_it_from_no_other() {
    let fixture = Fixture::new();
    fixture.add_cluster(OTHER);
    fixture.make("a");
    fixture.place(OTHER, &fixture.order("pvc-1", "a", 1, GIB));
    let mut agent = fixture.agent();
    agent.poll().await;
    // The agent writes to this draft first.
    fs::create_dir(fixture.quota(CLUSTER).join(".draft-usage")).unwrap();
    agent.write_usage().await;
    let usage = fs::read_to_string(fixture.quota(OTHER).join("usage")).unwrap();
    assert!(usage.contains("pvc-1"), "{usage}");
}

#[tokio::test]
async fn clusters_whose_folders_are_gone_make_room_for_others() {
    let fixture = Fixture::new();
    let cluster = |number: usize| format!("00000000-0000-0000-0000-{number:012}");
    let mut agent = fixture.agent();
    for round in 0..3 {
        let clusters: Vec<String> = (0..60).map(|number| cluster(100 * round + number)).collect();
        clusters.iter().for_each(|cluster| fixture.add_cluster(cluster));
        agent.poll().await;
        for cluster in clusters {
            assert!(fixture.quota(&cluster).is_dir(), "{cluster}");
            fs::remove_dir_all(fixture.root.join(".nfs-operator").join(cluster)).unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_ends_when_another_directory_is_at_the_path_of_its_export() {
    let fixture = Fixture::new();
    let mut agent = fixture.agent();
    let mut serve = async || {
        let serve = agent.serve(CancellationToken::new());
        tokio::time::timeout(Duration::from_secs(70), serve).await
    };
    assert!(serve().await.is_err(), "it serves its export");
    let former = fixture.root.with_extension("former");
    fs::rename(&fixture.root, &former).unwrap();
    assert!(
        serve().await.is_err(),
        "an export that is not there keeps it from no other"
    );
    // As if a file system was mounted there.
    fs::create_dir(&fixture.root).unwrap();
    let ended = serve().await.unwrap().unwrap_err().to_string();
    assert!(ended.contains(&fixture.root.display().to_string()), "{ended}");
    fs::remove_dir_all(former).unwrap();
}
