//! Copies that the kernel's server makes: CLONE if the file system can share blocks, COPY otherwise.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use export_store::PathReservations;
use nfs_client::{Credential, Protocol, VersionChoice};
use rig::{Action, Direction, KernelVm, Proxy};

use crate::copy::{copied, volume};
use crate::fixture::{CLUSTER, StoreClient};
use crate::nfs::name;

/// Prints what a copy must preserve: names, types, modes, owners, sizes, times, links, contents.
const LOOK: &str = "find . | sort | while read -r it; do stat -c '%n %F %a %u:%g %Y %h' \"$it\"; done; \
                    find . -type f | sort | xargs md5sum; find . -type l | xargs readlink";

async fn copies_on_the_server(export: &str) {
    let vm = KernelVm::shared().await.unwrap();
    let path = format!("{export}/copy-{}", rig::random_suffix());
    vm.run(&format!("mkdir {path}")).await.unwrap();
    let proxy = Proxy::start(([127, 0, 0, 1], vm.nfs_port()).into()).await.unwrap();
    let client = StoreClient {
        cluster: CLUSTER,
        key: 7,
        backend: "kernel",
        credential: Credential::default(),
        reservations: Arc::new(PathReservations::new()),
        port: proxy.port(),
        mount_port: vm.mount_port(),
        version: VersionChoice::Exactly(Protocol::V4_2),
        path: Box::leak(path.clone().into_boxed_str()),
    };
    let managed = Arc::new(client.open().await);
    let file_id = volume(&managed, "old").await;
    let grow = format!(
        "cd {path}/old && mkdir -p a/b && dd if=/dev/urandom of=big bs=64k count=96 2>/dev/null
         dd if=/dev/urandom of=sparse bs=4k count=1 2>/dev/null
         dd if=/dev/urandom of=sparse bs=4k count=1 seek=1000 conv=notrunc 2>/dev/null && truncate -s 9000000 sparse
         echo small >small && ln small a/b/again && ln -s ../nowhere a/dangling
         chown 1234:4321 big && chmod 4750 big && touch -d '2001-02-03 04:05:06' big sparse small a/b a ."
    );
    vm.run(&grow).await.unwrap();
    let nfs = managed.nfs();
    let root = nfs.root().await.unwrap().handle;
    let old = nfs.lookup(&root, &name("old")).await.unwrap().unwrap().handle;
    let small = nfs.lookup(&old, &name("small")).await.unwrap().unwrap().handle;
    nfs.set_xattr(&small, b"colour", b"blue").await.unwrap();
    let bytes = Arc::new(AtomicUsize::new(0));
    for direction in [Direction::Up, Direction::Down] {
        let bytes = Arc::clone(&bytes);
        proxy.on_record(direction, move |record| {
            bytes.fetch_add(record.len(), Ordering::Relaxed);
            Action::Forward
        });
    }
    let (_, tally) = copied((&managed, "old", file_id), (&managed, "new")).await.unwrap();
    // XFS updates the change attribute even on a read.
    assert_eq!(tally.changed, 0, "{tally}");
    let passed = bytes.load(Ordering::Relaxed);
    println!("{export}: {tally}; {passed} bytes went over the wire");
    // 6 MiB of content. The client reads the first 64 KiB of each large file before it knows the size.
    assert!(passed < 1_000_000, "{passed} bytes went over the wire");
    let old = vm.run(&format!("cd {path}/old && {LOOK}")).await.unwrap();
    let new = vm.run(&format!("cd {path}/new && {LOOK}")).await.unwrap();
    assert_eq!(new, old);
    let blocks = vm.run(&format!("stat -c %b {path}/new/sparse")).await.unwrap();
    assert!(blocks.trim().parse::<u64>().unwrap() < 2048, "{blocks}");
    let new = nfs.lookup(&root, &name("new")).await.unwrap().unwrap().handle;
    let small = nfs.lookup(&new, &name("small")).await.unwrap().unwrap().handle;
    assert_eq!(nfs.get_xattr(&small, b"colour").await.unwrap().unwrap(), "blue");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_share_their_blocks_if_the_file_system_supports_it() {
    copies_on_the_server("/xfs").await;
    copies_on_the_server("/btrfs").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_copies_ranges_of_data_if_it_cannot_clone() {
    copies_on_the_server("/plain").await;
}
