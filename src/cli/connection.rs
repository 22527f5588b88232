//! How the subcommands that look at an export without a cluster come to it.

use std::time::Duration;

use clap::{Args, ValueEnum};
use export_store::naming::parse_export_address;
use nfs_client::address::ExportAddress;
use nfs_client::{ClientOwner, Credential, ImplementationId, Protocol, SourcePort, Target, VersionChoice};
use nfs_operator::api::names::{GROUP, NFS_CLIENT_NAME};
use rand::RngExt;

/// A person waits for the answer; a server that takes longer is named as slow.
const DEADLINE: Duration = Duration::from_secs(10);

/// An export, and how to come to it.
#[derive(Args)]
pub struct Connection {
    /// The export: SERVER:/PATH, an IPv6 address in brackets.
    #[arg(value_name = "SERVER:/PATH", value_parser = parse_export_address)]
    pub export: ExportAddress,
    /// NFS version; absent: the newest that works.
    #[arg(long, value_enum)]
    version: Option<Version>,
    /// TCP port of the server.
    #[arg(long, default_value_t = 2049, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// TCP port of NFSv3's MOUNT; absent: rpcbind is asked.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    mount_port: Option<u16>,
    /// User and group to act as.
    #[arg(long, value_name = "UID:GID", default_value = "0:0", value_parser = credential)]
    credential: Credential,
}

#[derive(Clone, Copy, ValueEnum)]
enum Version {
    #[value(name = "4.2")]
    V4_2,
    #[value(name = "4.1")]
    V4_1,
    #[value(name = "4.0")]
    V4_0,
    #[value(name = "3")]
    V3,
}

impl Version {
    fn protocol(self) -> Protocol {
        match self {
            Self::V4_2 => Protocol::V4_2,
            Self::V4_1 => Protocol::V4_1,
            Self::V4_0 => Protocol::V4_0,
            Self::V3 => Protocol::V3,
        }
    }
}

/// How to print.
#[derive(Clone, Copy, ValueEnum)]
pub enum Output {
    Table,
    Json,
}

fn credential(text: &str) -> Result<Credential, String> {
    let (uid, gid) = text.split_once(':').ok_or("expected UID:GID")?;
    let number = |text: &str| text.parse().map_err(|_| format!("{text:?} is no user or group number"));
    Ok(Credential {
        uid: number(uid)?,
        gid: number(gid)?,
    })
}

impl Connection {
    /// Where it leads; `word` stands in the name that the server knows the client by.
    pub fn target(&self, word: &str) -> Target {
        Target {
            version: self.version.map_or(VersionChoice::Auto, |version| {
                VersionChoice::Exactly(version.protocol())
            }),
            port: self.port,
            mount_port: self.mount_port,
            source_port: SourcePort::Reserved,
            credential: self.credential,
            // An owner of its own: it must not end the session of a running operator.
            owner: ClientOwner {
                owner: format!("nfs-operator/{word}/{:032x}", rand::rng().random::<u128>()).into_bytes(),
                verifier: rand::rng().random(),
            },
            machine_name: NFS_CLIENT_NAME.to_owned(),
            implementation: Some(ImplementationId {
                domain: GROUP.to_owned(),
                name: NFS_CLIENT_NAME.to_owned(),
            }),
            deadline: DEADLINE,
            ..Target::new(self.export.server.clone(), self.export.path.clone())
        }
    }
}
