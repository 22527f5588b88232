//! Many backends on 20 servers: the operator's memory, its CPU time when idle, and the time of a placement.

use std::time::{Duration, Instant};

use futures::future::try_join_all;
use serde_json::{Value, json};

use super::{
    BenchOptions, MemorySamples,
    env::{BenchEnv, EnvSettings, NAME},
    progress, table,
    targets::{self, Bound, Target},
    workload,
};
use crate::{
    assets::Assets,
    error::Result,
    nfs_server::{Export, NfsOptions, NfsServer},
    objects::{condition, reference},
    operator::Operator,
    run_dir::RunDir,
};

const SERVERS: usize = 20;
/// The class of claims that may be placed on all of them, and the prefix of their names.
const MANY: &str = "many";
/// The class of claims that may be placed on the first two: as for all, the choice is written to the claim.
const TWO: &str = "two";
const ONE: &str = "one";
/// Each is probed twice.
const IDLE: Duration = Duration::from_secs(60);
/// On a busy machine, most of it is the creation of exports by the servers.
const READY_TIMEOUT: Duration = Duration::from_secs(900);
/// Claims of each class.
const CLAIMS: usize = 200;

/// Runs the benchmark and prints its results.
pub async fn measure(run: &RunDir, options: &BenchOptions, backends: usize) -> Result<()> {
    println!(
        "{backends} backends on {SERVERS} servers; load at the start {}.",
        table::load()
    );
    let mut env = BenchEnv::start(run, EnvSettings::new(&options.operator)).await?;
    progress("the servers start");
    let servers = start_servers(run, backends).await?;
    for (number, server) in (0..backends).zip(servers.iter().cycle()) {
        let fields = json!({ "metadata": { "labels": { "bench": MANY, "first": (number < 2).to_string() } } });
        let name = name(number);
        env.create_backend(&name, &format!("/{name}"), server.port(), fields)
            .await?;
    }
    env.create_class(MANY, json!({ "backendSelector": format!("bench={MANY}") }))
        .await?;
    env.create_class(TWO, json!({ "backendSelector": "first=true" }))
        .await?;
    env.create_class(ONE, json!({ "backend": NAME })).await?;
    env.stop_binder().await?;
    let (mut memory, mut counts) = (MemorySamples::default(), Vec::new());

    progress("the operator starts");
    let started = Instant::now();
    let mut operator = env.start_operator(run).await?;
    wait_all_ready(&env, backends + 1).await?;
    let first = started.elapsed().as_secs_f64();
    counts.push(("time until all are Ready", format!("{first:.1} s")));
    memory.record("when all are Ready", &operator)?;
    progress("the operator restarts");
    let started = Instant::now();
    operator.restart().await?;
    operator.wait_ready().await?;
    let ready = started.elapsed().as_secs_f64();
    counts.push(("time from a restart to ready", format!("{ready:.1} s")));
    memory.record("after a restart", &operator)?;

    progress("the operator is idle");
    // Until all have been probed after the restart.
    tokio::time::sleep(IDLE).await;
    let before = operator.cpu_seconds()?;
    tokio::time::sleep(IDLE).await;
    let idle = 100.0 * (operator.cpu_seconds()? - before) / IDLE.as_secs_f64();
    memory.record("after an idle minute", &operator)?;

    progress("placements");
    let [one, two, many] = measure_placements(&env, &operator).await?;
    for (what, placed) in [
        ("with one backend", &one),
        ("with two backends: the choice is written to the claim", &two),
        ("with all backends", &many),
    ] {
        println!(
            "  claims {what}: {:.2} ms CPU time of the operator each, median latency {:.2} ms",
            placed.cpu_milliseconds, placed.median_milliseconds
        );
    }
    memory.record("after the placements", &operator)?;
    println!("\n{}", memory.table());
    println!("{}", table::counts(&counts));
    let targets = [
        Target::new(
            format!("peak with {backends} backends"),
            "MiB",
            Bound::AtMost(64.0),
            memory.peak(),
        ),
        Target::new("CPU when idle", "% of a core", Bound::AtMost(5.0), idle),
        Target::new(
            "placement: CPU time of a claim, more than with two backends",
            "ms",
            Bound::AtMost(1.0),
            many.cpu_milliseconds - two.cpu_milliseconds,
        ),
        Target::new(
            "placement: median latency of a claim, more than with two backends",
            "ms",
            Bound::AtMost(1.0),
            many.median_milliseconds - two.median_milliseconds,
        ),
    ];
    println!("{}", targets::render(&targets));
    operator.terminate().await?;
    for server in servers {
        server.stop().await?;
    }
    env.stop().await
}

fn name(number: usize) -> String {
    format!("{MANY}-{number}")
}

/// Starts the servers, with the exports of all backends in turn.
async fn start_servers(run: &RunDir, backends: usize) -> Result<Vec<NfsServer>> {
    let ganesha = Assets::find_or_install_ganesha().await?;
    let servers = (0..SERVERS).map(|server| {
        let exports = (server..backends).step_by(SERVERS);
        let options = NfsOptions {
            exports: exports
                .map(|number| Export::new(format!("/{}", name(number))))
                .collect(),
            // The default of nfs-ganesha. Idle clients renew the shorter lease of tests every 2.5 seconds.
            lease_seconds: 60,
            ..NfsOptions::default()
        };
        NfsServer::start_with(run, options, &ganesha)
    });
    try_join_all(servers).await
}

async fn wait_all_ready(env: &BenchEnv, backends: usize) -> Result<()> {
    let like = reference("nfs-operator.io/v1alpha1", "NfsBackend", None, "any");
    let is_ready = |backend: &Value| condition(backend, "Ready").is_some_and(|ready| ready["status"] == "True");
    let expected = (backends, READY_TIMEOUT);
    env.objects
        .wait_count(&like, "all backends to be Ready", expected, is_ready)
        .await
}

/// What single claims of a class cost.
struct Placements {
    cpu_milliseconds: f64,
    median_milliseconds: f64,
}

/// Creates claims with one candidate, with two and with all, in alternate batches, so that the idle work is the same.
async fn measure_placements(env: &BenchEnv, operator: &Operator) -> Result<[Placements; 3]> {
    const BATCHES: usize = 10;
    let mut results = [ONE, TWO, MANY].map(|class| (class, 0.0, Vec::new()));
    for batch in 0..BATCHES {
        for (class, used, latencies) in &mut results {
            let before = operator.cpu_seconds()?;
            for number in 0..CLAIMS / BATCHES {
                let name = format!("{class}-{batch}-{number}");
                latencies.push(workload::measure_latency(env, &name, class).await?);
            }
            *used += operator.cpu_seconds()? - before;
        }
    }
    Ok(results.map(|(_, used, mut latencies)| {
        latencies.sort();
        Placements {
            cpu_milliseconds: used * 1e3 / CLAIMS as f64,
            median_milliseconds: table::percentile(&latencies, 50).as_secs_f64() * 1e3,
        }
    }))
}
