//! A cluster with an attacker, a backend that it may use, and another tenant on another backend.

use std::cell::Cell;
use std::fmt;
use std::fs;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use rig::objects::{merge, reference, with_fields};
use rig::{Cluster, Export, NfsOptions, NfsServer, Objects, Operator, OperatorOptions, RunDir};
use serde_json::{Value, json};

use super::delivered_claims::DeliveredClaims;
use crate::support::audit;
use crate::support::shared::{Failure, Test, text};

/// Timeout for a state that comes behind thousands of claims of an attacker. The API server and the binder process one
/// after the other, which takes a minute on an idle machine.
pub const TIMEOUT: Duration = Duration::from_secs(1200);
/// The memory limit of the chart.
const MEMORY_LIMIT: u64 = 64 << 20;
/// Namespaces of the attacker and of the other tenant.
pub const ATTACKER: &str = "attacker";
pub const BYSTANDER: &str = "bystander";
/// Backends, with a class of the same name: the one that the attacker uses, and one that it does not.
pub const ATTACKED: &str = "attacked";
pub const OTHER: &str = "other";
/// The annotation by which the binder requests a volume.
pub const STORAGE_PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
/// Arguments of the operator. With the default times, a machine that stops for seconds makes the operator not ready: it
/// writes nothing before it has renewed its Lease.
const LONG_LEASE: [&str; 4] = ["--lease-duration", "1200s", "--renew-deadline", "600s"];
/// Size of the other tenant's export. It is in memory: the NFS server would wait for a disk and the API server would
/// not, so that the number of requests about others while a volume is created would depend on the disk.
const OTHER_EXPORT_BYTES: u64 = 64 << 20;
/// Maximum number of requests about others between the delivery of a claim and the creation of its volume. A provisioner
/// that puts a claim behind the reports of thousands that wait sends several thousand.
const MAX_BETWEEN: usize = 1000;
/// Maximum number of concurrent requests about claims that are not being provisioned, as the audit log shows it. The
/// operator sends 8. The API server may record the end of a request after the operator has its response and has sent
/// the next one, so there seem to be up to twice as many.
pub const MAX_REPORTS: usize = 2 * 8;
/// Maximum number of claims that report something without an event: none follows a report whose response was lost.
const WITHOUT_EVENT: usize = 20;
/// Time in seconds after which the operator checks a claim that waits once more, and may send the same requests again.
const CHECKED_AGAIN: u64 = 300;
/// Time in seconds after which it checks a claim once more whose report waits for its turn, which it logs again.
const LOGGED_AGAIN: u64 = 30;
/// Pause between two samples of the operator's memory and readiness.
const SAMPLE_PAUSE: Duration = Duration::from_millis(50);

pub struct AttackedCluster {
    pub operator: Operator,
    /// With all permissions.
    pub objects: Objects,
    /// With the attacker's token.
    pub attacker: Objects,
    // Before the cluster, without which the watch would fail.
    delivered: DeliveredClaims,
    pub cluster: Cluster,
    attacked: NfsServer,
    other: NfsServer,
    // Dropped last, because it contains the logs.
    run: RunDir,
}

impl AttackedCluster {
    /// Starts everything. `spec` is merged into the backend that the attacker uses.
    pub async fn start(spec: Value) -> Result<Self, Failure> {
        Self::start_with(spec, &[]).await
    }

