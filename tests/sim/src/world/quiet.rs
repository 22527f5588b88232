//! Once everything is settled: the operator does little, and a fresh start finds the same state.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::World;
use crate::api_server::ApiServer;
use crate::objects::{has_reason, name, namespace, text};
use crate::oracle::Violation;

/// Time for which the operator is observed. A claim that waits reports another cause after five and a half minutes at the
/// latest.
const OBSERVED: Duration = Duration::from_secs(360);
/// Requests to the API server in a minute, except for those about Leases: each backend has statuses and scans.
const MAX_REQUESTS: u64 = 60;
/// Calls for each backend in a minute: it is probed every 30 s, and every 10 s while it is being deleted. Over NFSv3, a probe
/// takes about 30 calls, and a scan for orphans several for each directory.
const MAX_CALLS: u64 = 300;
/// Time in which each backend is probed at least once, and its status written.
const PROBED: Duration = Duration::from_secs(75);
/// Reason of a claim whose source cannot be copied.
const UNSUITABLE: &str = "CopySourceUnsuitable";
/// Time in which a fresh start must have found everything.
const FRESH: Duration = Duration::from_secs(600);

/// Requests of one kind.
struct Traffic {
    what: String,
    /// Number so far.
    count: u64,
    /// Maximum number in a minute of an operator without work.
    limit: u64,
}

impl World {
    /// Checks that an operator with nothing to do sends few requests.
    pub(super) async fn stay_quiet(&mut self) -> Result<(), Violation> {
        // What is shown may be older than the last accident: the next probe finds that there is something to do.
        self.pass(PROBED).await?;
        self.settle().await?;
        let before = self.traffic();
        self.pass(OBSERVED).await?;
        let minutes = OBSERVED.as_secs() / 60;
        for (before, after) in before.iter().zip(self.traffic()) {
            let (what, rate) = (after.what, (after.count - before.count) / minutes);
            self.trace.record("world", format_args!("{rate} {what} per minute"));
            // A backend may have been removed meanwhile.
            if rate > after.limit.max(before.limit) {
                return Err(Violation(format!(
                    "an operator without work sends {rate} {what} per minute"
                )));
            }
        }
        Ok(())
    }

    /// Returns the numbers of requests and calls so far.
    fn traffic(&self) -> Vec<Traffic> {
        let requests = Traffic {
            what: "requests to the API server".to_owned(),
            count: self.faults.requests(),
            limit: MAX_REQUESTS,
        };
        let backends = self.api.all("nfsbackends");
        let calls = self.sites.iter().map(|(_, site)| {
            let at_site = backends
                .iter()
                .filter(|backend| text(backend, "/spec/server") == site.address);
            Traffic {
                what: format!("calls to {}", site.address),
                count: site.server.with_faults(|faults| faults.calls),
                limit: MAX_CALLS * at_site.count() as u64,
            }
        });
        std::iter::once(requests).chain(calls).collect()
    }

    /// Starts all processes again, and checks that they find the state that they showed before.
    pub(super) async fn start_afresh(&mut self) -> Result<(), Violation> {
        let before = self.shown_after_probes().await?;
        let unsuitable = with_unsuitable_source(&self.api);
        self.trace.record("world", "starts all processes again");
        self.processes.restart_all();
        let mut waited = Duration::ZERO;
        loop {
            let step = Duration::from_secs(30);
            self.pass(step).await?;
            waited += step;
            let after = shown(&self.api);
            let differs = before.iter().find(|(what, state)| after.get(*what) != Some(state));
            let Some((what, state)) = differs else { return Ok(()) };
            // An archive that expired meanwhile is purged.
            let objects_changed = before.keys().ne(after.keys());
            // The source was replaced by a suitable one: that is noticed within an hour, and by a fresh start at once.
            let has_source = unsuitable.iter().any(|claim| is_bound(&after, claim));
            if objects_changed || has_source {
                return Ok(());
            }
            if waited >= FRESH {
                return Err(Violation(format!(
                    "{what} is {state}, and after a fresh start {}",
                    after.get(what).unwrap_or(&Value::Null)
                )));
            }
        }
    }

    /// Returns what the operator shows once each backend was probed since an object was created or deleted: an archive may
    /// just have expired.
    async fn shown_after_probes(&mut self) -> Result<BTreeMap<String, Value>, Violation> {
        let mut before = shown(&self.api);
        loop {
            self.pass(PROBED).await?;
            let after = shown(&self.api);
            if before.keys().eq(after.keys()) {
                return Ok(after);
            }
            before = after;
        }
    }
}

/// Returns the claims whose source cannot be copied.
fn with_unsuitable_source(api: &ApiServer) -> Vec<String> {
    let claims = api.all("persistentvolumeclaims");
    claims
        .iter()
        .filter(|claim| has_reason(claim, UNSUITABLE))
        .map(|claim| claim_key(claim))
        .collect()
}

fn is_bound(shown: &BTreeMap<String, Value>, claim: &str) -> bool {
    shown.get(claim).is_some_and(|state| text(state, "/phase") == "Bound")
}

fn claim_key(claim: &Value) -> String {
    format!("claim {}/{}", namespace(claim), name(claim))
}

/// Returns what the operator shows of its state.
fn shown(api: &ApiServer) -> BTreeMap<String, Value> {
    let mut shown = BTreeMap::new();
    for backend in api.all("nfsbackends") {
        let field = |field: &str| backend.pointer(&format!("/status/{field}")).cloned();
        let state = json!({"provisioned": field("capacity/provisioned"), "volumes": field("volumes"),
            "archives": field("archives"), "trash": field("trash/entries"), "exportID": field("export/id"),
            "conditions": conditions(&backend)});
        shown.insert(format!("backend {}", name(&backend)), state);
    }
    for archive in api.all("nfsarchives") {
        let state = json!({"state": text(&archive, "/status/state"), "conditions": conditions(&archive)});
        shown.insert(format!("archive {}", name(&archive)), state);
    }
    for claim in api.all("persistentvolumeclaims") {
        let state = json!({"phase": text(&claim, "/status/phase"), "conditions": conditions(&claim)});
        shown.insert(claim_key(&claim), state);
    }
    shown
}

/// Returns the conditions of an object without their messages and times.
fn conditions(object: &Value) -> Vec<Value> {
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    let shown = conditions.into_iter().flatten().map(|condition| {
        let field = |field: &str| text(condition, field).to_owned();
        let reason = match text(condition, "/reason") {
            // An unsuitable source may be gone: it is looked for every hour.
            UNSUITABLE => "CopySourceNotReady".to_owned(),
            reason => reason.to_owned(),
        };
        json!([field("/type"), field("/status"), reason])
    });
    let mut shown: Vec<Value> = shown.collect();
    shown.sort_by_key(ToString::to_string);
    shown
}
