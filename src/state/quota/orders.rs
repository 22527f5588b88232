//! Orders the limits of volumes, and reports on their claims whether they are in force.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use tokio::time::Instant;

use super::LimitedClaim;
use crate::api::backend::QuotaSettings;
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::{SIZE_ENFORCED_CONDITION, managers};
use crate::decide::volume_limit::{archive_limit, volume_limit};
use crate::runtime::events::Severity;
use crate::runtime::reads;
use crate::runtime::writes::WriteError;
use crate::state::backends::Backend;
use crate::state::claim_condition;
use crate::state::context::Context;
use export_store::quota::LimitState;
use export_store::{
    DirectoryRequest, ExportError, ExportStore, LimitReport, NoLimit, NoOrder, Ordered, ProvisionedDirectory,
};

/// What is known of the limit of a volume after it was ordered.
#[derive(Debug, Clone)]
pub enum OrderedLimit {
    /// What the agent reports about it.
    Ordered(LimitReport),
    /// The volume has no directory that can be limited.
    Nothing(NoLimit),
}

/// Orders the limit of a volume of `bytes`, unless that was done before, and returns what the agent reports about it. From
/// then on, the reports are read in the background until the limit is in force and its claim reports that.
pub async fn order_volume(
    backend: &Backend,
    export: &ExportStore,
    settings: &QuotaSettings,
    (volume, bytes): (&str, u128),
) -> Result<OrderedLimit, ExportError> {
    let limit = volume_limit(settings, bytes);
    if backend.quota.is_in_force(volume, limit, None) {
        return Ok(OrderedLimit::Ordered(LimitReport::Reported(LimitState::InForce)));
    }
    let ordered = export.order_limit(volume, limit).await?;
    follow(backend, export, settings, (volume, ordered)).await
}

/// Like [`order_volume`], for a directory that was provisioned just now.
pub async fn order_provisioned(
    backend: &Backend,
    export: &ExportStore,
    settings: &QuotaSettings,
    (request, provisioned): (&DirectoryRequest, &ProvisionedDirectory),
    (bytes, no_order): (u128, Option<NoOrder>),
) -> Result<OrderedLimit, ExportError> {
    let (volume, limit) = (&request.volume, volume_limit(settings, bytes));
    if backend.quota.is_in_force(volume, limit, Some(provisioned.file_id)) {
        return Ok(OrderedLimit::Ordered(LimitReport::Reported(LimitState::InForce)));
    }
    let ordered = export
        .order_provisioned(request, provisioned, (limit, no_order))
        .await?;
    follow(backend, export, settings, (volume, ordered)).await
}

/// Returns what the agent reports about an order, and has the reports read until it is in force.
async fn follow(
    backend: &Backend,
    export: &ExportStore,
    settings: &QuotaSettings,
    (volume, ordered): (&str, Ordered),
) -> Result<OrderedLimit, ExportError> {
    let (order, is_new, claim) = match ordered {
        Ordered::Order { order, is_new, claim } => (order, is_new, claim),
        Ordered::Nothing(why) => {
            backend.quota.forget(volume);
            if why != NoLimit::Changing {
                // Its claim reports that it has no limit.
                backend.quota.forget_reported(volume);
            }
            return Ok(OrderedLimit::Nothing(why));
        }
    };
    let found = match is_new {
        true => LimitReport::Unreported,
        false => export.limit_report(volume, &order).await?,
    };
    let is_reported = found.is_in_force()
        && !backend
            .quota
            .must_report(volume, &condition_now(backend, settings, &found));
    if is_reported {
        backend.quota.forget(volume);
    } else {
        let claim = LimitedClaim {
            claim: ObjectRef::new(&claim.name).within(&claim.namespace),
            uid: claim.uid,
        };
        backend.quota.track(volume, order, claim, found.clone(), Instant::now());
    }
    Ok(OrderedLimit::Ordered(found))
}

/// Orders the limit of an archive, which it keeps or which is lifted. Nobody waits for it.
pub async fn order_archive(
    backend: &Backend,
    export: &ExportStore,
    settings: &QuotaSettings,
    (archive, bytes): (&str, u128),
) -> Result<(), ExportError> {
    backend.quota.forget(archive);
    export
        .order_limit(archive, archive_limit(settings, bytes))
        .await
        .map(drop)
}

