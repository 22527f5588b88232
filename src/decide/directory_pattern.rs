//! Directory patterns: text and variables that expand to the directory of a claim. Pure.

use std::collections::BTreeMap;
use std::fmt;

use export_store::naming::{
    DirectoryPath, MAX_NAME_LEN, MAX_PATH_LEN, NamingError, check_alphabet, check_archive_prefix, check_length,
    check_segment,
};
use export_store::text::quoted;

/// Reason why a pattern cannot be expanded to a directory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// The name is invalid for a directory.
    #[error(transparent)]
    Name(#[from] NamingError),
    /// The pattern has a `${` without a `}`.
    #[error("pattern {pattern} has a `${{` without `}}`: close it")]
    UnclosedVariable {
        /// The pattern, shortened for reading.
        pattern: String,
    },
    /// The variable does not exist.
    #[error(
        "unknown variable {variable}: known are ${{pvc.namespace}}, ${{pvc.name}}, ${{pvc.uid}}, ${{pv.name}}, \
         ${{pvc.labels.KEY}}, ${{pvc.annotations.KEY}}, and ${{.PVC.…}} for namespace, name, labels and annotations"
    )]
    UnknownVariable {
        /// The variable as written, shortened for reading.
        variable: String,
    },
    /// The claim lacks a label or annotation.
    #[error("the claim has no value for {variable}: set the label or annotation, or change the pattern")]
    MissingValue {
        /// The variable as written.
        variable: String,
    },
    /// A value contains `/` and would add segments.
    #[error("the value {value} of {variable} holds `/`: a value names one segment; put the `/` into the pattern")]
    SlashInValue {
        /// The variable as written.
        variable: String,
        /// The value, shortened for reading.
        value: String,
    },
    /// The pattern contains only variables, and none of them has a value.
    #[error("pattern {pattern} expands to nothing: set a value for its variables on the claim")]
    ExpandsToNothing {
        /// The pattern, shortened for reading.
        pattern: String,
    },
}

/// A directory pattern, such as `${pvc.namespace}/${pvc.name}`.
///
/// Only the pattern contains separators. A value never adds a segment, so the number of segments is the same for every
/// claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    source: String,
    segments: Vec<Vec<Part>>,
}

/// Values of the variables.
#[derive(Debug, Clone, Copy)]
pub struct PatternValues<'a> {
    /// The claim's namespace.
    pub namespace: &'a str,
    /// The claim's name.
    pub claim: &'a str,
    /// The claim's UID.
    pub claim_uid: &'a str,
    /// The volume's name.
    pub volume: &'a str,
    /// The claim's labels.
    pub labels: &'a BTreeMap<String, String>,
    /// The claim's annotations.
    pub annotations: &'a BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Variable { written: String, variable: Variable },
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Variable {
    Namespace,
    Claim,
    ClaimUid,
    Volume,
    Label(String),
    Annotation(String),
    /// A variable that nfs-subdir does not know, and therefore treats as one that never has a value.
    Nothing,
}

impl Pattern {
    /// Parses a pattern in the syntax of this operator (`${pvc.name}`) or of nfs-subdir (`${.PVC.name}`).
    ///
    /// # Errors
    /// A fault that no values of a claim can fix: an unknown or unclosed variable, an empty segment, or text that is
    /// not allowed.
    pub fn parse(source: &str) -> Result<Self, PatternError> {
        Self::of_segments(source, segments(source, Variable::parse)?)
    }

    /// Parses a pattern as nfs-subdir does: redundant separators and `.` segments are dropped, and an unknown variable
    /// in its syntax (`${.PVC.uid}`) has no value.
    ///
    /// # Errors
    /// The same errors as [`Pattern::parse`], except for what this parser accepts.
    pub fn parse_as_nfs_subdir(source: &str) -> Result<Self, PatternError> {
        let unknown = |name: &str| name.starts_with(".PVC.").then_some(Variable::Nothing);
        let mut segments = segments(source, |name| Variable::parse(name).or_else(|| unknown(name)))?;
        let says_nothing = |parts: &[Part]| match parts {
            [] => true,
            [Part::Text(text)] => text == ".",
            _ => false,
        };
        segments.retain(|parts| !says_nothing(parts));
        if segments.is_empty() {
            // For nfs-subdir, this is the root of the export.
            return Err(NamingError::Empty.into());
        }
        Self::of_segments(source, segments)
    }

