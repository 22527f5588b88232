//! Situations that chance brings about seldom or never. One of them is arranged at the end of a run: it checks what the
//! operator must or must not do, and that everything is settled afterwards.

mod backends;
mod classes;
mod copies;
mod disk;
mod exports;
mod late;
mod placement;
mod quotas;
mod restores;
mod retention;
mod volumes;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{Kind, STEP, World};
use crate::actors::users::NAMESPACES;
use crate::actors::{archives, namespaces};
use crate::api_server::Key;
use crate::nfs_server::faults::CallSummary;
use crate::nfs_server::file_system::{Caller, Ino};
use crate::nfs_server::status::NfsResult;
use crate::nfs_server::{Fault, FaultRates, FileSystem};
use crate::objects::{backend_path, claim_path, text, uid, volume_path};
use crate::oracle::{DISK, OWN_FOLDER, Violation};

/// Time in which the operator has to do what nothing prevents.
const DONE: Duration = Duration::from_secs(300);
/// Time in which it does nothing of what it may not do.
const OBSERVED: Duration = Duration::from_secs(120);
/// Time between two looks for it.
const LOOK: Duration = Duration::from_secs(1);
/// Time between two looks at a change in progress.
const MOMENT: Duration = Duration::from_millis(1);
/// Time for which a call is held: less than its deadline.
const HELD: Duration = Duration::from_secs(5);
/// The same, for calls that are executed once nobody waits for them any more.
const LONG_HELD: Duration = Duration::from_secs(8);
/// Number of situations.
const CASES: u64 = 48;
/// The backend that is used.
const BACKEND: &str = "main";
/// Namespace of the claims.
const NAMESPACE: &str = NAMESPACES[0];
/// Another namespace.
const OTHER_NAMESPACE: &str = NAMESPACES[1];
/// Name of a claim.
const CLAIM: &str = "special";

/// Returns the object at a path on a disk, as its administrator finds it.
fn find(disk: &FileSystem, path: &str) -> NfsResult<Ino> {
    path.split('/')
        .filter(|name| !name.is_empty())
        .try_fold(disk.root(), |directory, name| {
            disk.lookup(&Caller::ROOT, directory, name.as_bytes())
        })
}

fn broken(cause: impl Into<String>) -> Violation {
    Violation(cause.into())
}

/// The volume of a claim.
#[derive(Debug, Clone)]
struct Volume {
    name: String,
    /// Its directory on the export.
    directory: String,
}

impl World {
    /// Arranges one of the situations.
    pub(super) async fn have_special_case(&mut self) -> Result<(), Violation> {
        if !self.scenario.has(Kind::FollowUps) {
            return match self.scenario.case {
                None => Ok(()),
                Some(_) => Err(broken("a CASE is arranged only with FOLLOW_UPS")),
            };
        }
        namespaces::create_missing(&self.api, &self.trace);
        self.reset_backend().await?;
        let by_chance = self.special_cases.below(CASES);
        let case = self.scenario.case.unwrap_or(by_chance);
        self.trace.record("world", format_args!("special case {case}"));
        match case {
            0 => self.open_own_folder().await?,
            1 => self.move_into_trash().await?,
            2 => self.record_in_another_cluster().await?,
            3 => self.record_in_another_cluster_meanwhile().await?,
            4 => self.use_another_name_of_the_server().await?,
            5 => self.move_out_of_trash().await?,
            6 => self.share_a_directory().await?,
            7 => self.name_the_directory_of_another_namespace().await?,
            8 => self.give_each_volume_a_group().await?,
            9 => self.move_a_backup().await?,
            10 => self.use_a_long_name().await?,
            11 => self.use_the_name_of_an_archive().await?,
            12 => self.refuse_modes().await?,
            13 => self.remove_a_volume_by_hand().await?,
            14 => self.mark_as_released().await?,
            15 => self.edit_a_volume().await?,
            16 => self.edit_the_claim_of_a_volume().await?,
            17 => self.delete_the_source_of_a_copy().await?,
            18 => self.copy_the_snapshot_of_another_claim().await?,
            19 => self.hold_an_expired_archive().await?,
            20 => self.replace_a_directory().await?,
            21 => self.replace_a_directory_with_an_empty_one().await?,
            22 => self.roll_back_during_a_reclaim().await?,
            23 => self.delete_the_backend_that_knows_the_beacon().await?,
            24 => self.restore_a_reclaimed_volume().await?,
            25 => self.retain_a_deleted_volume().await?,
            26 => self.change_a_policy_unnoticed().await?,
            27 => self.give_a_volume_away_during_its_reclaim().await?,
            28 => self.create_a_directory_late().await?,
            29 => self.hand_over_while_a_directory_is_created().await?,
            30 => self.create_a_volume_late().await?,
            31 => self.fail_to_renew_the_lease().await?,
            32 => self.use_a_subdirectory().await?,
            33 => self.reuse_a_fileid().await?,
            34 => self.let_many_claims_fail().await?,
            35 => self.patch_a_new_backend_constantly().await?,
            36 => self.create_the_object_of_an_archive_late().await?,
            37 => self.archive_the_older_volume_last().await?,
            38 => self.restore_the_volume_of_an_archive().await?,
            39 => self.delete_an_archive_without_status().await?,
            40 => self.change_the_policy_of_a_released_archive().await?,
            41 => self.release_an_archive_during_a_restore().await?,
            42 => self.give_a_volume_to_a_namespace_that_is_gone().await?,
            43 => self.rename_during_a_copy().await?,
            44 => self.expand_without_a_report().await?,
            // etcd is older than what the oracle has seen.
            45 => return self.restore_etcd_after_the_last_backend().await,
            46 => self.rename_the_server().await?,
            47 => self.bind_late().await?,
            _ => {
                return Err(broken(format!(
                    "there is no case {case}: they have numbers below {CASES}"
                )));
            }
        }
        self.users.delete_all();
        self.settle().await?;
        archives::delete_all(&self.api, &self.trace);
        self.settle().await
    }

