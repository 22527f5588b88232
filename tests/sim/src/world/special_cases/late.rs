//! What is executed later than its sender expects, and what a process may not do any more.

use std::time::Duration;

use serde_json::json;

use super::{CLAIM, LONG_HELD, LOOK, NAMESPACE};
use crate::nfs_server::Fault;
use crate::nfs_server::faults::CallSummary;
use crate::objects::VOLUMES_PATH;
use crate::oracle::Violation;
use crate::world::World;

/// Time after which a volume is created although the connection was cut: less than the pause before any other attempt.
const LATE_VOLUME: Duration = Duration::from_secs(1);
/// Time after which a process knows that it could not renew its Lease.
const NOT_RENEWED: Duration = Duration::from_secs(20);

impl World {
    /// The connection is lost while the server still creates the directory of a deleted claim: the directory is rolled back
    /// once it exists (data-safety rule 11).
    pub(super) async fn create_a_directory_late(&mut self) -> Result<(), Violation> {
        self.delete_before_the_directory_exists().await?;
        // The claim is gone before the attempt fails, which requests a probe and a garbage collection.
        self.pass(LOOK).await?;
        self.trace.record("nas", "cuts all connections");
        self.server.cut_connections();
        // Until then, everything seems to be settled.
        self.pass(LONG_HELD).await?;
        self.settle().await
    }

    /// The operator is replaced while the server still creates the directory of a deleted claim: the next leader rolls it back
    /// once it exists (data-safety rule 11).
    pub(super) async fn hand_over_while_a_directory_is_created(&mut self) -> Result<(), Violation> {
        self.delete_before_the_directory_exists().await?;
        self.processes.replace_all();
        self.pass(LONG_HELD).await?;
        self.settle().await
    }

    /// Creates a claim whose directory the server creates late, and deletes the claim before that.
    async fn delete_before_the_directory_exists(&mut self) -> Result<(), Violation> {
        let claim = (NAMESPACE, CLAIM);
        self.trace.record("nas", "holds the next call that creates a directory");
        self.server
            .with_faults(|faults| faults.script(CallSummary::makes_directory, Fault::Hold(LONG_HELD)));
        self.create_claim(claim, "archived", &[], &json!({}))?;
        self.wait_until_hit("a directory is created for a claim").await?;
        self.delete_claim(claim)
    }

    /// The create of a volume has no answer and is executed later: the directory is still there (data-safety rule 13).
    pub(super) async fn create_a_volume_late(&mut self) -> Result<(), Violation> {
        self.faults
            .script(|faults| faults.create_late = Some((VOLUMES_PATH, LATE_VOLUME)));
        let volume = self.provision_with_file((NAMESPACE, CLAIM), "archived").await;
        volume.map(drop)
    }

    /// A process without leader election cannot renew its Lease: it changes nothing meanwhile (data-safety rule 11).
    pub(super) async fn fail_to_renew_the_lease(&mut self) -> Result<(), Violation> {
        let claim = (NAMESPACE, CLAIM);
        self.processes.run_without_election();
        // It leads from here on.
        self.provision((NAMESPACE, "first"), "archived").await?;
        self.faults.script(|faults| faults.refuse_leases = true);
        self.pass(NOT_RENEWED).await?;
        self.create_claim(claim, "archived", &[], &json!({}))?;
        self.check_that(
            "a process provisions a claim although it cannot renew its Lease",
            |world| world.volume_of(claim).is_none(),
        )
        .await?;
        self.faults.script(|faults| faults.refuse_leases = false);
        self.settle().await
    }
}
