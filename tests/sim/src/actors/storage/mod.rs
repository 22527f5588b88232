//! The administrator of the NFS server, and its accidents: restarts, outages, a full disk, an export that is read-only or
//! withdrawn, and another export in the place of the right one.
//!
//! There is at most one accident at a time. It ends by itself, because the administrator repairs everything in the end.

mod protocol;
mod replacement;

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::administrator::{EXPORT, SERVER};
use crate::api_server::ApiServer;
use crate::chance::Chance;
use crate::nfs_server::file_system::FileSystemOptions;
use crate::nfs_server::{Actor, Availability, Event, Export, FaultRates, FileSystem, NfsServer, Restart};
use crate::objects::text;
use crate::oracle::{DISK, Violation};
use crate::trace::Trace;

pub use protocol::ProtocolChoice;
pub use replacement::{Replacement, beacon};

const BY: &str = "nas";
/// Name of the disk with an export that takes the place of the right one.
const REPLACEMENT_DISK: &str = "replacement";
/// Longer than any run.
const FOREVER: Duration = Duration::from_secs(86_400 * 365);
/// Time between two snapshots of the disk.
const SNAPSHOTS: Duration = Duration::from_secs(60);
/// Number of snapshots that are kept.
const MAX_SNAPSHOTS: usize = 8;
/// Longest time that a call is held in a session, whose server refuses late calls.
const LONG_HOLD: Duration = Duration::from_secs(15);
/// The same without sessions: a new leader waits until the calls of the former one have ended, which takes at most 10 s.
const SHORT_HOLD: Duration = Duration::from_secs(8);

/// What is wrong with the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Accident {
    /// Nothing reaches it.
    Unreachable,
    /// It refuses connections.
    Down,
    /// Its disk has no space.
    NoSpace,
    /// Its disk has no inodes.
    NoInodes,
    /// A quota is exceeded.
    Quota,
    /// The export is read-only.
    ReadOnly,
    /// The export is not offered.
    Withdrawn,
    /// Another export is in the place of the right one.
    Replaced(Replacement),
}

const ACCIDENTS: [Accident; 7] = [
    Accident::Unreachable,
    Accident::Down,
    Accident::NoSpace,
    Accident::NoInodes,
    Accident::Quota,
    Accident::ReadOnly,
    Accident::Withdrawn,
];

impl Accident {
    /// Returns the longest time until it is repaired.
    fn longest(self) -> Duration {
        Duration::from_secs(match self {
            Self::Unreachable | Self::Down | Self::ReadOnly | Self::Withdrawn => 90,
            Self::NoSpace | Self::NoInodes | Self::Quota => 180,
            Self::Replaced(_) => 240,
        })
    }

    /// Returns true if pods can still write, as far as there is space.
    fn serves_pods(self) -> bool {
        matches!(self, Self::NoSpace | Self::NoInodes | Self::Quota)
    }
}

/// The NFS server, as its administrator sees it.
#[derive(Debug)]
pub struct Storage {
    api: ApiServer,
    server: NfsServer,
    chance: Chance,
    trace: Trace,
    protocol: ProtocolChoice,
    /// Properties of the disk without accidents.
    options: FileSystemOptions,
    /// Former states of the disk, oldest first.
    snapshots: Vec<FileSystem>,
    next_snapshot: Instant,
    /// What is wrong, and when it is repaired.
    accident: Option<(Accident, Instant)>,
}

impl Storage {
    /// Returns the administrator of a server that has its disk, and lets the backends use the protocol.
    ///
    /// # Errors
    /// The simulation is wrong.
    pub fn new(
        seed: u64,
        api: ApiServer,
        server: NfsServer,
        protocol: ProtocolChoice,
        trace: Trace,
    ) -> Result<Self, String> {
        let options = server.inspect(DISK, |disk| disk.options().clone());
        let options = options.map_err(|status| format!("there is no disk: {status:?}"))?;
        trace.record(BY, format_args!("{protocol}"));
        protocol.request(&api)?;
        Ok(Self {
            api,
            server,
            chance: Chance::new(seed, "storage"),
            trace,
            protocol,
            options,
            snapshots: Vec::new(),
            next_snapshot: Instant::now() + SNAPSHOTS,
            accident: None,
        })
    }

