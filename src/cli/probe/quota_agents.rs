//! Heartbeats of quota agents on an export, and their age.

use std::time::Duration;

use export_store::layout;
use export_store::quota::MAX_HEARTBEAT_AGE;
use jiff::{SignedDuration, Timestamp};
use nfs_client::{Client, FileHandle, Name, NfsError, Time};
use serde_json::json;

use crate::api::Reason;
use crate::cli::connection::export_error;
use crate::cli::findings::{Findings, StepResult};

/// Maximum number of clusters whose folders are searched for a quota agent.
const MAX_CLUSTERS: usize = 64;
/// Difference between the clock of this machine and that of the server that is not taken for an old heartbeat.
const CLOCK_DIFFERENCE: Duration = Duration::from_secs(300);

/// The heartbeat of the agent of one cluster.
struct Heartbeat {
    cluster: String,
    /// Time when it was written, by the server's clock.
    written: Timestamp,
}

/// What was found on an export.
#[derive(Default)]
struct Found {
    heartbeats: Vec<Heartbeat>,
    /// Time of the last change that was seen, by the server's clock. The server's time is not earlier.
    changed: Timestamp,
}

/// Looks for heartbeats of quota agents. Without the key of a cluster, it is not known who wrote them.
pub async fn check(export: &Client, root: &FileHandle, findings: &mut Findings) {
    let found = match find(export, root).await {
        Ok(found) => found,
        Err(error) => {
            let error = export_error("cannot look for a quota agent", error);
            return findings.error("quota-agent", StepResult::Warning, &error);
        }
    };
    let clusters: Vec<&str> = found.heartbeats.iter().map(|found| &*found.cluster).collect();
    let now = Timestamp::now();
    let described: Vec<String> = found
        .heartbeats
        .iter()
        .map(|heartbeat| describe(heartbeat, now))
        .collect();
    let message = format!(
        "a heartbeat for each of these clusters, whose signature is not checked: {}",
        described.join(", ")
    );
    let old = found.heartbeats.iter().filter_map(|heartbeat| {
        let why = age_problem(heartbeat.written, found.changed, now)?;
        Some(format!("the heartbeat of cluster {} {why}", heartbeat.cluster))
    });
    match old.collect::<Vec<_>>().join("; ") {
        _ if clusters.is_empty() => findings.passed("quota-agent", "none: sizes are not enforced"),
        none if none.is_empty() => {
            findings.add("quota-agent", StepResult::Ok, message, json!({ "clusters": clusters }))
        }
        old => findings.problem(
            "quota-agent",
            StepResult::Warning,
            Reason::QuotaAgentNotResponding,
            format!("{message}; {old}: check the process of the agent and its log on the server"),
        ),
    }
}

fn describe(Heartbeat { cluster, written }: &Heartbeat, now: Timestamp) -> String {
    let age = SignedDuration::from_secs(now.duration_since(*written).as_secs().max(0));
    format!("{cluster} (written at {written:.0}, {age:#} ago by the clock of this machine)")
}

/// Returns why a heartbeat is that of an agent that does not run. By the server's clock, the limit is that of the operator;
/// by that of this machine, it is longer. Pure.
fn age_problem(written: Timestamp, changed: Timestamp, now: Timestamp) -> Option<String> {
    let is_older = |than: Timestamp, limit: Duration| {
        SignedDuration::try_from(limit).is_ok_and(|limit| than.duration_since(written) > limit)
    };
    if is_older(changed, MAX_HEARTBEAT_AGE) {
        let limit = MAX_HEARTBEAT_AGE.as_secs();
        return Some(format!(
            "was written more than {limit} s before the last change on the export, at {changed:.0}"
        ));
    }
    is_older(now, MAX_HEARTBEAT_AGE + CLOCK_DIFFERENCE).then(|| "is old by the clock of this machine".to_owned())
}

async fn find(export: &Client, root: &FileHandle) -> Result<Found, NfsError> {
    let mut found = Found::default();
    let Ok(reserved) = Name::new(layout::RESERVED.to_owned()) else {
        return Ok(found);
    };
    let Some(folder) = export.lookup(root, &reserved).await? else {
        return Ok(found);
    };
    let page = export.list(&folder.handle, None).await?;
    // Few clusters share an export; a probe does not need them all.
    for entry in page.entries.into_iter().take(MAX_CLUSTERS) {
        let parts = [layout::QUOTA, layout::QUOTA_AGENT].map(|part| Name::new(part.to_owned()));
        let [Ok(quota), Ok(agent)] = parts else { continue };
        let nodes = match export.walk(&folder.handle, &[entry.name.clone(), quota, agent]).await {
            Ok(nodes) => nodes,
            // The identity file is no folder.
            Err(error) if error.status().is_some() => continue,
            Err(error) => return Err(error),
        };
        let [cluster, quota, agent] = nodes.as_slice() else {
            continue;
        };
        let written = export.full_attributes(&agent.handle).await?.times.modified;
        found.heartbeats.push(Heartbeat {
            cluster: entry.name.to_string(),
            written: timestamp(written),
        });
        // The operator changes the folder of its cluster at each probe, the agent that of the quotas.
        for folder in [cluster, quota] {
            found.changed = found.changed.max(last_change(export, &folder.handle).await?);
        }
    }
    for folder in [root, &folder.handle] {
        found.changed = found.changed.max(last_change(export, folder).await?);
    }
    Ok(found)
}

async fn last_change(export: &Client, folder: &FileHandle) -> Result<Timestamp, NfsError> {
    let attributes = export.full_attributes(folder).await?;
    Ok(timestamp(
        attributes.times.modified.max(attributes.ctime.unwrap_or_default()),
    ))
}

fn timestamp(time: Time) -> Timestamp {
    let nanos = i32::try_from(time.nanos).unwrap_or_default();
    Timestamp::new(time.seconds, nanos).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heartbeat_is_old_by_the_clock_of_the_server_or_far_behind_that_of_this_machine() {
        let at = |seconds: i64| timestamp(Time { seconds, nanos: 0 });
        let written = at(1000);
        assert_eq!(age_problem(written, at(1000), at(1000)), None);
        // Within the limit, and a server whose clock is behind.
        assert_eq!(age_problem(written, at(1030), at(1330)), None);
        assert!(age_problem(written, at(1031), at(1031)).is_some_and(|why| why.contains("more than 30 s")));
        assert!(age_problem(written, at(1000), at(1331)).is_some_and(|why| why.contains("this machine")));
        // The clock of the server is ahead.
        assert_eq!(age_problem(written, at(1000), at(0)), None);
    }
}
