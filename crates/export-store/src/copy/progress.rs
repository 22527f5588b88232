//! Progress of a copy: what was copied, the expected total, and what was left out.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::text::{counted, format_bytes};

macro_rules! tally {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters that are updated during a copy and read for progress reports.
        #[derive(Debug, Default)]
        pub struct CopyProgress {
            $($(#[$doc])* pub(super) $name: AtomicU64,)*
            /// The content to copy was counted completely.
            pub(super) counted: AtomicBool,
        }

        /// The counters at one time.
        #[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
        pub struct CopyProgressSnapshot {
            $($(#[$doc])* pub $name: u64,)*
            /// The content to copy was counted completely.
            pub counted: bool,
        }

        impl CopyProgress {
            /// Returns the current counters.
            pub fn snapshot(&self) -> CopyProgressSnapshot {
                CopyProgressSnapshot {
                    $($name: self.$name.load(Ordering::Relaxed),)*
                    counted: self.counted.load(Ordering::Relaxed),
                }
            }
        }
    };
}

tally! {
    /// Names copied: files, links and directories.
    files,
    /// Bytes of content copied, holes included.
    bytes,
    /// Names to copy, as far as counted.
    of_files,
    /// Bytes to copy, as far as counted.
    of_bytes,
    /// Devices, sockets and FIFOs left out.
    special,
    /// Directories left out because they are on another file system.
    elsewhere,
    /// Files that changed during the copy.
    changed,
    /// Directories that changed during each of their listings: names may be missing, or copied twice.
    changed_directories,
    /// Names that were removed between the listing and their copy.
    vanished,
    /// Files that did not change since the previous backup and are hard links to its files.
    reused_files,
    /// Size of these files, in bytes. They are part of `bytes`.
    reused_bytes,
    /// Further files that did not change since an interrupted attempt at the same copy, and are taken over from it.
    resumed_files,
    /// Size of these files, in bytes. They are part of `bytes`.
    resumed_bytes,
    /// Files copied several times because the target could not create hard links.
    unlinked,
    /// Files whose user attributes the target does not support.
    without_xattrs,
    /// Names whose mode the target did not store.
    other_modes,
}

impl CopyProgress {
    /// Creates counters of a copy that has copied bytes, some of which are of files that did not change since the previous
    /// backup. For tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn of_bytes(bytes: u64, reused: u64) -> Self {
        let progress = Self::default();
        Self::add(&progress.bytes, bytes);
        Self::add(&progress.reused_bytes, reused);
        progress
    }

    pub(super) fn add(counter: &AtomicU64, by: u64) {
        counter.fetch_add(by, Ordering::Relaxed);
    }

    pub(super) fn one(counter: &AtomicU64) {
        Self::add(counter, 1);
    }
}

impl CopyProgressSnapshot {
    /// Reports whether nothing changed while it was copied.
    pub fn is_of_one_moment(&self) -> bool {
        self.changed == 0 && self.changed_directories == 0 && self.vanished == 0
    }

    /// Returns the progress, such as "12 of 40 files, 1.5 MiB of 3.0 MiB".
    pub fn progress(&self) -> String {
        let (bytes, of_bytes) = (content_size(self.bytes), content_size(self.of_bytes.max(self.bytes)));
        if self.counted {
            let of_files = self.of_files.max(self.files);
            return format!("{} of {of_files} files, {bytes} of {of_bytes}", self.files);
        }
        format!(
            "{}, {bytes}; still counting how many there are",
            counted(self.files, "file")
        )
    }
}

/// Returns a size, with a unit also below 1 KiB: it stands beside numbers of files.
fn content_size(bytes: u64) -> String {
    match bytes {
        1 => "1 byte".to_owned(),
        0..1024 => format!("{bytes} bytes"),
        _ => format_bytes(bytes.into()),
    }
}

impl fmt::Display for CopyProgressSnapshot {
    /// Writes what was copied, and all differences from the source.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.files {
            0 => f.write_str("no files")?,
            files => write!(f, "{}, {}", counted(files, "file"), content_size(self.bytes))?,
        }
        if self.reused_files > 0 {
            let reused = content_size(self.reused_bytes);
            write!(
                f,
                "; {} of them, {reused}, unchanged since the previous backup",
                self.reused_files
            )?;
        }
        if self.resumed_files > 0 {
            let resumed = content_size(self.resumed_bytes);
            write!(
                f,
                "; {} of them, {resumed}, copied by an interrupted attempt",
                self.resumed_files
            )?;
        }
        for (count, what) in [
            (self.changed, "changed while they were copied"),
            (
                self.changed_directories,
                "directories changed while they were listed: names may be missing",
            ),
            (self.vanished, "were removed before they were copied"),
            (self.special, "left out: devices, sockets or FIFOs"),
            (self.elsewhere, "left out: other file systems inside"),
            (self.unlinked, "copied several times: the target has no hard links"),
            (
                self.without_xattrs,
                "without their user attributes: the target takes none",
            ),
            (self.other_modes, "with another mode: the target does not keep it"),
        ] {
            if count > 0 {
                write!(f, "; {count} {what}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_reports_its_files_with_their_size_and_an_empty_one_without() {
        let copied = |files, bytes, special| {
            let copied = CopyProgressSnapshot {
                files,
                bytes,
                special,
                ..CopyProgressSnapshot::default()
            };
            copied.to_string()
        };
        assert_eq!(copied(0, 0, 0), "no files");
        assert_eq!(copied(0, 0, 1), "no files; 1 left out: devices, sockets or FIFOs");
        assert_eq!(copied(1, 2048, 0), "1 file, 2Ki");
        assert_eq!(
            copied(7, 0, 1),
            "7 files, 0 bytes; 1 left out: devices, sockets or FIFOs"
        );
    }
}
