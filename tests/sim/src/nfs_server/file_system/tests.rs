use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::*;

fn disk() -> FileSystem {
    FileSystem::new(FileSystemOptions::default())
}

fn directory(disk: &mut FileSystem, parent: Ino, name: &str) -> Ino {
    let kind = Kind::Directory(Directory::new(parent));
    disk.create(
        &Caller::ROOT,
        parent,
        name.as_bytes(),
        kind,
        AttributeChanges::default(),
    )
    .unwrap()
}

fn file(disk: &mut FileSystem, parent: Ino, name: &str, content: &[u8]) -> Ino {
    let kind = Kind::Regular(Content::default());
    let set = AttributeChanges::default();
    let ino = disk.create(&Caller::ROOT, parent, name.as_bytes(), kind, set).unwrap();
    assert_eq!(disk.write(&Caller::ROOT, ino, 0, content).unwrap(), content.len());
    ino
}

#[test]
fn the_lowest_free_number_is_reused_and_the_old_handle_is_stale() {
    let mut disk = disk();
    let root = disk.root();
    let one = directory(&mut disk, root, "one");
    directory(&mut disk, root, "two");
    let handle = disk.object(one).unwrap();
    disk.remove(&Caller::ROOT, root, b"one", Removal::Any).unwrap();
    assert_eq!(disk.resolve(handle), Err(NfsStat::STALE));
    assert_eq!(directory(&mut disk, root, "three"), one);
    assert_eq!(disk.resolve(handle), Err(NfsStat::STALE));
    // Without generations, the old handle means the new object.
    disk.options_mut().generations = false;
    let handle = Object {
        ino: one,
        generation: 0,
    };
    assert_eq!(disk.resolve(handle), Ok(one));
}

#[test]
fn a_rename_replaces_an_empty_directory_and_never_loses_a_full_one() {
    let mut disk = disk();
    let root = disk.root();
    let (one, two) = (directory(&mut disk, root, "one"), directory(&mut disk, root, "two"));
    let inside = directory(&mut disk, one, "inside");
    file(&mut disk, two, "file", b"x");
    let rename = |disk: &mut FileSystem, from: (Ino, &[u8]), to: (Ino, &[u8])| disk.rename(&Caller::ROOT, from, to);
    assert_eq!(
        rename(&mut disk, (root, b"one"), (root, b"two")),
        Err(NfsStat::NOTEMPTY)
    );
    assert_eq!(rename(&mut disk, (root, b"one"), (inside, b"x")), Err(NfsStat::INVAL));
    assert_eq!(rename(&mut disk, (two, b"file"), (root, b"one")), Err(NfsStat::EXIST));
    assert_eq!(rename(&mut disk, (root, b"two"), (one, b"inside")), Ok(()));
    assert_eq!(disk.path(two).unwrap(), b"one/inside");
    assert!(disk.inode(inside).is_err());
    assert_eq!(disk.inode(root).unwrap().links(), 3);
}

#[test]
fn a_full_disk_refuses_without_a_trace() {
    let mut disk = FileSystem::new(FileSystemOptions {
        capacity: 4 * PAGE,
        ..FileSystemOptions::default()
    });
    let root = disk.root();
    let kept = file(&mut disk, root, "kept", &[1; PAGE as usize]);
    let other = file(&mut disk, root, "other", b"");
    // Two pages are left: what fits is written, then nothing.
    assert_eq!(
        disk.write(&Caller::ROOT, other, 0, &[2; 3 * PAGE as usize]).unwrap(),
        2 * PAGE as usize
    );
    assert_eq!(disk.write(&Caller::ROOT, other, 2 * PAGE, b"x"), Err(NfsStat::NOSPC));
    let kind = Kind::Directory(Directory::new(root));
    let refused = disk.create(&Caller::ROOT, root, b"new", kind, AttributeChanges::default());
    assert_eq!(refused, Err(NfsStat::NOSPC));
    assert_eq!(disk.inodes().count(), 3);
    // Overwriting takes no space, and a removal frees some.
    assert_eq!(disk.write(&Caller::ROOT, kept, 0, b"again"), Ok(5));
    disk.remove(&Caller::ROOT, root, b"other", Removal::Any).unwrap();
    directory(&mut disk, root, "new");
}

