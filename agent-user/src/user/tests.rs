//! Tokens of every kind, good and bad.

use std::fs;
use std::path::PathBuf;

use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair,
    KeyPair as _,
};
use serde_json::json;

use super::*;
use crate::decode::parse_request;

/// Modulus of a key that is kept nowhere; it has signed the tokens below, which hold until 2100.
const RSA: &str = "vUji1iE0NNShMPEkJupTooK0PR5zTG_h_7T0jsBvUtLywGuM6q3oTc3g-8dnR8ss1eV9dOKh5GzDXp_SpVDHLYd94aRVhCGN\
     ZI2HK928WNmUHh4bvQmCCLfcmUjaBRh5nxKABNh26MGpmeXddXWhV1u7uX9O51Ng4nOVHmYsYAkvzSs1LKgk1TCK6F0MM5Um\
     1J1l3Gf_2U_GDBoVYVCUQ6Cm6nFlP9yKfwyMfMGFtT-KVjffewsVefZD8omhLg4XtA0h4bLmVYDJJ22zN8EBY-O36yuVibSh\
     IDnJ2c92eQfYcSAmt1lnTqRK1_WgXTl5OCLYS9m3XL3XxZYp5EHymw";
const RS256: &str = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJyc2EiLCJleHAiOjQxMDI0NDQ4MDB9.RzuYSo9re9qisFri8_w13Qdx8qiBkB9fMJ\
     aggsTM5GFV4icJV31ojbWv3F5OkqK10hb9P75KKYP15gsSVJdzn6Ip6uEUCa_xCQqGgb0JGwS9GZtFrt5rrqqJARn81uq0hr\
     _FKOOZ-sduyxnFxzaAcVGItKmJA-H3OiDU93JjiOa6Gdkw7hdAPnRLn6mmBenWKLygCJ-esoT57OnLpVSZ3rXU2JRsOMugUT\
     H6Z9YNFR8Cu-Yeq-ZZ-o5Ojfs-ac5W8Ku6j-InckQ04uOw6BISpkjlS5LpsHeLa5pBZfu6alcOY4KlxN3Lx_oo-WLhzP-qFM\
     Dfpi4I5LvwHOV2ZX7FAg";
const PS256: &str = "eyJhbGciOiJQUzI1NiJ9.eyJzdWIiOiJyc2EiLCJleHAiOjQxMDI0NDQ4MDB9.dKjISXJR3yyYLVDZbVEK_Ag_W4ECBrSaIW\
     -9ZE9HJjOCB8day5YXR_LZYPhSBkkAZvfvTGtEALVbcVQgGJjx8ymE2t0PDLfZ0amAB95bCx5dWBLfSdb3iuMWSzAuvJbVLj\
     7ACDNGGvIyzhYExeUEOxyMpgsof0hGCxuHv1RRA0_KwAg-SjGUyYqLNV2lv9JZpOAzbEpXsRWrUgjxDKlBPiTZG7HEkDrXw2\
     jTszdsi3wojpEr1hCe4Htq6edGs-bsWgbvqbG71GzZXyNOlvLdKT6QGX24Z0ih0uN8fKTmty02jkcvP4zIj6AqucuSARONHG\
     bsQPQ6OAyDjoytUWVbfQ";

fn base64url(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let number = three.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        let digits = (0..=three.len()).map(|place| DIGITS[(number >> (18 - 6 * place) & 63) as usize]);
        text.extend(digits.map(char::from));
    }
    text
}

enum Signer {
    Ed(Ed25519KeyPair),
    P256(EcdsaKeyPair),
    P384(EcdsaKeyPair),
}

impl Signer {
    fn ed() -> Signer {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Signer::Ed(Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap())
    }

    fn curve(p384: bool) -> Signer {
        let random = SystemRandom::new();
        let kind = if p384 { &ECDSA_P384_SHA384_FIXED_SIGNING } else { &ECDSA_P256_SHA256_FIXED_SIGNING };
        let document = EcdsaKeyPair::generate_pkcs8(kind, &random).unwrap();
        let key = EcdsaKeyPair::from_pkcs8(kind, document.as_ref(), &random).unwrap();
        if p384 { Signer::P384(key) } else { Signer::P256(key) }
    }

    fn jwk(&self) -> Value {
        let point = |crv: &str, key: &EcdsaKeyPair| {
            let (x, y) = key.public_key().as_ref()[1..].split_at(key.public_key().as_ref().len() / 2);
            json!({"kty": "EC", "crv": crv, "x": base64url(x), "y": base64url(y)})
        };
        match self {
            Signer::Ed(key) => {
                json!({"kty": "OKP", "crv": "Ed25519", "x": base64url(key.public_key().as_ref())})
            }
            Signer::P256(key) => point("P-256", key),
            Signer::P384(key) => point("P-384", key),
        }
    }

