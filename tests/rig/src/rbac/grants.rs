//! Permissions that `config/rbac` and `config/storage-capacity` grant to the operator's account.

use std::{fmt, fs, path::Path};

use k8s_openapi::api::rbac::v1::{PolicyRule, RoleRef, Subject};
use serde_json::Value;

use crate::{
    error::{Error, Result, ResultExt},
    manifests::parse,
    operator::SERVICE_ACCOUNT,
};

/// One verb on one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Permission {
    /// The API group; empty for the core group.
    pub(super) group: String,
    /// The resource, with `/subresource` if it has one.
    pub(super) resource: String,
    pub(super) verb: String,
    /// The namespace. `None`: every namespace, or the object has none.
    pub(super) namespace: Option<String>,
    /// The object's name. `None`: every name, or the request has none.
    pub(super) name: Option<String>,
}

impl Permission {
    /// Returns whether this permission includes `requested`.
    pub(super) fn covers(&self, requested: &Self) -> bool {
        let includes = |own: &Option<String>, requested: &Option<String>| own.is_none() || own == requested;
        self.group == requested.group
            && self.resource == requested.resource
            && self.verb == requested.verb
            && includes(&self.namespace, &requested.namespace)
            && includes(&self.name, &requested.name)
    }

    /// Returns the resource in the notation of `kubectl auth can-i`.
    pub(super) fn resource_name(&self) -> String {
        let (resource, part) = self.resource.split_once('/').unwrap_or((&self.resource, ""));
        let group = if self.group.is_empty() { "" } else { "." };
        let slash = if part.is_empty() { "" } else { "/" };
        format!("{resource}{group}{}{slash}{part}", self.group)
    }
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource_name())?;
        if let Some(namespace) = &self.namespace {
            write!(f, " in {namespace}")?;
        }
        if let Some(name) = &self.name {
            write!(f, " named {name}")?;
        }
        Ok(())
    }
}

/// All permissions of one binding.
#[derive(Debug)]
pub(super) struct Grant {
    /// The binding as in audit logs, such as `RoleBinding "name/namespace"`.
    pub(super) binding: String,
    /// In the order of the file.
    pub(super) permissions: Vec<Permission>,
}

/// Directories of `config` that contain permissions.
const FOLDERS: [&str; 2] = ["rbac", "storage-capacity"];

/// Returns the permissions that the bindings in the directory `config` grant to the operator's account.
pub(super) fn read_grants(config: &Path) -> Result<Vec<Grant>> {
    let mut texts = Vec::new();
    for folder in FOLDERS.map(|folder| config.join(folder)) {
        for entry in fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))? {
            let path = entry.with_context(|| format!("list {}", folder.display()))?.path();
            if path.extension().is_some_and(|extension| extension == "yaml") {
                texts.push(fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?);
            }
        }
    }
    // The order of directory entries is undefined.
    texts.sort();
    resolve_grants(&parse(&texts.join("\n---\n"), &config.display().to_string())?)
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn field<T: serde::de::DeserializeOwned>(object: &Value, name: &str) -> Result<T> {
    let value = object.get(name).cloned().unwrap_or_default();
    serde_json::from_value(value).with_context(|| format!("read {name} of {}", text(object, "/metadata/name")))
}

fn is_operator(subject: &Subject) -> bool {
    let name = (subject.namespace.as_deref(), subject.name.as_str());
    subject.kind == "ServiceAccount" && name == (Some(SERVICE_ACCOUNT.0), SERVICE_ACCOUNT.1)
}

fn resolve_grants(objects: &[Value]) -> Result<Vec<Grant>> {
    let mut grants = Vec::new();
    for binding in objects {
        let kind = text(binding, "/kind");
        if !kind.ends_with("RoleBinding") || !field::<Vec<Subject>>(binding, "subjects")?.iter().any(is_operator) {
            continue;
        }
        let name = text(binding, "/metadata/name");
        let namespace = Some(text(binding, "/metadata/namespace")).filter(|_| kind == "RoleBinding");
        let of: RoleRef = field(binding, "roleRef")?;
        let role = objects.iter().find(|role| {
            text(role, "/kind") == of.kind
                && text(role, "/metadata/name") == of.name
                && (of.kind == "ClusterRole" || Some(text(role, "/metadata/namespace")) == namespace)
        });
        let role = role.ok_or_else(|| Error::Usage(format!("config/rbac has no {} {}", of.kind, of.name)))?;
        let mut permissions = Vec::new();
        for rule in field::<Vec<PolicyRule>>(role, "rules")? {
            permissions.extend(expand_rule(&rule, namespace)?);
        }
        let binding = match namespace {
            Some(namespace) => format!("{kind} \"{name}/{namespace}\""),
            None => format!("{kind} \"{name}\""),
        };
        grants.push(Grant { binding, permissions });
    }
    Ok(grants)
}