#[test]
fn the_journal_names_the_object_and_what_was_freed() {
    let mut disk = disk();
    let root = disk.root();
    let below = directory(&mut disk, root, "below");
    let ino = file(&mut disk, below, "file", b"content");
    disk.link(&Caller::ROOT, ino, root, b"other").unwrap();
    disk.take_mutations();
    disk.remove(&Caller::ROOT, below, b"file", Removal::Any).unwrap();
    disk.remove(&Caller::ROOT, root, b"other", Removal::Any).unwrap();
    let mutations = disk.take_mutations();
    let paths: Vec<_> = mutations.iter().map(|mutation| mutation.path.as_slice()).collect();
    assert_eq!(paths, [&b"below/file"[..], b"other"]);
    assert!(mutations[0].freed.is_none());
    let freed = mutations[1].freed.as_ref().unwrap();
    assert_eq!(freed.content().unwrap().bytes(), b"content");
}

#[test]
fn names_of_a_case_insensitive_disk_keep_their_case() {
    let mut disk = FileSystem::new(FileSystemOptions {
        case_insensitive: true,
        ..FileSystemOptions::default()
    });
    let root = disk.root();
    let ino = file(&mut disk, root, "Data", b"");
    assert_eq!(disk.lookup(&Caller::ROOT, root, b"dATA"), Ok(ino));
    disk.rename(&Caller::ROOT, (root, b"data"), (root, b"DATA")).unwrap();
    let (_, entries) = disk.directory(root).unwrap();
    assert_eq!(entries.entries().next().unwrap().name, "DATA");
}

#[test]
fn another_user_changes_only_what_the_mode_permits() {
    let mut disk = disk();
    let root = disk.root();
    let user = Caller {
        uid: 1000,
        gid: 1000,
        groups: vec![7],
    };
    let ino = file(&mut disk, root, "file", b"x");
    let remove = |disk: &mut FileSystem| disk.remove(&user, root, b"file", Removal::Any);
    assert_eq!(remove(&mut disk), Err(NfsStat::ACCESS));
    assert_eq!(disk.write(&user, ino, 0, b"y"), Err(NfsStat::ACCESS));
    // Everybody may create entries, but with the sticky bit only remove their own.
    let mode = AttributeChanges {
        mode: Some(0o1777),
        ..AttributeChanges::default()
    };
    disk.set_attributes(&Caller::ROOT, root, mode).unwrap();
    assert_eq!(remove(&mut disk), Err(NfsStat::PERM));
    let give = AttributeChanges {
        gid: Some(7),
        ..AttributeChanges::default()
    };
    assert_eq!(disk.set_attributes(&user, ino, give), Err(NfsStat::PERM));
}

/// A random operation with few names, so that they meet.
fn change_at_random(disk: &mut FileSystem, rng: &mut StdRng) {
    let directories: Vec<Ino> = disk
        .inodes()
        .filter(|(_, inode)| inode.directory().is_some())
        .map(|(ino, _)| ino)
        .collect();
    let all: Vec<Ino> = disk.inodes().map(|(ino, _)| ino).collect();
    let mut any = |of: &[Ino]| of[rng.random_range(0..of.len())];
    let (from, to, object) = (any(&directories), any(&directories), any(&all));
    let mut name = || [b'a' + rng.random_range(0..6u8)];
    let (one, two) = (name(), name());
    let set = AttributeChanges::default();
    let size = rng.random_range(0..5 * PAGE);
    // Any operation may be refused: only the invariants count.
    let _ = match rng.random_range(0..9) {
        0 | 1 => {
            let kind = Kind::Directory(Directory::new(from));
            disk.create(&Caller::ROOT, from, &one, kind, set).map(drop)
        }
        2 | 3 => {
            let kind = Kind::Regular(Content::default());
            disk.create(&Caller::ROOT, from, &one, kind, set).map(drop)
        }
        4 => disk.remove(&Caller::ROOT, from, &one, Removal::Any),
        5 => disk.rename(&Caller::ROOT, (from, &one), (to, &two)),
        6 => disk.link(&Caller::ROOT, object, to, &one),
        7 => disk.write(&Caller::ROOT, object, size, b"data").map(drop),
        _ => {
            let set = AttributeChanges {
                size: Some(size),
                ..set
            };
            disk.set_attributes(&Caller::ROOT, object, set)
        }
    };
}

#[test]
fn the_invariants_hold_after_any_operations_even_on_a_full_disk() {
    for seed in 0..200 {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut disk = FileSystem::new(FileSystemOptions {
            capacity: rng.random_range(4..30) * PAGE,
            inodes: rng.random_range(4..30),
            case_insensitive: rng.random(),
            ..FileSystemOptions::default()
        });
        for step in 0..200 {
            change_at_random(&mut disk, &mut rng);
            disk.check_invariants()
                .unwrap_or_else(|broken| unreachable!("seed {seed}, step {step}: {broken}"));
            assert!(disk.statistics().available <= disk.options().capacity);
        }
    }
}
