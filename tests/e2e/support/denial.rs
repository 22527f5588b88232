//! Policies of the API server that refuse requests.

use rig::Objects;
use rig::objects::{merge, reference};
use serde_json::{Value, json};

use super::shared::Failure;

/// Has the API server refuse what a ValidatingAdmissionPolicy with this spec does not permit. That takes effect after a moment.
/// Returns the binding, whose deletion ends it, and the policy.
pub async fn deny(objects: &Objects, name: &str, spec: &Value) -> Result<[Value; 2], Failure> {
    let kind = "admissionregistration.k8s.io/v1";
    let mut policy = reference(kind, "ValidatingAdmissionPolicy", None, name);
    merge(&mut policy, &json!({ "spec": spec }));
    let policy = objects.create(&policy).await?;
    let mut binding = reference(kind, "ValidatingAdmissionPolicyBinding", None, name);
    let spec = json!({"policyName": name, "validationActions": ["Deny"]});
    merge(&mut binding, &json!({ "spec": spec }));
    Ok([objects.create(&binding).await?, policy])
}
