//! Reservation of capacity for an expansion, under the same lock as that for new volumes.

use crate::api::conditions::{PlannedCondition, Reason};
use crate::decide::placement::check_capacity;
use crate::state::candidates::{BackendView, ExportTotals};
use crate::state::context::Context;

/// The result of a reservation.
#[derive(Debug, PartialEq, Eq)]
pub enum Reservation {
    /// The capacity is reserved.
    Reserved,
    /// Not known yet: the backend was not probed.
    Unknown,
    /// The capacity is not available.
    Refused {
        condition: PlannedCondition,
        /// The additional bytes that the volume needs.
        missing: u128,
    },
}

/// Reserves capacity for a larger volume, if available. Readiness and `suspend` do not matter: there is no new volume,
/// and nothing changes on the export.
pub fn reserve(ctx: &Context, volume: &str, backend: &str, bytes: u128) -> Reservation {
    let missing = bytes.saturating_sub(ctx.capacity.size_of(volume).unwrap_or_default());
    let views = BackendView::all(ctx, &[]);
    let Some(view) = views.iter().find(|view| view.name() == backend) else {
        let message = format!("backend {backend} does not exist: recreate it");
        return Reservation::Refused {
            condition: PlannedCondition::fails(Reason::BackendNotFound, message),
            missing,
        };
    };
    if !view.is_probed() {
        return Reservation::Unknown;
    }
    let reserved = ctx.capacity.expand(volume, bytes, |allocated| {
        check_capacity(bytes, &view.candidate(&ExportTotals::of(&views, allocated), allocated))
    });
    match reserved {
        Ok(()) => Reservation::Reserved,
        Err((reason, message)) => Reservation::Refused {
            condition: PlannedCondition::fails(reason, format!("backend {backend}: {message}")),
            missing,
        },
    }
}
