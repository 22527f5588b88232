//! Logging. Lines contain text that tenants, servers and users of exports choose, so each line is escaped and bounded
//! here, whichever code logs it.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Write};

use clap::ValueEnum;
use export_store::text::{escape, escape_with, truncate};
use serde_json::Value;
use tracing_subscriber::EnvFilter;

/// Maximum length of a line, in bytes. Longer lines are truncated.
const MAX_LINE: usize = 8192;
/// Maximum length of a string in a JSON line that exceeds [`MAX_LINE`].
const MAX_STRING: usize = 2048;

/// Format of log lines.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum LogFormat {
    /// Human-readable.
    Text,
    /// One JSON object per line.
    Json,
}

/// The spans of the controllers. They name the object of each line in a notation of their own, and the lines name it
/// themselves.
const CONTROLLER_SPANS: &str = "kube_runtime::controller";

/// Returns the filter of log lines, which is `requested` in the format of RUST_LOG, if that is valid.
fn filter(requested: Option<&str>) -> EnvFilter {
    let requested = requested.unwrap_or("info");
    let filter = EnvFilter::try_new(requested).unwrap_or_else(|_| EnvFilter::new("info"));
    match format!("{CONTROLLER_SPANS}=warn").parse() {
        Ok(directive) if !requested.contains("kube_runtime") => filter.add_directive(directive),
        _ => filter,
    }
}

/// Starts logging to standard error.
pub fn start(format: LogFormat) {
    let requested = std::env::var(EnvFilter::DEFAULT_ENV).ok();
    let filter = filter(requested.as_deref());
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // The writer escapes escape sequences, whoever wrote them.
        .with_ansi(false)
        .with_writer(move || LineWriter(format));
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().init(),
    }
}

/// Logs why the process ends, in the format of the log. Prints it if the log filter excludes errors.
pub fn fatal(error: &dyn fmt::Display) {
    if tracing::enabled!(tracing::Level::ERROR) {
        tracing::error!("{error}");
    } else {
        eprintln!("nfs-operator: {error}");
    }
}

/// Writes lines to standard error.
struct LineWriter(LogFormat);

impl Write for LineWriter {
    /// Writes one event, which the subscriber passes in one call.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let line = line(self.0, text.strip_suffix('\n').unwrap_or(&text));
        io::stderr().lock().write_all(format!("{line}\n").as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Returns an event as one line.
fn line(format: LogFormat, event: &str) -> Cow<'_, str> {
    match format {
        LogFormat::Text => {
            let escaped = escape(event);
            if escaped.len() <= MAX_LINE {
                return escaped;
            }
            Cow::Owned(format!("{} (truncated)", truncate(&escaped, MAX_LINE)))
        }
        LogFormat::Json => {
            let json_escape = |character: char| format!("\\u{:04x}", u32::from(character));
            if event.len() <= MAX_LINE {
                return escape_with(event, json_escape);
            }
            let mut value = serde_json::from_str(event).unwrap_or_else(|_| Value::from(event));
            truncate_strings(&mut value);
            Cow::Owned(escape_with(&value.to_string(), json_escape).into_owned())
        }
    }
}

/// Truncates all strings of an object. Their number is limited, because fields are named in the code.
fn truncate_strings(value: &mut Value) {
    match value {
        Value::String(text) => text.truncate(text.floor_char_boundary(MAX_STRING)),
        Value::Array(values) => values.iter_mut().for_each(truncate_strings),
        Value::Object(fields) => fields.values_mut().for_each(truncate_strings),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a panic is how a test fails"
)]
mod tests {
    use super::*;

    const HOSTILE: &str = "x\n2026-01-01T00:00:00Z ERROR forged\r\u{1b}[2J\u{9b}31m\u{202e}\u{7f}";

    #[test]
    fn the_spans_of_controllers_are_not_logged_unless_requested() {
        for (requested, expected) in [
            (None, true),
            (Some("debug"), true),
            (Some("info,nfs_operator=debug"), true),
            (Some("info,kube_runtime=info"), false),
        ] {
            let filter = filter(requested).to_string();
            assert_eq!(filter.contains("kube_runtime::controller=warn"), expected, "{filter}");
        }
    }

    #[test]
    fn an_event_is_one_line_without_control_characters() {
        let text = line(LogFormat::Text, HOSTILE);
        assert_eq!(
            text,
            "x\\n2026-01-01T00:00:00Z ERROR forged\\r\\u{1b}[2J\\u{9b}31m\\u{202e}\\u{7f}"
        );
        let json = serde_json::json!({ "message": HOSTILE }).to_string();
        let written = line(LogFormat::Json, &json);
        assert!(written.is_ascii() && !written.contains(char::is_control), "{written}");
        let read: Value = serde_json::from_str(&written).unwrap();
        assert_eq!(read["message"], HOSTILE);
    }

    #[test]
    fn a_long_line_is_truncated_and_a_json_line_stays_valid() {
        let long = "\u{9b}".repeat(100_000);
        assert!(line(LogFormat::Text, &long).len() < MAX_LINE + 20);
        let json = serde_json::json!({"level": "INFO", "fields": {"message": long}}).to_string();
        let written = line(LogFormat::Json, &json);
        assert!(written.len() < 2 * MAX_LINE, "{}", written.len());
        let read: Value = serde_json::from_str(&written).unwrap();
        assert_eq!(read["level"], "INFO");
    }
}