    /// Lets the backend serve claims with the policy of their classes.
    async fn reset_backend(&mut self) -> Result<(), Violation> {
        let spec = json!({"suspend": false,
            "archivePolicy": {"onDelete": "Archive", "retention": null, "keepLast": null}});
        self.change_backend(&spec).await
    }

    /// Changes the backend, and waits until the operator has noticed it: its watch may be slow.
    async fn change_backend(&mut self, spec: &Value) -> Result<(), Violation> {
        self.patch_backend(spec)?;
        self.wait_until("a changed backend is probed", |world| {
            let backend = world.object("nfsbackends", ("", BACKEND))?;
            let generation = |field| backend.pointer(field).and_then(Value::as_i64);
            (generation("/status/observedGeneration") == generation("/metadata/generation")).then_some(())
        })
        .await
    }

    /// Changes the backend.
    fn patch_backend(&self, spec: &Value) -> Result<(), Violation> {
        self.administer("PATCH", &backend_path(BACKEND), &json!({"spec": spec}))
    }

    /// Sends a request that is not refused.
    fn administer(&self, method: &str, path: &str, body: &Value) -> Result<(), Violation> {
        self.trace.record("admin", format_args!("{method} {path} {body}"));
        let done = self.api.call("admin", method, path, body).map(drop);
        done.map_err(|refusal| broken(format!("{method} {path}: {}", refusal.status)))
    }

    /// Creates a class on the backend.
    fn create_class(&self, name: &str, parameters: &[(&str, &str)]) -> Result<(), Violation> {
        let parameters: serde_json::Map<String, Value> = parameters
            .iter()
            .map(|(name, value)| ((*name).to_owned(), json!(value)))
            .collect();
        self.create_class_with(name, &json!({"parameters": parameters}))
    }

    /// Creates a class with these fields.
    fn create_class_with(&self, name: &str, fields: &Value) -> Result<(), Violation> {
        let mut class = json!({"metadata": {"name": name}, "provisioner": "nfs-operator.io/nfs"});
        if let (Some(class), Some(fields)) = (class.as_object_mut(), fields.as_object()) {
            class.extend(fields.clone());
        }
        self.administer("POST", "/apis/storage.k8s.io/v1/storageclasses", &class)
    }

