//! Who an operator with a client certificate is. Pure: whether the certificate is to be trusted has been decided by then.
//!
//! The name is what tells two persons apart (`require_two`) and what records show, so it must be one that two readers
//! read alike: what is empty, long, not printable ASCII or there twice is refused, not cleaned up.

use std::fmt::Write as _;
use std::net::SocketAddr;

use x509_cert::Certificate;
use x509_cert::der::asn1::ObjectIdentifier;
use x509_cert::der::{Decode as _, Tag, Tagged as _};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

use crate::decide::stop;
use crate::decide::stop::Operator;
use crate::fingerprint::Digest;

/// Longest name of an operator: what X.509 allows a common name.
const MAX_NAME: usize = 64;
/// How a stop that a rule has made names its maker; no person may be called so.
const RULE: &str = "rule:";
const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");

/// The operator a certificate (DER) is for: the common name of its subject or, where it has none, its first alternative
/// name (an e-mail address, a DNS name or a URI).
pub(super) fn operator(der: &[u8], from: SocketAddr) -> Result<Operator, String> {
    let certificate = Certificate::from_der(der).map_err(|error| format!("client certificate: {error}"))?;
    let name = match common_name(&certificate)? {
        Some(name) => name,
        None => alternative_name(&certificate)?,
    };
    check(&name)?;
    let mut serial = String::new();
    for byte in certificate.tbs_certificate().serial_number().as_bytes() {
        // Writing to a string cannot fail.
        let _ = write!(serial, "{byte:02x}");
    }
    let certificate =
        stop::Certificate { sha256: Digest::of(der).to_string(), serial, from: from.to_string() };
    Ok(Operator { user: name, certificate: Some(certificate), ..Operator::default() })
}

fn common_name(certificate: &Certificate) -> Result<Option<String>, String> {
    let subject = certificate.tbs_certificate().subject();
    let mut names = subject.iter().filter(|attribute| attribute.oid == COMMON_NAME);
    let Some(first) = names.next() else { return Ok(None) };
    if names.next().is_some() {
        return Err("the client certificate's subject has two common names; issue one with one".into());
    }
    if !matches!(first.value.tag(), Tag::Utf8String | Tag::PrintableString) {
        return Err("the client certificate's common name is not UTF-8; issue one whose is".into());
    }
    Ok(Some(String::from_utf8_lossy(first.value.value()).into_owned()))
}

fn alternative_name(certificate: &Certificate) -> Result<String, String> {
    let names = certificate.tbs_certificate().get_extension::<SubjectAltName>();
    let names = names.map_err(|error| format!("client certificate: alternative names: {error}"))?;
    match names.as_ref().and_then(|(_, names)| names.0.first()) {
        Some(
            GeneralName::Rfc822Name(name)
            | GeneralName::DnsName(name)
            | GeneralName::UniformResourceIdentifier(name),
        ) => Ok(name.to_string()),
        _ => Err("the client certificate names nobody; issue one whose subject has a common name".into()),
    }
}

fn check(name: &str) -> Result<(), String> {
    let fault = if name.is_empty() {
        "is empty"
    } else if name.len() > MAX_NAME {
        "is longer than 64 bytes"
    } else if name.trim() != name
        || name.contains("  ")
        || !name.bytes().all(|byte| matches!(byte, b' '..=b'~'))
    {
        "is not plain printable ASCII"
    } else if name.get(..RULE.len()).is_some_and(|start| start.eq_ignore_ascii_case(RULE)) {
        "begins like that of a rule"
    } else {
        return Ok(());
    };
    Err(format!("the name {name:?} of the client certificate {fault}; issue one with another"))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, DnValue, KeyPair, SanType};

    use super::*;

    const FROM: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 7);

    fn named(common_name: Option<&str>, alternative: &[SanType]) -> Result<Operator, String> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        if let Some(name) = common_name {
            params.distinguished_name.push(DnType::CommonName, name);
        }
        params.distinguished_name.push(DnType::OrganizationName, "ops");
        params.subject_alt_names = alternative.to_vec();
        params.serial_number = Some(vec![0x0a, 0xff].into());
        operator(params.self_signed(&KeyPair::generate().unwrap()).unwrap().der(), FROM)
    }

    #[track_caller]
    fn check_refused(result: Result<Operator, String>, expect: &str) {
        let error = result.unwrap_err();
        assert!(error.contains(expect), "{error}");
    }

    #[test]
    fn operator_is_the_common_name_and_the_certificate_can_be_told() {
        let operator = named(Some("Alice Doe"), &[]).unwrap();
        assert_eq!((&*operator.user, operator.uid, operator.pid), ("Alice Doe", None, None));
        let certificate = operator.certificate.unwrap();
        assert_eq!((&*certificate.serial, &*certificate.from), ("0aff", "127.0.0.1:7"));
        assert_eq!(certificate.sha256.len(), "sha256:".len() + 64);
    }

    #[test]
    fn without_a_common_name_it_is_the_first_alternative_one() {
        let mail = SanType::Rfc822Name("alice@example.com".try_into().unwrap());
        let dns = SanType::DnsName("bob.example.com".try_into().unwrap());
        assert_eq!(named(None, &[mail.clone(), dns.clone()]).unwrap().user, "alice@example.com");
        assert_eq!(named(None, &[dns, mail.clone()]).unwrap().user, "bob.example.com");
        let uri = SanType::URI("spiffe://ops.example/dora".try_into().unwrap());
        assert_eq!(named(None, &[uri]).unwrap().user, "spiffe://ops.example/dora");
        assert_eq!(named(Some("carol"), &[mail]).unwrap().user, "carol");
        check_refused(named(None, &[]), "names nobody");
        check_refused(named(None, &[SanType::IpAddress(FROM.ip())]), "names nobody");
    }

    #[test]
    fn names_that_could_be_read_differently_are_refused() {
        for name in ["alice\u{200b}", "ali\u{441}e", "alice ", " alice", "al  ice", "alice\n", "\u{1b}[2J"] {
            check_refused(named(Some(name), &[]), "printable");
        }
        check_refused(named(Some(""), &[]), "empty");
        check_refused(named(Some(&"a".repeat(65)), &[]), "longer");
        check_refused(named(Some("Rule:no-transfers"), &[]), "rule");
        assert!(named(Some(&"a".repeat(64)), &[]).is_ok());
    }

    #[test]
    fn two_common_names_are_none() {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "alice");
        params
            .distinguished_name
            .push(DnType::CustomDnType(vec![2, 5, 4, 3]), DnValue::Utf8String("bob".into()));
        let der = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        check_refused(operator(der.der(), FROM), "two common names");
        check_refused(operator(b"\x30\x03\x02\x01\x01", FROM), "client certificate");
    }
}
