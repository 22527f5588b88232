//! `nfs-operator probe`: what a backend's probe would say, from a shell.

mod finding;
mod print;
mod reserved_port;
mod steps;
mod write;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use nfs_operator::naming::address::Address;
use nfs_operator::nfs::{ClientOwner, Credential, Protocol, SourcePort, Target, VersionChoice};
use rand::RngExt;

use self::finding::Findings;

/// A person waits for the answer; a server that takes longer is named as slow.
const DEADLINE: Duration = Duration::from_secs(10);

/// What `--help` says about the exit code; the numbers are [`Findings::exit_code`]'s.
const EXIT_CODES: &str = "\
Exit code:
  0  a backend for this export would be Ready (there may be warnings)
  1  it would not: a row says FAILED, with the reason and the remedy that the backend's condition would have
  2  the arguments are wrong, or the program itself failed
  3  something that --write made could not be removed: its name is told";

/// Arguments of `nfs-operator probe`.
#[derive(Args)]
#[command(after_help = EXIT_CODES)]
pub struct ProbeArguments {
    /// The export: SERVER:/PATH, an IPv6 address in brackets.
    #[arg(value_name = "SERVER:/PATH", value_parser = Address::parse)]
    export: Address,
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
    /// Also make a directory with a file in it, set its mode and owner, rename and remove it.
    #[arg(long)]
    write: bool,
    /// How to print.
    #[arg(long, value_enum, default_value = "table")]
    output: Output,
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

#[derive(Clone, Copy, ValueEnum)]
enum Output {
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

/// Probes and prints.
pub async fn run(arguments: ProbeArguments) -> ExitCode {
    let mut findings = Findings::default();
    steps::look(&target(&arguments), arguments.write, &mut findings).await;
    let printed = match arguments.output {
        Output::Json => match print::json(&arguments.export, &findings) {
            Ok(text) => text,
            Err(error) => {
                eprintln!("nfs-operator: {error}");
                return ExitCode::from(2);
            }
        },
        Output::Table => print::table(&findings),
    };
    println!("{printed}");
    ExitCode::from(findings.exit_code())
}

fn target(arguments: &ProbeArguments) -> Target {
    Target {
        server: arguments.export.server.clone(),
        path: arguments.export.path.clone(),
        version: arguments.version.map_or(VersionChoice::Auto, |version| {
            VersionChoice::Exactly(version.protocol())
        }),
        port: arguments.port,
        mount_port: arguments.mount_port,
        source_port: SourcePort::Reserved,
        credential: arguments.credential,
        // An owner of its own: a probe must not end the session of a running operator.
        owner: ClientOwner {
            owner: format!("nfs-operator/probe/{:032x}", rand::rng().random::<u128>()).into_bytes(),
            verifier: rand::rng().random(),
        },
        deadline: DEADLINE,
    }
}
