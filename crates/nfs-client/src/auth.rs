//! Authentication of RPC calls (RFC 5531 section 8): encodes the credential and verifier of each call and checks the
//! verifier of its reply.
//!
//! AUTH_SYS is the only flavor today. Another flavor, such as RPCSEC_GSS (RFC 2203), is a variant of [`Auth`] for what
//! a call carries and a variant of [`ReplyVerifier`] for what its reply must carry.

use std::sync::Arc;

use crate::Credential;
use crate::xdr::{Decoder, Encoder, XdrError};

/// AUTH_NONE (RFC 5531 section 8.2).
pub const AUTH_NONE: u32 = 0;
/// AUTH_SYS (RFC 5531 appendix A).
pub const AUTH_SYS: u32 = 1;

/// Maximum length of the body of a credential or verifier, in bytes (RFC 5531 section 8.2).
const MAX_BODY: usize = 400;

/// Maximum length of the machine name in AUTH_SYS, in bytes (RFC 5531 appendix A).
const MAX_MACHINE_NAME: usize = 255;

/// How the calls on a connection are authenticated.
#[derive(Debug, Clone)]
pub enum Auth {
    /// AUTH_SYS: the server believes the uid and gid in each call.
    Sys {
        /// Name of this machine, for the server's information.
        machine_name: Arc<str>,
    },
}

/// What the verifier of the reply to one call must satisfy.
#[derive(Debug, Clone, Copy)]
pub enum ReplyVerifier {
    /// The call carried AUTH_SYS.
    Sys,
}

impl Auth {
    /// Returns AUTH_SYS with this machine name, of which servers accept the first 255 bytes.
    pub fn sys(machine_name: &str) -> Self {
        let end = machine_name.floor_char_boundary(MAX_MACHINE_NAME);
        Self::Sys {
            machine_name: machine_name.get(..end).unwrap_or_default().into(),
        }
    }

    /// Appends the credential and the verifier of a call; returns the check for its reply.
    pub fn encode(&self, credential: Credential, call: &mut Encoder) -> ReplyVerifier {
        match self {
            Self::Sys { machine_name } => {
                let mut body = Encoder::new();
                let Credential {
                    uid,
                    gid,
                    supplementary,
                } = credential;
                // After the stamp, which means nothing here.
                body.u32(0).opaque(machine_name.as_bytes()).u32(uid).u32(gid);
                match supplementary {
                    Some(group) => body.u32(1).u32(group),
                    None => body.u32(0),
                };
                call.u32(AUTH_SYS).opaque(body.as_bytes());
                call.u32(AUTH_NONE).u32(0);
                ReplyVerifier::Sys
            }
        }
    }
}

impl ReplyVerifier {
    /// Takes the verifier off an accepted reply and checks it.
    ///
    /// A server answers AUTH_SYS with AUTH_NONE, or with AUTH_SHORT (RFC 5531 appendix A), which this client does not
    /// use. The check is lenient: any flavor passes, because nothing in the verifier of such a reply proves anything,
    /// and refusing the reply to a change would only leave its outcome unknown. The body is bounded.
    pub fn check(self, reply: &mut Decoder) -> Result<(), XdrError> {
        match self {
            Self::Sys => {
                reply.u32("verifier flavor")?;
                reply.opaque("verifier", MAX_BODY).map(drop)
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn auth_sys_carries_the_machine_name_and_the_ids() {
        for (supplementary, groups) in [(None, &[0][..]), (Some(9), &[1, 9])] {
            let mut call = Encoder::new();
            let credential = Credential {
                uid: 7,
                gid: 8,
                supplementary,
            };
            Auth::sys("host").encode(credential, &mut call);
            let mut expected = Encoder::new();
            let length = 20 + 4 * groups.len() as u32;
            expected.u32(AUTH_SYS).u32(length).u32(0).opaque(b"host").u32(7).u32(8);
            for word in groups {
                expected.u32(*word);
            }
            expected.u32(AUTH_NONE).u32(0);
            assert_eq!(call.as_bytes(), expected.as_bytes());
        }
    }

    #[test]
    fn a_long_machine_name_is_cut_at_a_character() {
        let Auth::Sys { machine_name } = Auth::sys(&"\u{e9}".repeat(200));
        assert_eq!(machine_name.len(), 254);
    }

    #[test]
    fn a_reply_verifier_is_taken_off_within_bounds() {
        let check = |flavor: u32, body: &[u8]| {
            let mut reply = Encoder::new();
            reply.u32(flavor).opaque(body).u32(42);
            let mut reply = Decoder::new(reply.into_bytes().into());
            ReplyVerifier::Sys.check(&mut reply).map(|()| reply.u32("").unwrap())
        };
        assert_eq!(check(AUTH_NONE, b""), Ok(42));
        // AUTH_SHORT.
        assert_eq!(check(2, b"short"), Ok(42));
        assert_eq!(check(AUTH_NONE, &[0; MAX_BODY]), Ok(42));
        assert!(check(AUTH_NONE, &[0; MAX_BODY + 1]).is_err());
    }
}
