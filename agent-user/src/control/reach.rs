//! The way to a daemon on another machine, for the command line: TLS, with the operator's certificate.
//!
//! What goes wrong here goes wrong on a bad day: each error names the file or address at fault, and the remedy.

use std::error::Error as StdError;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use hyper::Uri;
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError, ClientConfig, Error as TlsError};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::tls;

/// Time to reach the daemon, and for the handshake.
const WITHIN: Duration = Duration::from_secs(5);
/// Port of a URL without one.
const PORT: u16 = 9465;

/// A daemon on another machine, and who asks.
#[derive(Clone, Debug)]
pub struct Remote {
    host: String,
    port: u16,
    /// The CA of the daemon's certificate.
    pub ca: PathBuf,
    /// The operator's certificate.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

impl Remote {
    /// The daemon at `https://HOST[:PORT]`.
    pub fn parse(url: &str, ca: PathBuf, certificate: PathBuf, key: PathBuf) -> Result<Remote> {
        let (host, port) = parse(url)?;
        Ok(Remote { host, port, ca, certificate, key })
    }

    /// Connects, and makes sure that it is the daemon.
    pub(super) async fn connect(&self) -> Result<TlsStream<TcpStream>> {
        let config = self.config()?;
        let name = ServerName::try_from(self.host.clone())
            .with_context(|| format!("--remote: {:?} is no name of a host", self.host))?;
        let address = format!("{} port {}", self.host, self.port);
        let stream = timeout(WITHIN, TcpStream::connect((&*self.host, self.port))).await;
        let stream = stream.map_err(|_| anyhow!("no answer within {} s", WITHIN.as_secs()));
        let stream = stream.and_then(|stream| Ok(stream?)).with_context(|| {
            format!("{address}: not reached (is `remote:` in the daemon's configuration, and the port open?)")
        })?;
        let stream = timeout(WITHIN, TlsConnector::from(config).connect(name, stream)).await;
        let stream =
            stream.with_context(|| format!("{address}: no TLS handshake within {} s", WITHIN.as_secs()))?;
        stream.map_err(|error| self.explain(error.into()))
    }

    fn config(&self) -> Result<Arc<ClientConfig>> {
        let mut config = ClientConfig::builder_with_provider(tls::provider())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(tls::roots(&self.ca).context("--ca")?)
            .with_client_auth_cert(
                tls::certificates(&self.certificate).context("--cert")?,
                tls::key(&self.key).context("--key")?,
            )
            .with_context(|| tls::pair(&self.certificate, &self.key))?;
        config.alpn_protocols = vec![tls::PROTOCOL.to_vec()];
        Ok(Arc::new(config))
    }

    /// Says what a failure of the connection means for the operator.
    pub(super) fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        let known = error.chain().find_map(tls_error).and_then(|error| self.remedy(error));
        match known {
            Some(remedy) => anyhow!(remedy),
            None => error.context(format!("{} port {}", self.host, self.port)),
        }
    }

    fn remedy(&self, error: &TlsError) -> Option<String> {
        let Remote { host, ca, certificate, .. } = self;
        let (ca, certificate) = (ca.display(), certificate.display());
        let text = match error {
            TlsError::InvalidCertificate(fault) => match fault {
                CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                    format!(
                        "the certificate of {host} is of another CA than {ca}; give the daemon's CA with --ca"
                    )
                }
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                    format!(
                        "the certificate of {host} has expired; give its daemon another (`remote.certificate`) and send it SIGHUP"
                    )
                }
                CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                    format!("the certificate of {host} is not valid yet; compare the clocks")
                }
                CertificateError::NotValidForName => {
                    format!("the certificate shown is not for {host}; use a name it is for in --remote")
                }
                CertificateError::NotValidForNameContext { presented, .. } => format!(
                    "the certificate shown is not for {host} but for {}; use that in --remote",
                    if presented.is_empty() { "nobody".to_owned() } else { presented.join(", ") }
                ),
                _ => return None,
            },
            TlsError::AlertReceived(alert) => {
                let why = match alert {
                    AlertDescription::UnknownCA => {
                        "it is of a CA that is not in the daemon's `remote.client_ca`"
                    }
                    AlertDescription::CertificateExpired => "it has expired, or is not valid yet",
                    AlertDescription::CertificateRevoked => "it was revoked",
                    AlertDescription::BadCertificate
                    | AlertDescription::CertificateUnknown
                    | AlertDescription::UnsupportedCertificate
                    | AlertDescription::AccessDenied
                    | AlertDescription::DecryptError => "it is not one for a TLS client",
                    _ => return None,
                };
                format!("{host} refuses certificate {certificate}: {why}; give another with --cert and --key")
            }
            TlsError::InvalidMessage(_) => {
                format!("{host} port {} does not speak TLS; is it the daemon's `remote.listen`?", self.port)
            }
            _ => return None,
        };
        Some(text)
    }
}

