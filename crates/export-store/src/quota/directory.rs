use std::fmt;

use serde::{Deserialize, Serialize};

use crate::layout;
use crate::naming::DirectoryPath;

/// A directory that may get a limit, relative to the export's path: a volume's directory, an archive, or the tree of a
/// copy in the staging folder of the cluster that wrote the order.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct QuotaDirectory(Box<str>);

impl QuotaDirectory {
    /// Parses a path.
    ///
    /// # Errors
    /// The path is none of the above.
    pub fn parse(text: &str) -> Result<Self, String> {
        let segments: Vec<&str> = text.split('/').collect();
        let allowed = match *segments {
            [archive] if layout::is_archive_name(archive) => true,
            [layout::RESERVED, cluster, layout::STAGING, volume, layout::STAGED_TREE] => {
                layout::cluster(cluster).is_ok() && layout::staged(volume).is_ok()
            }
            _ => match DirectoryPath::parse(text) {
                Ok(_) => true,
                Err(error) => return Err(error.to_string()),
            },
        };
        match allowed {
            true => Ok(Self(text.into())),
            false => Err(format!("{text:?} is not the path of a staged copy")),
        }
    }

    /// Returns the path of a volume's directory.
    pub fn of_volume(directory: &DirectoryPath) -> Self {
        Self(directory.segments().join("/").into())
    }

    /// Returns the path of an unfinished copy.
    ///
    /// # Errors
    /// A name is invalid.
    pub fn of_staged(cluster_id: &str, volume: &str) -> Result<Self, String> {
        let [reserved, staging, tree] = [layout::RESERVED, layout::STAGING, layout::STAGED_TREE];
        Self::parse(&format!("{reserved}/{cluster_id}/{staging}/{volume}/{tree}"))
    }

    /// Returns the path: names without `/`, neither `.` nor `..`, with `/` between them.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the paths of the directories between the export's root and this one.
    pub fn above(&self) -> impl Iterator<Item = &str> {
        self.0.match_indices('/').filter_map(|(at, _)| self.0.get(..at))
    }

    /// Reports whether orders of a cluster may name the directory: staged copies belong to one cluster.
    pub(crate) fn may_be_named_by(&self, cluster_id: &str) -> bool {
        let mut segments = self.0.split('/');
        match (segments.next(), segments.next()) {
            (Some(layout::RESERVED), cluster) => cluster == Some(cluster_id),
            _ => true,
        }
    }
}

impl fmt::Display for QuotaDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for QuotaDirectory {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text)
    }
}

impl From<QuotaDirectory> for String {
    fn from(directory: QuotaDirectory) -> Self {
        directory.0.into()
    }
}
