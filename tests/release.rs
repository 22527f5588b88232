#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]
//! Tests `make release` in a clone of this repository.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rig::RunDir;
use rig::operator::repository_root;

type Test = Result<(), Box<dyn std::error::Error>>;

/// Clones the repository with the current scripts, committed or not. Returns `None`, with a warning, if this is not a
/// git checkout.
fn clone(run: &RunDir) -> Result<Option<PathBuf>, Box<dyn std::error::Error>> {
    if !repository_root().join(".git").exists() {
        eprintln!("SKIPPED, `make release` is not tested: this is not a git checkout");
        return Ok(None);
    }
    let clone = run.path().join("clone");
    let from = repository_root().display().to_string();
    let to = clone.display().to_string();
    assert_success(&git(run.path(), &["clone", "--quiet", &from, &to])?);
    for script in ["release", "version", "artifacts"] {
        let script = Path::new(".ci").join(script);
        fs::copy(repository_root().join(&script), clone.join(&script))?;
    }
    assert_success(&git(&clone, &["config", "user.email", "test@example.com"])?);
    assert_success(&git(&clone, &["config", "user.name", "test"])?);
    assert_success(&git(&clone, &["add", "--all"])?);
    assert_success(&git(
        &clone,
        &["commit", "--quiet", "--allow-empty", "--message=scripts"],
    )?);
    Ok(Some(clone))
}

fn git(folder: &Path, args: &[&str]) -> std::io::Result<Output> {
    Command::new("git").args(args).current_dir(folder).output()
}

