//! docs/commands.md is generated from the definitions of the command lines.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;
use std::path::Path;

use clap::{Arg, ArgAction, Command};

/// Returns a text for a cell of a table.
fn cell(text: &str) -> String {
    let text = text.replace('\n', " ").replace('|', "\\|");
    // In a code span, entities are not interpreted.
    let parts = text.split('`').enumerate();
    let escaped = parts.map(|(index, part)| match index % 2 {
        0 => part.replace('<', "&lt;"),
        _ => part.to_owned(),
    });
    escaped.collect::<Vec<_>>().join("`")
}

/// Returns how an argument is written.
fn written(argument: &Arg) -> String {
    let value = argument.get_value_names().and_then(|names| names.first());
    let takes_value = argument.get_action().takes_values();
    let value = value
        .filter(|_| takes_value)
        .map(ToString::to_string)
        .unwrap_or_default();
    let Some(long) = argument.get_long() else {
        return value;
    };
    let short = argument
        .get_short()
        .map(|short| format!("-{short}, "))
        .unwrap_or_default();
    format!("{short}--{long} {value}").trim_end().to_owned()
}

/// Returns what an argument means, with its values, its default and its environment variable.
fn meaning(argument: &Arg) -> String {
    let help = argument.get_long_help().or_else(|| argument.get_help());
    let mut text = help.map(ToString::to_string).unwrap_or_default();
    if !text.ends_with(['.', '`']) {
        text.push('.');
    }
    let is_switch = !argument.get_action().takes_values();
    let values = argument.get_possible_values();
    let names: Vec<String> = values.iter().map(|value| format!("`{}`", value.get_name())).collect();
    if !names.is_empty() && !is_switch {
        write!(text, " One of {}.", names.join(", ")).unwrap();
    }
    let default = argument.get_default_values().first().filter(|_| !is_switch);
    if let Some(default) = default {
        write!(text, " Default: `{}`.", default.to_string_lossy()).unwrap();
    }
    if let Some(variable) = argument.get_env() {
        write!(text, " Environment: `{}`.", variable.to_string_lossy()).unwrap();
    }
    text
}

/// Returns true for `--help` and `--version`, which every program has.
fn prints_about_the_program(argument: &Arg) -> bool {
    use ArgAction::{Help, HelpLong, HelpShort, Version};
    matches!(argument.get_action(), Help | HelpShort | HelpLong | Version)
}

/// Appends a command and its subcommands.
fn append(page: &mut String, command: &Command, path: &str) {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let subcommands: Vec<&Command> = command
        .get_subcommands()
        .filter(|sub| sub.get_name() != "help")
        .collect();
    if subcommands.is_empty() {
        let usage = command.clone().bin_name(path).render_usage().to_string();
        let usage = usage.trim_start_matches("Usage:").trim();
        write!(page, "\n### {path}\n\n```text\n{about}.\n\n{usage}\n```\n").unwrap();
        let arguments: Vec<&Arg> = command
            .get_arguments()
            .filter(|argument| !argument.is_hide_set() && !prints_about_the_program(argument))
            .collect();
        if !arguments.is_empty() {
            page.push_str("\n| argument | meaning |\n|---|---|\n");
            for argument in arguments {
                writeln!(page, "| `{}` | {} |", written(argument), cell(&meaning(argument))).unwrap();
            }
        }
        if let Some(after) = command.get_after_help() {
            write!(page, "\n```text\n{after}\n```\n").unwrap();
        }
    }
    for subcommand in subcommands {
        append(page, subcommand, &format!("{path} {}", subcommand.get_name()));
    }
}

fn generated() -> String {
    let mut page = "\
# Commands

This page lists the commands of `kubectl nfs` and of the program `nfs-operator`, with their
arguments. [kubectl nfs](kubectl-nfs.md) explains what they are for. `make docs` generates it from
the code.

All of them exit with 0 if everything is fine, with 1 if they found a problem or failed, and with 2
for invalid arguments or a cluster that cannot be accessed, unless stated otherwise.
"
    .to_owned();
    for (mut command, name) in [
        (nfs_operator::cli::plugin_command(), "kubectl nfs"),
        (nfs_operator::cli::command(), "nfs-operator"),
    ] {
        command.build();
        write!(page, "\n## {name}\n").unwrap();
        append(&mut page, &command, name);
    }
    page
}

#[test]
fn the_page_of_commands_is_up_to_date() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/commands.md");
    let page = generated();
    if std::env::var_os("WRITE").is_some() {
        std::fs::write(&file, &page).unwrap();
    }
    let written = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(written == page, "docs/commands.md is out of date: run `make docs`");
}
