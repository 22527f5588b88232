//! Operations of NFSv4.2 on ranges: SEEK, COPY and CLONE (RFC 7862 sections 4, 6 and 15).
//!
//! Copies are requested synchronously: the completion of an asynchronous copy is reported over the back channel, which this
//! client does not have. If a server copies asynchronously nevertheless, the client polls it (OFFLOAD_STATUS).

use tokio::time::Instant;

use super::client::Client;
use super::compound::{Compound, Reply, StateId, stateid};
use super::constants::{code, op};
use crate::call_options::{Backoff, CallOptions};
use crate::error::split_status;
use crate::xdr::XdrError;
use crate::{CopyResult, FileHandle, NfsError, Protocol, Status};

const SEEK: &str = "seeking data";
const COPY: &str = "copying on the server";
const CLONE: &str = "cloning a file";

/// data_content4.
const DATA: u32 = 0;
const HOLE: u32 = 1;
/// stable_how: the server may keep it in memory until the COMMIT.
const UNSTABLE: u32 = 0;

/// Result of COPY.
pub(super) struct CopyReply {
    /// Stateid of an asynchronous copy; absent if the copy is complete.
    callback_id: Option<StateId>,
    count: u64,
    committed: u32,
    verifier: [u8; 8],
}

/// Decodes the result of SEEK, after its status: whether it is the end of the file, and the offset.
pub(super) fn decode_seek(reply: &mut Reply) -> Result<(bool, u64), NfsError> {
    reply.take(|results| Ok((results.boolean("end of file")?, results.u64("offset")?)))
}

/// Decodes the result of COPY, after its status.
pub(super) fn decode_copy(reply: &mut Reply) -> Result<CopyReply, NfsError> {
    let callback_id = match reply.u32("callback stateids")? {
        0 => None,
        1 => Some(reply.stateid()?),
        many => return Err(reply.protocol_error(format!("{many} callback stateids for one copy"))),
    };
    let result = CopyReply {
        callback_id,
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

/// Decodes the result of OFFLOAD_STATUS, after its status: bytes copied, and the final status once the copy has ended.
pub(super) fn decode_offload_status(reply: &mut Reply) -> Result<(u64, Option<u32>), NfsError> {
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
    /// receives an unknown one.
    pub(super) fn require_4_2(&self, action: &'static str) -> Result<(), NfsError> {
        if self.negotiated().protocol == Protocol::V4_2 {
            return Ok(());
        }
        Err(NfsError::Status {
            action,
            status: Status::NotSupported,
        })
    }

    /// Finds the next range that is no hole.
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
            // Data ends at a hole, or at the virtual hole at the end of the file.
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
                let (end, offset) = decode_seek(&mut reply)?;
                // Some servers set `sr_eof` if no data follows.
                Ok((what == HOLE || !end).then_some(offset))
            }
            // Only a hole follows (RFC 7862 section 15.11.3).
            Err(_) if code == code::NXIO => Ok(None),
            Err(status) => Err(NfsError::Status { action: SEEK, status }),
        }
    }

    /// Copies a range on the server.
    pub async fn copy(
        &self,
        from: (&FileHandle, u64),
        to: (&FileHandle, u64),
        count: u64,
        options: CallOptions,
    ) -> Result<CopyResult, NfsError> {
        self.require_4_2(COPY)?;
        let mut compound = Compound::new(COPY);
        compound.at(from.0).op(op::SAVEFH);
        let message = compound.at(to.0).modifying_op(op::COPY);
        stateid(message, StateId::ANONYMOUS);
        stateid(message, StateId::ANONYMOUS);
        message.u64(from.1).u64(to.1).u64(count);
        // Consecutive, synchronous, from no other server.
        message.boolean(true).boolean(true).u32(0);
        let mut reply = self.call(options, &compound).await?;
        for before in [op::PUTFH, op::SAVEFH, op::PUTFH, op::COPY] {
            reply.op(before)?;
        }
        let result = decode_copy(&mut reply)?;
        if result.count > count {
            return Err(reply.protocol_error(format!("{} bytes copied of {count}", result.count)));
        }
        if let Some(callback_id) = result.callback_id {
            return self.wait_for_copy(to.0, callback_id, count, options).await;
        }
        Ok(CopyResult {
            count: result.count,
            stable: result.committed != UNSTABLE,
            verifier: Some(result.verifier),
        })
    }

    /// Waits for an asynchronous copy until the deadline, then cancels it.
    async fn wait_for_copy(
        &self,
        to: &FileHandle,
        copy: StateId,
        requested: u64,
        options: CallOptions,
    ) -> Result<CopyResult, NfsError> {
        let mut pause = Backoff::new();
        let began = Instant::now();
        while pause.pause_before(options.deadline).await {
            let mut compound = Compound::new(COPY);
            stateid(compound.at(to).op(op::OFFLOAD_STATUS), copy);
            let mut reply = self.call(options, &compound).await?;
            reply.op(op::PUTFH)?;
            reply.op(op::OFFLOAD_STATUS)?;
            match decode_offload_status(&mut reply)? {
                (count, _) if count > requested => {
                    return Err(reply.protocol_error(format!("{count} bytes copied of {requested}")));
                }
                (_, None) => {}
                (count, Some(code::OK)) => {
                    return Ok(CopyResult {
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
        // If this fails, the copy runs to its end; copying again writes the same bytes.
        let _ = self.call(options, &compound).await;
        Err(NfsError::NotResponding {
            action: COPY,
            after: began.elapsed(),
            outcome_unknown: true,
        })
    }

    /// Makes a file share all blocks of another.
    pub async fn clone_file(&self, from: &FileHandle, to: &FileHandle, options: CallOptions) -> Result<(), NfsError> {
        self.require_4_2(CLONE)?;
        let mut compound = Compound::new(CLONE);
        compound.at(from).op(op::SAVEFH);
        let message = compound.at(to).modifying_op(op::CLONE);
        stateid(message, StateId::ANONYMOUS);
        stateid(message, StateId::ANONYMOUS);
        // The whole file.
        message.u64(0).u64(0).u64(0);
        let mut reply = self.call(options, &compound).await?;
        for before in [op::PUTFH, op::SAVEFH, op::PUTFH, op::CLONE] {
            reply.op(before)?;
        }
        Ok(())
    }
}