    /// Starts everything, the operator with additional arguments.
    pub async fn start_with(spec: Value, args: &[&str]) -> Result<Self, Failure> {
        let run = RunDir::new()?;
        let attacked = NfsServer::start(&run, NfsOptions::default()).await?;
        let in_memory = NfsOptions {
            exports: vec![Export::new("/export").tmpfs(OTHER_EXPORT_BYTES, None)],
            ..NfsOptions::default()
        };
        let other = NfsServer::start(&run, in_memory).await?;
        let mut cluster = Cluster::start(&run).await?;
        // By default, it writes an event about each claim that waits every 15 s, several times what the operator writes.
        let seldom = format!("--pvclaimbinder-sync-period={}s", TIMEOUT.as_secs());
        cluster.restart_binder_with(&[seldom]).await?;
        let objects = Objects::new(cluster.client().await?);
        let attacker = create_attacker(&cluster, &objects, ATTACKER).await?;
        objects.create(&reference("v1", "Namespace", None, BYSTANDER)).await?;
        let delivered = DeliveredClaims::watch(cluster.client().await?, BYSTANDER);
        let mut options = OperatorOptions::new(rig::operator::find_binary()?, Operator::install(&cluster).await?);
        options.memory_limit = Some(MEMORY_LIMIT);
        options.args = LONG_LEASE.iter().chain(args).map(|&arg| arg.to_owned()).collect();
        let operator = Operator::start(&run, options).await?;
        operator.wait_ready().await?;
        let env = Self {
            operator,
            objects,
            attacker,
            delivered,
            cluster,
            attacked,
            other,
            run,
        };
        env.create_backend(ATTACKED, env.attacked.port(), spec).await?;
        env.create_backend(OTHER, env.other.port(), json!({})).await?;
        Ok(env)
    }

    /// Changes the limit of the backend that the attacker uses.
    pub async fn set_limit(&self, limit: &str) -> Test {
        let backend = reference("nfs-operator.io/v1alpha1", "NfsBackend", None, ATTACKED);
        let limit = json!({"spec": {"capacity": {"limit": limit}}});
        self.objects.patch(&backend, limit).await?;
        Ok(())
    }

    /// Creates a ready backend that deletes what is released, and its class.
    async fn create_backend(&self, name: &str, port: u16, spec: Value) -> Test {
        let usual = json!({
            "server": "127.0.0.1", "path": "/export", "nfs": {"port": port}, "archivePolicy": {"onDelete": "Delete"},
        });
        let backend = with_fields(
            reference("nfs-operator.io/v1alpha1", "NfsBackend", None, name),
            json!({ "spec": usual }),
        );
        let backend = self
            .objects
            .create(&with_fields(backend, json!({ "spec": spec })))
            .await?;
        self.objects
            .wait_condition(&backend, "Ready", "True", None, TIMEOUT)
            .await?;
        let fields = json!({
            "provisioner": "nfs-operator.io/nfs", "reclaimPolicy": "Delete", "allowVolumeExpansion": true,
            "parameters": {"backend": name},
        });
        let class = with_fields(reference("storage.k8s.io/v1", "StorageClass", None, name), fields);
        self.objects.create(&class).await?;
        Ok(())
    }

    /// Returns the directory of a volume on disk. `backend` is the one of its class.
    pub fn directory(&self, backend: &str, volume: &Value) -> Result<PathBuf, Failure> {
        let path = Path::new(text(volume, "/spec/nfs/path")).strip_prefix("/export")?;
        Ok(self.export(backend)?.join(path))
    }

    fn export(&self, backend: &str) -> Result<PathBuf, Failure> {
        let server = if backend == OTHER { &self.other } else { &self.attacked };
        Ok(server.data_dir("/export")?)
    }

    /// Returns the directories in the trash of a backend that belonged to these volumes.
    pub fn trash_of(&self, backend: &str, volumes: &[Value]) -> Result<Vec<PathBuf>, Failure> {
        let mut found = Vec::new();
        for folder in fs::read_dir(self.export(backend)?.join(".nfs-operator"))? {
            for entry in fs::read_dir(folder?.path().join("trash")).into_iter().flatten() {
                let entry = entry?;
                let name = entry.file_name();
                let is_of = |volume: &Value| name.to_string_lossy().starts_with(text(volume, "/metadata/name"));
                if volumes.iter().any(is_of) {
                    found.push(entry.path());
                }
            }
        }
        Ok(found)
    }

    /// Creates a claim of the attacker, with its token, and waits until it is Bound. Returns the claim and its volume.
    pub async fn attackers_volume(&self, claim: &Value) -> Result<(Value, Value), Failure> {
        let claim = self.attacker.create(claim).await?;
        let volume = self.bound(&claim).await?;
        Ok((claim, volume))
    }

