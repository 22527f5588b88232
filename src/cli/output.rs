//! Output of a result.

use std::borrow::Cow;
use std::io::{ErrorKind, Write as _};

use anstyle::{AnsiColor, Style};
use clap::ValueEnum;
use comfy_table::presets::NOTHING;
use export_store::text::escape;
use serde::Serialize;

/// Output format.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    Table,
    Json,
}

/// Output format of a list of objects.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ListFormat {
    Table,
    Json,
    /// One `kind/name` for each line, as other commands accept it.
    Name,
}

/// Prints a result to standard output. A reader that stops early, such as `head`, is not an error.
pub fn print(text: &str) -> std::io::Result<()> {
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        printed => printed,
    }
}

/// Prints a text that may have colors. They are shown on a terminal only, and not if NO_COLOR is set.
pub fn print_colored(text: &str) -> std::io::Result<()> {
    match writeln!(anstream::stdout(), "{text}") {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        printed => printed,
    }
}

/// Prints a value as JSON in printable ASCII.
pub fn print_json(value: &impl Serialize) -> std::io::Result<()> {
    print(&escape_non_ascii(&serde_json::to_string_pretty(value)?))
}

/// Prints a result in a format: the text for people, or the value as JSON.
pub fn print_as(format: OutputFormat, text: &str, value: &impl Serialize) -> std::io::Result<()> {
    match format {
        OutputFormat::Table => print(text),
        OutputFormat::Json => print_json(value),
    }
}

/// Returns a text as one word for a shell, for commands that a user copies: names and addresses of objects may contain anything.
/// A text with a NUL, which no argument can have, becomes an empty word.
pub fn shell_word(text: &str) -> Cow<'_, str> {
    shlex::try_quote(text).unwrap_or(Cow::Borrowed("''"))
}

/// Replaces all but printable ASCII by the equivalent escapes of JSON, which a terminal does not interpret.
pub fn escape_non_ascii(json: &str) -> String {
    let mut plain = String::with_capacity(json.len());
    for letter in json.chars() {
        if letter == ' ' || letter.is_ascii_graphic() || letter == '\n' {
            plain.push(letter);
            continue;
        }
        let mut units = [0; 2];
        let units = letter.encode_utf16(&mut units);
        plain.extend(units.iter().map(|unit| format!("\\u{unit:04x}")));
    }
    plain
}

/// How urgent a row is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// Nothing to do.
    Plain,
    /// Somebody should look at it.
    Warning,
    /// It does not work.
    Problem,
}

impl Tone {
    fn style(self) -> Style {
        match self {
            Self::Plain => Style::new(),
            Self::Warning => AnsiColor::Yellow.on_default(),
            Self::Problem => AnsiColor::Red.on_default(),
        }
    }
}

/// A table with a line for each row. Cells are escaped, so that a text that somebody else chose is one cell.
pub struct Table {
    table: comfy_table::Table,
    tones: Vec<Tone>,
}

impl Table {
    /// Creates a table without rows.
    pub fn new(headings: &[&str]) -> Self {
        let mut table = comfy_table::Table::new();
        table.load_style(NOTHING).set_header(headings);
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        Self {
            table,
            tones: Vec::new(),
        }
    }

    /// Adds a row. An empty cell is shown as a dash.
    pub fn row<const N: usize>(&mut self, tone: Tone, cells: [&str; N]) {
        self.table.add_row(cells.map(|cell| match cell {
            "" => "-".into(),
            text => escape(text),
        }));
        self.tones.push(tone);
    }

    /// Returns true if the table has no rows.
    pub fn is_empty(&self) -> bool {
        self.tones.is_empty()
    }

    /// Returns the lines of the table.
    pub fn render(&self) -> String {
        let text = self.table.to_string();
        let tones = std::iter::once(Tone::Plain).chain(self.tones.iter().copied());
        let lines = text.lines().zip(tones).map(|(line, tone)| {
            let style = tone.style();
            format!("{style}{}{style:#}", line.trim_end())
        });
        lines.collect::<Vec<_>>().join("\n")
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn json_contains_no_control_sequence_and_keeps_its_value() {
        let malicious = "\u{1b}[31m\u{9b}2J\u{7f}\u{202e}\r\n\té𝄞\"\\";
        let text = escape_non_ascii(&serde_json::to_string(&[malicious]).unwrap());
        assert!(
            text.chars().all(|letter| letter == ' ' || letter.is_ascii_graphic()),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<Vec<String>>(&text).unwrap(), [malicious]);
    }

    #[test]
    fn a_hostile_cell_is_one_escaped_cell_of_one_line() {
        let mut table = Table::new(&["NAME", "REASON"]);
        table.row(Tone::Plain, ["a\nb\u{1b}[31m", ""]);
        table.row(Tone::Plain, ["c", "Ready"]);
        let text = table.render();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            ["NAME            REASON", "a\\nb\\u{1b}[31m  -", "c               Ready"]
        );
    }

    #[test]
    fn only_rows_with_a_tone_are_colored() {
        let mut table = Table::new(&["NAME"]);
        table.row(Tone::Plain, ["a"]);
        table.row(Tone::Problem, ["b"]);
        let colored: Vec<bool> = table.render().lines().map(|line| line.contains('\u{1b}')).collect();
        assert_eq!(colored, [false, false, true]);
    }
}
