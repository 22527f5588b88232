//! Completion of arguments: scripts for shells, and what kubectl asks for.

pub mod object_names;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::process::ExitCode;

use clap::Args;
use clap_complete::Shell;
use clap_complete::engine::{CompletionCandidate, complete as candidates};
use export_store::text::escape;

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

/// Instructs the shell not to complete names of files (`ShellCompDirectiveNoFileComp` of cobra).
const NO_FILES: u8 = 4;
/// Instructs the shell not to add a space (`ShellCompDirectiveNoSpace` of cobra).
const NO_SPACE: u8 = 2;

/// Prints what may follow the arguments of `kubectl nfs`, in the format of cobra: for each candidate its value, a tab and
/// what it means, then the directive for the shell. kubectl runs this program, with the arguments up to the cursor.
pub fn complete() -> ExitCode {
    let mut words: Vec<OsString> = std::env::args_os().collect();
    if words.len() < 2 {
        words.push(OsString::new());
    }
    let last = words.len().saturating_sub(1);
    let folder = std::env::current_dir().ok();
    let found = candidates(&mut super::command(), words, last, folder.as_deref());
    let mut found = found.unwrap_or_default();
    found.retain(|candidate| !candidate.is_hide_set());
    match print(&as_cobra(&found)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn as_cobra(found: &[CompletionCandidate]) -> String {
    let mut text = String::new();
    let mut directive = NO_FILES;
    for candidate in found {
        let value = candidate.get_value().to_string_lossy();
        // A folder is followed by what is in it.
        if value.ends_with('/') {
            directive |= NO_SPACE;
        }
        let help = candidate.get_help().map(ToString::to_string).unwrap_or_default();
        let help = help.lines().next().unwrap_or_default();
        // Writing to a string does not fail.
        let _ = writeln!(text, "{}\t{}", escape(&value), escape(help));
    }
    format!("{text}:{directive}")
}
