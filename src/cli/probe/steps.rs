//! Steps of a probe, in order. Steps that depend on a failed one are skipped.

use std::sync::Arc;
use std::time::Duration;

use export_store::text::format_bytes;
use export_store::{ExportStore, PathReservations, StoreConfig};
use nfs_client::{Attributes, Client, Credential, FileRef, FsStat, NfsError, OfferedVersions, Protocol, Target};
use serde_json::json;

use super::{quota_agents, reserved_port, write_test};
use crate::api::Reason;
use crate::cli::connection::export_error;
use crate::cli::findings::{Findings, StepResult};

/// Runs all steps, and the write test if `write` is set.
pub async fn probe(target: &Target, write: bool, findings: &mut Findings) {
    if !(resolve(target, findings).await && connect(target, findings).await && probe_versions(target, findings).await) {
        return;
    }
    let export = match Client::connect(target.clone()).await {
        Ok(export) => export,
        Err(error) => return fail(findings, "export", "cannot open the export", error),
    };
    report_session(&export, findings);
    reserved_port::check(target, &export, findings).await;
    if let Some(root) = read_root(&export, findings).await {
        check_space(&export, findings).await;
        read_identity(&export, target.credential, findings).await;
        quota_agents::check(&export, &root.handle, findings).await;
        match write {
            true => write_test::run(&export, &root, target.credential, findings).await,
            false => findings.add(
                "write",
                StepResult::Skipped,
                "not tested: --write creates, renames and removes a directory",
                json!({}),
            ),
        }
    }
    export.close().await;
}

fn fail(findings: &mut Findings, check: &'static str, doing: &str, error: NfsError) {
    findings.error(check, StepResult::Failed, &export_error(doing, error));
}

async fn resolve(target: &Target, findings: &mut Findings) -> bool {
    match Client::resolve(target).await {
        Ok(addresses) => {
            let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            let message = match addresses.as_slice() {
                [only] if *only == target.server => "IP address: nothing to resolve".to_owned(),
                all => format!("{} resolves to {}", target.server, all.join(", ")),
            };
            findings.add("resolve", StepResult::Ok, message, json!({ "addresses": addresses }));
            true
        }
        Err(error) => {
            fail(findings, "resolve", "cannot reach the server", error);
            false
        }
    }
}

async fn connect(target: &Target, findings: &mut Findings) -> bool {
    match Client::test_connection(target).await {
        Ok(reached) => {
            let (peer, local, took) = (reached.peer, reached.local, milliseconds(reached.took));
            findings.add(
                "connect",
                StepResult::Ok,
                format!("{peer} in {took} ms; the server sees the source address {local}, unless it is translated on the way (SNAT)"),
                json!({ "peer": peer, "local": local, "milliseconds": took }),
            );
            true
        }
        Err(error) => {
            fail(findings, "connect", "cannot connect", error);
            false
        }
    }
}

/// Returns milliseconds, rounded to tenths.
fn milliseconds(took: Duration) -> f64 {
    (took.as_secs_f64() * 1e4).round() / 10.0
}

/// Checks which versions the server supports. Some servers close the connection if they do not support a version. That does
/// not concern the export, so only a server that does not respond at all ends the probe.
async fn probe_versions(target: &Target, findings: &mut Findings) -> bool {
    let offered = match Client::probe_versions(target).await {
        Ok(offered) => offered,
        Err(error @ NfsError::NotResponding { .. }) => {
            fail(findings, "versions", "cannot determine the supported versions", error);
            return false;
        }
        Err(error) => {
            let error = export_error("cannot determine the supported versions", error);
            findings.error("versions", StepResult::Warning, &error);
            return true;
        }
    };
    let names = version_names(&offered);
    if names.is_empty() {
        let message = "the server supports no NFS version: check that the port is that of an NFS server";
        findings.problem("versions", StepResult::Failed, Reason::ProtocolNotSupported, message);
        return false;
    }
    findings.add(
        "versions",
        StepResult::Ok,
        format!("the server supports NFS {}", names.join(", ")),
        json!({ "offered": names }),
    );
    true
}

fn version_names(offered: &OfferedVersions) -> Vec<&'static str> {
    let all = [
        (offered.v3, "3"),
        (offered.v4_0, "4.0"),
        (offered.v4_1, "4.1"),
        (offered.v4_2, "4.2"),
    ];
    all.into_iter()
        .filter_map(|(is_offered, name)| is_offered.then_some(name))
        .collect()
}

fn report_session(export: &Client, findings: &mut Findings) {
    let negotiated = export.negotiated();
    let protocol: Protocol = negotiated.protocol;
    let server = match negotiated.implementation.as_str() {
        "" => String::new(),
        name => format!(" with {name:?}"),
    };
    findings.add(
        "session",
        StepResult::Ok,
        format!(
            "NFS {protocol}{server}; {} concurrent calls, lease {} s",
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

async fn read_root(export: &Client, findings: &mut Findings) -> Option<FileRef> {
    match export.root().await {
        Ok(root) => {
            let attributes = &root.attributes;
            findings.add(
                "export",
                StepResult::Ok,
                describe(attributes),
                json!({ "fileID": attributes.fileid.to_string() }),
            );
            Some(root)
        }
        Err(error) => {
            fail(findings, "export", "cannot read the root of the export", error);
            None
        }
    }
}

fn describe(attributes: &Attributes) -> String {
    format!(
        "mode {:04o}, owner {}:{}, fileid {}",
        attributes.mode, attributes.owner, attributes.group, attributes.fileid
    )
}

/// Checks space and inodes. A backend without free space or inodes is not Ready.
async fn check_space(export: &Client, findings: &mut Findings) {
    let statistics = match export.statistics().await {
        Ok(statistics) => statistics,
        Err(error) => return fail(findings, "space", "cannot read the statistics", error),
    };
    let FsStat {
        total,
        available,
        inodes,
        inodes_free,
    } = statistics;
    let message = format!(
        "{} of {} free",
        format_bytes(available.into()),
        format_bytes(total.into())
    );
    match available {
        0 => findings.problem(
            "space",
            StepResult::Failed,
            Reason::NoSpace,
            format!("{message}: free space, or extend the file system"),
        ),
        _ => findings.add(
            "space",
            StepResult::Ok,
            message,
            json!({ "available": available, "total": total }),
        ),
    }
    let message = format!("{inodes_free} of {inodes} free");
    match (inodes, inodes_free) {
        (0, _) => findings.passed("inodes", "not reported by the server"),
        (_, 0) => {
            let message = format!("{message}: remove files, or add inodes to the file system");
            findings.problem("inodes", StepResult::Failed, Reason::NoInodes, message);
        }
        _ => findings.add(
            "inodes",
            StepResult::Ok,
            message,
            json!({ "free": inodes_free, "total": inodes }),
        ),
    }
}

/// Reads the identity of the export, but does not create one.
async fn read_identity(export: &Client, credential: Credential, findings: &mut Findings) {
    let config = StoreConfig::read_only(credential);
    let store = ExportStore::new(export.clone(), config, Arc::new(PathReservations::default()));
    match store.read_identity().await {
        Ok(Some(identity)) => findings.add(
            "identity",
            StepResult::Ok,
            [std::slice::from_ref(&identity.id), identity.warnings.as_slice()]
                .concat()
                .join("; "),
            json!({ "exportID": identity.id }),
        ),
        Ok(None) => findings.passed("identity", "none yet: the first backend of this export creates it"),
        Err(error) => findings.error("identity", StepResult::Failed, &error),
    }
}
