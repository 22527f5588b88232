//! The Ceph cluster of the rig.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use rig::{Ceph, NfsOptions, RunDir};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_system_of_ceph_is_served() {
    let run = RunDir::new().unwrap();
    let ceph = Ceph::start(&run).await.unwrap();
    let nfs = ceph.serve(&run, NfsOptions::default()).await.unwrap();
    assert!(tokio::net::TcpStream::connect(nfs.address()).await.is_ok());
}
