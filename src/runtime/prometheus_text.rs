//! Converts OpenMetrics, which the metrics library prints, to the older Prometheus text format.

use std::fmt::Write as _;

/// Content type of OpenMetrics.
pub const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Content type of the Prometheus text format.
pub const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Returns true if a client that sent this `Accept` header understands OpenMetrics. Prometheus does; others may not.
pub fn accepts_open_metrics(accept: &str) -> bool {
    accept.contains("application/openmetrics-text")
}

/// Converts to the older format. In it, the help and type of a counter have the suffix `_total`, like its samples, and
/// there are no lines for units and the end.
pub fn plain(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    // The help precedes the type, which determines the metric's name.
    let mut help = None;
    for line in open_metrics.lines() {
        if let Some(described) = line.strip_prefix("# HELP ") {
            help = described.split_once(' ');
        } else if let Some(typed) = line.strip_prefix("# TYPE ") {
            let (name, kind) = typed.rsplit_once(' ').unwrap_or((typed, "untyped"));
            let suffix = if kind == "counter" { "_total" } else { "" };
            if let Some((_, help)) = help.take() {
                // Writing to a String cannot fail.
                let _written = writeln!(text, "# HELP {name}{suffix} {help}");
            }
            let _written = writeln!(text, "# TYPE {name}{suffix} {kind}");
        } else if !line.starts_with('#') {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_described_under_the_name_of_its_samples() {
        let open_metrics = "# HELP a What a is.\n# TYPE a counter\na_total{b=\"#\"} 1\n# HELP c_seconds C.\n\
                            # TYPE c_seconds histogram\n# UNIT c_seconds seconds\nc_seconds_count 0\n# EOF\n";
        assert_eq!(
            plain(open_metrics),
            "# HELP a_total What a is.\n# TYPE a_total counter\na_total{b=\"#\"} 1\n# HELP c_seconds C.\n\
             # TYPE c_seconds histogram\nc_seconds_count 0\n"
        );
    }

    #[test]
    fn who_asks_for_open_metrics_gets_it() {
        assert!(accepts_open_metrics(
            "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2"
        ));
        assert!(!accepts_open_metrics("text/plain") && !accepts_open_metrics("*/*"));
    }
}