    /// Waits until a claim is Bound. Returns its volume.
    pub async fn bound(&self, claim: &Value) -> Result<Value, Failure> {
        Ok(self.objects.wait_volume(claim, TIMEOUT).await?)
    }

    /// Creates a volume of the other tenant on the backend that is attacked, with a file. Returns its claim and the volume.
    pub async fn neighbour(&self, name: &str) -> Result<(Value, Value), Failure> {
        let claim = self.objects.create(&claim(BYSTANDER, name, ATTACKED, "1Mi")).await?;
        let volume = self.bound(&claim).await?;
        fs::write(self.directory(ATTACKED, &volume)?.join("data"), name)?;
        Ok((claim, volume))
    }

    /// Deletes volumes of the other tenant, and waits until nothing is left of them.
    pub async fn purge_neighbours(&self, neighbours: &[(Value, Value)]) -> Test {
        for (claim, _) in neighbours {
            self.objects.delete(claim).await?;
        }
        let volumes: Vec<Value> = neighbours.iter().map(|(_, volume)| volume.clone()).collect();
        self.wait_purged(ATTACKED, &volumes).await
    }

    /// Creates claims of the attacker, several at a time. Returns them.
    pub async fn create_claims(&self, claims: impl IntoIterator<Item = Value>) -> Result<Vec<Value>, Failure> {
        let created = stream::iter(claims).map(async |claim| self.attacker.create(&claim).await);
        Ok(created.buffered(32).try_collect().await?)
    }

    /// Runs an attack. Fails if the operator exits, is not ready or takes too much memory meanwhile, or uses more than
    /// the bounds. Prints what it used. `attack` has to wait until the operator has processed everything: what is left
    /// counts as a part of the next attack.
    pub async fn attack(&self, name: &str, bounds: Bounds, attack: impl Future<Output = Test>) -> Test {
        let (before, mut usage, began) = (self.usage()?, Usage::default(), Instant::now());
        let result = tokio::select! {
            result = attack => result,
            failed = self.watch(&mut usage) => Err(failed),
        };
        result.inspect_err(|_| {
            println!("failed: {usage}");
            self.run.keep();
        })?;
        self.operator.wait_ready().await?;
        assert_eq!(self.operator.oom_kills()?.unwrap_or_default(), 0);
        let after = self.usage()?;
        let usage = Usage {
            requests: after.requests - before.requests,
            log_bytes: after.log_bytes - before.log_bytes,
            cpu_seconds: after.cpu_seconds - before.cpu_seconds,
            ..usage
        };
        usage.check(name, &bounds, began.elapsed());
        Ok(())
    }

    /// Returns only if the operator fails.
    async fn watch(&self, usage: &mut Usage) -> Failure {
        loop {
            if let Some(status) = self.operator.exit_status() {
                let kills = self.operator.oom_kills();
                return format!("the operator exited: {status}, kills for memory: {kills:?}").into();
            }
            match self.operator.anonymous_bytes() {
                Ok(bytes) => usage.peak_memory = usage.peak_memory.max(bytes),
                // It has exited.
                Err(_) => continue,
            }
            // Enforced by the kernel, unless the machine has no memory controller.
            if usage.peak_memory > MEMORY_LIMIT {
                return format!("the operator has {} bytes of memory", usage.peak_memory).into();
            }
            let asked = Instant::now();
            match self.operator.probe("/readyz").await {
                Ok(_) => {}
                Err(error) if error.to_string().contains(": 503 ") => return error.into(),
                // On a busy machine a response can take longer than the timeout.
                Err(_) => usage.unanswered += 1,
            }
            usage.slowest_probe = usage.slowest_probe.max(asked.elapsed());
            tokio::time::sleep(SAMPLE_PAUSE).await;
        }
    }

