//! What to do next for a directory, by what the record says and what is there. Pure.

use crate::Existing;

/// What the record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Written {
    /// There is none.
    Nothing,
    /// It is incomplete: a former life ended while it wrote it, and so before it made anything.
    Short,
    /// We are making the directory.
    Creating,
    /// We are taking it over.
    Adopting,
    /// It was made, or taken over, and judged.
    Live {
        /// Its fileid.
        file_id: Option<u64>,
    },
}

/// What has the directory's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum There {
    Nothing,
    /// A directory on the export's file system.
    Directory {
        file_id: u64,
        /// Somebody has it: a volume, an archive, a backend.
        held: bool,
        /// It holds something; absent as long as nobody looked.
        empty: Option<bool>,
    },
    /// A file, a symbolic link, or the root of another file system.
    Other,
}

/// The next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Look whether it holds something, then decide again.
    LookInside,
    /// Write the record (for the first time, or over what is there), then make parents and directory.
    Make { write: Write },
    /// It is the one that we made: set mode and owner, and go on.
    TakeUp { write: Write },
    /// It was there: write the record, and take it over.
    Adopt { write: Write },
    /// It is there and recorded.
    Done,
    /// It is there, and isn't ours.
    Refuse,
    /// It is somebody's.
    Held,
    /// Nothing that we could use has the name.
    Unusable,
    /// The record knows another one.
    Disagree,
}

/// How to write the record before the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Write {
    /// It says so already.
    Not,
    /// Exclusively: there must be none.
    New,
    /// In the place of the one that is there.
    Over,
}

pub(super) fn decide(written: Written, there: There, existing: Existing) -> Step {
    let first = match written {
        Written::Nothing => Write::New,
        _ => Write::Over,
    };
    match (written, there) {
        (_, There::Other) => Step::Unusable,
        (Written::Live { file_id }, There::Directory { file_id: found, .. }) => {
            if file_id == Some(found) {
                Step::Done
            } else {
                Step::Disagree
            }
        }
        // No volume has it yet, so nobody ever saw it: it is made again.
        (Written::Creating, There::Nothing) => Step::Make { write: Write::Not },
        (_, There::Nothing) => Step::Make { write: first },
        (_, There::Directory { held: true, .. }) => Step::Held,
        (Written::Creating | Written::Short, There::Directory { empty: None, .. }) => Step::LookInside,
        (Written::Creating, There::Directory { empty: Some(true), .. }) => Step::TakeUp { write: Write::Not },
        (Written::Short, There::Directory { empty: Some(true), .. }) => Step::TakeUp { write: Write::Over },
        (_, There::Directory { .. }) => match existing {
            Existing::Adopt => Step::Adopt { write: first },
            Existing::Refuse => Step::Refuse,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: There = There::Directory {
        file_id: 7,
        held: false,
        empty: None,
    };

    fn with(empty: bool) -> There {
        There::Directory {
            file_id: 7,
            held: false,
            empty: Some(empty),
        }
    }

    #[test]
    fn every_state_of_record_and_directory_has_its_next_step() {
        use Existing::{Adopt, Refuse};
        let live = Written::Live { file_id: Some(7) };
        let held = There::Directory {
            file_id: 7,
            held: true,
            empty: None,
        };
        let (not, new, over) = (Write::Not, Write::New, Write::Over);
        for (written, there, existing, step) in [
            // Nothing recorded: the directory's absence was seen before the record, a stranger's is a stranger's.
            (Written::Nothing, There::Nothing, Refuse, Step::Make { write: new }),
            (Written::Nothing, There::Nothing, Adopt, Step::Make { write: new }),
            (Written::Nothing, FREE, Refuse, Step::Refuse),
            (Written::Nothing, with(true), Refuse, Step::Refuse),
            (Written::Nothing, FREE, Adopt, Step::Adopt { write: new }),
            (Written::Nothing, held, Adopt, Step::Held),
            (Written::Nothing, There::Other, Adopt, Step::Unusable),
            // Died while the record was written.
            (Written::Short, There::Nothing, Refuse, Step::Make { write: over }),
            (Written::Short, FREE, Refuse, Step::LookInside),
            (Written::Short, with(true), Refuse, Step::TakeUp { write: over }),
            (Written::Short, with(false), Refuse, Step::Refuse),
            (Written::Short, with(false), Adopt, Step::Adopt { write: over }),
            (Written::Short, held, Refuse, Step::Held),
            // Died between the record and the fileid, or the reply of MKDIR was lost.
            (Written::Creating, There::Nothing, Refuse, Step::Make { write: not }),
            (Written::Creating, FREE, Refuse, Step::LookInside),
            (Written::Creating, with(true), Refuse, Step::TakeUp { write: not }),
            (Written::Creating, with(false), Refuse, Step::Refuse),
            (Written::Creating, with(false), Adopt, Step::Adopt { write: over }),
            (Written::Creating, held, Adopt, Step::Held),
            (Written::Creating, There::Other, Refuse, Step::Unusable),
            // Died while taking over.
            (Written::Adopting, There::Nothing, Adopt, Step::Make { write: over }),
            (Written::Adopting, FREE, Adopt, Step::Adopt { write: over }),
            (Written::Adopting, FREE, Refuse, Step::Refuse),
            (Written::Adopting, held, Adopt, Step::Held),
            // Died before the volume was saved.
            (live, FREE, Refuse, Step::Done),
            (live, held, Refuse, Step::Done),
            (live, There::Nothing, Refuse, Step::Make { write: over }),
            (live, There::Other, Refuse, Step::Unusable),
            (Written::Live { file_id: Some(8) }, FREE, Adopt, Step::Disagree),
            (Written::Live { file_id: None }, FREE, Adopt, Step::Disagree),
        ] {
            assert_eq!(
                decide(written, there, existing),
                step,
                "{written:?} {there:?} {existing:?}"
            );
        }
    }
}
