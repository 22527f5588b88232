//! The state of a server: its disks, its clients, and what it remembers of both.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use nfs_client::Time;
use tokio::time::Instant;

use super::events::{Actor, Event};
use super::exports::{Namespace, Place};
use super::faults::Faults;
use super::file_system::{Content, FileSystem, Object};
use super::status::{NfsResult, NfsStat};
use super::v4::ClientTable;

/// Properties of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerOptions {
    /// Minor versions of NFSv4.
    pub minor_versions: BTreeSet<u32>,
    /// Whether it supports NFSv3.
    pub v3: bool,
    /// Lease time.
    pub lease: Duration,
    /// Grace period after a restart that loses the clients' state.
    pub grace: Duration,
    /// Slots of a session.
    pub slots: u32,
    /// Maximum number of operations in a COMPOUND of a session.
    pub max_operations: u32,
    /// Maximum size of data in a READ or WRITE.
    pub max_transfer: u32,
    /// Maximum size of a reply in a reply cache.
    pub max_cached: u32,
    /// Port of MOUNT.
    pub mount_port: u16,
    /// Whether it supports COPY, CLONE and SEEK.
    pub copy_offload: bool,
    /// Whether it accepts AUTH_SYS; otherwise every call fails, as with `sec=krb5`.
    pub auth_sys: bool,
    /// Time at the start of the simulation, in seconds since 1970.
    pub epoch: i64,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            minor_versions: [0, 1, 2].into(),
            v3: true,
            lease: Duration::from_secs(90),
            grace: Duration::from_secs(90),
            slots: 64,
            max_operations: 50,
            max_transfer: 1 << 20,
            max_cached: 2048,
            mount_port: 20_048,
            copy_offload: true,
            auth_sys: true,
            epoch: 1_700_000_000,
        }
    }
}

/// The state of a server.
#[derive(Debug)]
pub struct State {
    /// Its properties.
    pub options: ServerOptions,
    /// Its disks and exports.
    pub namespace: Namespace,
    /// Clients, sessions and opens.
    pub clients: ClientTable,
    /// Faults.
    pub faults: Faults,
    /// Number of starts: calls of an earlier life are not executed.
    pub boot: u32,
    /// End of the grace period.
    pub grace_until: Option<Instant>,
    /// Files with data that is not on stable storage, as they were when all of it was.
    unstable: BTreeMap<(String, Object), Content>,
    events: Vec<Event>,
    next_event: u64,
    origin: Instant,
    /// Time since `origin` at the last call.
    clock: Duration,
}

impl State {
    /// Returns the state of a server without disks.
    pub fn new(options: ServerOptions, seed: u64) -> Self {
        Self {
            options,
            namespace: Namespace::default(),
            clients: ClientTable::default(),
            faults: Faults::new(seed),
            boot: 1,
            grace_until: None,
            unstable: BTreeMap::new(),
            events: Vec::new(),
            next_event: 0,
            origin: Instant::now(),
            clock: Duration::ZERO,
        }
    }

    /// The server's wall clock, which moves on with each call: virtual time stands still while anything is executed.
    fn tick(&mut self) -> Time {
        self.clock = self.origin.elapsed().max(self.clock + Duration::from_nanos(1));
        Time {
            seconds: self.options.epoch.saturating_add_unsigned(self.clock.as_secs()),
            nanos: self.clock.subsec_nanos(),
        }
    }

    /// Whether only reclaims are accepted.
    pub fn in_grace(&self) -> bool {
        self.grace_until.is_some_and(|end| Instant::now() < end)
    }

    /// Write verifier: another one after each start.
    pub fn write_verifier(&self) -> [u8; 8] {
        u64::from(self.boot).to_be_bytes()
    }

    /// Uses a disk, and records what is changed on it.
    pub fn with_disk<T>(
        &mut self,
        actor: &Actor,
        disk: &str,
        work: impl FnOnce(&mut FileSystem) -> NfsResult<T>,
    ) -> NfsResult<T> {
        let now = self.tick();
        let file_system = self.namespace.disk_mut(disk)?;
        file_system.set_now(now);
        let result = work(file_system);
        for mutation in file_system.take_mutations() {
            self.events.push(Event {
                number: self.next_event,
                time: now,
                actor: actor.clone(),
                disk: disk.to_owned(),
                mutation,
            });
            self.next_event += 1;
        }
        result
    }

    /// The same for a change through an export; fails with ROFS if the export is read-only.
    pub fn change<T>(
        &mut self,
        actor: &Actor,
        export: u32,
        disk: &str,
        work: impl FnOnce(&mut FileSystem) -> NfsResult<T>,
    ) -> NfsResult<T> {
        if self.namespace.export(export)?.read_only {
            return Err(NfsStat::ROFS);
        }
        self.with_disk(actor, disk, work)
    }

    /// Returns the events since the last call.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Remembers a file's content before its first unstable write.
    pub fn before_unstable_write(&mut self, place: &Place) -> NfsResult<()> {
        let disk = self.namespace.disk(&place.disk)?;
        if let Some(content) = disk.inode(place.ino)?.content() {
            let key = (place.disk.clone(), disk.object(place.ino)?);
            self.unstable.entry(key).or_insert_with(|| content.clone());
        }
        Ok(())
    }

    /// Brings a file's data to stable storage.
    pub fn commit(&mut self, place: &Place) -> NfsResult<()> {
        let object = self.namespace.disk(&place.disk)?.object(place.ino)?;
        self.unstable.remove(&(place.disk.clone(), object));
        Ok(())
    }

    /// Starts again after a crash: unstable data is lost, and with `lose_clients` all clients, sessions and opens.
    pub fn restart(&mut self, lose_clients: bool) {
        self.boot += 1;
        for ((disk, object), content) in std::mem::take(&mut self.unstable) {
            // A file that was removed since has nothing to lose.
            let _ = self.with_disk(&Actor::Administrator, &disk, |disk| {
                disk.resolve(object)?;
                disk.set_content(object.ino, content)
            });
        }
        if lose_clients {
            let opens = self.clients.forget_all();
            self.close(opens);
            self.grace_until = Some(Instant::now() + self.options.grace);
        } else {
            self.clients.abandon_calls();
        }
    }

    /// Drops clients whose lease expired, with their opens.
    pub fn expire_leases(&mut self) {
        let opens = self.clients.expire();
        self.close(opens);
    }

    /// Ends opens: an object without a name is freed with its last one.
    pub fn close(&mut self, opens: Vec<(String, Object)>) {
        for (disk, object) in opens {
            let _ = self.with_disk(&Actor::Administrator, &disk, |disk| {
                let ino = disk.resolve(object)?;
                disk.close(ino);
                Ok(())
            });
        }
    }
}
