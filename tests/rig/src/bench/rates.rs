//! Rates and latencies of claims and deletes, compared with the baselines, with another operator, or with a longer way to
//! the servers.

use std::time::Duration;

use super::{
    BenchOptions, MemorySamples, Policy,
    baseline::{Baseline, BaselineResult},
    costs::{self, Costs},
    env::{BenchEnv, EnvSettings, NAME},
    latency::{self, Latencies},
    progress,
    table::{self, Phase, PhaseResult},
    targets::{self, Bound, Target},
    workload::{self, ProvisionedClaim},
};
use crate::{error::Result, operator::Operator, run_dir::RunDir};

/// The operator of this checkout, in tables.
const OPERATOR: &str = "operator";
const BASE: &str = "base";
const FLOOR: &str = "floor";

/// Measures all phases and prints the results.
pub async fn measure(run: &RunDir, options: &BenchOptions) -> Result<()> {
    println!("{}", table::describe_setup(options, run.path()));
    let settings = EnvSettings {
        links: options.round_trip.is_some(),
        ..EnvSettings::new(&options.operator)
    };
    let mut env = BenchEnv::start(run, settings).await?;
    let mut rates = Rates::default();
    progress("baselines, before the operator starts");
    env.stop_binder().await?;
    let baseline = Baseline::new(&env);
    baseline.warm_up(options).await?;
    let before = baseline.measure(&env, options).await?;
    // The baselines are near the API server in any case.
    if options.round_trip.is_none() {
        progress("floor: single claims");
        env.start_binder().await?;
        let floor = latency::measure_floor(&env, &baseline, options.lone).await?;
        rates.add_latencies(FLOOR, floor);
    }

    match (&options.base, &options.base_checkout, options.round_trip) {
        (Some(base), Some(checkout), _) => {
            let settings = EnvSettings {
                checkout: checkout.clone(),
                ..EnvSettings::new(base)
            };
            env.pause()?;
            let mut other = BenchEnv::start(run, settings).await?;
            other.pause()?;
            // In this order, a machine that becomes slower or faster affects both alike.
            for name in [BASE, OPERATOR, OPERATOR, BASE] {
                let env = if name == BASE { &mut other } else { &mut env };
                env.resume()?;
                rates.measure_round(env, run, options, name).await?;
                env.pause()?;
            }
            other.resume()?;
            other.stop().await?;
            env.resume()?;
        }
        (_, _, Some(milliseconds)) => {
            for milliseconds in [0, milliseconds] {
                env.set_round_trip(Duration::from_millis(milliseconds));
                let name = name_of_round_trip(milliseconds);
                rates.measure_round(&mut env, run, options, &name).await?;
            }
        }
        _ => rates.measure_round(&mut env, run, options, OPERATOR).await?,
    }
    let costs = match options.round_trip {
        // The proxies that count would not be on the way.
        Some(_) => None,
        None => Some(costs::measure(&mut env, run, options).await?),
    };
    progress("baselines, after the operator has stopped");
    env.stop_binder().await?;
    let after = baseline.measure(&env, options).await?;
    rates.print(options, &[&before, &after], costs);
    env.stop().await
}

fn name_of_round_trip(milliseconds: u64) -> String {
    format!("{OPERATOR}, {milliseconds} ms away")
}

/// The results so far.
#[derive(Default)]
struct Rates {
    phases: Vec<PhaseResult>,
    latencies: Vec<(String, Latencies)>,
    memory: MemorySamples,
}

impl Rates {
    /// Measures one process of an operator in all phases.
    async fn measure_round(
        &mut self,
        env: &mut BenchEnv,
        run: &RunDir,
        options: &BenchOptions,
        name: &str,
    ) -> Result<()> {
        progress(&format!("{name}: single claims"));
        env.start_binder().await?;
        let operator = env.start_operator(run).await?;
        self.memory.record(format!("{name}: at the start"), &operator)?;
        let latencies = latency::measure(env, options.lone).await?;
        self.add_latencies(name, latencies);
        self.memory
            .record(format!("{name}: after the single claims"), &operator)?;
        for policy in [Policy::Archive, Policy::Delete] {
            env.set_policy(policy).await?;
            let claims = self.measure_creation(env, &operator, options, (name, policy)).await?;
            self.measure_deletion(env, &operator, options, (name, policy), &claims)
                .await?;
        }
        operator.terminate().await.map(drop)
    }

