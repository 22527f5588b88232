//! Room for a volume that grows, taken under the same lock as that of new volumes.

use crate::api::conditions::{PlannedCondition, Reason};
use crate::decide::placement::room;
use crate::state::candidates::BackendView;
use crate::state::context::Context;

/// Whether a volume may have so much.
#[derive(Debug, PartialEq, Eq)]
pub enum Room {
    /// It may, and it is counted from now on.
    Held,
    /// Not known yet: the backend was not probed.
    Unknown,
    /// It may not.
    Refused(PlannedCondition),
}

/// Asks for room, and holds it where there is some. Neither readiness nor `suspend` counts: no new volume is made, and
/// the export has no part in it.
pub fn hold(ctx: &Context, volume: &str, backend: &str, bytes: u128) -> Room {
    let views = BackendView::all(ctx, &[]);
    let Some(view) = views.iter().find(|view| view.name() == backend) else {
        let message = format!("backend {backend} does not exist: create it again, or request no more than before");
        return Room::Refused(PlannedCondition::fails(Reason::BackendNotFound, message));
    };
    if !view.is_probed() {
        return Room::Unknown;
    }
    let held = ctx.capacity.grow(volume, bytes, |books| {
        room::enough_for(bytes, &view.candidate(&views, books))
    });
    match held {
        Ok(()) => Room::Held,
        Err((reason, message)) => {
            Room::Refused(PlannedCondition::fails(reason, format!("backend {backend}: {message}")))
        }
    }
}
