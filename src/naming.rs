//! Names on the export: which are allowed, and how a pattern becomes one. Pure.

use std::fmt;

use crate::nfs::Name;

/// A directory on an export, relative to the export's path: one or more checked segments.
///
/// Segments are `[A-Za-z0-9._-]`, so the path is ASCII, and comparing it case-folded is [`DirectoryPath::folded`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DirectoryPath(Vec<String>);

impl DirectoryPath {
    /// The segments, at least one.
    pub fn segments(&self) -> &[String] {
        &self.0
    }

    /// The segments as names for the NFS client.
    pub fn names(&self) -> Vec<Name> {
        self.0
            .iter()
            .filter_map(|segment| Name::new(segment.clone()).ok())
            .collect()
    }

    /// The segments in lower case: servers may fold case, so two paths that differ only in case are one.
    pub fn folded(&self) -> Vec<String> {
        self.0.iter().map(|segment| segment.to_ascii_lowercase()).collect()
    }
}

impl fmt::Display for DirectoryPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("/"))
    }
}