    /// Restarts the operator, and waits until it is ready. Returns the peak of its memory meanwhile, in bytes.
    pub async fn restart(&mut self) -> Result<u64, Failure> {
        self.operator.restart().await?;
        let mut peak = 0;
        // It reads all claims of the attacker first, so this takes longer than other starts.
        let ready = rig::wait::until("the operator to be ready", TIMEOUT, async || {
            self.operator.probe("/readyz").await.map_err(|error| error.to_string())
        });
        let exited = async {
            loop {
                if let Some(status) = self.operator.exit_status() {
                    return status;
                }
                // It may exit at this moment.
                peak = peak.max(self.operator.anonymous_bytes().unwrap_or_default());
                tokio::time::sleep(SAMPLE_PAUSE).await;
            }
        };
        tokio::select! {
            ready = ready => drop(ready?),
            status = exited => {
                let kills = self.operator.oom_kills();
                return Err(format!("the operator exited: {status}, kills for memory: {kills:?}").into());
            }
        }
        assert_eq!(self.operator.oom_kills()?.unwrap_or_default(), 0);
        assert!(peak <= MEMORY_LIMIT, "{peak} bytes");
        Ok(peak)
    }

    /// Waits until this many claims wait for a reason, and the backend was probed since the start of the operator:
    /// before that, claims may report that it was not.
    pub async fn wait_waiting(&self, reason: &str, count: usize) -> Test {
        let probed = format!("nfs_operator_backend_ready{{backend=\"{ATTACKED}\"}} 1.0");
        let series = format!("nfs_operator_claims_waiting{{reason=\"{reason}\"}} ");
        let what = format!("{count} claims to wait for {reason}");
        rig::wait::until(&what, TIMEOUT, async || {
            let metrics = self.operator.metrics().await.map_err(|error| error.to_string())?;
            let is_probed = metrics.lines().any(|line| line == probed);
            let waiting = metrics
                .lines()
                .find_map(|line| line.strip_prefix(&series)?.parse::<usize>().ok());
            match waiting.unwrap_or_default() {
                waiting if waiting >= count && is_probed => Ok(()),
                waiting => Err(format!("{waiting}, backend ready: {is_probed}")),
            }
        })
        .await?;
        Ok(())
    }

    /// Waits until the operator has sent this many events about claims of the attacker since the start of the cluster,
    /// or has logged that it could not. It sends them in the background, after a claim has its condition.
    pub async fn wait_events(&self, count: usize) -> Test {
        let is_event = |request: &Value| {
            (text(request, "/verb"), text(request, "/objectRef/resource")) == ("create", "events")
                && text(request, "/objectRef/namespace") == ATTACKER
        };
        let lost = || {
            let log = fs::read(self.operator.log()).map_err(|error| error.to_string())?;
            let log = String::from_utf8_lossy(&log);
            Ok(log.matches("event dropped: ").count() + log.matches("event not sent: ").count() + WITHOUT_EVENT)
        };
        self.wait_requests("the events to be sent", 0, count, is_event, lost)
            .await
    }

    /// Waits until the operator has written to the status of the attacker's claims this many times since that end of the
    /// audit log.
    pub async fn wait_reports(&self, since: u64, count: usize) -> Test {
        let is_written =
            |request: &Value| is_report(request) && request.pointer("/responseStatus/code") == Some(&json!(200));
        self.wait_requests("the reports to be written", since, count, is_written, || Ok(0))
            .await
    }

    /// Returns the end of the audit log.
    pub fn audit_end(&self) -> Result<u64, Failure> {
        let (_, end) = audit::requests_since(&self.cluster.audit_log(), 0)?;
        Ok(end)
    }

    /// Waits until there are this many requests behind an offset in the audit log, together with those that were lost.
    async fn wait_requests(
        &self,
        what: &str,
        offset: u64,
        count: usize,
        is_counted: impl Fn(&Value) -> bool,
        lost: impl Fn() -> Result<usize, String>,
    ) -> Test {
        let (sent, offset) = (Cell::new(0), Cell::new(offset));
        rig::wait::until(what, TIMEOUT, async || {
            let (requests, end) =
                audit::requests_since(&self.cluster.audit_log(), offset.get()).map_err(|error| error.to_string())?;
            sent.set(sent.get() + requests.iter().filter(|request| is_counted(request)).count());
            offset.set(end);
            match sent.get() + lost()? {
                done if done >= count => Ok(()),
                done => Err(format!("{done} of {count}")),
            }
        })
        .await?;
        Ok(())
    }

