//! Names and attributes: LOOKUP, CREATE, LINK, REMOVE, RENAME, READDIR, SETATTR and ACCESS (RFC 8881 section 18).

use bytes::Bytes;
use nfs_client::wire::Encoder;
use nfs_client::wire::v4::StateId;

use super::attributes;
use super::compound::{Compound, change_info};
use crate::nfs_server::exports::{Node, Place};
use crate::nfs_server::file_system::{Access, AttributeChanges, Directory, Kind, Removal};
use crate::nfs_server::state::State;
use crate::nfs_server::status::{NfsResult, NfsStat};

/// Bytes of a READDIR result besides its entries.
const PAGE_HEADERS: usize = 16;
/// Bytes of an entry besides its name and attributes.
const ENTRY_HEADERS: usize = 16;

/// An entry of a directory that is listed: cookie, name, object, and the fileid below a mount.
type Listed = (u64, Bytes, Node, Option<u64>);

impl Compound {
    /// LOOKUP.
    pub(super) fn lookup(&mut self, state: &State, name: &[u8]) -> NfsResult<()> {
        let port = self.peer.port();
        if let Node::Pseudo(number) = self.current()? {
            self.current = Some(state.namespace.lookup_pseudo(number, name, port)?);
            return Ok(());
        }
        let target = self.target(state)?;
        let disk = state.namespace.disk(&target.place.disk)?;
        let inode = disk.inode(target.place.ino)?;
        if matches!(inode.kind, Kind::Symlink(_)) {
            return Err(NfsStat::SYMLINK);
        }
        let ino = disk.lookup(&target.caller, target.place.ino, name)?;
        let place = Place {
            disk: target.place.disk,
            ino,
        };
        self.current = Some(state.namespace.node(target.export, &place)?);
        Ok(())
    }

    /// SETATTR.
    pub(super) fn set_attributes(
        &mut self,
        state: &mut State,
        stateid: StateId,
        set: AttributeChanges,
        result: &mut Encoder,
    ) -> NfsResult<()> {
        let target = self.target(state)?;
        if set.size.is_some() {
            self.check_stateid(state, stateid, &target, true)?;
            state.commit(&target.place)?;
        }
        let actor = self.actor(state);
        state.change(&actor, target.export, &target.place.disk, |disk| {
            disk.set_attributes(&target.caller, target.place.ino, set)
        })?;
        attributes::write_bitmap(result, &attributes::changed(&set));
        Ok(())
    }

    /// ACCESS.
    pub(super) fn access(&self, state: &State, requested: u32, result: &mut Encoder) -> NfsResult<()> {
        // READ, LOOKUP, MODIFY, EXTEND, DELETE, EXECUTE.
        let bits = [
            (1, Access::Read),
            (2, Access::Execute),
            (4, Access::Write),
            (8, Access::Write),
            (16, Access::Write),
            (32, Access::Execute),
        ];
        let mut granted = 0;
        if let Node::Pseudo(_) = self.current()? {
            granted = 3;
        } else {
            let target = self.target(state)?;
            let inode = state.namespace.disk(&target.place.disk)?.inode(target.place.ino)?;
            for (bit, access) in bits {
                if target.caller.may(access, inode) {
                    granted |= bit;
                }
            }
        }
        result.u32(63 & requested).u32(granted & requested);
        Ok(())
    }

    /// CREATE, of anything but regular files.
    pub(super) fn create(
        &mut self,
        state: &mut State,
        kind: u32,
        link_target: Bytes,
        name: &[u8],
        set: AttributeChanges,
        result: &mut Encoder,
    ) -> NfsResult<()> {
        let target = self.target(state)?;
        let kind = match kind {
            2 => Kind::Directory(Directory::new(target.place.ino)),
            5 => Kind::Symlink(link_target),
            3 | 4 | 6 | 7 => Kind::Special(kind),
            _ => return Err(NfsStat::INVAL),
        };
        let before = state.change_of(&target)?;
        let actor = self.actor(state);
        let ino = state.change(&actor, target.export, &target.place.disk, |disk| {
            disk.create(&target.caller, target.place.ino, name, kind, set)
        })?;
        change_info(result, before, state.change_of(&target)?);
        attributes::write_bitmap(result, &attributes::changed(&set));
        let place = Place {
            disk: target.place.disk,
            ino,
        };
        self.current = Some(state.namespace.node(target.export, &place)?);
        Ok(())
    }

    /// LINK: the saved object gets a name in the current directory.
    pub(super) fn link(&self, state: &mut State, name: &[u8], result: &mut Encoder) -> NfsResult<()> {
        let (object, target) = (self.saved_target(state)?, self.target(state)?);
        let before = state.change_of(&target)?;
        let actor = self.actor(state);
        state.link(&actor, &object, &target, name)?;
        change_info(result, before, state.change_of(&target)?);
        Ok(())
    }

