//! Signatures of files on an export: they show whether this cluster wrote a file, or its quota agent.
//!
//! The last field of a signed file is an HMAC-SHA256 of all bytes before it. It also covers the file's purpose, the
//! cluster's ID, the export's identity and a name, which is the volume's for records, so a file that was copied
//! elsewhere does not verify. It does not cover the time: an older file with the same name verifies if it is put back.
//! Files in which that matters contain a number that only grows, such as the revision of an archive's retention.

use std::fmt;

use ring::hmac;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::quota::QuotaKey;
use crate::text::hexadecimal;

/// Length of a key in bytes, equal to the output length of the hash. A longer key adds no strength, and a shorter one
/// makes the HMAC weaker (RFC 2104, section 3).
pub const KEY_LENGTH: usize = 32;

/// Text from which the quota agent's key is derived. The signed bytes of a file cannot be equal to it: they begin with
/// the length of the purpose.
const QUOTA_KEY: &[u8] = b"nfs-operator quota agent";
/// End of a file without a signature.
const END: &[u8] = b"}\n";
/// Text before and after a signature.
const BEFORE: &[u8] = b",\"signature\":\"";
const AFTER: &[u8] = b"\"}\n";
/// Number of hexadecimal digits of a signature.
const DIGITS: usize = 64;
/// Number of bytes that a signature adds to a file.
pub(crate) const SIGNATURE_LENGTH: usize = BEFORE.len() + DIGITS + AFTER.len() - END.len();

/// Key for signatures of records. After a rotation, signatures with the previous key are valid too.
#[derive(Clone)]
pub struct RecordsKey(SigningKey);

/// Keys that verify signatures. The current one makes them.
#[derive(Clone)]
pub(crate) struct SigningKey {
    current: hmac::Key,
    previous: Option<hmac::Key>,
}

/// Result of checking a file's signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SignatureStatus {
    /// A holder of the key wrote the file, with this name, for this cluster on this export.
    Signed,
    /// The file has no signature: an earlier release or another client wrote it.
    Unsigned,
    /// The file has an invalid signature: it was changed, copied from elsewhere, or signed with an unknown key.
    Forged,
}

/// Kind of a signed file: a file of one kind does not verify as one of another kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A volume's record.
    Record,
    /// The size that the operator wants for a volume.
    QuotaOrder,
    /// The limit that is in force for a volume.
    QuotaReport,
    /// The heartbeat of the quota agent.
    QuotaHeartbeat,
    /// The usage of all volumes.
    QuotaUsage,
}

/// Context of a file's signature, in addition to its name.
#[derive(Clone, Copy)]
pub(crate) struct Signer<'a> {
    /// The key.
    pub key: &'a SigningKey,
    /// The kind of the file.
    pub purpose: Purpose,
    /// ID of the cluster whose folder contains the file.
    pub cluster_id: &'a str,
    /// Identity of the export that contains the file.
    pub export_id: &'a str,
}

impl Purpose {
    /// Returns the signed bytes. They must be the same in every release.
    fn as_bytes(self) -> &'static [u8] {
        match self {
            Self::Record => b"nfs-operator record",
            Self::QuotaOrder => b"nfs-operator quota order",
            Self::QuotaReport => b"nfs-operator quota report",
            Self::QuotaHeartbeat => b"nfs-operator quota heartbeat",
            Self::QuotaUsage => b"nfs-operator quota usage",
        }
    }
}

impl SigningKey {
    pub fn new(current: &[u8; KEY_LENGTH], previous: Option<&[u8; KEY_LENGTH]>) -> Self {
        let key = |bytes: &[u8; KEY_LENGTH]| hmac::Key::new(hmac::HMAC_SHA256, bytes);
        Self {
            current: key(current),
            previous: previous.map(key),
        }
    }

    /// Reports whether a signature was made with the current or the previous key.
    fn verifies(&self, signed: &[u8], signature: &[u8]) -> bool {
        let mut keys = std::iter::once(&self.current).chain(&self.previous);
        keys.any(|key| hmac::verify(key, signed, signature).is_ok())
    }
}

impl RecordsKey {
    /// Creates a key from [`KEY_LENGTH`] bytes.
    pub fn new(bytes: &[u8; KEY_LENGTH]) -> Self {
        Self(SigningKey::new(bytes, None))
    }

    /// Accepts signatures with the previous key. The next write of a record signs it with the current one.
    #[must_use]
    pub fn with_previous(self, bytes: &[u8; KEY_LENGTH]) -> Self {
        let previous = SigningKey::new(bytes, None).current;
        Self(SigningKey {
            previous: Some(previous),
            ..self.0
        })
    }

    /// Creates a random key. Its signatures can be verified only as long as it is kept.
    pub fn random() -> Self {
        Self::new(&rand::random())
    }

    /// Returns the key for the quota agent. A holder of it cannot sign records.
    pub fn quota_key(&self) -> QuotaKey {
        let derive = |key: &hmac::Key| -> [u8; KEY_LENGTH] {
            let tag = hmac::sign(key, QUOTA_KEY);
            std::array::from_fn(|at| tag.as_ref().get(at).copied().unwrap_or_default())
        };
        let key = QuotaKey::new(derive(&self.0.current));
        match &self.0.previous {
            Some(previous) => key.with_previous(derive(previous)),
            None => key,
        }
    }

    /// Returns the signer of records.
    pub(crate) fn signer<'a>(&'a self, cluster_id: &'a str, export_id: &'a str) -> Signer<'a> {
        Signer {
            key: &self.0,
            purpose: Purpose::Record,
            cluster_id,
            export_id,
        }
    }
}

impl fmt::Debug for RecordsKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RecordsKey(…)")
    }
}

impl Signer<'_> {
    /// Returns the content of a file with its signature. The name of a record is its volume's.
    pub fn seal(&self, name: &str, content: &[u8]) -> Vec<u8> {
        let open = content.strip_suffix(END).unwrap_or(content);
        let signature = hmac::sign(&self.key.current, &self.signed(name, open));
        let mut sealed = Vec::with_capacity(content.len() + SIGNATURE_LENGTH);
        sealed.extend_from_slice(open);
        sealed.extend_from_slice(BEFORE);
        sealed.extend(hexadecimal(signature.as_ref()).into_bytes());
        sealed.extend_from_slice(AFTER);
        sealed
    }

    /// Checks the signature of a file.
    pub fn verify(&self, name: &str, content: &[u8]) -> SignatureStatus {
        if let Some((open, signature)) = parts(content)
            && self.key.verifies(&self.signed(name, open), &signature)
        {
            return SignatureStatus::Signed;
        }
        match serde_json::from_slice::<Carries>(content) {
            Ok(Carries { signature: None }) => SignatureStatus::Unsigned,
            // Includes a file that was reformatted.
            _ => SignatureStatus::Forged,
        }
    }

    /// Returns the bytes to sign. Each part is preceded by its length, so that no part can be mistaken for another.
    fn signed(&self, name: &str, open: &[u8]) -> Vec<u8> {
        let (cluster, export) = (self.cluster_id.as_bytes(), self.export_id.as_bytes());
        let mut signed = Vec::new();
        for part in [self.purpose.as_bytes(), cluster, export, name.as_bytes(), open] {
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
pub(crate) fn bytes(digits: &[u8]) -> Option<Vec<u8>> {
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
