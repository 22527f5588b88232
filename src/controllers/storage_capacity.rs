//! Publishes the storage capacity of late-binding classes as `CSIStorageCapacity` objects, for the scheduler.
//!
//! It is inactive unless a provisioner name can be that of a CSIDriver. The objects are in the operator's namespace, as
//! their number is small and nothing else reads them: they are listed once a minute instead of being watched. While the
//! operator is down, they stay: it would not provision a claim anyway, and corrects them when it starts.

mod changes;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::storage::v1::{CSIStorageCapacity, StorageClass};
use kube::api::{DeleteParams, ListParams, ObjectMeta, PostParams, Preconditions};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::time::Instant;

use self::changes::{Changes, Plan};
use crate::api::names::{CAPACITY_DRIVER, CAPACITY_MANAGED_BY, OPERATOR_NAME, managers};
use crate::decide::storage_capacity::{LateClass, Segment, segments};
use crate::runtime::retry::BackoffLimits;
use crate::runtime::writes::{self, WriteError, http_status};
use crate::state::candidates::BackendView;
use crate::state::context::Context;

/// Delay after a change of a class or backend: several changes result in one pass.
const DEBOUNCE: Duration = Duration::from_secs(1);
/// Maximum interval between passes, and the age at which the list of objects is read again. An object that somebody deleted
/// is missing for this long.
const INTERVAL: Duration = Duration::from_secs(60);
/// Minimum interval between updates of one object.
const MIN_UPDATE_INTERVAL: Duration = Duration::from_secs(60);
/// Delays after failed requests.
const RETRY: BackoffLimits = BackoffLimits {
    shortest: Duration::from_secs(5),
    longest: Duration::from_secs(300),
};
/// Value of `volumeBindingMode` of classes that bind late.
const LATE: &str = "WaitForFirstConsumer";

/// Starts the controller if one of the provisioner names can be that of a CSIDriver.
pub fn start(ctx: &Arc<Context>) {
    if ctx.settings.csi_driver_names().next().is_some() {
        let (publisher, shutdown) = (Publisher::new(Arc::clone(ctx)), ctx.shutdown.clone());
        let publishing = async move { shutdown.run_until_cancelled(publisher.run()).await };
        tokio::spawn(ctx.watchdog.watch("the publication of storage capacity", publishing));
    }
}

/// Keeps the objects as planned.
struct Publisher {
    ctx: Arc<Context>,
    api: Api<CSIStorageCapacity>,
    /// The operator's objects by name, and when they were listed; `None` if they have to be listed.
    published: Option<(BTreeMap<String, CSIStorageCapacity>, Instant)>,
    /// Time of the last update of each object.
    updated: HashMap<String, Instant>,
}

impl Publisher {
    fn new(ctx: Arc<Context>) -> Self {
        let client = ctx.clients.calls.clone();
        Self {
            api: Api::default_namespaced(client),
            ctx,
            published: None,
            updated: HashMap::new(),
        }
    }

