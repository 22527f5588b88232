//! Orders to the quota agent, interrupted before and after each call, and repeated by a new client.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use export_store::quota::{LimitState, QuotaSeal, Report};
use export_store::{
    Decided, ExportStore, LimitOrder, LimitReport, NoLimit, Ordered, PurgeLimits, Reclaimed, RecordsKey, VolumeLimit,
};
use serde_json::Value;

use crate::archive_crash::{archived, begin_purge, restore, which};
use crate::crash::{at_every_moment, clear, provisioned, with_data};
use crate::fixture::{CLUSTER, StoreFixture, names, reclaim, request};

const GIB: u64 = 1 << 30;

fn limit(bytes: u64) -> VolumeLimit {
    VolumeLimit {
        bytes: Some(bytes),
        inodes: Some(1000),
    }
}

fn orders(fixture: &StoreFixture) -> Vec<String> {
    let folder = fixture.on_disk(&format!(".nfs-operator/{CLUSTER}/quota/orders"));
    if folder.exists() { names(&folder) } else { Vec::new() }
}

fn on_disk(fixture: &StoreFixture, volume: &str) -> Option<Value> {
    let path = fixture.on_disk(&format!(".nfs-operator/{CLUSTER}/quota/orders/{volume}"));
    let bytes = fs::read(path).ok()?;
    Some(serde_json::from_slice(&bytes).expect("an order is complete at every moment"))
}

async fn order(export: &ExportStore, volume: &str, bytes: u64) -> LimitOrder {
    export.set_orders_limits(true);
    match export.order_limit(volume, limit(bytes)).await.unwrap() {
        Ordered::Order { order, .. } => order,
        Ordered::Nothing(why) => panic!("{volume} has no order: {why:?}"),
    }
}

/// Checks that there is one order, and that nobody writes it again.
async fn assert_ordered(fixture: &StoreFixture, export: &ExportStore, volume: &str, (directory, file_id): (&str, u64)) {
    let ordered = order(export, volume, 2 * GIB).await;
    assert_eq!((ordered.file_id, ordered.limit), (file_id, limit(2 * GIB)));
    assert_eq!(orders(fixture), [volume]);
    let found = on_disk(fixture, volume).unwrap();
    let fields = ["directory", "fileID", "generation", "bytes", "inodes"].map(|field| found[field].clone());
    let expected = [
        Value::from(directory),
        file_id.into(),
        ordered.generation.into(),
        (2 * GIB).into(),
        1000.into(),
    ];
    assert_eq!(fields, expected);
    let path = fixture.on_disk(&format!(".nfs-operator/{CLUSTER}/quota/orders/{volume}"));
    assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
    let again = export.order_limit(volume, limit(2 * GIB)).await.unwrap();
    assert!(matches!(again, Ordered::Order { is_new: false, order, .. } if order == ordered));
    let report = export.limit_report(volume, &ordered).await.unwrap();
    assert_eq!(report, LimitReport::Unreported);
}