    /// Creates a claim of a class on the backend, with this in its spec.
    fn create_claim(
        &self,
        (namespace, name): (&str, &str),
        class: &str,
        annotations: &[(&str, &str)],
        more: &Value,
    ) -> Result<(), Violation> {
        let mut all = json!({"nfs-operator.io/backend": BACKEND});
        let mut spec = json!({"accessModes": ["ReadWriteMany"], "storageClassName": class,
            "resources": {"requests": {"storage": "256Mi"}}});
        if let Some(all) = all.as_object_mut() {
            all.extend(
                annotations
                    .iter()
                    .map(|(name, value)| ((*name).to_owned(), json!(value))),
            );
        }
        if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
            spec.extend(more.clone());
        }
        self.administer(
            "POST",
            &format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims"),
            &json!({"metadata": {"name": name, "annotations": all}, "spec": spec}),
        )
    }

    fn patch_volume(&self, volume: &Volume, patch: &Value) -> Result<(), Violation> {
        self.administer("PATCH", &volume_path(&volume.name), patch)
    }

    /// Sets the reclaim policy of a volume.
    fn set_reclaim_policy(&self, volume: &Volume, policy: &str) -> Result<(), Violation> {
        self.patch_volume(volume, &json!({"spec": {"persistentVolumeReclaimPolicy": policy}}))
    }

    /// Gives a volume to a claim of a class, which is created for it.
    async fn give_volume(&mut self, volume: &Volume, claim: (&str, &str), class: &str) -> Result<(), Violation> {
        self.create_claim(claim, class, &[], &json!({"volumeName": volume.name}))?;
        self.patch_volume(volume, &json!({"spec": {"claimRef": null}}))?;
        self.wait_until_bound(claim).await.map(drop)
    }

    fn delete_claim(&self, (namespace, name): (&str, &str)) -> Result<(), Violation> {
        self.administer("DELETE", &claim_path(namespace, name), &json!({}))
    }

    fn object(&self, plural: &'static str, (namespace, name): (&str, &str)) -> Option<Arc<Value>> {
        self.api.get(&Key {
            plural,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    }

    fn claim(&self, claim: (&str, &str)) -> Option<Arc<Value>> {
        self.object("persistentvolumeclaims", claim)
    }

    /// Returns the name that the volume of a claim gets.
    fn volume_name(&self, claim: (&str, &str)) -> String {
        let claim = self.claim(claim);
        format!("pvc-{}", claim.as_deref().map_or("", uid))
    }

    /// Returns the path of the record of a volume on the export.
    fn record_of(&self, volume: &Volume) -> Result<String, Violation> {
        Ok(format!("{}/records/{}", self.cluster_folder()?, volume.name))
    }

    /// Returns the directory of an archive, or nothing as long as it has none.
    fn archived_directory(&self, name: &str) -> String {
        let archive = self.object("nfsarchives", ("", name));
        archive.map_or_else(String::new, |archive| text(&archive, "/status/directory").to_owned())
    }

    /// Returns the volume of a claim that is bound.
    fn volume_of(&self, claim: (&str, &str)) -> Option<Volume> {
        let claim = self
            .claim(claim)
            .filter(|claim| text(claim, "/status/phase") == "Bound")?;
        let volume = self.object("persistentvolumes", ("", text(&claim, "/spec/volumeName")))?;
        let (_, directory) = self.sites.of_volume(&volume)?;
        Some(Volume {
            name: crate::objects::name(&volume).to_owned(),
            directory: directory.to_owned(),
        })
    }

    /// Creates a claim, and returns its volume once it is bound.
    async fn provision(&mut self, claim: (&str, &str), class: &str) -> Result<Volume, Violation> {
        self.create_claim(claim, class, &[], &json!({}))?;
        self.wait_until_bound(claim).await
    }

    /// Waits until a claim is bound. Returns its volume.
    async fn wait_until_bound(&mut self, claim: (&str, &str)) -> Result<Volume, Violation> {
        self.wait_until(&format!("claim {}/{} is bound", claim.0, claim.1), |world| {
            world.volume_of(claim)
        })
        .await
    }

    /// Creates a claim, and lets a pod write a file into its volume.
    async fn provision_with_file(&mut self, claim: (&str, &str), class: &str) -> Result<Volume, Violation> {
        let volume = self.provision(claim, class).await?;
        self.write_file(claim).await?;
        Ok(volume)
    }

    /// Creates a claim with a file, and deletes it. Returns its former volume, whose directory is archived.
    async fn provision_archive(&mut self, claim: (&str, &str)) -> Result<Volume, Violation> {
        let volume = self.provision_with_file(claim, "archived").await?;
        self.delete_claim(claim)?;
        self.settle().await?;
        Ok(volume)
    }

    async fn write_file(&mut self, claim: (&str, &str)) -> Result<(), Violation> {
        let object = self.claim(claim).map(|claim| uid(&claim).to_owned());
        let written = self
            .nodes
            .write(|uid| object.as_deref() != Some(uid))
            .map_err(Violation)?;
        if let Some(written) = written {
            self.oracle.written(written);
        }
        self.pass(LOOK).await
    }

    /// Waits until an object of the whole cluster is gone.
    async fn wait_until_gone(&mut self, plural: &'static str, name: &str) -> Result<(), Violation> {
        self.wait_until(&format!("{name} of {plural} is gone"), |world| {
            world.object(plural, ("", name)).is_none().then_some(())
        })
        .await
    }

    /// Waits for something.
    async fn wait_until<T>(&mut self, what: &str, found: impl Fn(&Self) -> Option<T>) -> Result<T, Violation> {
        let end = Instant::now() + DONE;
        loop {
            if let Some(found) = found(self) {
                return Ok(found);
            }
            if Instant::now() >= end {
                return Err(broken(format!("not within {} s: {what}", DONE.as_secs())));
            }
            self.pass(LOOK).await?;
        }
    }

    /// Checks for a while that something stays so.
    async fn check_that(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) -> Result<(), Violation> {
        let end = Instant::now() + OBSERVED;
        while Instant::now() < end {
            self.pass(LOOK).await?;
            if !is_so(self) {
                return Err(broken(what));
            }
        }
        Ok(())
    }

    /// Lets time pass without the oracle, which misses a directory.
    async fn pass_without_oracle(&mut self, duration: Duration) {
        let end = Instant::now() + duration;
        while Instant::now() < end {
            sleep(STEP).await;
            self.processes.step();
            self.bind();
        }
    }

    /// Waits for a moment of a change in progress, without the oracle.
    async fn catch<T>(&mut self, what: &str, found: impl Fn(&Self) -> Option<T>) -> Result<T, Violation> {
        let end = Instant::now() + DONE;
        loop {
            if let Some(found) = found(self) {
                return Ok(found);
            }
            self.pass_moment(end, what).await?;
        }
    }

    /// Lets a moment pass, without the oracle. Fails at the end of the time for something.
    async fn pass_moment(&mut self, end: Instant, what: &str) -> Result<(), Violation> {
        if Instant::now() >= end {
            return Err(broken(format!("not within {} s: {what}", DONE.as_secs())));
        }
        sleep(MOMENT).await;
        self.bind();
        self.processes.step();
        Ok(())
    }

    /// Lets each call take a while.
    fn slow_down(&self) {
        self.server.with_faults(|faults| {
            faults.set_rates(FaultRates {
                latency: Duration::from_millis(5),
                ..FaultRates::default()
            });
        });
    }

    /// Lets this happen to the first call to the server, of any backend, that arrives once an object is so.
    fn script_call(
        &self,
        fault: Fault,
        plural: &'static str,
        (namespace, name): (&str, &str),
        is_so: impl Fn(&Value) -> bool + Send + 'static,
    ) {
        let (api, namespace, name) = (self.api.clone(), namespace.to_owned(), name.to_owned());
        let key = Key {
            plural,
            namespace,
            name,
        };
        let is_due = move |_: &CallSummary| api.get(&key).is_some_and(|object| is_so(&object));
        self.server.with_faults(|faults| faults.script(is_due, fault));
    }

    /// Returns true once each fault that was scripted has hit a call.
    fn has_hit_calls(&self) -> bool {
        self.server.with_faults(|faults| faults.scripted() == 0)
    }

    /// Waits until each fault that was scripted has hit a call.
    async fn wait_until_hit(&mut self, what: &str) -> Result<(), Violation> {
        self.wait_until(what, |world| world.has_hit_calls().then_some(())).await
    }

    /// Works on the disk as its administrator.
    fn on_disk<T>(&self, work: impl FnOnce(&mut FileSystem) -> NfsResult<T>) -> Result<T, Violation> {
        let done = self.server.administer(DISK, work);
        done.map_err(|status| broken(format!("the administrator of the disk fails: {status:?}")))
    }

    /// Returns true if something is at a path of the export.
    fn exists(&self, path: &str) -> bool {
        self.on_disk(|disk| find(disk, path)).is_ok()
    }

    /// Returns the path of the folder of the cluster on the export.
    fn cluster_folder(&self) -> Result<String, Violation> {
        self.on_disk(|disk| {
            let folders = disk.walk(find(disk, OWN_FOLDER)?);
            let records = folders
                .iter()
                .map(|found| String::from_utf8_lossy(&found.path).into_owned())
                .find_map(|path| path.strip_suffix("/records").map(str::to_owned));
            records.ok_or(crate::nfs_server::status::NfsStat::NOENT)
        })
    }
}
