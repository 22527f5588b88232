//! Whether the operator has the permissions that it uses, no fewer and no more: its Roles against the API servers' audit logs.
//!
//! With [`AUDIT_VARIABLE`] each cluster leaves its audit log in a folder that outlives the run. After all tests,
//! [`check`] reads what `config/rbac` grants and what was asked for.

mod audit_log;
mod grants;
mod usage;

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
};

use crate::{
    error::{Error, Result, ResultExt},
    operator::repository_root,
};
use usage::PermissionUsage;

/// The folder in which each cluster's audit log is kept, instead of the run's.
pub const AUDIT_VARIABLE: &str = "NFS_OPERATOR_RIG_AUDIT";

/// Where a cluster writes its audit log: the kept folder if there is one, else the cluster's own.
pub(crate) fn audit_log_path(cluster: &Path) -> Result<PathBuf> {
    let Some(kept) = std::env::var_os(AUDIT_VARIABLE).map(PathBuf::from) else {
        return Ok(cluster.join("audit.log"));
    };
    fs::create_dir_all(&kept).with_context(|| format!("make {}", kept.display()))?;
    // A test binary starts many clusters, each in a folder of the same name.
    let name = format!("{}-{}.log", std::process::id(), crate::random_suffix());
    Ok(kept.join(name))
}

/// Says that a test provokes this on purpose in the cluster with that audit log.
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

/// Prints each rule with its uses. An error names what was refused, what was granted by others than `config/rbac`, and,
/// unless the run was a `partial` one, the rules that nothing used.
pub fn check(folder: &Path, partial: bool) -> Result<()> {
    let grants = grants::read_grants(&repository_root().join("config/rbac"))?;
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
        "{} requests of the operator, granted by its rules, in the audit logs of {logs} clusters",
        usage.request_count()
    );
    let findings = usage.findings(partial);
    if findings.is_empty() {
        Ok(())
    } else {
        Err(Error::Rbac(findings))
    }
}

/// Takes in the log of one cluster, and what its test expected.
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
        usage.add_violation(format!("a test expected, and it never happened: {missing}"));
    }
    Ok(())
}
