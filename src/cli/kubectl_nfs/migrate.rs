//! `kubectl nfs migrate`: what the operator would take over from nfs-subdir-external-provisioner, and what prevents it.

mod observed;
mod plan;

use std::process::ExitCode;

use clap::{Args, ValueEnum};

use self::observed::Observed;
use self::plan::{DeploymentPlan, MigrationPlan, Step, VolumePlan};
use super::operator;
use super::served::ServedArguments;
use crate::cli::cluster::{ClusterArguments, CommandError};
use crate::cli::output::{OutputFormat, Table, Tone, print, print_colored, print_json};
use export_store::text::{counted, escape};

/// Arguments of `kubectl nfs migrate`.
#[derive(Args)]
#[command(after_help = "\
Volumes are those with an `nfs` source whose annotation pv.kubernetes.io/provisioned-by names another provisioner. The plan
depends on objects in the cluster only: whether a directory exists, and whether the same directory has another address, is
checked by the operator, on the export, before it reclaims a volume.

Whoever can create Deployments can create one that looks like an old provisioner. The plan therefore names the Deployment from
which it has an address, and whether the existing volumes confirm that address. If Deployments with one provisioner name have
different exports and no backend is there yet, it uses none of them until --provisioner-namespace selects one.

Exit code:
  0  all volumes can be taken over, with the steps that the output lists
  1  something prevents it, or the command failed
  2  invalid arguments, or no access to the cluster")]
pub struct MigrateArguments {
    /// The provisioner to replace.
    #[arg(long, value_enum)]
    from: Legacy,
    /// Print the plan. Required: what takes volumes over is a setting of the operator, which this command does not change.
    #[arg(long)]
    plan: bool,
    /// Only volumes of these provisioner names. If unset, all except those of the operator.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    provisioner: Vec<String>,
    /// Namespaces of the Deployments of the old provisioners. If unset, those of all namespaces are listed.
    #[arg(long, value_name = "NAMESPACE", value_delimiter = ',')]
    provisioner_namespace: Vec<String>,
    #[command(flatten)]
    served: ServedArguments,
    /// Output format.
    #[arg(long, short, value_enum, default_value = "table")]
    output: OutputFormat,
    #[command(flatten)]
    cluster: ClusterArguments,
}

/// A provisioner that the operator can replace.
#[derive(Clone, Copy, ValueEnum)]
enum Legacy {
    /// nfs-subdir-external-provisioner
    NfsSubdir,
}

/// Prints the plan.
pub async fn run(arguments: MigrateArguments) -> Result<ExitCode, CommandError> {
    let Legacy::NfsSubdir = arguments.from;
    if !arguments.plan {
        return Err(CommandError::Usage(
            "the operator takes volumes over when its setting --provisioner-alias names their provisioner, and this command \
             does not change the operator: add --plan to see what to set"
                .to_owned(),
        ));
    }
    let client = arguments.cluster.client().await?;
    let operator_namespace = operator::find_namespace(&client, &arguments.served.operator).await?;
    if let Some(unknown) = operator_namespace
        .as_ref()
        .err()
        .filter(|_| !arguments.served.has_aliases())
    {
        eprintln!(
            "kubectl nfs: {unknown}: the plan assumes that it serves no name of an old provisioner; if it is installed, set \
             --operator-namespace"
        );
    }
    let mut observed = Observed::read(&client, operator_namespace.as_deref().ok()).await?;
    observed.restrict_to(&arguments.provisioner_namespace);
    observed.served = arguments.served.replace(observed.served);
    let plan = observed.plan(&arguments.provisioner);
    match arguments.output {
        OutputFormat::Json => print_json(&plan)?,
        OutputFormat::Table => plan.print()?,
    }
    Ok(match plan.is_possible() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

impl MigrationPlan {
    fn print(&self) -> std::io::Result<()> {
        if self.provisioners.is_empty() {
            return print("no volumes, StorageClasses or Deployments of nfs-subdir-external-provisioner");
        }
        let mut table = Table::new(&[
            "VOLUME",
            "CLAIM",
            "SERVER",
            "PATH",
            "BACKEND",
            "DIRECTORY",
            "ON DELETE",
            "OBSTACLE",
        ]);
        for volume in &self.volumes {
            let tone = volume.obstacle.as_ref().map_or(Tone::Plain, |_| Tone::Problem);
            table.row(tone, volume.cells());
        }
        if !table.is_empty() {
            print_colored(&table.render())?;
        }
        self.print_obstacles()?;
        for provisioner in &self.provisioners {
            let volumes = counted(provisioner.volumes, "volume");
            let name = escape(&provisioner.name);
            match provisioner.is_undecided() {
                true => print(&format!("\n{name}: {volumes}, taken over by no backend yet"))?,
                false => print(&format!(
                    "\n{name}: {volumes}, taken over by backend {}",
                    escape(&provisioner.backend)
                ))?,
            }
            for deployment in &provisioner.deployments {
                print(&escape(&format!("  {}", deployment.text())))?;
            }
            if provisioner.steps.is_empty() && !provisioner.is_undecided() {
                print("  nothing left to do: the operator serves this name")?;
            }
            for (number, step) in provisioner.steps.iter().enumerate() {
                print(&format!("  {}. {}", number + 1, step.text()))?;
            }
        }
        Ok(())
    }

    /// Prints each distinct obstacle once, with what it concerns.
    fn print_obstacles(&self) -> std::io::Result<()> {
        let volumes = self.volumes.iter().filter_map(|volume| {
            let obstacle = volume.obstacle.as_ref()?;
            Some((format!("volume {}", volume.name), obstacle))
        });
        let classes = self
            .classes
            .iter()
            .map(|class| (format!("StorageClass {}", class.name), &class.obstacle));
        let backends = self.provisioners.iter().filter_map(|provisioner| {
            let obstacle = provisioner.obstacle.as_ref()?;
            Some(match provisioner.is_undecided() {
                true => (format!("provisioner {}", provisioner.name), obstacle),
                false => (format!("backend {}", provisioner.backend), obstacle),
            })
        });
        let all: Vec<_> = volumes.chain(classes).chain(backends).collect();
        if !all.is_empty() {
            print("")?;
        }
        for (what, obstacle) in all {
            print(&escape(&format!("{what}: {}: {}", obstacle.reason, obstacle.message)))?;
        }
        Ok(())
    }
}

impl VolumePlan {
    fn cells(&self) -> [&str; 8] {
        [
            &self.name,
            &self.claim,
            &self.server,
            &self.path,
            &self.backend,
            self.directory.as_deref().unwrap_or_default(),
            &self.on_delete,
            self.obstacle.as_ref().map_or("", |obstacle| &obstacle.reason),
        ]
    }
}

impl DeploymentPlan {
    fn text(&self) -> String {
        let confirmed = match self.is_confirmed {
            true => "confirmed by its volumes",
            false => "NOT CONFIRMED by its volumes",
        };
        format!("Deployment {}: {}, {confirmed}", self.qualified_name(), self.address())
    }
}

impl Step {
    fn text(&self) -> String {
        let text = escape(&self.description).to_string();
        match &self.command {
            Some(command) => format!("{text}:\n     {}", escape(command)),
            None => text,
        }
    }
}
