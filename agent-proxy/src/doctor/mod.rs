//! Features of this system, tested by use.

mod sessions;
mod system;

use std::path::Path;

use proxy_manager::Child;
use serde::Serialize;

use crate::{api::Health, client::Client, socket_path::SocketPath};

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Verdict {
    /// The feature is available.
    Ok,
    /// The feature is missing, and nothing depends on it.
    Note,
    /// The feature is missing, and should be there.
    Missing,
}

/// Check of one feature.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Check {
    /// Name of the feature.
    pub(crate) name: &'static str,
    /// Result of the check.
    pub(crate) verdict: Verdict,
    /// True if no session can run without the feature.
    pub(crate) needed: bool,
    /// Finding of the check.
    pub(crate) found: String,
    /// Advice, if there is any.
    pub(crate) advice: Option<String>,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Ok, needed: false, found: found.into(), advice: None }
    }

    fn missing(name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Missing, needed: false, found: found.into(), advice: Some(advice.into()) }
    }

    fn note(name: &'static str, found: impl Into<String>, advice: Option<String>) -> Self {
        Self { name, verdict: Verdict::Note, needed: false, found: found.into(), advice }
    }

    fn needed(self) -> Self {
        Self { needed: true, ..self }
    }
}

/// Returns true if sessions can run, contained by layer A.
pub(crate) fn baseline_is_usable(checks: &[Check]) -> bool {
    checks.iter().all(|check| !check.needed || check.verdict == Verdict::Ok)
}

/// Runs all checks. Starts and ends some sessions; leaves nothing.
pub(crate) async fn examine(child: Child, socket: &SocketPath, directory: Option<&Path>) -> Vec<Check> {
    let mut checks = system::before();
    checks.extend(sessions::examine(child).await);
    checks.extend(system::after(socket, directory));
    checks.extend(event_log(socket).await);
    checks
}

/// Reports the state of the daemon's event log; nothing where no daemon runs.
async fn event_log(socket: &SocketPath) -> Option<Check> {
    const NAME: &str = "event log";
    let health: Health = Client::new(socket.clone()).get("/v1/health").await.ok()?;
    if health.damaged.is_empty() {
        return Some(Check::ok(NAME, "the daemon found no damage"));
    }
    let advice = "see `agent-proxy log check STATE_DIR`; `agent-proxy log salvage` writes what is whole to a new file";
    Some(Check::missing(NAME, format!("damaged: {}", health.damaged.join("; ")), advice))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_needed_decides() {
        let missing = Check::missing("x", "", "do");
        assert!(baseline_is_usable(&[Check::ok("a", "").needed(), missing.clone()]));
        assert!(!baseline_is_usable(&[Check::ok("a", ""), missing.needed()]));
    }
}
