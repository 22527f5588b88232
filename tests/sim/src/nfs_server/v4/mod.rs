//! NFSv4.0, 4.1 and 4.2 (RFC 7530, RFC 8881, RFC 7862): compounds, clients, sessions with a reply cache, opens.

mod arguments;
mod attributes;
mod clients;
mod compound;
mod copy_offload;
mod files;
mod names;
mod registration;
mod sessions;

pub use clients::ClientTable;
pub use compound::Compound;
