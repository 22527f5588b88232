//! Crashes at every moment: an operation is interrupted at each of its calls, and repeated by a new client.

use std::collections::HashSet;
use std::fs;
use std::future::Future;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::pin::Pin;
use std::sync::Arc;

use export_store::path_reservations::Holder;
use export_store::{Decided, ErrorKind, ExportStore, PurgeLimits, Reclaimed, RollbackOutcome};
use nfs_client::{Protocol, VersionChoice};
use parking_lot::Mutex;
use rig::{Action, Direction};
use tokio::sync::Notify;

use crate::fixture::{StoreClient, StoreFixture, alone, identify, reclaim, refused, request};
use crate::nfs::TIMEOUT;
use crate::parents::recorded;

/// An operation of one client.
pub type Operation = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The records between a client and the server.
#[derive(Default)]
struct Traffic {
    /// Number in the direction that is counted.
    passed: usize,
    /// Nothing passes any more.
    is_dead: bool,
    /// Requests that the server has not answered, by their transaction ID: the first word of both (RFC 5531 section 9).
    unanswered: HashSet<[u8; 4]>,
}

impl Traffic {
    /// Decides on a record. Returns true if it is the n-th in the counted direction.
    fn pass(&mut self, record: &[u8], way: Direction, counted: Direction, nth: usize) -> (Action, bool) {
        let id = *record.first_chunk::<4>().unwrap();
        if way == Direction::Down {
            self.unanswered.remove(&id);
        }
        let dies = way == counted && !self.is_dead && self.passed == nth;
        self.passed += usize::from(way == counted);
        self.is_dead |= dies;
        if self.is_dead {
            return (Action::Drop, dies);
        }
        if way == Direction::Up {
            self.unanswered.insert(id);
        }
        (Action::Forward, dies)
    }
}

/// Runs `operation` with a client that dies at the n-th record in this direction. Returns false if the operation
/// completed before. Upwards, the request is lost; downwards, it was executed and the reply is lost. When this returns,
/// the server has executed all requests that arrived.
pub async fn dies(
    fixture: &StoreFixture,
    direction: Direction,
    nth: usize,
    operation: impl FnOnce(ExportStore) -> Operation,
) -> bool {
    let client = StoreClient {
        port: fixture.proxy.port(),
        ..fixture.client()
    };
    let export = alone(client.open().await).await;
    let (death, traffic) = (Arc::new(Notify::new()), Arc::<Mutex<Traffic>>::default());
    for way in [Direction::Up, Direction::Down] {
        let (reported, traffic) = (Arc::clone(&death), Arc::clone(&traffic));
        fixture.proxy.on_record(way, move |record| {
            let (action, dies) = traffic.lock().pass(record, way, direction, nth);
            if dies {
                reported.notify_one();
            }
            action
        });
    }
    let mut task = tokio::spawn(operation(export));
    let died = tokio::select! {
        biased;
        () = death.notified() => true,
        outcome = &mut task => { outcome.unwrap(); false }
    };
    if died {
        // Requests in flight are executed now, and not during what follows. The client does not notice.
        rig::wait::until("the server to answer", TIMEOUT, async || {
            let left = traffic.lock().unanswered.len();
            match left {
                0 => Ok(()),
                left => Err(format!("{left} requests are not answered")),
            }
        })
        .await
        .unwrap();
        task.abort();
        let _ = task.await;
    }
    fixture.proxy.cut().await;
    fixture.proxy.clear_hooks();
    died
}

/// Interrupts an operation at every moment, with and without the reply cache of a session.
///
/// Requests are lost, and no replies: the server has executed what was sent before, and a lost reply leaves no other state.
pub async fn at_every_moment<Before, Begin, Check>(before: Before, begin: Begin, check: Check)
where
    Before: AsyncFn(&StoreFixture, &ExportStore, &str) -> u64,
    Begin: Fn(String, u64) -> Box<dyn FnOnce(ExportStore) -> Operation>,
    Check: AsyncFn(&StoreFixture, ExportStore, &str, u64),
{
    for version in [VersionChoice::Auto, VersionChoice::Exactly(Protocol::V3)] {
        let fixture = StoreFixture::over(version, rig::Export::new("/export")).await;
        let mut deaths = 0;
        loop {
            let uid = format!("u{deaths}");
            let file_id = before(&fixture, &fixture.store().await, &uid).await;
            let died = dies(&fixture, Direction::Up, deaths, begin(uid.clone(), file_id)).await;
            println!("{version:?} {deaths}: died {died}, then {:?}", fixture.listed());
            let next = fixture.store().await;
            next.recover(&|_: &str| true).await.unwrap();
            check(&fixture, next, &uid, file_id).await;
            assert_eq!(fixture.listed(), Vec::<String>::new());
            if !died {
                break;
            }
            deaths += 1;
            assert!(deaths < 100);
        }
        // At least a lookup, a record with a change, and another record; otherwise nothing was tested.
        assert!(deaths >= 3, "only {deaths}");
    }
}

