//! Checks whether the server requires a source port below 1024, by connecting from another one.

use nfs_client::{Client, ClientOwner, NfsError, SourcePort, Target};
use rand::RngExt;
use serde_json::json;

use crate::api::Reason;
use crate::cli::connection::export_error;
use crate::cli::findings::{Findings, StepResult};

const CHECK: &str = "reserved-port";

/// Connects a second time, from a port that is not reserved, and compares.
pub async fn check(target: &Target, export: &Client, findings: &mut Findings) {
    let local = export.negotiated().local.port();
    if !export.negotiated().reserved_port {
        let message = format!(
            "not required: the server accepts port {local}; no port below 1024 could be bound here, which requires root, \
             CAP_NET_BIND_SERVICE, or the sysctl net.ipv4.ip_unprivileged_port_start=0"
        );
        return findings.add(CHECK, StepResult::Ok, message, json!({ "needed": false }));
    }
    let unreserved = Target {
        source_port: SourcePort::Any,
        // Another client owner, so that the session of the first connection is kept.
        owner: ClientOwner {
            owner: [target.owner.owner.as_slice(), b"/unreserved"].concat(),
            verifier: rand::rng().random(),
        },
        ..target.clone()
    };
    match Client::connect(unreserved).await {
        Ok(second) => {
            let unreserved = second.negotiated().local.port();
            second.close().await;
            let message = format!("not required: the server accepts port {local} and port {unreserved}");
            findings.add(CHECK, StepResult::Ok, message, json!({ "needed": false }));
        }
        Err(error) if is_refusal(&error) => {
            let reason = Reason::from(export_error("", error).kind());
            let message = format!(
                "required: the server accepts port {local}, but refuses ports above 1023 with {reason}; the operator needs \
                 spec.nfs.sourcePort: Reserved and the sysctl net.ipv4.ip_unprivileged_port_start=0 in its pod"
            );
            findings.add(CHECK, StepResult::Ok, message, json!({ "needed": true }));
        }
        Err(error) => {
            let error = export_error("cannot connect from a port above 1023", error);
            findings.error(CHECK, StepResult::Warning, &error);
        }
    }
}

/// Returns true for the errors with which servers refuse unreserved ports. NFSv4 has no status for it, so they include
/// `NOENT` and `PERM`.
fn is_refusal(error: &NfsError) -> bool {
    matches!(
        Reason::from(export_error("", error.clone()).kind()),
        Reason::ReservedPortRequired
            | Reason::AccessDenied
            | Reason::ExportNotFound
            | Reason::SecurityFlavorUnsupported
    )
}