/// Deletes the volume `uid` with its data, and checks that no order is left.
async fn delete(fixture: &StoreFixture, export: &ExportStore, uid: &str, directory: &str, file_id: u64) {
    export.set_orders_limits(true);
    let done = export
        .delete(&reclaim(uid, directory, file_id), &Decided)
        .await
        .unwrap();
    assert_eq!(done, Reclaimed::Deleted);
    export.forget_volume(&format!("pvc-{uid}")).await.unwrap();
    export.purge_trash(PurgeLimits::default()).await.unwrap();
    assert_eq!(orders(fixture), Vec::<String>::new());
    clear(fixture);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_that_is_interrupted_anywhere_is_on_the_export_once() {
    at_every_moment(
        provisioned,
        |uid, _| {
            Box::new(move |export| {
                Box::pin(async move {
                    order(&export, &format!("pvc-{uid}"), 2 * GIB).await;
                })
            })
        },
        async |fixture, next, uid, file_id| {
            assert_ordered(fixture, &next, &format!("pvc-{uid}"), ("home/work", file_id)).await;
            delete(fixture, &next, uid, "home/work", file_id).await;
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_an_order_that_is_interrupted_anywhere_leaves_the_old_one_or_the_new_one() {
    at_every_moment(
        async |fixture, export, uid| {
            let file_id = provisioned(fixture, export, uid).await;
            order(export, &format!("pvc-{uid}"), GIB).await;
            file_id
        },
        |uid, _| {
            Box::new(move |export| {
                Box::pin(async move {
                    order(&export, &format!("pvc-{uid}"), 2 * GIB).await;
                })
            })
        },
        async |fixture, next, uid, file_id| {
            let volume = format!("pvc-{uid}");
            let left = on_disk(fixture, &volume).expect("there is an order at every moment");
            assert!([GIB, 2 * GIB].contains(&left["bytes"].as_u64().unwrap()), "{left}");
            assert_ordered(fixture, &next, &volume, ("home/work", file_id)).await;
            let last = on_disk(fixture, &volume).unwrap()["generation"].as_u64();
            let is_new = left["bytes"].as_u64() == Some(2 * GIB);
            assert_eq!(last > left["generation"].as_u64(), !is_new);
            delete(fixture, &next, uid, "home/work", file_id).await;
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delete_that_is_interrupted_anywhere_leaves_no_order() {
    at_every_moment(
        async |fixture, export, uid| {
            let file_id = with_data(fixture, export, uid).await;
            order(export, &format!("pvc-{uid}"), GIB).await;
            file_id
        },
        |uid, file_id| {
            Box::new(move |export| {
                Box::pin(async move {
                    export.set_orders_limits(true);
                    export
                        .delete(&reclaim(&uid, "home/work", file_id), &Decided)
                        .await
                        .unwrap();
                    export.forget_volume(&format!("pvc-{uid}")).await.unwrap();
                })
            })
        },
        async |fixture, next, uid, file_id| {
            let volume = format!("pvc-{uid}");
            if fixture.records().is_empty() {
                // Only the order is left, if the process ended between the two: the comparison of all orders finds it.
                for left in next.ordered_volumes(&|_| false).await.unwrap() {
                    assert!(next.remove_stale_order(&left, false).await.unwrap(), "{left}");
                }
                next.purge_trash(PurgeLimits::default()).await.unwrap();
            } else {
                assert!(
                    !next.remove_stale_order(&volume, false).await.unwrap(),
                    "it has a record"
                );
                delete(fixture, &next, uid, "home/work", file_id).await;
            }
            assert_eq!(orders(fixture), Vec::<String>::new());
            clear(fixture);
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archive_that_is_interrupted_anywhere_gets_the_order_of_its_volume() {
    at_every_moment(
        async |fixture, export, uid| {
            let file_id = with_data(fixture, export, uid).await;
            order(export, &format!("pvc-{uid}"), GIB).await;
            file_id
        },
        |uid, file_id| {
            Box::new(move |export| {
                Box::pin(async move {
                    export
                        .archive(&reclaim(&uid, "home/work", file_id), &Decided)
                        .await
                        .unwrap();
                    order(&export, &format!("pvc-{uid}"), 2 * GIB).await;
                })
            })
        },
        async |fixture, next, uid, file_id| {
            let volume = format!("pvc-{uid}");
            assert!(
                on_disk(fixture, &volume).is_some(),
                "a limit is ordered at every moment"
            );
            next.archive(&reclaim(uid, "home/work", file_id), &Decided)
                .await
                .unwrap();
            assert_ordered(fixture, &next, &volume, ("archived-work", file_id)).await;
            begin_purge(&next, &which(uid, file_id)).await.unwrap();
            next.end_purge(&which(uid, file_id)).await.unwrap();
            next.purge_trash(PurgeLimits::default()).await.unwrap();
            assert_eq!(orders(fixture), Vec::<String>::new());
            clear(fixture);
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restore_that_is_interrupted_anywhere_is_never_without_an_order_and_ends_with_one() {
    at_every_moment(
        async |fixture, export, uid| {
            let file_id = archived(fixture, export, uid).await;
            order(export, &format!("pvc-{uid}"), GIB).await;
            file_id
        },
        |uid, file_id| {
            Box::new(move |export| {
                Box::pin(async move {
                    export.provision(&restore(&uid, file_id)).await.unwrap();
                    order(&export, &format!("pvc-n{uid}"), 2 * GIB).await;
                })
            })
        },
        async |fixture, next, uid, file_id| {
            let volume = format!("pvc-n{uid}");
            assert!(!orders(fixture).is_empty(), "a limit is ordered at every moment");
            next.provision(&restore(uid, file_id)).await.unwrap();
            assert_ordered(fixture, &next, &volume, ("home/deep/again", file_id)).await;
            delete(fixture, &next, &format!("n{uid}"), "home/deep/again", file_id).await;
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_record_that_this_cluster_signed_nothing_is_ordered() {
    let fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    let created = export.provision(&request("1", "home/work")).await.unwrap();
    let path = fixture.on_disk(&format!(".nfs-operator/{CLUSTER}/records/pvc-1"));
    let signed = fs::read_to_string(&path).unwrap();
    fs::write(&path, signed.replace("home/work", "home/deny")).unwrap();
    let ordered = export.order_limit("pvc-1", limit(GIB)).await.unwrap();
    assert_eq!(
        (ordered, orders(&fixture)),
        (Ordered::Nothing(NoLimit::NoRecord), Vec::new())
    );
    fs::write(&path, signed).unwrap();
    assert_eq!(order(&export, "pvc-1", GIB).await.file_id, created.file_id);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_volume_continues_the_orders_that_the_agent_knows() {
    let fixture = StoreFixture::start().await;
    let export = fixture.store().await;
    export.set_orders_limits(true);
    let request = request("1", "home/work");
    let (provisioned, found) = tokio::join!(export.provision(&request), export.find_no_order("pvc-1"));
    let (provisioned, found) = (provisioned.unwrap(), found.unwrap());
    assert!(found.is_some());
    let ordered = export
        .order_provisioned(&request, &provisioned, (limit(GIB), found))
        .await;
    let Ordered::Order {
        order, is_new: true, ..
    } = ordered.unwrap()
    else {
        panic!("it has no order");
    };
    // One that has an order is compared with it.
    assert_eq!(export.find_no_order("pvc-1").await.unwrap(), None);
    let again = export
        .order_provisioned(&request, &provisioned, (limit(GIB), None))
        .await;
    assert!(matches!(again.unwrap(), Ordered::Order { is_new: false, order: same, .. } if same == order));

    // The agent reported a later order, which was removed.
    let later = order.generation + 1_000_000_000;
    let report = Report {
        volume: "pvc-1".to_owned(),
        file_id: order.file_id,
        generation: later,
        project: Some(1),
        state: LimitState::InForce,
        visit: Vec::new(),
    };
    let identity = fs::read(fixture.on_disk(".nfs-operator/identity")).unwrap();
    let export_id = export_store::parse_export_id(&identity).unwrap().unwrap();
    let seal = QuotaSeal::new(
        Some(RecordsKey::new(&[fixture.client().key; 32]).quota_key()),
        CLUSTER,
        &export_id,
    );
    let quota = fixture.on_disk(&format!(".nfs-operator/{CLUSTER}/quota"));
    fs::write(quota.join("reports/pvc-1"), seal.seal(&report).unwrap()).unwrap();
    fs::remove_file(quota.join("orders/pvc-1")).unwrap();
    let found = export.find_no_order("pvc-1").await.unwrap();
    assert!(found.is_some());
    let ordered = export
        .order_provisioned(&request, &provisioned, (limit(GIB), found))
        .await;
    assert!(matches!(ordered.unwrap(), Ordered::Order { is_new: true, order, .. } if order.generation > later));
}
