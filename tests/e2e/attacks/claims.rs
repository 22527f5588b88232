//! Claims in great numbers, large claims, and connections that never complete a request.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rig::objects::{merge, reference, with_fields};
use serde_json::{Value, json};

use super::attacked_cluster::{ATTACKED, ATTACKER, AttackedCluster, Bounds, MAX_REPORTS, TIMEOUT, claim};
use crate::support::shared::Test;

/// Claims that are larger than what the backend has left, and the size of their annotations: almost the maximum.
const WAITING: usize = 2000;
const ANNOTATIONS_BYTES: usize = 15 << 10;
/// More of them with the maximum of annotations, whose names look like the operator's own.
const PADDED: usize = 200;
/// Claims that have reported a change when the other tenant creates its next claim.
const CHANGED: usize = 50;
/// Small claims that come and go meanwhile.
const SMALL: usize = 10;
/// Claims that are provisioned at once.
const FLOOD: usize = 200;
/// Claims of a class that does not exist, and the size of each.
const FOREIGN: usize = 60;
const FOREIGN_BYTES: usize = 1 << 20;
/// Connections to each port that never complete a request.
const CONNECTIONS: usize = 300;
/// Bytes of the header of some of them: less than what an HTTP server accepts by default.
const HEADER_BYTES: usize = 300 << 10;

/// Clients that never complete a request, and connect again when they are disconnected.
struct HalfOpenConnections {
    stop: Arc<AtomicBool>,
}

impl HalfOpenConnections {
    fn start(addresses: [SocketAddr; 2]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        for address in addresses {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || {
                let mut connections: Vec<TcpStream> = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    connections.retain_mut(|connection| connection.write_all(b"x").is_ok());
                    for number in connections.len()..CONNECTIONS {
                        // Every other one sends as much as it can.
                        let header_bytes = if number % 2 == 0 { HEADER_BYTES } else { 0 };
                        let header =
                            [b"GET /metrics HTTP/1.1\r\nhost: ".as_slice(), &vec![b'x'; header_bytes]].concat();
                        if let Ok(mut connection) = TcpStream::connect(address)
                            && connection.set_write_timeout(Some(Duration::from_secs(1))).is_ok()
                            && connection.write_all(&header).is_ok()
                        {
                            connections.push(connection);
                        }
                    }
                    std::thread::sleep(Duration::from_millis(500));
                }
            });
        }
        Self { stop }
    }
}