    fn token(&self, header: &Value, claims: &Value) -> String {
        let text = format!(
            "{}.{}",
            base64url(header.to_string().as_bytes()),
            base64url(claims.to_string().as_bytes())
        );
        let signature = match self {
            Signer::Ed(key) => key.sign(text.as_bytes()).as_ref().to_vec(),
            Signer::P256(key) | Signer::P384(key) => {
                key.sign(&SystemRandom::new(), text.as_bytes()).unwrap().as_ref().to_vec()
            }
        };
        format!("{text}.{}", base64url(&signature))
    }
}

struct Test {
    dir: tempfile::TempDir,
    config: Tokens,
}

impl Test {
    fn new(keys: &[Value]) -> Test {
        let dir = tempfile::tempdir().unwrap();
        let config = Tokens { jwks: dir.path().join("jwks.json"), issuer: None, audience: None };
        let test = Test { dir, config };
        test.write(&json!({"keys": keys}).to_string());
        test
    }

    fn write(&self, text: &str) {
        fs::write(self.path(), text).unwrap();
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("jwks.json")
    }

    fn users(&self) -> Users {
        Users::load(Some(&self.config)).unwrap()
    }

    #[track_caller]
    fn check(&self, token: &str, verified: bool) {
        let user = ask(&self.users(), &mut LastToken::default(), &format!("Bearer {token}")).unwrap();
        assert_eq!(user.verified, verified, "{:?}", user.claims);
    }
}

/// Whom a request with this header speaks for.
fn ask(users: &Users, last: &mut LastToken, authorization: &str) -> Option<Arc<User>> {
    let text = format!("POST / HTTP/1.1\r\nHost: a\r\nAuthorization: {authorization}\r\n\r\n");
    let head = parse_request(text.as_bytes(), 1 << 16).unwrap().unwrap();
    users.of_request(Headers::of(&head, text.as_bytes()), last)
}

fn in_seconds(seconds: i64) -> i64 {
    i64::try_from(get_current_timestamp()).unwrap() + seconds
}

fn good() -> Value {
    json!({"sub": "ann", "exp": in_seconds(600)})
}

#[test]
fn without_keys_claims_are_read_and_not_believed() {
    let users = Users::load(None).unwrap();
    let ask = |header: &str| ask(&users, &mut LastToken::default(), header);
    let token = Signer::ed().token(&json!({"alg": "EdDSA"}), &json!({"sub": "ann", "n": 7}));
    let expect =
        User { verified: false, claims: serde_json::from_value(json!({"sub": "ann", "n": 7})).unwrap() };
    for header in [format!("Bearer {token}"), format!("bearer   {token} ")] {
        assert_eq!(ask(&header).as_deref(), Some(&expect), "{header}");
    }
    let part = |text: &str| base64url(text.as_bytes());
    assert!(
        ask(&format!("Bearer {}.{}.", part("{}"), part("{}"))).is_some(),
        "no signature, and claims all the same"
    );
    for other in [
        format!("Basic {token}"),
        format!("Bearer{token}"),
        "Bearer".to_owned(),
        "Bearer ".to_owned(),
        "Bearer opaque".to_owned(),
        "Bearer ..".to_owned(),
        format!("Bearer {}.{}", part("{}"), part("{}")),
        format!("Bearer {}.{}..", part("{}"), part("{}")),
        format!("Bearer {}.{}.", part("{}"), part("[1]")),
        format!("Bearer {}.{}.", part("{}"), part("{}x")),
        format!("Bearer {}.{}=.", part("{}"), part("{}")),
        format!("Bearer {}.{}.", part("{}"), "\u{fc}"),
        format!("Bearer {}.{}.", part("{}"), part(&format!("{}1{}", "[".repeat(5_000), "]".repeat(5_000)))),
        format!("Bearer {}.{}.", part("{}"), part(&format!("{{\"a\":\"{}\"}}", "x".repeat(16 << 10)))),
    ] {
        assert_eq!(ask(&other), None, "{}", &other[..other.len().min(60)]);
    }
}

#[test]
fn more_than_one_authorization_speaks_for_nobody() {
    let token = Signer::ed().token(&json!({"alg": "EdDSA"}), &good());
    let twice = format!("Bearer {token}\r\nauthorization: Bearer {token}");
    assert_eq!(ask(&Users::default(), &mut LastToken::default(), &twice), None);
}

