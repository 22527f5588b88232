//! A run: everything that exists in it, and what happens when.

mod accidents;
mod follow_ups;
mod processes;
mod quiet;
mod restored;
mod scenario;
mod special_cases;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::actors::administrator::{ALIAS, Administrator, EXPORT, REMOTE_EXPORT, REMOTE_SERVER, SERVER};
use crate::actors::nodes::Nodes;
use crate::actors::storage::{ProtocolChoice, Storage};
use crate::actors::users::Users;
use crate::actors::{binder, namespaces};
use crate::api_faults::ApiFaults;
use crate::api_server::{ApiServer, Snapshot};
use crate::chance::Chance;
use crate::clock::{EPOCH, SimulatedClock};
use crate::nfs_server::file_system::{self, AttributeChanges, Caller, Content, Directory};
use crate::nfs_server::{Export, FileSystem, FileSystemOptions, Network, NfsServer, ServerOptions};
use crate::oracle::{DISK, Oracle, Violation};
use crate::sites::{Site, Sites};
use crate::trace::Trace;

use processes::Processes;

pub use scenario::{CHUNKS, Kind, Scenario};

/// Address of the NFS server.
const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
/// Address of the other NFS server.
const REMOTE_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
/// Time between two looks of the binder and of the oracle.
const STEP: Duration = Duration::from_millis(250);
/// Time that the operator has to settle everything once faults have stopped.
const SETTLE: Duration = Duration::from_secs(1800);
/// Time that it has to purge what has expired. An archive is checked at least once an hour: if the clock was behind at the
/// last check, only the next one finds that it has expired.
const PURGE: Duration = Duration::from_secs(2 * 3600);

/// The result of a run.
#[derive(Debug)]
pub struct Report {
    /// What happened.
    pub trace: Vec<String>,
    /// The rule that was violated.
    pub violation: Option<Violation>,
    /// Number of actions until then.
    pub actions: u32,
}

/// Runs a scenario, and `traces` what happens. Call it on a runtime whose clock is paused.
pub async fn run(scenario: Scenario, traces: bool) -> Report {
    let trace = Trace::start(traces);
    let _logs = traces.then(|| trace.collect_logs());
    let (result, actions) = match World::new(scenario, trace.clone()) {
        Ok(mut world) => (world.run().await, world.actions),
        Err(cause) => (Err(Violation(format!("the simulation cannot be set up: {cause}"))), 0),
    };
    if let Err(Violation(cause)) = &result {
        trace.record("oracle", cause);
    }
    Report {
        trace: trace.lines(),
        violation: result.err(),
        actions,
    }
}

struct World {
    scenario: Scenario,
    api: ApiServer,
    server: NfsServer,
    sites: Sites,
    network: Network,
    /// The start of the run.
    epoch: Instant,
    /// An earlier state of the API server.
    snapshot: Option<Snapshot>,
    faults: Arc<ApiFaults>,
    administrator: Administrator,
    users: Users,
    nodes: Nodes,
    storage: Storage,
    oracle: Oracle,
    processes: Processes,
    chance: Chance,
    /// Decides about everything that only happens with [`Kind::FollowUps`].
    follow_ups: Chance,
    /// Decides about the situation that is arranged at the end.
    special_cases: Chance,
    trace: Trace,
    /// Number of actions so far.
    actions: u32,
    /// The revision of the objects before the last step of the controllers of Kubernetes.
    bound: u64,
}

impl World {
    fn new(scenario: Scenario, trace: Trace) -> Result<Self, String> {
        let seed = scenario.seed;
        let epoch = Instant::now();
        let clock = SimulatedClock::new(epoch);
        let api = ApiServer::new(seed, Arc::new(clock));
        let administrator = Administrator::install(seed, api.clone(), trace.clone())?;
        let protocol = ProtocolChoice::of_seed(seed);
        let network = Network::default();
        let site = |name, alias, address, path| {
            let server = start_server(seed, address, path, protocol)?;
            network.add(server.clone());
            network.name(name, address);
            let disk = DISK;
            Ok::<_, String>(Site {
                address: name,
                alias,
                path,
                server,
                disk,
            })
        };
        let (main, remote) = (
            site(SERVER, Some(ALIAS), ADDRESS, EXPORT)?,
            site(REMOTE_SERVER, None, REMOTE_ADDRESS, REMOTE_EXPORT)?,
        );
        let server = main.server.clone();
        let sites = Sites::new(vec![main, remote]);
        let faults = Arc::new(ApiFaults::new(seed, trace.clone()));
        Ok(Self {
            administrator,
            users: Users::new(seed, api.clone(), trace.clone(), Administrator::classes()),
            nodes: Nodes::new(seed, api.clone(), sites.clone(), trace.clone()),
            storage: Storage::new(seed, api.clone(), server.clone(), protocol, trace.clone())?,
            oracle: Oracle::new(api.clone(), sites.clone()),
            sites,
            processes: Processes::new(
                (&scenario, seed, epoch),
                1,
                api.clone(),
                network.clone(),
                Arc::clone(&faults),
                trace.clone(),
            ),
            network,
            epoch,
            snapshot: None,
            chance: Chance::new(seed, "world"),
            follow_ups: Chance::new(seed, "follow-ups"),
            special_cases: Chance::new(seed, "special cases"),
            scenario,
            api,
            server,
            faults,
            trace,
            actions: 0,
            bound: 0,
        })
    }

