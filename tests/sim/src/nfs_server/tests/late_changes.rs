//! Changes that the server executes after their connection was lost, or after their caller gave up.

use std::sync::Arc;
use std::time::Duration;

use export_store::naming::DirectoryPath;
use export_store::{
    ClaimRef, DirectoryRequest, Existing, ExpectedIdentity, ExportStore, PathReservations, RecordsKey, ReservedPath,
    RollbackOutcome, StoreConfig,
};
use nfs_client::Credential;

use super::super::faults::CallSummary;
use super::*;

#[tokio::test(start_paused = true)]
async fn a_change_that_is_executed_late_is_over_once_it_was_waited_for() {
    for protocol in ALL {
        for cancelled in [false, true] {
            let (server, host) = start();
            let client = connect(&host, protocol, 1).await;
            let root = client.root().await.unwrap().handle;
            let hold = Fault::Hold(Duration::from_secs(5));
            server.with_faults(|faults| faults.script(CallSummary::makes_directory, hold));
            let making = {
                let (client, root) = (client.clone(), root.clone());
                let attributes = SetAttributes::default();
                tokio::spawn(async move { client.make_directory(&root, &name("late"), attributes).await })
            };
            tokio::time::sleep(Duration::from_secs(1)).await;
            let mut repeated = false;
            if cancelled {
                making.abort();
                assert!(making.await.unwrap_err().is_cancelled());
            } else {
                server.cut_connections();
                let made = making.await.unwrap();
                repeated = made.is_ok();
                assert_eq!(repeated, WITH_SESSIONS.contains(&protocol), "{protocol}");
                assert!(made.is_ok() || made.is_err_and(|lost| lost.outcome_unknown()));
            }
            let made = client.lookup(&root, &name("late")).await.unwrap().is_some();
            assert_eq!(made, repeated, "{protocol}");
            client.unanswered_changes().wait().await;
            let made = client.lookup(&root, &name("late")).await.unwrap().is_some();
            assert!(made, "{protocol}, cancelled: {cancelled}");
        }
    }
}

/// The store of a backend, with a confirmed identity.
pub(super) async fn store(
    host: &Arc<Host>,
    protocol: Protocol,
    life: u8,
    reservations: &Arc<PathReservations>,
) -> ExportStore {
    let backend = format!("backend-{life}");
    let config = StoreConfig {
        cluster_id: "11111111-2222-3333-4444-555555555555".into(),
        records_key: RecordsKey::new(&[7; 32]),
        backend_uid: format!("uid-of-{backend}"),
        backend,
        credential: Credential::default(),
        roots: vec![ReservedPath::on_server("nfs.example", "/data")],
    };
    let client = connect(host, protocol, life).await;
    let store = ExportStore::new(client, config, reservations.clone());
    let expected = ExpectedIdentity {
        may_create: true,
        ..ExpectedIdentity::default()
    };
    store.confirm_identity(expected).await.unwrap();
    store
}

pub(super) fn request(claim: &str) -> DirectoryRequest {
    DirectoryRequest {
        claim: ClaimRef {
            namespace: "team".into(),
            namespace_uid: "ns".into(),
            name: claim.into(),
            uid: claim.into(),
        },
        volume: format!("pvc-{claim}"),
        directory: DirectoryPath::parse(claim).unwrap(),
        mode: 0o777,
        mode_requested: false,
        adopted_mode: None,
        uid: None,
        gid: None,
        gid_range: None,
        existing: Existing::Refuse,
        adoptable: true,
        restore: None,
        metadata: None,
    }
}

/// Whether there is a directory with this name at the root of the export.
pub(super) fn exists(server: &NfsServer, name: &str) -> bool {
    let found = server.inspect("disk", |disk| {
        disk.walk(disk.root()).iter().any(|found| found.path == name.as_bytes())
    });
    found.unwrap()
}

#[tokio::test(start_paused = true)]
async fn no_backend_on_an_export_begins_anything_before_a_late_change_of_another_is_over() {
    for protocol in [Protocol::V4_0, Protocol::V3] {
        for same_backend in [true, false] {
            let (server, host) = start();
            let reservations = Arc::new(PathReservations::new());
            let first = store(&host, protocol, 1, &reservations).await;
            let second = store(&host, protocol, 2, &reservations).await;
            let hold = Fault::Hold(Duration::from_secs(5));
            server.with_faults(|faults| faults.script(CallSummary::makes_directory, hold));
            let late = request("late");
            let (provisioned, ()) = tokio::join!(first.provision(&late), async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                server.cut_connections();
            });
            assert!(provisioned.unwrap_err().outcome_unknown());
            assert!(!exists(&server, "late"));
            if same_backend {
                let undone = first.rollback("pvc-late", "late").await.unwrap();
                assert_eq!(undone, RollbackOutcome::Gone);
                tokio::time::sleep(Duration::from_secs(60)).await;
                assert!(!exists(&server, "late"), "{protocol}");
            } else {
                second.provision(&request("next")).await.unwrap();
                assert!(exists(&server, "late"), "{protocol}");
            }
        }
    }
}
