//! Files: OPEN, CLOSE, READ, WRITE, COMMIT (RFC 8881 section 18; RFC 7530 section 16), and extended attributes (RFC 8276).

use bytes::Bytes;
use nfs_client::wire::Encoder;
use nfs_client::wire::v4::StateId;

use super::arguments::{Claim, CreateHow};
use super::attributes;
use super::clients::{ClientId, Open};
use super::compound::{Compound, change_info};
use crate::nfs_server::exports::{Place, Target};
use crate::nfs_server::file_system::{Access, AttributeChanges, Content, Kind};
use crate::nfs_server::operations::Stability;
use crate::nfs_server::state::State;
use crate::nfs_server::status::{NfsResult, NfsStat};

/// share_access.
const ACCESS_READ: u32 = 1;
const ACCESS_WRITE: u32 = 2;
/// rflags of OPEN: POSIX locks; in NFSv4.0 the open must be confirmed.
const LOCKTYPE_POSIX: u32 = 4;
const CONFIRM: u32 = 2;

impl Compound {
    /// Returns the client of an OPEN; fails if it may not open now.
    fn opening_client(&self, state: &State, id: ClientId) -> NfsResult<ClientId> {
        let id = self.client.unwrap_or(id);
        let client = state.clients.get(id).filter(|client| client.confirmed);
        let client = client.ok_or(NfsStat::STALE_CLIENTID)?;
        // Only reclaims are accepted in the grace period, and until the client has ended its own.
        if state.in_grace() || (self.minor > 0 && !client.reclaim_complete) {
            return Err(NfsStat::GRACE);
        }
        Ok(id)
    }

    /// OPEN.
    pub(super) fn open(
        &mut self,
        state: &mut State,
        access: u32,
        client: ClientId,
        create: Option<CreateHow>,
        claim: Claim,
        result: &mut Encoder,
    ) -> NfsResult<()> {
        let client = self.opening_client(state, client)?;
        let target = self.target(state)?;
        let before = state.change_of(&target)?;
        if access & ACCESS_WRITE != 0 && state.namespace.export(target.export)?.read_only {
            return Err(NfsStat::ROFS);
        }
        let (ino, set) = match (claim, create) {
            (Claim::Handle, None) => (target.place.ino, AttributeChanges::default()),
            (Claim::Handle, Some(_)) => return Err(NfsStat::INVAL),
            (Claim::Name(name), create) => self.open_by_name(state, &target, &name, create)?,
        };
        let place = Place {
            disk: target.place.disk.clone(),
            ino,
        };
        let disk = state.namespace.disk(&place.disk)?;
        let inode = disk.inode(ino)?;
        match inode.kind {
            Kind::Regular(_) => {}
            Kind::Directory(_) => return Err(NfsStat::ISDIR),
            Kind::Symlink(_) => return Err(NfsStat::SYMLINK),
            Kind::Special(_) => return Err(NfsStat::INVAL),
        }
        // The creator of a file may write to it, whatever its mode.
        for (bit, needed) in [(ACCESS_READ, Access::Read), (ACCESS_WRITE, Access::Write)] {
            if access & bit != 0 && !target.caller.owns(inode) && !target.caller.may(needed, inode) {
                return Err(NfsStat::ACCESS);
            }
        }
        let object = disk.object(ino)?;
        let actor = self.actor(state);
        state.with_disk(&actor, &place.disk, |disk| disk.open(ino))?;
        let unconfirmed = self.minor == 0;
        let boot = state.boot;
        let stateid = state.clients.open(
            boot,
            Open {
                client,
                disk: place.disk.clone(),
                object,
                sequence: 1,
                access,
                unconfirmed,
            },
        );
        self.current = Some(state.namespace.node(target.export, &place)?);
        self.stateid = Some(stateid);
        result.u32(stateid.sequence).fixed(&stateid.other);
        change_info(result, before, state.change_of(&target)?);
        result.u32(LOCKTYPE_POSIX | if unconfirmed { CONFIRM } else { 0 });
        attributes::write_bitmap(result, &attributes::changed(&set));
        // No delegation.
        result.u32(0);
        Ok(())
    }

    /// Finds or creates the file of an OPEN by name. Returns it, and the attributes that were set.
    fn open_by_name(
        &self,
        state: &mut State,
        directory: &Target,
        name: &[u8],
        create: Option<CreateHow>,
    ) -> NfsResult<(u64, AttributeChanges)> {
        let found = state
            .namespace
            .disk(&directory.place.disk)?
            .lookup(&directory.caller, directory.place.ino, name);
        let existing = match found {
            Ok(ino) => Some(ino),
            Err(NfsStat::NOENT) => None,
            Err(status) => return Err(status),
        };
        let (set, verifier) = match create {
            None => return Ok((existing.ok_or(NfsStat::NOENT)?, AttributeChanges::default())),
            Some(CreateHow::Unchecked(set)) => {
                if let Some(ino) = existing {
                    return Ok((ino, AttributeChanges::default()));
                }
                (set?, None)
            }
            Some(CreateHow::Guarded(set)) => (set?, None),
            Some(CreateHow::Exclusive(verifier, set)) => (set?, Some(verifier)),
        };
        let actor = self.actor(state);
        let ino = state.change(&actor, directory.export, &directory.place.disk, |disk| {
            let content = Kind::Regular(Content::default());
            disk.create_exclusive(&directory.caller, (directory.place.ino, name), content, set, verifier)
        })?;
        Ok((ino, set))
    }

