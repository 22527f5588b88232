//! The procedures of NFSv3 (RFC 1813 section 3.3).

use std::net::SocketAddr;

use bytes::Bytes;
use nfs_client::wire::v3::nfs;
use nfs_client::wire::{Decoder, Encoder, XdrError};

use super::{attributes, readdir};
use crate::nfs_server::events::Actor;
use crate::nfs_server::exports::{Node, Place, Target};
use crate::nfs_server::file_system::{Access, AttributeChanges, Content, Directory, Kind, Removal};
use crate::nfs_server::operations::Stability;
use crate::nfs_server::rpc::{Call, Rejection};
use crate::nfs_server::state::State;
use crate::nfs_server::status::{NfsResult, NfsStat};

const ACCESS: u32 = 4;
const MKNOD: u32 = 11;
/// NFS3_FHSIZE.
const MAX_HANDLE: usize = 64;
/// Maximum length of a name or target on the wire: longer than a file system allows, so that the file system refuses it.
const MAX_NAME: usize = 4096;
/// Maximum size of data.
const MAX_DATA: usize = 1 << 21;

/// Why a procedure did not succeed.
pub(super) enum Failure {
    /// Its arguments cannot be decoded.
    Garbage,
    /// A status.
    Status(NfsStat),
}

impl From<XdrError> for Failure {
    fn from(_: XdrError) -> Self {
        Self::Garbage
    }
}

impl From<NfsStat> for Failure {
    fn from(status: NfsStat) -> Self {
        Self::Status(status)
    }
}

type Executed = Result<(), Failure>;

/// Executes a call of NFSv3. `busy`: with JUKEBOX.
pub fn execute(state: &mut State, peer: SocketAddr, call: &Call, busy: bool) -> Result<Vec<u8>, Rejection> {
    if !state.options.v3 {
        return Err(Rejection::NoVersion(4, 4));
    }
    if call.version != 3 {
        return Err(Rejection::NoVersion(3, 4));
    }
    if call.procedure == nfs::NULL {
        return Ok(Vec::new());
    }
    if call.procedure > nfs::COMMIT {
        return Err(Rejection::NoProcedure);
    }
    let mut results = Encoder::new();
    let executed = if busy {
        Err(NfsStat::DELAY.into())
    } else {
        let mut procedure = Procedure {
            state,
            peer,
            call,
            arguments: Decoder::new(call.arguments.clone()),
        };
        procedure.execute(&mut results)
    };
    let mut reply = Encoder::new();
    match executed {
        Ok(()) => reply.u32(0).raw(results.as_bytes()),
        Err(Failure::Garbage) => return Err(Rejection::Garbage),
        Err(Failure::Status(status)) => {
            reply.u32(status.0);
            for _ in 0..words_after_failure(call.procedure) {
                reply.boolean(false);
            }
            &mut reply
        }
    };
    Ok(reply.into_bytes())
}

/// After a failure, the results have `post_op_attr` or `wcc_data` of each object of the call: here always without attributes.
fn words_after_failure(procedure: u32) -> usize {
    match procedure {
        nfs::GETATTR => 0,
        nfs::RENAME => 4,
        nfs::LINK => 3,
        nfs::SETATTR | nfs::WRITE..=nfs::RMDIR | nfs::COMMIT => 2,
        _ => 1,
    }
}

/// A procedure that is being executed.
struct Procedure<'a> {
    state: &'a mut State,
    peer: SocketAddr,
    call: &'a Call,
    arguments: Decoder,
}

