//! The certificate authority of one test cluster.

use std::{
    fs,
    path::{Path, PathBuf},
};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

use crate::error::{Result, ResultExt};

/// Names and addresses of the API server, as programs on this machine and pods use them.
const SERVER_NAMES: [&str; 7] = [
    "127.0.0.1",
    // The node's address in a sandbox.
    "192.0.2.10",
    "localhost",
    "10.96.0.1",
    "kubernetes",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];

/// A certificate authority and the directory of its files.
#[derive(Debug)]
pub(crate) struct CertificateAuthority {
    folder: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

/// The files of a certificate and its key.
#[derive(Clone, Debug)]
pub(crate) struct CertificateFiles {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl CertificateAuthority {
    pub(crate) fn new(folder: PathBuf) -> Result<Self> {
        let mut params = CertificateParams::new(Vec::new())?;
        params
            .distinguished_name
            .push(DnType::CommonName, "nfs-operator test cluster");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate()?;
        write(&folder.join("ca.crt"), &params.self_signed(&key)?.pem())?;
        write(&folder.join("ca.key"), &key.serialize_pem())?;
        let service_accounts = KeyPair::generate()?;
        write(&folder.join("accounts.key"), &service_accounts.serialize_pem())?;
        write(&folder.join("accounts.pub"), &service_accounts.public_key_pem())?;
        Ok(Self {
            folder,
            issuer: Issuer::new(params, key),
        })
    }

    /// Returns the authority's own certificate and key.
    pub(crate) fn ca(&self) -> CertificateFiles {
        CertificateFiles {
            certificate: self.folder.join("ca.crt"),
            key: self.folder.join("ca.key"),
        }
    }

    /// Returns the key pair that signs ServiceAccount tokens.
    pub(crate) fn service_account_keys(&self) -> CertificateFiles {
        CertificateFiles {
            certificate: self.folder.join("accounts.pub"),
            key: self.folder.join("accounts.key"),
        }
    }

    /// Creates the API server's certificate.
    pub(crate) fn server(&self) -> Result<CertificateFiles> {
        let mut params = CertificateParams::new(SERVER_NAMES.map(String::from).to_vec())?;
        params.distinguished_name.push(DnType::CommonName, "kube-apiserver");
        self.sign("server", params, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// Creates a client certificate for a user and an optional group.
    pub(crate) fn client(&self, user: &str, group: Option<&str>) -> Result<CertificateFiles> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, user);
        if let Some(group) = group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        self.sign(&user.replace(':', "-"), params, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn sign(
        &self,
        name: &str,
        mut params: CertificateParams,
        usage: ExtendedKeyUsagePurpose,
    ) -> Result<CertificateFiles> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate()?;
        let identity = CertificateFiles {
            certificate: self.folder.join(format!("{name}.crt")),
            key: self.folder.join(format!("{name}.key")),
        };
        write(&identity.certificate, &params.signed_by(&key, &self.issuer)?.pem())?;
        write(&identity.key, &key.serialize_pem())?;
        Ok(identity)
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}