pub async fn provisioned(_: &StoreFixture, export: &ExportStore, uid: &str) -> u64 {
    let created = export.provision(&request(uid, "home/work")).await.unwrap();
    created.file_id
}

pub async fn with_data(fixture: &StoreFixture, export: &ExportStore, uid: &str) -> u64 {
    let file_id = provisioned(fixture, export, uid).await;
    fs::write(fixture.on_disk("home/work/mine"), uid).unwrap();
    file_id
}

/// What somebody else created.
struct Strangers {
    /// A directory with the volume's name.
    directory: bool,
    /// The parent of it.
    parent: bool,
}

/// Creates a foreign directory with the same name as soon as the name is free.
fn stranger(fixture: &StoreFixture) -> Strangers {
    let parent = fs::create_dir(fixture.on_disk("home")).is_ok();
    let directory = fs::create_dir(fixture.on_disk("home/work")).is_ok();
    if directory {
        fs::write(fixture.on_disk("home/work/theirs"), "theirs").unwrap();
    }
    Strangers { directory, parent }
}

fn stranger_is_untouched(fixture: &StoreFixture, strangers: &Strangers) {
    if strangers.directory {
        assert_eq!(
            fs::read_to_string(fixture.on_disk("home/work/theirs")).unwrap(),
            "theirs"
        );
        assert!(!fixture.on_disk("home/work/mine").exists());
    } else {
        assert!(!fixture.on_disk("home/work").exists());
    }
}

/// Checks that the parent is gone once nothing is in it, unless somebody else made it.
async fn only_a_foreign_parent_stays(fixture: &StoreFixture, next: &ExportStore, strangers: &Strangers) {
    if strangers.directory {
        fs::remove_dir_all(fixture.on_disk("home/work")).unwrap();
        next.recover(&|_: &str| true).await.unwrap();
    }
    assert_eq!(fixture.on_disk("home").exists(), strangers.parent);
    assert_eq!(recorded(fixture), 0);
}

