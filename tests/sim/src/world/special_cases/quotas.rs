//! A quota agent on the server.

use export_store::quota::{Heartbeat, LimitState, Order, QuotaFile, QuotaSeal, Report};
use k8s_openapi::api::core::v1::Secret;
use nfs_operator::api::names;
use nfs_operator::runtime::records_secret;
use serde_json::{Value, json};

use super::disk::{content, make_file, rename};
use super::{BACKEND, CLAIM, NAMESPACE, broken};
use crate::objects::{claim_path, text};
use crate::oracle::Violation;
use crate::process;
use crate::world::World;

impl World {
    /// A claim grows, and the quota agent reports nothing about the new limit: the report about the former one does not count
    /// (data-safety rule 27).
    pub(super) async fn expand_without_a_report(&mut self) -> Result<(), Violation> {
        let claim = (NAMESPACE, CLAIM);
        self.change_backend(&json!({"quota": {"enforce": "Required"}})).await?;
        self.create_claim(claim, "deleted", &[], &json!({}))?;
        let name = self.volume_name(claim);
        self.wait_until("a claim with a limit is bound", |world| {
            let _before_there_is_an_order = world.report_limit(&name);
            world.volume_of(claim)
        })
        .await?;
        let size = |world: &Self| {
            let volume = world.object("persistentvolumes", ("", &name));
            volume.map(|volume| text(&volume, "/spec/capacity/storage").to_owned())
        };
        let before = size(self);
        let grown = json!({"spec": {"resources": {"requests": {"storage": "512Mi"}}}});
        self.administer("PATCH", &claim_path(NAMESPACE, CLAIM), &grown)?;
        self.check_that("a volume has a size whose limit is not in force", |world| {
            // A heartbeat that cannot be written is noticed by the next wait.
            let _written = world.write_heartbeat();
            size(world) == before
        })
        .await?;
        self.wait_until("a volume grows once its limit is in force", |world| {
            let reported = world.report_limit(&name);
            (reported.is_ok() && size(world) != before).then_some(())
        })
        .await?;
        self.change_backend(&json!({"quota": null})).await
    }

    /// Reports that the limit of a volume is in force, and that the agent runs.
    fn report_limit(&self, volume: &str) -> Result<(), Violation> {
        self.write_heartbeat()?;
        let folder = self.quota_folder()?;
        let order = self.on_disk(|disk| content(disk, &format!("{folder}/orders/{volume}")))?;
        let order = self.seal()?.open::<Order>(volume, &order);
        let (order, _) = order.map_err(|error| broken(error.to_string()))?;
        let report = Report {
            volume: volume.to_owned(),
            file_id: order.file_id,
            generation: order.generation,
            project: Some(1),
            state: LimitState::InForce,
            visit: Vec::new(),
        };
        self.write_as_agent(&format!("{folder}/reports/{volume}"), &report)
    }

    /// Reports that the agent runs.
    fn write_heartbeat(&self) -> Result<(), Violation> {
        let heartbeat = Heartbeat {
            instance: "simulated".to_owned(),
            sequence: self.epoch.elapsed().as_secs(),
            agent_version: "1".to_owned(),
            file_system: "xfs".to_owned(),
            enforced: true,
            inodes_counted: true,
            ignored_orders: 0,
            reported: 0,
            reason: None,
            message: None,
        };
        self.write_as_agent(&format!("{}/agent", self.quota_folder()?), &heartbeat)
    }

    fn quota_folder(&self) -> Result<String, Violation> {
        Ok(format!("{}/quota", self.cluster_folder()?))
    }

    fn write_as_agent<F: QuotaFile>(&self, path: &str, file: &F) -> Result<(), Violation> {
        let sealed = self.seal()?.seal(file).map_err(|error| broken(error.to_string()))?;
        let draft = format!("{path}-draft");
        self.on_disk(|disk| {
            make_file(disk, &draft, &sealed)?;
            rename(disk, &draft, path)
        })
    }

    /// Returns what signs the files of the agent: with the key of the cluster, for the export.
    fn seal(&self) -> Result<QuotaSeal, Violation> {
        let secret = self.object("secrets", (process::NAMESPACE, names::RECORDS_SECRET));
        let secret = secret.and_then(|secret| serde_json::from_value::<Secret>(Value::clone(&secret)).ok());
        let records = secret.and_then(|secret| records_secret::parse(&secret).ok());
        let records = records.ok_or_else(|| broken("there is no key of the cluster"))?;
        let backend = self.object("nfsbackends", ("", BACKEND));
        let backend = backend.ok_or_else(|| broken("there is no backend"))?;
        let export = text(&backend, "/status/export/id");
        Ok(QuotaSeal::new(
            Some(records.key.quota_key()),
            records.cluster_id,
            export,
        ))
    }
}
