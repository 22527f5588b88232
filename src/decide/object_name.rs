//! Names of Kubernetes objects.

/// Maximum length of an object name, in bytes.
const MAX_LENGTH: usize = 253;

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