    /// Returns the number of requests to the API server about objects of tenants, and how many of them are reads.
    pub fn requests(&self) -> Result<(usize, usize), Failure> {
        let requests = self.caused_requests()?;
        let reads = requests.iter().filter(|request| text(request, "/verb") == "get");
        Ok((requests.len(), reads.count()))
    }

    /// Returns the requests that tenants cause. The others are made in intervals, whatever the attack, and a watch that
    /// ends is established again. A request for which the API server is too busy is repeated until it is not.
    fn caused_requests(&self) -> Result<Vec<Value>, Failure> {
        let mut requests = audit::requests(&self.cluster.audit_log())?;
        requests.retain(|request| {
            let is_of_watch = matches!(text(request, "/verb"), "list" | "watch");
            let is_other = matches!(text(request, "/objectRef/resource"), "leases" | "nfsbackends" | "");
            let code = request.pointer("/responseStatus/code").and_then(Value::as_u64);
            let is_too_busy = code.is_some_and(|code| code == 429 || code >= 500);
            !is_of_watch && !is_other && !is_too_busy
        });
        Ok(requests)
    }

    fn usage(&self) -> Result<Usage, Failure> {
        Ok(Usage {
            requests: self.caused_requests()?.len(),
            log_bytes: fs::metadata(self.operator.log())?.len(),
            cpu_seconds: self.operator.cpu_seconds()?,
            ..Usage::default()
        })
    }

    /// Returns how many writes to the status of the attacker's claims the API server had to process at the same time, at
    /// most.
    pub fn concurrent_reports(&self) -> Result<usize, Failure> {
        self.concurrent_requests(is_report)
    }

    /// Returns how many of these requests of the operator the API server had to process at the same time, at most.
    pub fn concurrent_requests(&self, is_counted: impl Fn(&Value) -> bool) -> Result<usize, Failure> {
        let mut changes = Vec::new();
        for request in audit::requests(&self.cluster.audit_log())? {
            if is_counted(&request) {
                changes.push((text(&request, "/requestReceivedTimestamp").to_owned(), 1_isize));
                changes.push((text(&request, "/stageTimestamp").to_owned(), -1));
            }
        }
        // Of two changes at the same time, the end of a request comes first.
        changes.sort();
        let concurrent = changes.iter().scan(0, |concurrent, (_, change)| {
            *concurrent += change;
            Some(*concurrent)
        });
        Ok(usize::try_from(concurrent.max().unwrap_or_default())?)
    }

    /// Serves the other tenant on its own backend: a claim and a copy of it are bound, and deleted until nothing is left
    /// of them on the export. Prints how long that took.
    ///
    /// The operator's part is checked by the requests that it sends for others from the time at which the API server
    /// delivers the claim to those that watch claims until the operator creates its volume. The rest of the time is that of
    /// the API server, which delivers all claims in the order of their changes, and of the binder.
    pub async fn serve_bystander(&self, round: &str) -> Test {
        let source = claim(BYSTANDER, &format!("{round}-source"), OTHER, "1Mi");
        let (source, volume, claimed) = self.serve(source).await?;
        fs::write(self.directory(OTHER, &volume)?.join("data"), round)?;
        let copy = copy_of(&source, claim(BYSTANDER, &format!("{round}-copy"), OTHER, "1Mi"));
        let (copy, copied_volume, copied) = self.serve(copy).await?;
        let file = self.directory(OTHER, &copied_volume)?.join("data");
        assert_eq!(fs::read_to_string(file)?, round);
        let began = Instant::now();
        let volumes = [volume, copied_volume];
        for claim in [source, copy] {
            self.objects.delete(&claim).await?;
        }
        self.wait_purged(OTHER, &volumes).await?;
        println!(
            "{round}: another tenant's volume: {claimed}; a copy: {copied}; deletion: {:.1?}",
            began.elapsed()
        );
        Ok(())
    }