fn tls_error<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a TlsError> {
    if let Some(error) = error.downcast_ref::<TlsError>() {
        return Some(error);
    }
    // `io::Error` does not show what it wraps as its source.
    let error = error.downcast_ref::<std::io::Error>()?;
    error.get_ref()?.downcast_ref::<TlsError>()
}

fn parse(url: &str) -> Result<(String, u16)> {
    let shape = || format!("--remote {url:?}: give https://HOST or https://HOST:PORT");
    let uri: Uri = url.parse().with_context(shape)?;
    ensure!(uri.scheme_str() == Some("https") && uri.path() == "/" && uri.query().is_none(), shape());
    let Some(authority) = uri.authority().filter(|authority| !authority.as_str().contains('@')) else {
        bail!(shape())
    };
    let port = authority.port_u16();
    // A port that is there and cannot be read is not the default one.
    ensure!(port.is_some() || authority.as_str() == authority.host(), shape());
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    ensure!(!host.is_empty(), shape());
    Ok((host.to_owned(), port.unwrap_or(PORT)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(url: &str, expect: Option<(&str, u16)>) {
        let parsed = parse(url);
        assert_eq!(parsed.as_ref().ok().map(|(host, port)| (&**host, *port)), expect, "{parsed:?}");
    }

    #[test]
    fn url_names_a_host_and_nothing_else() {
        check("https://gate.ops.example:9465", Some(("gate.ops.example", 9465)));
        check("https://gate.ops.example/", Some(("gate.ops.example", PORT)));
        check("https://10.0.0.5:1", Some(("10.0.0.5", 1)));
        check("https://[fd00::5]:1", Some(("fd00::5", 1)));
        check("https://[fd00::5]", Some(("fd00::5", PORT)));
        for bad in [
            "gate:9465",
            "http://gate",
            "https://",
            "https://gate:70000",
            "https://me@gate",
            "https://gate/v1",
            "",
        ] {
            check(bad, None);
        }
    }

    #[test]
    fn failures_are_told_with_their_remedy() {
        let remote =
            Remote::parse("https://gate", "ca.pem".into(), "me.pem".into(), "me.key".into()).unwrap();
        let tell = |error: TlsError| {
            let error = std::io::Error::new(std::io::ErrorKind::InvalidData, error);
            format!("{:#}", remote.explain(anyhow::Error::from(error).context("outer")))
        };
        let wrong_ca = tell(TlsError::InvalidCertificate(CertificateError::UnknownIssuer));
        assert!(wrong_ca.contains("ca.pem") && wrong_ca.contains("--ca"), "{wrong_ca}");
        let name = tell(TlsError::InvalidCertificate(CertificateError::NotValidForName));
        assert!(name.contains("not for gate"), "{name}");
        let expired = tell(TlsError::InvalidCertificate(CertificateError::Expired));
        assert!(expired.contains("gate has expired") && expired.contains("SIGHUP"), "{expired}");
        let refused = tell(TlsError::AlertReceived(AlertDescription::UnknownCA));
        assert!(refused.contains("me.pem") && refused.contains("client_ca"), "{refused}");
        let other = tell(TlsError::AlertReceived(AlertDescription::InternalError));
        assert!(other.contains("gate port 9465") && other.contains("InternalError"), "{other}");
    }
}