impl Drop for HalfOpenConnections {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Returns a claim that is larger than what the backend has left.
fn waiting_claim(number: usize) -> Value {
    let annotations = json!({"metadata": {"annotations": {"text": "x".repeat(ANNOTATIONS_BYTES)}}});
    with_fields(
        claim(ATTACKER, &format!("waiting-{number}"), ATTACKED, "2Gi"),
        annotations,
    )
}

/// Returns a claim with 240 KiB of annotations: the API server allows 256 KiB.
fn padded_claim(number: usize) -> Value {
    let annotations = (0..60).map(|own| (format!("nfs-operator.io/text-{own}"), json!("x".repeat(4000))));
    let annotations: serde_json::Map<String, Value> = annotations.collect();
    let padded = claim(ATTACKER, &format!("padded-{number}"), ATTACKED, "2Gi");
    with_fields(padded, json!({"metadata": {"annotations": annotations}}))
}

/// Returns a claim of about 1 MiB: the API server allows 256 KiB of annotations, and does not limit the selector.
fn large_claim(number: usize) -> Value {
    let annotations = json!({"metadata": {"annotations": {"text": "x".repeat(200 << 10)}}});
    let values: Vec<String> = (0..(FOREIGN_BYTES - (200 << 10)) / 64)
        .map(|value| format!("{value:060}"))
        .collect();
    let expressions = json!([{"key": "key", "operator": "In", "values": values}]);
    let mut large = claim(ATTACKER, &format!("foreign-{number}"), "does-not-exist", "1Mi");
    merge(&mut large, &annotations);
    merge(
        &mut large,
        &json!({"spec": {"selector": {"matchExpressions": expressions}}}),
    );
    large
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_and_connections_in_great_numbers_stop_nobody() -> Test {
    let mut env = AttackedCluster::start(json!({"capacity": {"limit": "1Gi"}})).await?;
    let lease = reference("coordination.k8s.io/v1", "Lease", Some(ATTACKER), "nfs-operator");
    let spec = json!({"spec": {"holderIdentity": "attacker", "leaseDurationSeconds": 1_000_000}});
    env.attacker.create(&with_fields(lease, spec)).await?;
    env.serve_bystander("before").await?;
    let neighbour = env.neighbour("neighbour").await?;

    let bounds = Bounds {
        count: WAITING + PADDED,
        requests: 4,
        log_bytes: 2048,
        cpu_milliseconds: 50,
    };
    env.attack("claims over the limit", bounds, async {
        env.create_claims((0..PADDED).map(padded_claim)).await?;
        env.create_claims((0..WAITING).map(waiting_claim)).await?;
        env.serve_bystander("flood").await?;
        env.wait_waiting("CapacityExceeded", WAITING).await?;
        env.wait_waiting("LimitExceeded", PADDED).await?;
        env.wait_events(WAITING + PADDED).await
    })
    .await?;
    let reports = env.concurrent_reports()?;
    println!("{reports} claims reported at the same time why they wait");
    assert!((1..=MAX_REPORTS).contains(&reports), "{reports}");

    // Each of them reports the limit.
    let bounds = Bounds {
        count: WAITING,
        requests: 2,
        log_bytes: 2048,
        cpu_milliseconds: 50,
    };
    env.attack("claims that report a change", bounds, async {
        let before = env.audit_end()?;
        env.set_limit("1536Mi").await?;
        env.wait_reports(before, CHANGED).await?;
        env.serve_bystander("changed").await?;
        env.wait_reports(before, WAITING).await
    })
    .await?;

    let bounds = Bounds {
        count: SMALL,
        requests: 40,
        log_bytes: 2048,
        cpu_milliseconds: 500,
    };
    env.attack("small claims that come and go", bounds, async {
        for number in 0..SMALL {
            let small = claim(ATTACKER, &format!("small-{number}"), ATTACKED, "1Mi");
            let (small, volume) = env.attackers_volume(&small).await?;
            env.attacker.delete(&small).await?;
            env.objects.wait_gone(&volume, TIMEOUT).await?;
        }
        env.serve_bystander("capacity").await?;
        env.purge_neighbours(&[neighbour]).await
    })
    .await?;

    let bounds = Bounds {
        count: FLOOD,
        requests: 12,
        log_bytes: 2048,
        cpu_milliseconds: 100,
    };
    env.attack("claims that are provisioned", bounds, async {
        let claims = (0..FLOOD).map(|number| claim(ATTACKER, &format!("flood-{number}"), ATTACKED, "1Mi"));
        let claims = env.create_claims(claims).await?;
        env.serve_bystander("provisioned").await?;
        for claim in &claims {
            env.objects
                .wait_condition(claim, "nfs-operator.io/Provisioned", "True", None, TIMEOUT)
                .await?;
        }
        Ok(())
    })
    .await?;

    env.create_claims((0..FOREIGN).map(large_claim)).await?;
    let connections = HalfOpenConnections::start(env.operator.http_addresses());
    let peak = env.restart().await?;
    println!(
        "start with {FOREIGN} large claims: at most {:.1} MiB",
        peak as f64 / f64::from(1 << 20)
    );
    // What the start causes must not count as a part of the attack.
    env.wait_waiting("CapacityExceeded", WAITING).await?;
    env.wait_waiting("LimitExceeded", PADDED).await?;
    env.serve_bystander("restarted").await?;
    let bounds = Bounds {
        count: 2 * CONNECTIONS,
        requests: 0,
        log_bytes: 0,
        cpu_milliseconds: 20,
    };
    env.attack("half-open connections", bounds, env.serve_bystander("connections"))
        .await?;
    drop(connections);
    Ok(())
}
