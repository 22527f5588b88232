//! Signatures of records: they show whether this cluster wrote a record.
//!
//! The last field of a record is an HMAC-SHA256 of all bytes before it. The cluster's id, the export's identity and the
//! volume's name go into it, so that a record that was copied elsewhere does not verify. It tells nothing of the time: an
//! older record of the same volume, put back in its place, verifies.

use std::fmt;

use ring::hmac;
use serde::Deserialize;
use serde::de::IgnoredAny;

/// The length of a key in bytes: that of the hash's result. A longer one makes no difference, a shorter one a weaker HMAC
/// (RFC 2104, section 3).
pub const KEY_LENGTH: usize = 32;

/// Keeps apart what the key may be used for one day.
const USE: &[u8] = b"nfs-operator record";
/// What a record ends with, without a signature.
const END: &[u8] = b"}\n";
/// What a signature begins and ends with.
const BEFORE: &[u8] = b",\"signature\":\"";
const AFTER: &[u8] = b"\"}\n";
/// A signature in hexadecimal digits.
const DIGITS: usize = 64;
/// What a signature adds to a record, in bytes.
pub(super) const SIGNATURE_LENGTH: usize = BEFORE.len() + DIGITS + AFTER.len() - END.len();

/// The key that records are signed with.
#[derive(Clone)]
pub struct RecordsKey(hmac::Key);

/// Result of checking a record's signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Trust {
    /// This cluster wrote it, for this volume on this export.
    Signed,
    /// It has no signature: an earlier release wrote it, or somebody else.
    Unsigned,
    /// It has a signature, which is wrong: it was changed, copied from elsewhere, or signed with another key.
    Forged,
}

/// What a record's signature is bound to beside its volume.
#[derive(Debug, Clone, Copy)]
pub(super) struct Signer<'a> {
    /// The key.
    pub key: &'a RecordsKey,
    /// The cluster whose folder it lies in.
    pub cluster_id: &'a str,
    /// The identity of the export that it lies on.
    pub export_id: &'a str,
}

impl RecordsKey {
    /// A key of exactly [`KEY_LENGTH`] bytes.
    pub fn new(bytes: &[u8; KEY_LENGTH]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, bytes))
    }

    /// A key that nobody else has: what is signed with it is of use as long as it is kept.
    pub fn random() -> Self {
        Self::new(&rand::random())
    }
}

impl fmt::Debug for RecordsKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RecordsKey(…)")
    }
}

impl Signer<'_> {
    /// The content of a volume's record, with its signature.
    pub fn seal(&self, volume: &str, record: &[u8]) -> Vec<u8> {
        let open = record.strip_suffix(END).unwrap_or(record);
        let signature = hmac::sign(&self.key.0, &self.signed(volume, open));
        let mut sealed = Vec::with_capacity(record.len() + SIGNATURE_LENGTH);
        sealed.extend_from_slice(open);
        sealed.extend_from_slice(BEFORE);
        sealed.extend(hexadecimal(signature.as_ref()).into_bytes());
        sealed.extend_from_slice(AFTER);
        sealed
    }

    /// How far the content of a volume's record can be believed.
    pub fn judge(&self, volume: &str, content: &[u8]) -> Trust {
        if let Some((open, signature)) = parts(content)
            && hmac::verify(&self.key.0, &self.signed(volume, open), &signature).is_ok()
        {
            return Trust::Signed;
        }
        match serde_json::from_slice::<Carries>(content) {
            Ok(Carries { signature: None }) => Trust::Unsigned,
            // Also one that somebody wrote anew with other spaces.
            _ => Trust::Forged,
        }
    }

    /// What is signed: each part with its length, so that none can pass for another.
    fn signed(&self, volume: &str, open: &[u8]) -> Vec<u8> {
        let (cluster, export) = (self.cluster_id.as_bytes(), self.export_id.as_bytes());
        let mut signed = Vec::new();
        for part in [USE, cluster, export, volume.as_bytes(), open] {
            signed.extend((part.len() as u64).to_be_bytes());
            signed.extend_from_slice(part);
        }
        signed
    }
}

/// What is asked of a file that verifies as nothing.
#[derive(Deserialize)]
struct Carries {
    #[serde(default)]
    signature: Option<IgnoredAny>,
}

/// What was signed, and the signature.
fn parts(content: &[u8]) -> Option<(&[u8], Vec<u8>)> {
    let rest = content.strip_suffix(AFTER)?;
    let (rest, digits) = rest.split_at_checked(rest.len().checked_sub(DIGITS)?)?;
    Some((rest.strip_suffix(BEFORE)?, bytes(digits)?))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of lower-case hexadecimal digits.
fn bytes(digits: &[u8]) -> Option<Vec<u8>> {
    let value = |digit: &u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    digits
        .chunks_exact(2)
        .map(|pair| match pair {
            [high, low] => Some((value(high)? << 4) | value(low)?),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests;
