//! A quota agent that does what the test says: it reads orders from the export's directory on disk, and writes signed
//! heartbeats and reports, as `nfs-operator quota-agent` does.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use export_store::quota::{
    AgentProblem, Heartbeat, LimitState, Order, QuotaFile, QuotaSeal, Report, SizeProblem, Usage, VolumeUsage,
};
use export_store::{RecordsKey, SignatureStatus, parse_export_id};
use k8s_openapi::ByteString;
use parking_lot::Mutex;
use rig::objects::reference;
use rig::{Objects, wait};

use crate::support::shared::{Failure, TIMEOUT};

/// What the agent reports about each order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Nothing,
    InForce,
    Failed,
    /// `InForce`, signed with another key.
    Forged,
    /// `InForce`, about the next order.
    OtherGeneration,
    /// `InForce`, about another directory.
    OtherDirectory,
}

/// The agent. It ends when it is dropped.
pub struct ScriptedAgent {
    pub quota: PathBuf,
    seal: QuotaSeal,
    answer: Arc<Mutex<Answer>>,
    usage: Arc<Mutex<BTreeMap<String, VolumeUsage>>>,
    problem: Arc<Mutex<Option<AgentProblem>>>,
    stopped: Arc<AtomicBool>,
}

impl Drop for ScriptedAgent {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
    }
}

