//! Requests against rules. Pure.

use std::collections::BTreeMap;

use comfy_table::{Table, presets::UTF8_FULL_CONDENSED};

use super::audit_log::{Decision, Request};
use super::grants::{Grant, Permission};

/// How often each permission was used, and what should not have been.
#[derive(Debug)]
pub(super) struct PermissionUsage {
    permissions: Vec<PermissionCount>,
    /// What is wrong, and how often.
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

    /// Counts a request; gives back what is wrong with it: one that was refused, or granted by somebody else.
    pub(super) fn record(&mut self, request: &Request) -> Option<String> {
        let Decision::AllowedBy(binding) = &request.decision else {
            return Some(format!("refused: {}", request.permission));
        };
        // What every account may: see which APIs there are, and who it is itself. Where a rule says so, too, the API server
        // names whichever it came upon first: that is a use of ours.
        let is_everybodys = binding.starts_with("ClusterRoleBinding \"system:");
        let used = self
            .permissions
            .iter_mut()
            .find(|used| (is_everybodys || used.binding == *binding) && used.permission.covers(&request.permission));
        match used {
            Some(used) => {
                used.count += 1;
                None
            }
            None if is_everybodys => None,
            None => Some(format!(
                "not granted by config/rbac but by {binding}: {}",
                request.permission
            )),
        }
    }

    /// Whether a request was refused that the rules grant: for a moment an API server that has just started, as some
    /// tests make it do, does not know them yet.
    pub(super) fn is_transient(&self, request: &Request) -> bool {
        let granted = || {
            self.permissions
                .iter()
                .any(|used| used.permission.covers(&request.permission))
        };
        request.decision == Decision::Denied && granted()
    }

    /// Something is wrong.
    pub(super) fn add_violation(&mut self, finding: String) {
        *self.violations.entry(finding).or_default() += 1;
    }

    /// All requests that were granted by a rule.
    pub(super) fn request_count(&self) -> usize {
        self.permissions.iter().map(|used| used.count).sum()
    }

    /// A row for each resource of a binding, with its verbs and their uses.
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
        table.set_header(["granted by", "on", "verbs and their uses"]);
        for (binding, kind, verbs) in rows {
            table.add_row([binding.to_owned(), kind, verbs.join(", ")]);
        }
        table
    }

    /// All that is wrong; what nothing used only if the run was a whole one.
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
    fn what_nothing_used_is_found_after_a_whole_run_alone() {
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
    fn what_everybody_may_is_a_use_of_the_rule_that_says_it_too() {
        let mut usage = usage();
        assert_eq!(usage.record(&request("list", allowed_by("system:basic-user"))), None);
        assert_eq!(usage.record(&request("get", allowed_by("system:basic-user"))), None);
        let unused = "never used: watch nodes, granted by ClusterRoleBinding \"ours\"";
        assert_eq!(usage.findings(false), [unused]);
    }

    #[test]
    fn a_refusal_and_a_grant_by_others_are_found_and_what_everybody_may_is_not() {
        let mut usage = usage();
        let refused = usage.record(&request("delete", Decision::Denied));
        assert_eq!(refused.as_deref(), Some("refused: delete nodes"));
        assert!(!usage.is_transient(&request("delete", Decision::Denied)));
        assert!(usage.is_transient(&request("list", Decision::Denied)));
        assert!(!usage.is_transient(&request("list", allowed_by("theirs"))));
        let more = usage.record(&request("list", allowed_by("theirs")));
        assert!(more.is_some_and(|more| more.contains("theirs")));
        assert!(
            usage.record(&request("delete", allowed_by("ours"))).is_some(),
            "the cluster's role has more"
        );
        assert_eq!(usage.record(&request("list", allowed_by("system:basic-user"))), None);
        usage.add_violation("refused".into());
        usage.add_violation("refused".into());
        assert_eq!(usage.findings(true), ["refused (2 count)"]);
    }
}