    async fn run(mut self) {
        let mut failures = 0_u32;
        while self.ctx.wait_for_sync().await {
            match self.publish().await {
                Ok(next) => {
                    failures = 0;
                    let changed = self.ctx.storage_capacity_changed.notified();
                    if tokio::time::timeout(next, changed).await.is_ok() {
                        tokio::time::sleep(DEBOUNCE).await;
                    }
                }
                Err(error) => {
                    tracing::warn!("storage capacity: {error}");
                    self.published = None;
                    let pause = RETRY.pause(failures);
                    failures = failures.saturating_add(1);
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    /// Writes what differs from the plan. Returns the time until the next pass.
    async fn publish(&mut self) -> Result<Duration, WriteError> {
        let plan = plan(&self.ctx);
        let listed = self.listed(&plan).await?;
        let Changes { create, update, delete } = changes::changes(&plan, listed);
        for (name, segment) in create {
            self.create(name, segment).await?;
        }
        let mut next = INTERVAL;
        for (name, segment) in update {
            match self.remaining(&name) {
                Duration::ZERO => self.update(name, segment).await?,
                remaining => next = next.min(remaining),
            }
        }
        // Last: while an object is missing, pods are not scheduled.
        for name in delete {
            self.delete(&name).await?;
        }
        Ok(next)
    }

    /// Returns the operator's objects. They are listed unless they are known, or nothing is planned and nothing exists.
    async fn listed(&mut self, plan: &Plan) -> Result<&BTreeMap<String, CSIStorageCapacity>, WriteError> {
        let known = self
            .published
            .take()
            .filter(|(objects, listed_at)| listed_at.elapsed() < INTERVAL || (plan.is_empty() && objects.is_empty()));
        let known = match known {
            Some(known) => known,
            None => (self.list().await?, Instant::now()),
        };
        Ok(&self.published.insert(known).0)
    }

    async fn list(&self) -> Result<BTreeMap<String, CSIStorageCapacity>, WriteError> {
        let ours = format!("{CAPACITY_MANAGED_BY}={OPERATOR_NAME},{CAPACITY_DRIVER}");
        let listed = self.api.list(&ListParams::default().labels(&ours)).await;
        let listed = listed.map_err(WriteError::action("list the CSIStorageCapacity objects"))?;
        Ok(listed.into_iter().map(|object| (object.name_any(), object)).collect())
    }

    /// Returns the time until an object may be updated.
    fn remaining(&self, name: &str) -> Duration {
        let updated = self.updated.get(name);
        updated.map_or(Duration::ZERO, |at| MIN_UPDATE_INTERVAL.saturating_sub(at.elapsed()))
    }

    async fn create(&mut self, name: String, segment: &Segment) -> Result<(), WriteError> {
        let params = PostParams {
            field_manager: Some(managers::STORAGE_CAPACITY.to_owned()),
            ..PostParams::default()
        };
        let created = self.api.create(&params, &object(&name, segment)).await;
        let created = created.map_err(WriteError::action("create a CSIStorageCapacity"))?;
        tracing::info!(
            class = segment.class,
            object = name,
            capacity = segment.quantity().0,
            "storage capacity published"
        );
        self.remember(name, created);
        Ok(())
    }

    async fn update(&mut self, name: String, segment: &Segment) -> Result<(), WriteError> {
        let Some(mut object) = self
            .published
            .as_ref()
            .and_then(|(objects, _)| objects.get(&name))
            .cloned()
        else {
            return Ok(());
        };
        let fields = json!({"capacity": segment.quantity(), "maximumVolumeSize": segment.quantity()});
        let action = "update a CSIStorageCapacity";
        writes::apply(&self.api, &object, managers::STORAGE_CAPACITY, fields, action).await?;
        object.capacity = Some(segment.quantity());
        object.maximum_volume_size.clone_from(&object.capacity);
        self.updated.insert(name.clone(), Instant::now());
        self.remember(name, object);
        Ok(())
    }

    async fn delete(&mut self, name: &str) -> Result<(), WriteError> {
        let Some((objects, _)) = &mut self.published else {
            return Ok(());
        };
        let Some(object) = objects.get(name) else { return Ok(()) };
        let params = DeleteParams::default().preconditions(Preconditions {
            uid: object.uid(),
            resource_version: None,
        });
        match self.api.delete(name, &params).await {
            Ok(_) => tracing::info!(
                class = object.storage_class_name,
                object = name,
                "storage capacity removed"
            ),
            // It is gone, or another object has its name.
            Err(error) if matches!(http_status(&error), Some(404 | 409)) => {}
            Err(error) => return Err(WriteError::action("delete a CSIStorageCapacity")(error)),
        }
        objects.remove(name);
        self.updated.remove(name);
        Ok(())
    }

    fn remember(&mut self, name: String, object: CSIStorageCapacity) {
        if let Some((objects, _)) = &mut self.published {
            objects.insert(name, object);
        }
    }
}

/// Returns the objects that the classes need.
fn plan(ctx: &Context) -> Plan {
    let mut plan = Plan::default();
    let classes = ctx.stores.classes.state();
    let mut late = classes.iter().filter(|class| is_published(ctx, class)).peekable();
    if late.peek().is_none() {
        return plan;
    }
    let views = BackendView::all(ctx, &[]);
    ctx.capacity.read(|allocated| {
        let candidates = BackendView::candidates(&views, allocated);
        for class in late {
            let parameters = ctx.settings.class_parameters(class).ok();
            let name = class.name_any();
            let late_class = LateClass {
                name: &name,
                driver: &class.provisioner,
                parameters: parameters.as_ref(),
                topologies: class.allowed_topologies.as_deref().unwrap_or_default(),
            };
            plan.add(&name, segments(&late_class, &candidates));
        }
    });
    plan
}

/// Returns true if capacity is published for a class. The scheduler does not need it for claims that are bound at once.
fn is_published(ctx: &Context, class: &StorageClass) -> bool {
    class.volume_binding_mode.as_deref() == Some(LATE)
        && class.metadata.deletion_timestamp.is_none()
        && ctx.settings.csi_driver_names().any(|name| name == class.provisioner)
}

fn object(name: &str, segment: &Segment) -> CSIStorageCapacity {
    let labels = [
        (CAPACITY_MANAGED_BY, OPERATOR_NAME),
        (CAPACITY_DRIVER, segment.driver.as_str()),
    ];
    CSIStorageCapacity {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
            ..ObjectMeta::default()
        },
        capacity: Some(segment.quantity()),
        // The scheduler prefers this one.
        maximum_volume_size: Some(segment.quantity()),
        node_topology: Some(segment.nodes.clone()),
        storage_class_name: segment.class.clone(),
    }
}
