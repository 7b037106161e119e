//! Signatures of webhooks: those of senders are checked, ours are made. Pure.
//!
//! All are HMAC-SHA256 with a secret that both sides have, and are compared in constant time.

use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::http::HeaderMap;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use hmac::{Hmac, Mac as _};
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// Greatest difference between a signature's time and ours.
pub(super) const TOLERANCE: Duration = Duration::from_secs(5 * 60);
/// Beginning of a secret whose rest is base64, as Standard Webhooks has it.
const ENCODED_SECRET: &str = "whsec_";
/// Longest id of a delivery, in bytes.
const MAX_ID: usize = 256;

/// Headers of Standard Webhooks.
pub(super) const STANDARD_HEADERS: [&str; 3] = ["webhook-id", "webhook-timestamp", "webhook-signature"];

/// Way in which a sender signs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WebhookSender {
    /// GitHub: `X-Hub-Signature-256` over the body.
    Github,
    /// Slack: `X-Slack-Signature` over time and body.
    Slack,
    /// Standard Webhooks: `webhook-signature` over id, time and body. Our own webhooks are signed so.
    Hmac,
}

impl WebhookSender {
    /// Returns its name in the configuration.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Github => "github",
            Self::Slack => "slack",
            Self::Hmac => "hmac",
        }
    }
}

/// Secret of a webhook. `Debug` hides it.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct WebhookKey(Vec<u8>);

impl fmt::Debug for WebhookKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WebhookKey(…)")
    }
}

impl WebhookKey {
    /// Takes a secret as it is configured.
    ///
    /// # Errors
    /// Text after `whsec_` that is no base64.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        match text.strip_prefix(ENCODED_SECRET) {
            Some(encoded) => STANDARD.decode(encoded).map(Self).map_err(|_| "after whsec_ it is no base64".to_owned()),
            None => Ok(Self(text.as_bytes().to_vec())),
        }
    }

    /// Takes bytes.
    pub(super) fn of(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        // A key of any length is one.
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).unwrap_or_else(|_| unreachable!("any length is taken"));
        parts.iter().for_each(|part| mac.update(part));
        mac
    }

    /// Signs parts, joined.
    pub(super) fn sign(&self, parts: &[&[u8]]) -> Vec<u8> {
        self.mac(parts).finalize().into_bytes().to_vec()
    }

    /// Compares a signature of parts, in constant time.
    pub(super) fn verifies(&self, parts: &[&[u8]], signature: &[u8]) -> bool {
        self.mac(parts).verify_slice(signature).is_ok()
    }

    /// Signs a message as Standard Webhooks has it. Returns the header's value.
    pub(super) fn sign_message(&self, id: &str, timestamp: u64, body: &[u8]) -> String {
        let head = format!("{id}.{timestamp}.");
        format!("v1,{}", STANDARD.encode(self.sign(&[head.as_bytes(), body])))
    }
}

/// Delivery of a sender, whose signature is right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SignedDelivery {
    /// Id of the delivery: a delivery that is sent again has the same.
    pub(super) id: String,
    /// Hash of the signature. A delivery that is sent again has another, where the time is signed.
    pub(super) signature: String,
    /// Kind of the event, if a header says it.
    pub(super) event: Option<String>,
}

