//! A second clock: the API server's. No data is purged only because one machine's clock is wrong.

use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::PostParams;
use kube::{Api, Client};

use crate::runtime::writes::WriteError;

/// Returns the API server's current time: the creation time of a review that is not stored
/// (<https://kubernetes.io/docs/reference/kubernetes-api/authentication-resources/self-subject-review-v1/>).
pub async fn api_server_time(client: &Client) -> Result<Timestamp, WriteError> {
    let api: Api<SelfSubjectReview> = Api::all(client.clone());
    let review = api
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await
        .map_err(WriteError::action("read the time of the API server"))?;
    // Without a time, nothing is purged now, and the request is repeated.
    let created = review.metadata.creation_timestamp;
    created.map(|time| time.0).ok_or(WriteError::Conflict)
}
