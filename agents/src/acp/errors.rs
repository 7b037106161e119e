//! Errors of the agent: their text, and whether a retry may succeed.
//!
//! The protocol has hardly any field for this, and each agent uses its own: an HTTP status as the code (Gemini), a word in `data`
//! (the wrappers of Claude Code and Codex), or the message alone.

use agent_client_protocol_schema::v1;
use ipc_protocol::Event;
use serde_json::Value;

/// Longest text that is forwarded, in characters.
const MAX_TEXT: usize = 2000;
/// JSON-RPC's internal error: often an error of the model, which often disappears on a retry.
const INTERNAL: i32 = -32603;
/// Words before an HTTP status.
const BEFORE_STATUS: [&str; 4] = ["API Error: ", "last status: ", "status code ", "HTTP "];
/// Fields in which agents put their own word for an error.
const WORDS: [&str; 3] = ["errorKind", "codex_error_info", "errorName"];
/// Parts of a message that mean that a retry will fail too.
const FINAL: [&str; 3] = ["invalid_request", "INVALID_ARGUMENT", "authentication_error"];

/// Converts an error to its event.
pub(super) fn event(error: &v1::Error) -> Event {
    let code = i32::from(error.code);
    let status = status(error);
    let word = error_kind(error);
    let message = describe(error);
    let is_final = || FINAL.iter().any(|word| message.contains(word)) || word.as_deref() == Some("APIError");
    let retryable = match status {
        Some(status) => matches!(status, 408 | 409 | 425 | 429 | 500..),
        None => code == INTERNAL && !is_final(),
    };
    let code = status.map(|status| status.to_string()).or(word).unwrap_or_else(|| code.to_string());
    Event::error(code, message, retryable)
}

/// Whether it says that the account's usage limit is reached. When that is reset is in its words alone.
pub(super) fn usage_limit(error: &v1::Error) -> Option<Event> {
    let limit = error_kind(error).filter(|word| word == "usage_limit_exceeded")?;
    Some(Event::UsageLimited { limit, message: describe(error), resets_at: None, waits: false })
}

/// An error in one line of bounded length.
pub(super) fn describe(error: &v1::Error) -> String {
    let mut text = inner_message(&error.message).unwrap_or_else(|| error.message.clone());
    if let Some(data) = &error.data {
        let said = ["message", "details"].into_iter().find_map(|field| data.get(field)?.as_str()).or(data.as_str());
        let said = said.map(|said| inner_message(said).unwrap_or_else(|| said.to_owned()));
        // A word for the error in `data` is for machines and is left out.
        if let Some(said) = said.or_else(|| WORDS.iter().all(|word| data.get(word).is_none()).then(|| data.to_string()))
        {
            text = format!("{text}: {said}");
        }
    }
    text.chars().take(MAX_TEXT).collect()
}

/// Extracts the model's own error from a message that consists of it.
fn inner_message(message: &str) -> Option<String> {
    let inner = serde_json::from_str::<Value>(message).ok()?;
    let inner = inner.get("error")?;
    let kind = ["type", "status"].into_iter().find_map(|field| inner.get(field)?.as_str()).unwrap_or_default();
    Some(format!("{} ({kind})", inner.get("message")?.as_str()?))
}

/// Returns the HTTP status of the model's answer, if the error names it.
fn status(error: &v1::Error) -> Option<u16> {
    let is_status = |number: &u64| (400..600).contains(number);
    let of_code = u64::try_from(i32::from(error.code)).ok();
    let info = error.data.as_ref().and_then(|data| data.get("codex_error_info")).and_then(Value::as_object);
    let of_info = info.and_then(|info| info.values().find_map(|value| value.get("http_status_code")?.as_u64()));
    let texts = [Some(error.message.as_str()), error.data.as_ref().and_then(|data| data.get("message")?.as_str())];
    let of_text = texts
        .into_iter()
        .flatten()
        .find_map(|text| BEFORE_STATUS.iter().find_map(|before| text.split_once(before)?.1.get(..3)?.parse().ok()));
    let details = error.data.as_ref().and_then(|data| data.get("details")?.as_str());
    let of_details = details.and_then(|details| details.split(' ').next()?.parse().ok());
    let status = [of_code, of_info, of_text, of_details].into_iter().flatten().find(is_status)?;
    u16::try_from(status).ok()
}

/// Returns the agent's own word for the error.
fn error_kind(error: &v1::Error) -> Option<String> {
    let data = error.data.as_ref()?;
    let word = WORDS.into_iter().find_map(|field| data.get(field)?.as_str())?;
    (!matches!(word, "unknown" | "other") && word.len() <= 100).then(|| word.to_owned())
}

#[cfg(test)]
mod tests {
    use ipc_protocol::Event;
    use serde_json::json;

    use super::*;

    fn said(error: serde_json::Value) -> (String, String, bool) {
        match event(&serde_json::from_value(error).expect("an error")) {
            Event::Error { code, message, retryable, attempt: None, .. } => (code, message, retryable),
            other => panic!("{other:?}"),
        }
    }

    /// Errors as the agents sent them when the model answered 400, 429 or 500, or broke off.
    #[test]
    fn every_agent_says_it_in_its_own_way() {
        let gemini = r#"{"error":{"code":400,"message":"an error","status":"INVALID_ARGUMENT"}}"#;
        let codex = r#"{"error":{"message":"an error","type":"invalid_request_error","param":null}}"#;
        for (error, code, retryable) in [
            (json!({"code": 400, "message": gemini}), "400", false),
            (json!({"code": 500, "message": "terminated"}), "500", true),
            (
                json!({"code": -32603, "message": "Internal error", "data": {"message": codex, "codex_error_info": "other"}}),
                "-32603",
                false,
            ),
            (
                json!({"code": -32603, "message": "Internal error", "data": {"message": "exceeded retry limit, last status: 429",
                    "codex_error_info": {"response_too_many_failed_attempts": {"http_status_code": 429}}}}),
                "429",
                true,
            ),
            (
                json!({"code": -32603, "message": "Internal error", "data": {"message": "high demand",
                    "codex_error_info": "internal_server_error"}}),
                "internal_server_error",
                true,
            ),
            (
                json!({"code": -32603, "message": "Internal error", "data": {"message": "stream disconnected",
                    "codex_error_info": "other"}}),
                "-32603",
                true,
            ),
            (
                json!({"code": -32603, "message": "Internal error: API Error: 400 an error", "data": {"errorKind": "unknown"}}),
                "400",
                false,
            ),
            (
                json!({"code": -32603, "message": "Internal error: API Error: 500 an error", "data": {"errorKind": "server_error"}}),
                "500",
                true,
            ),
            (
                json!({"code": -32603, "message": "Internal error: an error", "data": {"service": "session", "errorName": "APIError"}}),
                "APIError",
                false,
            ),
            (json!({"code": -32603, "message": "Internal error", "data": {"details": "400 an error"}}), "400", false),
            (json!({"code": -32602, "message": "Session not found"}), "-32602", false),
        ] {
            let (said_code, message, said_retryable) = said(error.clone());
            assert_eq!((said_code.as_str(), said_retryable), (code, retryable), "{error} {message}");
        }
        assert_eq!(said(json!({"code": 400, "message": gemini})).1, "an error (INVALID_ARGUMENT)");
        let error = json!({"code": -32603, "message": "an error", "data": {"errorName": "APIError"}});
        assert_eq!(said(error).1, "an error");
        assert_eq!(said(json!({"code": 1, "message": "an error", "data": {"a": 1}})).1, r#"an error: {"a":1}"#);
    }
}