/// Reason why a signature is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SignatureError {
    #[error("the header {0} is missing")]
    Missing(&'static str),
    #[error("the header {0} is not as the sender writes it")]
    Malformed(&'static str),
    #[error("it was signed {0} s ago or in the future, and at most {max} s are taken: is a clock wrong?", max = TOLERANCE.as_secs())]
    Old(u64),
    #[error("the signature is not that of this body with the configured secret")]
    Wrong,
}

impl WebhookSender {
    /// Checks the signature of a request.
    ///
    /// # Errors
    /// The reason why it is not the sender's, or is not of now.
    pub(super) fn verify(
        self,
        key: &WebhookKey,
        headers: &HeaderMap,
        body: &[u8],
        now: SystemTime,
    ) -> Result<SignedDelivery, SignatureError> {
        match self {
            Self::Github => {
                let signature = required(headers, "x-hub-signature-256")?;
                let bytes = signature.strip_prefix("sha256=").and_then(from_hex);
                let bytes = bytes.ok_or(SignatureError::Malformed("x-hub-signature-256"))?;
                let id = delivery_id(headers, "x-github-delivery")?;
                check(key, &[body], std::slice::from_ref(&bytes))?;
                let event = text(headers, "x-github-event").map(str::to_owned);
                Ok(SignedDelivery { id, signature: hash(&[&bytes]), event })
            }
            Self::Slack => {
                let signature = required(headers, "x-slack-signature")?;
                let bytes = signature.strip_prefix("v0=").and_then(from_hex);
                let bytes = bytes.ok_or(SignatureError::Malformed("x-slack-signature"))?;
                let timestamp = timestamp(headers, "x-slack-request-timestamp", now)?;
                check(key, &[format!("v0:{timestamp}:").as_bytes(), body], std::slice::from_ref(&bytes))?;
                let signature = hash(&[&bytes]);
                let body: Value = serde_json::from_slice(body).unwrap_or_default();
                let id = body["event_id"].as_str().filter(|id| (1..=MAX_ID).contains(&id.len()));
                let event = body["event"]["type"].as_str().or_else(|| body["type"].as_str()).map(str::to_owned);
                Ok(SignedDelivery { id: id.unwrap_or(&signature).to_owned(), signature, event })
            }
            Self::Hmac => {
                let [id_header, time_header, signature_header] = STANDARD_HEADERS;
                let id = delivery_id(headers, id_header)?;
                let signatures = required(headers, signature_header)?;
                // Several, while a secret is being changed.
                let known = signatures.split(' ').filter_map(|one| STANDARD.decode(one.strip_prefix("v1,")?).ok());
                let known: Vec<_> = known.collect();
                if known.is_empty() {
                    return Err(SignatureError::Malformed(signature_header));
                }
                let timestamp = timestamp(headers, time_header, now)?;
                let head = format!("{id}.{timestamp}.");
                check(key, &[head.as_bytes(), body], &known)?;
                // The text of the header can be varied, and what is signed cannot.
                let signature = hash(&[head.as_bytes(), body]);
                let body: Value = serde_json::from_slice(body).unwrap_or_default();
                Ok(SignedDelivery { id, signature, event: body["type"].as_str().map(str::to_owned) })
            }
        }
    }
}

fn check(key: &WebhookKey, parts: &[&[u8]], signatures: &[Vec<u8>]) -> Result<(), SignatureError> {
    let fits = signatures.iter().any(|signature| key.verifies(parts, signature));
    if fits { Ok(()) } else { Err(SignatureError::Wrong) }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

fn required<'a>(headers: &'a HeaderMap, name: &'static str) -> Result<&'a str, SignatureError> {
    text(headers, name).ok_or(SignatureError::Missing(name))
}

fn delivery_id(headers: &HeaderMap, name: &'static str) -> Result<String, SignatureError> {
    let id = required(headers, name)?;
    if (1..=MAX_ID).contains(&id.len()) { Ok(id.to_owned()) } else { Err(SignatureError::Malformed(name)) }
}

/// Returns the time in a header, in seconds since 1970, if it is about now.
fn timestamp(headers: &HeaderMap, name: &'static str, now: SystemTime) -> Result<u64, SignatureError> {
    let seconds: u64 = required(headers, name)?.parse().map_err(|_| SignatureError::Malformed(name))?;
    let apart = seconds_since_epoch(now).abs_diff(seconds);
    if apart > TOLERANCE.as_secs() { Err(SignatureError::Old(apart)) } else { Ok(seconds) }
}

/// Returns a time in seconds since 1970.
pub(super) fn seconds_since_epoch(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    let is_hex = digits.len() == 64 && digits.iter().all(u8::is_ascii_hexdigit);
    let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).ok();
    if is_hex { (0..digits.len()).step_by(2).map(byte).collect() } else { None }
}

/// Returns a hash of parts as hexadecimal digits.
pub(super) fn hash(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().expect("a name"), value.parse().expect("a value"))).collect()
    }

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    /// The example of GitHub's documentation.
    #[test]
    fn a_signature_of_github() {
        let key = WebhookKey::parse("It's a Secret to Everybody").expect("a key");
        let signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
        let verify = |signature: &str, body: &[u8]| {
            let headers = headers(&[
                ("x-hub-signature-256", signature),
                ("x-github-delivery", "d-1"),
                ("x-github-event", "push"),
            ]);
            WebhookSender::Github.verify(&key, &headers, body, at(0))
        };
        let delivery = verify(signature, b"Hello, World!").expect("right");
        assert_eq!((delivery.id.as_str(), delivery.event.as_deref()), ("d-1", Some("push")));
        assert_eq!(verify(signature, b"Hello, World?"), Err(SignatureError::Wrong));
        for malformed in ["", "sha1=00", "sha256=zz", &signature[..70]] {
            assert_eq!(verify(malformed, b"Hello, World!"), Err(SignatureError::Malformed("x-hub-signature-256")));
        }
        let missing = WebhookSender::Github.verify(&key, &HeaderMap::new(), b"", at(0));
        assert_eq!(missing, Err(SignatureError::Missing("x-hub-signature-256")));
    }

    /// The example of Slack's documentation.
    #[test]
    fn a_signature_of_slack() {
        let key = WebhookKey::parse("8f742231b10e8888abcd99yyyzzz85a5").expect("a key");
        let body: &[u8] = b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c";
        let headers = headers(&[
            ("x-slack-signature", "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"),
            ("x-slack-request-timestamp", "1531420618"),
        ]);
        let verify = |seconds| WebhookSender::Slack.verify(&key, &headers, body, at(seconds));
        verify(1_531_420_618 + 299).expect("right");
        assert_eq!(verify(1_531_420_618 + 301), Err(SignatureError::Old(301)));
        assert_eq!(verify(1_531_420_618 - 400), Err(SignatureError::Old(400)));
    }

    /// The example of Standard Webhooks' own libraries.
    #[test]
    fn a_signature_of_standard_webhooks() {
        let key = WebhookKey::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").expect("a key");
        let (id, seconds, body) = ("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        let signature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        assert_eq!(key.sign_message(id, seconds, body), signature);
        let several = format!("v1,AAAA {signature}");
        let time = seconds.to_string();
        let headers = headers(&[("webhook-id", id), ("webhook-timestamp", &time), ("webhook-signature", &several)]);
        let verify = |body: &[u8]| WebhookSender::Hmac.verify(&key, &headers, body, at(seconds));
        assert_eq!(verify(body).expect("right").id, id);
        assert_eq!(verify(b"{}"), Err(SignatureError::Wrong));
        assert!(WebhookKey::parse("whsec_?").is_err());
    }
}
