//! The beacon: one process works in the folder of a cluster, on an export that was not rolled back.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use export_store::{
    Beacon, Beacons, Decided, ErrorKind, ExpectedIdentity, ExportStore, KnownBeacon, OwnFileIds, Reclaimed,
};

use crate::fixture::{CLUSTER, StoreClient, StoreFixture, reclaim, refused, request};

const OFTEN: Duration = Duration::ZERO;

/// Opens a store as a process does that knows these beacons of the export.
async fn open(client: &StoreClient, beacons: &Arc<Beacons>, known: &[KnownBeacon]) -> ExportStore {
    let export = client.connect().await.with_beacons(Arc::clone(beacons));
    confirm(&export, known, None).await.unwrap();
    export
}

fn expected(known: &[KnownBeacon], accepted: Option<&str>) -> ExpectedIdentity {
    ExpectedIdentity {
        export_id: accepted.map(str::to_owned),
        may_create: accepted.is_none(),
        beacons: Some(known.to_vec()),
        accepted: accepted.is_some(),
        ..ExpectedIdentity::default()
    }
}

async fn confirm(export: &ExportStore, known: &[KnownBeacon], accepted: Option<&str>) -> Result<String, ErrorKind> {
    let confirmed = export.confirm_identity(expected(known, accepted)).await;
    confirmed.map(|identity| identity.id).map_err(|error| error.kind())
}

/// Checks the export as an observer.
async fn check(export: &ExportStore, known: &[KnownBeacon]) -> Result<(), ErrorKind> {
    let checked = export.check_identity(&expected(known, None)).await;
    checked.map_err(|error| error.kind())
}

