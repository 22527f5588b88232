//! The API server's clock: data is not purged because the clock of one machine is wrong.

use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::PostParams;
use kube::{Api, Client};

use crate::runtime::writes::WriteError;

/// Returns the API server's current time: the creation time of an object that it does not store
/// (<https://kubernetes.io/docs/reference/kubernetes-api/authentication-resources/self-subject-review-v1/>).
///
/// # Errors
/// The API server does not answer, or answers without a time: nothing may be purged now.
pub async fn api_server_time(client: &Client) -> Result<Timestamp, WriteError> {
    let api: Api<SelfSubjectReview> = Api::all(client.clone());
    let failed = WriteError::action("read the API server's time");
    let review = api
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await
        .map_err(failed)?;
    let created = review.metadata.creation_timestamp;
    created.map(|time| time.0).ok_or(WriteError::Conflict)
}