    /// Lets something happen to the server.
    pub fn act(&mut self) {
        match self.chance.below(8) {
            0 => self.restart(Restart::KeepingClients),
            1 => self.restart(Restart::LosingClients),
            2..5 => {
                if let Some(accident) = self.chance.choose(&ACCIDENTS) {
                    self.begin(*accident);
                }
            }
            _ => {
                self.replace();
            }
        }
    }

    /// Does what is due: repairs, and snapshots.
    pub fn step(&mut self) {
        let now = Instant::now();
        if self.accident.is_some_and(|(_, end)| now >= end) {
            self.repair();
        }
        if now >= self.next_snapshot && self.accident.is_none() {
            self.next_snapshot = now + SNAPSHOTS;
            self.snapshots.extend(self.server.snapshot(DISK));
            let outdated = self.snapshots.len().saturating_sub(MAX_SNAPSHOTS);
            self.snapshots.drain(..outdated);
        }
    }

    /// Returns true if pods can use their volumes.
    pub fn serves_pods(&self) -> bool {
        self.accident.is_none_or(|(accident, _)| accident.serves_pods())
    }

    /// Returns true if another export is in the place of the right one.
    pub fn is_replaced(&self) -> bool {
        matches!(self.accident, Some((Accident::Replaced(_), _)))
    }

    /// Returns true if the server executes each call once, and refuses those of a former leader.
    pub fn has_sessions(&self) -> bool {
        self.protocol.has_sessions()
    }

    /// Repairs everything.
    pub fn repair(&mut self) {
        let Some((accident, _)) = self.accident.take() else {
            return;
        };
        self.trace.record(BY, format_args!("repairs: {accident:?}"));
        self.server.set_availability(Availability::Up);
        self.server.export(Export::new(EXPORT, DISK));
        self.change_options(|options, repaired| *options = repaired.clone());
        if let Accident::Replaced(_) = accident {
            self.server.restart(Restart::LosingClients);
        }
    }

    /// Puts another export in the place of the right one, until it is repaired. Returns false if there is none, or something
    /// else is wrong.
    pub fn replace(&mut self) -> bool {
        if self.accident.is_some() {
            return false;
        }
        let Some((kind, disk)) = replacement::choose(&self.api, &self.server, &self.chance, &self.snapshots) else {
            return false;
        };
        self.replace_export(kind, disk);
        true
    }

    /// Puts a former state of the disk in the place of the present one, until [`repair`](Self::repair) is called.
    pub fn roll_back(&mut self, former: FileSystem) {
        self.repair();
        self.replace_export(Replacement::Former, former);
        self.leave();
    }

    fn replace_export(&mut self, kind: Replacement, disk: FileSystem) {
        self.begin(Accident::Replaced(kind));
        self.server.insert_disk(REPLACEMENT_DISK, disk);
        self.server.export(Export::new(EXPORT, REPLACEMENT_DISK));
        // The disk of a server is not replaced while its clients use it.
        self.server.restart(Restart::LosingClients);
    }

    /// Fills the disk, until it is repaired.
    pub fn fill_disk(&mut self) {
        let full = [Accident::NoSpace, Accident::NoInodes, Accident::Quota];
        if let Some(accident) = self.chance.choose(&full) {
            self.begin(*accident);
        }
    }

    /// Leaves the present accident until [`repair`](Self::repair) is called.
    pub fn leave(&mut self) {
        if let Some((_, end)) = &mut self.accident {
            *end += FOREVER;
        }
    }

