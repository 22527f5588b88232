//! What the examples share: how to connect, and errors with a remedy.

#![allow(dead_code, reason = "no example uses everything")]

use std::process::ExitCode;

use nfs_client::address::ExportAddress;
use nfs_client::{Client, Credential, Name, NfsError, Status, Target};

/// Any error of an example.
pub type Error = Box<dyn std::error::Error>;

/// The options of every example.
#[derive(Debug, clap::Args)]
pub struct ConnectOptions {
    /// TCP port of the NFS server.
    #[arg(long, default_value_t = 2049)]
    port: u16,
    /// User that the server sees.
    #[arg(long, default_value_t = 0)]
    uid: u32,
    /// Group that the server sees.
    #[arg(long, default_value_t = 0)]
    gid: u32,
}

impl ConnectOptions {
    /// Connects with the newest version of NFS that the server supports. The root of the client is the directory at
    /// `address`.
    pub async fn connect(&self, address: &ExportAddress) -> Result<Client, NfsError> {
        Client::connect(Target {
            port: self.port,
            credential: Credential {
                uid: self.uid,
                gid: self.gid,
                supplementary: None,
            },
            ..Target::new(&*address.server, &*address.path)
        })
        .await
    }

    /// Connects to the directory that the last component of `address` is in, and returns that component.
    pub async fn connect_to_parent(&self, address: &ExportAddress) -> Result<(Client, Name), Error> {
        let (parent, name) = address.path.rsplit_once('/').unwrap_or_default();
        let parent = ExportAddress {
            server: address.server.clone(),
            path: if parent.is_empty() { "/" } else { parent }.to_owned(),
        };
        let name =
            Name::new(name.to_owned()).map_err(|_| format!("{address} is no entry of an export; add its name"))?;
        Ok((self.connect(&parent).await?, name))
    }
}

/// Prints an error as one line with its remedy, and returns the exit code of the program.
pub fn exit_code(result: Result<(), Error>) -> ExitCode {
    let Err(error) = result else {
        return ExitCode::SUCCESS;
    };
    match error.downcast_ref().and_then(remedy) {
        Some(remedy) => eprintln!("error: {error}; {remedy}"),
        None => eprintln!("error: {error}"),
    }
    ExitCode::FAILURE
}

/// Returns what to do about an error. Errors carry what a program needs to decide; the wording is up to the program.
fn remedy(error: &NfsError) -> Option<&'static str> {
    Some(match error {
        error if error.outcome_unknown() => "the change may have been made: look at the export before you repeat it",
        NfsError::NameResolution { .. } => "check the name of the server",
        NfsError::ConnectionRefused { .. } => "check that the server runs, and --port",
        error if error.is_transport() => "check the server and the network, then try again",
        NfsError::ExportNotFound { .. } => "check the path, and the clients that the server allows",
        NfsError::AccessDenied { .. } => "allow this client on the server",
        NfsError::NotADirectory { .. } | NfsError::SymlinkInPath { .. } => {
            "give the path of a directory, without links"
        }
        NfsError::SubdirectoryMountRefused { .. } => "give a path directly below the export",
        NfsError::SecurityFlavor { .. } => "allow sec=sys on the server",
        _ => match error.status()? {
            Status::Access | Status::NotPermitted => "check the mode and the owner, or try another --uid and --gid",
            Status::Exists => "choose another name",
            Status::NoSpace | Status::QuotaExceeded => "free some space",
            Status::ReadOnly => "export it read-write",
            Status::NotSame | Status::NotEmpty => "somebody changed it at the same time: try again",
            Status::InUse | Status::Delayed => "try again later",
            _ => return None,
        },
    })
}

/// Returns a number of bytes for people, such as `1.5 GiB`.
pub fn human(bytes: u64) -> String {
    let (mut value, mut unit) = (bytes as f64, "B");
    for larger in ["KiB", "MiB", "GiB", "TiB", "PiB"] {
        if value < 1024.0 {
            break;
        }
        (value, unit) = (value / 1024.0, larger);
    }
    match unit {
        "B" => format!("{bytes} B"),
        unit => format!("{value:.1} {unit}"),
    }
}
