//! What a claim's annotations may change, where its backend allows it. Pure.

use std::collections::BTreeMap;

use crate::api::backend::{ClaimOverride, NfsBackendSpec, OnDelete};
use crate::api::conditions::{Reason, Verdict};
use crate::api::parameters::{ClassParameters, octal_mode, on_delete, owner};
use crate::mount_options;

/// How a claim's directory and volume are to be made, of backend, class and claim.
#[derive(Debug, Clone, PartialEq)]
pub struct Wanted {
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
) -> Result<Wanted, Verdict> {
    let claim = ClaimWords {
        allowed: &backend.claim_overrides,
        annotations,
    };
    let backend_mode = octal_mode(&backend.directory.mode)
        .ok_or_else(|| Verdict::no(Reason::InvalidSpec, "the backend's spec.directory.mode is not octal"))?;
    let mode = claim
        .value(ClaimOverride::Mode, "mode", octal_mode)?
        .or(class.mode)
        .unwrap_or(backend_mode);
    let backend_owner = |number: Option<i64>| number.and_then(|number| u32::try_from(number).ok());
    let options = claim.value(ClaimOverride::MountOptions, "mount-options", claim_mount_options)?;
    Ok(Wanted {
        mode,
        mode_asked: mode != DEFAULT_MODE,
        uid: claim
            .value(ClaimOverride::Uid, "uid", owner)?
            .or(class.uid)
            .or(backend_owner(backend.directory.uid)),
        gid: claim
            .value(ClaimOverride::Gid, "gid", owner)?
            .or(class.gid)
            .or(backend_owner(backend.directory.gid)),
        on_delete: claim
            .value(ClaimOverride::OnDelete, "on-delete", on_delete)?
            .or(class.on_delete),
        mount_options: options.unwrap_or_default(),
    })
}

fn claim_mount_options(text: &str) -> Option<Vec<String>> {
    mount_options::claim_options(text).ok()
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
    /// The value of an annotation: an error where it is there and not allowed, or makes no sense.
    fn value<T>(
        &self,
        what: ClaimOverride,
        name: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, Verdict> {
        let Some(text) = self.annotations.get(&format!("{}/{name}", crate::api::names::GROUP)) else {
            return Ok(None);
        };
        if !self.allowed.contains(&what) {
            return Err(Verdict::no(
                Reason::OverrideRefused,
                format!("annotation nfs-operator.io/{name}: the backend's spec.claimOverrides does not allow it"),
            ));
        }
        parse(text).map(Some).ok_or_else(|| {
            Verdict::no(
                Reason::InvalidOverride,
                format!("annotation nfs-operator.io/{name}: {:?} is not allowed", short(text)),
            )
        })
    }
}