/// Orders the limit of an archive that was just made. The archive exists whether that succeeds or not, and the limit follows
/// the directory until then.
pub async fn order_new_archive(backend: &Backend, export: &ExportStore, archive: (&str, u128)) {
    let known = backend.last_probe();
    let Some(settings) = &known.object.spec.quota else {
        return;
    };
    if let Err(error) = order_archive(backend, export, settings, archive).await {
        tracing::debug!(
            backend = backend.name,
            archive = archive.0,
            "the limit of the archive is ordered later: {error}"
        );
        backend.quota.sync_requested.notify_one();
    }
}

/// Reports on a claim whether the limit of its volume is in force. Writes only what changed.
pub async fn report_on_claim(
    ctx: &Context,
    claim: &LimitedClaim,
    planned: &PlannedCondition,
) -> Result<(), WriteError> {
    let Some(claim) = find_claim(ctx, claim).await? else {
        return Ok(());
    };
    let changed =
        claim_condition::set_planned(ctx, &claim, (SIZE_ENFORCED_CONDITION, managers::QUOTA), planned).await?;
    if changed && planned.reason == Reason::LimitFailed {
        claim_condition::event(
            ctx,
            &claim,
            Severity::Warning,
            (planned.reason, "Limit"),
            &planned.message,
        );
    }
    Ok(())
}

/// Reports on the claim of a volume why the volume cannot have a limit.
pub async fn report_unlimited(ctx: &Context, claim: &PersistentVolumeClaim, why: NoLimit) -> Result<(), WriteError> {
    if let Some(planned) = unlimited_condition(why) {
        let condition = (SIZE_ENFORCED_CONDITION, managers::QUOTA);
        claim_condition::set_planned(ctx, claim, condition, &planned).await?;
    }
    Ok(())
}

/// Returns what the claim of a volume without a limit reports. `None` if it will have one. Pure.
fn unlimited_condition(why: NoLimit) -> Option<PlannedCondition> {
    let (reason, message) = match why {
        NoLimit::Shared => (
            Reason::SharedDirectoryUnlimited,
            "several volumes share the directory, whose size is not limited",
        ),
        NoLimit::NoRecord => (
            Reason::LimitFailed,
            "the size of the volume is not limited: its directory has no record that this cluster signed, because another \
             provisioner created it, or somebody changed the record; to limit its size, let a pod copy its data into a new claim",
        ),
        NoLimit::Changing => return None,
    };
    Some(PlannedCondition::fails(reason, message))
}

/// Removes the report from the claim of a volume that has no limit any more.
pub async fn clear_report(ctx: &Context, claim: &PersistentVolumeClaim) -> Result<(), WriteError> {
    match claim_condition::find(claim, SIZE_ENFORCED_CONDITION) {
        Some(_) => claim_condition::clear(&ctx.clients.calls, claim, (SIZE_ENFORCED_CONDITION, managers::QUOTA)).await,
        None => Ok(()),
    }
}

/// Returns the claim of a volume, unless it was deleted or replaced.
async fn find_claim(ctx: &Context, wanted: &LimitedClaim) -> Result<Option<PersistentVolumeClaim>, WriteError> {
    let cached = ctx.cached_claim(&wanted.claim);
    let found = match cached {
        Some(claim) => Some(claim),
        None => {
            let namespace = wanted.claim.namespace.as_deref().unwrap_or_default();
            let found = reads::get_claim(&ctx.clients.calls, namespace, &wanted.claim.name).await;
            found.map_err(WriteError::action("read the claim of a volume to report its limit"))?
        }
    };
    Ok(
        found
            .filter(|claim| claim.uid().as_deref() == Some(&wanted.uid) && claim.metadata.deletion_timestamp.is_none()),
    )
}

/// Returns what a claim of a backend reports about its limit now.
pub fn condition_now(backend: &Backend, settings: &QuotaSettings, found: &LimitReport) -> PlannedCondition {
    backend.quota.limit_condition(found, settings, Instant::now())
}
