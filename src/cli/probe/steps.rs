//! What is looked at, in order; what can't be looked at after a failure is left out.

use std::sync::Arc;
use std::time::Duration;

use export_store::text::format_bytes;
use export_store::{ErrorHints, ExportError, ExportStore, PathReservations, StoreConfig, remedy_of};
use nfs_client::{Attributes, Client, Credential, NfsError, OfferedVersions, Protocol, Statistics, Target};
use nfs_operator::api::Reason;
use serde_json::json;

use super::finding::{Findings, Outcome};
use super::{reserved_port, write};

/// Looks at everything.
pub async fn look(target: &Target, writes: bool, findings: &mut Findings) {
    if !(resolve(target, findings).await && reach(target, findings).await && versions(target, findings).await) {
        return;
    }
    let export = match Client::connect(target.clone()).await {
        Ok(export) => export,
        Err(error) => return findings.failed("export", &export_error("cannot open the export", error)),
    };
    session(&export, findings);
    reserved_port::look(target, &export, findings).await;
    if let Some(root) = root(&export, findings).await {
        space(&export, findings).await;
        identity(&export, target.credential, findings).await;
        match writes {
            true => write::look(&export, &root, target.credential, findings).await,
            false => findings.add(
                "write",
                Outcome::Skipped,
                "nothing was changed: --write makes, renames and removes a directory",
                json!({}),
            ),
        }
    }
    export.close().await;
}

/// An error in a condition's words.
pub fn export_error(doing: &str, source: NfsError) -> ExportError {
    with(doing, source, ErrorHints::default())
}

/// As [`because`], with what else is known.
pub fn with(doing: &str, source: NfsError, circumstances: ErrorHints) -> ExportError {
    ExportError::Nfs {
        doing: doing.to_owned(),
        source: Box::new(source),
        circumstances,
    }
}

async fn resolve(target: &Target, findings: &mut Findings) -> bool {
    match Client::resolve(target).await {
        Ok(addresses) => {
            let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            let said = match addresses.as_slice() {
                [only] if *only == target.server => "an address: nothing to resolve".to_owned(),
                all => format!("{} is {}", target.server, all.join(", ")),
            };
            findings.add("resolve", Outcome::Ok, said, json!({ "addresses": addresses }));
            true
        }
        Err(error) => {
            findings.failed("resolve", &export_error("cannot find the server", error));
            false
        }
    }
}

async fn reach(target: &Target, findings: &mut Findings) -> bool {
    match Client::test_connection(target).await {
        Ok(reached) => {
            let (peer, local, took) = (reached.peer, reached.local, milliseconds(reached.took));
            findings.add(
                "connect",
                Outcome::Ok,
                format!("{peer} in {took} ms; the server saw us come from {local}, unless something between translates (SNAT)"),
                json!({ "peer": peer, "local": local, "milliseconds": took }),
            );
            true
        }
        Err(error) => {
            findings.failed("connect", &export_error("cannot connect", error));
            false
        }
    }
}

/// Milliseconds with a tenth.
fn milliseconds(took: Duration) -> f64 {
    (took.as_secs_f64() * 1e4).round() / 10.0
}

/// What the server offers. Some servers close a connection that asks for a version they don't have: that says nothing
/// about the export, so only a server that doesn't answer at all ends the probe here.
async fn versions(target: &Target, findings: &mut Findings) -> bool {
    let offered = match Client::probe_versions(target).await {
        Ok(offered) => offered,
        Err(error @ NfsError::NotResponding { .. }) => {
            findings.failed("versions", &export_error("cannot ask for versions", error));
            return false;
        }
        Err(error) => {
            let error = export_error("cannot ask for versions", error);
            findings.wrong(
                "versions",
                Outcome::Warning,
                Reason::from(error.kind()),
                error.to_string(),
            );
            return true;
        }
    };
    let names = offered_names(&offered);
    if names.is_empty() {
        let message = "the server offers none: is this the port of an NFS server?";
        findings.wrong("versions", Outcome::Failed, Reason::ProtocolNotSupported, message);
        return false;
    }
    findings.add(
        "versions",
        Outcome::Ok,
        format!("the server offers NFS {}", names.join(", ")),
        json!({ "offered": names }),
    );
    true
}

