//! What a claim's annotations may change, where its backend allows it. Pure.

use std::collections::BTreeMap;

use crate::api::backend::{ClaimOverride, NfsBackendSpec, OnDelete};
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::GROUP;
use crate::api::parameters::{ClassParameters, octal_mode, on_delete, owner};
use crate::decide::mount_options;

/// How a claim's directory and volume are to be made, of backend, class and claim.
#[derive(Debug, Clone, PartialEq)]
pub struct VolumeSettings {
    /// Permission bits.
    pub mode: u32,
    /// Whether somebody asked for this mode, or it is the default.
    pub mode_asked: bool,
    /// Owner; absent = the credential's.
    pub uid: Option<u32>,
    /// Group; absent = the credential's.
    pub gid: Option<u32>,
    /// Recorded on the volume only when a class or a claim said so.
    pub on_delete: Option<OnDelete>,
    /// The claim's own mount options.
    pub mount_options: Vec<String>,
}

/// The default mode, which is a wish and not a demand.
const DEFAULT_MODE: u32 = 0o777;

/// Puts together what backend, class and claim ask for: the later wins.
pub fn wanted(
    backend: &NfsBackendSpec,
    class: &ClassParameters,
    annotations: &BTreeMap<String, String>,
) -> Result<VolumeSettings, PlannedCondition> {
    let claim = ClaimWords {
        allowed: &backend.claim_overrides,
        annotations,
    };
    let backend_mode = octal_mode(&backend.directory.mode).ok_or_else(|| {
        PlannedCondition::fails(Reason::InvalidSpec, "the backend's spec.directory.mode is not octal")
    })?;
    let mode = claim
        .value(ClaimOverride::Mode, "mode", |text| {
            octal_mode(text).ok_or_else(|| "it takes an octal mode such as 0770 or 2770".to_owned())
        })?
        .or(class.mode)
        .unwrap_or(backend_mode);
    let backend_owner = |number: Option<i64>| number.and_then(|number| u32::try_from(number).ok());
    let number = |text: &str| owner(text).ok_or_else(|| "it takes a number from 0 to 4294967294".to_owned());
    let options = claim.value(ClaimOverride::MountOptions, "mount-options", |text| {
        mount_options::claim_options(text).map_err(|error| error.to_string())
    })?;
    Ok(VolumeSettings {
        mode,
        mode_asked: mode != DEFAULT_MODE,
        uid: claim
            .value(ClaimOverride::Uid, "uid", number)?
            .or(class.uid)
            .or(backend_owner(backend.directory.uid)),
        gid: claim
            .value(ClaimOverride::Gid, "gid", number)?
            .or(class.gid)
            .or(backend_owner(backend.directory.gid)),
        on_delete: claim
            .value(ClaimOverride::OnDelete, "on-delete", |text| {
                on_delete(text).ok_or_else(|| "it takes one of archive, delete, retain".to_owned())
            })?
            .or(class.on_delete),
        mount_options: options.unwrap_or_default(),
    })
}

/// A tenant's words for a message: the annotation itself may have a quarter of a megabyte.
fn short(text: &str) -> String {
    text.chars().take(80).collect()
}

struct ClaimWords<'a> {
    allowed: &'a [ClaimOverride],
    annotations: &'a BTreeMap<String, String>,
}

impl ClaimWords<'_> {
    /// The value of an annotation: an error where it is there and not allowed, or makes no sense. `parse` says what the
    /// annotation takes.
    fn value<T>(
        &self,
        what: ClaimOverride,
        name: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, PlannedCondition> {
        let Some(text) = self.annotations.get(&format!("{GROUP}/{name}")) else {
            return Ok(None);
        };
        if !self.allowed.contains(&what) {
            return Err(PlannedCondition::fails(
                Reason::OverrideRefused,
                format!(
                    "annotation {GROUP}/{name} is not allowed here: remove it, or have `{name}` added to the backend's \
                     claimOverrides"
                ),
            ));
        }
        parse(text).map(Some).map_err(|takes| {
            PlannedCondition::fails(
                Reason::InvalidOverride,
                format!(
                    "annotation {GROUP}/{name} cannot be {:?}: {takes}: correct or remove it",
                    short(text)
                ),
            )
        })
    }
}

#[cfg(test)]
mod tests;
