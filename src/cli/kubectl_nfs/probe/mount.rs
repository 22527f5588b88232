//! What the mount of an export on a node showed, as one more check of the probe. Pure.

use std::time::Duration;

use serde_json::{Value, json};

use super::JobEnd;
use crate::cli::connection::ConnectionArguments;
use crate::cli::findings::{Findings, StepResult};
use crate::cli::output::{OutputFormat, shell_word};
use crate::cli::probe::CHECK_WIDTH;

/// Name of the check.
const CHECK: &str = "mount";

/// Messages of `mount` and `mount.nfs`, and their remedies. The first message that matches counts.
const REMEDIES: [(&[&str], &str); 6] = [
    (
        &["bad option"],
        "the node has no NFS client: install nfs-common (Debian, Ubuntu) or nfs-utils (Red Hat, SUSE) on it",
    ),
    (
        &["unknown filesystem type", "No such device"],
        "the kernel of the node has no NFS client: load or install its module (modprobe nfs)",
    ),
    (
        &["access denied", "Permission denied", "Operation not permitted"],
        "add the address of the node to the clients that the export admits",
    ),
    (
        &["No such file or directory"],
        "correct the path: the server does not export it to this node",
    ),
    (
        &["resolve server", "Name or service not known"],
        "use an address, or a name that the DNS servers of the node know: nodes do not use the DNS of the cluster",
    ),
    (
        &[
            "Protocol not supported",
            "version or transport protocol is not supported",
        ],
        "the NFS client of the node supports no version of the server: update the node, or enable another version",
    ),
];
/// The remedy for all other messages.
const NETWORK: &str = "allow the node to reach port 2049 of the server (for NFSv3 also rpcbind and mountd), and check \
                       that the export admits the address of the node";

/// Returns why a mount as an inline volume, which has no mount options, would say nothing about these arguments.
pub fn unsupported(connection: &ConnectionArguments) -> Option<Findings> {
    let options = connection.mount_options();
    if options.is_empty() {
        return None;
    }
    let mut findings = Findings::default();
    skipped(
        &mut findings,
        format!(
            "the volume of a pod has no mount options; as root on the node, mount -t nfs -o ro,{} {} /mnt",
            options.join(","),
            shell_word(&connection.export.to_string())
        ),
    );
    Some(findings)
}

/// Returns the finding about a pod whose volume is the export.
pub fn finding(node: &str, end: JobEnd, timeout: Duration) -> Findings {
    let mut findings = Findings::default();
    match end {
        JobEnd::Exited { code: 0, .. } => {
            findings.passed(
                CHECK,
                format!("the kubelet of node {node} mounted the export read-only, with its own options"),
            );
        }
        JobEnd::Exited { code, .. } => {
            let message =
                format!("the kubelet of node {node} mounted the export, but the program ended with exit code {code}");
            findings.failed(CHECK, message);
        }
        JobEnd::NotMounted(text) => {
            let cause = cause(&text);
            findings.failed(
                CHECK,
                format!("node {node} cannot mount the export: {cause}; {}", remedy(&cause)),
            );
        }
        JobEnd::TimedOut(text) => findings.failed(
            CHECK,
            format!(
                "node {node} did not mount the export within {} s: {text}; {NETWORK}",
                timeout.as_secs()
            ),
        ),
        JobEnd::NotAdmitted(text) => skipped(
            &mut findings,
            format!("{text}; select a namespace that admits pods with nfs volumes with --mount-namespace"),
        ),
        JobEnd::Failed(text) => skipped(&mut findings, text),
    }
    findings
}

/// Adds the finding to the output of the probe. Returns the new output, and the exit code of both.
///
/// # Errors
/// The output is not that of a probe.
pub fn append(
    log: &str,
    code: u8,
    format: OutputFormat,
    findings: &Findings,
) -> Result<(String, u8), serde_json::Error> {
    let code = if code == 0 { findings.exit_code() } else { code };
    let text = match format {
        OutputFormat::Table => {
            let rows = log.lines().map(str::to_owned).chain(findings.table_rows(CHECK_WIDTH));
            rows.collect::<Vec<_>>().join("\n")
        }
        OutputFormat::Json => {
            let mut report: Value = serde_json::from_str(log)?;
            if let Some(checks) = report.get_mut("checks").and_then(Value::as_array_mut) {
                checks.extend(findings.rows().iter().map(|row| json!(row)));
            }
            if let Some(report) = report.as_object_mut() {
                report.insert("exitCode".to_owned(), json!(code));
            }
            serde_json::to_string_pretty(&report)?
        }
    };
    Ok((text, code))
}