impl ScriptedAgent {
    /// Starts an agent on the export in this directory, whose identity exists or will.
    pub async fn start(objects: &Objects, export: &Path, answer: Answer) -> Result<Self, Failure> {
        let (cluster_id, key) = secret(objects).await?;
        let export_id = wait::until("the identity of the export", TIMEOUT, async || {
            let content = fs::read(export.join(".nfs-operator/identity")).map_err(|error| error.to_string())?;
            parse_export_id(&content).ok().flatten().ok_or("incomplete".to_owned())
        });
        let export_id = export_id.await?;
        let quota = export.join(".nfs-operator").join(&cluster_id).join("quota");
        let agent = Self {
            quota,
            seal: QuotaSeal::new(Some(key.quota_key()), &cluster_id, &export_id),
            answer: Arc::new(Mutex::new(answer)),
            usage: Arc::default(),
            problem: Arc::default(),
            stopped: Arc::default(),
        };
        let forger = QuotaSeal::new(Some(RecordsKey::random().quota_key()), cluster_id, export_id);
        let mut worker = Worker {
            quota: agent.quota.clone(),
            seal: agent.seal.clone(),
            forger,
            answer: Arc::clone(&agent.answer),
            usage: Arc::clone(&agent.usage),
            problem: Arc::clone(&agent.problem),
            reported: BTreeMap::new(),
            changes: 0,
            instance: format!("{:032x}", rand::random::<u128>()),
        };
        let stopped = Arc::clone(&agent.stopped);
        std::thread::spawn(move || {
            let mut sequence = 0;
            while !stopped.load(Ordering::Relaxed) {
                sequence += 1;
                // The folders may not exist yet.
                let _ = worker.work(sequence);
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        Ok(agent)
    }

    /// Reports from now on that sizes are not enforced, and changes no limits.
    pub fn problem(&self, problem: Option<AgentProblem>) {
        *self.problem.lock() = problem;
    }

    pub fn answer(&self, answer: Answer) {
        *self.answer.lock() = answer;
    }

    /// Reports what a volume uses from now on, and waits until that is on the export.
    pub async fn uses(&self, volume: &str, bytes: u64, inodes: u64) -> Result<(), Failure> {
        let usage = VolumeUsage { bytes, inodes };
        self.usage.lock().insert(volume.to_owned(), usage);
        let path = self.quota.join("usage");
        let written = wait::until("the usage", TIMEOUT, async || match fs::read_to_string(&path) {
            Ok(text) if text.contains(volume) => Ok(()),
            other => Err(format!("{other:?}")),
        });
        Ok(written.await?)
    }

    /// Returns the order of a volume that is on the export.
    pub fn order(&self, volume: &str) -> Option<Order> {
        let content = fs::read(self.quota.join("orders").join(volume)).ok()?;
        let (order, status) = self.seal.open::<Order>(volume, &content).ok()?;
        assert_eq!(status, SignatureStatus::Signed, "orders are signed");
        Some(order)
    }

    /// Waits until the order of a volume has a property.
    pub async fn wait_order(&self, volume: &str, is_met: impl Fn(&Order) -> bool) -> Result<Order, Failure> {
        let order = wait::until("an order", TIMEOUT, async || match self.order(volume) {
            Some(order) if is_met(&order) => Ok(order),
            other => Err(format!("{other:?}")),
        });
        Ok(order.await?)
    }

    /// Waits until a volume has no order.
    pub async fn wait_no_order(&self, volume: &str) -> Result<(), Failure> {
        let gone = wait::until("the order to be gone", TIMEOUT, async || match self.order(volume) {
            None => Ok(()),
            Some(order) => Err(format!("{order:?}")),
        });
        Ok(gone.await?)
    }

    /// Waits until a report about the current order of a volume was written.
    pub async fn wait_report(&self, volume: &str) -> Result<(), Failure> {
        let path = self.quota.join("reports").join(volume);
        let written = || fs::metadata(&path).and_then(|found| found.modified()).ok();
        let before = written();
        let reported = wait::until("a report", TIMEOUT, async || match written() {
            now if now != before => Ok(()),
            _ => Err("none".to_owned()),
        });
        Ok(reported.await?)
    }
}

/// Reads the key and the cluster ID from the Secret of the operator.
async fn secret(objects: &Objects) -> Result<(String, RecordsKey), Failure> {
    let secret = reference("v1", "Secret", Some("nfs-operator-system"), "nfs-operator-records");
    let secret = objects.get(&secret).await?.ok_or("there is no Secret")?;
    let field = |name: &str| serde_json::from_value::<ByteString>(secret["data"][name].clone());
    let key: [u8; 32] = field("key")?.0.try_into().map_err(|_| "not a key")?;
    Ok((String::from_utf8(field("cluster-id")?.0)?, RecordsKey::new(&key)))
}

struct Worker {
    quota: PathBuf,
    seal: QuotaSeal,
    forger: QuotaSeal,
    answer: Arc<Mutex<Answer>>,
    usage: Arc<Mutex<BTreeMap<String, VolumeUsage>>>,
    problem: Arc<Mutex<Option<AgentProblem>>>,
    /// The order and the answer that were last reported, by volume.
    reported: BTreeMap<String, (Order, Answer)>,
    /// Number of times that they changed.
    changes: u64,
    instance: String,
}

impl Worker {
    fn work(&mut self, sequence: u64) -> Result<(), Failure> {
        let problem = *self.problem.lock();
        let heartbeat = Heartbeat {
            instance: self.instance.clone(),
            sequence,
            agent_version: "0.0.0-test".to_owned(),
            file_system: "xfs".to_owned(),
            enforced: problem.is_none(),
            inodes_counted: problem.is_none(),
            ignored_orders: 0,
            // Those of the last time.
            reported: self.changes,
            reason: problem,
            message: problem.map(|_| "mount the file system with prjquota".to_owned()),
        };
        write(&self.quota, &self.seal, &heartbeat)?;
        let usage = Usage {
            instance: self.instance.clone(),
            sequence,
            volumes: self.usage.lock().clone(),
        };
        write(&self.quota, &self.seal, &usage)?;
        if problem.is_some() {
            return Ok(());
        }
        for entry in fs::read_dir(self.quota.join("orders"))? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name.starts_with('.') {
                continue;
            }
            let content = fs::read(self.quota.join("orders").join(&name))?;
            let (order, _) = self.seal.open::<Order>(&name, &content)?;
            self.report(&order)?;
        }
        Ok(())
    }

    fn report(&mut self, order: &Order) -> Result<(), Failure> {
        let report = Report {
            volume: order.volume.clone(),
            file_id: order.file_id,
            generation: order.generation,
            project: Some(1000),
            state: LimitState::InForce,
            visit: Vec::new(),
        };
        let reports = self.quota.join("reports");
        let answer = *self.answer.lock();
        let reported = (order.clone(), answer);
        if answer != Answer::Nothing && self.reported.get(&order.volume) != Some(&reported) {
            self.reported.insert(order.volume.clone(), reported);
            self.changes += 1;
        }
        match answer {
            Answer::Nothing => Ok(()),
            Answer::InForce => write(&reports, &self.seal, &report),
            Answer::Forged => write(&reports, &self.forger, &report),
            Answer::Failed => {
                let state = LimitState::Failed {
                    reason: SizeProblem::ProjectsExhausted,
                    message: "no project ID is free".to_owned(),
                };
                write(&reports, &self.seal, &Report { state, ..report })
            }
            Answer::OtherGeneration => {
                let generation = report.generation + 1;
                write(&reports, &self.seal, &Report { generation, ..report })
            }
            Answer::OtherDirectory => {
                let file_id = report.file_id + 1;
                write(&reports, &self.seal, &Report { file_id, ..report })
            }
        }
    }
}

fn write<F: QuotaFile>(folder: &Path, seal: &QuotaSeal, file: &F) -> Result<(), Failure> {
    let draft = folder.join(format!(".draft-{}", file.name()));
    fs::write(&draft, seal.seal(file)?)?;
    fs::rename(draft, folder.join(file.name()))?;
    Ok(())
}
