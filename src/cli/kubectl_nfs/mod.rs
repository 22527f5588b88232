//! `kubectl nfs`: the commands of an administrator, with the rights of their kubeconfig. They read objects, and write only
//! what the administrator wants: annotations, fields of a spec, a backup, a claim that restores an archive.
//!
//! The program is `nfs-operator` under the name `kubectl-nfs`, by which kubectl finds it.

mod archives;
mod backup;
mod changes;
mod completion;
mod events;
mod explain;
mod migrate;
mod missing;
mod names;
mod new_claim;
mod operator;
mod orphans;
mod probe;
mod progress;
mod report;
mod requests;
mod restore;
mod schedules;
mod secret;
mod served;
mod status;
mod suspend;
mod usage;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use super::check;
use super::cluster::CommandError;

/// The name by which kubectl finds the program.
pub const PLUGIN: &str = "kubectl-nfs";
/// The name by which kubectl finds the program that completes the arguments of the plugin.
pub const COMPLETION: &str = "kubectl_complete-nfs";
/// The name in help and errors.
const PROGRAM: &str = "kubectl nfs";

/// Shows and changes what nfs-operator does: backends, claims, archives.
#[derive(Parser)]
#[command(name = PLUGIN, bin_name = PROGRAM, version, about, after_help = "\
Exit code:
  0  fine
  1  a problem was found, or the command failed
  2  invalid arguments, or no access to the cluster
  3  check, probe: something that it created is left behind")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show on one screen whether everything works: backends, waiting claims, released volumes, archives, trash, orphans,
    /// leader, versions.
    Status(status::StatusArguments),
    /// Explain why a claim has its backend, or what each backend lacks to serve it.
    Explain(explain::ExplainArguments),
    /// List, hold, expire and restore archives.
    #[command(subcommand)]
    Archives(archives::ArchivesCommand),
    /// Back up a claim in use.
    Backup(backup::BackupArguments),
    /// Create a claim with the data of an NfsBackup.
    Restore(restore::RestoreArguments),
    /// List schedules of backups: last and next time, and what was missed or skipped.
    Schedules(schedules::SchedulesArguments),
    /// Show which volumes use most.
    #[command(subcommand)]
    Usage(usage::UsageCommand),
    /// List directories without a volume and volumes without a directory, and what to do about them.
    Orphans(orphans::OrphansArguments),
    /// Stop placing new volumes on backends.
    Suspend(suspend::SuspendArguments),
    /// Place new volumes on suspended backends again.
    Resume(suspend::SuspendArguments),
    /// Request a scan of exports for orphans.
    Scan(requests::ScanArguments),
    /// Request a count of what volumes and archives use.
    Count(requests::ScanArguments),
    /// Accept the export that a backend finds instead of the expected one.
    AcceptIdentity(requests::AcceptArguments),
    /// Accept the directories of an export that was restored or moved file by file.
    AcceptDirectories(requests::AcceptDirectoriesArguments),
    /// Request that lost volumes are recreated from their records.
    Readopt(requests::ReadoptArguments),
    /// Show what takes over the volumes of another provisioner, and what prevents it.
    Migrate(migrate::MigrateArguments),
    /// Save or check the Secret with the key that signs records on exports.
    #[command(subcommand)]
    Secret(secret::SecretCommand),
    /// Write a file for a support request, without names, addresses and keys.
    Report(report::ReportArguments),
    /// Test a StorageClass: create a claim, wait until it is bound, and delete it.
    Check(check::CheckArguments),
    /// Probe an export as an NfsBackend would, in a pod like that of the operator.
    Probe(Box<probe::JobArguments>),
    /// Print a script that completes the arguments of kubectl-nfs in a shell.
    Completion(completion::CompletionArguments),
}

pub use completion::complete;

/// Parses the arguments and runs the command.
pub async fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Status(arguments) => status::run(arguments).await,
        Command::Explain(arguments) => explain::run(arguments).await,
        Command::Archives(command) => archives::run(command).await,
        Command::Backup(arguments) => backup::run(arguments).await,
        Command::Restore(arguments) => restore::run(arguments).await,
        Command::Schedules(arguments) => schedules::run(arguments).await,
        Command::Usage(command) => usage::run(command).await,
        Command::Orphans(arguments) => orphans::run(arguments).await,
        Command::Suspend(arguments) => suspend::run(arguments, true).await,
        Command::Resume(arguments) => suspend::run(arguments, false).await,
        Command::Scan(arguments) => requests::scan(arguments).await,
        Command::Count(arguments) => requests::count(arguments).await,
        Command::AcceptIdentity(arguments) => requests::accept_identity(arguments).await,
        Command::AcceptDirectories(arguments) => requests::accept_directories(arguments).await,
        Command::Readopt(arguments) => requests::readopt(arguments).await,
        Command::Migrate(arguments) => migrate::run(arguments).await,
        Command::Secret(command) => secret::run(command).await,
        Command::Report(arguments) => report::run(arguments).await,
        Command::Check(arguments) => return check::run(arguments, PROGRAM).await,
        Command::Probe(arguments) => probe::run(*arguments).await,
        Command::Completion(arguments) => completion::run(&arguments),
    };
    result.unwrap_or_else(|error: CommandError| error.report(PROGRAM))
}

/// Returns the definition of the command line, for completion and for the documentation.
pub fn command() -> clap::Command {
    Arguments::command()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    /// Returns the paths of all commands that do something, with their definitions.
    fn leaves(command: &clap::Command, path: &str) -> Vec<(String, clap::Command)> {
        let inner = command.get_subcommands().filter(|inner| inner.get_name() != "help");
        let found: Vec<_> = inner
            .flat_map(|inner| leaves(inner, &format!("{path} {}", inner.get_name())))
            .collect();
        match found.is_empty() {
            true => vec![(path.trim().to_owned(), command.clone())],
            false => found,
        }
    }

    #[test]
    fn a_refused_argument_names_what_is_accepted() {
        for (line, expected) in [
            ("kubectl-nfs scan", "--all"),
            ("kubectl-nfs count", "--all"),
            ("kubectl-nfs archives expire a --at yesterday", "2027-01-31T00:00:00Z"),
        ] {
            let error = Arguments::try_parse_from(line.split(' ')).err().unwrap().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn every_command_prints_json_for_programs() {
        for (path, command) in leaves(&command(), "") {
            let output = command
                .get_arguments()
                .find(|argument| argument.get_short() == Some('o'));
            let values = output.map(clap::Arg::get_possible_values).unwrap_or_default();
            let is_json = values.iter().any(|value| value.get_name() == "json");
            // A script of a shell is for a program.
            assert_eq!(is_json, path != "completion", "{path}");
        }
        for words in [
            "scan main --wait",
            "count --all",
            "accept-identity main new --plan",
            "accept-directories main --all",
            "accept-directories main pvc-1 pvc-2 --plan",
            "readopt main pvc-1",
            "suspend main",
            "resume nfsb/main",
            "archives hold a",
            "archives expire a --never",
            "archives restore a --to pvc/b",
            "restore nfsbackup/a --to b --plan",
            "secret backup file",
            "secret verify file",
            "secret quota-key",
            "report",
        ] {
            let line = format!("kubectl-nfs {words} -o json");
            let parsed = Arguments::try_parse_from(line.split(' '));
            assert!(parsed.is_ok(), "{line}: {}", parsed.err().unwrap());
        }
    }
}
