#![allow(clippy::unwrap_used)] // A test that cannot continue has failed.

use super::*;

fn volume(name: &str) -> Holder {
    Holder::Volume(name.into())
}

fn root(name: &str) -> Holder {
    Holder::BackendRoot(name.into())
}

fn at(path: &str) -> Vec<ReservedPath> {
    vec![ReservedPath::on_server("Nas.Example.org", path)]
}

/// A backend `a` at /data with a volume `one` at /data/team/one.
fn reservations() -> Arc<PathReservations> {
    let reservations = Arc::new(PathReservations::new());
    reservations.insert(root("a"), at("/data"), None);
    reservations.insert(volume("one"), at("/data/team/one"), Some(("id".into(), 7)));
    reservations
}

fn relation(reservations: &Arc<PathReservations>, path: &str) -> Option<Relation> {
    reservations
        .overlap(&at(path), &volume("new"), Sharing::Exclusive, "a")
        .map(|conflict| conflict.relation)
}

#[test]
fn a_directory_may_not_be_contain_or_lie_in_another() {
    let reservations = reservations();
    assert_eq!(relation(&reservations, "/data/team/one"), Some(Relation::Same));
    assert_eq!(relation(&reservations, "/data/team"), Some(Relation::Contains));
    assert_eq!(
        relation(&reservations, "/data/team/one/deep/er"),
        Some(Relation::Inside)
    );
    assert_eq!(relation(&reservations, "/data/team/one2"), None);
    assert_eq!(relation(&reservations, "/data/team/o"), None);
    assert_eq!(relation(&reservations, "/data/team/one.x"), None);
    assert_eq!(relation(&reservations, "/data/other"), None);
}

#[test]
fn names_that_differ_only_in_case_are_the_same() {
    let reservations = reservations();
    assert_eq!(relation(&reservations, "/data/TEAM/One"), Some(Relation::Same));
    let elsewhere = vec![ReservedPath::on_server("NAS.example.org.", "/data/team/one")];
    assert!(
        reservations
            .overlap(&elsewhere, &volume("new"), Sharing::Exclusive, "a")
            .is_some()
    );
}

#[test]
fn doubled_slashes_do_not_hide_a_path() {
    assert_eq!(relation(&reservations(), "//data/./team//one/"), Some(Relation::Same));
}

#[test]
fn the_root_of_another_backend_is_refused_unless_it_is_the_same_place() {
    let reservations = reservations();
    reservations.insert(root("same"), at("/data"), None);
    assert_eq!(relation(&reservations, "/data/free"), None);
    reservations.insert(root("nested"), at("/data/nested"), None);
    assert_eq!(relation(&reservations, "/data/nested"), Some(Relation::Same));
    assert_eq!(relation(&reservations, "/data/nested/x"), Some(Relation::Inside));
    // The nested backend's own directories lie below another backend's root, too.
    let conflict = reservations
        .overlap(&at("/data/nested/x"), &volume("new"), Sharing::Exclusive, "nested")
        .unwrap();
    assert_eq!(conflict.holder, root("a"));
}

#[test]
fn another_realm_is_another_world() {
    let reservations = reservations();
    let elsewhere = vec![
        ReservedPath::on_server("other", "/data/team/one"),
        ReservedPath::on_export("id", "data/team/one"),
    ];
    assert_eq!(
        reservations.overlap(&elsewhere, &volume("new"), Sharing::Exclusive, "a"),
        None
    );
}

fn possible(reservations: &PathReservations, places: &[ReservedPath]) -> Vec<Holder> {
    let found = reservations.possible_overlaps(places, &volume("new"), Sharing::Exclusive);
    found.into_iter().map(|possible| possible.conflict.holder).collect()
}

#[test]
fn the_same_path_on_a_server_of_another_name_may_be_the_same_directory() {
    let reservations = reservations();
    let elsewhere = |path: &str| vec![ReservedPath::on_server("10.0.0.1", path)];
    for path in ["/data/team/one", "/data/Team", "/data/team/one/below"] {
        assert_eq!(possible(&reservations, &elsewhere(path)), [volume("one")], "{path}");
    }
    for path in ["/data/team/two", "/data/team/one2"] {
        assert_eq!(possible(&reservations, &elsewhere(path)), [], "{path}");
    }
    let own = reservations.possible_overlaps(&elsewhere("/data/team/one"), &volume("one"), Sharing::Exclusive);
    assert_eq!(own, [], "a volume is not in its own way");
    assert_eq!(
        possible(&reservations, &at("/data/team/one")),
        [],
        "the same name is a certain conflict"
    );
}

