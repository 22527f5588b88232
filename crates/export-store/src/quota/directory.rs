use std::fmt;

use serde::{Deserialize, Serialize};

use crate::layout;
use crate::naming::DirectoryPath;

/// A directory that may get a limit, relative to the export's path: a volume's directory, an archive, or the tree of a
/// copy in the staging folder of the cluster that wrote the order.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct QuotaDirectory(Vec<String>);

impl QuotaDirectory {
    /// Parses a path.
    ///
    /// # Errors
    /// The path is none of the above.
    pub fn parse(text: &str) -> Result<Self, String> {
        let segments: Vec<String> = text.split('/').map(str::to_owned).collect();
        let text_of: Vec<&str> = segments.iter().map(String::as_str).collect();
        let allowed = match *text_of {
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
            true => Ok(Self(segments)),
            false => Err(format!("{text:?} is not the path of a staged copy")),
        }
    }

    /// Returns the path of a volume's directory.
    pub fn of_volume(directory: &DirectoryPath) -> Self {
        Self(directory.segments().to_vec())
    }

    /// Returns the path of an unfinished copy.
    ///
    /// # Errors
    /// A name is invalid.
    pub fn of_staged(cluster_id: &str, volume: &str) -> Result<Self, String> {
        let [reserved, staging, tree] = [layout::RESERVED, layout::STAGING, layout::STAGED_TREE];
        Self::parse(&format!("{reserved}/{cluster_id}/{staging}/{volume}/{tree}"))
    }

    /// Returns the segments, at least one. Each is a name without `/`, and neither `.` nor `..`.
    pub fn segments(&self) -> &[String] {
        &self.0
    }

    /// Reports whether orders of a cluster may name the directory: staged copies belong to one cluster.
    pub(crate) fn may_be_named_by(&self, cluster_id: &str) -> bool {
        match self.0.as_slice() {
            [reserved, cluster, ..] if reserved == layout::RESERVED => cluster == cluster_id,
            _ => true,
        }
    }
}

impl fmt::Display for QuotaDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("/"))
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
        directory.to_string()
    }
}
