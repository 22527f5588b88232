//! Where the data of a claim's volume is, in words. Pure.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;

use crate::api::names::{self, is_shared};
use crate::decide::restore_source::RestoreSource;

const ON_BACKEND: &str = " on backend ";

/// Returns the backend in a description of [`volume_location`].
pub fn backend_in(location: &str) -> Option<&str> {
    let (_, rest) = location.rsplit_once(ON_BACKEND)?;
    rest.split([',', ' ', ')']).next()
}

/// Describes the location of the data of a claim's volume, and what the claim was restored from.
pub fn volume_location(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> String {
    let source = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.nfs.clone())
        .unwrap_or_default();
    let backend = volume.annotations().get(names::VOLUME_BACKEND);
    let backend = backend.map_or_else(
        || ", provisioned by another provisioner".to_owned(),
        |backend| format!("{ON_BACKEND}{backend}"),
    );
    let shared = match is_shared(volume) {
        true => ", a directory that claims share",
        false => "",
    };
    // A volume of another name existed before the claim requested anything.
    let is_own = volume.name_any() == names::volume_name(&claim.uid().unwrap_or_default());
    let restored = match RestoreSource::of(claim).filter(|_| is_own) {
        Some(source) => format!(", with the data of {} {}", source.kind(), source.name()),
        None => String::new(),
    };
    format!(
        "volume {} is {}:{}{backend}{shared}{restored}",
        volume.name_any(),
        source.server,
        source.path
    )
}
