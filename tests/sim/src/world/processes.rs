//! The processes of the operator: replicas that are killed and started again, paused and resumed, and whose clocks jump.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::scenario::Scenario;
use crate::api_faults::ApiFaults;
use crate::api_server::ApiServer;
use crate::chance::Chance;
use crate::clock::SimulatedClock;
use crate::life::Life;
use crate::nfs_server::Network;
use crate::process::{Machine, Process};
use crate::trace::Trace;
use crate::transport::ProcessTransport;

/// Time until a process that ended is started again, at most.
const RESTART: Duration = Duration::from_secs(20);
/// Number of requests after which a process is killed, at most.
const REQUESTS: u64 = 30;
/// Number of writes after which a process is killed, at most.
const WRITES: u64 = 3;
/// Duration of a pause, at most: longer than a Lease is valid, so that there may be another leader at its end.
const LONG_PAUSE: Duration = Duration::from_secs(40);
/// The same without NFS sessions, where nothing but the deadline of a call ends those of a former leader.
const SHORT_PAUSE: Duration = Duration::from_secs(8);
/// By how many milliseconds clocks differ from the right time, in both directions.
const CLOCK_ERROR: u64 = 60_000;
/// By how many milliseconds clocks jump at times.
const CLOCK_JUMPS: [i64; 4] = [0, 3_600_000, -3_600_000, 86_400_000];

/// A replica.
#[derive(Debug)]
struct Replica {
    /// Name of its machine.
    machine: String,
    address: IpAddr,
    clock: SimulatedClock,
    process: Option<Process>,
    life: Life,
    /// Number of its starts.
    starts: u32,
    start_at: Instant,
    resume_at: Option<Instant>,
}

impl Replica {
    /// Returns the name of its process.
    fn name(&self) -> String {
        format!("{}.{}", self.machine, self.starts)
    }
}

/// The replicas of the operator.
#[derive(Debug)]
pub struct Processes {
    replicas: Vec<Replica>,
    api: ApiServer,
    network: Network,
    faults: Arc<ApiFaults>,
    chance: Chance,
    trace: Trace,
    /// Processes stand by while another one leads.
    elects: bool,
}

impl Processes {
    /// Starts one to three replicas in a cluster, which has a number of its own, if the scenario has as many.
    pub fn new(
        (scenario, seed, epoch): (&Scenario, u64, Instant),
        cluster: u8,
        api: ApiServer,
        network: Network,
        faults: Arc<ApiFaults>,
        trace: Trace,
    ) -> Self {
        let chance = Chance::new(seed, &format!("processes of cluster {cluster}"));
        let now = Instant::now();
        let count = (1 + u8::try_from(chance.below(3)).unwrap_or(0)).min(u8::try_from(scenario.replicas).unwrap_or(1));
        let replicas = (1..=count).map(|number| Replica {
            machine: format!("operator-{cluster}{number}"),
            address: IpAddr::V4(Ipv4Addr::new(10, 0, cluster, number)),
            clock: SimulatedClock::new(epoch),
            process: None,
            life: Life::default(),
            starts: 0,
            start_at: now,
            resume_at: None,
        });
        Self {
            replicas: replicas.collect(),
            api,
            network,
            faults,
            chance,
            trace,
            elects: true,
        }
    }

    /// Starts the processes whose time has come, resumes those whose pause is over, and ends those that were killed
    /// meanwhile.
    pub fn step(&mut self) {
        for replica in &mut self.replicas {
            if replica.resume_at.is_some_and(|at| Instant::now() >= at) {
                replica.resume_at = None;
                self.trace.record(&replica.name(), "is resumed");
                replica.life.resume();
            }
            let was_killed = replica.life.is_killed();
            if let Some(process) = replica.process.take_if(|process| was_killed || process.has_ended()) {
                process.kill();
                replica.start_at = Instant::now() + self.chance.duration(RESTART);
                replica.resume_at = None;
            }
            if replica.process.is_some() || Instant::now() < replica.start_at {
                continue;
            }
            replica.starts += 1;
            replica.life = Life::default();
            replica.clock.set_error(clock_error(&self.chance));
            let name = replica.name();
            let machine = Machine {
                api: self
                    .api
                    .service(&name, replica.life.clone(), Arc::clone(&self.faults) as _),
                transport: Arc::new(ProcessTransport {
                    host: self.network.host(replica.address, true),
                    life: replica.life.clone(),
                }),
                clock: replica.clock.clone(),
                life: replica.life.clone(),
                elects: self.elects,
                name,
            };
            replica.process = Some(Process::start(machine, &self.trace));
        }
    }