impl Procedure<'_> {
    fn actor(&self) -> Actor {
        Actor::Client {
            address: self.peer.ip(),
            owner: Bytes::new(),
            uid: self.call.credential.as_ref().map_or(0, |caller| caller.uid),
        }
    }

    /// Decodes a handle.
    fn target(&mut self) -> Result<Target, Failure> {
        let handle = self.arguments.opaque("handle", MAX_HANDLE)?;
        let node = Node::from_handle(&handle)?;
        let credential = self.call.credential.as_ref();
        Ok(self.state.namespace.target(node, credential, self.peer.port())?)
    }

    fn name(&mut self) -> Result<Bytes, Failure> {
        Ok(self.arguments.opaque("name", MAX_NAME)?)
    }

    fn execute(&mut self, results: &mut Encoder) -> Executed {
        match self.call.procedure {
            nfs::GETATTR => {
                let target = self.target()?;
                Ok(attributes::write(self.state, &target.place, results)?)
            }
            nfs::SETATTR => self.set_attributes(results),
            nfs::LOOKUP => self.lookup(results),
            ACCESS => self.access(results),
            nfs::READLINK => {
                let target = self.target()?;
                let link = self.state.namespace.disk(&target.place.disk)?;
                let link = link.read_link(target.place.ino)?;
                attributes::write_optional(self.state, &target.place, results);
                results.opaque(&link);
                Ok(())
            }
            nfs::READ => self.read(results),
            nfs::WRITE => self.write(results),
            nfs::CREATE => self.create_file(results),
            nfs::MKDIR => {
                let (target, name) = (self.target()?, self.name()?);
                let set = attributes::read_changes(&mut self.arguments)?;
                let kind = Kind::Directory(Directory::new(target.place.ino));
                self.create(&target, &name, (kind, set, None), results)
            }
            nfs::SYMLINK => {
                let (target, name) = (self.target()?, self.name()?);
                let set = attributes::read_changes(&mut self.arguments)?;
                let kind = Kind::Symlink(self.name()?);
                self.create(&target, &name, (kind, set, None), results)
            }
            MKNOD => Err(NfsStat::NOTSUPP.into()),
            nfs::REMOVE => self.remove(Removal::NonDirectory, results),
            nfs::RMDIR => self.remove(Removal::Directory, results),
            nfs::RENAME => self.rename(results),
            nfs::LINK => self.link(results),
            nfs::READDIR => self.read_directory(false, results),
            nfs::READDIRPLUS => self.read_directory(true, results),
            nfs::FSSTAT => self.statistics(results),
            nfs::FSINFO => self.limits(results),
            nfs::PATHCONF => self.path_limits(results),
            // COMMIT.
            _ => {
                let target = self.target()?;
                self.state.commit(&target.place)?;
                attributes::write_wcc(self.state, &target.place, results);
                results.fixed(&self.state.write_verifier());
                Ok(())
            }
        }
    }

    fn set_attributes(&mut self, results: &mut Encoder) -> Executed {
        let target = self.target()?;
        let set = attributes::read_changes(&mut self.arguments)?;
        if set.size.is_some() {
            self.state.commit(&target.place)?;
        }
        let actor = self.actor();
        self.state.change(&actor, target.export, &target.place.disk, |disk| {
            disk.set_attributes(&target.caller, target.place.ino, set)
        })?;
        attributes::write_wcc(self.state, &target.place, results);
        Ok(())
    }

    fn lookup(&mut self, results: &mut Encoder) -> Executed {
        let (target, name) = (self.target()?, self.name()?);
        let disk = self.state.namespace.disk(&target.place.disk)?;
        let ino = disk.lookup(&target.caller, target.place.ino, &name)?;
        let node = self.node(&target, ino)?;
        results.opaque(&node.handle());
        attributes::write_optional(self.state, &self.state.namespace.place(node)?, results);
        attributes::write_optional(self.state, &target.place, results);
        Ok(())
    }

    /// The handle of an object on the same disk, or of what is mounted there.
    fn node(&self, directory: &Target, ino: u64) -> NfsResult<Node> {
        let place = Place {
            disk: directory.place.disk.clone(),
            ino,
        };
        self.state.namespace.node(directory.export, &place)
    }

    fn access(&mut self, results: &mut Encoder) -> Executed {
        let target = self.target()?;
        let requested = self.arguments.u32("access")?;
        let inode = self.state.namespace.disk(&target.place.disk)?.inode(target.place.ino)?;
        // READ; LOOKUP and EXECUTE; MODIFY, EXTEND and DELETE.
        let bits = [
            (1, Access::Read),
            (2 | 32, Access::Execute),
            (4 | 8 | 16, Access::Write),
        ];
        let granted = bits.iter().filter(|(_, access)| target.caller.may(*access, inode));
        let granted = granted.fold(0, |granted, (bits, _)| granted | bits);
        attributes::write_optional(self.state, &target.place, results);
        results.u32(granted & requested);
        Ok(())
    }

    fn read(&mut self, results: &mut Encoder) -> Executed {
        let target = self.target()?;
        let (offset, count) = (self.arguments.u64("offset")?, self.arguments.u32("count")?);
        let count = count.min(self.state.options.max_transfer);
        let actor = self.actor();
        let (bytes, eof) = self.state.with_disk(&actor, &target.place.disk, |disk| {
            disk.read(&target.caller, target.place.ino, offset, count.into())
        })?;
        attributes::write_optional(self.state, &target.place, results);
        results.u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX)).boolean(eof);
        results.opaque(&bytes);
        Ok(())
    }

    fn write(&mut self, results: &mut Encoder) -> Executed {
        let target = self.target()?;
        let offset = self.arguments.u64("offset")?;
        self.arguments.u32("count")?;
        let stability = Stability::from_number(self.arguments.u32("stable")?);
        let data = self.arguments.opaque("data", MAX_DATA)?;
        let actor = self.actor();
        let count = self.state.write(&actor, &target, offset, stability, &data)?;
        attributes::write_wcc(self.state, &target.place, results);
        results.u32(count).u32(stability.number());
        results.fixed(&self.state.write_verifier());
        Ok(())
    }

    fn create_file(&mut self, results: &mut Encoder) -> Executed {
        let (target, name) = (self.target()?, self.name()?);
        // UNCHECKED, GUARDED, EXCLUSIVE.
        let mode = self.arguments.u32("create mode")?;
        let (set, verifier) = match mode {
            0 | 1 => (attributes::read_changes(&mut self.arguments)?, None),
            _ => (AttributeChanges::default(), Some(self.arguments.array("verifier")?)),
        };
        let disk = self.state.namespace.disk(&target.place.disk)?;
        if mode == 0
            && let Ok(ino) = disk.lookup(&target.caller, target.place.ino, &name)
        {
            return self.created(&target, ino, results);
        }
        let kind = Kind::Regular(Content::default());
        self.create(&target, &name, (kind, set, verifier), results)
    }

    fn create(
        &mut self,
        target: &Target,
        name: &[u8],
        (kind, set, verifier): (Kind, AttributeChanges, Option<[u8; 8]>),
        results: &mut Encoder,
    ) -> Executed {
        let actor = self.actor();
        let ino = self.state.change(&actor, target.export, &target.place.disk, |disk| {
            disk.create_exclusive(&target.caller, (target.place.ino, name), kind, set, verifier)
        })?;
        self.created(target, ino, results)
    }

    fn created(&self, target: &Target, ino: u64, results: &mut Encoder) -> Executed {
        let node = self.node(target, ino)?;
        attributes::write_handle(node, results);
        attributes::write_optional(self.state, &self.state.namespace.place(node)?, results);
        attributes::write_wcc(self.state, &target.place, results);
        Ok(())
    }

    fn remove(&mut self, removal: Removal, results: &mut Encoder) -> Executed {
        let (target, name) = (self.target()?, self.name()?);
        let actor = self.actor();
        self.state.remove(&actor, &target, &name, removal)?;
        attributes::write_wcc(self.state, &target.place, results);
        Ok(())
    }

    fn rename(&mut self, results: &mut Encoder) -> Executed {
        let (source, from) = (self.target()?, self.name()?);
        let (target, to) = (self.target()?, self.name()?);
        let actor = self.actor();
        self.state.rename(&actor, (&source, &from), (&target, &to))?;
        attributes::write_wcc(self.state, &source.place, results);
        attributes::write_wcc(self.state, &target.place, results);
        Ok(())
    }

    fn link(&mut self, results: &mut Encoder) -> Executed {
        let (object, directory, name) = (self.target()?, self.target()?, self.name()?);
        let actor = self.actor();
        self.state.link(&actor, &object, &directory, &name)?;
        attributes::write_optional(self.state, &object.place, results);
        attributes::write_wcc(self.state, &directory.place, results);
        Ok(())
    }

    fn read_directory(&mut self, plus: bool, results: &mut Encoder) -> Executed {
        let target = self.target()?;
        let (cookie, verifier) = (self.arguments.u64("cookie")?, self.arguments.array("verifier")?);
        if plus {
            self.arguments.u32("dircount")?;
        }
        let max_size = self.arguments.u32("count")?;
        let page = readdir::page(self.state, &target, (cookie, verifier), max_size, plus)?;
        attributes::write_optional(self.state, &target.place, results);
        results.raw(&page);
        Ok(())
    }

    fn statistics(&mut self, results: &mut Encoder) -> Executed {
        let target = self.target()?;
        let found = self.state.namespace.disk(&target.place.disk)?.statistics();
        attributes::write_optional(self.state, &target.place, results);
        results.u64(found.total).u64(found.available).u64(found.available);
        results.u64(found.inodes).u64(found.inodes_free).u64(found.inodes_free);
        // The statistics may change at any time.
        results.u32(0);
        Ok(())
    }

    fn limits(&mut self, results: &mut Encoder) -> Executed {
        let target = self.target()?;
        let size = self.state.options.max_transfer;
        attributes::write_optional(self.state, &target.place, results);
        // Maximum, preferred and multiple for READ and WRITE; READDIR; largest file; resolution of times.
        results.u32(size).u32(size).u32(1).u32(size).u32(size).u32(1);
        results.u32(size).u64(u64::MAX).u32(0).u32(1);
        // LINK, SYMLINK, HOMOGENEOUS, CANSETTIME.
        results.u32(0x1b);
        Ok(())
    }

    fn path_limits(&mut self, results: &mut Encoder) -> Executed {
        let target = self.target()?;
        let options = self.state.namespace.disk(&target.place.disk)?.options();
        let (links, names) = (options.link_max, options.name_max);
        let case_insensitive = options.case_insensitive;
        attributes::write_optional(self.state, &target.place, results);
        results.u32(u32::try_from(links).unwrap_or(u32::MAX));
        results.u32(u32::try_from(names).unwrap_or(u32::MAX));
        // no_trunc, chown_restricted, case_insensitive, case_preserving.
        results
            .boolean(true)
            .boolean(true)
            .boolean(case_insensitive)
            .boolean(true);
        Ok(())
    }
}
