//! The commands of the documentation, unchanged. docs/migrate-from-nfs-subdir.md has its own test.

use std::fs;
use std::path::PathBuf;

use rig::operator::repository_root;
use rig::{Export, Squash, wait};

use crate::docs::guide_cluster::GuideCluster;
use crate::support::shared::{Failure, TIMEOUT, Test, archives, names};
use crate::support::shell::Shell;

/// Marks a block whose commands run.
const RUNNABLE: &str = "bash runnable\n";
/// Marks a block whose commands the API server refuses. The next block is what they print.
const REFUSED: &str = "bash refused\n";
/// Marks a block that removes the installation, so that nothing else can run after it.
const UNINSTALL: &str = "bash uninstall\n";
/// The server address in the pages.
const SERVER: &str = "nfs.example.com";

/// Returns the blocks of a page with this mark, with the server of this test.
fn blocks(page: &str, mark: &str, port: u16) -> Vec<String> {
    let fenced = page.split("```").skip(1).step_by(2);
    let runnable = fenced.filter_map(|block| block.strip_prefix(mark));
    runnable.map(|block| at_port(block, port)).collect()
}

/// A block of a page that a test runs.
enum Block {
    /// Commands that must succeed.
    Runnable(String),
    /// Commands that must be refused with this message.
    Refused(String, String),
}

/// Returns the blocks of a page that run, in their order, with the server of this test.
fn blocks_to_run(page: &str, port: u16) -> Vec<Block> {
    let fenced: Vec<&str> = page.split("```").skip(1).step_by(2).collect();
    let mut found = Vec::new();
    for (block, next) in fenced.iter().zip(fenced.iter().skip(1).chain([&""])) {
        if let Some(commands) = block.strip_prefix(RUNNABLE) {
            found.push(Block::Runnable(at_port(commands, port)));
        } else if let Some(commands) = block.strip_prefix(REFUSED) {
            let message = next.strip_prefix("text\n").unwrap_or("no text follows").trim();
            found.push(Block::Refused(at_port(commands, port), message.to_owned()));
        }
    }
    found
}

/// Runs commands until they are refused with this message: quotas and policies take effect a moment after their creation.
async fn wait_refused(shell: &Shell, commands: &str, message: &str) -> Test {
    let waited = wait::until("the refusal of the page", TIMEOUT, async || {
        match shell.run_unchecked(commands).await {
            Ok(Err(printed)) if printed.contains(message) => Ok(()),
            Ok(Ok(printed)) => Err(format!("not refused: {printed}")),
            Ok(Err(printed)) => Err(format!("{printed}\nis not {message}")),
            Err(error) => Err(error.to_string()),
        }
    });
    Ok(waited.await?)
}

/// Adapts a block to a server on the loopback at another port, and to a machine that is slower than the reader's.
fn at_port(block: &str, port: u16) -> String {
    let has_settings = block.lines().any(|line| line == "  nfs:");
    let block = patient(block);
    let mut text = String::new();
    for line in block.lines() {
        let asks = ["nfs-operator probe", "nfs-operator archives"]
            .iter()
            .any(|command| line.contains(command));
        let asks = asks.then(|| format!(" --port {port}"));
        text += &line.replace(SERVER, "127.0.0.1");
        text += asks.as_deref().unwrap_or_default();
        text.push('\n');
        if line == "  nfs:" {
            text += &format!("    port: {port}\n");
        } else if line.starts_with("  server:") && !has_settings {
            text += &format!("  nfs: {{port: {port}}}\n");
        }
    }
    text
}

/// Extends the timeouts of commands: those of the pages are for a cluster that does nothing else.
fn patient(commands: &str) -> String {
    ["60s", "2m"].iter().fold(commands.to_owned(), |commands, short| {
        commands.replace(&format!("--timeout={short}"), "--timeout=240s")
    })
}

/// Returns the pages with runnable blocks, by name, after the quick start: the others use its backend.
fn pages() -> Result<Vec<(String, String)>, Failure> {
    let mut pages = Vec::new();
    for entry in fs::read_dir(repository_root().join("docs"))? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        let text = fs::read_to_string(&path)?;
        if text.contains(&format!("```{RUNNABLE}")) {
            pages.push((path.display().to_string(), text));
        }
    }
    pages.sort_by_key(|(name, _)| (!name.ends_with("quick-start.md"), name.clone()));
    Ok(pages)
}

