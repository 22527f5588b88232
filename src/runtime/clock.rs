//! A second clock: the API server's. Data is not purged because one machine's clock is wrong.

use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::Api;
use kube::api::PostParams;

use crate::runtime::writes::WriteError;
use crate::state::context::Context;

/// What the API server takes for now: the creation time of an answer that it keeps nowhere
/// (<https://kubernetes.io/docs/reference/kubernetes-api/authentication-resources/self-subject-review-v1/>).
pub async fn of_the_api_server(ctx: &Context) -> Result<Timestamp, WriteError> {
    let api: Api<SelfSubjectReview> = Api::all(ctx.clients.calls.clone());
    let failed = WriteError::action("ask the API server what time it is");
    let answer = api
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await
        .map_err(failed)?;
    let made = answer.metadata.creation_timestamp;
    // No time is no agreement: nothing is purged now, and it is asked again.
    made.map(|time| time.0).ok_or(WriteError::Conflict)
}
