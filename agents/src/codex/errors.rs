//! Errors of the agent: their text, and whether a retry may succeed.

use serde_json::Value;

use crate::kit::bounds::words;

/// Error code of an overloaded server.
pub(super) const OVERLOADED: i64 = -32001;
/// The code of an error that says that the account's usage limit is reached.
pub(super) const USAGE_LIMIT: &str = "usageLimitExceeded";

/// Which attempt, in words that end with it: `Reconnecting... 2/5`.
pub(super) fn attempt(message: &str) -> Option<u32> {
    let (_, last) = message.rsplit_once(' ')?;
    last.split_once('/')?.0.parse().ok()
}

/// Returns the code of an error, its text, and whether a retry may succeed.
pub(super) fn describe(error: &Value) -> (String, String, bool) {
    let info = &error["codexErrorInfo"];
    let (code, detail) = match info {
        Value::Object(info) => {
            info.iter().next().map_or(("other", &Value::Null), |(code, detail)| (code.as_str(), detail))
        }
        other => (other.as_str().unwrap_or("other"), &Value::Null),
    };
    let message = error["message"].as_str().unwrap_or("the turn failed");
    // A provider's answer is the message as raw JSON.
    let inner = serde_json::from_str::<Value>(message).ok();
    let inner = inner.as_ref().and_then(|inner| inner["error"]["message"].as_str());
    let message = match error["additionalDetails"].as_str() {
        Some(details) => format!("{message}: {details}"),
        None => inner.unwrap_or(message).to_owned(),
    };
    let status = detail["httpStatusCode"].as_u64();
    let retryable = match (code, status) {
        (_, Some(status)) => status == 408 || status == 429 || status >= 500,
        (
            "usageLimitExceeded"
            | "rateLimitExceeded"
            | "flexUnavailable"
            | "serverOverloaded"
            | "policyCapacityUnavailable"
            | "internalServerError"
            | "httpConnectionFailed"
            | "responseStreamConnectionFailed"
            | "responseStreamDisconnected"
            | "responseTooManyFailedAttempts",
            None,
        ) => true,
        // A connection that breaks for the last time has no code of its own.
        _ => message.starts_with("stream disconnected"),
    };
    (words(code), words(&message), retryable)
}
