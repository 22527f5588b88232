//! Requests against rules. Pure.

use std::collections::BTreeMap;

use comfy_table::{Table, presets::UTF8_FULL_CONDENSED};

use super::requests::{Decision, Request};
use super::rules::{Grant, Right};

/// How often each right was used, and what should not have been.
#[derive(Debug)]
pub(super) struct Verdict {
    rights: Vec<Used>,
    /// What is wrong, and how often.
    complaints: BTreeMap<String, usize>,
}

#[derive(Debug)]
struct Used {
    binding: String,
    right: Right,
    times: usize,
}

impl Verdict {
    pub(super) fn new(grants: Vec<Grant>) -> Self {
        let rights = grants.into_iter().flat_map(|Grant { binding, rights }| {
            rights.into_iter().map(move |right| Used {
                binding: binding.clone(),
                right,
                times: 0,
            })
        });
        Self {
            rights: rights.collect(),
            complaints: BTreeMap::new(),
        }
    }

    /// Counts a request; gives back what is wrong with it: one that was refused, or granted by somebody else.
    pub(super) fn take(&mut self, request: &Request) -> Option<String> {
        let Decision::By(binding) = &request.decision else {
            return Some(format!("refused: {}", request.right));
        };
        // What every account may: see which APIs there are, and who it is itself. Where a rule says so, too, the API server
        // names whichever it came upon first: that is a use of ours.
        let is_everybodys = binding.starts_with("ClusterRoleBinding \"system:");
        let used = self
            .rights
            .iter_mut()
            .find(|used| (is_everybodys || used.binding == *binding) && used.right.covers(&request.right));
        match used {
            Some(used) => {
                used.times += 1;
                None
            }
            None if is_everybodys => None,
            None => Some(format!(
                "not granted by config/rbac but by {binding}: {}",
                request.right
            )),
        }
    }

    /// Whether a request was refused that the rules grant: for a moment an API server that has just started, as some
    /// tests make it do, does not know them yet.
    pub(super) fn is_momentary(&self, request: &Request) -> bool {
        let granted = || self.rights.iter().any(|used| used.right.covers(&request.right));
        request.decision == Decision::Refused && granted()
    }

    /// Something is wrong.
    pub(super) fn complain(&mut self, finding: String) {
        *self.complaints.entry(finding).or_default() += 1;
    }

    /// All requests that were granted by a rule.
    pub(super) fn granted(&self) -> usize {
        self.rights.iter().map(|used| used.times).sum()
    }

    /// A row for each resource of a binding, with its verbs and their uses.
    pub(super) fn table(&self) -> Table {
        let mut rows: Vec<(&str, String, Vec<String>)> = Vec::new();
        for Used { binding, right, times } in &self.rights {
            let kind = match &right.name {
                Some(name) => format!("{} named {name}", right.kind()),
                None => right.kind(),
            };
            let uses = format!("{} {times}", right.verb);
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
        let complaints = self
            .complaints
            .iter()
            .map(|(what, times)| format!("{what} ({times} times)"));
        let unused = self.rights.iter().filter(|used| used.times == 0 && !partial);
        let unused = unused.map(|used| format!("never used: {}, granted by {}", used.right, used.binding));
        complaints.chain(unused).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn right(verb: &str) -> Right {
        Right {
            group: String::new(),
            resource: "nodes".into(),
            verb: verb.into(),
            namespace: None,
            name: None,
        }
    }

    fn verdict() -> Verdict {
        Verdict::new(vec![Grant {
            binding: "ClusterRoleBinding \"ours\"".into(),
            rights: vec![right("list"), right("watch")],
        }])
    }

    fn request(verb: &str, decision: Decision) -> Request {
        Request {
            right: right(verb),
            decision,
        }
    }

    fn by(binding: &str) -> Decision {
        Decision::By(format!("ClusterRoleBinding \"{binding}\""))
    }

    #[test]
    fn what_nothing_used_is_found_after_a_whole_run_alone() {
        let mut verdict = verdict();
        assert_eq!(verdict.take(&request("list", by("ours"))), None);
        let unused = "never used: watch nodes, granted by ClusterRoleBinding \"ours\"";
        assert_eq!(verdict.findings(false), [unused]);
        assert_eq!(verdict.findings(true), Vec::<String>::new());
        assert_eq!(verdict.take(&request("watch", by("ours"))), None);
        assert_eq!(verdict.findings(false), Vec::<String>::new());
        assert!(
            verdict.table().to_string().contains("list 1, watch 1"),
            "{}",
            verdict.table()
        );
    }

    #[test]
    fn what_everybody_may_is_a_use_of_the_rule_that_says_it_too() {
        let mut verdict = verdict();
        assert_eq!(verdict.take(&request("list", by("system:basic-user"))), None);
        assert_eq!(verdict.take(&request("get", by("system:basic-user"))), None);
        let unused = "never used: watch nodes, granted by ClusterRoleBinding \"ours\"";
        assert_eq!(verdict.findings(false), [unused]);
    }

    #[test]
    fn a_refusal_and_a_grant_by_others_are_found_and_what_everybody_may_is_not() {
        let mut verdict = verdict();
        let refused = verdict.take(&request("delete", Decision::Refused));
        assert_eq!(refused.as_deref(), Some("refused: delete nodes"));
        assert!(!verdict.is_momentary(&request("delete", Decision::Refused)));
        assert!(verdict.is_momentary(&request("list", Decision::Refused)));
        assert!(!verdict.is_momentary(&request("list", by("theirs"))));
        let more = verdict.take(&request("list", by("theirs")));
        assert!(more.is_some_and(|more| more.contains("theirs")));
        assert!(
            verdict.take(&request("delete", by("ours"))).is_some(),
            "the cluster's role has more"
        );
        assert_eq!(verdict.take(&request("list", by("system:basic-user"))), None);
        verdict.complain("refused".into());
        verdict.complain("refused".into());
        assert_eq!(verdict.findings(true), ["refused (2 times)"]);
    }
}
