//! Targets, and whether the results meet them. They are printed and never asserted: a benchmark on a shared machine has
//! no verdict.

use super::table::new_table;

/// What a result should be.
#[derive(Clone, Copy, Debug)]
pub enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Bound {
    fn is_met(self, measured: f64) -> bool {
        match self {
            Self::AtMost(most) => measured <= most,
            Self::AtLeast(least) => measured >= least,
        }
    }
}

/// A result and its target.
#[derive(Debug)]
pub struct Target {
    what: String,
    unit: &'static str,
    bound: Bound,
    measured: Option<f64>,
}

impl Target {
    /// Creates a row. Without a result, it reports that the result was not measured.
    pub fn new(what: impl Into<String>, unit: &'static str, bound: Bound, measured: impl Into<Option<f64>>) -> Self {
        Self {
            what: what.into(),
            unit,
            bound,
            measured: measured.into().filter(|measured| measured.is_finite()),
        }
    }

    fn cells(&self) -> [String; 4] {
        let with_unit = |number: String| format!("{number} {}", self.unit).trim_end().to_owned();
        let bound = match self.bound {
            Bound::AtMost(most) => with_unit(format!("≤ {most}")),
            Bound::AtLeast(least) => with_unit(format!("≥ {least}")),
        };
        let Some(measured) = self.measured else {
            return [self.what.clone(), String::new(), bound, "not measured".into()];
        };
        // What is printed decides, so that no row contradicts itself.
        let printed = format!("{measured:.2}");
        let is_met = printed.parse().is_ok_and(|measured| self.bound.is_met(measured));
        let verdict = if is_met { "met" } else { "missed" };
        [self.what.clone(), with_unit(printed), bound, verdict.into()]
    }
}

/// Returns the results beside their targets.
pub fn render(targets: &[Target]) -> String {
    let mut table = new_table(&["target", "measured", "target value", "verdict"]);
    for target in targets {
        table.add_row(target.cells());
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(bound: Bound, measured: Option<f64>) -> String {
        let [.., verdict] = Target::new("requests", "", bound, measured).cells();
        verdict
    }

    #[test]
    fn a_result_meets_its_target_or_misses_it() {
        assert_eq!(verdict(Bound::AtMost(2.0), Some(2.0)), "met");
        assert_eq!(verdict(Bound::AtMost(2.0), Some(2.01)), "missed");
        assert_eq!(verdict(Bound::AtLeast(1.8), Some(1.79)), "missed");
        assert_eq!(verdict(Bound::AtLeast(1.8), Some(1.8)), "met");
    }

    #[test]
    fn the_printed_number_decides() {
        assert_eq!(verdict(Bound::AtMost(2.0), Some(2.004)), "met");
        assert_eq!(verdict(Bound::AtLeast(0.5), Some(0.4951)), "met");
        assert_eq!(verdict(Bound::AtLeast(0.5), Some(0.4949)), "missed");
    }

    #[test]
    fn what_was_not_measured_is_neither_met_nor_missed() {
        assert_eq!(verdict(Bound::AtMost(2.0), None), "not measured");
        // A ratio to nothing.
        assert_eq!(verdict(Bound::AtLeast(2.0), Some(f64::INFINITY)), "not measured");
        assert_eq!(verdict(Bound::AtMost(2.0), Some(f64::NAN)), "not measured");
    }

    #[test]
    fn a_row_has_the_unit_in_both_numbers() {
        let row = Target::new("peak", "MiB", Bound::AtMost(64.0), 40.25);
        assert_eq!(row.cells(), ["peak", "40.25 MiB", "≤ 64 MiB", "met"]);
    }
}
