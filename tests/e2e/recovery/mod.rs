//! Recovery of volumes and archives after the loss of a cluster.

pub mod cluster_loss;
pub mod refused;
mod two_clusters;
mod velero;
pub mod volumes;