    /// Waits until a new claim of the other tenant is bound. Returns it with its volume, and what happened until then.
    async fn serve(&self, claim: Value) -> Result<(Value, Value, String), Failure> {
        // The binder adds this annotation, to one claim after the other.
        let annotation = json!({"metadata": {"annotations": {STORAGE_PROVISIONER: "nfs-operator.io/nfs"}}});
        let began = Instant::now();
        let claim = self.objects.create(&with_fields(claim, annotation)).await?;
        let volume = format!("pvc-{}", text(&claim, "/metadata/uid"));
        self.objects
            .wait(
                &reference("v1", "PersistentVolume", None, &volume),
                "to exist",
                TIMEOUT,
                |_| Ok(()),
            )
            .await?;
        let provisioned = began.elapsed();
        let bound = self.bound(&claim).await?;
        let delivered = self.delivered.wait_delivery(&claim).await?;
        // The API server records a request after its effect can be seen.
        let between = rig::wait::until("the requests in the audit log", TIMEOUT, async || {
            let requests = audit::requests(&self.cluster.audit_log()).map_err(|error| error.to_string())?;
            let created = requests
                .iter()
                .position(|request| text(request, "/objectRef/name") == volume);
            let created = created.ok_or_else(|| "no request about the volume".to_owned())?;
            let is_later = |request: &&Value| text(request, "/requestReceivedTimestamp") >= delivered.as_str();
            Ok(requests.iter().take(created).filter(is_later).count())
        })
        .await?;
        assert!(between <= MAX_BETWEEN, "{between} requests about others");
        let took = format!(
            "{provisioned:.1?}, with {between} requests about others between its delivery and the creation of its volume; \
             binding {:.1?}",
            began.elapsed() - provisioned
        );
        Ok((claim, bound, took))
    }

    /// Waits until nothing is left of volumes: neither objects nor data.
    pub async fn wait_purged(&self, backend: &str, volumes: &[Value]) -> Test {
        for volume in volumes {
            self.objects.wait_gone(volume, TIMEOUT).await?;
            assert!(!self.directory(backend, volume)?.exists());
        }
        rig::wait::until("the data to be purged", TIMEOUT, async || {
            let left = self.trash_of(backend, volumes).map_err(|error| error.to_string())?;
            match left.as_slice() {
                [] => Ok(()),
                left => Err(format!("{left:?}")),
            }
        })
        .await?;
        Ok(())
    }

    /// Removes trees whose depth may be a problem for other programs.
    pub fn remove_trees(&self) -> Test {
        let removed = std::process::Command::new("rm")
            .arg("-rf")
            .arg(self.export(ATTACKED)?)
            .status()?;
        assert!(removed.success(), "{}: {removed}", self.run.path().display());
        Ok(())
    }
}

/// What the operator used during an attack.
#[derive(Default)]
struct Usage {
    /// Requests to the API server about objects of tenants.
    requests: usize,
    /// Bytes of its log.
    log_bytes: u64,
    /// CPU time in seconds.
    cpu_seconds: f64,
    /// Peak of its anonymous memory in bytes.
    peak_memory: u64,
    slowest_probe: Duration,
    unanswered: usize,
}

/// Bounds for what the operator uses during an attack. Whatever the attack, they include 200 requests, 64 KiB of log and
/// 10 s of CPU time of a debug build for what others do meanwhile.
///
/// What is not done is checked again after a time, so an attack causes more on a slow machine: the bound for requests
/// is for each [`CHECKED_AGAIN`], and those for the log and the CPU are for each [`LOGGED_AGAIN`]: what burns more than
/// a third of a core without end is detected. Only copies, of which there are few, cause requests more often: they
/// report their progress every 15 s.
pub struct Bounds {
    /// What the attacker made, such as claims.
    pub count: usize,
    /// Requests for each.
    pub requests: usize,
    /// Bytes of log for each.
    pub log_bytes: usize,
    /// CPU time for each, in milliseconds.
    pub cpu_milliseconds: usize,
}

