//! Changes on each export that the server may still execute although they have ended, of all backends on it.

use std::collections::HashMap;
use std::sync::Arc;

use nfs_client::UnansweredChanges;
use parking_lot::Mutex;

/// The unanswered changes of the clients that confirmed an export, by its identity. They outlive the clients: a backend may be
/// recreated, or its connection replaced.
#[derive(Debug, Default)]
pub(crate) struct UnansweredByExport(Mutex<HashMap<String, Vec<Arc<UnansweredChanges>>>>);

impl UnansweredByExport {
    /// Adds those of a client that confirmed this export.
    pub(crate) fn insert(&self, export_id: &str, changes: &Arc<UnansweredChanges>) {
        let mut by_export = self.0.lock();
        let clients = by_export.entry(export_id.to_owned()).or_default();
        clients.retain(|former| Arc::strong_count(former) > 1 || !former.is_empty());
        if !clients.iter().any(|known| Arc::ptr_eq(known, changes)) {
            clients.push(Arc::clone(changes));
        }
    }

    /// Waits until those that there are now on this export are over.
    pub(crate) async fn wait(&self, export_id: &str) {
        let unanswered: Vec<_> = {
            let by_export = self.0.lock();
            let clients = by_export.get(export_id).into_iter().flatten();
            clients.filter(|changes| !changes.is_empty()).cloned().collect()
        };
        for changes in unanswered {
            changes.wait().await;
        }
    }
}