fn skipped(findings: &mut Findings, why: String) {
    findings.add(CHECK, StepResult::Skipped, format!("not tested: {why}"), Value::Null);
}

/// Returns the output of `mount` in one line, or the whole message if it contains none.
fn cause(message: &str) -> String {
    let output = message.rsplit_once("Output:").map_or(message, |(_, output)| output);
    output.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn remedy(cause: &str) -> &'static str {
    let known = REMEDIES
        .iter()
        .find(|(messages, _)| messages.iter().any(|message| cause.contains(message)));
    known.map_or(NETWORK, |(_, remedy)| remedy)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(180);

    fn text(end: JobEnd) -> (String, u8) {
        let findings = finding("node-1", end, TIMEOUT);
        (findings.table_rows(CHECK_WIDTH).next().unwrap(), findings.exit_code())
    }

    fn kubelet(output: &str) -> JobEnd {
        JobEnd::NotMounted(format!(
            "MountVolume.SetUp failed for volume \"export\" : mount failed: exit status 32\nMounting command: mount\n\
             Mounting arguments: -t nfs -o ro nfs:/data /var/lib/kubelet/pods/1/volumes/kubernetes.io~nfs/export\n\
             Output: {output}\n"
        ))
    }

    #[test]
    fn each_message_of_a_mount_has_its_remedy() {
        for (output, expected) in [
            (
                "mount: /x: bad option; for several filesystems (e.g. nfs, cifs) you might need a /sbin/mount.<type> helper program.",
                "nfs-common",
            ),
            ("mount.nfs: No such device", "modprobe nfs"),
            (
                "mount.nfs: access denied by server while mounting nfs:/data",
                "clients that the export admits",
            ),
            (
                "mount.nfs: mounting nfs:/data failed, reason given by server: No such file or directory",
                "path",
            ),
            (
                "mount.nfs: Failed to resolve server nfs: Name or service not known",
                "DNS",
            ),
            ("mount.nfs: Protocol not supported", "version"),
            ("mount.nfs: Connection refused for nfs:/data on /x", "port 2049"),
        ] {
            let (line, code) = text(kubelet(output));
            assert_eq!(code, 1, "{line}");
            assert!(line.starts_with("mount         FAILED   node node-1 cannot"), "{line}");
            assert!(line.contains(output) && !line.contains("Mounting"), "{line}");
            let remedy = line.rsplit("; ").next().unwrap();
            assert!(remedy.contains(expected), "{line}");
        }
    }

    #[test]
    fn what_was_not_tested_does_not_fail() {
        let (line, code) = text(JobEnd::NotAdmitted("FailedCreate: forbidden".to_owned()));
        assert!(
            code == 0 && line.contains("not tested") && line.contains("--mount-namespace"),
            "{line}"
        );
        let (line, code) = text(JobEnd::Failed("the pod failed: Evicted".to_owned()));
        assert!(code == 0 && line.contains("Evicted"), "{line}");
        let (line, code) = text(JobEnd::TimedOut("ContainerCreating".to_owned()));
        assert!(code == 1 && line.contains("within 180 s: ContainerCreating"), "{line}");
    }

    #[test]
    fn the_finding_is_one_more_check_in_both_formats() {
        let mounted = finding(
            "node-1",
            JobEnd::Exited {
                log: String::new(),
                code: 0,
            },
            TIMEOUT,
        );
        let failed = finding("node-1", kubelet("mount.nfs: No such device"), TIMEOUT);
        let (table, code) = append("CHECK         RESULT   DETAIL\n", 0, OutputFormat::Table, &mounted).unwrap();
        assert!(
            code == 0 && table.lines().count() == 2 && table.contains("\nmount         ok "),
            "{table}"
        );
        // What the operator would say is not changed by the node.
        let report = r#"{"ready": true, "exitCode": 0, "checks": [{"check": "connect"}]}"#;
        let (json, code) = append(report, 0, OutputFormat::Json, &failed).unwrap();
        let json: Value = serde_json::from_str(&json).unwrap();
        assert_eq!((code, &json["exitCode"], &json["ready"]), (1, &json!(1), &json!(true)));
        assert_eq!(json["checks"][1]["check"], CHECK);
        assert_eq!(append("", 3, OutputFormat::Table, &failed).unwrap().1, 3);
    }
}
