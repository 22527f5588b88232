//! Whether a request fits within a backend's limits. Pure.

use export_store::text::format_bytes;

use super::quantity;
use super::{Candidate, Claim, summary};
use crate::api::backend::StorageAmount;
use crate::api::conditions::Reason;

/// The check of placement.
pub(crate) fn enough(claim: &Claim<'_>, backend: &Candidate<'_>) -> Result<(), (Reason, String)> {
    enough_for(claim.requested, backend)
}

/// Whether a backend's limits leave room for so many bytes.
///
/// # Errors
/// The reason and, with the remedy, which limit they do not fit within.
pub fn enough_for(requested: u128, backend: &Candidate<'_>) -> Result<(), (Reason, String)> {
    within_limit(requested, backend)?;
    within_overcommit(requested, backend)?;
    above_reserve(backend)
}

fn within_limit(requested: u128, backend: &Candidate<'_>) -> Result<(), (Reason, String)> {
    let Some(limit) = amount("limit", backend.limits.and_then(|limits| limits.limit.as_ref()))? else {
        return Ok(());
    };
    if backend.provisioned.saturating_add(requested) <= limit {
        return Ok(());
    }
    exceeded(format!(
        "{} are requested; capacity.limit is {} and {} of it are taken: request less, or raise it",
        format_bytes(requested),
        format_bytes(limit),
        format_bytes(backend.provisioned)
    ))
}

fn within_overcommit(requested: u128, backend: &Candidate<'_>) -> Result<(), (Reason, String)> {
    let Some(percent) = backend.limits.and_then(|limits| limits.overcommit_percent) else {
        return Ok(());
    };
    let Some(total) = backend.total else {
        return exceeded(
            "capacity.overcommitPercent is set and the server does not say the export's size: use capacity.limit"
                .into(),
        );
    };
    let percent = u128::try_from(percent).unwrap_or(0);
    // The remainder is scaled separately: a size near 2^128 must not overflow, and 100 bytes must not become 0.
    let share = (total / 100)
        .saturating_mul(percent)
        .saturating_add(total % 100 * percent / 100);
    if backend.provisioned_on_export.saturating_add(requested) <= share {
        return Ok(());
    }
    exceeded(format!(
        "{} are requested; capacity.overcommitPercent {percent} gives {} on an export of {} and {} of it are taken on all \
         its backends: request less, or raise it",
        format_bytes(requested),
        format_bytes(share),
        format_bytes(total),
        format_bytes(backend.provisioned_on_export)
    ))
}

fn above_reserve(backend: &Candidate<'_>) -> Result<(), (Reason, String)> {
    let Some(reserve) = amount("reserve", backend.limits.and_then(|limits| limits.reserve.as_ref()))? else {
        return Ok(());
    };
    match backend.available {
        Some(available) if available >= reserve => Ok(()),
        Some(available) => exceeded(format!(
            "free space is {}, below capacity.reserve {}: free some, or lower it",
            format_bytes(available),
            format_bytes(reserve)
        )),
        None => exceeded("capacity.reserve is set and the server does not say the free space: remove it".into()),
    }
}

fn exceeded(message: String) -> Result<(), (Reason, String)> {
    Err((Reason::CapacityExceeded, message))
}

fn amount(field: &str, amount: Option<&StorageAmount>) -> Result<Option<u128>, (Reason, String)> {
    amount
        .map(|amount| {
            quantity::bytes(amount).ok_or_else(|| {
                let message = format!("capacity.{field} {} is no quantity: correct it", summary::short(amount));
                (Reason::InvalidSpec, message)
            })
        })
        .transpose()
}
