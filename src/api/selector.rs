//! Parser of label selectors in the notation of kubectl: `tier=fast,zone in (a,b),!legacy`.

use std::collections::BTreeSet;

use kube::core::{Expression, Selector};

/// Parses a selector like `labels.Parse` of apimachinery. Returns `None` if it is invalid.
pub fn parse(text: &str) -> Option<Selector> {
    requirements(text)?.into_iter().map(requirement).collect()
}

/// Splits at the commas that are outside parentheses.
fn requirements(text: &str) -> Option<Vec<&str>> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0_usize, 0_usize);
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.checked_sub(1)?,
            ',' if depth == 0 => {
                parts.push(text.get(start..at)?.trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text.get(start..)?.trim());
    (depth == 0).then_some(parts)
}

fn requirement(text: &str) -> Option<Expression> {
    if let Some(key) = text.strip_prefix('!') {
        return Some(Expression::DoesNotExist(label_key(key)?));
    }
    if let Some((key, value)) = text.split_once("!=") {
        return Some(Expression::NotEqual(label_key(key)?, label_value(value)?));
    }
    if let Some((key, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        return Some(Expression::Equal(label_key(key)?, label_value(value)?));
    }
    let Some((head, values)) = text.split_once('(') else {
        return Some(Expression::Exists(label_key(text)?));
    };
    let values = values
        .strip_suffix(')')?
        .split(',')
        .map(label_value)
        .collect::<Option<BTreeSet<_>>>()?;
    match head.split_whitespace().collect::<Vec<_>>().as_slice() {
        [key, "in"] => Some(Expression::In(label_key(key)?, values)),
        [key, "notin"] => Some(Expression::NotIn(label_key(key)?, values)),
        _ => None,
    }
}

fn label_key(text: &str) -> Option<String> {
    let key = text.trim();
    let (prefix, name) = key
        .split_once('/')
        .map_or((None, key), |(prefix, name)| (Some(prefix), name));
    let prefix_is_valid = prefix.is_none_or(|prefix| {
        !prefix.is_empty()
            && prefix.len() <= 253
            && prefix.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.".contains(&b))
    });
    (prefix_is_valid && !name.is_empty())
        .then(|| label_value(name))
        .flatten()
        .map(|_| key.to_owned())
}

fn label_value(text: &str) -> Option<String> {
    let value = text.trim();
    is_label_value(value).then(|| value.to_owned())
}

/// Returns true if a text is a valid label value: empty, or up to 63 characters of `[A-Za-z0-9_.-]` that start and end with a
/// letter or digit.
pub fn is_label_value(value: &str) -> bool {
    let is_alphanumeric = |byte: Option<u8>| byte.is_none_or(|byte| byte.is_ascii_alphanumeric());
    value.len() <= 63
        && value
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        && is_alphanumeric(value.bytes().next())
        && is_alphanumeric(value.bytes().last())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use std::collections::BTreeMap;

    use kube::core::SelectorExt;

    use super::parse;

    fn matches(selector: &str, labels: &[(&str, &str)]) -> bool {
        let labels: BTreeMap<String, String> = labels.iter().map(|&(k, v)| (k.into(), v.into())).collect();
        parse(selector).unwrap().matches(&labels)
    }

    #[test]
    fn selectors_select_the_same_labels_as_in_kubectl() {
        let labels = [("tier", "fast"), ("zone", "a"), ("example.org/rack", "r-1")];
        for chosen in [
            "tier=fast",
            "tier==fast",
            " tier = fast , zone in (a, b)",
            "zone notin (c)",
            "tier",
            "!legacy",
            "tier!=slow",
            "example.org/rack=r-1",
            "other!=x",
        ] {
            assert!(matches(chosen, &labels), "{chosen}");
        }
        for other in [
            "tier=slow",
            "zone in (b,c)",
            "zone notin (a)",
            "legacy",
            "!tier",
            "tier!=fast",
        ] {
            assert!(!matches(other, &labels), "{other}");
        }
    }

    #[test]
    fn invalid_selectors_are_refused() {
        for bad in [
            "",
            ",",
            "tier=fast,",
            "a b",
            "zone in a,b",
            "zone in (a",
            "zone in a)",
            "-x=1",
            "a/b/c=1",
            "tier=fa st",
            "!",
            "=x",
        ] {
            assert!(parse(bad).is_none(), "{bad}");
        }
    }
}
