//! Signatures of records: they show whether this cluster wrote a record.
//!
//! The last field of a record is an HMAC-SHA256 of all bytes before it. It also covers the cluster's ID, the export's
//! identity and the volume's name, so a record that was copied elsewhere does not verify. It does not cover the time:
//! an older record of the same volume verifies if it is put back. For the retention of archives, the record contains a
//! revision for that reason.

use std::fmt;

use ring::hmac;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::text::hexadecimal;

/// Length of a key in bytes, equal to the output length of the hash. A longer key adds no strength, and a shorter one
/// makes the HMAC weaker (RFC 2104, section 3).
pub const KEY_LENGTH: usize = 32;

/// Purpose of the signature, for domain separation if the key gets other uses.
const USE: &[u8] = b"nfs-operator record";
/// End of a record without a signature.
const END: &[u8] = b"}\n";
/// Text before and after a signature.
const BEFORE: &[u8] = b",\"signature\":\"";
const AFTER: &[u8] = b"\"}\n";
/// Number of hexadecimal digits of a signature.
const DIGITS: usize = 64;
/// Number of bytes that a signature adds to a record.
pub(super) const SIGNATURE_LENGTH: usize = BEFORE.len() + DIGITS + AFTER.len() - END.len();

/// Key for signatures of records. After a rotation, signatures with the previous key are valid too.
#[derive(Clone)]
pub struct RecordsKey {
    current: hmac::Key,
    previous: Option<hmac::Key>,
}

/// Result of checking a record's signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SignatureStatus {
    /// This cluster wrote the record, for this volume on this export.
    Signed,
    /// The record has no signature: an earlier release or another client wrote it.
    Unsigned,
    /// The record has an invalid signature: it was changed, copied from elsewhere, or signed with an unknown key.
    Forged,
}

/// Context of a record's signature, in addition to the volume.
#[derive(Debug, Clone, Copy)]
pub(super) struct Signer<'a> {
    /// The key.
    pub key: &'a RecordsKey,
    /// ID of the cluster whose folder contains the record.
    pub cluster_id: &'a str,
    /// Identity of the export that contains the record.
    pub export_id: &'a str,
}

impl RecordsKey {
    /// Creates a key from [`KEY_LENGTH`] bytes.
    pub fn new(bytes: &[u8; KEY_LENGTH]) -> Self {
        Self {
            current: hmac::Key::new(hmac::HMAC_SHA256, bytes),
            previous: None,
        }
    }

    /// Accepts signatures with the previous key. The next write of a record signs it with the current one.
    #[must_use]
    pub fn with_previous(self, bytes: &[u8; KEY_LENGTH]) -> Self {
        Self {
            previous: Some(hmac::Key::new(hmac::HMAC_SHA256, bytes)),
            ..self
        }
    }

    /// Reports whether a signature was made with the current or the previous key.
    fn verifies(&self, signed: &[u8], signature: &[u8]) -> bool {
        let mut keys = std::iter::once(&self.current).chain(&self.previous);
        keys.any(|key| hmac::verify(key, signed, signature).is_ok())
    }

    /// Creates a random key. Its signatures can be verified only as long as it is kept.
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
    /// Returns the content of a volume's record with its signature.
    pub fn seal(&self, volume: &str, record: &[u8]) -> Vec<u8> {
        let open = record.strip_suffix(END).unwrap_or(record);
        let signature = hmac::sign(&self.key.current, &self.signed(volume, open));
        let mut sealed = Vec::with_capacity(record.len() + SIGNATURE_LENGTH);
        sealed.extend_from_slice(open);
        sealed.extend_from_slice(BEFORE);
        sealed.extend(hexadecimal(signature.as_ref()).into_bytes());
        sealed.extend_from_slice(AFTER);
        sealed
    }

    /// Checks the signature of a volume's record.
    pub fn verify(&self, volume: &str, content: &[u8]) -> SignatureStatus {
        if let Some((open, signature)) = parts(content)
            && self.key.verifies(&self.signed(volume, open), &signature)
        {
            return SignatureStatus::Signed;
        }
        match serde_json::from_slice::<Carries>(content) {
            Ok(Carries { signature: None }) => SignatureStatus::Unsigned,
            // Includes a record that was reformatted.
            _ => SignatureStatus::Forged,
        }
    }

    /// Returns the bytes to sign. Each part is preceded by its length, so that no part can be mistaken for another.
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

/// Reports the presence of a signature in a file that does not verify.
#[derive(Deserialize)]
struct Carries {
    #[serde(default)]
    signature: Option<IgnoredAny>,
}

/// Splits the content into the signed bytes and the signature.
fn parts(content: &[u8]) -> Option<(&[u8], Vec<u8>)> {
    let rest = content.strip_suffix(AFTER)?;
    let (rest, digits) = rest.split_at_checked(rest.len().checked_sub(DIGITS)?)?;
    Some((rest.strip_suffix(BEFORE)?, bytes(digits)?))
}

/// Parses lower-case hexadecimal digits.
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
