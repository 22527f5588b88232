//! Trees of a malicious server: a purge ends, reports failures, and touches nothing outside the trash.

use std::sync::Arc;
use std::time::Duration;

use export_store::{
    Decided, ExpectedIdentity, ExportStore, PathReservations, PurgeLimits, PurgeReport, RecordsKey, ReservedPath,
    StoreConfig,
};
use nfs_client::{Client, NfsError, SetAttributes, Status, VersionChoice};

use crate::fixture::{reclaim, request};
use crate::nfs::hostile::{DIRECTORY, FILE, Hostile, Listing, MOVED, Tree};
use crate::nfs::{TIMEOUT, name, target};

const WRONGSEC: u32 = 10_016;
const FHEXPIRED: u32 = 10_014;
const DELAY: u32 = 10_008;

/// Operations: GETATTR, GETFH, WRITE, OPEN_CONFIRM, CLOSE.
const AFTER_THE_CHANGE: [u32; 5] = [9, 10, 38, 20, 4];

pub async fn connect(server: &Hostile) -> Result<Client, NfsError> {
    let mut target = target(server.port, VersionChoice::Auto);
    target.path = "/".to_owned();
    Client::connect(target).await
}

pub async fn managed(server: &Hostile) -> ExportStore {
    let keeper = StoreConfig {
        cluster_id: "cluster".into(),
        records_key: RecordsKey::random(),
        backend: "malicious".into(),
        backend_uid: "uid".into(),
        credential: Default::default(),
        roots: vec![ReservedPath::on_server("127.0.0.1", "/")],
    };
    let export = ExportStore::new(
        connect(server).await.unwrap(),
        keeper,
        Arc::new(PathReservations::new()),
    );
    let expected = ExpectedIdentity {
        may_create: true,
        ..ExpectedIdentity::default()
    };
    export.confirm_identity(expected).await.unwrap();
    export
}

/// Limits of a purge that ends only when nothing more can be removed, however slow the machine is.
const COMPLETE: PurgeLimits = PurgeLimits {
    removals: u64::MAX,
    time: Duration::MAX,
    shared_trash: true,
};

/// Fills the directory of a volume with `grow` and deletes it. Returns the server and the report of the purge.
pub async fn purged(grow: impl FnOnce(&mut Tree, u64)) -> (Hostile, PurgeReport) {
    purged_within(PurgeLimits::default(), grow).await
}

/// The same with these limits.
async fn purged_within(limits: PurgeLimits, grow: impl FnOnce(&mut Tree, u64)) -> (Hostile, PurgeReport) {
    let server = Hostile::start().await;
    let export = managed(&server).await;
    let outside = server.tree().add(Tree::ROOT, b"outside", DIRECTORY);
    server.tree().add(outside, b"precious", FILE);
    let created = export.provision(&request("1", "a")).await.unwrap();
    {
        let mut tree = server.tree();
        let top = tree.find("a").unwrap();
        tree.add(top, b"file", FILE);
        grow(&mut tree, top);
    }
    export
        .delete(&reclaim("1", "a", created.file_id), &Decided)
        .await
        .unwrap();
    // A machine that stalls can use up the time of a purge.
    let report = rig::wait::until("everything else to be removed", TIMEOUT, async || {
        let report = export.purge_trash(limits).await.map_err(|error| error.to_string())?;
        match server.tree().removed.iter().any(|(_, name)| name == b"file") {
            true => Ok(report),
            false => Err(format!("{report:?}")),
        }
    })
    .await
    .unwrap();
    println!("{report:?}");
    let tree = server.tree();
    assert!(tree.find("outside/precious").is_some(), "the purge left the trash");
    assert!(
        !tree
            .removed
            .iter()
            .any(|(from, _)| *from == outside || *from == Tree::ROOT)
    );
    assert!(
        !tree
            .removed
            .iter()
            .any(|(_, name)| name == b".." || name.contains(&b'/'))
    );
    drop(tree);
    (server, report)
}

pub fn says(report: &PurgeReport, words: &str) -> bool {
    report.failures.iter().any(|failure| failure.reason.contains(words))
}

#[tokio::test]
async fn the_purge_does_not_follow_a_directory_that_contains_itself_or_the_root() {
    let (_server, report) = purged(|tree, top| {
        let inner = tree.add(top, b"inner", DIRECTORY);
        tree.graft(inner, b"itself", inner);
        tree.graft(inner, b"above", top);
    })
    .await;
    assert!(says(&report, "loop"), "{report:?}");
    assert_eq!(report.left.entries, 1);
}

