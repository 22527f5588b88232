use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use export_store::SignatureStatus;
use export_store::layout;
use export_store::quota::{Heartbeat, KeyFile, LimitState, Order, QuotaFile, QuotaFileError, QuotaSeal, Report, Usage};

use crate::error::AgentError;
use crate::folder::{Folder, Stamp};
use crate::plan::{Found, Reported, Wanted};

/// The folder `quota` of one cluster, and what is known of it.
pub(crate) struct Cluster {
    seal: QuotaSeal,
    quota: Folder,
    pub orders: Folder,
    reports: Folder,
    /// Every order file was looked at since the folder was opened, and since it could not be listed.
    is_listed: bool,
    /// Every order file, as of when it was read last.
    files: BTreeMap<Arc<str>, Stamp>,
    /// Order files that are not believed.
    ignored: BTreeSet<String>,
    pub volumes: BTreeMap<Arc<str>, Volume>,
    /// The reports that are believed, as they are on the export.
    pub written: BTreeMap<Arc<str>, Reported>,
    /// Number of reports that say how an order ended.
    reported: u64,
    /// That number in the last heartbeat; `None` before the first one.
    announced: Option<u64>,
    /// Why the orders cannot be listed. What is in force stays.
    problem: Option<String>,
}

/// A volume with an order that was believed.
pub(crate) struct Volume {
    pub order: Wanted,
    /// The directory; `None` until it was looked up.
    pub found: Option<Found>,
}

impl Cluster {
    /// Opens the folder of a cluster, and creates it if the operator uses the export. Returns `None` for other folders.
    pub fn open(reserved: &Folder, id: &str, export_id: &str, keys: &KeyFile) -> Result<Option<Self>, AgentError> {
        let Some(folder) = reserved.open(id)?.filter(|_| layout::cluster(id).is_ok()) else {
            return Ok(None);
        };
        if folder.open(layout::RECORDS)?.is_none() {
            return Ok(None);
        }
        let quota = folder.ensure(layout::QUOTA)?;
        let orders = quota.ensure(layout::QUOTA_ORDERS)?;
        let reports = quota.ensure(layout::QUOTA_REPORTS)?;
        let mut cluster = Self {
            seal: seal(id, export_id, keys),
            quota,
            orders,
            reports,
            is_listed: false,
            files: BTreeMap::new(),
            ignored: BTreeSet::new(),
            volumes: BTreeMap::new(),
            written: BTreeMap::new(),
            reported: 0,
            announced: None,
            problem: None,
        };
        cluster.read_reports()?;
        Ok(Some(cluster))
    }

    /// Reports whether the key file has a key of the cluster. Without one, no order is believed.
    pub fn has_key(&self) -> bool {
        self.seal.has_key()
    }

    /// Reports whether opening the cluster again would give the same folder and keys.
    pub fn is_current(&self, reserved: &Folder, id: &str, export_id: &str, keys: &KeyFile) -> bool {
        let open = |folder: &Folder, name: &str| folder.open(name).ok().flatten();
        let Some(quota) = open(reserved, id).and_then(|folder| open(&folder, layout::QUOTA)) else {
            return false;
        };
        let is_there = |name: &str, own: &Folder| open(&quota, name).is_some_and(|found| found.is_same(own));
        self.seal == seal(id, export_id, keys)
            && quota.is_same(&self.quota)
            && is_there(layout::QUOTA_ORDERS, &self.orders)
            && is_there(layout::QUOTA_REPORTS, &self.reports)
    }

    /// Counts reports on from those of the same cluster before it was opened again.
    pub fn continue_from(&mut self, former: &Self) {
        self.reported = former.reported;
        self.announced = former.announced;
    }

    fn read_reports(&mut self) -> Result<(), AgentError> {
        if !self.has_key() {
            return Ok(());
        }
        for name in self.reports.names()? {
            let Some((_, bytes)) = self.reports.read(&name, Report::MAX_LEN)? else {
                continue;
            };
            match self.seal.open::<Report>(&name, &bytes) {
                Ok((report, SignatureStatus::Signed)) => {
                    // With the current key: the previous one is about to be removed.
                    let sealed = self.sealed(&report)?;
                    if sealed != bytes
                        && let Err(error) = self.reports.write(&name, &sealed)
                    {
                        tracing::warn!(volume = name, "cannot sign a report with the current key: {error}");
                    }
                    self.written.insert(name.into(), report.into());
                }
                Ok(_) => tracing::warn!(volume = name, "ignoring a report that this agent did not sign"),
                Err(error) => tracing::warn!(volume = name, "ignoring a report: {error}"),
            }
        }
        Ok(())
    }

