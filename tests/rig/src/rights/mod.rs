//! Whether the operator has the rights that it uses, no fewer and no more: its Roles against the API servers' audit logs.
//!
//! With [`AUDIT_VARIABLE`] each cluster leaves its audit log in a folder that outlives the run. After all tests,
//! [`check`] reads what `config/rbac` grants and what was asked for.

mod requests;
mod rules;
mod verdict;

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
};

use crate::{
    error::{Doing, Error, Result},
    operator::repository,
};
use verdict::Verdict;

/// The folder in which each cluster's audit log is kept, instead of the run's.
pub const AUDIT_VARIABLE: &str = "NFS_OPERATOR_RIG_AUDIT";

/// Where a cluster writes its audit log: the kept folder if there is one, else the cluster's own.
pub(crate) fn audit_log(cluster: &Path) -> Result<PathBuf> {
    let Some(kept) = std::env::var_os(AUDIT_VARIABLE).map(PathBuf::from) else {
        return Ok(cluster.join("audit.log"));
    };
    fs::create_dir_all(&kept).doing(|| format!("make {}", kept.display()))?;
    // A test binary starts many clusters, each in a folder of the same name.
    let name = format!("{}-{}.log", std::process::id(), crate::suffix());
    Ok(kept.join(name))
}

/// Says that a test provokes this on purpose in the cluster with that audit log.
pub(crate) fn on_purpose(audit_log: &Path, finding: &str) -> Result<()> {
    let path = purposes(audit_log);
    let doing = || format!("write {}", path.display());
    let mut file = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .doing(doing)?;
    writeln!(file, "{finding}").doing(doing)
}

fn purposes(audit_log: &Path) -> PathBuf {
    audit_log.with_extension("on-purpose")
}

/// Prints each rule with its uses. An error names what was refused, what was granted by others than `config/rbac`, and,
/// unless the run was a `partial` one, the rules that nothing used.
pub fn check(folder: &Path, partial: bool) -> Result<()> {
    let grants = rules::granted(&repository().join("config/rbac"))?;
    let mut verdict = Verdict::new(grants);
    let mut logs = 0;
    for entry in fs::read_dir(folder).doing(|| format!("list {}", folder.display()))? {
        let path = entry.doing(|| format!("list {}", folder.display()))?.path();
        if path.extension().is_some_and(|extension| extension == "log") {
            logs += 1;
            judge(&path, &mut verdict)?;
        }
    }
    println!("{}", verdict.table());
    println!(
        "{} requests of the operator, granted by its rules, in the audit logs of {logs} clusters",
        verdict.granted()
    );
    let findings = verdict.findings(partial);
    if findings.is_empty() {
        Ok(())
    } else {
        Err(Error::Rights(findings))
    }
}

/// Takes in the log of one cluster, and what its test announced.
fn judge(log: &Path, verdict: &mut Verdict) -> Result<()> {
    let announced = match fs::read_to_string(purposes(log)) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error).doing(|| format!("read {}", purposes(log).display())),
    };
    let announced: BTreeSet<&str> = announced.lines().collect();
    let doing = || format!("read {}", log.display());
    let lines = BufReader::new(fs::File::open(log).doing(doing)?).lines();
    let mut met = BTreeSet::new();
    for line in lines {
        let Some(request) = requests::by_operator(&line.doing(doing)?) else {
            continue;
        };
        let finding = verdict.take(&request);
        let Some(finding) = finding else { continue };
        match announced.iter().find(|announced| finding.starts_with(**announced)) {
            Some(announced) => drop(met.insert(*announced)),
            None if verdict.is_momentary(&request) => {}
            None => verdict.complain(finding),
        }
    }
    for unmet in announced.difference(&met) {
        verdict.complain(format!("a test announced, and it never happened: {unmet}"));
    }
    Ok(())
}
