//! EXCHANGE_ID and CREATE_SESSION of the scripted server.

use std::collections::HashMap;

use super::{State, result, results};
use crate::v4::constants::{code, op};
use crate::xdr::Decoder;

impl State {
    pub(super) fn exchange_id(&mut self, mut call: Decoder) -> Vec<u8> {
        let verifier: [u8; 8] = call.array("").unwrap();
        let owner = call.opaque("", 1024).unwrap().to_vec();
        let update = call.u32("").unwrap() & 0x4000_0000 != 0;
        let known = self.clients.get(&owner).filter(|(_, _, confirmed)| *confirmed).copied();
        let refused = |status| results(status, &[result(op::EXCHANGE_ID, status, |_| ())]);
        let (id, confirmed) = match known {
            Some((theirs, _, _)) if update && theirs != verifier => return refused(code::NOT_SAME),
            None if update => return refused(2),
            Some((theirs, id, _)) if theirs == verifier => (id, true),
            _ => {
                self.next += 1;
                self.sessions.clear();
                self.clients.insert(owner, (verifier, self.next, false));
                (self.next, false)
            }
        };
        let flags = if confirmed { 0x8000_0000 } else { 0 };
        let body = result(op::EXCHANGE_ID, 0, |message| {
            message
                .u64(id)
                .u32(1)
                .u32(flags)
                .u32(0)
                .u64(0)
                .opaque(b"major")
                .opaque(b"scope")
                .u32(0);
        });
        results(0, &[body])
    }

    pub(super) fn create_session(&mut self, mut call: Decoder) -> Vec<u8> {
        let client = call.u64("").unwrap();
        self.clients
            .values_mut()
            .filter(|(_, id, _)| *id == client)
            .for_each(|known| known.2 = true);
        self.next += 1;
        let mut id = [0; 16];
        id[..8].copy_from_slice(&self.next.to_be_bytes());
        self.sessions.insert(id, HashMap::new());
        let body = result(op::CREATE_SESSION, 0, |message| {
            message.fixed(&id).u32(1).u32(0);
            for _ in 0..2 {
                message.u32(0).u32(1 << 20).u32(1 << 20).u32(2048).u32(16).u32(4).u32(0);
            }
        });
        results(0, &[body])
    }
}
