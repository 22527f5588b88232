//! Many schedules of backups: what they cost while none of their times comes.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::{Value, json};

use super::{
    BenchOptions, MemorySamples,
    env::{BenchEnv, EnvSettings},
    progress, table, workload,
};
use crate::{
    error::Result,
    objects::{condition, reference, with_fields},
    operator::Operator,
    run_dir::RunDir,
};

/// A namespace has at most 100 schedules.
const PER_NAMESPACE: usize = 50;
/// Two probes of the backend.
const IDLE: Duration = Duration::from_secs(60);
const TIMEOUT: Duration = Duration::from_secs(300);

/// Runs the benchmark and prints its results.
pub async fn measure(run: &RunDir, options: &BenchOptions, schedules: usize) -> Result<()> {
    println!("{schedules} schedules; load at the start {}.", table::load());
    let mut env = BenchEnv::start(run, EnvSettings::new(&options.operator)).await?;
    env.stop_binder().await?;
    let operator = env.start_operator(run).await?;
    env.wait_idle(&operator).await?;
    let mut memory = MemorySamples::default();
    memory.record("without schedules", &operator)?;
    progress("the operator is idle without schedules");
    let without = Idle::measure(&env, &operator).await?;

    progress("the schedules are created");
    create(&env, schedules).await?;
    wait_scheduled(&env, schedules).await?;
    memory.record("when all are scheduled", &operator)?;
    env.wait_idle(&operator).await?;
    progress("the operator is idle with the schedules");
    let with = Idle::measure(&env, &operator).await?;
    memory.record("after an idle minute", &operator)?;

    println!("\n{}", memory.table());
    let counts = [
        (
            "API requests in an idle minute without schedules",
            without.requests.to_string(),
        ),
        ("API requests in an idle minute with them", with.requests.to_string()),
        (
            "CPU when idle without schedules",
            format!("{:.2} %", without.cpu_percent),
        ),
        ("CPU when idle with them", format!("{:.2} %", with.cpu_percent)),
    ];
    println!("{}", table::counts(&counts));
    operator.terminate().await?;
    env.stop().await
}

/// What the operator uses in an idle minute.
struct Idle {
    requests: usize,
    cpu_percent: f64,
}

impl Idle {
    async fn measure(env: &BenchEnv, operator: &Operator) -> Result<Self> {
        let (requests, used) = (workload::count_requests(env, |_| true)?, operator.cpu_seconds()?);
        tokio::time::sleep(IDLE).await;
        Ok(Self {
            requests: workload::count_requests(env, |_| true)? - requests,
            cpu_percent: 100.0 * (operator.cpu_seconds()? - used) / IDLE.as_secs_f64(),
        })
    }
}

fn namespace(number: usize) -> String {
    format!("schedules-{}", number / PER_NAMESPACE)
}

/// Creates the schedules. Their time is half a day away, and they select no claim.
async fn create(env: &BenchEnv, schedules: usize) -> Result<()> {
    for first in (0..schedules).step_by(PER_NAMESPACE) {
        let namespace = reference("v1", "Namespace", None, &namespace(first));
        env.objects.create(&namespace).await?;
    }
    let spec = json!({ "spec": { "schedule": in_half_a_day(), "claims": { "selector": {} }, "keepLast": 7 } });
    stream::iter(0..schedules)
        .map(Ok)
        .try_for_each_concurrent(16, async |number| {
            let object = with_fields(schedule(&namespace(number), &format!("nightly-{number}")), spec.clone());
            env.objects.create(&object).await.map(drop)
        })
        .await
}

fn schedule(namespace: &str, name: &str) -> Value {
    reference("nfs-operator.io/v1alpha1", "NfsBackupSchedule", Some(namespace), name)
}

/// Returns a daily schedule whose next time is as far away as possible.
fn in_half_a_day() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let hour = now.map_or(0, |now| now.as_secs() / 3600 % 24);
    format!("0 {} * * *", (hour + 12) % 24)
}

async fn wait_scheduled(env: &BenchEnv, schedules: usize) -> Result<()> {
    let of_all_namespaces = reference("nfs-operator.io/v1alpha1", "NfsBackupSchedule", None, "any");
    let is_scheduled = |found: &Value| {
        let next = found.pointer("/status/nextScheduleTime");
        condition(found, "Ready").is_some() && next.is_some_and(Value::is_string)
    };
    let expected = (schedules, TIMEOUT);
    env.objects
        .wait_count(&of_all_namespaces, "all to be scheduled", expected, is_scheduled)
        .await
}
