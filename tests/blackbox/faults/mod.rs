//! Faults of the network and of servers, against real and hostile servers. `docs/reliability.md` has a row for each.

mod cuts;
mod evil_counts;
mod evil_trees;
mod fencing;
mod hostile;
mod referrals;
mod restarts;

use std::time::Duration;

use nfs_client::{ClientOwner, Credential, Name, Protocol, SourcePort, Target, VersionChoice};
use rig::{NfsOptions, NfsServer, RunDir};

fn name(text: &str) -> Name {
    Name::new(text.as_bytes().to_vec()).unwrap()
}

/// A server that speaks this version, with the export `/data`.
async fn server(protocol: Protocol) -> (NfsServer, RunDir) {
    let run = RunDir::new().unwrap();
    let options = NfsOptions {
        exports: vec![rig::Export::new("/data")],
        v3: protocol == Protocol::V3,
        ..NfsOptions::default()
    };
    (NfsServer::start(&run, options).await.unwrap(), run)
}

fn target(port: u16, version: VersionChoice) -> Target {
    Target {
        server: "127.0.0.1".to_owned(),
        path: "/data".to_owned(),
        version,
        port,
        mount_port: None,
        source_port: SourcePort::Any,
        credential: Credential::default(),
        owner: ClientOwner {
            owner: rand::random::<[u8; 16]>().to_vec(),
            verifier: [1; 8],
        },
        deadline: Duration::from_secs(20),
    }
}
