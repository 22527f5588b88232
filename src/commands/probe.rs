//! `nfs-operator probe`: what a backend's probe would say, from a shell.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use nfs_operator::export::{Circumstances, ExportError, Keeper, Ledger, ManagedExport};
use nfs_operator::nfs::{
    Attributes, ClientOwner, Credential, Export, FileHandle, Name, Negotiated, NfsError, Protocol, SetAttributes,
    SourcePort, Statistics, Target, VersionChoice,
};
use nfs_operator::placement::quantity::human;
use rand::RngExt;
use serde::Serialize;

/// A person waits for the answer; a server that takes longer is named as slow.
const DEADLINE: Duration = Duration::from_secs(10);

/// Arguments of `nfs-operator probe`.
#[derive(Args)]
pub struct ProbeArguments {
    /// The export: SERVER:/PATH, an IPv6 address in brackets.
    #[arg(value_name = "SERVER:/PATH", value_parser = address)]
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
    /// Also make, rename and remove a directory.
    #[arg(long)]
    write: bool,
    /// How to print.
    #[arg(long, value_enum, default_value = "table")]
    output: Output,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Address {
    server: String,
    path: String,
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

#[derive(Clone, Copy, ValueEnum)]
enum Output {
    Table,
    Json,
}

fn address(text: &str) -> Result<Address, String> {
    let expected = "expected SERVER:/PATH";
    let (server, path) = text.split_once(":/").ok_or(expected)?;
    let server = server
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(server);
    if server.is_empty() {
        return Err(expected.to_owned());
    }
    Ok(Address {
        server: server.to_owned(),
        path: format!("/{path}"),
    })
}

fn credential(text: &str) -> Result<Credential, String> {
    let (uid, gid) = text.split_once(':').ok_or("expected UID:GID")?;
    let number = |text: &str| text.parse().map_err(|_| format!("{text:?} is no user or group number"));
    Ok(Credential {
        uid: number(uid)?,
        gid: number(gid)?,
    })
}

/// One thing that was looked at.
#[derive(Serialize)]
struct Finding {
    check: &'static str,
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    detail: String,
}

/// Probes, prints, and exits 0 when all is well, 1 when something is not.
pub async fn run(arguments: ProbeArguments) -> ExitCode {
    let mut findings = Vec::new();
    look(&arguments, &mut findings).await;
    let printed = match arguments.output {
        Output::Json => match serde_json::to_string_pretty(&findings) {
            Ok(text) => text,
            Err(error) => return super::fail(&error),
        },
        Output::Table => table(&findings),
    };
    println!("{printed}");
    if findings.iter().all(|finding| finding.ok) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn table(findings: &[Finding]) -> String {
    let row = |finding: &Finding| {
        let verdict = if finding.ok { "ok" } else { "FAILED" };
        let reason = finding
            .reason
            .as_ref()
            .map(|reason| format!("{reason}: "))
            .unwrap_or_default();
        format!("{:<12} {verdict:<7} {reason}{}", finding.check, finding.detail)
    };
    std::iter::once(format!("{:<12} {:<7} {}", "CHECK", "RESULT", "DETAIL"))
        .chain(findings.iter().map(row))
        .collect::<Vec<_>>()
        .join("\n")
}

fn note<T>(findings: &mut Vec<Finding>, check: &'static str, result: Result<(T, String), ExportError>) -> Option<T> {
    match result {
        Ok((value, detail)) => {
            findings.push(Finding {
                check,
                ok: true,
                reason: None,
                detail,
            });
            Some(value)
        }
        Err(error) => {
            findings.push(Finding {
                check,
                ok: false,
                reason: Some(error.reason().to_string()),
                detail: error.to_string(),
            });
            None
        }
    }
}

async fn look(arguments: &ProbeArguments, findings: &mut Vec<Finding>) {
    let began = Instant::now();
    let connected = Export::connect(target(arguments))
        .await
        .map_err(because("cannot connect"));
    let connected = connected.map(|export| (export.clone(), agreed(&export.negotiated(), began.elapsed())));
    let Some(export) = note(findings, "connect", connected) else {
        return;
    };
    let root = export.root().await.map_err(because("cannot read the export's root"));
    let root = note(
        findings,
        "export",
        root.map(|root| (root.handle, described(&root.attributes))),
    );
    let space = export.statistics().await.map_err(because("cannot read the statistics"));
    note(findings, "space", space.map(|statistics| ((), free(&statistics))));
    let keeper = nobody(arguments.credential);
    let managed = ManagedExport::new(export.clone(), keeper, Arc::new(Ledger::default()));
    let none = || "none yet: the first backend here makes it".to_owned();
    let identity = managed.read_identity().await;
    note(
        findings,
        "identity",
        identity.map(|found| ((), found.map_or_else(none, |identity| identity.id))),
    );
    let random = rand::rng().random::<u64>();
    let name = |suffix| Name::new(format!(".nfs-operator-probe-{random:016x}{suffix}"));
    if let (true, Some(root), Ok(first), Ok(second)) = (arguments.write, root, name(""), name("-renamed")) {
        let written = write(&export, &root, (&first, &second)).await;
        note(findings, "write", written.map(|detail| ((), detail)));
    }
    export.close().await;
}

fn agreed(negotiated: &Negotiated, took: Duration) -> String {
    let port = if negotiated.reserved_port {
        "reserved port"
    } else {
        "port not reserved"
    };
    let (protocol, peer, local) = (negotiated.protocol, negotiated.peer, negotiated.local);
    format!(
        "NFS {protocol} with {peer} from {local} ({port}) in {} ms",
        took.as_millis()
    )
}

fn described(attributes: &Attributes) -> String {
    let (owner, group, file_id) = (&attributes.owner, &attributes.group, attributes.fileid);
    format!("mode {:04o}, owner {owner}:{group}, fileid {file_id}", attributes.mode)
}

fn free(statistics: &Statistics) -> String {
    let inodes = match statistics.inodes {
        0 => "not counted".to_owned(),
        inodes => format!("{} of {inodes} free", statistics.inodes_free),
    };
    let (available, total) = (
        human(u128::from(statistics.available)),
        human(u128::from(statistics.total)),
    );
    format!("{available} of {total} free; inodes: {inodes}")
}

fn target(arguments: &ProbeArguments) -> Target {
    Target {
        server: arguments.export.server.clone(),
        path: arguments.export.path.clone(),
        version: arguments.version.map_or(VersionChoice::Auto, |version| {
            VersionChoice::Exactly(match version {
                Version::V4_2 => Protocol::V4_2,
                Version::V4_1 => Protocol::V4_1,
                Version::V4_0 => Protocol::V4_0,
                Version::V3 => Protocol::V3,
            })
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

/// The keeper of an export that is only looked at.
fn nobody(credential: Credential) -> Keeper {
    Keeper {
        cluster_id: String::new(),
        backend: String::new(),
        backend_uid: String::new(),
        credential,
        roots: Vec::new(),
    }
}

fn because(doing: &str) -> impl FnOnce(NfsError) -> ExportError + use<> {
    let doing = doing.to_owned();
    |source| ExportError::Nfs {
        doing,
        source: Box::new(source),
        circumstances: Circumstances::default(),
    }
}

/// Makes, renames and removes a directory, and says how the server kept its mode and owner.
async fn write(export: &Export, root: &FileHandle, names: (&Name, &Name)) -> Result<String, ExportError> {
    let asked = SetAttributes {
        mode: Some(0o770),
        uid: None,
        gid: None,
    };
    let made = export
        .make_directory(root, names.0, asked)
        .await
        .map_err(because("cannot make a directory"))?;
    let attributes = &made.node.attributes;
    let (owner, group) = (&attributes.owner, &attributes.group);
    let detail = format!(
        "made with mode {:04o} (asked 0770), owner {owner}:{group}",
        attributes.mode
    );
    let renamed = export.rename((root, names.0), attributes.fileid, (root, names.1)).await;
    let left = if renamed.is_ok() { names.1 } else { names.0 };
    let removed = export.remove_directory(root, left, attributes.fileid).await;
    renamed.map_err(because("cannot rename a directory"))?;
    removed.map_err(because("cannot remove a directory"))?;
    Ok(format!("{detail}; renamed and removed"))
}
