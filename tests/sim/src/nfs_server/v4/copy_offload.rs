//! COPY, CLONE and SEEK (RFC 7862 sections 4, 6 and 15). Copies are synchronous, within one file system.

use nfs_client::wire::Encoder;

use super::compound::Compound;
use crate::nfs_server::exports::Target;
use crate::nfs_server::state::State;
use crate::nfs_server::status::{NfsResult, NfsStat};

/// data_content4.
const DATA: u32 = 0;
const HOLE: u32 = 1;

impl Compound {
    fn source_and_target(&self, state: &State) -> NfsResult<(Target, Target)> {
        if !state.options.copy_offload {
            return Err(NfsStat::NOTSUPP);
        }
        let (from, to) = (self.saved_target(state)?, self.target(state)?);
        if from.place.disk != to.place.disk {
            return Err(NfsStat::XDEV);
        }
        Ok((from, to))
    }

    /// COPY.
    pub(super) fn copy(
        &self,
        state: &mut State,
        from: u64,
        to: u64,
        count: u64,
        result: &mut Encoder,
    ) -> NfsResult<()> {
        let (source, target) = self.source_and_target(state)?;
        let count = count.min(state.options.max_transfer.into());
        state.before_unstable_write(&target.place)?;
        let actor = self.actor(state);
        let copied = state.change(&actor, target.export, &target.place.disk, |disk| {
            disk.copy(&target.caller, (source.place.ino, from), (target.place.ino, to), count)
        })?;
        // No callback, as it is complete; UNSTABLE; consecutive and synchronous.
        result.u32(0).u64(copied).u32(0).fixed(&state.write_verifier());
        result.boolean(true).boolean(true);
        Ok(())
    }

    /// CLONE, of whole files only.
    pub(super) fn clone_range(&self, state: &mut State, from: u64, to: u64, count: u64) -> NfsResult<()> {
        let (source, target) = self.source_and_target(state)?;
        if (from, to, count) != (0, 0, 0) {
            return Err(NfsStat::INVAL);
        }
        let actor = self.actor(state);
        state.change(&actor, target.export, &target.place.disk, |disk| {
            disk.clone_file(&target.caller, source.place.ino, target.place.ino)
        })?;
        state.commit(&target.place)
    }

    /// SEEK.
    pub(super) fn seek(&self, state: &State, offset: u64, what: u32, result: &mut Encoder) -> NfsResult<()> {
        if !state.options.copy_offload {
            return Err(NfsStat::NOTSUPP);
        }
        let target = self.target(state)?;
        let disk = state.namespace.disk(&target.place.disk)?;
        let data = match what {
            DATA => true,
            HOLE => false,
            _ => return Err(NfsStat::INVAL),
        };
        let found = disk.seek(&target.caller, target.place.ino, offset, data)?;
        let end = disk.inode(target.place.ino)?.size();
        result.boolean(found >= end).u64(found);
        Ok(())
    }
}