#[test]
fn a_volume_on_an_export_that_another_backend_confirmed_is_not_in_the_way() {
    let reservations = reservations();
    let places = |id: &str| vec![ReservedPath::on_server("a", "/x"), ReservedPath::on_export(id, "x")];
    let mine = vec![ReservedPath::on_server("b", "/x"), ReservedPath::on_export("mine", "x")];
    reservations.insert(volume("other"), places("other"), None);
    assert_eq!(
        possible(&reservations, &mine),
        [volume("other")],
        "nothing confirms its annotation"
    );
    reservations.insert(root("other"), vec![ReservedPath::on_server("a", "/")], None);
    reservations.confirm_export("other", "other");
    assert_eq!(possible(&reservations, &mine), []);
    reservations.remove(&root("other"));
    assert_eq!(possible(&reservations, &mine), [volume("other")]);
}

/// Backend `outer` at 127.0.0.1:/export and backend `inner` at localhost:/export/team-a/inner, with a volume.
#[test]
fn a_backend_below_a_directory_is_in_the_way_whatever_the_name_of_its_server_is() {
    let reservations = PathReservations::new();
    let on = |server: &str, path: &str| ReservedPath::on_server(server, path);
    let below_outer = |path: &str| {
        vec![
            on("127.0.0.1", "/export").below(path),
            ReservedPath::on_export("outer", path),
        ]
    };
    let inner = on("localhost", "/export/team-a/inner");
    reservations.insert(root("outer"), vec![on("127.0.0.1", "/export")], None);
    reservations.insert(root("inner"), vec![inner.clone()], None);
    reservations.insert(
        volume("v"),
        vec![inner.below("v"), ReservedPath::on_export("inner", "v")],
        None,
    );
    reservations.confirm_export("outer", "outer");
    for confirmed in [false, true] {
        if confirmed {
            reservations.confirm_export("inner", "inner");
        }
        for path in ["team-a", "team-a/inner"] {
            assert_eq!(
                possible(&reservations, &below_outer(path)),
                [root("inner"), volume("v")],
                "{path}"
            );
        }
        assert_eq!(possible(&reservations, &below_outer("team-a/inner/v/x")), [volume("v")]);
        for path in ["team-b", "team-a/inner2"] {
            assert_eq!(possible(&reservations, &below_outer(path)), [], "{path}");
        }
    }
    // The volumes of the inner backend are not in a directory of the outer one.
    let place = vec![inner.below("w"), ReservedPath::on_export("inner", "w")];
    assert_eq!(possible(&reservations, &place), []);
    // Backends with the same path are not nested: they are on one export, or on two servers.
    reservations.insert(root("other"), vec![on("nas2", "/export")], None);
    reservations.confirm_export("other", "other");
    let on_other = vec![on("nas2", "/export").below("x"), ReservedPath::on_export("other", "x")];
    reservations.insert(volume("x"), on_other, None);
    assert_eq!(possible(&reservations, &below_outer("x")), []);
}

#[test]
fn an_address_has_one_spelling() {
    let reservations = Arc::new(PathReservations::new());
    reservations.insert(volume("one"), vec![ReservedPath::on_server("[FD00:0::1]", "/x")], None);
    let same = ReservedPath::on_server("fd00::1", "/x");
    assert!(
        reservations
            .overlap(&[same], &volume("new"), Sharing::Exclusive, "a")
            .is_some()
    );
}

#[test]
fn a_reservation_is_atomic_and_ends_with_its_guard() {
    let reservations = reservations();
    let first = reservations
        .reserve(volume("x"), at("/data/x"), Sharing::Exclusive, "a")
        .unwrap();
    assert!(
        reservations
            .reserve(volume("y"), at("/data/x/y"), Sharing::Exclusive, "a")
            .is_err()
    );
    let again = reservations
        .reserve(volume("x"), at("/data/x"), Sharing::Exclusive, "a")
        .unwrap();
    drop(first);
    assert!(
        reservations
            .reserve(volume("y"), at("/data/x"), Sharing::Exclusive, "a")
            .is_err()
    );
    drop(again);
    assert!(
        reservations
            .reserve(volume("y"), at("/data/x"), Sharing::Exclusive, "a")
            .is_ok()
    );
}