    /// Reads the orders that changed, of those that are given; `None` for all. Orders that cannot be read hinder no others,
    /// of this cluster or another one.
    pub fn read_orders(&mut self, among: Option<&BTreeSet<String>>) {
        if !self.has_key() {
            return;
        }
        let names = match among.filter(|_| self.is_listed) {
            Some(names) => self.orders.check_exists().map(|()| self.retain_orders(names)),
            None => self.orders.names().map(|names| self.retain_all_orders(names)),
        };
        self.is_listed = names.is_ok();
        let names = match names {
            Ok(names) => names,
            Err(error) => {
                let problem = error.to_string();
                if self.problem.as_ref() != Some(&problem) {
                    tracing::warn!("the orders of a cluster are not enforced: {problem}; what is in force stays");
                }
                self.problem = Some(problem);
                return;
            }
        };
        self.problem = None;
        for name in names {
            let stamp = self.orders.stamp(&name).ok().flatten();
            if stamp.is_some() && self.files.get(name.as_str()) == stamp.as_ref() {
                continue;
            }
            match self.read_order(&name) {
                Ok(order) => {
                    self.ignored.remove(&name);
                    self.accept(self.shared(&name), order);
                }
                Err(why) => {
                    if self.ignored.insert(name.clone()) || stamp.is_some() {
                        tracing::warn!(volume = name, "ignoring an order: {why}; what is in force stays");
                    }
                }
            }
        }
    }

    /// Forgets the orders that are not in a list. Returns the list.
    fn retain_all_orders(&mut self, names: Vec<String>) -> BTreeSet<String> {
        let names: BTreeSet<String> = names.into_iter().collect();
        self.files.retain(|name, _| names.contains(&**name));
        self.ignored.retain(|name| names.contains(name));
        self.volumes.retain(|name, _| names.contains(&**name));
        names
    }

    /// Forgets the orders that are gone, of those that are given. Returns the others.
    fn retain_orders(&mut self, names: &BTreeSet<String>) -> BTreeSet<String> {
        let is_gone = |name: &&String| matches!(self.orders.entry(name), Ok(None));
        let (gone, there): (Vec<&String>, Vec<&String>) = names.iter().partition(is_gone);
        for name in gone {
            self.files.remove(name.as_str());
            self.ignored.remove(name);
            self.volumes.remove(name.as_str());
        }
        there.into_iter().cloned().collect()
    }

    fn read_order(&mut self, name: &str) -> Result<Wanted, String> {
        let read = self
            .orders
            .read(name, Order::MAX_LEN)
            .map_err(|error| error.to_string())?;
        let (stamp, bytes) = read.ok_or("it is not a regular file")?;
        self.files.insert(self.shared(name), stamp);
        self.believed(name, &bytes)
    }

    fn believed(&self, name: &str, bytes: &[u8]) -> Result<Wanted, String> {
        let opened = self.seal.open::<Order>(name, bytes);
        let (order, status) = opened.map_err(|error: QuotaFileError| error.to_string())?;
        match status {
            SignatureStatus::Signed => {}
            SignatureStatus::Unsigned => return Err("it is not signed".to_owned()),
            SignatureStatus::Forged => return Err("its signature is invalid".to_owned()),
        }
        match self.volumes.get(name) {
            Some(known) if known.order.generation > order.generation => Err(format!(
                "generation {} was replaced by {}",
                order.generation, known.order.generation
            )),
            _ => Ok(order.into()),
        }
    }

    /// Returns the name of a volume, as other things that are known of it have it.
    fn shared(&self, name: &str) -> Arc<str> {
        let written = self.written.get_key_value(name).map(|(name, _)| name);
        let known = written.or_else(|| self.files.get_key_value(name).map(|(name, _)| name));
        known.map_or_else(|| name.into(), Arc::clone)
    }

    fn accept(&mut self, name: Arc<str>, order: Wanted) {
        let same = |known: &Volume| known.order.directory == order.directory && known.order.file_id == order.file_id;
        let found = self.volumes.remove(&name).filter(same).and_then(|known| known.found);
        self.volumes.insert(name, Volume { order, found });
    }

