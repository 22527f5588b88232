//! Kubeconfig files.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use crate::{
    error::{Result, ResultExt},
    pki::CertificateFiles,
};

/// The credentials of a kubeconfig.
pub(super) enum User<'a> {
    /// A client certificate.
    Certificate(&'a CertificateFiles),
    /// A bearer token.
    Token(&'a str),
}

/// Writes a kubeconfig as JSON, which is valid YAML, and returns its path.
pub(super) fn write(
    path: PathBuf,
    server: &str,
    authority: &Path,
    user: &User<'_>,
    namespace: &str,
) -> Result<PathBuf> {
    let credentials = match user {
        User::Certificate(identity) => json!({
            "client-certificate": identity.certificate,
            "client-key": identity.key,
        }),
        User::Token(token) => json!({ "token": token }),
    };
    let config: Value = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "rig", "cluster": { "server": server, "certificate-authority": authority } }],
        "users": [{ "name": "rig", "user": credentials }],
        "contexts": [{ "name": "rig", "context": { "cluster": "rig", "user": "rig", "namespace": namespace } }],
        "current-context": "rig",
    });
    fs::write(&path, format!("{config:#}\n")).with_context(|| format!("write {}", path.display()))?;
    Ok(path)
}