/// Renews the beacon like the operator. Returns what the status knows then.
async fn renew(export: &ExportStore) -> KnownBeacon {
    let current = export.beacon().await;
    let next = Beacon::after(current.as_ref());
    export.renew_beacon(Some(&next), OFTEN).await.unwrap();
    assert_eq!(export.beacon().await.as_ref(), Some(&next));
    KnownBeacon {
        export_id: export.read_identity().await.unwrap().unwrap().id,
        current,
        next: Some(next),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_process_in_the_folder_of_this_cluster_stops_every_change_of_the_first() {
    let fixture = StoreFixture::start().await;
    let first = open(&fixture.client(), &Arc::default(), &[]).await;
    let known = renew(&first).await;
    first.provision(&request("1", "a")).await.unwrap();
    // A clone of the cluster has the same status.
    let clone = open(&fixture.client(), &Arc::default(), &[known]).await;
    renew(&clone).await;
    let stopped = first.renew_beacon(None, OFTEN).await.unwrap_err();
    assert_eq!(stopped.kind(), ErrorKind::BeaconMismatch, "{stopped}");
    assert!(stopped.to_string().contains("another process"), "{stopped}");
    let (reason, definite) = refused(&first, &request("2", "b")).await;
    assert_eq!((reason, definite), (ErrorKind::BeaconMismatch, false));
    assert_eq!(confirm(&first, &[], None).await, Err(ErrorKind::BeaconMismatch));
    clone.provision(&request("3", "c")).await.unwrap();
    assert_eq!(fixture.listed(), ["a", "c"]);
    // A cluster that was rebuilt with the Secret knows nothing, and waits.
    let rebuilt = fixture.client().connect().await.with_beacons(Arc::default());
    assert_eq!(confirm(&rebuilt, &[], None).await, Err(ErrorKind::BeaconObserved));
    clone.renew_beacon(None, OFTEN).await.unwrap();
    assert_eq!(confirm(&rebuilt, &[], None).await, Err(ErrorKind::BeaconMismatch));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_observer_changes_nothing_and_expects_no_beacon_from_then_on() {
    let fixture = StoreFixture::start().await;
    let observer = fixture.client().connect().await;
    check(&observer, &[]).await.unwrap();
    assert!(!fixture.on_disk(".nfs-operator").exists());
    let (reason, _) = refused(&observer, &request("1", "a")).await;
    assert_eq!(reason, ErrorKind::IdentityNotConfirmed);

    let former = open(&fixture.client(), &Arc::default(), &[]).await;
    let old = renew(&former).await;
    let known = [renew(&former).await];
    // Another cluster, whose folder does not exist yet.
    let other = StoreClient {
        cluster: "another-cluster",
        ..fixture.client()
    };
    let before = rig::snapshot(&fixture.on_disk(".nfs-operator")).unwrap();
    check(&other.connect().await, &[]).await.unwrap();
    let beacons = Arc::<Beacons>::default();
    let leader = fixture.client().connect().await.with_beacons(Arc::clone(&beacons));
    assert_eq!(check(&leader, &[old]).await, Err(ErrorKind::BeaconMismatch));
    check(&leader, &known).await.unwrap();
    assert_eq!(rig::snapshot(&fixture.on_disk(".nfs-operator")).unwrap(), before);

    // A late call of the former leader, whose session the new one has not ended yet.
    former.renew_beacon(None, OFTEN).await.unwrap();
    confirm(&leader, &known, None).await.unwrap();
    leader.provision(&request("1", "a")).await.unwrap();
    check(&leader, &known).await.unwrap();
    former.renew_beacon(None, OFTEN).await.unwrap();
    assert_eq!(check(&leader, &known).await, Err(ErrorKind::BeaconMismatch));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stores_on_one_export_share_its_beacon() {
    let fixture = StoreFixture::start().await;
    let beacons = Arc::<Beacons>::default();
    let other = StoreClient {
        backend: "slow",
        ..fixture.client()
    };
    let fast = open(&fixture.client(), &beacons, &[]).await;
    let slow = open(&other, &beacons, &[]).await;
    let former = renew(&fast).await;
    renew(&slow).await;
    let last = renew(&fast).await;
    slow.renew_beacon(None, OFTEN).await.unwrap();
    for export in [&fast, &slow] {
        confirm(export, &[], None).await.unwrap();
    }
    // The next process knows the statuses of both.
    let next = open(&other, &Arc::default(), &[former, last]).await;
    next.provision(&request("1", "a")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rollback_to_before_the_last_renewal_stops_the_running_process() {
    let fixture = StoreFixture::start().await;
    let export = open(&fixture.client(), &Arc::default(), &[]).await;
    renew(&export).await;
    let file = fixture.on_disk(&format!(".nfs-operator/{CLUSTER}/beacon"));
    let snapshot = fs::read(&file).unwrap();
    // The beacon stays the same.
    export.renew_beacon(None, OFTEN).await.unwrap();
    export.provision(&request("1", "a")).await.unwrap();
    let latest = fs::read(&file).unwrap();
    fs::write(&file, &snapshot).unwrap();
    assert_eq!(confirm(&export, &[], None).await, Err(ErrorKind::BeaconMismatch));
    let (reason, definite) = refused(&export, &request("2", "b")).await;
    assert_eq!((reason, definite), (ErrorKind::BeaconMismatch, false));
    fs::write(&file, &latest).unwrap();
    confirm(&export, &[], None).await.unwrap();
    export.provision(&request("3", "c")).await.unwrap();
    assert_eq!(fixture.listed(), ["a", "c"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_missing_on_an_export_that_was_rolled_back_during_an_outage_does_not_count_as_deleted() {
    let mut fixture = StoreFixture::start().await;
    let export = open(&fixture.client(), &Arc::default(), &[]).await;
    renew(&export).await;
    let beacon = fixture.on_disk(&format!(".nfs-operator/{CLUSTER}/beacon"));
    let snapshot = fs::read(&beacon).unwrap();
    renew(&export).await;
    let file_id = export.provision(&request("1", "a")).await.unwrap().file_id;
    let latest = fs::read(&beacon).unwrap();
    // While the server is down, the export becomes what it was before. The handles of its folders stay valid.
    let later = [
        (
            fixture.on_disk(&format!(".nfs-operator/{CLUSTER}/records/pvc-1")),
            fixture.disk.with_extension("record"),
        ),
        (fixture.on_disk("a"), fixture.disk.with_extension("directory")),
    ];
    fixture.nfs.kill9().await.unwrap();
    for (path, aside) in &later {
        fs::rename(path, aside).unwrap();
    }
    fs::write(&beacon, &snapshot).unwrap();
    fixture.nfs.restart(rig::StableStorage::Lost).await.unwrap();
    // Each would be answered by reads alone.
    let request = reclaim("1", "a", file_id);
    let deleted = export.delete(&request, &Decided).await.map_err(|error| error.kind());
    assert_eq!(deleted, Err(ErrorKind::BeaconMismatch));
    let retained = export.retain(&request, &Decided).await.map_err(|error| error.kind());
    assert_eq!(retained, Err(ErrorKind::BeaconMismatch));
    // And back.
    fixture.nfs.kill9().await.unwrap();
    for (path, aside) in &later {
        fs::rename(aside, path).unwrap();
    }
    fs::write(&beacon, &latest).unwrap();
    fixture.nfs.restart(rig::StableStorage::Lost).await.unwrap();
    assert_eq!(export.delete(&request, &Decided).await.unwrap(), Reclaimed::Deleted);
    assert_eq!(fixture.listed(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_clones_with_the_same_status_never_work_both_after_their_next_probes() {
    let fixture = StoreFixture::start().await;
    let former = open(&fixture.client(), &Arc::default(), &[]).await;
    let known = [renew(&former).await];
    // Both accept the beacon, and neither replaces it.
    let first = open(&fixture.client(), &Arc::default(), &known).await;
    let second = open(&fixture.client(), &Arc::default(), &known).await;
    let mut renewed = Vec::new();
    for _ in 0..2 {
        for clone in [&first, &second] {
            renewed.push(clone.renew_beacon(None, OFTEN).await.map_err(|error| error.kind()));
        }
    }
    let stopped = Err(ErrorKind::BeaconMismatch);
    assert_eq!(renewed, [Ok(()), stopped, Ok(()), stopped]);
    assert_eq!(refused(&second, &request("1", "a")).await.0, ErrorKind::BeaconMismatch);
    first.provision(&request("2", "b")).await.unwrap();
    assert_eq!(fixture.listed(), ["b"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_export_that_was_rolled_back_is_not_changed_until_an_administrator_accepts_it() {
    let fixture = StoreFixture::start().await;
    let export = open(&fixture.client(), &Arc::default(), &[]).await;
    renew(&export).await;
    let file = fixture.on_disk(&format!(".nfs-operator/{CLUSTER}/beacon"));
    let snapshot = fs::read(&file).unwrap();
    renew(&export).await;
    let known = [renew(&export).await];
    let latest = fs::read(&file).unwrap();
    for (content, refusal) in [
        (Some(&snapshot), ErrorKind::BeaconMismatch),
        (Some(&b"{}".to_vec()), ErrorKind::BeaconMismatch),
        (None, ErrorKind::BeaconMismatch),
    ] {
        match content {
            Some(content) => fs::write(&file, content).unwrap(),
            None => fs::remove_file(&file).unwrap(),
        }
        let restarted = fixture.client().connect().await.with_beacons(Arc::default());
        assert_eq!(confirm(&restarted, &known, None).await, Err(refusal), "{content:?}");
        let (reason, _) = refused(&restarted, &request("1", "a")).await;
        assert_eq!(reason, ErrorKind::IdentityNotConfirmed);
        // The running process, too.
        assert_eq!(confirm(&export, &known, None).await, Err(refusal), "{content:?}");
        fs::write(&file, &latest).unwrap();
        confirm(&export, &known, None).await.unwrap();
    }
    let id = known[0].export_id.as_str();
    for (number, content) in [("1", snapshot.as_slice()), ("2", b"{}")] {
        fs::write(&file, content).unwrap();
        let restarted = fixture.client().connect().await.with_beacons(Arc::default());
        assert_eq!(confirm(&restarted, &known, Some(id)).await.as_deref(), Ok(id));
        restarted.provision(&request(number, number)).await.unwrap();
        renew(&restarted).await;
        confirm(&restarted, &known, None).await.unwrap();
    }
    assert_eq!(fixture.listed(), ["1", "2"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_identity_file_is_created_again_only_where_this_cluster_has_its_beacon() {
    let fixture = StoreFixture::start().await;
    let first = open(&fixture.client(), &Arc::default(), &[]).await;
    let known = [renew(&first).await];
    first.provision(&request("1", "a")).await.unwrap();
    let identity = first.read_identity().await.unwrap().unwrap();
    let confirmed = first.confirm_identity(expected(&known, None)).await.unwrap();
    let file = fixture.on_disk(".nfs-operator/identity");
    let lost = fs::read_to_string(&file).unwrap();
    fs::remove_file(&file).unwrap();

    let later = fixture.client().connect().await.with_beacons(Arc::default());
    let from_status = |own| ExpectedIdentity {
        export_id: Some(identity.id.clone()),
        root_file_id: Some(confirmed.root_file_id),
        own_file_ids: Some(own),
        may_create: false,
        ..expected(&known, None)
    };
    let mismatch = async |expected: ExpectedIdentity| {
        let error = later.confirm_identity(expected).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::IdentityMismatch, "{error}");
        assert!(!file.exists());
        error.acceptable_identity().map(str::to_owned)
    };
    let own = confirmed.own_file_ids;
    assert_eq!(mismatch(from_status(own)).await, Some(identity.id.clone()));
    // Whatever differs, it may be another export.
    let new = Some("new".to_owned());
    let other_folder = OwnFileIds { cluster: 1, ..own };
    assert_eq!(mismatch(from_status(other_folder)).await, new);
    let other_beacon = ExpectedIdentity {
        beacons: Some(Vec::new()),
        ..from_status(own)
    };
    assert_eq!(mismatch(other_beacon).await, new);
    // Without the beacon, an administrator cannot accept it either: an empty disk looks like that.
    let beacon = fixture.on_disk(&format!(".nfs-operator/{CLUSTER}/beacon"));
    let aside = beacon.with_extension("aside");
    fs::rename(&beacon, &aside).unwrap();
    assert_eq!(mismatch(from_status(own)).await, new);
    assert_eq!(mismatch(expected(&known, Some(&identity.id))).await, new);
    fs::rename(&aside, &beacon).unwrap();

    let accepted = expected(&known, Some(&identity.id));
    let again = later.confirm_identity(accepted).await.unwrap();
    assert_eq!((&again.id, again.root_file_id), (&identity.id, confirmed.root_file_id));
    let created: serde_json::Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(created, serde_json::from_str::<serde_json::Value>(&lost).unwrap());
    later.provision(&request("2", "b")).await.unwrap();
}
