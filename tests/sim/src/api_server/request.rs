//! Requests: what a path, a query and headers ask for.

use std::collections::BTreeMap;

use super::answer::Refusal;
use super::kinds::Kind;

/// What a request is about.
#[derive(Debug, Clone)]
pub struct Target {
    /// The kind.
    pub kind: &'static Kind,
    /// The namespace; empty for all, and for objects without one.
    pub namespace: String,
    /// The object, or `None` for the collection.
    pub name: Option<String>,
    /// The request is about the status subresource.
    pub status: bool,
}

impl Target {
    /// Parses the path of a request.
    pub fn parse(path: &str) -> Result<Self, Refusal> {
        let unknown = || Refusal::new(404, "", "404 page not found");
        let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (group, version, rest) = match segments.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return Err(unknown()),
        };
        let find = |plural: &str| Kind::find(group, version, plural).ok_or_else(unknown);
        let (kind, namespace, rest) = match rest {
            ["namespaces", namespace, plural, rest @ ..] if *plural != "status" => (find(plural)?, *namespace, rest),
            [plural, rest @ ..] => (find(plural)?, "", rest),
            [] => return Err(unknown()),
        };
        let (name, status) = match rest {
            [] => (None, false),
            [name] => (Some((*name).to_owned()), false),
            [name, "status"] if kind.has_status => (Some((*name).to_owned()), true),
            _ => {
                let message = "the server could not find the requested resource";
                return Err(Refusal::new(404, "NotFound", message));
            }
        };
        Ok(Self {
            kind,
            namespace: namespace.to_owned(),
            name,
            status,
        })
    }
}

/// The parameters of a request.
#[derive(Debug, Clone, Default)]
pub struct Parameters(BTreeMap<String, String>);

impl Parameters {
    /// Parses a query.
    pub fn parse(query: &str) -> Self {
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        Self(pairs.map(|(name, value)| (decode(name), decode(value))).collect())
    }

    /// Returns a parameter that is set and not empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Returns true if a parameter is `true`.
    pub fn is_set(&self, name: &str) -> bool {
        matches!(self.get(name), Some("true" | "1"))
    }

    /// Returns the name that `fieldSelector` selects, if it selects one.
    pub fn selected_name(&self) -> Option<&str> {
        self.get("fieldSelector")?.strip_prefix("metadata.name=")
    }
}

/// Decodes `%xx` and `+`.
fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
        match byte {
            b'+' => bytes.push(b' '),
            b'%' => {
                let (high, low) = (digit(rest.next()), digit(rest.next()));
                let decoded = high.zip(low).and_then(|(high, low)| u8::try_from(high * 16 + low).ok());
                bytes.push(decoded.unwrap_or(b'?'));
            }
            byte => bytes.push(byte),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
