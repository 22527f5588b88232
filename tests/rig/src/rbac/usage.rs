//! Comparison of requests with permissions. Pure functions without I/O.

use std::collections::BTreeMap;

use comfy_table::{Table, presets::UTF8_FULL_CONDENSED};

use super::audit_log::{Decision, Request};
use super::grants::{Grant, Permission};

/// The number of uses of each permission, and all violations.
#[derive(Debug)]
pub(super) struct PermissionUsage {
    permissions: Vec<PermissionCount>,
    /// Violations with the number of their occurrences.
    violations: BTreeMap<String, usize>,
}

#[derive(Debug)]
struct PermissionCount {
    binding: String,
    permission: Permission,
    count: usize,
}

impl PermissionUsage {
    pub(super) fn new(grants: Vec<Grant>) -> Self {
        let permissions = grants.into_iter().flat_map(|Grant { binding, permissions }| {
            permissions.into_iter().map(move |permission| PermissionCount {
                binding: binding.clone(),
                permission,
                count: 0,
            })
        });
        Self {
            permissions: permissions.collect(),
            violations: BTreeMap::new(),
        }
    }

    /// Counts a request. Returns a violation if it was denied, or allowed by another rule.
    pub(super) fn record(&mut self, request: &Request) -> Option<String> {
        let Decision::AllowedBy(binding) = &request.decision else {
            return Some(format!("refused: {}", request.permission));
        };
        // Permissions of every account, such as API discovery. If a rule of the operator grants one of them, too, the
        // API server reports any of the two, so this counts as a use of that rule.
        let is_of_every_account = binding.starts_with("ClusterRoleBinding \"system:");
        let used = self.permissions.iter_mut().find(|used| {
            (is_of_every_account || used.binding == *binding) && used.permission.covers(&request.permission)
        });
        match used {
            Some(used) => {
                used.count += 1;
                None
            }
            None if is_of_every_account => None,
            None => Some(format!(
                "not granted by config/rbac but by {binding}: {}",
                request.permission
            )),
        }
    }

    /// Returns whether a request was denied that the rules grant: an API server that has just started does not know
    /// them yet.
    pub(super) fn is_transient(&self, request: &Request) -> bool {
        let granted = || {
            self.permissions
                .iter()
                .any(|used| used.permission.covers(&request.permission))
        };
        request.decision == Decision::Denied && granted()
    }

    pub(super) fn add_violation(&mut self, finding: String) {
        *self.violations.entry(finding).or_default() += 1;
    }

    /// Returns the number of requests that a rule allowed.
    pub(super) fn request_count(&self) -> usize {
        self.permissions.iter().map(|used| used.count).sum()
    }

    /// Returns a table with a row for each resource of a binding, its verbs and number of uses.
    pub(super) fn table(&self) -> Table {
        let mut rows: Vec<(&str, String, Vec<String>)> = Vec::new();
        for PermissionCount {
            binding,
            permission,
            count,
        } in &self.permissions
        {
            let kind = match &permission.name {
                Some(name) => format!("{} named {name}", permission.resource_name()),
                None => permission.resource_name(),
            };
            let uses = format!("{} {count}", permission.verb);
            match rows.last_mut() {
                Some((of, last, verbs)) if *of == binding && *last == kind => verbs.push(uses),
                _ => rows.push((binding, kind, vec![uses])),
            }
        }
        let mut table = Table::new();
        table.load_style(UTF8_FULL_CONDENSED);
        table.set_header(["granted by", "resource", "verbs and number of uses"]);
        for (binding, kind, verbs) in rows {
            table.add_row([binding.to_owned(), kind, verbs.join(", ")]);
        }
        table
    }

    /// Returns all violations, and unused permissions unless the run is `partial`.
    pub(super) fn findings(&self, partial: bool) -> Vec<String> {
        let violations = self
            .violations
            .iter()
            .map(|(what, count)| format!("{what} ({count} count)"));
        let unused = self.permissions.iter().filter(|used| used.count == 0 && !partial);
        let unused = unused.map(|used| format!("never used: {}, granted by {}", used.permission, used.binding));
        violations.chain(unused).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permission(verb: &str) -> Permission {
        Permission {
            group: String::new(),
            resource: "nodes".into(),
            verb: verb.into(),
            namespace: None,
            name: None,
        }
    }

    fn usage() -> PermissionUsage {
        PermissionUsage::new(vec![Grant {
            binding: "ClusterRoleBinding \"ours\"".into(),
            permissions: vec![permission("list"), permission("watch")],
        }])
    }

    fn request(verb: &str, decision: Decision) -> Request {
        Request {
            permission: permission(verb),
            decision,
        }
    }

    fn allowed_by(binding: &str) -> Decision {
        Decision::AllowedBy(format!("ClusterRoleBinding \"{binding}\""))
    }

    #[test]
    fn unused_permissions_are_reported_only_after_a_complete_run() {
        let mut usage = usage();
        assert_eq!(usage.record(&request("list", allowed_by("ours"))), None);
        let unused = "never used: watch nodes, granted by ClusterRoleBinding \"ours\"";
        assert_eq!(usage.findings(false), [unused]);
        assert_eq!(usage.findings(true), Vec::<String>::new());
        assert_eq!(usage.record(&request("watch", allowed_by("ours"))), None);
        assert_eq!(usage.findings(false), Vec::<String>::new());
        assert!(
            usage.table().to_string().contains("list 1, watch 1"),
            "{}",
            usage.table()
        );
    }

    #[test]
    fn a_permission_of_every_account_counts_as_a_use_of_a_rule_that_grants_it() {
        let mut usage = usage();
        assert_eq!(usage.record(&request("list", allowed_by("system:basic-user"))), None);
        assert_eq!(usage.record(&request("get", allowed_by("system:basic-user"))), None);
        let unused = "never used: watch nodes, granted by ClusterRoleBinding \"ours\"";
        assert_eq!(usage.findings(false), [unused]);
    }

    #[test]
    fn denied_requests_and_grants_by_others_are_reported() {
        let mut usage = usage();
        let denied = usage.record(&request("delete", Decision::Denied));
        assert_eq!(denied.as_deref(), Some("refused: delete nodes"));
        assert!(!usage.is_transient(&request("delete", Decision::Denied)));
        assert!(usage.is_transient(&request("list", Decision::Denied)));
        assert!(!usage.is_transient(&request("list", allowed_by("theirs"))));
        let other = usage.record(&request("list", allowed_by("theirs")));
        assert!(other.is_some_and(|other| other.contains("theirs")));
        assert!(
            usage.record(&request("delete", allowed_by("ours"))).is_some(),
            "no rule grants it"
        );
        assert_eq!(usage.record(&request("list", allowed_by("system:basic-user"))), None);
        usage.add_violation("refused".into());
        usage.add_violation("refused".into());
        assert_eq!(usage.findings(true), ["refused (2 count)"]);
    }
}
