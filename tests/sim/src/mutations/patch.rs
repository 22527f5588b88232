//! The patches, and what they revert.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// A patch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Patch {
    /// Its name: that of its file, without the extension.
    pub name: String,
    /// Its file.
    pub file: PathBuf,
    /// The rules of docs/data-safety.md that it breaks.
    pub rule: String,
    /// What the code does with it.
    pub reverts: String,
    /// Why the simulation does not detect it.
    pub undetected: Option<String>,
}

impl Patch {
    /// Reads the lines above a patch.
    fn parse(name: String, file: PathBuf, text: &str) -> io::Result<Self> {
        let header = text.split("\ndiff --git ").next().unwrap_or_default();
        let field = |key: &str| {
            let values = header
                .lines()
                .filter_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
            values.map(|value| value.trim().to_owned()).next()
        };
        let needed = |key| field(key).ok_or_else(|| io::Error::other(format!("{name} has no line `{key}: `")));
        Ok(Self {
            rule: needed("rule")?,
            reverts: needed("reverts")?,
            undetected: field("undetected"),
            file,
            name,
        })
    }
}

/// Reads all patches, by name.
pub fn read_all(repository: &Path) -> io::Result<Vec<Patch>> {
    let folder = repository.join("tests/sim/mutations").canonicalize()?;
    let mut patches = Vec::new();
    for entry in fs::read_dir(folder)? {
        let file = entry?.path();
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        patches.push(Patch::parse(name, file.clone(), &fs::read_to_string(&file)?)?);
    }
    patches.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(patches)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::mutations::{repository, scratch};

    #[test]
    fn each_patch_can_be_applied_and_says_what_it_reverts() {
        let patches = read_all(&repository()).unwrap();
        assert!(!patches.is_empty());
        for patch in patches {
            scratch::git(&repository(), &["apply", "--check", &patch.file.to_string_lossy()]).unwrap();
        }
    }
}