    /// Returns true if the backend reports that the export is not its own.
    pub fn is_replacement_reported(&self) -> bool {
        replacement::is_reported(&self.api)
    }

    /// Nobody changes an export that took the place of the right one.
    ///
    /// # Errors
    /// The first change by a client.
    pub fn check(&self, events: &[Event]) -> Result<(), Violation> {
        let change = events
            .iter()
            .find(|event| event.disk == REPLACEMENT_DISK && matches!(event.actor, Actor::Client { .. }));
        let Some(change) = change else { return Ok(()) };
        let path = String::from_utf8_lossy(&change.mutation.path);
        Err(Violation(format!(
            "{:?} of {path} on another export in the place of the right one ({:?})",
            change.mutation.kind,
            self.accident.map(|(accident, _)| accident)
        )))
    }

    fn begin(&mut self, accident: Accident) {
        if self.accident.is_some() {
            return;
        }
        self.trace.record(BY, format_args!("has an accident: {accident:?}"));
        self.accident = Some((accident, Instant::now() + self.chance.duration(accident.longest())));
        let few = self.chance.below(4);
        match accident {
            Accident::Unreachable => self.server.set_availability(Availability::Unreachable),
            Accident::Down => self.server.set_availability(Availability::Down),
            Accident::ReadOnly => self.server.export(Export {
                read_only: true,
                ..Export::new(EXPORT, DISK)
            }),
            Accident::Withdrawn => self.server.export(Export {
                offered: false,
                ..Export::new(EXPORT, DISK)
            }),
            Accident::NoSpace | Accident::NoInodes | Accident::Quota => self.fill(accident, few),
            Accident::Replaced(_) => {}
        }
    }

    /// Leaves a little of what the disk has.
    fn fill(&self, accident: Accident, little: u64) {
        let Ok(free) = self.server.inspect(DISK, FileSystem::statistics) else {
            return;
        };
        let bytes = free.total - free.available + little * 4096;
        let inodes = free.inodes - free.inodes_free + little;
        self.change_options(|options, _| match accident {
            Accident::NoInodes => options.inodes = inodes,
            Accident::Quota => options.quota = Some(bytes),
            _ => options.capacity = bytes,
        });
    }

    fn change_options(&self, change: impl FnOnce(&mut FileSystemOptions, &FileSystemOptions)) {
        let changed = self.server.administer(DISK, |disk| {
            change(disk.options_mut(), &self.options);
            Ok(())
        });
        debug_assert!(changed.is_ok(), "the disk exists");
    }

    fn restart(&self, restart: Restart) {
        self.trace.record(BY, format_args!("restarts: {restart:?}"));
        self.server.restart(restart);
    }

    /// Changes how many calls meet faults.
    pub fn change_fault_rates(&self) {
        let rate = self.chance.choose(&[0, 500, 3000]).copied().unwrap_or(0);
        self.trace
            .record(BY, format_args!("{rate} of 100,000 calls have each fault"));
        // A renewal of the beacon that is executed after its deadline replaces a newer one of another backend on the export.
        let is_shared = backends(&self.api).len() > 1;
        let max_hold = match self.has_sessions() && !is_shared {
            true => LONG_HOLD,
            false => SHORT_HOLD,
        };
        self.server.with_faults(|faults| {
            faults.set_rates(FaultRates {
                hold: rate,
                max_hold,
                cut_before: rate,
                cut_after: rate,
                lose_reply: rate,
                busy: rate,
                interleave: rate,
                crash: rate / 10,
                latency: Duration::from_millis(2),
                ..FaultRates::default()
            });
        });
    }
}

/// Returns the backends of an export.
fn backends(api: &ApiServer) -> Vec<Arc<Value>> {
    let mut backends = api.all("nfsbackends");
    backends.retain(|backend| text(backend, "/spec/path") == EXPORT && text(backend, "/spec/server") == SERVER);
    backends
}
