//! READDIR and READDIRPLUS (RFC 1813 sections 3.3.16 and 3.3.17).

use nfs_client::wire::Encoder;

use super::attributes;
use crate::nfs_server::exports::{Place, Target};
use crate::nfs_server::state::State;
use crate::nfs_server::status::{NfsResult, NfsStat};

/// Bytes of the results besides the entries: attributes of the directory, verifier, end.
const HEADERS: usize = 112;

/// Encodes a page after its directory's attributes. `.` and `..` come first, with the cookies 1 and 2.
pub fn page(
    state: &State,
    target: &Target,
    (cookie, verifier): (u64, [u8; 8]),
    max_size: u32,
    plus: bool,
) -> NfsResult<Vec<u8>> {
    let disk = state.namespace.disk(&target.place.disk)?;
    let directory = disk.check_list(&target.caller, target.place.ino)?;
    let current = if disk.options().strict_cookies {
        disk.inode(target.place.ino)?.change.to_be_bytes()
    } else {
        [0; 8]
    };
    if cookie != 0 && verifier != current {
        return Err(NfsStat::BAD_COOKIE);
    }
    let dots = [(1, &b"."[..], target.place.ino), (2, &b".."[..], directory.parent)];
    let dots = dots.into_iter().filter(|(dot, ..)| *dot > cookie);
    let entries = directory.after(cookie.max(2));
    let entries = entries.map(|(cookie, entry)| (cookie, entry.name.as_ref(), entry.ino));
    let most = (max_size as usize)
        .min(state.options.max_transfer as usize)
        .saturating_sub(HEADERS);
    let mut page = Encoder::new();
    page.fixed(&current);
    let (mut is_full, mut is_empty) = (false, true);
    for (cookie, name, ino) in dots.chain(entries) {
        let mut entry = Encoder::new();
        entry.boolean(true).u64(ino).opaque(name).u64(cookie);
        if plus {
            let place = Place {
                disk: target.place.disk.clone(),
                ino,
            };
            let node = state.namespace.node(target.export, &place)?;
            attributes::write_optional(state, &state.namespace.place(node)?, &mut entry);
            attributes::write_handle(node, &mut entry);
        }
        if page.encoded_len() + entry.encoded_len() > most {
            is_full = true;
            break;
        }
        page.raw(entry.as_bytes());
        is_empty = false;
    }
    if is_full && is_empty {
        return Err(NfsStat::TOOSMALL);
    }
    page.boolean(false).boolean(!is_full);
    Ok(page.into_bytes())
}
