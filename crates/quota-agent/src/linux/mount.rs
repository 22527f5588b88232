use std::path::{Path, PathBuf};

use crate::error::AgentError;

/// A mount of a file system, from `/proc/self/mountinfo` (proc(5)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mount {
    /// Where it is mounted.
    pub point: PathBuf,
    /// Type, such as `xfs`.
    pub file_system: String,
    /// Device or other source: of ZFS, the name of the file system.
    pub source: String,
    /// Options of the file system.
    options: String,
}

impl Mount {
    /// Finds the mount of the file system with a device number, of which `export` is a directory.
    pub fn of(export: &Path, device: u64) -> Result<Self, AgentError> {
        let table = Path::new("/proc/self/mountinfo");
        let text = std::fs::read_to_string(table).map_err(|source| AgentError::Read {
            path: table.to_owned(),
            source,
        })?;
        let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
        Self::find(&text, &number).ok_or_else(|| AgentError::NoMount {
            path: export.to_owned(),
        })
    }

    /// Prefers a mount of the whole file system to one of a directory in it.
    fn find(mountinfo: &str, number: &str) -> Option<Self> {
        let mounts = mountinfo.lines().filter_map(|line| {
            let (own, super_block) = line.split_once(" - ")?;
            let own: Vec<&str> = own.split(' ').collect();
            let [_, _, device, root, point, ..] = *own.as_slice() else {
                return None;
            };
            let mut fields = super_block.split(' ');
            let mount = Self {
                point: unescape(point),
                file_system: fields.next()?.to_owned(),
                source: unescape(fields.next()?).to_str()?.to_owned(),
                options: fields.next()?.to_owned(),
            };
            (device == number).then_some((root != "/", mount))
        });
        mounts.min_by_key(|(is_part, _)| *is_part).map(|(_, mount)| mount)
    }

    /// Returns the error for a type on which the agent cannot set project quotas.
    pub fn unsupported(&self, export: &Path) -> AgentError {
        AgentError::FileSystem {
            path: export.to_owned(),
            file_system: self.file_system.clone(),
        }
    }

    /// Reports whether it is mounted with project quotas. Whether they are enforced may change while it is mounted.
    pub fn has_quotas(&self) -> bool {
        self.options
            .split(',')
            .any(|option| matches!(option, "prjquota" | "pquota" | "pqnoenforce"))
    }

    /// Returns what to do if it is mounted without project quotas.
    pub fn remedy(&self) -> String {
        let point = self.point.display();
        match &*self.file_system {
            "xfs" => format!(
                "project quotas are off at {point}: unmount it and mount it with the option prjquota (XFS ignores the \
                 option in a remount), and add the option to /etc/fstab; for the root file system, boot with \
                 rootflags=prjquota"
            ),
            _ => format!(
                "project quotas are off at {point}: unmount it, run tune2fs -O quota,project -Q prjquota {}, mount it \
                 with the option prjquota, and add the option to /etc/fstab",
                self.source
            ),
        }
    }
}

/// Replaces `\040` and the like.
fn unescape(text: &str) -> PathBuf {
    let plain = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    let text = plain
        .iter()
        .fold(text.to_owned(), |text, (from, to)| text.replace(from, to));
    PathBuf::from(text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    const TABLE: &str = "\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,discard
30 22 8:17 /team /bind rw - xfs /dev/sdb1 rw,attr2,prjquota
31 22 8:17 / /srv/my\\040export rw shared:7 - xfs /dev/sdb1 rw,attr2,inode64,prjquota
32 22 8:33 / /srv/other rw - xfs /dev/sdc1 rw,noquota
33 22 8:49 / /srv/counted rw - xfs /dev/sdd1 rw,pqnoenforce
34 22 0:45 / /tank/nfs rw - zfs tank/my\\040nfs rw,xattr,posixacl
35 22 0:46 / /srv/btrfs rw - btrfs /dev/sde1 rw
";

    #[test]
    fn the_whole_file_system_is_preferred_and_spaces_are_unescaped() {
        let mount = Mount::find(TABLE, "8:17").unwrap();
        assert_eq!(mount.point, Path::new("/srv/my export"));
        assert!(mount.has_quotas());
        assert_eq!(Mount::find(TABLE, "0:45").unwrap().source, "tank/my nfs");
        assert_eq!(Mount::find(TABLE, "8:2"), None);
    }

    #[test]
    fn a_file_system_of_another_type_is_refused_with_the_remedy() {
        let btrfs = Mount::find(TABLE, "0:46").unwrap();
        let refused = btrfs.unsupported(Path::new("/srv/btrfs")).to_string();
        assert!(
            refused.starts_with("/srv/btrfs is on btrfs, and the agent supports xfs, ext4 and zfs"),
            "{refused}"
        );
        assert!(refused.contains("quotas of btrfs and remove spec.quota"), "{refused}");
    }

    #[test]
    fn quotas_that_are_off_are_told_with_the_remedy() {
        let off = Mount::find(TABLE, "8:33").unwrap();
        assert!(!off.has_quotas() && off.remedy().contains("prjquota"));
        assert!(Mount::find(TABLE, "8:49").unwrap().has_quotas());
        let ext4 = Mount::find(TABLE, "8:1").unwrap();
        assert!(!ext4.has_quotas() && ext4.remedy().contains("tune2fs -O quota,project -Q prjquota /dev/sda1"));
    }
}
