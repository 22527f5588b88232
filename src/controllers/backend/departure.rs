//! Backends whose object is gone, by our leave or not: nothing of them may stay in memory.

use std::collections::{HashMap, HashSet};

use kube::ResourceExt;
use kube::runtime::watcher::Event;

use crate::api::NfsBackend;
use crate::state::archives::archives_of;
use crate::state::context::Context;
use export_store::Holder;

/// Forgets a backend: its root is no longer taken, its connection is closed, its claims look elsewhere.
pub fn forget(ctx: &Context, name: &str, uid: &str) {
    let Some(backend) = ctx.backends.remove(name, uid) else {
        return;
    };
    ctx.path_reservations.remove(&Holder::BackendRoot(name.to_owned()));
    ctx.metrics.backend_gone(name);
    ctx.usage.turn_off(name);
    if let Some(connection) = backend.set_connection(None) {
        tokio::spawn(async move { connection.store.nfs().clone().close().await });
    }
    ctx.waiting_claims.wake_debounced();
    ctx.waiting_volumes.wake_all();
    archives_of(ctx, name)
        .into_iter()
        .for_each(|archive| ctx.requeue_archive(archive));
}

/// Follows the backends' watch for objects that vanish: the finalizer may be taken off by force, and a watch that is
/// listed anew tells of no deletion.
#[derive(Default)]
pub struct Follower {
    known: HashMap<String, String>,
    listed: HashSet<String>,
}

impl Follower {
    /// Takes in one event of the watch.
    pub fn observe(&mut self, event: &Event<NfsBackend>, ctx: &Context) {
        match event {
            Event::Init => self.listed.clear(),
            Event::InitApply(object) => {
                self.listed.insert(object.uid().unwrap_or_default());
                self.known.insert(object.uid().unwrap_or_default(), object.name_any());
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listed);
                self.known
                    .iter()
                    .filter(|(uid, _)| !listed.contains(*uid))
                    .for_each(|(uid, name)| forget(ctx, name, uid));
                self.known.retain(|uid, _| listed.contains(uid));
            }
            Event::Apply(object) => {
                self.known.insert(object.uid().unwrap_or_default(), object.name_any());
            }
            Event::Delete(object) => {
                let uid = object.uid().unwrap_or_default();
                self.known.remove(&uid);
                forget(ctx, &object.name_any(), &uid);
            }
        }
    }
}
