//! Arguments of subcommands that access an export without a cluster.

use std::time::Duration;

use clap::{Args, ValueEnum};
use export_store::naming::parse_export_address;
use export_store::{ErrorHints, ExportError};
use nfs_client::address::ExportAddress;
use nfs_client::{ClientOwner, Credential, ImplementationId, NfsError, Protocol, SourcePort, Target, VersionChoice};
use rand::RngExt;

use crate::api::names::{GROUP, NFS_CLIENT_NAME};

/// Deadline of a call: a user waits for the result.
const CALL_DEADLINE: Duration = Duration::from_secs(10);

/// Port of NFS (RFC 7530 section 3.1), and that of a mount without the option `port`.
const NFS_PORT: u16 = 2049;

/// Address of an export, and settings of the connection.
#[derive(Args)]
pub struct ConnectionArguments {
    /// Address of the export. Write an IPv6 address in brackets.
    #[arg(value_name = "SERVER:/PATH", value_parser = parse_export_address)]
    pub export: ExportAddress,
    /// NFS version. If unset, the newest that works is used.
    #[arg(long = "nfs-version", value_enum)]
    version: Option<Version>,
    /// TCP port of the server.
    #[arg(long, default_value_t = NFS_PORT, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// TCP port of the MOUNT service of NFSv3. If unset, rpcbind is queried.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    mount_port: Option<u16>,
    /// User and group as which to access the export.
    #[arg(long, value_name = "UID:GID", default_value = "0:0", value_parser = parse_credential)]
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

fn parse_credential(text: &str) -> Result<Credential, String> {
    let (uid, gid) = text.split_once(':').ok_or("expected UID:GID")?;
    let number = |text: &str| {
        text.parse()
            .map_err(|_| format!("{text:?} is not a numeric user or group ID"))
    };
    Ok(Credential {
        uid: number(uid)?,
        gid: number(gid)?,
        supplementary: None,
    })
}

impl ConnectionArguments {
    /// Returns the command line with these arguments.
    pub fn as_arguments(&self) -> Vec<String> {
        let version = self.version.as_ref().and_then(ValueEnum::to_possible_value);
        let version = version.map(|version| format!("--nfs-version={}", version.get_name()));
        let mount_port = self.mount_port.map(|port| format!("--mount-port={port}"));
        let Credential { uid, gid, .. } = self.credential;
        let mut arguments: Vec<String> = version.into_iter().chain(mount_port).collect();
        arguments.push(format!("--port={}", self.port));
        arguments.push(format!("--credential={uid}:{gid}"));
        arguments.push(self.export.to_string());
        arguments
    }

    /// Returns the arguments, other than the defaults, that a mount needs as options.
    pub fn mount_options(&self) -> Vec<String> {
        let port = (self.port != NFS_PORT).then(|| format!("port={}", self.port));
        let mount_port = self.mount_port.map(|port| format!("mountport={port}"));
        let version = self.version.as_ref().and_then(ValueEnum::to_possible_value);
        let version = version.map(|version| format!("nfsvers={}", version.get_name()));
        [port, mount_port, version].into_iter().flatten().collect()
    }

    /// Returns the target of the connection. The client owner that is sent to the server contains `command`.
    pub fn target(&self, command: &str) -> Target {
        Target {
            version: self.version.map_or(VersionChoice::Auto, |version| {
                VersionChoice::Exactly(version.protocol())
            }),
            port: self.port,
            mount_port: self.mount_port,
            source_port: SourcePort::Reserved,
            credential: self.credential,
            // A random owner, so that the session of a running operator is kept.
            owner: ClientOwner {
                owner: format!("nfs-operator/{command}/{:032x}", rand::rng().random::<u128>()).into_bytes(),
                verifier: rand::rng().random(),
            },
            machine_name: NFS_CLIENT_NAME.to_owned(),
            implementation: Some(ImplementationId {
                domain: GROUP.to_owned(),
                name: NFS_CLIENT_NAME.to_owned(),
            }),
            deadline: CALL_DEADLINE,
            ..Target::new(self.export.server.clone(), self.export.path.clone())
        }
    }
}

/// Fields of a backend in the remedies of errors, and the arguments that have their place on the command line.
const FLAGS: [(&str, &str); 6] = [
    ("spec.nfs.mountPort", "--mount-port"),
    ("spec.nfs.version", "--nfs-version"),
    ("spec.nfs.auth.sys", "--credential"),
    ("spec.nfs.port", "--port"),
    ("spec.server", "SERVER"),
    ("spec.path", "/PATH"),
];

/// Returns the message of an error, with arguments instead of fields of a backend.
pub fn message_of(error: &ExportError) -> String {
    name_flags(&error.to_string())
}

fn name_flags(text: &str) -> String {
    FLAGS
        .iter()
        .fold(text.to_owned(), |text, (field, flag)| text.replace(field, flag))
}

/// Converts an error into one with the reason and the message that the condition of a backend would have.
pub fn export_error(doing: &str, source: NfsError) -> ExportError {
    export_error_with(doing, source, ErrorHints::default())
}

/// Converts an error like [`export_error`], with hints on its cause.
pub fn export_error_with(doing: &str, source: NfsError, hints: ErrorHints) -> ExportError {
    ExportError::Nfs {
        doing: doing.to_owned(),
        source: Box::new(source),
        hints,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedies_name_arguments_and_not_fields() {
        let remedy = "start the NFS server, or correct spec.server or spec.nfs.port";
        assert_eq!(name_flags(remedy), "start the NFS server, or correct SERVER or --port");
    }
}