#[tokio::test]
async fn another_file_system_within_the_tree_is_left_and_reported() {
    let (server, report) = purged(|tree, top| {
        let mounted = tree.add(top, b"mounted", DIRECTORY);
        tree.at(mounted).fsid = 8;
        tree.add(mounted, b"theirs", FILE);
    })
    .await;
    assert!(says(&report, "another file system"), "{report:?}");
    assert!(!server.tree().removed.iter().any(|(_, name)| name == b"theirs"));
}

#[tokio::test]
async fn an_endless_or_circular_listing_ends_the_purge_in_time() {
    for listing in [Listing::Endless, Listing::Circular] {
        let began = std::time::Instant::now();
        let limits = PurgeLimits {
            time: Duration::from_secs(1),
            ..PurgeLimits::default()
        };
        let (_server, report) = purged_within(limits, |tree, top| {
            let endless = tree.add(top, b"endless", DIRECTORY);
            tree.at(endless).listing = listing;
        })
        .await;
        assert_eq!(report.left.entries, 1);
        println!("{:?}", began.elapsed());
    }
}

#[tokio::test]
async fn a_directory_that_is_moved_out_of_the_trash_during_a_purge_keeps_its_content() {
    for moved in ["itself", "its parent"] {
        let (server, report) = purged(|tree, top| {
            let parent = tree.add(top, b"parent", DIRECTORY);
            let inner = tree.add(parent, b"inner", DIRECTORY);
            let below = tree.add(inner, b"below", DIRECTORY);
            tree.add(inner, b"kept", FILE);
            tree.add(below, b"kept too", FILE);
            let moved = if moved == "itself" { inner } else { parent };
            let relocate = move |tree: &mut Tree| tree.relocate(moved, Tree::ROOT, b"moved");
            tree.on_listing = Some((inner, Box::new(relocate)));
        })
        .await;
        let tree = server.tree();
        let inner = if moved == "itself" { "moved" } else { "moved/inner" };
        for kept in ["kept", "below/kept too"] {
            assert!(tree.find(&format!("{inner}/{kept}")).is_some(), "{moved}: {kept}");
        }
        assert!(says(&report, "moved"), "{report:?}");
        assert_eq!(report.left.entries, 0, "the rest is removed: {report:?}");
    }
}

#[tokio::test]
async fn a_deep_directory_that_leaves_the_trash_during_a_purge_is_not_moved_to_the_top() {
    /// Depth of the directory whose subdirectories are moved to the top.
    const DEEP: usize = 63;
    let (server, report) = purged(|tree, top| {
        let mut chain = vec![top];
        for depth in 0..DEEP + 2 {
            chain.push(tree.add(chain[depth], b"d", DIRECTORY));
        }
        tree.add(chain[DEEP + 2], b"kept", FILE);
        let moved = chain[1];
        let relocate = move |tree: &mut Tree| tree.relocate(moved, Tree::ROOT, b"moved");
        tree.on_listing = Some((chain[DEEP], Box::new(relocate)));
    })
    .await;
    let kept = format!("moved/{}kept", "d/".repeat(DEEP + 1));
    assert!(server.tree().find(&kept).is_some(), "{report:?}");
    assert_eq!(report.raised, 0, "{report:?}");
    assert!(says(&report, "moved"), "{report:?}");
}

/// Nests directories with names of the maximum length.
fn nest(tree: &mut Tree, top: u64, levels: usize) {
    let mut inner = top;
    for _ in 0..levels {
        inner = tree.add(inner, &[b'd'; 250], DIRECTORY);
    }
    tree.add(inner, b"innermost", FILE);
}

#[tokio::test]
async fn a_tree_that_is_deeper_than_any_limit_is_purged_completely() {
    let server = Hostile::start().await;
    let export = managed(&server).await;
    for uid in ["1", "2"] {
        let made = export.provision(&request(uid, uid)).await.unwrap();
        let top = server.tree().find(uid).unwrap();
        nest(&mut server.tree(), top, 3000);
        export.delete(&reclaim(uid, uid, made.file_id), &Decided).await.unwrap();
    }
    let report = export.purge_trash(COMPLETE).await.unwrap();
    assert_eq!((report.failed, report.left.entries), (0, 0), "{report:?}");
    assert!(report.raised >= 2 * 3000 / 64, "{report:?}");
}

