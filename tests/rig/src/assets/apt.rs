//! Debian packages: installing them as root, or only downloading them.

use std::{fs, path::Path, process::Command};

use super::{Debian, Progress, find_program};
use crate::{
    error::{Error, Result, ResultExt},
    process::run,
};

fn apt_get(args: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    // On a machine that was just started, another apt-get may run.
    command.args(["-q", "-o", "DPkg::Lock::Timeout=300"]).args(args);
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command
}

/// Installs packages without those that they recommend, and first reports the `cost`. Needs root.
///
/// # Errors
/// Every failure, converted by `missing`.
pub(super) async fn install(packages: &[&str], cost: &str, missing: impl Fn(&str) -> Error) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Err(missing("only root can install packages"));
    }
    find_program("apt-get").ok_or_else(|| missing("there is no apt-get here"))?;
    let names = packages.join(" ");
    let progress = Progress::start(&format!("installing {names} with apt-get ({cost})"));
    let failed = |error: Error| missing(&error.to_string());
    refresh().await.map_err(failed)?;
    progress.step("package lists are up to date");
    let args = [&["install", "-y", "--no-install-recommends"], packages].concat();
    run(apt_get(&args)).await.map_err(failed)?;
    progress.done(&format!("installed {names}"));
    Ok(())
}

/// Stops and disables a service that a package started although the rig starts its own.
pub(super) async fn disable_service(service: &str) -> Result<()> {
    // Without systemd, packages do not start services.
    if !Path::new("/run/systemd/system").is_dir() {
        return Ok(());
    }
    let mut command = Command::new("systemctl");
    command.args(["disable", "--now", service]);
    run(command).await?;
    eprintln!("rig: stopped and disabled {service}, which its package had started");
    Ok(())
}

/// Updates the package lists of this machine if this process may do that. A machine may have none, or old ones whose
/// packages no longer exist.
async fn refresh() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    run(apt_get(&["update"])).await.map(drop)
}

/// A release of Debian whose packages are downloaded, and not installed.
pub(super) struct Release {
    /// Options that replace the machine's own package lists by others.
    options: Vec<String>,
}

impl Release {
    /// Returns the release that a cache entry is built from. Another one than the machine's own has its package lists
    /// in a new directory `lists`.
    pub(super) async fn open(debian: Debian, lists: &Path) -> Result<Self> {
        refresh().await?;
        match debian.codename() {
            None => Ok(Self { options: Vec::new() }),
            Some(codename) => Self::other(codename, lists).await,
        }
    }

    async fn other(codename: &str, lists: &Path) -> Result<Self> {
        let mirrors = mirrors().await?;
        let (_, mirror) = mirrors.last().ok_or_else(no_mirror)?;
        Self::listed(&format!("{mirror} {codename} main"), lists).await
    }

    /// Returns this machine's own release with its section contrib: free software that needs something that Debian does
    /// not consider free. Its package lists are in a new directory `lists`.
    pub(super) async fn own_with_contrib(lists: &Path) -> Result<Self> {
        refresh().await?;
        let mirrors = mirrors().await?;
        // Not the updates of a release, whose names have a suffix.
        let (codename, mirror) = mirrors
            .iter()
            .find(|(codename, _)| !codename.contains('-'))
            .ok_or_else(no_mirror)?;
        Self::listed(&format!("{mirror} {codename} main contrib"), lists).await
    }

    /// `archive` is the mirror, the release and its sections.
    async fn listed(archive: &str, lists: &Path) -> Result<Self> {
        for name in ["state/lists/partial", "cache/archives/partial"] {
            let path = lists.join(name);
            fs::create_dir_all(&path).with_context(|| format!("create {}", path.display()))?;
        }
        let sources = format!("deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {archive}\n");
        for (name, text) in [("sources.list", sources.as_str()), ("state/status", "")] {
            let path = lists.join(name);
            fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        }
        let lists = lists.display();
        let options = [
            format!("Dir::Etc::sourcelist={lists}/sources.list"),
            "Dir::Etc::sourceparts=-".to_owned(),
            format!("Dir::State={lists}/state"),
            format!("Dir::State::status={lists}/state/status"),
            format!("Dir::Cache={lists}/cache"),
        ];
        let release = Self {
            options: options.into(),
        };
        run(release.command(apt_get(&["update"]))).await?;
        Ok(release)
    }

    /// Downloads packages into a directory. Needs no root if package lists exist.
    pub(super) async fn download(&self, packages: &[String], folder: &Path) -> Result<()> {
        let mut download = self.command(apt_get(&["download"]));
        download.args(packages).current_dir(folder);
        run(download).await.map(drop)
    }

    /// Returns the packages that `packages` depend on, directly or (`recurse`) also indirectly, without virtual ones.
    pub(super) async fn depends(&self, packages: &[&str], recurse: bool) -> Result<Vec<String>> {
        let mut depends = self.command(Command::new("apt-cache"));
        depends.args(["depends", "--important", "--no-pre-depends"]);
        if recurse {
            depends.arg("--recurse");
        }
        depends.args(packages);
        Ok(parse_depends(&run(depends).await?))
    }

    fn command(&self, mut command: Command) -> Command {
        // apt's own user may not be able to write to the directories.
        for option in self
            .options
            .iter()
            .map(String::as_str)
            .chain(["APT::Sandbox::User=root"])
        {
            command.args(["-o", option]);
        }
        command
    }
}

/// Returns the releases of Debian of which this machine has package lists, and the addresses from which they come.
async fn mirrors() -> Result<Vec<(String, String)>> {
    let format = "$(ORIGIN) $(LABEL) $(COMPONENT) $(CODENAME) $(REPO_URI)";
    let printed = run(apt_get(&["indextargets", "--format", format, "Created-By: Packages"])).await?;
    let mirrors = printed
        .lines()
        .filter_map(|line| line.strip_prefix("Debian Debian main ")?.split_once(' '));
    Ok(mirrors
        .map(|(codename, mirror)| (codename.to_owned(), mirror.to_owned()))
        .collect())
}

fn no_mirror() -> Error {
    Error::Missing {
        what: "a mirror of Debian".into(),
        remedy: "list one in /etc/apt/sources.list, and run `apt-get update`".into(),
    }
}

/// Reports whether a package contains a shared library, by its name.
pub(super) fn is_library(package: &str) -> bool {
    package.starts_with("lib") || package == "zlib1g"
}

/// Parses the output of `apt-cache depends`. Names in `<…>` are virtual packages.
fn parse_depends(printed: &str) -> Vec<String> {
    let names = printed.lines().filter_map(|line| line.split("Depends: ").nth(1));
    let real = names.map(str::trim).filter(|name| !name.starts_with('<'));
    // A colon separates the name from another architecture.
    let mut names: Vec<String> = real.filter(|name| !name.contains(':')).map(str::to_owned).collect();
    names.sort();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    #[test]
    fn dependencies_of_a_package_are_parsed() {
        let printed =
            "first\n  Depends: libone\n |Depends: libtwo\n  Depends: <virtual>\n    libthree\n  Depends: other:i386\n";
        assert_eq!(super::parse_depends(printed), ["libone", "libtwo"]);
    }
}
