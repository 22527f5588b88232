//! The settings of a claim's directory and volume: from backend, class and the claim's annotations. Pure.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use crate::api::backend::{ClaimOverride, DirectorySettings, Existing, NfsBackendSpec, OnDelete};
use crate::api::conditions::{PlannedCondition, Reason};
use crate::api::names::{self, GROUP, NameKind, NamedObject};
use crate::api::parameters::{ClassParameters, parse_mode, parse_on_delete, parse_owner};
use crate::decide::mount_options;
use export_store::GroupRange;

/// The settings of a claim's directory and volume.
#[derive(Debug, Clone, PartialEq)]
pub struct VolumeSettings {
    /// Permission bits.
    pub mode: u32,
    /// True if the mode is not 0777, which a server may apply or not.
    pub mode_requested: bool,
    /// Permission bits for a directory that is adopted: those that are set, and not the default.
    pub adopted_mode: Option<u32>,
    /// Owner; the credential's if unset.
    pub uid: Option<u32>,
    /// Group; the credential's if unset.
    pub gid: Option<u32>,
    /// Groups from which the volume gets one of its own instead.
    pub gid_range: Option<GroupRange>,
    /// What to do if the directory exists.
    pub existing: Existing,
    /// Recorded on the volume only if a class or a claim sets it.
    pub on_delete: Option<OnDelete>,
    /// The claim's own mount options.
    pub mount_options: Vec<String>,
}

/// The default mode. A server may apply another one.
const DEFAULT_MODE: u32 = 0o777;

/// The default mode with a group for each volume: new files and directories belong to the group, whoever creates them.
const DEFAULT_GROUP_MODE: u32 = 0o2770;

/// Maximum number of characters of an annotation in a message. An annotation may have up to a quarter of a megabyte.
const MAX_QUOTED: usize = 80;

impl VolumeSettings {
    /// Combines the settings: the claim's annotations take precedence over the class, and the class over the backend.
    ///
    /// # Errors
    /// The condition that names the annotation that is invalid or not allowed.
    pub fn of(
        backend: &NfsBackendSpec,
        class: &ClassParameters,
        annotations: &BTreeMap<String, String>,
    ) -> Result<Self, PlannedCondition> {
        refuse_unknown(annotations)?;
        let claim = ClaimOverrides {
            allowed: &backend.claim_overrides,
            annotations,
        };
        let invalid_mode = || {
            PlannedCondition::fails(
                Reason::InvalidSpec,
                "the backend's spec.directory.mode is not an octal number",
            )
        };
        let existing = class.existing.unwrap_or(backend.directory.existing);
        let defaults = match existing {
            Existing::Refuse | Existing::Adopt => Cow::Borrowed(&backend.directory),
            // Those of the backend are for the directories that it creates.
            Existing::Share => {
                refuse_attributes(class, annotations)?;
                Cow::Owned(DirectorySettings::default())
            }
        };
        let backend_mode = defaults.mode.as_ref();
        let backend_mode = backend_mode
            .map(|mode| parse_mode(mode).ok_or_else(invalid_mode))
            .transpose()?;
        let gid_range = defaults.group_range();
        if let Some(range) = gid_range {
            refuse_group(range, class, annotations)?;
        }
        let requested_mode = claim
            .value(ClaimOverride::Mode, names::CLAIM_MODE, |text| {
                parse_mode(text).ok_or_else(|| "it takes an octal mode such as 0770 or 2770".to_owned())
            })?
            .or(class.mode)
            .or(backend_mode);
        let mode = requested_mode.unwrap_or(match gid_range {
            Some(_) => DEFAULT_GROUP_MODE,
            None => DEFAULT_MODE,
        });
        let backend_owner = |number: Option<i64>| number.and_then(|number| u32::try_from(number).ok());
        let number = |text: &str| parse_owner(text).ok_or_else(|| "it takes a number from 0 to 4294967294".to_owned());
        let options = claim.value(ClaimOverride::MountOptions, names::CLAIM_MOUNT_OPTIONS, |text| {
            mount_options::claim_options(text).map_err(|error| error.to_string())
        })?;
        let claim_on_delete = claim.value(ClaimOverride::OnDelete, names::CLAIM_ON_DELETE, |text| {
            parse_on_delete(text).ok_or_else(|| "it takes one of archive, delete, retain".to_owned())
        })?;
        let on_delete = claim_on_delete.or(class.on_delete);
        if existing == Existing::Share && on_delete.is_some_and(|policy| policy != OnDelete::Retain) {
            return Err(match claim_on_delete {
                Some(_) => refuse_annotation(names::CLAIM_ON_DELETE, RETAINED),
                None => refuse_parameter("onDelete or archiveOnDelete", RETAINED),
            });
        }
        Ok(Self {
            mode,
            mode_requested: mode != DEFAULT_MODE,
            adopted_mode: requested_mode.filter(|mode| *mode != DEFAULT_MODE),
            uid: claim
                .value(ClaimOverride::Uid, names::CLAIM_UID, number)?
                .or(class.uid)
                .or(backend_owner(defaults.uid)),
            gid: claim
                .value(ClaimOverride::Gid, names::CLAIM_GID, number)?
                .or(class.gid)
                .or(backend_owner(defaults.gid)),
            gid_range,
            existing,
            on_delete,
            mount_options: options.unwrap_or_default(),
        })
    }
}