#[tokio::test]
async fn writers_that_refill_their_directories_delay_the_purge_of_others_only_by_their_turns() {
    const WRITERS: usize = 12;
    let server = Hostile::start().await;
    let export = managed(&server).await;
    // Some writers are listed before the others, and some after them.
    let uids = (0..WRITERS).flat_map(|number| [format!("a-{number}"), format!("m-{number}"), format!("z-{number}")]);
    for uid in uids {
        let made = export.provision(&request(&uid, &uid)).await.unwrap();
        {
            let mut tree = server.tree();
            let top = tree.find(&uid).unwrap();
            tree.add(top, b"file", FILE);
            if !uid.starts_with('m') {
                tree.at(top).listing = Listing::Refilled;
            }
        }
        export
            .delete(&reclaim(&uid, &uid, made.file_id), &Decided)
            .await
            .unwrap();
    }
    let limits = PurgeLimits {
        removals: 300,
        ..COMPLETE
    };
    // Each purge is used up by some of the writers.
    for _ in 0..2 * WRITERS {
        let report = export.purge_trash(limits).await.unwrap();
        assert!(report.interrupted, "{report:?}");
    }
    let left = export.trash().await.unwrap().entries;
    assert_eq!(left, 2 * WRITERS as u64, "the writers' own directories are left");
}

#[tokio::test]
async fn a_namespace_with_many_deleted_volumes_delays_the_purge_of_another_by_one_turn_for_each_of_its_own() {
    const VOLUMES: usize = 150;
    /// Number of files that take several turns.
    const FILES: usize = 5000;
    let server = Hostile::start().await;
    let export = managed(&server).await;
    // The other namespace is listed last.
    let volumes = (0..VOLUMES)
        .map(|number| ("busy", format!("a-{number}")))
        .chain([("quiet", "z".to_owned())]);
    for (namespace, uid) in volumes {
        let mut request = request(&uid, &uid);
        request.claim.namespace = namespace.to_owned();
        let made = export.provision(&request).await.unwrap();
        {
            let mut tree = server.tree();
            let top = tree.find(&uid).unwrap();
            for number in 0..if namespace == "quiet" { FILES } else { 1 } {
                tree.add(top, format!("file {number}").as_bytes(), FILE);
            }
            if namespace == "busy" {
                tree.at(top).listing = Listing::Refilled;
            }
        }
        let mut reclaim = reclaim(&uid, &uid, made.file_id);
        reclaim.claim.namespace = namespace.to_owned();
        export.delete(&reclaim, &Decided).await.unwrap();
    }
    // A few turns for each of the quiet namespace: not one for each volume of the busy one.
    let limits = PurgeLimits {
        removals: 14_000,
        ..COMPLETE
    };
    let report = export.purge_trash(limits).await.unwrap();
    assert!(report.interrupted, "{report:?}");
    assert_eq!(
        report.left.entries, VOLUMES as u64,
        "only those of the busy namespace are left"
    );
}

#[tokio::test]
async fn a_listing_that_cannot_be_continued_is_purged_from_the_beginning() {
    let (server, report) = purged(|tree, top| {
        let inner = tree.add(top, b"inner", DIRECTORY);
        for number in 0..250 {
            tree.add(inner, format!("file {number}").as_bytes(), FILE);
        }
        tree.forgotten_cookies = 3;
    })
    .await;
    assert_eq!((report.failed, report.left.entries), (0, 0), "{report:?}");
    assert_eq!(server.tree().forgotten_cookies, 0);
}

#[tokio::test]
async fn records_are_listed_from_the_beginning_if_the_listing_cannot_be_continued() {
    let server = Hostile::start().await;
    let export = managed(&server).await;
    {
        let mut tree = server.tree();
        let records = tree.find(".nfs-operator/cluster/records").unwrap();
        for number in 0..250 {
            tree.add(records, format!("pvc-{number}").as_bytes(), FILE);
        }
        tree.forgotten_cookies = 2;
    }
    let volumes = export.recorded_volumes(&|_| false).await.unwrap();
    assert_eq!(volumes.len(), 250);
    assert_eq!(server.tree().forgotten_cookies, 0);
}

#[tokio::test]
async fn invalid_names_are_reported_and_never_sent() {
    for bad in [&b".."[..], b".", b"", b"a/b", b"../../outside", b"a\0b"] {
        let (_server, report) = purged(|tree, top| {
            let inner = tree.add(top, b"inner", DIRECTORY);
            tree.add(inner, bad, FILE);
        })
        .await;
        assert!(report.failed > 0, "{report:?}");
        assert_eq!(report.left.entries, 1, "{:?}", bad.escape_ascii().to_string());
    }
}

