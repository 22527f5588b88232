//! What only NFSv4.2 has: finding holes, copying and cloning on the server (RFC 7862 sections 4, 6 and 15).
//!
//! A copy is asked for synchronously: the server's word that a background copy is done comes over a channel back to us,
//! which we don't have. A server that copies in the background all the same is asked how far it is (OFFLOAD_STATUS).

use tokio::time::Instant;

use super::client::Client;
use super::compound::{Compound, Reply, StateId, stateid};
use super::constants::{code, op};
use crate::call_options::{Backoff, CallOptions};
use crate::error::split_status;
use crate::xdr::XdrError;
use crate::{Copied, FileHandle, NfsError, Protocol, Status};

const SEEK: &str = "looking for holes";
const COPY: &str = "copying on the server";
const CLONE: &str = "cloning a file";

/// data_content4.
const DATA: u32 = 0;
const HOLE: u32 = 1;
/// stable_how: the server may keep it in memory until the COMMIT.
const UNSTABLE: u32 = 0;

/// What COPY answered.
pub(super) struct CopyResult {
    /// The name of a copy in the background.
    background: Option<StateId>,
    count: u64,
    committed: u32,
    verifier: [u8; 8],
}

/// Takes SEEK's result, after its status: whether it is the end, and where.
pub(super) fn sought(reply: &mut Reply) -> Result<(bool, u64), NfsError> {
    reply.take(|results| Ok((results.boolean("end of file")?, results.u64("offset")?)))
}

/// Takes COPY's result, after its status.
pub(super) fn copied(reply: &mut Reply) -> Result<CopyResult, NfsError> {
    let background = match reply.u32("copies in the background")? {
        0 => None,
        1 => Some(reply.stateid()?),
        many => return Err(reply.protocol_error(format!("{many} copies in the background for one"))),
    };
    let result = CopyResult {
        background,
        count: reply.take(|results| results.u64("count"))?,
        committed: reply.u32("committed")?,
        verifier: reply.take(|results| results.array("write verifier"))?,
    };
    reply.take(|results| {
        results.boolean("consecutive")?;
        results.boolean("synchronous")
    })?;
    Ok(result)
}

/// Takes OFFLOAD_STATUS's result, after its status: how many bytes, and the end's status if it came to its end.
pub(super) fn offloaded(reply: &mut Reply) -> Result<(u64, Option<u32>), NfsError> {
    reply.take(|results| {
        let count = results.u64("count")?;
        let end = match results.u32("ends")? {
            0 => None,
            1 => Some(results.u32("status")?),
            value => return Err(XdrError::Invalid { what: "ends", value }),
        };
        Ok((count, end))
    })
}

impl Client {
    /// Fails unless the version is 4.2. Older versions lack some operations, and a server may close the connection when it
    /// receives one that it does not know.
    pub(super) fn require_4_2(&self, action: &'static str) -> Result<(), NfsError> {
        if self.negotiated().protocol == Protocol::V4_2 {
            return Ok(());
        }
        Err(NfsError::Status {
            action,
            status: Status::NotSupported,
        })
    }

    /// The next bytes that are no hole.
    pub async fn seek_data(
        &self,
        file: &FileHandle,
        from: u64,
        options: CallOptions,
    ) -> Result<Option<(u64, u64)>, NfsError> {
        self.require_4_2(SEEK)?;
        let Some(begin) = self.seek(file, from, DATA, options).await? else {
            return Ok(None);
        };
        let end = self.seek(file, begin, HOLE, options).await?;
        match end {
            Some(end) if begin >= from && end > begin => Ok(Some((begin, end))),
            // A hole begins at the latest where the file ends; nothing else can follow data.
            _ => Err(NfsError::Protocol {
                action: SEEK,
                cause: format!("after {from}, data from {begin} to {end:?}"),
                outcome_unknown: false,
            }),
        }
    }

