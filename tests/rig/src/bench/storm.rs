//! Many claims that fail: how often they are tried, and what a good claim notices of them.

use std::{
    fs,
    time::{Duration, Instant},
};

use serde_json::json;

use super::{
    BenchOptions, Figures, progress,
    stage::{NAME, Stage},
    table, work,
};
use crate::{
    error::{Doing as _, Result},
    operator::Operator,
    run_dir::RunDir,
};

/// The class of the claims that fail.
const FAILING: &str = "storm";
/// How long the storm is looked at. The first pauses are 15 s and 30 s, each up to half as long again: every claim is
/// tried again once at least, and few of them three times.
const WINDOW: Duration = Duration::from_secs(60);
/// Good claims, one after the other, before the storm and in it.
const GOOD: usize = 30;

/// Measures, and prints the tables.
pub async fn measure(run: &RunDir, options: &BenchOptions, claims: usize) -> Result<()> {
    println!(
        "{claims} claims that fail, with the default pauses; load at the start {}.",
        table::load()
    );
    let mut stage = Stage::start(run, options, 1).await?;
    let operator = stage.operator(run).await?;
    stage.without_binder().await?;
    let (mut figures, mut counts) = (Figures::default(), Vec::new());
    figures.remember("at the start", &operator)?;
    counts.push((
        "a good claim before the storm",
        good(&stage, "before", Duration::ZERO).await?,
    ));

    progress("the storm begins");
    let began = Instant::now();
    raise(&stage, options, claims).await?;
    work::told(&operator, "DirectoryExists", claims).await?;
    counts.push((
        "until each had failed once",
        format!("{:.0} s", began.elapsed().as_secs_f64()),
    ));
    figures.remember("in the storm", &operator)?;

    progress("the storm goes on");
    let (began, attempts) = (Instant::now(), failures(&operator).await?);
    let (written, used) = (work::writes_to_claims(&stage, FAILING)?, stage.usage(Some(&operator))?);
    counts.push((
        "a good claim in the storm",
        good(&stage, "during", WINDOW / GOOD as u32).await?,
    ));
    tokio::time::sleep(WINDOW.saturating_sub(began.elapsed())).await;
    let seconds = began.elapsed().as_secs_f64();
    let attempts = failures(&operator).await? - attempts;
    let used = stage.usage(Some(&operator))?.since(&used);
    counts.extend([
        ("looked at for", format!("{seconds:.0} s")),
        (
            "attempts in that time, a claim",
            format!("{:.2}", attempts as f64 / claims as f64),
        ),
        ("attempts a second", format!("{:.0}", attempts as f64 / seconds)),
        (
            "writes to claims, an attempt",
            format!(
                "{:.2}",
                (work::writes_to_claims(&stage, FAILING)? - written) as f64 / attempts.max(1) as f64
            ),
        ),
        (
            "CPU of the operator",
            format!("{:.0} %", 100.0 * used.operator / seconds),
        ),
    ]);
    figures.remember("a minute later", &operator)?;
    println!("\n{}", table::counts(&counts));
    println!("{}", table::memory(&figures.memory, "limit of the pod: 64"));
    operator.terminate().await?;
    stage.stop().await
}

/// Creates the claims, each for a directory that is there and is nobody's.
async fn raise(stage: &Stage, options: &BenchOptions, claims: usize) -> Result<()> {
    let taken = stage.nfs.data_dir(&format!("/{NAME}"))?.join("taken");
    for number in 0..claims {
        let folder = taken.join(format!("{FAILING}-{number}"));
        fs::create_dir_all(&folder).doing(|| format!("make {}", folder.display()))?;
    }
    let parameters = json!({ "pathPattern": "taken/${pvc.name}" });
    work::of_class(stage, options, FAILING, parameters, claims).await
}

/// Attempts of the storm that failed so far, by the operator's own count.
async fn failures(operator: &Operator) -> Result<u64> {
    let series = format!("controller_persistentvolumeclaim_provision_failed_total{{class=\"{FAILING}\",source=\"\"}}");
    work::metric(operator, &series).await
}

/// How long good claims wait for their volume, one in each `pause` and after the one before: the median and the longest.
async fn good(stage: &Stage, when: &str, pause: Duration) -> Result<String> {
    let (mut latencies, mut pace) = (Vec::new(), tokio::time::interval(pause.max(Duration::from_millis(1))));
    for number in 0..GOOD {
        pace.tick().await;
        let started = Instant::now();
        let claim = work::claim(&format!("good-{when}-{number}"), Some("nfs-operator.io/nfs"));
        let created = stage.objects.create(&claim).await?;
        let volume = format!("pvc-{}", work::uid(&created)?);
        latencies.push(stage.sightings.appeared(&volume).await?.duration_since(started));
    }
    latencies.sort();
    let millis = |latency: Option<&Duration>| latency.map_or(0.0, |latency| latency.as_secs_f64() * 1e3);
    let (median, longest) = (millis(latencies.get(GOOD / 2)), millis(latencies.last()));
    Ok(format!("{median:.0} ms, the longest of {GOOD} {longest:.0} ms"))
}
