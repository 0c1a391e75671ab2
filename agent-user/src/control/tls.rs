//! Certificates and keys, read from PEM files. Errors name the file and the remedy.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, ensure};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use tracing::warn;

use crate::config::Remote;

/// The only application protocol spoken.
pub(super) const PROTOCOL: &[u8] = b"http/1.1";

/// What the endpoint is and whom it believes. TLS 1.2 and 1.3.
pub(super) fn server(files: &Remote) -> Result<Arc<ServerConfig>> {
    warn_if_shared(&files.key);
    let roots = Arc::new(roots(&files.client_ca)?);
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider()).build()?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_single_cert(certificates(&files.certificate)?, key(&files.key)?)
        .with_context(|| pair(&files.certificate, &files.key))?;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    // A resumed session would not be verified again: not against the clock, nor against a CA that was replaced since.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// What a certificate and a key that cannot be used together are called in an error.
pub(super) fn pair(certificate: &Path, key: &Path) -> String {
    format!("certificate {} with key {} (they must belong together)", certificate.display(), key.display())
}

/// The certificates of a file, at least one.
pub(super) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let certificates = read.map_err(|error| explain(path, error, "a certificate"))?;
    ensure!(!certificates.is_empty(), explain(path, pem::Error::NoItemsFound, "a certificate"));
    Ok(certificates)
}

/// The private key in a file.
pub(super) fn key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| explain(path, error, "a private key"))
}

/// The CAs in a file.
pub(super) fn roots(path: &Path) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).with_context(|| format!("{}: a CA in it cannot be used", path.display()))?;
    }
    Ok(roots)
}

fn explain(path: &Path, error: pem::Error, what: &str) -> anyhow::Error {
    match error {
        pem::Error::Io(error) => anyhow!("read {}: {error}", path.display()),
        pem::Error::NoItemsFound => {
            anyhow!("{}: {what} in PEM form (`-----BEGIN …-----`) is expected in it", path.display())
        }
        error => anyhow!("{}: not PEM: {error}", path.display()),
    }
}

fn warn_if_shared(key: &Path) {
    if let Ok(metadata) = std::fs::metadata(key)
        && metadata.mode() & 0o077 != 0
    {
        warn!(key = %key.display(), mode = format!("{:o}", metadata.mode() & 0o7777), "others than its owner may read the private key (chmod 600)");
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rcgen::KeyPair;

    use super::*;

    #[track_caller]
    fn check_error(files: &Remote, expect: &[&str]) {
        let error = format!("{:#}", server(files).unwrap_err());
        assert!(expect.iter().all(|part| error.contains(part)), "{error}");
    }

    #[test]
    fn files_that_cannot_be_used_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let key = KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::default().self_signed(&key).unwrap();
        fs::write(path("me.pem"), certificate.pem()).unwrap();
        fs::write(path("me.key"), key.serialize_pem()).unwrap();
        fs::write(path("other.key"), KeyPair::generate().unwrap().serialize_pem()).unwrap();
        fs::write(path("broken.pem"), "-----BEGIN CERTIFICATE-----\n!\n").unwrap();
        let good = Remote {
            listen: "[::]:0".parse().unwrap(),
            certificate: path("me.pem"),
            key: path("me.key"),
            client_ca: path("me.pem"),
        };
        server(&good).unwrap();
        check_error(&Remote { certificate: path("none.pem"), ..good.clone() }, &["none.pem", "No such file"]);
        check_error(&Remote { certificate: path("me.key"), ..good.clone() }, &["me.key", "a certificate"]);
        check_error(&Remote { client_ca: path("broken.pem"), ..good.clone() }, &["broken.pem"]);
        check_error(&Remote { key: path("me.pem"), ..good.clone() }, &["me.pem", "a private key"]);
        check_error(&Remote { key: path("other.key"), ..good }, &["other.key", "belong together"]);
    }
}
