//! Verifies that the operator has the permissions that it uses, and no others: compares its RBAC rules with the audit
//! logs.
//!
//! If [`AUDIT_VARIABLE`] is set, each cluster writes its audit log to a directory that outlives the run. After all
//! tests, [`check`] compares what `config/rbac` and `config/storage-capacity` grant with these logs.

mod audit_log;
mod grants;
mod usage;

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
};

use crate::{
    error::{Error, Result, ResultExt},
    operator::repository_root,
};
use usage::PermissionUsage;

/// Environment variable with the directory for audit logs. If unset or empty, the log is in the run's directory.
pub const AUDIT_VARIABLE: &str = "NFS_OPERATOR_RIG_AUDIT";

/// Returns the path of a cluster's audit log.
pub(crate) fn audit_log_path(cluster: &Path) -> Result<PathBuf> {
    let Some(folder) = audit_folder(std::env::var_os(AUDIT_VARIABLE)) else {
        return Ok(cluster.join("audit.log"));
    };
    fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    // A test binary starts many clusters whose directories have the same name.
    let name = format!("{}-{}.log", std::process::id(), crate::random_suffix());
    Ok(folder.join(name))
}

/// Returns the directory that a value of [`AUDIT_VARIABLE`] names. An empty one names none: the logs would be in the working
/// directory, which is the repository.
fn audit_folder(value: Option<OsString>) -> Option<PathBuf> {
    value.filter(|folder| !folder.is_empty()).map(PathBuf::from)
}

/// Records that a test causes a violation in the cluster with this audit log.
pub(crate) fn expect_violation(audit_log: &Path, finding: &str) -> Result<()> {
    let path = expectations_path(audit_log);
    let action = || format!("write {}", path.display());
    let mut file = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .with_context(action)?;
    writeln!(file, "{finding}").with_context(action)
}

fn expectations_path(audit_log: &Path) -> PathBuf {
    audit_log.with_extension("on-purpose")
}

/// Prints each rule with the number of its uses.
///
/// # Errors
/// [`Error::Rbac`] with the requests that were denied or that other rules than those in `config/rbac` allowed, and,
/// unless the run is `partial`, with the unused rules.
pub fn check(folder: &Path, partial: bool) -> Result<()> {
    let grants = grants::read_grants(&repository_root().join("config"))?;
    let mut usage = PermissionUsage::new(grants);
    let mut logs = 0;
    for entry in fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))? {
        let path = entry.with_context(|| format!("list {}", folder.display()))?.path();
        if path.extension().is_some_and(|extension| extension == "log") {
            logs += 1;
            read_audit_log(&path, &mut usage)?;
        }
    }
    println!("{}", usage.table());
    println!(
        "{} requests of the operator, allowed by its rules, in the audit logs of {logs} clusters",
        usage.request_count()
    );
    let findings = usage.findings(partial);
    if findings.is_empty() {
        Ok(())
    } else {
        Err(Error::Rbac(findings))
    }
}

/// Adds the requests in one cluster's log, except the violations that its test expects.
fn read_audit_log(log: &Path, usage: &mut PermissionUsage) -> Result<()> {
    let expected = match fs::read_to_string(expectations_path(log)) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error).with_context(|| format!("read {}", expectations_path(log).display())),
    };
    let expected: BTreeSet<&str> = expected.lines().collect();
    let action = || format!("read {}", log.display());
    let lines = BufReader::new(fs::File::open(log).with_context(action)?).lines();
    let mut seen = BTreeSet::new();
    for line in lines {
        let Some(request) = audit_log::parse_operator_request(&line.with_context(action)?) else {
            continue;
        };
        let finding = usage.record(&request);
        let Some(finding) = finding else { continue };
        match expected.iter().find(|expected| finding.starts_with(**expected)) {
            Some(expected) => drop(seen.insert(*expected)),
            None if usage.is_transient(&request) => {}
            None => usage.add_violation(finding),
        }
    }
    for missing in expected.difference(&seen) {
        usage.add_violation(format!(
            "a test expects this violation, but it did not occur: {missing}"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn audit_logs_are_in_the_run_unless_a_directory_is_named() {
        assert_eq!(audit_folder(None), None);
        assert_eq!(audit_folder(Some(OsString::new())), None, "not the working directory");
        assert_eq!(audit_folder(Some("logs".into())), Some(PathBuf::from("logs")));
    }
}
