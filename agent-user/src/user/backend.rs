//! The signatures of `jsonwebtoken`, checked by ring, which TLS brings along: the crate's own two backends are aws-lc, which
//! needs more than a C compiler, and a second set of implementations in Rust.

use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::signature::{self, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind};
use ring::signature as ring;

/// Makes it what `jsonwebtoken` uses. It may be called more than once.
pub(super) fn install() {
    // An error says that it was called before.
    let _ = BACKEND.install_default();
}

static BACKEND: CryptoProvider = CryptoProvider {
    // Nothing is signed.
    signer_factory: |_, _| Err(Error::from(ErrorKind::UnsupportedAlgorithm)),
    verifier_factory: |algorithm, key| {
        let (algorithm, key) = (*algorithm, key.clone());
        if key.family() != algorithm.family() || parameters(algorithm).is_none() {
            return Err(Error::from(ErrorKind::InvalidAlgorithm));
        }
        Ok(Box::new(Key { algorithm, key }))
    },
    // For thumbprints of keys and for private keys, which we have none of.
    key_utils: KeyUtils::new_unimplemented(),
};

/// A key together with the algorithm it is used for.
struct Key {
    algorithm: Algorithm,
    key: DecodingKey,
}

impl JwtVerifier for Key {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl Verifier<Vec<u8>> for Key {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), signature::Error> {
        let parameters = parameters(self.algorithm).ok_or_else(signature::Error::new)?;
        let verified = match (self.key.kind(), parameters) {
            (DecodingKeyKind::RsaModulusExponent { n, e }, Parameters::Rsa(parameters)) => {
                ring::RsaPublicKeyComponents { n, e }.verify(parameters, message, signature)
            }
            (DecodingKeyKind::SecretOrDer(key), Parameters::Curve(parameters)) => {
                ring::UnparsedPublicKey::new(parameters, key).verify(message, signature)
            }
            _ => return Err(signature::Error::new()),
        };
        verified.map_err(|_| signature::Error::new())
    }
}

enum Parameters {
    Rsa(&'static ring::RsaParameters),
    Curve(&'static dyn ring::VerificationAlgorithm),
}

/// `None` for algorithms with a shared secret: whoever may check such a token could make one.
fn parameters(algorithm: Algorithm) -> Option<Parameters> {
    Some(match algorithm {
        Algorithm::RS256 => Parameters::Rsa(&ring::RSA_PKCS1_2048_8192_SHA256),
        Algorithm::RS384 => Parameters::Rsa(&ring::RSA_PKCS1_2048_8192_SHA384),
        Algorithm::RS512 => Parameters::Rsa(&ring::RSA_PKCS1_2048_8192_SHA512),
        Algorithm::PS256 => Parameters::Rsa(&ring::RSA_PSS_2048_8192_SHA256),
        Algorithm::PS384 => Parameters::Rsa(&ring::RSA_PSS_2048_8192_SHA384),
        Algorithm::PS512 => Parameters::Rsa(&ring::RSA_PSS_2048_8192_SHA512),
        Algorithm::ES256 => Parameters::Curve(&ring::ECDSA_P256_SHA256_FIXED),
        Algorithm::ES384 => Parameters::Curve(&ring::ECDSA_P384_SHA384_FIXED),
        Algorithm::EdDSA => Parameters::Curve(&ring::ED25519),
        _ => return None,
    })
}