impl Usage {
    /// Prints what was used, and checks that it is within the bounds.
    fn check(&self, attack: &str, bounds: &Bounds, elapsed: Duration) {
        println!("{attack}: {self}, in {elapsed:.1?}");
        let times = |pause: u64| 1 + elapsed.as_secs() / pause;
        let requests = (200 + bounds.count * bounds.requests) as u64 * times(CHECKED_AGAIN);
        let log_bytes = ((64 << 10) + bounds.count * bounds.log_bytes) as u64 * times(LOGGED_AGAIN);
        assert!(
            self.requests as u64 <= requests,
            "{attack}: {self}, at most {requests} requests"
        );
        assert!(
            self.log_bytes <= log_bytes,
            "{attack}: {self}, at most {log_bytes} bytes of log"
        );
        let cpu_milliseconds = (10_000 + bounds.count * bounds.cpu_milliseconds) as u64 * times(LOGGED_AGAIN);
        assert!(
            self.cpu_seconds * 1000.0 <= cpu_milliseconds as f64,
            "{attack}: {self}, at most {cpu_milliseconds} ms of CPU time"
        );
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} requests, {} KiB of log, {:.1} s of CPU time, at most {:.1} MiB; slowest probe {:.1?}, without response {}",
            self.requests,
            self.log_bytes >> 10,
            self.cpu_seconds,
            self.peak_memory as f64 / f64::from(1 << 20),
            self.slowest_probe,
            self.unanswered
        )
    }
}

/// Returns true for a write to the status of a claim of the attacker.
fn is_report(request: &Value) -> bool {
    text(request, "/objectRef/subresource") == "status" && text(request, "/objectRef/namespace") == ATTACKER
}

/// Creates an attacker's namespace, and its ServiceAccount with the ClusterRole `edit` there. Returns its client.
pub async fn create_attacker(cluster: &Cluster, objects: &Objects, namespace: &str) -> Result<Objects, Failure> {
    objects.create(&reference("v1", "Namespace", None, namespace)).await?;
    objects
        .create(&reference("v1", "ServiceAccount", Some(namespace), ATTACKER))
        .await?;
    let binding = json!({
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"kind": "ServiceAccount", "namespace": namespace, "name": ATTACKER}],
    });
    let reference = reference("rbac.authorization.k8s.io/v1", "RoleBinding", Some(namespace), "edit");
    objects.create(&with_fields(reference, binding)).await?;
    let attacker = Objects::new(cluster.service_account_client(namespace, ATTACKER).await?);
    // The role is aggregated in the background.
    rig::wait::until("the attacker to have its permissions", TIMEOUT, async || {
        let like = claim(namespace, "any", ATTACKED, "1Mi");
        attacker.list(&like).await.map_err(|error| error.to_string())
    })
    .await?;
    Ok(attacker)
}

/// Returns a claim, without creating it.
pub fn claim(namespace: &str, name: &str, class: &str, size: &str) -> Value {
    let spec = json!({
        "storageClassName": class,
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": size}},
    });
    with_fields(
        reference("v1", "PersistentVolumeClaim", Some(namespace), name),
        json!({ "spec": spec }),
    )
}

/// Returns a claim with another one as its data source.
pub fn copy_of(source: &Value, mut claim: Value) -> Value {
    let source = json!({"kind": "PersistentVolumeClaim", "name": text(source, "/metadata/name")});
    merge(&mut claim, &json!({"spec": {"dataSource": source}}));
    claim
}

/// Nests directories with a name of 250 bytes in `root`. Each has `beside` empty directories beside the next one.
///
/// The innermost are created first, because a path is limited.
pub fn nest(root: &Path, levels: usize, beside: usize) -> std::io::Result<()> {
    /// As many levels as fit into a path, together with the path of the export.
    const AT_ONCE: usize = 12;
    let (name, new) = ("d".repeat(250), root.join("new"));
    let mut depth = 0;
    while depth < levels {
        let count = AT_ONCE.min(levels - depth);
        let mut innermost = new.clone();
        for level in 0..count {
            if level > 0 {
                innermost.push(&name);
            }
            fs::create_dir(&innermost)?;
            for number in 0..beside {
                fs::create_dir(innermost.join(format!("{number:0250}")))?;
            }
        }
        if depth > 0 {
            fs::rename(root.join(&name), innermost.join(&name))?;
        }
        fs::rename(&new, root.join(&name))?;
        depth += count;
    }
    Ok(())
}