    /// Measures the time from claims to volumes.
    async fn measure_creation(
        &mut self,
        env: &mut BenchEnv,
        operator: &Operator,
        options: &BenchOptions,
        (name, policy): (&str, Policy),
    ) -> Result<Vec<ProvisionedClaim>> {
        progress(&format!("{name}: claims, policy {}", policy.name()));
        env.stop_binder().await?;
        env.wait_idle(operator).await?;
        let (before, requests) = (env.cpu_usage(Some(operator))?, workload::count_object_requests(env)?);
        let (claims, throughput, written) = workload::create(env, options, NAME).await?;
        let used = env.cpu_usage(Some(operator))?.since(&before);
        let requests = workload::count_object_requests(env)? - requests;
        println!(
            "  the last condition was written {:.0} ms after the last volume",
            written.as_secs_f64() * 1e3
        );
        self.add_phase(PhaseResult::new(
            name,
            (Phase::Claims, policy),
            throughput,
            used,
            requests,
        ));
        self.memory
            .record(format!("{name}: with {} claims", claims.len()), operator)?;
        Ok(claims)
    }

    /// Measures the time from released volumes to their deletion.
    async fn measure_deletion(
        &mut self,
        env: &mut BenchEnv,
        operator: &Operator,
        options: &BenchOptions,
        (name, policy): (&str, Policy),
        claims: &[ProvisionedClaim],
    ) -> Result<()> {
        progress(&format!("{name}: deletes, policy {}", policy.name()));
        env.bind(claims.len()).await?;
        env.stop_binder().await?;
        self.memory
            .record(format!("{name}: with these claims bound"), operator)?;
        workload::prepare_release(env, claims, options).await?;
        env.wait_idle(operator).await?;
        // Paused, not stopped, so that its memory and caches stay the same.
        operator.pause()?;
        workload::release(env, claims, options).await?;
        let (before, requests) = (env.cpu_usage(Some(operator))?, workload::count_object_requests(env)?);
        operator.resume()?;
        let throughput = workload::wait_deleted(env, claims).await?;
        let used = env.cpu_usage(Some(operator))?.since(&before);
        // Events and archives are written later.
        env.wait_idle(operator).await?;
        let requests = workload::count_object_requests(env)? - requests;
        self.add_phase(PhaseResult::new(
            name,
            (Phase::Deletes, policy),
            throughput,
            used,
            requests,
        ));
        self.memory.record(format!("{name}: after their deletion"), operator)?;
        env.start_binder().await
    }

    fn add_phase(&mut self, result: PhaseResult) {
        match self.phases.iter_mut().find(|phase| phase.is_same(&result)) {
            Some(phase) => phase.add_round(&result),
            None => self.phases.push(result),
        }
    }

    fn add_latencies(&mut self, name: &str, latencies: Latencies) {
        match self.latencies.iter_mut().find(|(of, _)| of == name) {
            Some((_, all)) => all.add(latencies),
            None => self.latencies.push((name.into(), latencies)),
        }
    }

    fn print(&self, options: &BenchOptions, baselines: &[&BaselineResult], costs: Option<Costs>) {
        println!("\n{}", table::rates(&self.phases, baselines));
        println!("{}", table::latencies(&self.latencies));
        println!("{}", self.memory.table());
        println!("{}", table::cpu_times(&self.phases, baselines));
        if let Some(costs) = costs {
            println!("{}", costs.table());
        }
        println!("{}", targets::render(&self.targets(options, baselines, costs)));
    }

