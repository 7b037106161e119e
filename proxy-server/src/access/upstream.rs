//! Users whom somebody else has authenticated: a trusted proxy by a header, or an issuer of OpenID Connect by a signed token.

use std::{io, net::IpAddr, path::Path};

use axum::http::{HeaderMap, HeaderName};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use serde_json::Value;

use super::{
    Identity, Peer, Role,
    issuer_keys::{IssuerKeys, KeyFetch},
};
use crate::ProblemDetails;

/// Longest name of a user.
const MAX_USER: usize = 200;

/// Proxy that authenticates users and names them in a header.
#[derive(Clone, Debug)]
pub struct TrustedProxy {
    header: HeaderName,
    from: Vec<IpAddr>,
    role: Role,
}

impl TrustedProxy {
    /// Trusts this header, as in `X-Forwarded-User`, on connections from these addresses. Each user gets this role and sees sessions of
    /// its own.
    ///
    /// # Errors
    /// Text that is no header.
    pub fn new(header: &str, from: Vec<IpAddr>, role: Role) -> Result<Self, String> {
        let name = header.to_ascii_lowercase().parse();
        Ok(Self { header: name.map_err(|_| format!("{header:?} is no name of a header"))?, from, role })
    }

    /// Returns the user whom the header names; `None` without one.
    ///
    /// # Errors
    /// `unauthorized`: it comes from elsewhere, or names no user.
    pub(super) fn identify(&self, headers: &HeaderMap, peer: Peer) -> Result<Option<Identity>, ProblemDetails> {
        let mut values = headers.get_all(&self.header).into_iter();
        let Some(value) = values.next() else { return Ok(None) };
        let refused = |why: &str| Err(ProblemDetails::new("unauthorized", format!("the header {} {why}", self.header)));
        let address = peer.address.map(|address| address.ip().to_canonical());
        if !address.is_some_and(|address| self.from.contains(&address)) {
            return refused("is taken from a trusted proxy alone: name its address with `--trust-from`");
        }
        match value.to_str() {
            Ok(user) if is_user(user) && values.next().is_none() => {
                Ok(Some(Identity::new(user, self.role).with_user(user)))
            }
            _ => refused("names no one user"),
        }
    }
}

fn is_user(user: &str) -> bool {
    !user.is_empty() && user.len() <= MAX_USER && !user.chars().any(|char| char.is_control() || char == ',')
}

/// Keys of an issuer of OpenID Connect, and what its tokens have to say.
#[derive(Clone, Debug)]
pub struct OidcVerifier {
    issuer: String,
    audience: String,
    keys: IssuerKeys,
    user_claim: String,
    role_claim: String,
}

/// Algorithms of signatures: those with a public key. One by a shared secret would let whoever has the public keys sign.
const ALGORITHMS: [Algorithm; 7] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::EdDSA,
];

impl OidcVerifier {
    /// Trusts tokens of this issuer for this audience, signed with a key of the JWKS file. It is read again when it has changed.
    /// Blocks.
    ///
    /// # Errors
    /// The file cannot be read, or holds no keys.
    pub fn new(issuer: &str, audience: &str, keys: &Path) -> io::Result<Self> {
        Ok(Self::with_keys(issuer, audience, IssuerKeys::of_file(keys)?))
    }

    /// Trusts tokens of this issuer for this audience, signed with a key of the JWKS that `fetch` gets from `address`, which errors name.
    /// It is fetched at the first token, again after a quarter of an hour, and for a key that is not known, twice a minute at most.
    pub fn fetching(issuer: &str, audience: &str, address: &str, fetch: KeyFetch) -> Self {
        Self::with_keys(issuer, audience, IssuerKeys::of_address(address, fetch))
    }

    fn with_keys(issuer: &str, audience: &str, keys: IssuerKeys) -> Self {
        Self {
            issuer: issuer.to_owned(),
            audience: audience.to_owned(),
            keys,
            user_claim: "sub".into(),
            role_claim: "role".into(),
        }
    }

    /// Fetches keys that come from an address, so that the first token does not wait for them. Blocks.
    ///
    /// # Errors
    /// They cannot be fetched; says why, and what to do. The next token tries again.
    pub fn prepare(&self) -> io::Result<()> {
        self.keys.find("").map(drop).map_err(|error| io::Error::other(format!("{}: {error}", self.issuer)))
    }

