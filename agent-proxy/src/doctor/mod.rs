//! Features of this system, tested by use.

mod engines;
mod sessions;
mod system;

use std::path::Path;

use proxy_manager::ChildProgram;
use proxy_server::api::HealthResponse;
pub(crate) use proxy_server::{CheckVerdict, DoctorCheck};

use crate::{client::DaemonClient, socket_path::SocketPath};

/// Returns true if sessions can run, contained by layer A.
pub(crate) fn baseline_is_usable(checks: &[DoctorCheck]) -> bool {
    checks.iter().all(|check| !check.needed || check.verdict == CheckVerdict::Ok)
}

/// Runs all checks. Starts and ends some sessions; leaves nothing.
pub(crate) async fn examine(child: ChildProgram, socket: &SocketPath, directory: Option<&Path>) -> Vec<DoctorCheck> {
    let mut checks = system::before();
    checks.extend(sessions::examine(child).await);
    checks.extend(system::after(socket, directory));
    checks.extend(event_log(socket).await);
    checks
}

/// Reports the state of the daemon's event log; nothing where no daemon runs.
async fn event_log(socket: &SocketPath) -> Option<DoctorCheck> {
    const NAME: &str = "event log";
    let health: HealthResponse = DaemonClient::new(socket.clone()).get("/v1/health").await.ok()?;
    if health.damaged.is_empty() {
        return Some(DoctorCheck::ok(NAME, "the daemon found no damage"));
    }
    let advice = "see `agent-proxy log check STATE_DIR`; `agent-proxy log salvage` writes what is whole to a new file";
    Some(DoctorCheck::missing(NAME, format!("damaged: {}", health.damaged.join("; ")), advice))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_needed_decides() {
        let missing = DoctorCheck::missing("x", "", "do");
        assert!(baseline_is_usable(&[DoctorCheck::ok("a", "").needed(), missing.clone()]));
        assert!(!baseline_is_usable(&[DoctorCheck::ok("a", ""), missing.needed()]));
    }
}