    /// Returns the results that have targets.
    fn targets(&self, options: &BenchOptions, baselines: &[&BaselineResult], costs: Option<Costs>) -> Vec<Target> {
        if let Some(milliseconds) = options.round_trip {
            return self.targets_of_round_trip(milliseconds);
        }
        let claims = self.phase(OPERATOR, Phase::Claims, None);
        let archives = self.phase(OPERATOR, Phase::Deletes, Some(Policy::Archive));
        let deletes = self.phase(OPERATOR, Phase::Deletes, Some(Policy::Delete));
        let base = |phase, policy| self.phase(BASE, phase, policy);
        let rate = |phase: &Option<PhaseResult>| phase.as_ref().map(|phase| phase.throughput().per_second());
        let requests = |phase: &Option<PhaseResult>| phase.as_ref().map(PhaseResult::requests_each);
        let floor = baselines.iter().map(|baseline| baseline.floor_claims.per_second());
        let floor = table::mean(floor);
        let lone = self.latencies.iter().find(|(name, _)| name == OPERATOR);
        let lone = |percent| lone.map(|(_, lone)| table::percentile(&lone.whole, percent).as_secs_f64() * 1e3);
        let calls = |of: fn(&Costs) -> f64| costs.as_ref().map(of);
        let most = Bound::AtMost;
        vec![
            Target::new("API requests per claim", "", most(2.0), requests(&claims)),
            Target::new("API requests per Delete", "", most(4.0), requests(&deletes)),
            Target::new("API requests per Archive", "", most(6.0), requests(&archives)),
            Target::new("NFS round trips per claim", "", most(3.0), calls(|costs| costs.claim)),
            // The removal of the content cannot be told apart here.
            Target::new(
                "NFS round trips per Delete, see make bench-round-trips",
                "",
                most(6.0),
                None,
            ),
            Target::new(
                "NFS round trips per Archive",
                "",
                most(9.0),
                calls(|costs| costs.archive),
            ),
            Target::new(
                "claims/s, relative to the base",
                "",
                Bound::AtLeast(1.8),
                table::ratio(rate(&claims), rate(&base(Phase::Claims, None))),
            ),
            Target::new(
                "deletes/s, policy Delete, relative to the base",
                "",
                Bound::AtLeast(1.8),
                table::ratio(rate(&deletes), rate(&base(Phase::Deletes, Some(Policy::Delete)))),
            ),
            Target::new(
                "deletes/s, policy Archive, relative to the base",
                "",
                Bound::AtLeast(1.8),
                table::ratio(rate(&archives), rate(&base(Phase::Deletes, Some(Policy::Archive)))),
            ),
            Target::new(
                "claims/s, relative to the floor",
                "",
                Bound::AtLeast(0.5),
                table::ratio(rate(&claims), floor),
            ),
            Target::new("single claim to its volume, p50", "ms", most(8.0), lone(50)),
            Target::new("single claim to its volume, p99", "ms", most(15.0), lone(99)),
        ]
    }

    fn targets_of_round_trip(&self, milliseconds: u64) -> Vec<Target> {
        let seconds = |milliseconds| {
            let claims = self.phase(&name_of_round_trip(milliseconds), Phase::Claims, None);
            claims.map(|claims| claims.throughput().seconds)
        };
        vec![Target::new(
            format!("time of claims at {milliseconds} ms, relative to 0 ms"),
            "",
            Bound::AtMost(3.0),
            table::ratio(seconds(milliseconds), seconds(0)),
        )]
    }

    /// Returns the result of a phase, with one policy or with both.
    fn phase(&self, name: &str, phase: Phase, policy: Option<Policy>) -> Option<PhaseResult> {
        let mut found = self.phases.iter().filter(|result| result.is_of(name, phase, policy));
        let mut sum = found.next()?.clone();
        found.for_each(|result| sum.add_round(result));
        Some(sum)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
mod tests {
    use super::*;
    use crate::bench::{Throughput, env::CpuUsage};

    fn result(name: &str, phase: (Phase, Policy), count: usize, seconds: u64, requests: usize) -> PhaseResult {
        let throughput = Throughput::new(count, Duration::from_secs(seconds));
        PhaseResult::new(name, phase, throughput, CpuUsage::default(), requests)
    }

    #[test]
    fn rounds_of_one_operator_are_added_and_those_of_another_are_not() {
        let mut rates = Rates::default();
        let phase = (Phase::Deletes, Policy::Archive);
        rates.add_phase(result(BASE, phase, 100, 10, 800));
        rates.add_phase(result(OPERATOR, phase, 100, 4, 600));
        rates.add_phase(result(OPERATOR, phase, 100, 6, 620));
        rates.add_phase(result(OPERATOR, (Phase::Deletes, Policy::Delete), 100, 1, 400));
        let archives = |name| rates.phase(name, Phase::Deletes, Some(Policy::Archive)).unwrap();
        assert_eq!(archives(OPERATOR).throughput().per_second(), 20.0);
        assert_eq!(archives(OPERATOR).requests_each(), 6.1);
        assert_eq!(archives(BASE).throughput().per_second(), 10.0);
    }

    #[test]
    fn claims_of_both_policies_count_together() {
        let mut rates = Rates::default();
        rates.add_phase(result(OPERATOR, (Phase::Claims, Policy::Archive), 100, 1, 200));
        rates.add_phase(result(OPERATOR, (Phase::Claims, Policy::Delete), 100, 3, 400));
        let claims = rates.phase(OPERATOR, Phase::Claims, None).unwrap();
        assert_eq!(claims.throughput().per_second(), 50.0);
        assert_eq!(claims.requests_each(), 3.0);
        assert!(rates.phase(BASE, Phase::Claims, None).is_none());
    }
}
