//! What happened in a run: the text that two runs of a seed have in common, and that a person reads.

use std::fmt::Display;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::Level;
use tracing::subscriber::DefaultGuard;

/// The trace of a run. Clones share it.
#[derive(Debug, Clone)]
pub struct Trace {
    start: Instant,
    /// `None`: nobody reads it.
    lines: Option<Arc<Mutex<Vec<String>>>>,
}

impl Trace {
    /// Starts a trace now, which is empty unless it is `enabled`.
    pub fn start(enabled: bool) -> Self {
        Self {
            start: Instant::now(),
            lines: enabled.then(Arc::default),
        }
    }

    /// Records what `actor` did.
    pub fn record(&self, actor: &str, what: impl Display) {
        let Some(lines) = &self.lines else { return };
        let line = format!("{:>10.3} {actor:<12} {what}", self.start.elapsed().as_secs_f64());
        lines.lock().push(line);
    }

    /// Returns all lines.
    pub fn lines(&self) -> Vec<String> {
        let lines = self.lines.as_ref();
        lines.map_or_else(Vec::new, |lines| lines.lock().clone())
    }
}

impl Trace {
    /// Records what the operator logs on this thread, until the result is dropped.
    pub fn collect_logs(&self) -> DefaultGuard {
        let trace = self.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(Level::INFO)
            .without_time()
            .with_target(false)
            .with_ansi(false)
            .with_writer(move || LogWriter(trace.clone()));
        tracing::subscriber::set_default(subscriber.finish())
    }
}

/// Records a line of the operator's log.
struct LogWriter(Trace);

impl io::Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.record("log", String::from_utf8_lossy(line).trim());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
