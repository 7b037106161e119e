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
    checks.extend(sessions::examine(child.clone()).await);
    checks.extend(system::after(socket));
    checks.extend(system::agents(child, directory).await);
    checks.extend(daemon(socket).await);
    checks
}

/// Reports what is wrong with the daemon and its event log; nothing where no daemon runs.
async fn daemon(socket: &SocketPath) -> Vec<DoctorCheck> {
    let health: HealthResponse = match DaemonClient::new(socket.clone()).get("/v1/health").await {
        Ok(health) => health,
        Err(problem) if problem.kind == "no-daemon" => return Vec::new(),
        Err(problem) => return vec![DoctorCheck::missing("daemon", problem.detail, "see `agent-proxy status`")],
    };
    let daemon = match health.degraded.is_empty() {
        true => DoctorCheck::ok("daemon", "it is well"),
        false => DoctorCheck::missing(
            "daemon",
            health.degraded.join("; "),
            "`agent-proxy status` says when it is well again",
        ),
    };
    let advice = "see `agent-proxy log check STATE_DIR`; `agent-proxy log salvage` writes what is whole to a new file";
    let log = match health.damaged.is_empty() {
        true => DoctorCheck::ok("event log", "the daemon found no damage"),
        false => DoctorCheck::missing("event log", format!("damaged: {}", health.damaged.join("; ")), advice),
    };
    vec![daemon, log]
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