fn assert_success(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Returns the error output of `.ci/release`, which must fail.
fn refusal(clone: &Path, version: &str) -> Result<String, Box<dyn std::error::Error>> {
    let output = Command::new(clone.join(".ci/release")).arg(version).output()?;
    assert!(!output.status.success(), "{version} was released");
    Ok(String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_release_is_refused_for_a_bad_version_or_a_dirty_tree() -> Test {
    let run = RunDir::new()?;
    let Some(clone) = clone(&run)? else { return Ok(()) };
    for version in ["", "1.2", "v1.2.3", "1.2.3 ", "1.2.3; ls"] {
        assert!(
            refusal(&clone, version)?.contains("not a valid version such as"),
            "{version:?}"
        );
    }
    assert!(refusal(&clone, "77.0.0")?.contains("no section '## [77.0.0] - unreleased'"));
    fs::write(
        clone.join("CHANGELOG.md"),
        "## [77.0.0] - unreleased\n\n## [76.0.0] - 2026-01-01\n",
    )?;
    assert!(refusal(&clone, "77.0.0")?.contains("not clean"));
    assert_success(&git(&clone, &["commit", "--quiet", "--all", "--message=changelog"])?);
    assert!(refusal(&clone, "76.0.0")?.contains("lists 76.0.0 as released"));
    assert_success(&git(&clone, &["tag", "v77.0.0"])?);
    assert!(refusal(&clone, "77.0.0")?.contains("the tag v77.0.0 exists"));
    let status = git(&clone, &["status", "--porcelain"])?;
    assert!(status.stdout.is_empty(), "refusals change nothing");
    Ok(())
}

#[test]
fn a_release_writes_its_version_everywhere_and_dates_the_changelog() -> Test {
    let run = RunDir::new()?;
    let Some(clone) = clone(&run)? else { return Ok(()) };
    let changelog = clone.join("CHANGELOG.md");
    let text = fs::read_to_string(&changelog)?;
    fs::write(&changelog, text.replacen("## [", "## [77.0.0] - unreleased\n\n## [", 1))?;
    assert_success(&Command::new(clone.join(".ci/version")).arg("77.0.0").output()?);
    for (file, line) in [
        ("Cargo.toml", "version = \"77.0.0\""),
        ("Cargo.lock", "name = \"nfs-operator\"\nversion = \"77.0.0\""),
        ("Cargo.lock", "name = \"rig\"\nversion = \"77.0.0\""),
        (
            "Cargo.toml",
            "nfs-client = { path = \"crates/nfs-client\", version = \"77.0.0\"",
        ),
        ("Cargo.lock", "name = \"nfs-client\"\nversion = \"77.0.0\""),
        (
            "crates/nfs-client/fuzz/Cargo.lock",
            "name = \"nfs-client\"\nversion = \"77.0.0\"",
        ),
        (
            "crates/export-store/fuzz/Cargo.lock",
            "name = \"export-store\"\nversion = \"77.0.0\"",
        ),
        (
            "config/helm/nfs-operator/Chart.yaml",
            "\nversion: 77.0.0\nappVersion: 77.0.0\n",
        ),
        ("config/manager/kustomization.yaml", "newTag: 77.0.0\n"),
        (
            "config/manager/kustomization.yaml",
            "app.kubernetes.io/version: 77.0.0}\n",
        ),
        ("config/quota-agent/daemonset.yaml", "quota-agent:77.0.0\n"),
        ("config/quota-agent/sidecar.yaml", "quota-agent:77.0.0\n"),
        ("CHANGELOG.md", "## [77.0.0] - 20"),
        ("README.md", "./nfs-operator-77.0.0.tgz"),
        ("README.md", "| **Maturity** | 77.0.0"),
        ("docs/air-gapped.md", "nfs-operator/nfs-operator:77.0.0"),
        ("docs/gitops.md", "targetRevision: 77.0.0\n"),
        ("docs/gitops.md", "    tag: 77.0.0\n"),
        ("docs/install.md", "dist/nfs-operator-77.0.0-amd64.tar"),
        ("docs/kubectl-nfs.md", "kubectl-nfs-77.0.0-linux-amd64.tar.gz"),
        ("docs/monitoring.md", "./nfs-operator-77.0.0.tgz"),
    ] {
        let text = fs::read_to_string(clone.join(file))?;
        assert!(text.contains(line), "{file} has no {line:?}");
    }
    let changed = git(&clone, &["diff", "--name-only"])?;
    let changed = String::from_utf8(changed.stdout)?;
    assert_eq!(changed.lines().count(), 18, "nothing else: {changed}");
    let unpublished = git(&clone, &["grep", "--files-with-matches", "^[*]Not published yet"])?;
    assert!(
        unpublished.stdout.is_empty(),
        "{}",
        String::from_utf8_lossy(&unpublished.stdout)
    );
    // cargo accepts the lock file without changing it.
    let locked = ["metadata", "--locked", "--offline", "--no-deps", "--format-version=1"];
    assert_success(&Command::new("cargo").args(locked).current_dir(&clone).output()?);
    Ok(())
}

#[test]
fn the_krew_manifest_of_a_release_has_its_version_and_the_checksums_of_its_archives() -> Test {
    let run = RunDir::new()?;
    let mut sums = Vec::new();
    for arch in ["amd64", "arm64"] {
        let archive = run.path().join(format!("kubectl-nfs-77.0.0-linux-{arch}.tar.gz"));
        fs::write(&archive, arch)?;
        let sum = Command::new("sha256sum").arg(&archive).output()?;
        sums.push(String::from_utf8(sum.stdout)?.split(' ').next().unwrap().to_owned());
    }
    let krew = repository_root().join(".ci/krew");
    let manifest = Command::new(krew).arg("77.0.0").arg(run.path()).output()?;
    assert_success(&manifest);
    let manifest = String::from_utf8(manifest.stdout)?;
    assert!(!manifest.contains('@'), "{manifest}");
    let manifest: serde_json::Value = serde_norway::from_str(&manifest)?;
    assert_eq!(manifest["spec"]["version"], "v77.0.0");
    for (platform, sum) in manifest["spec"]["platforms"].as_array().unwrap().iter().zip(sums) {
        let arch = platform["selector"]["matchLabels"]["arch"].as_str().unwrap();
        let uri = platform["uri"].as_str().unwrap();
        assert!(
            uri.ends_with(&format!("/v77.0.0/kubectl-nfs-77.0.0-linux-{arch}.tar.gz")),
            "{uri}"
        );
        assert_eq!(platform["sha256"], sum);
    }
    Ok(())
}

/// Returns the workflows by file name.
fn workflows() -> Result<Vec<(String, serde_json::Value)>, Box<dyn std::error::Error>> {
    let mut workflows = Vec::new();
    for entry in fs::read_dir(repository_root().join(".github/workflows"))? {
        let path = entry?.path();
        let parsed = serde_norway::from_str(&fs::read_to_string(&path)?)?;
        workflows.push((path.file_name().unwrap().to_string_lossy().into_owned(), parsed));
    }
    assert!(workflows.len() >= 3, "{workflows:?}");
    Ok(workflows)
}

#[test]
fn workflows_name_their_actions_by_digest() -> Test {
    for (file, workflow) in workflows()? {
        let jobs = workflow["jobs"].as_object().unwrap().values();
        let steps = jobs.flat_map(|job| job["steps"].as_array().unwrap());
        for action in steps.filter_map(|step| step["uses"].as_str()) {
            let (_, digest) = action.split_once('@').unwrap_or_default();
            let is_digest = digest.len() == 40 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
            assert!(is_digest, "{file}: {action}");
        }
    }
    Ok(())
}

#[test]
fn only_the_job_that_publishes_may_write_and_it_builds_nothing() -> Test {
    for (file, workflow) in workflows()? {
        let read_only = serde_json::json!({"contents": "read"});
        assert_eq!(workflow["permissions"], read_only, "{file}");
        for (name, job) in workflow["jobs"].as_object().unwrap() {
            if name == "publish" {
                let text = job["steps"].to_string();
                assert!(!text.contains("actions/checkout") && !text.contains("cargo"), "{text}");
            } else {
                assert!(job.get("permissions").is_none(), "{file}: {name}");
            }
        }
    }
    Ok(())
}

/// Writes an executable script.
fn write_script(path: &Path, text: &str) -> Test {
    fs::create_dir_all(path.parent().unwrap())?;
    fs::write(path, format!("#!/bin/bash\n{text}\n"))?;
    fs::set_permissions(path, PermissionsExt::from_mode(0o755))?;
    Ok(())
}

/// Returns `PATH` with another folder in front.
fn path_with(folder: &Path) -> String {
    format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default())
}

#[test]
fn a_release_publishes_exactly_the_files_with_checksums() -> Test {
    let run = RunDir::new()?;
    let (dist, programs) = (run.new_dir("dist")?, run.new_dir("programs")?);
    fs::write(
        dist.join("SHA256SUMS"),
        "00  nfs-operator-77.0.0-amd64.tar\n01  nfs-operator-77.0.0.tgz\n",
    )?;
    write_script(&programs.join("gh"), "printf '%s\\n' \"$@\"")?;
    let (_, workflow) = workflows()?
        .into_iter()
        .find(|(file, _)| file == "release.yaml")
        .unwrap();
    let steps = workflow["jobs"]["publish"]["steps"].as_array().unwrap();
    let mut scripts = steps.iter().filter_map(|step| step["run"].as_str());
    let create = scripts.find(|script| script.contains("gh release create")).unwrap();
    let mut bash = Command::new("bash");
    bash.args(["-euc", create]).current_dir(run.path());
    let output = bash
        .env("PATH", path_with(&programs))
        .envs([
            ("VERSION", "77.0.0"),
            ("GITHUB_REF_NAME", "v77.0.0"),
            ("GITHUB_REPOSITORY", "o/r"),
        ])
        .output()?;
    assert_success(&output);
    let arguments = String::from_utf8(output.stdout)?;
    let files = arguments.split("notes.md\n").nth(1).unwrap();
    let expected = "SHA256SUMS\nSHA256SUMS.sigstore.json\nnfs-operator-77.0.0-amd64.tar\nnfs-operator-77.0.0.tgz\n";
    assert_eq!(files, expected);
    // A release on GitHub has no folders, so a path with one would be missing from what users check.
    let archive = fs::read_to_string(repository_root().join("image/build"))?;
    assert!(
        archive.contains("{3:-dist/nfs-operator-$version-$arch.tar}"),
        "the image is directly in dist/"
    );
    Ok(())
}

#[test]
fn the_daily_check_of_dependencies_fails_without_the_database_of_vulnerabilities() -> Test {
    let run = RunDir::new()?;
    let deny = run.new_dir("cargo-deny")?;
    write_script(&deny.join("bin/cargo-deny"), "[ \"$1\" != fetch ]")?;
    let (_, workflow) = workflows()?
        .into_iter()
        .find(|(file, _)| file == "dependencies.yaml")
        .unwrap();
    let steps = workflow["jobs"]["deny"]["steps"].as_array().unwrap();
    let daily = steps.iter().find_map(|step| step["run"].as_str()).unwrap();
    for (command, succeeds) in [(daily, false), ("make deny", true)] {
        let mut make = Command::new("bash");
        make.args(["-c", &format!("{command} DENY={}", deny.display())]);
        let output = make.current_dir(repository_root()).output()?;
        let stderr = String::from_utf8(output.stderr)?;
        assert_eq!(output.status.success(), succeeds, "{command}: {stderr}");
        assert!(stderr.contains("NOT CHECKED"), "{command}: {stderr}");
    }
    Ok(())
}

#[test]
fn a_release_commits_tags_and_lists_what_is_left() -> Test {
    let run = RunDir::new()?;
    let Some(clone) = clone(&run)? else { return Ok(()) };
    let changelog = clone.join("CHANGELOG.md");
    let text = fs::read_to_string(&changelog)?;
    fs::write(&changelog, text.replacen("## [", "## [77.0.0] - unreleased\n\n## [", 1))?;
    // Building takes minutes.
    write_script(&clone.join(".ci/artifacts"), "")?;
    assert_success(&git(&clone, &["commit", "--quiet", "--all", "--message=changelog"])?);
    let output = Command::new(clone.join(".ci/release")).arg("77.0.0").output()?;
    assert_success(&output);
    let printed = String::from_utf8(output.stdout)?;
    for rest in [
        "make lint kube-score test deny",
        "git push origin HEAD v77.0.0",
        "cargo publish --package nfs-client",
        "krew-index",
        "dist/nfs-operator-77.0.0.tgz to tests/pod/charts",
    ] {
        assert!(printed.contains(rest), "{rest:?} is missing in {printed}");
    }
    let tagged = git(&clone, &["log", "--format=%s", "-1", "v77.0.0"])?;
    assert_eq!(String::from_utf8(tagged.stdout)?, "Release 77.0.0\n");
    Ok(())
}

/// make executes each line of a recipe that contains `$(MAKE)`, also with `-n`: such a line must do nothing else.
#[test]
fn make_with_n_executes_nothing() -> Test {
    let makefile = fs::read_to_string(repository_root().join("Makefile"))?.replace("\\\n", " ");
    let recursive = makefile
        .lines()
        .filter(|line| line.starts_with('\t') && line.contains("$(MAKE)"));
    let mut count = 0;
    for line in recursive {
        let targets = line.strip_prefix("\t@$(MAKE) --no-print-directory ");
        let is_alone =
            targets.is_some_and(|targets| targets.chars().all(|c| c.is_ascii_lowercase() || "- ".contains(c)));
        assert!(is_alone, "use $(SUBMAKE) in {line}");
        count += 1;
    }
    assert!(count > 0, "no target makes another one");
    Ok(())
}
