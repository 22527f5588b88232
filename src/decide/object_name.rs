//! Names of Kubernetes objects, and of provisioners.

/// Maximum length of an object name, in bytes.
const MAX_LENGTH: usize = 253;
/// Maximum length of a provisioner name behind its prefix, in bytes.
const MAX_QUALIFIED_LENGTH: usize = 63;

/// Reports whether a text is a valid DNS subdomain name (RFC 1123), as most objects have. A name that a tenant wrote where
/// the API server accepts any text must pass this before it becomes part of a request path.
pub fn is_object_name(text: &str) -> bool {
    let label = |label: &str| {
        let edge = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        let all = label
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
        all && edge(label.as_bytes().first()) && edge(label.as_bytes().last())
    };
    text.len() <= MAX_LENGTH && text.split('.').all(label)
}

/// Reports whether a StorageClass can have this provisioner: the API server accepts a qualified name, whose prefix may contain
/// capital letters. Other texts could end an alias or begin another one where they are listed (`NAME=BACKEND,…`).
pub fn is_provisioner_name(text: &str) -> bool {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    let is_edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = name.as_bytes();
    prefix.is_none_or(|prefix| is_object_name(&prefix.to_ascii_lowercase()))
        && bytes.len() <= MAX_QUALIFIED_LENGTH
        && is_edge(bytes.first())
        && is_edge(bytes.last())
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}
