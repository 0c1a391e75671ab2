//! Certificate authorities of a test's own, and who has a certificate of one.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyPair, date_time_ymd,
};

/// A certificate authority.
pub struct Ca {
    issuer: Issuer<'static, KeyPair>,
    file: PathBuf,
}

/// A certificate and its key, as files.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The certificate (PEM).
    pub certificate: PathBuf,
    /// Its key (PEM).
    pub key: PathBuf,
}

/// What a certificate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// A daemon of these names and addresses.
    Server(&'static [&'static str]),
    /// An operator.
    Client,
    /// An operator whose certificate has expired.
    Expired,
}

impl Ca {
    /// Makes one, with its files in a folder.
    pub fn new(dir: &Path, name: &str) -> Self {
        let mut params = params(name, &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("make a key");
        let file = dir.join(format!("{name}.pem"));
        fs::write(&file, params.self_signed(&key).expect("sign").pem()).expect("write the CA");
        Self { issuer: Issuer::new(params, key), file }
    }

    /// Its certificate (PEM).
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Issues a certificate with that common name.
    pub fn issue(&self, name: &str, usage: Use) -> Identity {
        let mut params = params(name, if let Use::Server(names) = usage { names } else { &[] });
        params.extended_key_usages = vec![match usage {
            Use::Server(_) => ExtendedKeyUsagePurpose::ServerAuth,
            Use::Client | Use::Expired => ExtendedKeyUsagePurpose::ClientAuth,
        }];
        if usage == Use::Expired {
            (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
        }
        let key = KeyPair::generate().expect("make a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("sign");
        Identity::write(&self.file, &certificate, &key)
    }
}

impl Identity {
    fn write(ca: &Path, certificate: &Certificate, key: &KeyPair) -> Self {
        let unused = |n: &u32| !ca.with_extension(format!("{n}.pem")).exists();
        let number = (0..).find(unused).expect("there is always a next number");
        let identity = Self {
            certificate: ca.with_extension(format!("{number}.pem")),
            key: ca.with_extension(format!("{number}.key")),
        };
        fs::write(&identity.certificate, certificate.pem()).expect("write a certificate");
        fs::write(&identity.key, key.serialize_pem()).expect("write a key");
        fs::set_permissions(&identity.key, fs::Permissions::from_mode(0o600)).expect("keep it private");
        identity
    }
}

fn params(name: &str, alternative: &[&str]) -> CertificateParams {
    let alternative: Vec<String> = alternative.iter().map(|&name| name.to_owned()).collect();
    let mut params = CertificateParams::new(alternative).expect("names and addresses");
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}
