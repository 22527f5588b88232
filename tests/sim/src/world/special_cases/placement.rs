//! Where volumes are: names of servers, and nodes that can reach them.

use serde_json::{Value, json};

use super::{BACKEND, CLAIM, NAMESPACE, broken};
use crate::actors::administrator::{ALIAS, EXPORT, SERVER};
use crate::actors::binder::SELECTED_NODE;
use crate::objects::{backend_path, claim_path, name, text};
use crate::oracle::Violation;
use crate::world::{ADDRESS, World};

/// Label of nodes.
const ZONE: &str = "topology.kubernetes.io/zone";
/// Class that binds late.
const LATE: &str = "late";

impl World {
    /// The server gets another name: volumes with the former name are reclaimed, and new ones have the new name.
    pub(super) async fn rename_the_server(&mut self) -> Result<(), Violation> {
        let (former, new) = ((NAMESPACE, CLAIM), (NAMESPACE, "new"));
        let volume = self.provision_with_file(former, "archived").await?;
        self.network.name(ALIAS, ADDRESS);
        self.change_server_name(SERVER, ALIAS).await?;
        let next = self.provision_with_file(new, "archived").await?;
        let object = self.object("persistentvolumes", ("", &next.name));
        if object.is_none_or(|object| text(&object, "/spec/nfs/server") != ALIAS) {
            return Err(broken(format!("volume {} has a former name of its server", next.name)));
        }
        self.delete_claim(former)?;
        self.settle().await?;
        if self.archived_directory(&volume.name).is_empty() {
            return Err(broken(format!("{} was not archived", volume.directory)));
        }
        self.change_server_name(ALIAS, SERVER).await
    }

    /// Changes the name of the server in all backends on the export.
    async fn change_server_name(&mut self, former: &str, new: &str) -> Result<(), Violation> {
        let spec = json!({"server": new, "formerAddresses": [{"server": former, "path": EXPORT}]});
        let is_on_export =
            |backend: &Value| text(backend, "/spec/server") == former && text(backend, "/spec/path") == EXPORT;
        for backend in self.api.all("nfsbackends") {
            if name(&backend) != BACKEND && is_on_export(&backend) {
                self.administer("PATCH", &backend_path(name(&backend)), &json!({"spec": spec}))?;
            }
        }
        self.change_backend(&spec).await
    }

    /// A class binds late: a claim gets its volume once a node is selected. A node that the backend does not serve is
    /// released, so that the scheduler selects another one.
    pub(super) async fn bind_late(&mut self) -> Result<(), Violation> {
        let claim = (NAMESPACE, CLAIM);
        for (node, zone) in [("node-a", "a"), ("node-b", "b")] {
            let node = json!({"metadata": {"name": node, "labels": {ZONE: zone}}});
            self.administer("POST", "/api/v1/nodes", &node)?;
        }
        let term = json!({"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["a"]}]});
        let affinity = json!({"required": {"nodeSelectorTerms": [term]}});
        self.change_backend(&json!({"nodeAffinity": affinity})).await?;
        self.create_class_with(LATE, &json!({"volumeBindingMode": "WaitForFirstConsumer"}))?;
        self.create_claim(claim, LATE, &[], &json!({}))?;
        self.check_that("a claim is bound before a node is selected", |world| {
            world.volume_of(claim).is_none()
        })
        .await?;
        self.select_node(claim, "node-b")?;
        self.wait_until("a node is released that the backend does not serve", |world| {
            let claim = world.claim(claim)?;
            text(&claim, SELECTED_NODE).is_empty().then_some(())
        })
        .await?;
        self.select_node(claim, "node-a")?;
        self.wait_until_bound(claim).await?;
        self.change_backend(&json!({"nodeAffinity": null})).await
    }

    /// Selects a node for a claim, as the scheduler does.
    fn select_node(&self, (namespace, name): (&str, &str), node: &str) -> Result<(), Violation> {
        let annotations = json!({"volume.kubernetes.io/selected-node": node});
        let patch = json!({"metadata": {"annotations": annotations}});
        self.administer("PATCH", &claim_path(namespace, name), &patch)
    }
}