/// Removes the remains of a check, so that the next client finds nothing.
pub fn clear(fixture: &StoreFixture) {
    for name in fixture.listed() {
        fs::remove_dir_all(fixture.on_disk(&name)).unwrap();
    }
    for record in fixture.records() {
        fs::remove_file(fixture.on_disk(&format!(".nfs-operator/{}/records/{record}", crate::fixture::CLUSTER)))
            .unwrap();
    }
    let parents = fixture.on_disk(&format!(".nfs-operator/{}/parents", crate::fixture::CLUSTER));
    if parents.exists() {
        fs::remove_dir_all(parents).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn provisioning_that_is_interrupted_anywhere_ends_with_one_directory_and_one_record() {
    at_every_moment(
        async |_, _, _| 0,
        |uid, _| {
            Box::new(|export| {
                Box::pin(async move {
                    export.provision(&request(&uid, "home/work")).await.unwrap();
                })
            })
        },
        async |fixture, next, uid, _| {
            let created = next.provision(&request(uid, "home/work")).await.unwrap();
            let found = fs::metadata(fixture.on_disk("home/work")).unwrap();
            assert_eq!((found.ino(), found.mode() & 0o7777), (created.file_id, 0o777));
            assert_eq!(fixture.records(), [format!("pvc-{uid}")]);
            let record = fixture.record(&format!("pvc-{uid}"));
            assert_eq!(record.pointer("/state/name").unwrap(), "Live");
            assert_eq!(record.pointer("/fileID").unwrap(), created.file_id);
            let done = next
                .delete(&reclaim(uid, "home/work", created.file_id), &Decided)
                .await
                .unwrap();
            assert_eq!(done, Reclaimed::Deleted);
            assert!(!fixture.on_disk("home").exists());
            clear(fixture);
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_server_executed_of_a_lost_request_is_completed_or_rolled_back() {
    let fixture = StoreFixture::start().await;
    let volume_of = |uid: &str| format!("pvc-{uid}");
    let path = fixture.on_disk("work");
    // The request in which record and directory are created, and what its server did before it failed.
    let executed: [(&str, &dyn Fn()); 3] = [
        ("record", &|| fs::remove_dir(&path).unwrap()),
        ("mode", &|| {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        }),
        ("all", &|| ()),
    ];
    for (what, undo_rest) in executed {
        for finishes in [true, false] {
            let uid = format!("{what}-{finishes}");
            let begun = uid.clone();
            let died = dies(&fixture, Direction::Down, 1, |export| {
                Box::pin(async move {
                    export.provision(&request(&begun, "work")).await.unwrap();
                })
            })
            .await;
            assert!(died, "{what}");
            let record = fixture.record(&volume_of(&uid));
            assert_eq!(record.pointer("/state/name").unwrap(), "Creating", "{what}");
            assert!(path.is_dir(), "{what}: both in one request");
            undo_rest();
            let next = fixture.store().await;
            if finishes {
                let created = next.provision(&request(&uid, "work")).await.unwrap();
                let found = fs::metadata(&path).unwrap();
                assert_eq!((found.ino(), found.mode() & 0o7777), (created.file_id, 0o777), "{what}");
                assert_eq!(fixture.record(&volume_of(&uid)).pointer("/state/name").unwrap(), "Live");
            }
            let undone = next.rollback(&volume_of(&uid), &uid).await.unwrap();
            assert_eq!(undone, RollbackOutcome::Gone, "{what}");
            assert_eq!(
                (fixture.listed(), fixture.records()),
                (Vec::new(), Vec::new()),
                "{what}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn provisioning_in_few_requests_that_is_interrupted_anywhere_ends_with_one_directory() {
    at_every_moment(
        async |_, _, _| 0,
        |uid, _| {
            Box::new(|export| {
                Box::pin(async move {
                    export.provision(&request(&uid, "work")).await.unwrap();
                })
            })
        },
        async |fixture, next, uid, _| {
            let created = next.provision(&request(uid, "work")).await.unwrap();
            let found = fs::metadata(fixture.on_disk("work")).unwrap();
            assert_eq!((found.ino(), found.mode() & 0o7777), (created.file_id, 0o777));
            assert_eq!(fixture.records(), [format!("pvc-{uid}")]);
            assert_eq!(
                fixture.record(&format!("pvc-{uid}")).pointer("/fileID").unwrap(),
                created.file_id
            );
            next.rollback(&format!("pvc-{uid}"), uid).await.unwrap();
            clear(fixture);
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn provisioning_that_is_interrupted_anywhere_is_rolled_back_completely() {
    at_every_moment(
        async |_, _, _| 0,
        |uid, _| {
            Box::new(|export| {
                Box::pin(async move {
                    export.provision(&request(&uid, "home/work")).await.unwrap();
                })
            })
        },
        async |fixture, next, uid, _| {
            let undone = next.rollback(&format!("pvc-{uid}"), uid).await.unwrap();
            assert_eq!(undone, RollbackOutcome::Gone);
            assert!(!fixture.on_disk("home").exists());
            assert_eq!((fixture.records(), recorded(fixture)), (Vec::new(), 0));
            clear(fixture);
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rollback_that_is_interrupted_anywhere_leaves_nothing() {
    at_every_moment(
        provisioned,
        |uid, _| {
            Box::new(|export| {
                Box::pin(async move {
                    export.rollback(&format!("pvc-{uid}"), &uid).await.unwrap();
                })
            })
        },
        async |fixture, next, uid, _| {
            let strangers = stranger(fixture);
            next.rollback(&format!("pvc-{uid}"), uid).await.unwrap();
            stranger_is_untouched(fixture, &strangers);
            assert_eq!(fixture.records(), Vec::<String>::new());
            only_a_foreign_parent_stays(fixture, &next, &strangers).await;
            clear(fixture);
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn archiving_that_is_interrupted_anywhere_ends_with_one_archive_and_moves_nothing_foreign() {
    at_every_moment(
        with_data,
        |uid, file_id| {
            Box::new(move |export| {
                Box::pin(async move {
                    export
                        .archive(&reclaim(&uid, "home/work", file_id), &Decided)
                        .await
                        .unwrap();
                })
            })
        },
        async |fixture, next, uid, file_id| {
            let strangers = stranger(fixture);
            let done = next
                .archive(&reclaim(uid, "home/work", file_id), &Decided)
                .await
                .unwrap();
            let Reclaimed::Archived { name, warnings, .. } = done else {
                panic!("{done:?}")
            };
            assert_eq!(warnings, Vec::<String>::new());
            stranger_is_untouched(fixture, &strangers);
            assert!(fixture.on_disk(&name).exists());
            assert_eq!(fs::read_to_string(fixture.on_disk(&name).join("mine")).unwrap(), uid);
            assert_eq!(fs::metadata(fixture.on_disk(&name)).unwrap().mode() & 0o7777, 0o700);
            let record = fixture.record(&format!("pvc-{uid}"));
            assert_eq!(record.pointer("/state/name").unwrap(), "Archived");
            assert_eq!(record.pointer("/state/mode").unwrap(), 0o777);
            // Again, as after a lost patch of the finalizer.
            let again = next
                .archive(&reclaim(uid, "home/work", file_id), &Decided)
                .await
                .unwrap();
            let recorded = None;
            let expected = Reclaimed::Archived {
                name,
                warnings,
                recorded,
            };
            assert_eq!(again, expected);
            stranger_is_untouched(fixture, &strangers);
            only_a_foreign_parent_stays(fixture, &next, &strangers).await;
            clear(fixture);
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_removal_of_an_empty_directory_that_is_interrupted_anywhere_removes_nothing_foreign() {
    at_every_moment(
        provisioned,
        |uid, file_id| {
            Box::new(move |export| {
                Box::pin(async move {
                    export
                        .archive(&reclaim(&uid, "home/work", file_id), &Decided)
                        .await
                        .unwrap();
                })
            })
        },
        async |fixture, next, uid, file_id| {
            let strangers = stranger(fixture);
            let done = next
                .archive(&reclaim(uid, "home/work", file_id), &Decided)
                .await
                .unwrap();
            assert_eq!(done, Reclaimed::EmptyRemoved);
            stranger_is_untouched(fixture, &strangers);
            next.forget_volume(&format!("pvc-{uid}")).await.unwrap();
            assert_eq!(fixture.records(), Vec::<String>::new());
            only_a_foreign_parent_stays(fixture, &next, &strangers).await;
            clear(fixture);
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delete_that_is_interrupted_anywhere_deletes_everything_and_nothing_foreign() {
    at_every_moment(
        with_data,
        |uid, file_id| {
            Box::new(move |export| {
                Box::pin(async move {
                    export
                        .delete(&reclaim(&uid, "home/work", file_id), &Decided)
                        .await
                        .unwrap();
                    export.purge_trash(PurgeLimits::default()).await.unwrap();
                })
            })
        },
        async |fixture, next, uid, file_id| {
            let strangers = stranger(fixture);
            let done = next
                .delete(&reclaim(uid, "home/work", file_id), &Decided)
                .await
                .unwrap();
            assert_eq!(done, Reclaimed::Deleted);
            stranger_is_untouched(fixture, &strangers);
            next.forget_volume(&format!("pvc-{uid}")).await.unwrap();
            let report = next.purge_trash(PurgeLimits::default()).await.unwrap();
            assert_eq!((report.left.entries, report.failed), (0, 0));
            assert_eq!(fixture.records(), Vec::<String>::new());
            stranger_is_untouched(fixture, &strangers);
            only_a_foreign_parent_stays(fixture, &next, &strangers).await;
            clear(fixture);
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_whose_creation_had_no_reply_stays_recorded_while_a_removed_one_holds_its_fileid() {
    let fixture = StoreFixture::start().await;
    let mut calls = 0;
    while !fixture.on_disk("data").exists() {
        let provision = |export: ExportStore| -> Operation {
            Box::pin(async move { export.provision(&request("1", "data")).await.map(drop).unwrap() })
        };
        assert!(dies(&fixture, Direction::Down, calls, provision).await);
        calls += 1;
    }
    let client = fixture.client();
    let export = client.open().await;
    let file_id = fs::metadata(fixture.on_disk("data")).unwrap().ino();
    // A volume whose directory and record were removed, and whose object exists a moment longer.
    let removed = Holder::Volume("pvc-removed".into());
    let key = (identify(&export).await.id, file_id);
    client.reservations.insert(removed.clone(), Vec::new(), Some(key));
    let (kind, _) = refused(&export, &request("1", "data")).await;
    assert_eq!(kind, ErrorKind::DirectoryOverlaps);
    assert_eq!(fixture.records(), ["pvc-1"]);
    client.reservations.remove(&removed);
    assert_eq!(export.provision(&request("1", "data")).await.unwrap().file_id, file_id);
}
