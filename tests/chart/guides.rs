//! The Helm commands of the guides, with the chart in the place of a release.

use std::{fs, process};

use rig::RunDir;
use rig::operator::repository_root;
use serde_json::Value;

use crate::helm::{HelmCli, both_versions};
use crate::objects::{documents, kind_and_name};
use crate::render::{find_object, kustomize_text};
use crate::{Failure, Test};

/// Options of `helm install` and `helm upgrade` without a value that `helm template` does not need.
const OF_A_CLUSTER: [&str; 3] = ["--create-namespace", "--wait", "--reuse-values"];

/// A command `helm install` or `helm upgrade` of a page.
struct Command {
    page: String,
    words: Vec<String>,
}

/// Returns the commands of all pages.
fn commands() -> Result<Vec<Command>, Failure> {
    let mut paths = vec![repository_root().join("README.md")];
    for entry in fs::read_dir(repository_root().join("docs"))? {
        paths.push(entry?.path());
    }
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    paths.sort();
    let mut commands = Vec::new();
    for path in paths {
        let text = fs::read_to_string(&path)?.replace("\\\n", " ");
        let lines = text.lines().map(str::trim);
        for line in lines.filter(|line| line.starts_with("helm install ") || line.starts_with("helm upgrade ")) {
            commands.push(Command {
                page: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
                words: line.split_whitespace().map(str::to_owned).collect(),
            });
        }
    }
    Ok(commands)
}

/// Returns the values that the guide calls `storage.yaml`.
fn storage_values() -> Result<String, Failure> {
    let page = fs::read_to_string(repository_root().join("docs/install.md"))?;
    let values = page.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next());
    Ok(values.ok_or("docs/install.md has no values")?.to_owned())
}

/// Returns the objects that a command installs. `values` is the path of `storage.yaml`.
async fn rendered(helm: &HelmCli, command: &Command, values: &str) -> Result<Vec<Value>, Failure> {
    let [_, _, release, chart, options @ ..] = command.words.as_slice() else {
        return Err(format!("{}: {:?} is incomplete", command.page, command.words).into());
    };
    assert_eq!(release, "nfs-operator", "{}", command.page);
    let is_release = chart.starts_with("oci://") || chart.starts_with("./nfs-operator-") || chart == "$CHART";
    assert!(is_release, "{}: {chart}", command.page);
    let options = options.iter().filter(|option| !OF_A_CLUSTER.contains(&option.as_str()));
    let options: Vec<&str> = options
        .map(|option| if option == "storage.yaml" { values } else { option })
        .collect();
    let output = helm.template(&options).await?.into_stdout();
    documents(&output.map_err(|error| format!("{}: {error}", command.page))?)
}

#[tokio::test]
async fn the_helm_commands_of_the_guides_render_what_the_guides_say() -> Test {
    let run = RunDir::new()?;
    let values = run.new_dir("values")?.join("storage.yaml");
    fs::write(&values, storage_values()?)?;
    let values = values.display().to_string();
    let commands = commands()?;
    assert!(commands.len() >= 6, "only {} commands were found", commands.len());
    // What a page adds to the default installation.
    let promised = [
        ("install.md", "NfsBackend main"),
        ("install.md", "StorageClass nfs"),
        ("monitoring.md", "ServiceMonitor nfs-operator"),
        ("monitoring.md", "PrometheusRule nfs-operator"),
        ("monitoring.md", "ConfigMap nfs-operator-dashboard"),
    ];
    for helm in both_versions().await? {
        for command in &commands {
            let objects = rendered(&helm, command, &values).await?;
            let names: Vec<String> = objects.iter().map(kind_and_name).collect();
            let expected = promised.iter().filter(|(page, _)| *page == command.page);
            for (page, name) in expected {
                assert!(
                    names.iter().any(|found| found == name),
                    "{page}: no {name} in {names:?}"
                );
            }
            let deployment = find_object(&objects, "Deployment nfs-operator");
            let pod = &deployment["spec"]["template"]["spec"];
            // OpenShift assigns the user.
            let has_user = pod["securityContext"]
                .get("runAsUser")
                .is_some_and(|user| !user.is_null());
            assert_eq!(has_user, command.page != "openshift.md", "{}: {pod:#}", command.page);
            let image = pod["containers"][0]["image"].as_str().unwrap_or_default();
            let is_mirrored = image.starts_with("registry.example.com/");
            let asks_for_mirror = command
                .words
                .iter()
                .any(|word| word == "image.registry=registry.example.com");
            assert_eq!(is_mirrored, asks_for_mirror, "{}: {image}", command.page);
            assert!(
                asks_for_mirror || command.page != "air-gapped.md",
                "{:?}",
                command.words
            );
        }
    }
    Ok(())
}

#[tokio::test]
async fn the_command_for_another_registry_replaces_the_image_in_the_bundle_of_a_release() -> Test {
    let page = fs::read_to_string(repository_root().join("docs/air-gapped.md"))?;
    let lines = page.lines().map(str::trim).filter(|line| line.starts_with("sed "));
    let commands: Vec<&str> = lines
        .filter_map(|line| line.strip_suffix(" | kubectl apply --server-side -f -"))
        .collect();
    let [command] = commands.as_slice() else {
        return Err(format!("not one command: {commands:?}").into());
    };
    let run = RunDir::new()?;
    let bundle = kustomize_text("default").await?;
    fs::write(run.path().join("install.yaml"), &bundle)?;
    let mut shell = process::Command::new("bash");
    shell.args(["-c", command]).current_dir(run.path());
    let (former, changed) = (documents(&bundle)?, documents(&rig::process::run(shell).await?)?);
    let image = |objects: &[Value]| {
        let deployment = find_object(objects, "Deployment nfs-operator");
        deployment["spec"]["template"]["spec"]["containers"][0]["image"].clone()
    };
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(
        image(&changed),
        format!("registry.example.com/nfs-operator/nfs-operator:{version}")
    );
    // Nothing else is changed.
    let differing = former.iter().zip(&changed).filter(|(one, other)| one != other);
    assert_eq!((differing.count(), former.len()), (1, changed.len()));
    Ok(())
}

#[tokio::test]
async fn the_values_in_the_manifests_for_gitops_tools_are_those_of_the_chart() -> Test {
    let page = fs::read_to_string(repository_root().join("docs/gitops.md"))?;
    let blocks = page
        .split("```yaml\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next());
    let mut found = Vec::new();
    for block in blocks {
        for object in documents(block)? {
            let values = match object["kind"].as_str() {
                Some("Application") => &object["spec"]["source"]["helm"]["valuesObject"],
                Some("HelmRelease") => &object["spec"]["values"],
                _ => continue,
            };
            found.push((kind_and_name(&object), values.clone()));
        }
    }
    assert_eq!(found.len(), 2, "{found:?}");
    let run = RunDir::new()?;
    let file = run.path().join("values.json");
    for helm in both_versions().await? {
        for (name, values) in &found {
            fs::write(&file, values.to_string())?;
            let output = helm.template(&["--values", &file.display().to_string()]).await?;
            let objects = documents(&output.into_stdout().map_err(|error| format!("{name}: {error}"))?)?;
            find_object(&objects, "NfsBackend main");
            find_object(&objects, "StorageClass nfs");
        }
    }
    Ok(())
}
