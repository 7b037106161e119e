//! Webhooks of others: each verified delivery is a message of a free stream, once.
//!
//! The id of a delivery is its producer in the stream, so that one that is sent again is committed once, whoever crashes. A signature is
//! noted for a day: one that comes back with another id, or although its sender signs the time, is a replay.

use std::time::SystemTime;

use axum::{
    body::Bytes,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use proxy_manager::{
    ByteStreamAppend, ByteStreamChange, ByteStreamOutcome, ByteStreamRefusal, NewByteStream, ProducerSequence,
    ProxyManager, RequestStart, StreamContent, StreamLifetime, fill_text,
};
use serde_json::{Map, Value, json};

use super::{
    Webhooks,
    config::IncomingHook,
    signature::{SignedDelivery, WebhookSender, hash},
};
use crate::{
    ProblemDetails,
    durable_streams::{check_path, log_problem},
    requests::RouteResult,
};

/// Longest body of a delivery, in bytes: that of an event.
pub(crate) const MAX_DELIVERY: usize = 1024 * 1024 - 4096;
/// Media type of the streams.
const JSON: &str = "application/json";
/// Producers of signed times send a signature once.
const ONCE: &str = "once";

impl Webhooks {
    /// Takes a delivery.
    ///
    /// # Errors
    /// `unknown-route` for a name that is not configured; `invalid-signature` with the reason; `rate-limited`; those of the event log.
    pub(crate) async fn receive(
        &self,
        manager: &ProxyManager,
        name: &str,
        headers: &HeaderMap,
        body: Bytes,
    ) -> RouteResult<Response> {
        let active = self.active();
        let Some(hook) = active.config.incoming.get(name) else {
            let detail = format!("no webhook is called {name:?}: add [in.{name}] to webhooks.toml");
            return Err(ProblemDetails::new("unknown-route", detail));
        };
        // Who has no secret cannot use up the rate of who has.
        let received = match hook.verify(name, headers, &body) {
            Ok(delivery) => match self.count_delivery(name, hook.per_minute) {
                Ok(()) => hook.receive(manager, name, headers, &body, &delivery).await,
                Err(problem) => Err(problem),
            },
            Err(problem) => Err(problem),
        };
        let outcome = match &received {
            Ok((outcome, _)) => outcome,
            Err(problem) if problem.kind == "rate-limited" => "limited",
            Err(problem) => {
                tracing::info!(hook = name, why = problem.detail, "a webhook is refused");
                if problem.status < 500 { "refused" } else { "failed" }
            }
        };
        self.count_received(name, outcome);
        received.map(|(_, response)| response)
    }
}

fn invalid_signature(name: &str, why: &dyn std::fmt::Display) -> ProblemDetails {
    ProblemDetails::new("invalid-signature", format!("webhook {name:?}: {why}"))
}

impl IncomingHook {
    fn verify(&self, name: &str, headers: &HeaderMap, body: &[u8]) -> RouteResult<SignedDelivery> {
        let delivery = self.sender.verify(&self.key, headers, body, SystemTime::now());
        delivery.map_err(|error| invalid_signature(name, &error))
    }

    async fn receive(
        &self,
        manager: &ProxyManager,
        name: &str,
        headers: &HeaderMap,
        body: &[u8],
        delivery: &SignedDelivery,
    ) -> RouteResult<(&'static str, Response)> {
        let content = parse(headers, body)?;
        if let (WebhookSender::Slack, Some("url_verification")) = (self.sender, content["type"].as_str()) {
            let challenge = content["challenge"].as_str().unwrap_or_default().to_owned();
            return Ok(("verified", ([(header::CONTENT_TYPE, "text/plain")], challenge).into_response()));
        }
        // Whose time is signed, sends each signature once.
        let fingerprint = if self.sender == WebhookSender::Github { delivery.id.as_str() } else { ONCE };
        let seen = format!("webhook {name} {}", delivery.signature);
        let guard = match manager.begin_request(&hash(&[seen.as_bytes()]), fingerprint, None).await? {
            RequestStart::New(guard) | RequestStart::Interrupted(_, guard) => Some(guard),
            RequestStart::Answered(_) if self.sender == WebhookSender::Github => None,
            RequestStart::Answered(_) | RequestStart::Reused => {
                return Err(invalid_signature(name, &"this signature was used already: it is a replay"));
            }
        };
        let is_new = match self.append(manager, name, delivery, content).await {
            Ok(is_new) => is_new,
            Err(problem) => {
                // Nothing was done with it, or it is found in the stream: the sender may send it again.
                if let Some(guard) = guard
                    && let Err(error) = guard.forget().await
                {
                    tracing::warn!(%error, "failed to forget a signature");
                }
                return Err(problem);
            }
        };
        if let Some(guard) = guard {
            guard.answer(String::new()).await?;
        }
        let outcome = if is_new { "accepted" } else { "duplicate" };
        Ok((
            outcome,
            (StatusCode::ACCEPTED, axum::Json(json!({ "outcome": outcome, "id": delivery.id }))).into_response(),
        ))
    }

    /// Appends a delivery to its stream. Returns false if it is there already.
    async fn append(
        &self,
        manager: &ProxyManager,
        name: &str,
        delivery: &SignedDelivery,
        content: Value,
    ) -> RouteResult<bool> {
        let payload = json!({ "event": delivery.event, "id": delivery.id, "body": content });
        let path = stream_name(&self.stream, &payload);
        check_path(&path)?;
        let message = json!({ "type": format!("{name}:webhook-received"), "version": 1, "payload": payload });
        let message = message.to_string();
        let append = ByteStreamAppend {
            path: path.clone(),
            content_type: JSON.to_owned(),
            content: StreamContent::messages([message.as_bytes()]),
            closes: false,
            seq: None,
            producer: Some(ProducerSequence { id: format!("{name} {}", delivery.id), epoch: 0, seq: 0 }),
        };
        // The second time, the stream was created.
        for _ in 0..2 {
            let change = ByteStreamChange::Append(Box::new(append.clone()));
            match manager.change_byte_stream(change).await.map_err(log_problem)? {
                ByteStreamOutcome::Appended(_) => return Ok(true),
                ByteStreamOutcome::Duplicate(..) => return Ok(false),
                ByteStreamOutcome::Refused(ByteStreamRefusal::Unknown) => {}
                ByteStreamOutcome::Refused(refusal) => {
                    let detail = format!("the delivery does not fit into the stream {path:?}: {refusal}");
                    return Err(ProblemDetails::new("stream-conflict", detail));
                }
                _ => return Err(ProblemDetails::failed("the event log gave no answer to an append")),
            }
            let new = NewByteStream {
                path: path.clone(),
                content_type: Some(JSON.to_owned()),
                lifetime: StreamLifetime::Unbounded,
                is_closed: false,
                content: StreamContent::default(),
                fork: None,
                has_rules: false,
            };
            if let ByteStreamOutcome::Refused(refusal) =
                manager.change_byte_stream(ByteStreamChange::Create(Box::new(new))).await.map_err(log_problem)?
            {
                return Err(ProblemDetails::new("stream-conflict", format!("create the stream {path:?}: {refusal}")));
            }
        }
        Err(ProblemDetails::new("stream-conflict", format!("the stream {path:?} was deleted meanwhile: send it again")))
    }
}

/// Fills the name of a stream. What no name of a stream has becomes `-`.
fn stream_name(template: &str, payload: &Value) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    let name: String = fill_text(template, payload).chars().map(|c| if is_part(c) { c } else { '-' }).collect();
    name.trim_matches('/').to_owned()
}