    async fn run(&mut self) -> Result<(), Violation> {
        for action in 0..self.scenario.actions {
            if action == self.scenario.actions / 4 {
                self.snapshot = Some(self.api.snapshot());
            }
            self.pass(self.chance.duration(self.scenario.pause())).await?;
            if self.scenario.executes(action) {
                self.actions = action + 1;
                self.act()?;
                self.follow_up();
            }
            self.look()?;
        }
        self.end_faults();
        self.settle().await?;
        if self.chance.below(4) == 0 {
            self.stay_quiet().await?;
            self.start_afresh().await?;
        }
        let is_chosen = self.scenario.case.is_some();
        match self.chance.below(8) {
            0 if !is_chosen => return self.restore_etcd().await,
            1 if !is_chosen => return self.clone_cluster().await,
            _ if self.scenario.has(Kind::Accidents) => self.have_accident().await?,
            _ => {}
        }
        self.users.delete_all();
        self.trace.record("user", "deletes all claims");
        // Perhaps on a full disk.
        self.settle().await?;
        self.storage.repair();
        self.settle().await?;
        self.clean_up().await?;
        self.have_special_case().await
    }

    /// Lets time pass, in which the binder works and the oracle looks at each change.
    async fn pass(&mut self, duration: Duration) -> Result<(), Violation> {
        let end = Instant::now() + duration;
        while Instant::now() < end {
            sleep(STEP.min(end - Instant::now())).await;
            self.bind();
            self.look()?;
        }
        Ok(())
    }

    fn look(&mut self) -> Result<(), Violation> {
        self.processes.step();
        self.storage.step();
        self.storage.check(&self.server.take_events())?;
        self.oracle.look()
    }

    /// Lets the controllers of Kubernetes do what there is to do, which depends on nothing but the objects.
    fn bind(&mut self) {
        let revision = self.api.revision_of(&binder::KINDS);
        if self.bound != revision {
            // Before its own writes, after which there may be more to do.
            self.bound = revision;
            binder::step(&self.api);
            namespaces::step(&self.api);
        }
    }

    /// Lets somebody do something.
    fn act(&mut self) -> Result<(), Violation> {
        match self.chance.below(100) {
            0..50 => self.users.act(),
            50..72 if self.storage.serves_pods() => {
                let oracle = &self.oracle;
                let written = self
                    .nodes
                    .write(|claim| oracle.was_given_in_vain(claim))
                    .map_err(Violation)?;
                if let Some(written) = written {
                    self.oracle.written(written);
                }
            }
            // A backend that is created again accepts any export, if there are no volumes.
            72..84 if self.scenario.has(Kind::Administrators) && !self.storage.is_replaced() => {
                self.administrator.act();
            }
            84..86 if self.scenario.has(Kind::ApiFaults) => {
                self.trace.record("api", "forgets its history");
                self.api.compact();
            }
            86..93 if self.scenario.has(Kind::Kills) => self.processes.disturb_one(self.storage.has_sessions()),
            93..97 if self.scenario.has(Kind::ApiFaults) => self.change_api_faults(),
            97..98 if self.scenario.has(Kind::NfsFaults) => self.storage.change_fault_rates(),
            98..100 if self.scenario.has(Kind::Accidents) => self.storage.act(),
            _ => {}
        }
        Ok(())
    }

    fn change_api_faults(&self) {
        let rates = [0, 20, 100, 400];
        let rate = self.chance.choose(&rates).copied().unwrap_or(0);
        let slow = self.chance.in_thousand(500);
        self.trace.record(
            "api",
            format_args!("fails {rate} of 1,000 requests; slow watches: {slow}"),
        );
        self.faults.set(rate, slow);
    }

    fn end_faults(&mut self) {
        self.trace.record("world", "faults end");
        self.faults.set(0, false);
        self.storage.repair();
        self.server.with_faults(crate::nfs_server::Faults::clear);
        self.processes.end_disturbance();
        self.administrator.restore_service();
    }

    /// Waits until the operator has done everything.
    async fn settle(&mut self) -> Result<(), Violation> {
        let begin = Instant::now();
        self.pass(STEP * 8).await?;
        loop {
            let (left, limit) = match self.oracle.unsettled() {
                left if left.is_empty() => (self.oracle.expired(), PURGE),
                left => (left, SETTLE),
            };
            if left.is_empty() {
                self.trace.record("world", "everything is settled");
                return Ok(());
            }
            if begin.elapsed() >= limit {
                return Err(Violation(format!(
                    "not settled after {} s: {}",
                    limit.as_secs(),
                    left.join("; ")
                )));
            }
            self.pass(Duration::from_secs(5)).await?;
        }
    }
}

/// Starts an NFS server whose export contains a file of a stranger.
fn start_server(seed: u64, address: IpAddr, path: &str, protocol: ProtocolChoice) -> Result<NfsServer, String> {
    let options = ServerOptions {
        epoch: EPOCH,
        ..protocol.server_options()
    };
    let server = NfsServer::start(address, options, seed);
    server.insert_disk(DISK, FileSystem::new(FileSystemOptions::default()));
    server.export(Export::new(path, DISK));
    let set = AttributeChanges::default();
    let created = server.administer(DISK, |disk| {
        let root = disk.root();
        let folder = file_system::Kind::Directory(Directory::new(root));
        let folder = disk.create(&Caller::ROOT, root, b"strangers", folder, set)?;
        let file = file_system::Kind::Regular(Content::default());
        let file = disk.create(&Caller::ROOT, folder, b"file", file, set)?;
        disk.write(&Caller::ROOT, file, 0, b"not ours")
    });
    created.map_err(|status| format!("the export cannot be filled: {status:?}"))?;
    Ok(server)
}
