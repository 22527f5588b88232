use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::key::QuotaKey;
use crate::layout;
use crate::signature::{Purpose, SIGNATURE_LENGTH, SignatureStatus, Signer, SigningKey};

/// The newest version of the formats that this release reads, and the one that it writes.
const VERSION: u32 = 1;
/// Maximum length of a message in a file, in bytes.
const MAX_MESSAGE_LEN: usize = 1024;

/// A kind of file in the folder `quota`.
pub trait QuotaFile: Serialize + DeserializeOwned {
    /// Maximum size in bytes, including the signature. Do not read a longer file.
    const MAX_LEN: usize;
    #[doc(hidden)]
    const PURPOSE: Purpose;

    /// Returns the file's name, which is signed too.
    fn name(&self) -> &str;

    #[doc(hidden)]
    fn check(&self, cluster_id: &str) -> Result<(), String>;
}

/// Reason why a file cannot be used or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuotaFileError {
    /// The file is longer than its kind allows.
    #[error("it is longer than {0} bytes")]
    TooLong(usize),
    /// The file ends before its content does, or is empty: it is being written, or a crash interrupted its writer.
    #[error("it is truncated")]
    Truncated,
    /// The file does not have the format.
    #[error("it is damaged: {0}")]
    Damaged(String),
    /// A newer release wrote the file.
    #[error("it has version {0}, and this release reads versions up to {VERSION}")]
    TooNew(u32),
}

/// Signs and verifies the files of one cluster on one export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaSeal {
    key: Option<QuotaKey>,
    cluster_id: String,
    export_id: String,
}

#[derive(Serialize, Deserialize)]
struct Versioned<T> {
    version: u32,
    #[serde(flatten)]
    file: T,
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

impl QuotaSeal {
    /// Creates a seal. Without a key, files are written without a signature.
    pub fn new(key: Option<QuotaKey>, cluster_id: impl Into<String>, export_id: impl Into<String>) -> Self {
        Self {
            key,
            cluster_id: cluster_id.into(),
            export_id: export_id.into(),
        }
    }

    /// Reports whether there is a key.
    pub fn has_key(&self) -> bool {
        self.key.is_some()
    }

    /// Returns the content of a file, with a signature if there is a key.
    ///
    /// # Errors
    /// A field breaks a rule, or the file would be too long.
    pub fn seal<F: QuotaFile>(&self, file: &F) -> Result<Vec<u8>, QuotaFileError> {
        file.check(&self.cluster_id).map_err(QuotaFileError::Damaged)?;
        let versioned = Versioned { version: VERSION, file };
        let mut bytes = serde_json::to_vec(&versioned).map_err(|error| QuotaFileError::Damaged(error.to_string()))?;
        bytes.push(b'\n');
        if bytes.len() + SIGNATURE_LENGTH > F::MAX_LEN {
            return Err(QuotaFileError::TooLong(F::MAX_LEN));
        }
        Ok(match &self.key {
            Some(key) => self.signer::<F>(&key.signing()).seal(file.name(), &bytes),
            None => bytes,
        })
    }

    /// Parses a file and checks its signature. Without a key, no signature is valid. A file that is not
    /// [`SignatureStatus::Signed`] must not be acted upon.
    ///
    /// # Errors
    /// The file is too long, truncated, damaged, or from a newer release.
    pub fn open<F: QuotaFile>(&self, name: &str, bytes: &[u8]) -> Result<(F, SignatureStatus), QuotaFileError> {
        if bytes.len() > F::MAX_LEN {
            return Err(QuotaFileError::TooLong(F::MAX_LEN));
        }
        // After a crash, some file systems leave a file of the right length that contains only zeros.
        if bytes.iter().all(|byte| *byte == 0) {
            return Err(QuotaFileError::Truncated);
        }
        let Version { version } = read(bytes)?;
        if version > VERSION {
            return Err(QuotaFileError::TooNew(version));
        }
        let Versioned { file, .. } = read::<Versioned<F>>(bytes)?;
        if file.name() != name {
            let own = crate::text::quoted(file.name());
            return Err(QuotaFileError::Damaged(format!("it is about {own}")));
        }
        file.check(&self.cluster_id).map_err(QuotaFileError::Damaged)?;
        let unknown = || SigningKey::new(&rand::random(), None);
        let key = self.key.as_ref().map_or_else(unknown, QuotaKey::signing);
        let status = self.signer::<F>(&key).verify(name, bytes);
        Ok((file, status))
    }

    fn signer<'a, F: QuotaFile>(&'a self, key: &'a SigningKey) -> Signer<'a> {
        Signer {
            key,
            purpose: F::PURPOSE,
            cluster_id: &self.cluster_id,
            export_id: &self.export_id,
        }
    }
}

fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, QuotaFileError> {
    serde_json::from_slice(bytes).map_err(|error| match error.classify() {
        serde_json::error::Category::Eof => QuotaFileError::Truncated,
        _ => QuotaFileError::Damaged(error.to_string()),
    })
}

/// Checks the name of a volume.
pub(super) fn check_volume(volume: &str) -> Result<(), String> {
    layout::record(volume).map(drop).map_err(|error| error.to_string())
}

/// Checks the length of a message. Callers escape it for display.
pub(super) fn check_message(message: &str) -> Result<(), String> {
    match message.len() <= MAX_MESSAGE_LEN {
        true => Ok(()),
        false => Err(format!("message must have at most {MAX_MESSAGE_LEN} bytes")),
    }
}