    fn of_segments(source: &str, segments: Vec<Vec<Part>>) -> Result<Self, PatternError> {
        for (position, segment) in (1..).zip(&segments) {
            check_parts(segment, source, position)?;
        }
        Ok(Self {
            source: source.to_owned(),
            segments,
        })
    }

    /// Returns the directory of a claim. The last segment is shortened to leave room for the name of an archive on a
    /// server that allows names of 255 bytes. For a server that allows fewer, call [`DirectoryPath::fit`] afterwards.
    ///
    /// # Errors
    /// A missing value, a value that contains `/`, or values that result in a name that is not allowed.
    pub fn expand(&self, values: &PatternValues<'_>) -> Result<DirectoryPath, PatternError> {
        if self.is_nothing(values) {
            return Err(PatternError::ExpandsToNothing {
                pattern: quoted(&self.source),
            });
        }
        let segments = self
            .segments
            .iter()
            .map(|segment| segment.iter().map(|part| part.text(values)).collect())
            .collect::<Result<Vec<String>, _>>()?;
        Ok(DirectoryPath::from_segments(segments)?)
    }

    /// Returns true if the pattern contains labels or annotations. A tenant can choose these freely, so the directory
    /// that such a pattern expands to is never adopted.
    pub fn uses_tenant_values(&self) -> bool {
        self.variables()
            .any(|variable| matches!(variable, Variable::Label(_) | Variable::Annotation(_)))
    }

    /// Returns true if claims of two namespaces never have the same directory: the namespace is a segment of its own, or
    /// the pattern contains a UID. The name of a volume contains the UID of its claim.
    ///
    /// `${pvc.namespace}-${pvc.name}` does not separate namespaces: it is `a-b-c` for claim `b-c` of namespace `a` and for
    /// claim `c` of namespace `a-b`.
    pub fn separates_namespaces(&self) -> bool {
        let is_namespace = |segment: &[Part]| {
            matches!(
                segment,
                [Part::Variable {
                    variable: Variable::Namespace,
                    ..
                }]
            )
        };
        self.segments.iter().any(|segment| is_namespace(segment))
            || self
                .variables()
                .any(|variable| matches!(variable, Variable::ClaimUid | Variable::Volume))
    }

    /// Returns true if all claims of a namespace have the same directory, whatever they are called.
    pub fn depends_only_on_namespace(&self) -> bool {
        self.variables().all(|variable| matches!(variable, Variable::Namespace))
    }

    fn variables(&self) -> impl Iterator<Item = &Variable> {
        self.segments.iter().flatten().filter_map(|part| match part {
            Part::Text(_) => None,
            Part::Variable { variable, .. } => Some(variable),
        })
    }

    /// Returns true if the pattern is a single segment of variables, none of which has a value: no directory was
    /// requested, which is different from an invalid one.
    fn is_nothing(&self, values: &PatternValues<'_>) -> bool {
        matches!(self.segments.as_slice(), [only] if only.iter().all(|part| match part {
            Part::Text(_) => false,
            Part::Variable { variable, .. } => variable.value(values).is_none_or(str::is_empty),
        }))
    }
}

impl fmt::Display for Pattern {
    /// Writes the pattern as it was specified.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)
    }
}

impl Part {
    fn text<'a>(&'a self, values: &PatternValues<'a>) -> Result<&'a str, PatternError> {
        let (written, variable) = match self {
            Self::Text(text) => return Ok(text),
            Self::Variable { written, variable } => (written, variable),
        };
        match variable.value(values).filter(|value| !value.is_empty()) {
            None => Err(PatternError::MissingValue {
                variable: written.clone(),
            }),
            // A tenant sets the value, and the administrator sets the pattern. If a value could contain `/`, a tenant
            // with the pattern `${pvc.namespace}-${pvc.labels.team}` could also choose the parent directory, and
            // thereby use a directory inside that of another namespace.
            Some(value) if value.contains('/') => Err(PatternError::SlashInValue {
                variable: written.clone(),
                value: quoted(value),
            }),
            Some(value) => Ok(value),
        }
    }
}