#[test]
fn signatures_of_every_kind_are_checked() {
    let (ed, p256, p384) = (Signer::ed(), Signer::curve(false), Signer::curve(true));
    let rsa = json!({"kty": "RSA", "n": RSA, "e": "AQAB"});
    let test = Test::new(&[rsa, ed.jwk(), p256.jwk(), p384.jwk()]);
    let kinds = [(&ed, "EdDSA"), (&p256, "ES256"), (&p384, "ES384")];
    for (signer, alg) in kinds {
        test.check(&signer.token(&json!({"alg": alg}), &good()), true);
    }
    test.check(RS256, true);
    test.check(PS256, true);
    // Another key, another algorithm, another content.
    test.check(&Signer::ed().token(&json!({"alg": "EdDSA"}), &good()), false);
    test.check(&p256.token(&json!({"alg": "ES384"}), &good()), false);
    test.check(&RS256.replace("eyJhbGciOiJSUzI1NiJ9", &base64url(br#"{"alg":"PS256"}"#)), false);
    for token in [RS256.to_owned(), ed.token(&json!({"alg": "EdDSA"}), &good())] {
        let (head, rest) = token.split_once('.').unwrap();
        let (_, signature) = rest.split_once('.').unwrap();
        let other = base64url(json!({"sub": "root", "exp": in_seconds(600)}).to_string().as_bytes());
        test.check(&format!("{head}.{other}.{signature}"), false);
        test.check(&format!("{head}.{other}."), false);
    }
}

#[test]
fn neither_none_nor_a_secret_is_a_signature() {
    // HMAC with the public key as the secret is what this would have to be good for; no HMAC is looked at.
    let rsa = json!({"kty": "RSA", "n": RSA, "e": "AQAB"});
    let secret = json!({"kty": "oct", "k": base64url(b"secret"), "alg": "HS256"});
    let test = Test::new(&[rsa, secret.clone()]);
    let claims = base64url(good().to_string().as_bytes());
    for alg in ["none", "None", "HS256", "HS512", "XX"] {
        let head = base64url(json!({"alg": alg}).to_string().as_bytes());
        test.check(&format!("{head}.{claims}."), false);
        test.check(&format!("{head}.{claims}.{}", base64url(&[7; 32])), false);
    }
    // RFC 7515, appendix A.1, but for its time.
    let alone = Test::new(&[secret]);
    let error = format!("{:#}", Users::load(Some(&alone.config)).unwrap_err());
    assert!(error.contains("no key in it can check a signature"), "{error}");
}

#[test]
fn what_a_token_says_of_itself_must_hold() {
    let signer = Signer::ed();
    let mut test = Test::new(&[signer.jwk()]);
    let token = |claims: Value| signer.token(&json!({"alg": "EdDSA"}), &claims);
    let soon = in_seconds(600);
    for (claims, verified) in [
        (json!({"exp": soon}), true),
        (json!({"exp": in_seconds(-50)}), true),
        (json!({"exp": in_seconds(-70)}), false),
        (json!({"exp": "never"}), false),
        (json!({"exp": null}), false),
        (json!({}), false),
        (json!({"exp": soon, "nbf": in_seconds(50)}), true),
        (json!({"exp": soon, "nbf": in_seconds(90)}), false),
        (json!({"exp": soon, "nbf": "now"}), false),
        (json!({"exp": soon, "aud": "anybody", "iss": "anybody"}), true),
    ] {
        test.check(&token(claims), verified);
    }
    (test.config.issuer, test.config.audience) = (Some("us".into()), Some("bank".into()));
    for (iss, aud, verified) in [
        (json!("us"), json!("bank"), true),
        (json!("us"), json!(["shop", "bank"]), true),
        (json!("them"), json!("bank"), false),
        (json!("us"), json!("shop"), false),
        (json!("us"), json!([]), false),
        (json!(null), json!("bank"), false),
        (json!("us"), json!(null), false),
        (json!("us"), json!(7), false),
    ] {
        test.check(&token(json!({"exp": soon, "iss": iss, "aud": aud})), verified);
    }
}

#[test]
fn a_key_is_used_for_what_it_is_for() {
    let (signer, other) = (Signer::curve(false), Signer::curve(false));
    let with = |mut jwk: Value, name: &str, value: Value| {
        jwk[name] = value;
        jwk
    };
    let token = |header: Value| signer.token(&header, &good());
    let keys = [with(other.jwk(), "kid", json!("b")), with(signer.jwk(), "kid", json!("a"))];
    let test = Test::new(&keys);
    test.check(&token(json!({"alg": "ES256", "kid": "a"})), true);
    test.check(&token(json!({"alg": "ES256"})), true);
    test.check(&token(json!({"alg": "ES256", "kid": "b"})), false);
    test.check(&token(json!({"alg": "ES256", "kid": "c"})), false);
    test.check(&token(json!({"alg": "ES256", "kid": "a", "crit": ["x"], "x": 1})), false);
    for (name, value, verified) in [
        ("use", json!("sig"), true),
        ("use", json!("enc"), false),
        ("key_ops", json!(["verify"]), true),
        ("key_ops", json!(["sign"]), false),
        ("alg", json!("ES256"), true),
        ("alg", json!("RSA-OAEP"), false),
        ("alg", json!("ES512"), false),
        ("kty", json!("RSA"), false),
    ] {
        let test = Test::new(&[other.jwk(), with(signer.jwk(), name, value.clone())]);
        test.check(&token(json!({"alg": "ES256"})), verified);
    }
}

#[test]
fn a_token_is_looked_at_once_while_nothing_changes() {
    let signer = Signer::ed();
    let test = Test::new(&[signer.jwk()]);
    let (users, mut last) = (test.users(), LastToken::default());
    let token = |claims: &Value| format!("Bearer {}", signer.token(&json!({"alg": "EdDSA"}), claims));
    let header = token(&good());
    let first = ask(&users, &mut last, &header).unwrap();
    let again = ask(&users, &mut last, &header).unwrap();
    assert!(first.verified && Arc::ptr_eq(&first, &again));
    let other = ask(&users, &mut last, &token(&json!({"sub": "bob"}))).unwrap();
    assert!(!other.verified && other.claims["sub"] == "bob");
    assert!(last.until <= get_current_timestamp() + HOLDS_FOR);
    assert_eq!(ask(&users, &mut last, "Bearer opaque"), None);
    let long = token(&json!({"sub": "x".repeat(MAX_KEPT), "exp": in_seconds(600)}));
    assert!(ask(&users, &mut last, &long).unwrap().verified && last.token.is_empty() && last.user.is_none());
    // It is believed for a few seconds only: it must not be so for longer because it was looked at just now.
    let claims = json!({"exp": in_seconds(3 - LEEWAY as i64)});
    assert!(ask(&users, &mut last, &token(&claims)).unwrap().verified);
    assert!(last.until <= get_current_timestamp() + 4);
}

#[test]
fn keys_are_read_again_when_their_file_changes() {
    let (old, new) = (Signer::ed(), Signer::ed());
    let test = Test::new(&[old.jwk()]);
    let (users, mut last) = (test.users(), LastToken::default());
    let headers =
        [&old, &new].map(|signer| format!("Bearer {}", signer.token(&json!({"alg": "EdDSA"}), &good())));
    let mut check = |expect: [bool; 2]| {
        users.reload_if_changed();
        for (header, expect) in headers.iter().zip(expect) {
            // Also of the token that was sent last.
            assert_eq!(ask(&users, &mut last, header).unwrap().verified, expect);
            assert_eq!(ask(&users, &mut last, header).unwrap().verified, expect);
        }
    };
    check([true, false]);
    test.write(&json!({"keys": [old.jwk(), new.jwk()]}).to_string());
    check([true, true]);
    test.write("{");
    check([true, true]);
    fs::remove_file(test.path()).unwrap();
    check([true, true]);
    test.write(&json!({"keys": [new.jwk()]}).to_string());
    check([false, true]);
}

#[test]
fn files_without_usable_keys_are_named() {
    let check = |text: &str, expect: &str| {
        let test = Test::new(&[]);
        test.write(text);
        let error = format!("{:#}", Users::load(Some(&test.config)).unwrap_err());
        assert!(
            error.contains("tokens: jwks") && error.contains("jwks.json") && error.contains(expect),
            "{error}"
        );
    };
    check("", "a JSON Web Key Set is expected");
    check("-----BEGIN PUBLIC KEY-----", "a JSON Web Key Set is expected");
    check(r#"{"keys":[]}"#, "no key in it");
    check(r#"{"keys":[{"kty":"new"}]}"#, "no key in it");
    check(&" ".repeat(2 << 20), "longer than 1 MiB");
    let many: Vec<Value> = (0..65).map(|_| json!({"kty": "RSA", "n": RSA, "e": "AQAB"})).collect();
    check(&json!({"keys": many}).to_string(), "no more than 64");
    let test = Test::new(&[]);
    fs::remove_file(test.path()).unwrap();
    assert!(format!("{:#}", Users::load(Some(&test.config)).unwrap_err()).contains("No such file"));
}