    /// Takes user and role from these claims, rather than `sub` and `role`.
    #[must_use]
    pub fn with_claims(mut self, user: &str, role: &str) -> Self {
        (self.user_claim, self.role_claim) = (user.to_owned(), role.to_owned());
        self
    }

    /// Returns true if a bearer token has the form of one of the issuer's.
    pub(super) fn is_jwt(token: &str) -> bool {
        token.split('.').count() == 3 && token.starts_with("ey")
    }

    /// Returns who has this token. Blocks.
    ///
    /// # Errors
    /// `unauthorized`: says what is wrong with it, not what it says.
    pub(super) fn identify(&self, token: &str) -> Result<Identity, ProblemDetails> {
        let refused =
            |why: &str| ProblemDetails::new("unauthorized", format!("the token of {} is refused: {why}", self.issuer));
        let header = decode_header(token).map_err(|_| refused("it cannot be read"))?;
        if !ALGORITHMS.contains(&header.alg) {
            return Err(refused("its algorithm is none with a public key"));
        }
        let key = self.keys.find(&header.kid.unwrap_or_default());
        let key = key.map_err(|error| ProblemDetails::failed(format!("the issuer {}: {error}", self.issuer)))?;
        let key = key.ok_or_else(|| refused("no key of the issuer has its id"))?;
        // The key says what it is for, where it says it.
        if key.common.key_algorithm.is_some_and(|algorithm| algorithm.to_string() != format!("{:?}", header.alg)) {
            return Err(refused("its algorithm is not that of the key"));
        }
        let key = DecodingKey::from_jwk(&key).map_err(|_| refused("its key cannot be used"))?;
        let mut validation = Validation::new(header.alg);
        validation.set_issuer(&[&self.issuer]);
        validation.set_audience(&[&self.audience]);
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        validation.validate_nbf = true;
        let claims = decode::<Value>(token, &key, &validation).map_err(|error| refused(&error.to_string()))?.claims;
        let user = claims[&self.user_claim].as_str().filter(|user| is_user(user));
        let user = user.ok_or_else(|| refused(&format!("it has no user in the claim {:?}", self.user_claim)))?;
        let role = self.role(&claims[&self.role_claim]);
        let role = role.ok_or_else(|| {
            refused(&format!("it has no role in the claim {:?}: read, operate or admin", self.role_claim))
        })?;
        let identity = Identity::new(user, role);
        Ok(if role == Role::Admin { identity } else { identity.with_user(user) })
    }

    /// Returns the largest role of a claim: a name, or several.
    fn role(&self, claim: &Value) -> Option<Role> {
        let names: Vec<&str> = match claim {
            Value::String(name) => name.split(' ').collect(),
            Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
            _ => return None,
        };
        names.into_iter().filter_map(|name| name.strip_prefix("agent-proxy:").unwrap_or(name).parse().ok()).max()
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, time::SystemTime};

    use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
    use jsonwebtoken::{EncodingKey, Header, encode};
    use serde_json::json;

    use super::*;

    fn now() -> u64 {
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after it").as_secs()
    }

    /// A pair that is made anew.
    fn pair() -> (EncodingKey, String) {
        let random = ring::rand::SystemRandom::new();
        let document = ring::signature::Ed25519KeyPair::generate_pkcs8(&random).expect("a key");
        let pair = ring::signature::Ed25519KeyPair::from_pkcs8(document.as_ref()).expect("a key");
        let public = URL_SAFE_NO_PAD.encode(ring::signature::KeyPair::public_key(&pair).as_ref());
        (EncodingKey::from_ed_der(document.as_ref()), public)
    }

    struct Issuer {
        key: EncodingKey,
        verifier: OidcVerifier,
        _directory: tempfile::TempDir,
    }

    impl Issuer {
        fn new() -> Self {
            let directory = tempfile::tempdir().expect("a directory");
            let (key, public) = pair();
            let path = directory.path().join("jwks.json");
            let jwk = json!({ "kty": "OKP", "crv": "Ed25519", "x": public, "kid": "1", "alg": "EdDSA" });
            fs::write(&path, json!({ "keys": [jwk] }).to_string()).expect("written");
            Self {
                key,
                verifier: OidcVerifier::new("https://id.example", "agents", &path).expect("keys"),
                _directory: directory,
            }
        }

