use std::collections::BTreeMap;
use std::fmt;

use crate::layout;
use crate::signature::{KEY_LENGTH, RecordsKey, SigningKey, bytes};
use crate::text::hexadecimal;

/// Maximum number of keys of one cluster: the current and the previous one.
const KEYS_PER_CLUSTER: usize = 2;

/// Key of one cluster's orders and reports; [`RecordsKey::quota_key`] derives it. After a rotation, signatures with the
/// previous key are valid too.
#[derive(Clone, PartialEq, Eq)]
pub struct QuotaKey {
    current: [u8; KEY_LENGTH],
    previous: Option<[u8; KEY_LENGTH]>,
}

/// Content of the file with the keys of an agent: a line `<cluster ID> <hexadecimal key>` for each cluster. While a key
/// is rotated, a second line of the same cluster has the previous one. Empty lines and lines with `#` are ignored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyFile {
    keys: BTreeMap<String, QuotaKey>,
}

/// Reason why a file of keys cannot be used. Never contains a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyFileError {
    /// A line has another format.
    #[error("line {line} must be a cluster ID, a space, and {} hexadecimal digits in lower case", 2 * KEY_LENGTH)]
    Line {
        /// Number of the line, from 1.
        line: usize,
    },
    /// A cluster has too many keys.
    #[error("line {line}: a cluster can have at most {KEYS_PER_CLUSTER} lines, the current key and the previous one")]
    TooMany {
        /// Number of the line, from 1.
        line: usize,
    },
    /// The file has no key.
    #[error("it has no key; each line must be a cluster ID, a space, and the key that the operator prints")]
    Empty,
}

impl QuotaKey {
    /// Creates a key.
    pub fn new(bytes: [u8; KEY_LENGTH]) -> Self {
        Self {
            current: bytes,
            previous: None,
        }
    }

    /// Accepts signatures with the previous key.
    #[must_use]
    pub fn with_previous(self, bytes: [u8; KEY_LENGTH]) -> Self {
        Self {
            previous: Some(bytes),
            ..self
        }
    }

    pub(super) fn signing(&self) -> SigningKey {
        SigningKey::new(&self.current, self.previous.as_ref())
    }
}

impl fmt::Debug for QuotaKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("QuotaKey(…)")
    }
}

impl KeyFile {
    /// Parses the file.
    ///
    /// # Errors
    /// The first line with a mistake.
    pub fn parse(text: &str) -> Result<Self, KeyFileError> {
        let mut keys: BTreeMap<String, QuotaKey> = BTreeMap::new();
        for (line, content) in (1..).zip(text.lines()) {
            let content = content.trim();
            if content.is_empty() || content.starts_with('#') {
                continue;
            }
            let (cluster, key) = parse_line(content).ok_or(KeyFileError::Line { line })?;
            match keys.get_mut(cluster) {
                None => {
                    keys.insert(cluster.to_owned(), QuotaKey::new(key));
                }
                Some(first) if first.previous.is_none() => first.previous = Some(key),
                Some(_) => return Err(KeyFileError::TooMany { line }),
            }
        }
        match keys.is_empty() {
            true => Err(KeyFileError::Empty),
            false => Ok(Self { keys }),
        }
    }

    /// Returns the key of a cluster.
    pub fn key(&self, cluster_id: &str) -> Option<&QuotaKey> {
        self.keys.get(cluster_id)
    }

    /// Returns the lines for a cluster.
    pub fn lines(cluster_id: &str, records_key: &RecordsKey) -> String {
        let key = records_key.quota_key();
        let line = |key: &[u8; KEY_LENGTH]| format!("{cluster_id} {}\n", hexadecimal(key));
        let previous = key.previous.as_ref().map(line).unwrap_or_default();
        line(&key.current) + &previous
    }
}

fn parse_line(line: &str) -> Option<(&str, [u8; KEY_LENGTH])> {
    let (cluster, digits) = line.split_once(' ')?;
    layout::cluster(cluster).ok()?;
    let digits = digits.trim().as_bytes();
    let key = bytes(digits).filter(|_| digits.len() == 2 * KEY_LENGTH)?;
    Some((cluster, key.try_into().ok()?))
}