#[test]
fn a_kept_reservation_stays_until_the_volume_is_said_or_gone() {
    let reservations = reservations();
    let file = ("id".to_owned(), 9);
    let reservation = reservations
        .reserve(volume("x"), at("/data/x"), Sharing::Exclusive, "a")
        .unwrap();
    reservation.keep(Some(file.clone()));
    assert!(!reservations.knows(&volume("x")));
    assert_eq!(reservations.holders_of(&file), [volume("x")]);
    assert!(
        reservations
            .reserve(volume("y"), at("/data/x"), Sharing::Exclusive, "a")
            .is_err()
    );
    reservations.insert(volume("x"), at("/data/elsewhere"), None);
    assert!(reservations.knows(&volume("x")));
    assert!(reservations.holders_of(&file).is_empty());
    assert!(
        reservations
            .reserve(volume("y"), at("/data/x"), Sharing::Exclusive, "a")
            .is_ok()
    );
    reservations.remove(&volume("x"));
    assert!(
        reservations
            .reserve(volume("y"), at("/data/elsewhere"), Sharing::Exclusive, "a")
            .is_ok()
    );
}

#[test]
fn a_holder_is_found_by_the_thing_it_holds() {
    let reservations = reservations();
    let file = ("id".to_owned(), 7);
    assert_eq!(reservations.holders_of(&file), [volume("one")]);
    assert!(reservations.holders_of(&("other".to_owned(), 7)).is_empty());
}

#[test]
fn what_a_holder_had_is_released_when_it_has_something_else() {
    let reservations = reservations();
    reservations.insert(volume("one"), at("/data/moved"), None);
    assert_eq!(relation(&reservations, "/data/team/one"), None);
    assert_eq!(relation(&reservations, "/data/moved"), Some(Relation::Same));
    assert!(reservations.holders_of(&("id".to_owned(), 7)).is_empty());
}

#[test]
fn of_ten_thousand_volumes_a_search_compares_a_few() {
    let reservations = reservations();
    for number in 0..10_000 {
        reservations.insert(volume(&format!("v{number}")), at(&format!("/data/ns/v{number}")), None);
    }
    let before = index::comparisons();
    for number in 0..1000 {
        assert_eq!(relation(&reservations, &format!("/data/ns/w{number}")), None);
    }
    let each = (index::comparisons() - before) / 1000;
    // A few binary searches: three paths above it, and those that are it or lie below it.
    assert!(each < 200, "{each} comparisons for each search");
}

/// Knows `10.0.0.1` as an address of the server `nfs`.
struct OneServer;

impl ServerComparison for OneServer {
    fn why_same<'a>(&'a self, _: &'a str, other: &'a str) -> futures::future::BoxFuture<'a, Option<String>> {
        Box::pin(async move { (other == "nfs").then(|| "the same address".to_owned()) })
    }
}

#[tokio::test]
async fn a_path_lies_inside_a_volume_whatever_the_name_of_its_server_is() {
    let reservations = PathReservations::new();
    let place = |server: &str, path: &str| vec![ReservedPath::on_server(server, path)];
    reservations.insert(volume("static"), place("nfs", "/data/one"), None);
    reservations.insert(volume("elsewhere"), place("other", "/data"), None);
    // Its export is confirmed, and that of a path without one is not known.
    let mut ours = place("nfs", "/data/two");
    ours.push(ReservedPath::on_export("id", "two"));
    reservations.insert(volume("ours"), ours, None);
    reservations.confirm_export("a", "id");
    for (path, expected) in [
        ("/data/one", Some("static")),
        ("/data/one/below", Some("static")),
        ("/data/two/below", Some("ours")),
        ("/data", None),
        ("/data/three", None),
    ] {
        let found = reservations
            .enclosing_holder(&place("10.0.0.1", path), &OneServer)
            .await;
        let expected = expected.map(|name| (volume(name), Some("the same address".to_owned())));
        assert_eq!(found, expected, "{path}");
    }
    let same_name = reservations
        .enclosing_holder(&place("nfs", "/data/one/below"), &OneServer)
        .await;
    assert_eq!(same_name, Some((volume("static"), None)));
}

