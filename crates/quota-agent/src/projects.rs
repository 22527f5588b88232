use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;
use std::str::FromStr;

use crate::error::AgentError;

/// Project IDs that only the agent may use. Written `FIRST-LAST`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectRange(RangeInclusive<u32>);

/// Names of projects (projid(5)).
const PROJID: &str = "/etc/projid";
/// Directories of projects (projects(5)).
const PROJECTS: &str = "/etc/projects";

/// Project IDs of `/etc/projid` and `/etc/projects`, which the agent never uses, with the file that lists each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReservedProjects(BTreeMap<u32, &'static str>);

impl Default for ProjectRange {
    /// Container runtimes and the kubelet use IDs below; some tools take an ID for a signed number of 32 bits.
    fn default() -> Self {
        Self(1_900_000_000..=1_999_999_999)
    }
}

impl FromStr for ProjectRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('-').map(|(first, last)| (first.parse(), last.parse()));
        match numbers {
            // Files without a project have 0.
            Some((Ok(first), Ok(last))) if 0 < first && first <= last && last <= i32::MAX as u32 => {
                Ok(Self(first..=last))
            }
            _ => Err(format!("{text:?} must be FIRST-LAST, from 1 to {}", i32::MAX)),
        }
    }
}

impl ProjectRange {
    /// Reports whether the agent may use an ID.
    pub(crate) fn contains(&self, project: u32) -> bool {
        self.0.contains(&project)
    }

    pub(crate) fn iter(&self) -> RangeInclusive<u32> {
        self.0.clone()
    }
}

impl std::fmt::Display for ProjectRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.0.start(), self.0.end())
    }
}

impl ReservedProjects {
    /// Reads both files. A missing one has no IDs.
    ///
    /// # Errors
    /// A file cannot be read: IDs in it must not be used.
    pub fn read() -> Result<Self, AgentError> {
        let read = |path: &str| match std::fs::read_to_string(path) {
            Err(source) if source.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
            result => result.map_err(|source| AgentError::Read {
                path: Path::new(path).to_owned(),
                source,
            }),
        };
        Ok(Self::parse(&read(PROJID)?, &read(PROJECTS)?))
    }

    /// Parses lines `name:ID` of the first file and `ID:path` of the second one.
    pub(crate) fn parse(projid: &str, projects: &str) -> Self {
        let named = projid
            .lines()
            .filter_map(|line| Some((line.rsplit_once(':')?.1.trim().parse().ok()?, PROJID)));
        let placed = projects
            .lines()
            .filter_map(|line| Some((line.split_once(':')?.0.trim().parse().ok()?, PROJECTS)));
        Self(named.chain(placed).collect())
    }

    pub(crate) fn contains(&self, project: u32) -> bool {
        self.0.contains_key(&project)
    }

    /// Returns the file that lists an ID.
    pub(crate) fn file(&self, project: u32) -> Option<&'static str> {
        self.0.get(&project).copied()
    }
}