#[tokio::test]
async fn every_runnable_block_of_the_documentation_runs_unchanged() -> Test {
    let squashed = Export {
        anonymous: (65534, 65534),
        ..Export::new("/squashed").squash(Squash::Root)
    };
    let guide = GuideCluster::start(vec![Export::new("/export"), Export::new("/groups"), squashed]).await?;
    std::os::unix::fs::chown(guide.nfs.data_dir("/squashed")?, Some(2000), Some(2000))?;
    let pages = pages()?;
    assert!(pages.len() > 3, "{pages:?}");
    for (name, text) in pages {
        let blocks = blocks_to_run(&text, guide.nfs.port());
        println!("{name}: {} blocks", blocks.len());
        // A reader runs the blocks of a page in one shell, and one block sets a variable for the next.
        let variables = guide.run.new_dir("variables")?.join("variables").display().to_string();
        for block in blocks {
            let block = match block {
                Block::Runnable(block) => block,
                Block::Refused(commands, message) => {
                    println!("{commands}");
                    wait_refused(&guide.shell, &commands, &message).await?;
                    continue;
                }
            };
            let block = format!("touch {variables}; . {variables}\n{block}\ndeclare -p VOLUME > {variables} || true");
            println!("{block}\n{}", guide.shell.run(&block).await?);
            if block.contains("name: writer") {
                // There is no node.
                fs::write(hello(&guide, "default-my-data-pvc-")?, "as the pod would\n")?;
            }
        }
        if name.ends_with("quick-start.md") {
            let restored = fs::read_to_string(hello(&guide, "default-my-data-pvc-")?)?;
            assert_eq!(restored, "as the pod would\n");
        }
    }
    // Probes are awaited silently, the first one and that of a changed spec.
    let warnings = "kubectl get events --all-namespaces --field-selector type=Warning,reason=ProvisioningFailed";
    let warnings = guide.shell.run(warnings).await?;
    for reason in ["NotProbed", "ProbeOutdated", "OverrideRefused"] {
        assert!(!warnings.contains(reason), "{warnings}");
    }
    Ok(())
}

/// Returns the path of the file that the pod of the quick start writes, in the directory whose name begins like this.
fn hello(guide: &GuideCluster, directory: &str) -> Result<PathBuf, Failure> {
    let export = guide.nfs.data_dir("/export")?;
    let directories = names(&export)?;
    let found = directories.iter().find(|name| name.starts_with(directory));
    let found = found.ok_or_else(|| format!("no {directory}… among {directories:?}"))?;
    Ok(export.join(found).join("hello.txt"))
}

#[tokio::test]
async fn the_uninstall_guide_removes_all_objects_and_keeps_the_archives_on_the_export() -> Test {
    let guide = GuideCluster::start(vec![Export::new("/export")]).await?;
    let (nfs, shell) = (&guide.nfs, &guide.shell);
    let export = nfs.data_dir("/export")?;
    for sample in ["backend", "storageclass", "claim"] {
        let sample = fs::read_to_string(repository_root().join(format!("config/samples/{sample}.yaml")))?;
        let sample = at_port(&sample, nfs.port());
        shell.run(&format!("kubectl apply -f - <<'END'\n{sample}END")).await?;
    }
    let bound = "kubectl wait --for=jsonpath='{.status.phase}'=Bound --timeout=240s pvc/my-data";
    shell.run(bound).await?;
    let directory = names(&export)?.concat();
    fs::write(export.join(directory).join("kept.txt"), "data of a pod\n")?;
    let archived = "VOLUME=$(kubectl get pvc my-data -o jsonpath='{.spec.volumeName}')
        kubectl delete pvc my-data
        kubectl wait --for=delete --timeout=240s \"pv/$VOLUME\"";
    shell.run(archived).await?;
    // Even the data of an archive that may be purged stay after the deletion of the CRD.
    let purgeable =
        "kubectl patch $(kubectl get nfsa -o name) --type merge -p '{\"spec\":{\"deletionPolicy\":\"Delete\"}}'";
    shell.run(purgeable).await?;

    let page = fs::read_to_string(repository_root().join("docs/install.md"))?;
    let blocks = blocks(&page, UNINSTALL, nfs.port());
    assert_eq!(blocks.len(), 1, "{blocks:?}");
    for block in blocks {
        println!("{block}\n{}", shell.run(&block).await?);
    }
    assert_eq!(shell.run("kubectl get nfsb -o name").await?, "");
    let kinds = shell.run("kubectl get crd -o name").await?;
    assert_eq!(
        kinds.trim(),
        "customresourcedefinition.apiextensions.k8s.io/nfsbackends.nfs-operator.io"
    );
    let archive = archives(&export)?.concat();
    assert!(export.join(&archive).join("kept.txt").is_file(), "{archive}");
    Ok(())
}