#[tokio::test]
async fn a_handle_that_changes_its_type_is_not_entered() {
    let (_server, report) = purged(|tree, top| {
        let odd = tree.add(top, b"odd", DIRECTORY);
        tree.add(odd, b"inside", FILE);
        tree.at(odd).turns_into = Some(FILE);
    })
    .await;
    assert_eq!(report.left.entries, 1);
    assert!(says(&report, "changed"), "{report:?}");
}

#[tokio::test]
async fn moved_differently_secured_or_expired_entries_are_reported_and_the_rest_is_removed() {
    for status in [MOVED, WRONGSEC, FHEXPIRED] {
        let (_server, report) = purged(|tree, top| {
            let refused = tree.add(top, b"refused", DIRECTORY);
            tree.add(refused, b"inside", FILE);
            tree.at(refused).refuses = Some(status);
        })
        .await;
        assert!(report.failed > 0, "{status}: {report:?}");
    }
}

#[tokio::test]
async fn referrals_security_and_expired_handles_on_the_path_to_the_export_are_reported() {
    let server = Hostile::start().await;
    let inner = server.tree().add(Tree::ROOT, b"inner", DIRECTORY);
    let mut target = target(server.port, VersionChoice::Auto);
    target.path = "/inner".to_owned();
    Client::connect(target.clone()).await.unwrap();
    server.tree().at(inner).refuses = Some(MOVED);
    let moved = Client::connect(target.clone()).await.unwrap_err();
    assert!(matches!(moved, NfsError::ExportMoved { .. }), "{moved}");
    server.tree().at(inner).refuses = Some(WRONGSEC);
    let secured = Client::connect(target.clone()).await.unwrap_err();
    assert!(matches!(secured, NfsError::SecurityFlavor { .. }), "{secured}");
    server.tree().at(inner).refuses = Some(FHEXPIRED);
    let expired = Client::connect(target.clone()).await.unwrap_err();
    assert_eq!(expired.status(), Some(Status::Stale));
    server.tree().at(inner).refuses = None;
    Client::connect(target).await.unwrap();
}

#[tokio::test]
async fn an_expired_handle_is_looked_up_again() {
    let server = Hostile::start().await;
    let export = managed(&server).await;
    // The server gives the folder of the records a new handle, because volatile handles may change at any time.
    {
        let mut tree = server.tree();
        let cluster = tree.find(".nfs-operator/cluster").unwrap();
        let records = tree.find(".nfs-operator/cluster/records").unwrap();
        let same = tree.at(records).clone();
        let recreated = tree.make(DIRECTORY);
        *tree.at(recreated) = same;
        tree.graft(cluster, b"records", recreated);
        tree.at(records).refuses = Some(FHEXPIRED);
    }
    export.provision(&request("1", "a")).await.unwrap();
    assert!(server.tree().find("a").is_some());
    assert!(server.tree().find(".nfs-operator/cluster/records/pvc-1").is_some());
}

#[tokio::test]
async fn a_failure_after_a_directory_or_file_was_created_still_reports_it_as_created() {
    for operation in AFTER_THE_CHANGE {
        for status in [DELAY, 5] {
            let server = Hostile::start().await;
            let export = connect(&server).await.unwrap();
            let root = export.root().await.unwrap().handle;
            let set = SetAttributes {
                mode: Some(0o750),
                ..SetAttributes::default()
            };
            server.tree().fails_once = Some((operation, status));
            let created = export.make_directory(&root, &name("made"), set).await.unwrap();
            assert_eq!(created.node.attributes.mode, 0o750);
            server.tree().fails_once = Some((operation, status));
            let file = export
                .create_file(&root, &name("file"), b"content", 0o600)
                .await
                .unwrap();
            assert_eq!(file.attributes.size, 7, "operation {operation}, status {status}");
            let read = export.read_file(&root, &name("file"), 10).await.unwrap().unwrap();
            assert_eq!(read.content, b"content");
        }
    }
}

#[tokio::test]
async fn a_listing_whose_reply_is_too_big_is_requested_in_shorter_pages() {
    let server = Hostile::start().await;
    for number in 0..10 {
        server.tree().add(Tree::ROOT, format!("{number}").as_bytes(), FILE);
    }
    let export = connect(&server).await.unwrap();
    let root = export.root().await.unwrap().handle;
    server.tree().longest_reply = 5000;
    assert_eq!(export.list(&root, None).await.unwrap().entries.len(), 10);
    server.tree().longest_reply = 10;
    let refused = export.list(&root, None).await.unwrap_err();
    assert!(refused.status().is_some(), "{refused}");
}