        fn claims(&self) -> Value {
            json!({ "iss": "https://id.example", "aud": "agents", "sub": "ada", "role": "operate", "exp": now() + 60 })
        }

        fn sign(&self, kid: &str, claims: &Value) -> String {
            let header = Header { kid: Some(kid.into()), ..Header::new(Algorithm::EdDSA) };
            encode(&header, claims, &self.key).expect("signed")
        }
    }

    #[test]
    fn a_token_of_the_issuer_names_user_and_role() {
        let issuer = Issuer::new();
        let identity = issuer.verifier.identify(&issuer.sign("1", &issuer.claims())).expect("known");
        assert_eq!(identity, Identity::new("ada", Role::Operate).with_user("ada"));
        let mut claims = issuer.claims();
        claims["role"] = json!(["other", "read", "agent-proxy:admin"]);
        assert_eq!(
            issuer.verifier.identify(&issuer.sign("1", &claims)).expect("known"),
            Identity::new("ada", Role::Admin)
        );
    }

    #[test]
    fn a_token_that_was_not_signed_for_this_server_is_refused() {
        let issuer = Issuer::new();
        let refused = |token: &str| {
            let problem = issuer.verifier.identify(token).expect_err("refused");
            assert_eq!(problem.status, 401, "{problem:?}");
        };
        for (claim, value) in [
            ("iss", json!("https://evil.example")),
            ("aud", json!("others")),
            ("exp", json!(now() - 3600)),
            ("nbf", json!(now() + 3600)),
            ("sub", json!("")),
            ("sub", json!("a\nb")),
            ("role", json!("root")),
            ("role", json!(null)),
        ] {
            let mut claims = issuer.claims();
            claims[claim] = value;
            refused(&issuer.sign("1", &claims));
        }
        for missing in ["iss", "aud", "exp", "sub", "role"] {
            let mut claims = issuer.claims();
            claims.as_object_mut().expect("an object").remove(missing);
            refused(&issuer.sign("1", &claims));
        }
        refused(&issuer.sign("2", &issuer.claims()));
        let other = Issuer::new();
        refused(&other.sign("1", &other.claims()));
        let good = issuer.sign("1", &issuer.claims());
        let (head, signature) = good.rsplit_once('.').expect("three parts");
        refused(&format!("{}.{signature}", &head[..head.len() - 2]));
        refused(&format!("{head}."));
        // Without a signature, and signed with the public key as a secret.
        let none = URL_SAFE_NO_PAD.encode(r#"{"alg":"none","kid":"1"}"#);
        refused(&format!("{none}.{}.", good.split('.').nth(1).expect("claims")));
        let shared = Header { kid: Some("1".into()), ..Header::new(Algorithm::HS256) };
        refused(&encode(&shared, &issuer.claims(), &EncodingKey::from_secret(b"x")).expect("signed"));
    }

    #[test]
    fn a_header_counts_from_the_proxy_alone() {
        let proxy =
            TrustedProxy::new("X-Forwarded-User", vec![IpAddr::from([127, 0, 0, 1])], Role::Operate).expect("one");
        let headers = |values: &[&str]| {
            let name = HeaderName::from_static("x-forwarded-user");
            values.iter().map(|value| (name.clone(), value.parse().expect("a value"))).collect::<HeaderMap>()
        };
        let peer = |text: &str| Peer { address: Some(text.parse().expect("an address")), ..Peer::default() };
        let known = proxy.identify(&headers(&["ada"]), peer("127.0.0.1:5000")).expect("trusted");
        assert_eq!(known, Some(Identity::new("ada", Role::Operate).with_user("ada")));
        let mapped = proxy.identify(&headers(&["ada"]), peer("[::ffff:127.0.0.1]:5000")).expect("trusted");
        assert!(mapped.is_some(), "the same address");
        assert_eq!(proxy.identify(&HeaderMap::new(), peer("127.0.0.1:5000")).expect("no header"), None);
        for (values, from) in [
            (&["ada"][..], peer("192.0.2.1:5000")),
            (&["ada"][..], Peer::default()),
            (&["ada", "bob"][..], peer("127.0.0.1:5000")),
            (&["ada, bob"][..], peer("127.0.0.1:5000")),
            (&[""][..], peer("127.0.0.1:5000")),
        ] {
            assert_eq!(proxy.identify(&headers(values), from).expect_err("refused").status, 401, "{values:?}");
        }
    }
}
