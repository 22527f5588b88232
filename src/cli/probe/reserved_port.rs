//! Whether the server wants a port below 1024: told by coming from another one.

use nfs_client::{Client, ClientOwner, NfsError, SourcePort, Target};
use nfs_operator::api::Reason;
use rand::RngExt;
use serde_json::json;

use super::finding::{Findings, Outcome};
use super::steps::export_error;

const CHECK: &str = "reserved-port";

/// Opens the export once more, from a port that is not reserved, and compares.
pub async fn look(target: &Target, export: &Client, findings: &mut Findings) {
    let local = export.negotiated().local.port();
    if !export.negotiated().reserved_port {
        let message = format!(
            "not needed: none could be had here, and the server let us in from port {local}; a port below 1024 takes \
             root, CAP_NET_BIND_SERVICE, or the sysctl net.ipv4.ip_unprivileged_port_start=0"
        );
        return findings.add(CHECK, Outcome::Ok, message, json!({ "needed": false }));
    }
    let unreserved = Target {
        source_port: SourcePort::Any,
        // Another client: the first one's session must go on.
        owner: ClientOwner {
            owner: [target.owner.owner.as_slice(), b"/unreserved"].concat(),
            verifier: rand::rng().random(),
        },
        ..target.clone()
    };
    match Client::connect(unreserved).await {
        Ok(second) => {
            let from = second.negotiated().local.port();
            second.close().await;
            let message = format!("not needed: let in from port {local} and from port {from} alike");
            findings.add(CHECK, Outcome::Ok, message, json!({ "needed": false }));
        }
        Err(error) if is_refusal(&error) => {
            let reason = Reason::from(export_error("from a port above 1023", error).kind());
            let message = format!(
                "needed: let in from port {local}, and from a port above 1023 it says {reason}; the operator needs \
                 spec.nfs.sourcePort: Reserved and the pod's sysctl net.ipv4.ip_unprivileged_port_start=0"
            );
            findings.add(CHECK, Outcome::Ok, message, json!({ "needed": true }));
        }
        Err(error) => {
            let error = export_error("cannot come from a port above 1023 to compare", error);
            findings.wrong(CHECK, Outcome::Warning, Reason::from(error.kind()), error.to_string());
        }
    }
}

/// What a server that wants a reserved port says to others: NFSv4 has no word for it, so `NOENT` and `PERM` are among it.
fn is_refusal(error: &NfsError) -> bool {
    matches!(
        Reason::from(export_error("", error.clone()).kind()),
        Reason::ReservedPortRequired
            | Reason::AccessDenied
            | Reason::ExportNotFound
            | Reason::SecurityFlavorUnsupported
    )
}
