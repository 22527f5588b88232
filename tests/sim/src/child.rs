//! A run in a process of its own.

use std::io;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use sim::api_server::{SCHEMAS, schemas};
use sim::world::Scenario;

/// What the line begins with that names the violated rule.
pub const VIOLATION: &str = "VIOLATION ";
/// What the line begins with that has the number of actions until then.
pub const ACTIONS: &str = "ACTIONS ";
/// Real time after which a run counts as endless, and ends itself: whoever waits for it has nothing to look after.
pub const LIMIT: Duration = Duration::from_secs(120);

/// Why a run failed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Failure {
    /// The rule that was violated.
    pub cause: String,
    /// Number of actions until then, if that is known.
    pub actions: Option<u32>,
}

impl Failure {
    fn unknown(cause: String) -> Self {
        Self { cause, actions: None }
    }

    /// Returns true if both are probably the same failure: they are described by the same words, whatever the names.
    pub fn is_like(&self, other: &Self) -> bool {
        let words = |failure: &Self| -> Vec<String> {
            let words = failure.cause.split_whitespace();
            let plain = words.filter(|word| !word.contains(|found: char| found.is_ascii_digit() || found == '/'));
            plain.take(5).map(str::to_owned).collect()
        };
        words(self) == words(other)
    }
}

/// Settings of the allocator for a process that ends after a fraction of a second: it keeps what is freed, and seldom looks
/// for what could be given back.
const ALLOCATOR: (&str, &str) = (
    "_RJEM_MALLOC_CONF",
    "dirty_decay_ms:-1,muzzy_decay_ms:-1,tcache_gc_incr_bytes:16777216",
);

/// Returns the command that runs a seed in a process of its own.
///
/// # Errors
/// The path of this program is not known.
pub fn command(settings: &str) -> io::Result<Command> {
    static SCHEMAS_TEXT: OnceLock<String> = OnceLock::new();
    let text = SCHEMAS_TEXT.get_or_init(|| serde_json::Value::Object(schemas().clone()).to_string());
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("run").args(settings.split(' '));
    command.env(SCHEMAS, text).env(ALLOCATOR.0, ALLOCATOR.1);
    Ok(command)
}

/// Runs a scenario. Returns why it failed, or nothing.
pub fn run(scenario: &Scenario) -> Option<Failure> {
    let mut command = match command(&format!("{scenario} LIMIT={}", LIMIT.as_secs())) {
        Ok(command) => command,
        Err(error) => return Some(Failure::unknown(format!("the program cannot be found: {error}"))),
    };
    match command.stderr(Stdio::null()).output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(parse(&String::from_utf8_lossy(&output.stdout))),
        Err(error) => Some(Failure::unknown(format!("the run cannot be started: {error}"))),
    }
}

/// Reads what a run wrote that failed.
fn parse(output: &str) -> Failure {
    let after = |prefix| output.lines().find_map(|line| line.strip_prefix(prefix));
    Failure {
        cause: after(VIOLATION).unwrap_or("the run ended without a result").to_owned(),
        actions: after(ACTIONS).and_then(|count| count.parse().ok()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_alike_if_their_words_are() {
        let failure = |output: &str| parse(output);
        let first = failure("ACTIONS 7\nVIOLATION file-1 of team/data-1 (8f) is gone; its class is archived\n");
        assert_eq!(first.actions, Some(7));
        assert!(first.is_like(&failure(
            "VIOLATION file-22 of other/data-3 (7a) is gone; its class is archived"
        )));
        assert!(!first.is_like(&failure("VIOLATION file-22 of other/data-3 (7a) exists 2 times")));
        assert_eq!(failure("").cause, "the run ended without a result");
    }
}