impl Variable {
    /// Parses the text between `${` and `}`.
    fn parse(name: &str) -> Option<Self> {
        let of_claim = name.strip_prefix("pvc.").or_else(|| name.strip_prefix(".PVC."));
        let key = |prefix| {
            of_claim
                .and_then(|name| name.strip_prefix(prefix))
                .filter(|key| !key.is_empty())
                .map(str::to_owned)
        };
        match (of_claim, name) {
            (Some("namespace"), _) => Some(Self::Namespace),
            (Some("name"), _) => Some(Self::Claim),
            (_, "pvc.uid") => Some(Self::ClaimUid),
            (_, "pv.name") => Some(Self::Volume),
            _ => key("labels.")
                .map(Self::Label)
                .or_else(|| key("annotations.").map(Self::Annotation)),
        }
    }

    fn value<'a>(&self, values: &PatternValues<'a>) -> Option<&'a str> {
        match self {
            Self::Namespace => Some(values.namespace),
            Self::Claim => Some(values.claim),
            Self::ClaimUid => Some(values.claim_uid),
            Self::Volume => Some(values.volume),
            Self::Label(key) => values.labels.get(key).map(String::as_str),
            Self::Annotation(key) => values.annotations.get(key).map(String::as_str),
            Self::Nothing => None,
        }
    }
}

/// Splits a pattern into segments. Variables are recognized first, because the key of an annotation may contain `/`.
fn segments(source: &str, read: impl Fn(&str) -> Option<Variable>) -> Result<Vec<Vec<Part>>, PatternError> {
    if source.is_empty() {
        return Err(NamingError::Empty.into());
    }
    if source.len() > MAX_PATH_LEN {
        return Err(NamingError::PathTooLong { length: source.len() }.into());
    }
    let (mut done, mut current) = (Vec::new(), Vec::new());
    let mut rest = source;
    while !rest.is_empty() {
        let (text, after) = match rest.split_once("${") {
            Some((text, after)) => (text, Some(after)),
            None => (rest, None),
        };
        let mut pieces = text.split('/').peekable();
        while let Some(piece) = pieces.next() {
            if !piece.is_empty() {
                current.push(Part::Text(piece.to_owned()));
            }
            if pieces.peek().is_some() {
                done.push(std::mem::take(&mut current));
            }
        }
        rest = match after {
            None => "",
            Some(after) => {
                let (name, after) = after.split_once('}').ok_or_else(|| PatternError::UnclosedVariable {
                    pattern: quoted(source),
                })?;
                let written = format!("${{{name}}}");
                let variable = read(name).ok_or_else(|| PatternError::UnknownVariable {
                    variable: quoted(&written),
                })?;
                current.push(Part::Variable { written, variable });
                after
            }
        };
    }
    done.push(current);
    Ok(done)
}

/// Rejects a segment that is invalid for all values.
fn check_parts(parts: &[Part], source: &str, position: usize) -> Result<(), NamingError> {
    match parts {
        [] => Err(NamingError::EmptySegment {
            path: quoted(source),
            position,
        }),
        [Part::Text(text)] => {
            check_segment(text)?;
            check_length(text, MAX_NAME_LEN)
        }
        _ => {
            for part in parts {
                if let Part::Text(text) = part {
                    check_alphabet(text)?;
                }
            }
            let begins_with_dot = matches!(parts.first(), Some(Part::Text(text)) if text.starts_with('.'));
            let ends_with_dot = matches!(parts.last(), Some(Part::Text(text)) if text.ends_with('.'));
            match parts.first() {
                _ if begins_with_dot || ends_with_dot => Err(NamingError::DotAtEnd {
                    segment: quoted(source),
                }),
                Some(Part::Text(text)) => check_archive_prefix(text),
                _ => Ok(()),
            }
        }
    }
}

#[cfg(test)]
mod nfs_subdir_tests;
#[cfg(test)]
mod tests;