    /// Kills or pauses a process, or lets its clock jump. `fenced`: the NFS server refuses late calls of a former leader.
    pub fn disturb_one(&mut self, fenced: bool) {
        let mut running: Vec<&mut Replica> = self
            .replicas
            .iter_mut()
            .filter(|replica| replica.process.is_some())
            .collect();
        let index = self.chance.below(u64::try_from(running.len()).unwrap_or(0));
        let Some(replica) = usize::try_from(index).ok().and_then(|index| running.get_mut(index)) else {
            return;
        };
        let name = replica.name();
        match self.chance.below(8) {
            0 => replica.life.kill(),
            when @ 1..4 => {
                let count = self.chance.below(REQUESTS);
                self.faults.kill(name, replica.life.clone(), count, when == 1);
            }
            4..7 => {
                let pause = self.chance.duration(if fenced { LONG_PAUSE } else { SHORT_PAUSE });
                replica.resume_at = Some(Instant::now() + pause);
                replica.life.pause();
                self.trace
                    .record(&name, format_args!("is paused for {:.1} s", pause.as_secs_f64()));
            }
            _ => {
                let jump = self.chance.choose(&CLOCK_JUMPS).copied().unwrap_or(0);
                let error = jump + clock_error(&self.chance);
                replica.clock.set_error(error);
                self.trace
                    .record(&name, format_args!("has a clock that is {} s ahead", error / 1000));
            }
        }
    }

    /// Kills a process at one of its next writes: before it is executed, or between that and the answer.
    pub fn kill_at_write(&self, chance: &Chance) {
        let mut running = self.replicas.iter().filter(|replica| replica.process.is_some());
        let index = chance.below(u64::try_from(running.clone().count()).unwrap_or(0));
        let replica = usize::try_from(index).ok().and_then(|index| running.nth(index));
        if let Some(replica) = replica {
            let (writes, before) = (chance.below(WRITES), chance.in_thousand(500));
            self.faults
                .kill_at_write(replica.name(), replica.life.clone(), writes, before);
        }
    }

    /// Kills no process any more, resumes all, and corrects their clocks, as far as clocks are ever right.
    pub fn end_disturbance(&mut self) {
        self.faults.end_kills();
        for replica in &mut self.replicas {
            replica.resume_at = None;
            replica.life.resume();
            replica.clock.set_error(clock_error(&self.chance));
        }
    }

    /// Kills all processes. They start again within a while.
    pub fn restart_all(&mut self) {
        for replica in &self.replicas {
            replica.life.kill();
        }
    }

    /// Stops all processes, and lets others start with the next step, as an upgrade does.
    pub fn replace_all(&mut self) {
        for replica in &mut self.replicas {
            match replica.process.take() {
                Some(process) if replica.life.is_killed() => process.kill(),
                Some(process) => process.stop(),
                None => {}
            }
            replica.start_at = Instant::now();
        }
    }

    /// Replaces all processes by a single one without leader election.
    pub fn run_without_election(&mut self) {
        self.replace_all();
        self.replicas.truncate(1);
        self.elects = false;
    }
}

/// Returns an error of a clock: machines disagree by up to a minute.
fn clock_error(chance: &Chance) -> i64 {
    let error = i64::try_from(chance.below(2 * CLOCK_ERROR)).unwrap_or(0);
    error - i64::try_from(CLOCK_ERROR).unwrap_or(0)
}
