//! Many claims on several backends: what the operator needs when they are bound, after a restart, and with nothing to do.

use std::{
    fs,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{BenchOptions, Figures, progress, stage::Stage, table, work};
use crate::{
    error::{Doing as _, Result},
    objects::reference,
    operator::Operator,
    run_dir::RunDir,
    wait,
};

const BACKENDS: usize = 5;
/// Absent until the operator has ended a scan.
const ENDED: &str = "nfs_operator_backend_scan_duration_seconds{";
/// Volumes of a backend that the operator looks at in a second.
const LOOKS_A_SECOND: usize = 10;
/// More than that for the records, and for a busy machine.
const SCANNED: Duration = Duration::from_secs(300);
/// Two probes of each backend.
const IDLE: Duration = Duration::from_secs(60);

/// Measures, and prints the tables.
pub async fn measure(run: &RunDir, options: &BenchOptions, claims: usize) -> Result<()> {
    println!(
        "{claims} claims on {BACKENDS} backends, {} at a time; load at the start {}.",
        options.concurrency,
        table::load()
    );
    let mut stage = Stage::start(run, options, BACKENDS).await?;
    let mut figures = Figures::default();
    let mut counts = Vec::new();
    let mut operator = stage.operator(run).await?;
    figures.remember("at the start", &operator)?;

    let provisioned = provision(&mut stage, options, claims).await?;
    counts.push(("claims to volumes, a second", provisioned));
    figures.remember("with the claims provisioned", &operator)?;
    progress("the binder binds them");
    let bound = bind(&mut stage, claims).await?;
    counts.push(("claims to Bound by the binder", bound));
    stage.settle(&operator).await?;
    figures.remember("with these bound", &operator)?;

    progress("the operator starts again");
    let started = Instant::now();
    operator.restart().await?;
    operator.wait_ready().await?;
    counts.push((
        "from start to ready",
        format!("{:.2} s", started.elapsed().as_secs_f64()),
    ));
    stage.settle(&operator).await?;
    figures.remember("after a restart", &operator)?;

    progress("nothing to do");
    counts.push(("requests to the API server in an idle minute", idle(&stage).await?));
    figures.remember("after an idle minute", &operator)?;
    progress("all exports are scanned for orphans");
    counts.extend(scan(&stage, &operator, claims).await?);
    figures.remember("after a scan for orphans", &operator)?;
    counts.push(("claims without a Bound volume", lost(&stage).await?));
    counts.push(("directories on the exports", stage.directories()?.to_string()));
    println!("\n{}", table::memory(&figures.memory, "goal < 40 at 10,000 claims"));
    println!("{}", table::counts(&counts));
    operator.terminate().await?;
    stage.stop().await
}

/// Creates the claims and waits for their volumes; answers how fast they came.
async fn provision(stage: &mut Stage, options: &BenchOptions, claims: usize) -> Result<String> {
    progress("claims to volumes");
    stage.without_binder().await?;
    let many = BenchOptions {
        count: claims,
        ..options.clone()
    };
    let (_, pace, _) = work::create(stage, &many).await?;
    Ok(format!("{:.0}", pace.per_second()))
}

/// Has them bound; answers how many are.
async fn bind(stage: &mut Stage, claims: usize) -> Result<String> {
    stage.bind(claims).await?;
    Ok(format!("{} of {claims}", claims - unbound(stage).await?))
}

/// Has all backends scanned at once; answers how long that takes, and what it costs.
async fn scan(stage: &Stage, operator: &Operator, claims: usize) -> Result<[(&'static str, String); 4]> {
    let (before, used, began) = (requests(stage)?, stage.usage(Some(operator))?, Instant::now());
    stage.ask_for_scans().await?;
    let patience = SCANNED + Duration::from_secs((claims / BACKENDS / LOOKS_A_SECOND) as u64);
    let highest = AtomicU64::new(0);
    wait::until("all exports to be scanned", patience, async || {
        let resident = operator.resident_bytes().map_err(|error| error.to_string())?;
        highest.fetch_max(resident, Ordering::Relaxed);
        let metrics = operator.metrics().await.map_err(|error| error.to_string())?;
        let ended = metrics.lines().filter(|line| line.starts_with(ENDED)).count();
        if ended == BACKENDS {
            Ok(())
        } else {
            Err(format!("{ended} of {BACKENDS}"))
        }
    })
    .await?;
    let seconds = began.elapsed().as_secs_f64();
    let used = stage.usage(Some(operator))?.since(&used);
    Ok([
        ("seconds of a scan for orphans", format!("{seconds:.0}")),
        (
            "requests to the API server in it",
            (requests(stage)? - before).to_string(),
        ),
        (
            "CPU of the operator in it",
            format!("{:.1} %", 100.0 * used.operator / seconds),
        ),
        (
            "highest resident memory in it, MiB",
            format!("{:.1}", highest.into_inner() as f64 / table::MEBIBYTE),
        ),
    ])
}

/// What the operator asks of the API server, by the server's audit log; watches count when they end.
async fn idle(stage: &Stage) -> Result<String> {
    let before = requests(stage)?;
    tokio::time::sleep(IDLE).await;
    Ok((requests(stage)? - before).to_string())
}

fn requests(stage: &Stage) -> Result<usize> {
    let log = stage.cluster.audit_log();
    let text = fs::read_to_string(&log).doing(|| format!("read {}", log.display()))?;
    let events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let by_operator = |event: &Value| {
        let user = event.pointer("/user/username").and_then(Value::as_str);
        user.is_some_and(|user| user.ends_with(":nfs-operator")) && event["stage"] == "ResponseComplete"
    };
    Ok(events.filter(by_operator).count())
}

async fn lost(stage: &Stage) -> Result<String> {
    unbound(stage).await.map(|count| count.to_string())
}

async fn unbound(stage: &Stage) -> Result<usize> {
    let like = reference("v1", "PersistentVolumeClaim", Some(super::stage::NAME), "any");
    let claims = stage.objects.list(&like).await?;
    let bound = |claim: &&Value| claim.pointer("/status/phase").and_then(Value::as_str) == Some("Bound");
    Ok(claims.len() - claims.iter().filter(bound).count())
}
