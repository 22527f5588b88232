//! Parser and exact formatter of Kubernetes quantities.
//!
//! The crate kube_quantity 0.9 converts through `f64`, which is inexact for requests above 2^53 bytes and for sizes near
//! 2^63 that some servers report.

use export_store::text::format_whole;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Number of significant digits after the decimal point. Further digits only round up.
const FRACTION_DIGITS: usize = 18;
const FRACTION_UNIT: u128 = 1_000_000_000_000_000_000;
/// Maximum length of a quantity. A canonical one has at most 20 digits and a suffix.
const MAX_LENGTH: usize = 64;

/// Parses a quantity of 0 or more, rounded up to whole bytes (grammar of `Quantity` in
/// `k8s.io/apimachinery/pkg/api/resource`). Returns `None` if it is invalid or exceeds 128 bits.
pub fn bytes(text: &str) -> Option<u128> {
    let text = text.strip_prefix('+').unwrap_or(text);
    if text.len() > MAX_LENGTH {
        return None;
    }
    let end = text
        .find(|character: char| !(character.is_ascii_digit() || character == '.'))
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at_checked(end)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let fraction = fraction_of(fraction)?;
    match unit(suffix)? {
        Unit::Times(factor) => {
            let part = fraction.checked_mul(factor)?.div_ceil(FRACTION_UNIT);
            whole.checked_mul(factor)?.checked_add(part)
        }
        Unit::DividedBy(divisor) => Some(
            whole
                .checked_mul(FRACTION_UNIT)?
                .checked_add(fraction)?
                .div_ceil(FRACTION_UNIT.checked_mul(divisor)?),
        ),
    }
}

/// Returns bytes as an exact quantity in its canonical form: with the largest binary unit that leaves a whole number.
pub fn exact(bytes: u128) -> Quantity {
    Quantity(format_whole(bytes))
}

/// Returns a number as a quantity.
pub fn count(number: u64) -> Quantity {
    Quantity(number.to_string())
}

enum Unit {
    Times(u128),
    DividedBy(u128),
}

/// Returns the digits after the decimal point in units of 10^-18, rounded up.
fn fraction_of(digits: &str) -> Option<u128> {
    let (counted, rest) = digits.split_at_checked(FRACTION_DIGITS).unwrap_or((digits, ""));
    let counted: u128 = format!("{counted:0<FRACTION_DIGITS$}").parse().ok()?;
    Some(counted + u128::from(rest.bytes().any(|digit| digit != b'0')))
}

fn unit(suffix: &str) -> Option<Unit> {
    Some(match suffix {
        "" => Unit::Times(1),
        "n" => Unit::DividedBy(1_000_000_000),
        "u" => Unit::DividedBy(1_000_000),
        "m" => Unit::DividedBy(1_000),
        "k" => Unit::Times(1_000),
        "M" => Unit::Times(1_000_000),
        "G" => Unit::Times(1_000_000_000),
        "T" => Unit::Times(1_000_000_000_000),
        "P" => Unit::Times(1_000_000_000_000_000),
        "E" => Unit::Times(1_000_000_000_000_000_000),
        "Ki" => Unit::Times(1 << 10),
        "Mi" => Unit::Times(1 << 20),
        "Gi" => Unit::Times(1 << 30),
        "Ti" => Unit::Times(1 << 40),
        "Pi" => Unit::Times(1 << 50),
        "Ei" => Unit::Times(1 << 60),
        _ => return exponent(suffix.strip_prefix(['e', 'E'])?),
    })
}

/// Parses the exponent after `e`, from -18 to 18.
fn exponent(text: &str) -> Option<Unit> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let power: u32 = digits.parse().ok().filter(|&power| power <= 18)?;
    let factor = 10_u128.pow(power);
    Some(if negative {
        Unit::DividedBy(factor)
    } else {
        Unit::Times(factor)
    })
}

#[cfg(test)]
mod tests {
    use super::{bytes, exact};

    #[test]
    fn quantities_are_exact_and_rounded_up() {
        for (text, expected) in [
            ("0", 0),
            ("1", 1),
            ("+1", 1),
            ("1.", 1),
            (".5", 1),
            ("1Ki", 1024),
            ("1.5Ki", 1536),
            ("1k", 1000),
            ("0.0001k", 1),
            ("1m", 1),
            ("1000m", 1),
            ("1001m", 2),
            ("1n", 1),
            ("1500000u", 2),
            ("1e3", 1000),
            ("1E3", 1000),
            ("1.5e+3", 1500),
            ("1500e-3", 2),
            ("1E", 1_000_000_000_000_000_000),
            ("8Ei", 1 << 63),
            ("9007199254740993", 9_007_199_254_740_993),
            ("9223372036854775807", 9_223_372_036_854_775_807),
            ("9223372036854775807.5Ki", 9_444_732_965_739_290_427_392 - 512),
            ("1.0000000000000000000001", 2),
            ("16Ei", 1 << 64),
        ] {
            assert_eq!(bytes(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn invalid_quantities_are_refused() {
        for text in [
            "",
            "-1",
            "-1Gi",
            "+",
            ".",
            "1..5",
            "1.5.5",
            "Gi",
            "1gi",
            "1KI",
            "1 Gi",
            " 1",
            "1Gi ",
            "1e",
            "1e1.5",
            "1e19",
            "1e-",
            "1e++3",
            "1Zi",
            "0x10",
            "NaN",
            "inf",
            "1_000",
            "\u{661}",
            "340282366920938463463374607431768211456",
            "340282366920938463463374607431768211455Ki",
            &"1".repeat(65),
        ] {
            assert_eq!(bytes(text), None, "{text:?}");
        }
    }

    #[test]
    fn an_exact_quantity_is_the_canonical_one_and_means_the_same_number() {
        for (number, text) in [
            (0, "0"),
            (1, "1"),
            (1023, "1023"),
            (1024, "1Ki"),
            (1536, "1536"),
            (5 << 30, "5Gi"),
            ((5 << 30) + (4 << 10), "5242884Ki"),
            (1 << 64, "16Ei"),
            (u128::from(u64::MAX), "18446744073709551615"),
        ] {
            assert_eq!(exact(number).0, text);
            assert_eq!(bytes(text), Some(number), "{text}");
        }
    }
}
