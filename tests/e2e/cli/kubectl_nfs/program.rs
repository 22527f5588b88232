//! The plugin as a program: help, completion, access to the cluster.

use std::fs;
use std::process::Output;

use rig::operator::find_binary;
use rig::{RunDir, TestEnv};
use tokio::process::Command;

use crate::cli::program::text;
use crate::support::shared::{TIMEOUT, Test};
use crate::support::shell::Shell;

/// Number of claims whose names are completed: more than the objects of the first page of a list, which are 25.
const CLAIMS: usize = 30;

async fn nfs(args: &[&str]) -> Output {
    let mut command = Command::new(find_binary().unwrap());
    command.arg0("kubectl-nfs").args(args).env_remove("KUBECONFIG");
    command.output().await.unwrap()
}

#[tokio::test]
async fn its_help_names_the_plugin_and_its_exit_codes() {
    let help = nfs(&["--help"]).await;
    let help = text(&help.stdout);
    assert!(
        help.contains("Usage: kubectl nfs") && help.contains("Exit code:"),
        "{help}"
    );
    assert!(!help.contains("Run the operator"), "{help}");
    let unknown = nfs(&["statsu"]).await;
    assert_eq!(unknown.status.code(), Some(2));
    assert!(text(&unknown.stderr).contains("status"), "{unknown:?}");
}

#[tokio::test]
async fn completion_scripts_exist_for_shells_and_bash_accepts_its_own() -> Test {
    for shell in ["bash", "zsh", "fish"] {
        let script = nfs(&["completion", shell]).await;
        let script = text(&script.stdout);
        assert!(
            script.contains("accept-identity") && script.contains("kubectl-nfs"),
            "{script}"
        );
    }
    let run = RunDir::new()?;
    let file = run.path().join("completion");
    fs::write(&file, nfs(&["completion", "bash"]).await.stdout)?;
    let completed = "source $0; COMP_WORDS=(kubectl-nfs arch); COMP_CWORD=1; _kubectl__nfs kubectl-nfs arch kubectl-nfs; \
                     echo ${COMPREPLY[@]}";
    let bash = Command::new("bash")
        .arg("-c")
        .arg(completed)
        .arg(&file)
        .output()
        .await?;
    assert_eq!(text(&bash.stdout), "archives\n", "{bash:?}");
    Ok(())
}

#[tokio::test]
async fn kubectl_completes_the_plugin_in_bash() -> Test {
    let env = TestEnv::new("completion").await?;
    let run = RunDir::new()?;
    let shell = Shell::new(&run, &env.rig.cluster)?;
    // What kubectl's script calls.
    let asked = shell.run("kubectl __complete nfs archives h").await?;
    assert!(
        asked.starts_with("hold\t") && asked.trim_end().ends_with(":4"),
        "{asked}"
    );
    // The function that the package bash-completion has, which kubectl's script needs.
    let preamble = "_init_completion() { words=(\"${COMP_WORDS[@]}\"); cword=$COMP_CWORD; cur=${words[cword]}; \
                    prev=${words[cword-1]}; }; source <(kubectl completion bash); set +eu; complete_line() { \
                    COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); COMP_LINE=\"$*\"; COMP_POINT=${#COMP_LINE}; \
                    COMP_TYPE=9; COMPREPLY=(); __start_kubectl; printf '%s\\n' \"${COMPREPLY[@]%% *}\"; };";
    crate::support::shared::backend(&env, "backend", serde_json::json!({})).await?;
    let backend = env.unique_name("backend");
    let complete = async |line: &str| shell.run(&format!("{preamble} complete_line {line}")).await;
    for (line, expected) in [
        ("kubectl nfs ''", "status"),
        ("kubectl nfs arch", "archives"),
        ("kubectl nfs archives ''", "restore"),
        ("kubectl nfs status --out", "--output"),
        ("kubectl nfs orphans --output ''", "json"),
    ] {
        let found = complete(line).await?;
        assert!(found.lines().any(|candidate| candidate == expected), "{line}: {found}");
    }
    let missing = env.class("missing", serde_json::json!({}));
    for number in 0..CLAIMS {
        env.objects
            .create(&env.claim(&format!("claim-{number}"), &missing))
            .await?;
    }
    let claims = format!("kubectl nfs explain --namespace {} pvc/", env.name);
    let last = format!("pvc/claim-{}", CLAIMS - 1);
    for (line, expected) in [("kubectl nfs suspend ''", &backend), (&claims, &last)] {
        // A busy cluster may take longer than a user waits who pressed a key, so the key is pressed again.
        rig::wait::until(expected, TIMEOUT, async || {
            let found = complete(line).await.map_err(|error| error.to_string())?;
            let is_found = found.lines().any(|candidate| candidate == expected);
            if is_found { Ok(()) } else { Err(found) }
        })
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_proxy_for_downloads_does_not_keep_it_from_the_cluster() -> Test {
    let env = TestEnv::new("proxy").await?;
    for name in ["HTTPS_PROXY", "https_proxy"] {
        let mut command = super::command(env.rig.cluster.kubeconfig());
        // Nothing listens on that port.
        let output = command
            .args(["orphans", "-o", "json"])
            .env(name, "http://127.0.0.1:1")
            .output()
            .await?;
        assert!(text(&output.stdout).contains("backends"), "{name}: {output:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_cluster_that_cannot_be_accessed_is_a_usage_error_that_names_the_remedy() -> Test {
    let run = RunDir::new()?;
    let missing = run.path().join("none");
    let refused = nfs(&["status", "--kubeconfig", missing.to_str().unwrap()]).await;
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains(missing.to_str().unwrap()), "{refused:?}");

    let old = run.path().join("old.yaml");
    fs::write(&old, include_str!("x509_v1.yaml"))?;
    for arguments in [&["status"][..], &["status", "--context", "old"]] {
        let refused = nfs(&[arguments, &["--kubeconfig", old.to_str().unwrap()]].concat()).await;
        assert_eq!(refused.status.code(), Some(2));
        let message = text(&refused.stderr);
        for expected in [old.to_str().unwrap(), "X.509 version 1", "openssl"] {
            assert!(message.contains(expected), "{message}");
        }
    }
    let behind = run.path().join("behind.yaml");
    let cluster = "{server: https://192.0.2.1:6443, proxy-url: http://192.0.2.2:3128}";
    fs::write(
        &behind,
        format!(
            "{{apiVersion: v1, kind: Config, current-context: x, users: [{{name: x, user: {{token: x}}}}], \
             clusters: [{{name: x, cluster: {cluster}}}], contexts: [{{name: x, context: {{cluster: x, user: x}}}}]}}"
        ),
    )?;
    let refused = nfs(&["status", "--kubeconfig", behind.to_str().unwrap()]).await;
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        text(&refused.stderr).contains("proxy-url http://192.0.2.2:3128"),
        "{refused:?}"
    );
    let refused = nfs(&["status", "--context", "none", "--kubeconfig", old.to_str().unwrap()]).await;
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("none"), "{refused:?}");
    Ok(())
}
