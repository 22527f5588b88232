//! The throw-away certificate authority of one cluster.

use std::{
    fs,
    path::{Path, PathBuf},
};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

use crate::error::{Result, ResultExt};

/// Names and addresses under which the API server is asked for, by programs here and by pods.
const SERVER_NAMES: [&str; 7] = [
    "127.0.0.1",
    // The node's own address in an enclosure.
    "192.0.2.10",
    "localhost",
    "10.96.0.1",
    "kubernetes",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];

/// The authority, and the folder that its files are in.
#[derive(Debug)]
pub(crate) struct CertificateAuthority {
    folder: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, as files.
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
        let accounts = KeyPair::generate()?;
        write(&folder.join("accounts.key"), &accounts.serialize_pem())?;
        write(&folder.join("accounts.pub"), &accounts.public_key_pem())?;
        Ok(Self {
            folder,
            issuer: Issuer::new(params, key),
        })
    }

    /// The authority's own certificate and key.
    pub(crate) fn ca(&self) -> CertificateFiles {
        CertificateFiles {
            certificate: self.folder.join("ca.crt"),
            key: self.folder.join("ca.key"),
        }
    }

    /// The key that signs ServiceAccount tokens, and its public half.
    pub(crate) fn accounts(&self) -> CertificateFiles {
        CertificateFiles {
            certificate: self.folder.join("accounts.pub"),
            key: self.folder.join("accounts.key"),
        }
    }

    /// The API server's own certificate.
    pub(crate) fn server(&self) -> Result<CertificateFiles> {
        let mut params = CertificateParams::new(SERVER_NAMES.map(String::from).to_vec())?;
        params.distinguished_name.push(DnType::CommonName, "kube-apiserver");
        self.sign("server", params, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// A certificate for the API server's client of that user name and group.
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