    /// REMOVE. In the grace period it waits, as on the Linux server.
    pub(super) fn remove(&self, state: &mut State, name: &[u8], result: &mut Encoder) -> NfsResult<()> {
        if state.in_grace() {
            return Err(NfsStat::GRACE);
        }
        let target = self.target(state)?;
        let before = state.change_of(&target)?;
        let actor = self.actor(state);
        state.remove(&actor, &target, name, Removal::Any)?;
        change_info(result, before, state.change_of(&target)?);
        Ok(())
    }

    /// RENAME from the saved directory to the current one. In the grace period it waits, as on the Linux server.
    pub(super) fn rename(&self, state: &mut State, from: &[u8], to: &[u8], result: &mut Encoder) -> NfsResult<()> {
        if state.in_grace() {
            return Err(NfsStat::GRACE);
        }
        let (source, target) = (self.saved_target(state)?, self.target(state)?);
        let before = (state.change_of(&source)?, state.change_of(&target)?);
        let actor = self.actor(state);
        state.rename(&actor, (&source, from), (&target, to))?;
        change_info(result, before.0, state.change_of(&source)?);
        change_info(result, before.1, state.change_of(&target)?);
        Ok(())
    }

    /// READLINK.
    pub(super) fn read_link(&self, state: &State, result: &mut Encoder) -> NfsResult<()> {
        let target = self.target(state)?;
        let link = state.namespace.disk(&target.place.disk)?.read_link(target.place.ino)?;
        result.opaque(&link);
        Ok(())
    }

    /// Returns what a directory lists after a cookie, and the verifier of its cookies.
    fn listing(&self, state: &State, after: u64) -> NfsResult<(Vec<Listed>, [u8; 8])> {
        let namespace = &state.namespace;
        let node = self.current()?;
        if let Node::Pseudo(number) = node {
            let names = namespace.pseudo_names(number)?.into_iter();
            let entries = (3u64..).zip(names).filter(|(cookie, _)| *cookie > after);
            let entries = entries.filter_map(|(cookie, name)| {
                // A client does not see the exports that it may not use.
                let node = namespace
                    .lookup_pseudo(number, name.as_bytes(), self.peer.port())
                    .ok()?;
                Some((cookie, Bytes::from(name), node, None))
            });
            return Ok((entries.collect(), [0; 8]));
        }
        let target = self.target(state)?;
        let disk = namespace.disk(&target.place.disk)?;
        let directory = disk.check_list(&target.caller, target.place.ino)?;
        let verifier = if disk.options().strict_cookies {
            disk.inode(target.place.ino)?.change.to_be_bytes()
        } else {
            [0; 8]
        };
        let entries = directory.after(after).filter_map(|(cookie, entry)| {
            let place = Place {
                disk: target.place.disk.clone(),
                ino: entry.ino,
            };
            let node = namespace.node(target.export, &place).ok()?;
            Some((cookie, entry.name.clone(), node, Some(entry.ino)))
        });
        // A page has no more entries than fit into the largest reply.
        Ok((entries.take(16_384).collect(), verifier))
    }

    /// READDIR: as many entries as fit.
    pub(super) fn read_directory(
        &self,
        state: &State,
        (cookie, verifier): (u64, [u8; 8]),
        max_size: u32,
        requested: &[u32],
        result: &mut Encoder,
    ) -> NfsResult<()> {
        if matches!(cookie, 1 | 2) {
            return Err(NfsStat::BAD_COOKIE);
        }
        let (entries, current_verifier) = self.listing(state, cookie)?;
        if cookie != 0 && verifier != current_verifier {
            return Err(NfsStat::NOT_SAME);
        }
        let most = (max_size as usize).min(self.room()).saturating_sub(PAGE_HEADERS);
        let mut page = Encoder::new();
        let mut listed = 0;
        let all = entries.len();
        for (cookie, name, node, covered) in entries {
            let mut values = Encoder::new();
            attributes::write(state, node, covered, requested, &mut values)?;
            if page.encoded_len() + ENTRY_HEADERS + name.len().next_multiple_of(4) + values.encoded_len() > most {
                break;
            }
            page.boolean(true).u64(cookie).opaque(&name).raw(values.as_bytes());
            listed += 1;
        }
        if listed == 0 && all > 0 {
            return Err(NfsStat::TOOSMALL);
        }
        result.fixed(&current_verifier).raw(page.as_bytes());
        result.boolean(false).boolean(listed == all);
        Ok(())
    }
}
