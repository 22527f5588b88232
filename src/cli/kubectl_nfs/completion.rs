//! `kubectl nfs completion`: scripts for shells.

use std::process::ExitCode;

use clap::Args;
use clap_complete::Shell;

use super::PLUGIN;
use crate::cli::cluster::CommandError;
use crate::cli::output::print;

/// Arguments of `kubectl nfs completion`.
#[derive(Args)]
pub struct CompletionArguments {
    /// Shell for which to print the script.
    #[arg(value_enum)]
    shell: Shell,
}

/// Prints the script.
pub fn run(arguments: &CompletionArguments) -> Result<ExitCode, CommandError> {
    let mut script = Vec::new();
    // The script completes the name of the program, not that of the plugin.
    let mut command = super::command().bin_name(PLUGIN);
    clap_complete::generate(arguments.shell, &mut command, PLUGIN, &mut script);
    print(String::from_utf8_lossy(&script).trim_end())?;
    Ok(ExitCode::SUCCESS)
}
