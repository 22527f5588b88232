//! Addresses of exports in text, and the checks that every server name and path passes before it is used.

use std::fmt;
use std::net::IpAddr;
use std::net::Ipv6Addr;

use crate::{Name, NameError};

/// Maximum length of a DNS name in text, in bytes (RFC 1035 section 2.3.4, without the final dot).
const MAX_DNS_NAME: usize = 253;
/// Maximum length of a label of a DNS name, in bytes (RFC 1035 section 2.3.4).
const MAX_DNS_LABEL: usize = 63;
/// Maximum length of the path of an export, in bytes (`MNTPATHLEN`, RFC 1813 section 5.1.2).
const MAX_EXPORT_PATH: usize = 1024;

/// `SERVER:/PATH`, both checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportAddress {
    /// A DNS name, or an address without brackets.
    pub server: String,
    /// The absolute path.
    pub path: String,
}

/// Why text is not a valid address of an export.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// Not `SERVER:/PATH`.
    #[error("expected SERVER:/PATH, with an IPv6 address in brackets")]
    Form,
    /// Neither a DNS name nor an address.
    #[error("{0} is neither a DNS name nor an IP address")]
    Server(String),
    /// The path is not absolute.
    #[error("path {0} is not absolute; start it with `/`")]
    Relative(String),
    /// A component is not a valid name.
    #[error("path {path} has an invalid component {component}: {why}")]
    Component {
        /// The path, shortened.
        path: String,
        /// The component, shortened.
        component: String,
        /// The rule that it breaks.
        why: NameError,
    },
    /// The path contains a line break or another control character.
    #[error("path {0} contains a control character")]
    Control(String),
    /// The path is longer than servers accept.
    #[error("the path is {0} bytes long; the maximum is {MAX_EXPORT_PATH}")]
    TooLong(usize),
}

impl ExportAddress {
    /// Parses `SERVER:/PATH`, an IPv6 address in brackets.
    ///
    /// # Errors
    /// The first rule that the text breaks.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        let (server, path) = text.split_once(":/").ok_or(AddressError::Form)?;
        let bracketed = server.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        if bracketed.is_some_and(|inner| inner.parse::<Ipv6Addr>().is_err()) {
            return Err(AddressError::Server(quoted(server)));
        }
        let (server, path) = (bracketed.unwrap_or(server), format!("/{path}"));
        check_server(server)?;
        path_components(&path)?;
        Ok(Self {
            server: server.to_owned(),
            path,
        })
    }
}

impl fmt::Display for ExportAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.server.contains(':') {
            true => write!(f, "[{}]:{}", self.server, self.path),
            false => write!(f, "{}:{}", self.server, self.path),
        }
    }
}

/// Checks that `server` is a DNS name or an IP address without brackets.
///
/// # Errors
/// [`AddressError::Server`].
pub fn check_server(server: &str) -> Result<(), AddressError> {
    let name = server.strip_suffix('.').unwrap_or(server);
    let is_name = name.len() <= MAX_DNS_NAME && name.split('.').all(is_label);
    match server.parse::<IpAddr>().is_ok() || is_name {
        true => Ok(()),
        false => Err(AddressError::Server(quoted(server))),
    }
}

/// Whether this is a label of a DNS name. Accepts `_`, which host names must not contain (RFC 952), but some do.
fn is_label(label: &str) -> bool {
    let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = label.as_bytes();
    edge(bytes.first())
        && edge(bytes.last())
        && bytes.len() <= MAX_DNS_LABEL
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

/// Returns the components of an export's path; none for `/`.
///
/// # Errors
/// The first rule that the path breaks.
pub fn path_components(path: &str) -> Result<Vec<Name>, AddressError> {
    if path.len() > MAX_EXPORT_PATH {
        return Err(AddressError::TooLong(path.len()));
    }
    let below = path
        .strip_prefix('/')
        .ok_or_else(|| AddressError::Relative(quoted(path)))?;
    if below.is_empty() {
        return Ok(Vec::new());
    }
    if path.chars().any(char::is_control) {
        return Err(AddressError::Control(quoted(path)));
    }
    let name = |component: &str| {
        Name::new(component.as_bytes().to_vec()).map_err(|why| AddressError::Component {
            path: quoted(path),
            component: quoted(component),
            why,
        })
    };
    below.split('/').map(name).collect()
}

/// Maximum length of text that an error repeats, in bytes.
const MAX_QUOTE: usize = 80;

/// Returns text for an error message, escaped and bounded.
fn quoted(text: &str) -> String {
    let end = text.floor_char_boundary(MAX_QUOTE);
    match text.get(..end) {
        Some(start) if end < text.len() => format!("{start:?}…"),
        _ => format!("{text:?}"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_people_write_them() {
        for (text, server, path) in [
            ("nfs.example.org:/export", "nfs.example.org", "/export"),
            ("10.0.0.1:/", "10.0.0.1", "/"),
            ("[fe80::1]:/a/b", "fe80::1", "/a/b"),
            ("nfs_1:/caf\u{e9} with space", "nfs_1", "/caf\u{e9} with space"),
        ] {
            let address = ExportAddress::parse(text).unwrap();
            assert_eq!((address.server.as_str(), address.path.as_str()), (server, path));
            assert_eq!(address.to_string(), text);
        }
        assert_eq!(check_server("nfs.example.org."), Ok(()));
        assert_eq!(path_components("/a/b").unwrap().len(), 2);
        assert_eq!(path_components("/").unwrap().len(), 0);
    }

    #[test]
    fn what_is_too_long_is_refused() {
        assert!(check_server(&"a".repeat(64)).is_err());
        assert!(check_server(&["a"; 130].join(".")).is_err());
        assert!(path_components(&format!("/{}", "a".repeat(256))).is_err());
        let longest = format!(
            "/{}",
            ["a".repeat(255), "b".repeat(255), "c".repeat(255), "d".repeat(255)].join("/")
        );
        assert!(path_components(&longest).is_ok());
        assert_eq!(
            path_components(&format!("{longest}/x")),
            Err(AddressError::TooLong(1026))
        );
    }
}
