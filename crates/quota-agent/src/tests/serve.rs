//! What an agent that runs notices between two polls.

use std::fs;
use std::path::Path;
use std::time::Duration;

use export_store::quota::{LimitState, Order};
use tokio_util::sync::CancellationToken;

use super::fixture::{CLUSTER, Fake, Fixture, GIB};
use crate::agent::run_with;
use crate::error::AgentError;

const OTHER: &str = "99999999-2222-3333-4444-555555555555";

/// Waits for something that the agent does before its second poll.
async fn until(fixture: &Fixture, what: &str, is_true: impl Fn() -> bool) {
    while !is_true() {
        assert!(fixture.fake.0.borrow().polls < 2, "not before the next poll: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn is_in_force(fixture: &Fixture, cluster: &str, order: &Order) -> bool {
    let report = fixture.report_in(cluster, &order.volume);
    report.is_some_and(|report| report.state == LimitState::InForce && report.generation == order.generation)
}

#[tokio::test]
async fn orders_are_in_force_before_the_next_poll() {
    let fixture = Fixture::new();
    for directory in ["a", "b", "c", "d", "e"] {
        fixture.make(directory);
    }
    let place = async |cluster: &str, orders: &[Order]| {
        orders.iter().for_each(|order| fixture.place(cluster, order));
        for order in orders {
            let what = format!("{} of generation {}", order.volume, order.generation);
            until(&fixture, &what, || is_in_force(&fixture, cluster, order)).await;
        }
    };
    let order = |name: &str, generation| fixture.order(&format!("pvc-{name}"), name, generation, generation * GIB);
    let use_it = async {
        until(&fixture, "the first usage", || {
            fixture.quota(CLUSTER).join("usage").exists()
        })
        .await;
        place(CLUSTER, &[order("a", 1)]).await;
        // The agent collects orders after a round with several.
        place(CLUSTER, &["a", "b", "c"].map(|name| order(name, 2))).await;
        place(CLUSTER, &[order("d", 1)]).await;
        fixture.withdraw(CLUSTER, "pvc-b");
        until(&fixture, "no report without an order", || {
            fixture.report("pvc-b").is_none()
        })
        .await;
        // Another operator begins to use the export. Its folder appears with all that is in it.
        let folder = fixture.root.join(".nfs-operator").join(OTHER);
        let prepared = fixture.root.join("prepared");
        fs::create_dir_all(prepared.join("records")).unwrap();
        fs::rename(prepared, folder).unwrap();
        until(&fixture, "a folder for reports", || {
            fixture.quota(OTHER).join("reports").exists()
        })
        .await;
        place(OTHER, &[order("e", 1)]).await;
        place(CLUSTER, &[order("d", 3)]).await;
    };
    let mut agent = fixture.agent();
    tokio::select! {
        ended = agent.serve(CancellationToken::new()) => panic!("it ended: {ended:?}"),
        () = use_it => {}
    }
    for (volume, directory, size) in [("pvc-a", "a", 2), ("pvc-c", "c", 2), ("pvc-d", "d", 3)] {
        fixture.assert_in_force(volume, directory, size * GIB);
    }
}

#[tokio::test]
async fn another_file_system_is_served_by_one_agent() {
    let fixture = Fixture::new();
    fixture.make("a");
    let order = fixture.order("pvc-1", "a", 1, GIB);
    fixture.place(CLUSTER, &order);
    let run = || {
        run_with(
            fixture.settings(&[&fixture]),
            |_| Ok(fixture.fake.clone()),
            CancellationToken::new(),
        )
    };
    let use_it = async {
        until(&fixture, "the order", || is_in_force(&fixture, CLUSTER, &order)).await;
        let second = run().await;
        assert!(matches!(second, Err(AgentError::AnotherAgent { .. })), "{second:?}");
    };
    tokio::select! {
        ended = run() => panic!("it ended: {ended:?}"),
        () = use_it => {}
    }
    let failed = |_: &Path| {
        Err::<Fake, _>(AgentError::Read {
            path: "socket".into(),
            source: std::io::ErrorKind::NotFound.into(),
        })
    };
    let failed = run_with(fixture.settings(&[&fixture]), failed, CancellationToken::new()).await;
    assert!(matches!(failed, Err(AgentError::Read { .. })), "{failed:?}");
}