    /// Returns the reports of volumes without an order, or with one for another directory. Each order that is missing is
    /// looked up once more: a list may miss a file.
    pub fn released(&self) -> impl Iterator<Item = (&Arc<str>, &Reported)> {
        let is_gone = |name: &str| !self.has_order(name) && matches!(self.orders.entry(name), Ok(None));
        let reports = self.written.iter().filter(|_| self.problem.is_none());
        reports.filter(move |(name, report)| self.is_replaced(name, report) || is_gone(name))
    }

    /// Reports whether a newer order of the volume is for another directory than the report.
    pub fn is_replaced(&self, name: &str, report: &Reported) -> bool {
        self.volumes
            .get(name)
            .is_some_and(|volume| volume.order.generation > report.generation && volume.order.file_id != report.file_id)
    }

    /// Returns why the orders cannot be listed.
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Returns the projects of volumes whose order cannot be believed now: what is in force for them stays.
    pub fn held(&self) -> impl Iterator<Item = u32> {
        let is_unknown = self.problem.is_some();
        let written = self.written.iter();
        let known =
            written.filter(move |(name, _)| (is_unknown || self.has_order(name)) && !self.volumes.contains_key(*name));
        known.filter_map(|(_, report)| report.project)
    }

    fn has_order(&self, volume: &str) -> bool {
        self.volumes.contains_key(volume) || self.ignored.contains(volume)
    }

    /// Writes a report, if it differs from the one on the export.
    pub fn write_report(&mut self, volume: &Arc<str>, report: Reported) -> Result<(), AgentError> {
        if self.written.get(volume) == Some(&report) {
            return Ok(());
        }
        self.write(&self.reports, &report.of(volume))?;
        self.reported += u64::from(matches!(report.state, LimitState::Failed { .. }));
        self.written.insert(Arc::clone(volume), report);
        Ok(())
    }

    /// Writes reports of limits that are in force, once these limits and the projects of their directories are on stable
    /// storage. A report that a crash of the machine leaves empty is written again by the next process.
    pub fn write_in_force(&mut self, reports: Vec<(Arc<str>, Reported)>) -> Result<(), AgentError> {
        let mut new = Vec::new();
        for (volume, report) in reports {
            if self.written.get(&volume) != Some(&report) {
                self.reports.draft(&volume, &self.sealed(&report.of(&volume))?)?;
                new.push((volume, report));
            }
        }
        if new.is_empty() {
            return Ok(());
        }
        // Once for all of them: on a disk, each wait takes milliseconds.
        self.reports.sync()?;
        for (volume, report) in new {
            self.reports.publish(&volume)?;
            self.reported += 1;
            self.written.insert(volume, report);
        }
        Ok(())
    }

    /// Removes the report of a volume. If it has an order, its next report replaces the one on the export.
    pub fn release(&mut self, volume: &str) -> Result<(), AgentError> {
        if !self.volumes.contains_key(volume) {
            self.reports.remove(volume)?;
        }
        self.written.remove(volume);
        Ok(())
    }

    /// Reports whether an operator that reads the last heartbeat does not know of the last report.
    pub fn has_news(&self) -> bool {
        self.announced.is_some_and(|announced| announced != self.reported)
    }

    /// Writes a heartbeat with the numbers of ignored orders and of reports.
    pub fn write_heartbeat(&mut self, heartbeat: Heartbeat) -> Result<(), AgentError> {
        let heartbeat = Heartbeat {
            ignored_orders: self.ignored.len() as u64,
            reported: self.reported,
            ..heartbeat
        };
        self.write(&self.quota, &heartbeat)?;
        self.announced = Some(self.reported);
        Ok(())
    }

    /// Writes the usage.
    pub fn write_usage(&self, usage: &Usage) -> Result<(), AgentError> {
        self.write(&self.quota, usage)
    }

    fn write<F: QuotaFile>(&self, folder: &Folder, file: &F) -> Result<(), AgentError> {
        folder.write(file.name(), &self.sealed(file)?)
    }

    fn sealed<F: QuotaFile>(&self, file: &F) -> Result<Vec<u8>, AgentError> {
        self.seal.seal(file).map_err(|error| AgentError::Export {
            action: format!("write the file {}", file.name()),
            source: std::io::Error::other(error),
        })
    }
}

/// Returns what signs and verifies the files of a cluster.
fn seal(id: &str, export_id: &str, keys: &KeyFile) -> QuotaSeal {
    QuotaSeal::new(keys.key(id).cloned(), id, export_id)
}