fn offered_names(offered: &OfferedVersions) -> Vec<&'static str> {
    let all = [
        (offered.v3, "3"),
        (offered.v4_0, "4.0"),
        (offered.v4_1, "4.1"),
        (offered.v4_2, "4.2"),
    ];
    all.into_iter()
        .filter_map(|(offers, name)| offers.then_some(name))
        .collect()
}

fn session(export: &Client, findings: &mut Findings) {
    let negotiated = export.negotiated();
    let protocol: Protocol = negotiated.protocol;
    let server = match negotiated.implementation.as_str() {
        "" => String::new(),
        name => format!(" with {name:?}"),
    };
    findings.add(
        "session",
        Outcome::Ok,
        format!(
            "NFS {protocol}{server}; {} calls at a time, lease {} s",
            negotiated.slots,
            negotiated.lease.as_secs()
        ),
        json!({
            "version": protocol.to_string(),
            "implementation": negotiated.implementation,
            "slots": negotiated.slots,
            "leaseSeconds": negotiated.lease.as_secs(),
        }),
    );
}

async fn root(export: &Client, findings: &mut Findings) -> Option<nfs_client::FileHandle> {
    match export.root().await {
        Ok(root) => {
            let found = &root.attributes;
            findings.add(
                "export",
                Outcome::Ok,
                described(found),
                json!({ "fileID": found.fileid.to_string() }),
            );
            Some(root.handle)
        }
        Err(error) => {
            findings.failed("export", &export_error("cannot read the export's root", error));
            None
        }
    }
}

fn described(found: &Attributes) -> String {
    format!(
        "found: mode {:04o}, owner {}:{}, fileid {}",
        found.mode, found.owner, found.group, found.fileid
    )
}

/// Space and inodes; a backend without either is not Ready.
async fn space(export: &Client, findings: &mut Findings) {
    let figures = match export.statistics().await {
        Ok(figures) => figures,
        Err(error) => return findings.failed("space", &export_error("cannot read the statistics", error)),
    };
    let Statistics {
        total,
        available,
        inodes,
        inodes_free,
    } = figures;
    let said = format!(
        "{} of {} free",
        format_bytes(available.into()),
        format_bytes(total.into())
    );
    match available {
        0 => findings.wrong(
            "space",
            Outcome::Failed,
            Reason::NoSpace,
            format!("{said}: free some, or grow it"),
        ),
        _ => findings.add(
            "space",
            Outcome::Ok,
            said,
            json!({ "available": available, "total": total }),
        ),
    }
    let said = format!("{inodes_free} of {inodes} free");
    match (inodes, inodes_free) {
        (0, _) => findings.add("inodes", Outcome::Ok, "the server doesn't count them", json!({})),
        (_, 0) => {
            let message = format!("{said}: remove files, or give the file system more inodes");
            findings.wrong("inodes", Outcome::Failed, Reason::NoInodes, message);
        }
        _ => findings.add(
            "inodes",
            Outcome::Ok,
            said,
            json!({ "free": inodes_free, "total": inodes }),
        ),
    }
}

/// The identity that is there; none is made.
async fn identity(export: &Client, credential: Credential, findings: &mut Findings) {
    let keeper = StoreConfig::read_only(credential);
    let managed = ExportStore::new(export.clone(), keeper, Arc::new(PathReservations::default()));
    match managed.read_identity().await {
        Ok(Some(identity)) => findings.add(
            "identity",
            Outcome::Ok,
            format!("{}{}", identity.id, said_beside(&identity.warnings)),
            json!({ "exportID": identity.id }),
        ),
        Ok(None) => findings.add(
            "identity",
            Outcome::Ok,
            "none yet: the first backend here makes it",
            json!({}),
        ),
        Err(error) => findings.failed("identity", &error),
    }
}

fn said_beside(warnings: &[String]) -> String {
    warnings.iter().map(|warning| format!("; {warning}")).collect()
}

/// The remedy for an error, alone.
pub fn remedy(error: &NfsError) -> String {
    remedy_of(error, &ErrorHints::default())
}
