//! Report on sessions whose supervisors had all died before this daemon.

use proxy_manager::{RecoveredSession, RecoveryOutcome};
use serde_json::{Value, json};

use crate::{
    render::{self, count},
    term::{TermStyle, printable},
};

/// Formats one line for people.
pub(super) fn line(found: &RecoveredSession, style: TermStyle) -> String {
    let what = match &found.session_id {
        Some(id) => format!("session {id}"),
        None => printable(&found.found.display().to_string(), false),
    };
    let outcome = match &found.outcome {
        RecoveryOutcome::Ended(receipt) => render::receipt::summary(receipt, style),
        RecoveryOutcome::Swept { ended, left, failure } => {
            let mut text = format!("{} ended in its cgroup", count(ended.len(), "process", "processes"));
            if !left.is_empty() {
                text.push_str(&style.red(format_args!(", {} left", left.len())));
            }
            if let Some(failure) = failure {
                text.push_str(&style.red(format_args!(", {}", printable(failure, false))));
            }
            text
        }
        RecoveryOutcome::Dropped { reason } => printable(reason, false),
        _ => String::from("see the log"),
    };
    let supervisors = match found.supervisors.len() {
        0 => String::new(),
        n => format!(", with {}", count(n, "supervisor", "supervisors")),
    };
    format!("recovered {what}: {outcome}{supervisors}")
}

/// Formats the same as JSON: `{"sessionId","found","empty","receipt","ended","left","failure","supervisors"}`.
pub(super) fn json(found: &RecoveredSession) -> Value {
    let mut value = json!({
        "sessionId": found.session_id,
        "found": found.found,
        "empty": found.is_empty(),
        "supervisors": found.supervisors,
        "receipt": null,
        "ended": [],
        "left": [],
        "failure": null,
    });
    match &found.outcome {
        RecoveryOutcome::Ended(receipt) => {
            value["receipt"] = json!(receipt);
            value["left"] = json!(receipt.survivors);
        }
        RecoveryOutcome::Swept { ended, left, failure } => {
            value["ended"] = ended.iter().map(|(id, command)| json!({ "id": id, "command": command })).collect();
            value["left"] = json!(left);
            value["failure"] = json!(failure);
        }
        RecoveryOutcome::Dropped { reason } => value["failure"] = json!(reason),
        _ => {}
    }
    value
}
