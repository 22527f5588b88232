//! A copy of the committed code, in which patches are applied and built.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use super::patch::Patch;

/// A worktree of the repository, and the folder in which it is built: only the crates that a patch changes are built again.
pub struct Scratch {
    tree: PathBuf,
    target: PathBuf,
}

/// Runs git in a folder.
pub fn git(folder: &Path, arguments: &[&str]) -> io::Result<String> {
    let output = Command::new("git").arg("-C").arg(folder).args(arguments).output()?;
    succeeded(output, &format!("git {}", arguments.join(" ")))
}

/// Returns the output of a command that succeeded.
fn succeeded(output: Output, what: &str) -> io::Result<String> {
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => {
            let error = String::from_utf8_lossy(&output.stderr);
            Err(io::Error::other(format!("{what}: {}", error.trim())))
        }
    }
}

impl Scratch {
    /// Copies what is committed.
    pub fn new(repository: &Path) -> io::Result<Self> {
        let folder = repository.canonicalize()?.join("target/mutations");
        let scratch = Self {
            tree: folder.join("tree"),
            target: folder.join("build"),
        };
        let commit = git(repository, &["rev-parse", "HEAD"])?;
        if scratch.tree.exists() {
            // Files that stay the same keep their times, so that they are not built again.
            git(&scratch.tree, &["checkout", "--quiet", "--force", "--detach", &commit])?;
        } else {
            git(repository, &["worktree", "prune"])?;
            let tree = scratch.tree.to_string_lossy().into_owned();
            git(repository, &["worktree", "add", "--quiet", "--detach", &tree, &commit])?;
        }
        Ok(scratch)
    }

    /// Applies a patch.
    pub fn apply(&self, patch: &Patch) -> io::Result<()> {
        git(&self.tree, &["apply", &patch.file.to_string_lossy()]).map(drop)
    }

    /// Reverts a patch.
    pub fn revert(&self, patch: &Patch) -> io::Result<()> {
        git(&self.tree, &["apply", "--reverse", &patch.file.to_string_lossy()]).map(drop)
    }

    /// Builds the simulation. Each mutation is built for few seeds: a build takes a third of the time, and a seed a third
    /// more. Without optimization across the units of a crate, which goes wrong where only some of them are built again:
    /// names that one unit refers to no longer exist in the others.
    pub fn build(&self) -> io::Result<()> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let output = Command::new(cargo)
            .args(["build", "--quiet", "--profile", "sim", "-p", "sim"])
            .current_dir(&self.tree)
            .env("CARGO_TARGET_DIR", &self.target)
            .env("CARGO_PROFILE_SIM_INCREMENTAL", "true")
            .env("CARGO_PROFILE_SIM_LTO", "off")
            .env("CARGO_PROFILE_SIM_OPT_LEVEL", "1")
            .env("CARGO_PROFILE_SIM_CODEGEN_UNITS", "256")
            .output()?;
        succeeded(output, "cargo build").map(drop)
    }

    /// Runs seeds until one fails. Returns the number of seeds that this took, and how it failed.
    pub fn first_failure(&self, seeds: u64, jobs: Option<u64>) -> io::Result<Option<(u64, String)>> {
        let mut command = Command::new(self.target.join("sim/sim"));
        command.args(["many", "FAILURES=1", "SHRINK=0", &format!("SEEDS={seeds}")]);
        if let Some(jobs) = jobs {
            command.arg(format!("JOBS={jobs}"));
        }
        let output = command.stderr(Stdio::null()).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let failure = text
            .lines()
            .find_map(|line| line.strip_prefix("seed ")?.split_once(" fails: "));
        match failure {
            Some((seed, cause)) => Ok(Some((seed.parse().map_err(io::Error::other)?, cause.to_owned()))),
            None if output.status.success() => Ok(None),
            None => Err(io::Error::other(format!("no result: {text}"))),
        }
    }
}
