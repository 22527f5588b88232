//! What was copied so far, of how much, and what was not.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::text::format_bytes;

macro_rules! tally {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts while a copy is made; read by whoever tells of it.
        #[derive(Debug, Default)]
        pub struct Tally {
            $($(#[$doc])* pub(super) $name: AtomicU64,)*
            /// All that there is to copy was counted.
            pub(super) counted: AtomicBool,
        }

        /// The counts at one moment.
        #[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
        pub struct TallySnapshot {
            $($(#[$doc])* pub $name: u64,)*
            /// All that there is to copy was counted.
            pub counted: bool,
        }

        impl Tally {
            /// The counts now.
            pub fn snapshot(&self) -> TallySnapshot {
                TallySnapshot {
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
    /// Names that there are to copy, as far as they were counted.
    of_files,
    /// Bytes that there are to copy, as far as they were counted.
    of_bytes,
    /// Devices, sockets and FIFOs left out.
    special,
    /// Directories left out because another file system begins there.
    elsewhere,
    /// Files that changed while they were copied.
    changed,
    /// Names that were listed and gone when their turn came.
    vanished,
    /// Files copied several times because the target has no hard links.
    unlinked,
    /// Files whose user attributes the target does not take.
    without_xattrs,
    /// Names whose mode the target does not keep.
    other_modes,
}

impl Tally {
    pub(super) fn add(counter: &AtomicU64, by: u64) {
        counter.fetch_add(by, Ordering::Relaxed);
    }

    pub(super) fn one(counter: &AtomicU64) {
        Self::add(counter, 1);
    }
}

impl TallySnapshot {
    /// How far it is: "12 of 40 files, 1.5 MiB of 3.0 MiB".
    pub fn progress(&self) -> String {
        let (bytes, of_bytes) = (
            format_bytes(self.bytes.into()),
            format_bytes(self.of_bytes.max(self.bytes).into()),
        );
        if self.counted {
            let of_files = self.of_files.max(self.files);
            return format!("{} of {of_files} files, {bytes} of {of_bytes}", self.files);
        }
        format!("{} files, {bytes}; still counting how many there are", self.files)
    }
}

impl fmt::Display for TallySnapshot {
    /// What was copied, and all that is not as in the source.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} files, {}", self.files, format_bytes(self.bytes.into()))?;
        for (count, what) in [
            (self.changed, "changed while they were copied"),
            (self.vanished, "were gone when their turn came"),
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