#[test]
fn volumes_that_share_may_have_the_same_directory_and_no_others() {
    use Sharing::{Exclusive, Shared};
    let reservations = reservations();
    let file = ("id".to_owned(), 9);
    reservations.insert_as(volume("s"), at("/data/common"), Some(file.clone()), Shared);
    let relation = |path: &str, sharing: Sharing| {
        let conflict = reservations.overlap(&at(path), &volume("new"), sharing, "a");
        conflict.map(|conflict| conflict.relation)
    };
    for (path, alone, together) in [
        ("/data/common", Some(Relation::Same), None),
        ("/data/COMMON", Some(Relation::Same), None),
        ("/data/common/below", Some(Relation::Inside), Some(Relation::Inside)),
        ("/data", Some(Relation::Same), Some(Relation::Same)),
        ("/data/team/one", Some(Relation::Same), Some(Relation::Same)),
        ("/data/team", Some(Relation::Contains), Some(Relation::Contains)),
    ] {
        assert_eq!(relation(path, Exclusive), alone, "{path}");
        assert_eq!(relation(path, Shared), together, "{path}");
    }
    assert_eq!(reservations.holders_against(&file, Exclusive), [volume("s")]);
    assert_eq!(reservations.holders_against(&file, Shared), []);
    let one = ("id".to_owned(), 7);
    assert_eq!(reservations.holders_against(&one, Shared), [volume("one")]);
    // The same directory by another name of the server.
    let elsewhere = |sharing| {
        let places = [ReservedPath::on_server("10.0.0.1", "/data/common")];
        reservations.possible_overlaps(&places, &volume("new"), sharing).len()
    };
    assert_eq!((elsewhere(Exclusive), elsewhere(Shared)), (1, 0));
}

#[test]
fn a_kept_reservation_of_a_shared_directory_is_shared() {
    use Sharing::{Exclusive, Shared};
    let reservations = reservations();
    let reserve = |name: &str, sharing| reservations.reserve(volume(name), at("/data/common"), sharing, "a");
    let first = reserve("x", Shared).unwrap();
    drop(reserve("y", Shared).unwrap());
    assert!(reserve("y", Exclusive).is_err());
    first.keep(None);
    drop(reserve("y", Shared).unwrap());
    assert!(reserve("y", Exclusive).is_err());
    reservations.insert(volume("x"), at("/data/common"), None);
    assert!(reserve("y", Shared).is_err(), "the volume says that it does not share");
}

#[test]
fn paths_are_the_same_however_they_are_stored() {
    let uid = "00000000-0000-4000-8000-000000000001";
    let name = format!("pvc-{uid}");
    let on_export = |id: &str, path: &str| ReservedPath::on_export(id, path);
    for directory in [
        format!("team-data-{name}"),
        name.clone(),
        format!("{name}/data"),
        format!("{name}-{name}"),
        format!("team/PVC-{uid}"),
        "team/data".to_owned(),
    ] {
        let reservations = Arc::new(PathReservations::new());
        let places = vec![
            ReservedPath::on_server("nas", &format!("/data/{directory}")),
            on_export("id", &directory),
            // A former path, which ends otherwise.
            ReservedPath::on_server("nas", "/former/elsewhere"),
        ];
        let found = |path: &ReservedPath| {
            let conflict = reservations.overlap(std::slice::from_ref(path), &volume("new"), Sharing::Exclusive, "a");
            conflict.map(|conflict| (conflict.holder, conflict.relation))
        };
        reservations.insert(volume(&name), places.clone(), Some(("id".into(), 7)));
        let mut volumes = Vec::new();
        reservations.for_each_volume(|volume| volumes.push(volume.to_owned()));
        volumes.dedup();
        assert_eq!(volumes, [name.as_str()]);
        for place in &places {
            assert_eq!(found(place), Some((volume(&name), Relation::Same)), "{place}");
            assert_eq!(
                found(&place.below("x")),
                Some((volume(&name), Relation::Inside)),
                "{place}"
            );
        }
        let above = ReservedPath::on_server("nas", "/data");
        assert_eq!(found(&above), Some((volume(&name), Relation::Contains)), "{directory}");
        for other in [format!("{directory}x"), format!("{directory}.x"), "team/dat".to_owned()] {
            assert_eq!(found(&on_export("id", &other)), None, "{other}");
        }
        assert_eq!(found(&on_export("other", &directory)), None);
        assert_eq!(reservations.file_of(&volume(&name)), Some(("id".into(), 7)));
        reservations.remove(&volume(&name));
        assert!(places.iter().all(|place| found(place).is_none()), "{directory}");
        assert!(reservations.holders_of(&("id".into(), 7)).is_empty());
    }
}