/// Why a shared directory gets no mode, owner and group.
const UNCHANGED: &str = "with existing: Share, a directory keeps its mode, owner and group";
/// Why a shared directory is neither archived nor deleted.
const RETAINED: &str = "with existing: Share, a directory is always retained";

/// Refuses mode, owner and group of a class or a claim for a shared directory.
fn refuse_attributes(class: &ClassParameters, annotations: &BTreeMap<String, String>) -> Result<(), PlannedCondition> {
    let parameters = [
        ("mode", class.mode.is_some()),
        ("uid", class.uid.is_some()),
        ("gid", class.gid.is_some()),
    ];
    if let Some((name, _)) = parameters.into_iter().find(|(_, is_set)| *is_set) {
        return Err(refuse_parameter(name, UNCHANGED));
    }
    let overrides = [names::CLAIM_MODE, names::CLAIM_UID, names::CLAIM_GID];
    match overrides.into_iter().find(|name| annotations.contains_key(*name)) {
        Some(name) => Err(refuse_annotation(name, UNCHANGED)),
        None => Ok(()),
    }
}

fn refuse_parameter(name: &str, why: &str) -> PlannedCondition {
    PlannedCondition::fails(
        Reason::InvalidParameter,
        format!("parameter {name} of the StorageClass cannot be used here: {why}: remove the parameter"),
    )
}

fn refuse_annotation(name: &str, why: &str) -> PlannedCondition {
    PlannedCondition::fails(
        Reason::OverrideRefused,
        format!("annotation {name} is not allowed here: {why}: remove it"),
    )
}

/// Refuses a group that a class or a claim sets although the backend gives each volume one of its own: the volume would
/// share it with others.
fn refuse_group(
    range: GroupRange,
    class: &ClassParameters,
    annotations: &BTreeMap<String, String>,
) -> Result<(), PlannedCondition> {
    let own = format!("the backend gives each volume a group of its own (directory.gidRange {range})");
    if class.gid.is_some() {
        return Err(refuse_parameter("gid", &own));
    }
    if annotations.contains_key(names::CLAIM_GID) {
        return Err(refuse_annotation(names::CLAIM_GID, &own));
    }
    Ok(())
}

/// Refuses an annotation with the operator's prefix that no claim can have. A misspelled one would otherwise have no
/// effect, and the directory could be open to more users than its author expects.
fn refuse_unknown(annotations: &BTreeMap<String, String>) -> Result<(), PlannedCondition> {
    let is_own = |key: &&str| key.strip_prefix(GROUP).is_some_and(|name| name.starts_with('/'));
    let of_claims = names::ALL
        .iter()
        .filter(|name| name.object == NamedObject::Claim && name.kind == NameKind::Annotation);
    let known: BTreeSet<&str> = of_claims.map(|name| name.key).filter(is_own).collect();
    let mut own = annotations.keys().map(String::as_str).filter(is_own);
    let Some(unknown) = own.find(|key| !known.contains(key)) else {
        return Ok(());
    };
    let quoted: String = unknown.chars().take(MAX_QUOTED).collect();
    let known: Vec<&str> = known.into_iter().collect();
    Err(PlannedCondition::fails(
        Reason::InvalidOverride,
        format!(
            "annotation {quoted} is unknown: a claim can have {}: correct or remove it",
            known.join(", ")
        ),
    ))
}

/// A claim's annotations, and those that its backend allows.
struct ClaimOverrides<'a> {
    allowed: &'a [ClaimOverride],
    annotations: &'a BTreeMap<String, String>,
}

impl ClaimOverrides<'_> {
    /// Returns the value of an annotation. It is an error if the annotation is not allowed, or if `parse` refuses the
    /// value; the error of `parse` describes valid values.
    fn value<T>(
        &self,
        what: ClaimOverride,
        key: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, PlannedCondition> {
        let Some(text) = self.annotations.get(key) else {
            return Ok(None);
        };
        if !self.allowed.contains(&what) {
            return Err(PlannedCondition::fails(
                Reason::OverrideRefused,
                format!(
                    "annotation {key} is not allowed here: remove it, or have `{}` added to the backend's claimOverrides",
                    what.name()
                ),
            ));
        }
        parse(text).map(Some).map_err(|valid| {
            let quoted: String = text.chars().take(MAX_QUOTED).collect();
            PlannedCondition::fails(
                Reason::InvalidOverride,
                format!("annotation {key} cannot be {quoted:?}: {valid}: correct or remove it"),
            )
        })
    }
}

#[cfg(test)]
mod tests;