/// Returns one permission for each verb and resource of a rule.
fn expand_rule(rule: &PolicyRule, namespace: Option<&str>) -> Result<Vec<Permission>> {
    let (groups, resources) = (
        rule.api_groups.as_deref().unwrap_or_default(),
        rule.resources.as_deref().unwrap_or_default(),
    );
    let names = rule.resource_names.as_deref().unwrap_or_default();
    let names: Vec<Option<String>> = match names {
        [] => vec![None],
        names => names.iter().cloned().map(Some).collect(),
    };
    let mut permissions = Vec::new();
    for (group, resource) in groups
        .iter()
        .flat_map(|group| resources.iter().map(move |r| (group, r)))
    {
        for (name, verb) in names
            .iter()
            .flat_map(|name| rule.verbs.iter().map(move |verb| (name, verb)))
        {
            if [group, resource, verb].iter().any(|word| word.contains('*')) {
                return Err(Error::Usage(format!(
                    "config/rbac grants {verb} {resource} of the group {group:?}: the use of a wildcard cannot be verified"
                )));
            }
            permissions.push(Permission {
                group: group.clone(),
                resource: resource.clone(),
                verb: verb.clone(),
                namespace: namespace.map(str::to_owned),
                name: name.clone(),
            });
        }
    }
    Ok(permissions)
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a panic is how a test fails"
)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_rules_of_the_repository_are_bound_to_the_account_and_have_no_wildcards() {
        let grants = read_grants(&crate::operator::repository_root().join("config")).unwrap();
        let bindings: Vec<&str> = grants.iter().map(|grant| grant.binding.as_str()).collect();
        assert!(
            bindings.contains(&"ClusterRoleBinding \"nfs-operator\""),
            "{bindings:?}"
        );
        assert!(
            bindings.contains(&"RoleBinding \"nfs-operator-lease/nfs-operator-system\""),
            "{bindings:?}"
        );
        assert!(
            bindings.contains(&"RoleBinding \"nfs-operator-records/nfs-operator-system\""),
            "{bindings:?}"
        );
        assert!(
            bindings.contains(&"RoleBinding \"nfs-operator-cluster-lock/kube-system\""),
            "{bindings:?}"
        );
        assert!(
            bindings.contains(&"RoleBinding \"nfs-operator-storage-capacity/nfs-operator-system\""),
            "{bindings:?}"
        );
        assert_eq!(bindings.len(), 5, "only bindings of the operator: {bindings:?}");
        let create = "create leases.coordination.k8s.io in nfs-operator-system";
        let permissions: Vec<String> = grants
            .iter()
            .flat_map(|grant| grant.permissions.iter())
            .map(Permission::to_string)
            .collect();
        assert!(
            permissions.iter().any(|permission| permission == create),
            "{permissions:?}"
        );
    }

    #[test]
    fn a_permission_covers_only_narrower_ones() {
        let rule: PolicyRule = serde_json::from_value(json!({
            "apiGroups": [""], "resources": ["events", "pods/log"], "resourceNames": ["a"], "verbs": ["get", "list"]
        }))
        .unwrap();
        let permissions = expand_rule(&rule, Some("here")).unwrap();
        assert_eq!(permissions.len(), 4);
        let requested = Permission {
            name: Some("a".into()),
            namespace: Some("here".into()),
            ..permissions[0].clone()
        };
        assert!(permissions[0].covers(&requested));
        assert!(!permissions[1].covers(&requested), "another verb");
        assert!(!permissions[0].covers(&Permission {
            namespace: None,
            ..requested.clone()
        }));
        assert!(!permissions[0].covers(&Permission {
            name: None,
            ..requested
        }));
    }

    #[test]
    fn a_wildcard_is_refused() {
        let rule: PolicyRule =
            serde_json::from_value(json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["*"]})).unwrap();
        assert!(expand_rule(&rule, None).unwrap_err().to_string().contains("pods"));
    }
}
