//! Totals of a count.

use nfs_client::FileKind;

/// Content of a tree, as far as it could be counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TreeUsage {
    /// Number of names: files, directories, links and others, without the tree's root.
    pub names: u64,
    /// Number of devices, sockets and FIFOs among the names.
    pub special: u64,
    /// Reported size of the files in bytes, including holes: `du --apparent-size` without directories and links.
    pub size: u64,
    /// Bytes on the server's disk, including directories and the root, as reported by the server: `du`.
    pub used: u64,
    /// Number of directories left out because they are on another file system.
    pub elsewhere: u64,
    /// Number of directories that could not be read, are too deep or form a loop, and of names without information from
    /// the server. If not zero, the tree contains more than was counted.
    pub unread: u64,
}

/// Bytes are added up in units of 2^-32, so that the shares of a file with several names add up to the file.
const SHIFT: u32 = 32;

/// Running totals.
///
/// Each name of a file with several hard links counts a share of the file. This needs no list of files in memory, is
/// exact if all names are in the tree, and does not charge a tree for names outside.
#[derive(Debug, Clone, Default)]
pub(super) struct UsageTotals {
    counts: TreeUsage,
    size: u128,
    used: u128,
}

impl UsageTotals {
    /// Adds the space of the root itself.
    pub(super) fn root(&mut self, used: u64) {
        self.add(0, used, 1);
    }

    /// Adds a name.
    pub(super) fn one(&mut self, kind: FileKind, size: u64, used: u64, links: u32) {
        self.counts.names += 1;
        if kind == FileKind::Other {
            self.counts.special += 1;
        }
        let size = if kind == FileKind::Regular { size } else { 0 };
        self.add(size, used, links);
    }

    /// Counts a name whose attributes the listing lacks. It is looked up afterwards.
    pub(super) fn unknown(&mut self) {
        self.counts.names += 1;
    }

    /// Adds the size of such a name, if it is a regular file.
    pub(super) fn late(&mut self, kind: FileKind, size: u64, links: u32) {
        if kind == FileKind::Regular {
            self.add(size, size, links);
        }
    }

    pub(super) fn elsewhere(&mut self, directories: usize) {
        self.counts.elsewhere = self.counts.elsewhere.saturating_add(directories as u64);
    }

    pub(super) fn unread(&mut self) {
        self.counts.unread += 1;
    }

    /// Adds with saturation, because a server may report any size.
    fn add(&mut self, size: u64, used: u64, links: u32) {
        let share = |bytes: u64| (u128::from(bytes) << SHIFT) / u128::from(links.max(1));
        self.size = self.size.saturating_add(share(size));
        self.used = self.used.saturating_add(share(used));
    }

    pub(super) fn content(&self) -> TreeUsage {
        let whole = |sum: u128| {
            let rounded = sum.saturating_add(1 << (SHIFT - 1)) >> SHIFT;
            u64::try_from(rounded).unwrap_or(u64::MAX)
        };
        TreeUsage {
            size: whole(self.size),
            used: whole(self.used),
            ..self.counts
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_of_a_file_with_several_names_make_up_the_file() {
        for links in [1, 2, 3, 7, 1000, 65_000] {
            let mut sums = UsageTotals::default();
            for _ in 0..links {
                sums.one(FileKind::Regular, 1000, 4096, links);
            }
            let content = sums.content();
            assert_eq!(
                (content.names, content.size, content.used),
                (u64::from(links), 1000, 4096)
            );
        }
    }

    #[test]
    fn a_server_that_tells_nonsense_is_believed_up_to_the_largest_number() {
        let mut sums = UsageTotals::default();
        for _ in 0..10 {
            sums.one(FileKind::Regular, u64::MAX, u64::MAX, 0);
        }
        assert_eq!((sums.content().size, sums.content().used), (u64::MAX, u64::MAX));
    }

    #[test]
    fn only_files_have_a_size_and_all_take_room() {
        let mut sums = UsageTotals::default();
        sums.root(10);
        for kind in [
            FileKind::Regular,
            FileKind::Directory,
            FileKind::Symlink,
            FileKind::Other,
        ] {
            sums.one(kind, 3, 5, 1);
        }
        let expected = TreeUsage {
            names: 4,
            special: 1,
            size: 3,
            used: 30,
            ..TreeUsage::default()
        };
        assert_eq!(sums.content(), expected);
    }
}