    /// Checks the stateid of a READ, WRITE or SETATTR of the size.
    pub(super) fn check_stateid(
        &self,
        state: &mut State,
        stateid: StateId,
        target: &Target,
        write: bool,
    ) -> NfsResult<()> {
        let stateid = match stateid {
            StateId::CURRENT => self.stateid.ok_or(NfsStat::BAD_STATEID)?,
            StateId { other, .. } if other == [0; 12] || other == [0xff; 12] => return Ok(()),
            stateid => stateid,
        };
        let access = state.clients.open_mut(stateid, target.object)?.access;
        if write && access & ACCESS_WRITE == 0 {
            return Err(NfsStat::OPENMODE);
        }
        Ok(())
    }

    /// OPEN_CONFIRM of NFSv4.0.
    pub(super) fn confirm_open(&self, state: &mut State, stateid: StateId, result: &mut Encoder) -> NfsResult<()> {
        let target = self.target(state)?;
        let open = state.clients.open_mut(stateid, target.object)?;
        open.unconfirmed = false;
        open.sequence += 1;
        result.u32(open.sequence).fixed(&stateid.other);
        Ok(())
    }

    /// CLOSE.
    pub(super) fn close(&self, state: &mut State, stateid: StateId, result: &mut Encoder) -> NfsResult<()> {
        let target = self.target(state)?;
        let stateid = match stateid {
            StateId::CURRENT => self.stateid.ok_or(NfsStat::BAD_STATEID)?,
            stateid => stateid,
        };
        let sequence = state.clients.open_mut(stateid, target.object)?.sequence;
        let opens = state.clients.close(stateid);
        state.close(opens);
        result.u32(sequence + 1).fixed(&stateid.other);
        Ok(())
    }

    /// READ.
    pub(super) fn read(
        &self,
        state: &mut State,
        stateid: StateId,
        offset: u64,
        count: u32,
        result: &mut Encoder,
    ) -> NfsResult<()> {
        let target = self.target(state)?;
        self.check_stateid(state, stateid, &target, false)?;
        let count = count
            .min(state.options.max_transfer)
            .min(u32::try_from(self.room()).unwrap_or(u32::MAX));
        let actor = self.actor(state);
        let (bytes, eof) = state.with_disk(&actor, &target.place.disk, |disk| {
            disk.read(&target.caller, target.place.ino, offset, count.into())
        })?;
        result.boolean(eof).opaque(&bytes);
        Ok(())
    }

    /// WRITE.
    pub(super) fn write(
        &self,
        state: &mut State,
        stateid: StateId,
        offset: u64,
        (stable, data): (u32, &Bytes),
        result: &mut Encoder,
    ) -> NfsResult<()> {
        let target = self.target(state)?;
        self.check_stateid(state, stateid, &target, true)?;
        let actor = self.actor(state);
        let stability = Stability::from_number(stable);
        let count = state.write(&actor, &target, offset, stability, data)?;
        result.u32(count).u32(stability.number()).fixed(&state.write_verifier());
        Ok(())
    }

    /// COMMIT.
    pub(super) fn commit(&self, state: &mut State, result: &mut Encoder) -> NfsResult<()> {
        let target = self.target(state)?;
        state.commit(&target.place)?;
        result.fixed(&state.write_verifier());
        Ok(())
    }

    /// GETXATTR.
    pub(super) fn get_xattr(&self, state: &State, name: &[u8], result: &mut Encoder) -> NfsResult<()> {
        let target = self.target(state)?;
        let disk = state.namespace.disk(&target.place.disk)?;
        result.opaque(&disk.get_xattr(&target.caller, target.place.ino, name)?);
        Ok(())
    }

    /// SETXATTR: creates or replaces, or only one of both.
    pub(super) fn set_xattr(
        &self,
        state: &mut State,
        how: u32,
        name: Bytes,
        value: Bytes,
        result: &mut Encoder,
    ) -> NfsResult<()> {
        let target = self.target(state)?;
        let before = state.change_of(&target)?;
        let disk = state.namespace.disk(&target.place.disk)?;
        match (how, disk.get_xattr(&target.caller, target.place.ino, &name)) {
            (1, Ok(_)) => return Err(NfsStat::EXIST),
            (2, Err(status)) => return Err(status),
            _ => {}
        }
        let actor = self.actor(state);
        state.change(&actor, target.export, &target.place.disk, |disk| {
            disk.set_xattr(&target.caller, target.place.ino, name, value)
        })?;
        change_info(result, before, state.change_of(&target)?);
        Ok(())
    }

    /// LISTXATTRS. The cookie is the number of names listed before.
    pub(super) fn list_xattrs(&self, state: &State, cookie: u64, max_size: u32, result: &mut Encoder) -> NfsResult<()> {
        let target = self.target(state)?;
        let disk = state.namespace.disk(&target.place.disk)?;
        let names = disk.list_xattrs(&target.caller, target.place.ino)?;
        let skip = usize::try_from(cookie).unwrap_or(usize::MAX);
        let (mut page, mut listed) = (Encoder::new(), 0u32);
        for name in names.iter().skip(skip) {
            if page.encoded_len() + 8 + name.len() > max_size as usize {
                break;
            }
            page.opaque(name);
            listed += 1;
        }
        let next = cookie + u64::from(listed);
        result.u64(next).u32(listed).raw(page.as_bytes());
        result.boolean(next >= names.len() as u64);
        Ok(())
    }
}