    async fn seek(
        &self,
        file: &FileHandle,
        from: u64,
        what: u32,
        options: CallOptions,
    ) -> Result<Option<u64>, NfsError> {
        let mut compound = Compound::new(SEEK);
        let message = compound.at(file).op(op::SEEK);
        stateid(message, StateId::ANONYMOUS);
        message.u64(from).u32(what);
        let mut reply = self.call(options, &compound).await?;
        reply.op(op::PUTFH)?;
        let code = reply.code();
        match split_status(reply.op(op::SEEK))? {
            Ok(()) => {
                let (end, offset) = sought(&mut reply)?;
                // `end` without data is how some say that there is none.
                Ok((what == HOLE || !end).then_some(offset))
            }
            // Nothing but a hole is left (RFC 7862 section 15.11.3).
            Err(_) if code == code::NXIO => Ok(None),
            Err(status) => Err(NfsError::Status { action: SEEK, status }),
        }
    }

    /// Lets the server copy.
    pub async fn copy(
        &self,
        from: (&FileHandle, u64),
        to: (&FileHandle, u64),
        count: u64,
        options: CallOptions,
    ) -> Result<Copied, NfsError> {
        self.require_4_2(COPY)?;
        let mut compound = Compound::new(COPY);
        compound.at(from.0).op(op::SAVEFH);
        let message = compound.at(to.0).modifying_op(op::COPY);
        stateid(message, StateId::ANONYMOUS);
        stateid(message, StateId::ANONYMOUS);
        message.u64(from.1).u64(to.1).u64(count);
        // One after the other, synchronously, from no other server.
        message.boolean(true).boolean(true).u32(0);
        let mut reply = self.call(options, &compound).await?;
        for before in [op::PUTFH, op::SAVEFH, op::PUTFH, op::COPY] {
            reply.op(before)?;
        }
        let result = copied(&mut reply)?;
        if result.count > count {
            return Err(reply.protocol_error(format!("{} bytes copied of {count}", result.count)));
        }
        if let Some(background) = result.background {
            return self.wait_for(to.0, background, count, options).await;
        }
        Ok(Copied {
            count: result.count,
            stable: result.committed != UNSTABLE,
            verifier: Some(result.verifier),
        })
    }

    /// Waits for a copy in the background, until the deadline; then it is called off.
    async fn wait_for(
        &self,
        to: &FileHandle,
        copy: StateId,
        asked: u64,
        options: CallOptions,
    ) -> Result<Copied, NfsError> {
        let mut pause = Backoff::new();
        let began = Instant::now();
        while pause.pause_before(options.deadline).await {
            let mut compound = Compound::new(COPY);
            stateid(compound.at(to).op(op::OFFLOAD_STATUS), copy);
            let mut reply = self.call(options, &compound).await?;
            reply.op(op::PUTFH)?;
            reply.op(op::OFFLOAD_STATUS)?;
            match offloaded(&mut reply)? {
                (count, _) if count > asked => {
                    return Err(reply.protocol_error(format!("{count} bytes copied of {asked}")));
                }
                (_, None) => {}
                (count, Some(code::OK)) => {
                    return Ok(Copied {
                        count,
                        stable: false,
                        verifier: None,
                    });
                }
                (_, Some(code)) => {
                    return Err(NfsError::Status {
                        action: COPY,
                        status: super::status::status(code),
                    });
                }
            }
        }
        let mut compound = Compound::new(COPY);
        stateid(compound.at(to).modifying_op(op::OFFLOAD_CANCEL), copy);
        // It ends by itself if this doesn't end it; whoever repeats the copy writes the same bytes.
        let _ = self.call(options, &compound).await;
        Err(NfsError::NotResponding {
            action: COPY,
            after: began.elapsed(),
            outcome_unknown: true,
        })
    }

    /// Lets a file share the blocks of another, all of them.
    pub async fn clone_file(&self, from: &FileHandle, to: &FileHandle, options: CallOptions) -> Result<(), NfsError> {
        self.require_4_2(CLONE)?;
        let mut compound = Compound::new(CLONE);
        compound.at(from).op(op::SAVEFH);
        let message = compound.at(to).modifying_op(op::CLONE);
        stateid(message, StateId::ANONYMOUS);
        stateid(message, StateId::ANONYMOUS);
        // From the beginning to the end, wherever that is.
        message.u64(0).u64(0).u64(0);
        let mut reply = self.call(options, &compound).await?;
        for before in [op::PUTFH, op::SAVEFH, op::PUTFH, op::CLONE] {
            reply.op(before)?;
        }
        Ok(())
    }
}
