//! The older of Prometheus' two text formats, made of the newer one, OpenMetrics, which the metrics' library prints.

use std::fmt::Write as _;

/// What the formats are called (`Content-Type`).
pub const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// See [`OPEN_METRICS`].
pub const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Whether who sent this `Accept` understands OpenMetrics: Prometheus does, other readers of `/metrics` may not.
pub fn takes_open_metrics(accept: &str) -> bool {
    accept.contains("application/openmetrics-text")
}

/// The same in the older format. There, a counter's help and type stand under its name with `_total`, as its samples do;
/// units and the end have no lines of their own.
pub fn plain(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    // A metric's help comes before its type, which says how the metric is called.
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
        assert!(takes_open_metrics(
            "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2"
        ));
        assert!(!takes_open_metrics("text/plain") && !takes_open_metrics("*/*"));
    }
}