/// Parses a body: JSON, or the fields of a form.
fn parse(headers: &HeaderMap, body: &[u8]) -> RouteResult<Value> {
    let media_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if media_type.starts_with("application/x-www-form-urlencoded") {
        let fields = form_fields(body);
        // Slack's interactive messages and GitHub's forms have all of it in one field.
        return match fields.get("payload").and_then(Value::as_str).map(serde_json::from_str) {
            Some(Ok(payload)) => Ok(payload),
            _ => Ok(Value::Object(fields)),
        };
    }
    serde_json::from_slice(body)
        .map_err(|error| ProblemDetails::usage(format!("the webhook's body is no JSON: {error}")))
}

/// Returns the fields of a form, in `application/x-www-form-urlencoded`.
pub(super) fn form_fields(body: &[u8]) -> Map<String, Value> {
    let text = String::from_utf8_lossy(body);
    let decoded = |text: &str| {
        let spaced = text.replace('+', " ");
        percent_encoding::percent_decode_str(&spaced).decode_utf8_lossy().into_owned()
    };
    let fields = text.split('&').filter(|field| !field.is_empty());
    fields
        .map(|field| field.split_once('=').unwrap_or((field, "")))
        .map(|(name, value)| (decoded(name), decoded(value).into()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_streams() {
        let payload = json!({ "event": "push", "body": { "n": 7, "repo": "o/r", "evil": "../../x\n" } });
        for (template, name) in [
            ("hooks/github", "hooks/github"),
            ("hooks/pr-{body.n}", "hooks/pr-7"),
            ("{body.repo}/{event}", "o/r/push"),
            ("hooks/{body.none}", "hooks"),
            ("hooks/{body.evil}", "hooks/../../x-"),
        ] {
            assert_eq!(stream_name(template, &payload), name, "{template}");
        }
        assert!(check_path("hooks/../../x-").is_err());
    }

    #[test]
    fn forms() {
        let fields = form_fields(b"command=%2Fask&text=a+b%21&empty=&flag");
        assert_eq!(Value::Object(fields), json!({"command": "/ask", "text": "a b!", "empty": "", "flag": ""}));
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, "application/x-www-form-urlencoded".parse().expect("a value"));
        assert_eq!(parse(&headers, b"payload=%7B%22a%22%3A1%7D").expect("a form"), json!({"a": 1}));
        assert!(parse(&HeaderMap::new(), b"a=b").is_err());
    }
}
