//! Evidence of which operator acted: in the audit log, in the NFS traffic, and on the export.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use rig::objects::reference;
use rig::proxy::has_bytes;
use rig::{Direction, Objects, Proxy};
use serde_json::Value;

use crate::support::dedicated_cluster::DedicatedCluster;
use crate::support::shared::{Failure, TIMEOUT, Test, text};

/// Returns a reference to the Lease of the operators.
pub fn lease() -> Value {
    reference(
        "coordination.k8s.io/v1",
        "Lease",
        Some("nfs-operator-system"),
        "nfs-operator",
    )
}

/// Returns the holder of the Lease.
pub async fn holder(objects: &Objects) -> rig::Result<Option<String>> {
    let lease = objects.get(&lease()).await?;
    let holder = lease
        .as_ref()
        .map(|lease| text(lease, "/spec/holderIdentity").to_owned());
    Ok(holder.filter(|holder| !holder.is_empty()))
}

/// Waits until another operator than `former` holds the Lease.
pub async fn next_holder(objects: &Objects, former: &str) -> rig::Result<String> {
    rig::wait::until("another leader", TIMEOUT, async || {
        match holder(objects).await.map_err(|error| error.to_string())? {
            Some(holder) if holder != former => Ok(holder),
            other => Err(format!("{other:?}")),
        }
    })
    .await
}

/// Returns the requests of operators that the API server answered, in the order of arrival.
pub fn requests(audit: &Path) -> Result<Vec<Value>, Failure> {
    let (mut requests, _) = requests_since(audit, 0)?;
    requests.sort_by_key(|event| text(event, "/requestReceivedTimestamp").to_owned());
    Ok(requests)
}

/// Returns the requests of operators that the API server answered and recorded behind this offset in the log, and the offset
/// behind them: to parse the whole log again and again would take the processors from those that are waited for.
pub fn requests_since(audit: &Path, offset: u64) -> Result<(Vec<Value>, u64), Failure> {
    let mut log = File::open(audit)?;
    log.seek(SeekFrom::Start(offset))?;
    let mut lines = String::new();
    log.read_to_string(&mut lines)?;
    // The last line may be incomplete.
    let (complete, rest) = lines.rsplit_once('\n').unwrap_or(("", &lines));
    let requests = complete
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .filter(|event| text(event, "/user/username").ends_with(":nfs-operator"))
        .filter(|event| text(event, "/stage") == "ResponseComplete")
        .collect();
    Ok((requests, offset + (lines.len() - rest.len()) as u64))
}

/// Returns whether a request changes something other than the Lease.
pub fn is_write(request: &Value) -> bool {
    !matches!(text(request, "/verb"), "get" | "list" | "watch") && text(request, "/objectRef/resource") != "leases"
}

/// Returns whether the operator with this identity has written.
pub fn has_written(audit: &Path, identity: &str) -> std::io::Result<bool> {
    let agent = format!("({identity})");
    let log = std::fs::read_to_string(audit)?;
    // To parse the lines of all operators would take the processors from them.
    let own = log.lines().filter(|line| line.contains(&agent));
    let mut requests = own.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    Ok(requests.any(|request| text(&request, "/stage") == "ResponseComplete" && is_write(&request)))
}

/// Returns the operators that wrote, in order. Fails if one wrote after its successor.
pub fn one_after_the_other(audit: &Path) -> Result<Vec<String>, Failure> {
    let mut order: Vec<String> = Vec::new();
    for request in requests(audit)?.iter().filter(|request| is_write(request)) {
        let agent = text(request, "/userAgent");
        let who = agent
            .split_once('(')
            .map_or(agent, |(_, who)| who.trim_end_matches(')'));
        if order.last().map(String::as_str) != Some(who) {
            assert!(
                !order.iter().any(|former| former == who),
                "{who} wrote after another had begun: {request} {order:?}"
            );
            order.push(who.to_owned());
        }
    }
    Ok(order)
}

/// The verifiers of the clients that established the NFS lease of a cluster through a proxy.
#[derive(Clone, Default)]
pub struct NfsLeases(Arc<Mutex<Vec<[u8; 8]>>>);

impl NfsLeases {
    /// Observes this proxy from now on.
    pub fn observe(proxy: &Proxy) -> Self {
        let seen = Self::default();
        let notes = seen.clone();
        proxy.on_record(Direction::Up, move |record| {
            if let Some(verifier) = introduction(record) {
                notes.0.lock().push(verifier);
            }
            rig::Action::Forward
        });
        seen
    }

    /// Returns all verifiers so far, in order.
    pub fn seen(&self) -> Vec<[u8; 8]> {
        self.0.lock().clone()
    }

    /// Checks that no client returned after another one.
    pub fn assert_no_return(&self) {
        let mut changes = self.seen();
        changes.dedup();
        let mut distinct = changes.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(changes.len(), distinct.len(), "{changes:?}");
    }
}

/// Returns the verifier of an EXCHANGE_ID that may replace another client (RFC 8881 section 18.35.1: verifier, owner,
/// flags), but not of an update.
fn introduction(record: &[u8]) -> Option<[u8; 8]> {
    let owner = record.windows(13).position(|window| window == b"nfs-operator/")?;
    let length = u32::from_be_bytes(record.get(owner.checked_sub(4)?..owner)?.try_into().ok()?);
    let verifier = record.get(owner.checked_sub(12)?..owner - 4)?.try_into().ok()?;
    let length = usize::try_from(length).ok()?;
    // An observer ends no session of others.
    if has_bytes(record.get(owner..owner + length)?, b"/observer-") {
        return None;
    }
    let flags = owner + length.next_multiple_of(4);
    let flags = u32::from_be_bytes(record.get(flags..flags + 4)?.try_into().ok()?);
    (flags & 0x4000_0000 == 0).then_some(verifier)
}

/// Checks that each claim has one volume, one directory and one record, and that there are no others.
pub async fn assert_each_once(env: &DedicatedCluster, claims: &[Value]) -> Test {
    let (mut directories, mut volumes) = (Vec::new(), Vec::new());
    for claim in claims {
        let volume = env.bound(claim).await?;
        let directory = env.directory(&volume)?;
        directories.push(directory.file_name().unwrap().to_string_lossy().into_owned());
        volumes.push(text(&volume, "/metadata/name").to_owned());
    }
    directories.sort();
    volumes.sort();
    let created: Vec<String> = env.names()?.into_iter().collect();
    assert_eq!(created, directories, "one directory per claim, and no others");
    assert_eq!(
        env.volumes().await?.len(),
        claims.len(),
        "one volume per claim, and no others"
    );
    // A record that is being written has a draft.
    rig::wait::until("one record per volume, and no others", TIMEOUT, async || {
        let records = env.records().map_err(|error| error.to_string())?;
        let mut records: Vec<String> = records.into_iter().map(|(name, _)| name).collect();
        records.sort();
        if records == volumes {
            Ok(())
        } else {
            Err(format!("records {records:?}, volumes {volumes:?}"))
        }
    })
    .await?;
    Ok(())
}
