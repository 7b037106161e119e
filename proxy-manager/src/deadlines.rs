//! Deadlines of the manager's calls.

use std::time::Duration;

/// Deadlines of a manager. Every call ends, at the latest, with [`Error::Deadline`](crate::Error::Deadline).
///
/// ```
/// use std::time::Duration;
/// use proxy_manager::Deadlines;
/// let patient = Deadlines { start: Duration::from_secs(120), ..Deadlines::default() };
/// assert_eq!(patient.control, Duration::from_secs(10));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// Wait for the fork server's hello in `build`. 5 s.
    pub hello: Duration,
    /// Wait for an agent to be ready in `start_session`. 30 s.
    pub start: Duration,
    /// Wait for a proxy to answer a call. Kills of processes get their grace on top. 10 s. Processes that survive a
    /// kill are reported 6 s after its grace; a shorter deadline misses that report.
    pub control: Duration,
    /// Wait for an agent to answer an [`Operation`](crate::Operation). 30 s.
    pub operation: Duration,
    /// Wait for an agent to compact its conversation, which takes a request to its model. 5 min.
    pub compact: Duration,
    /// Time after its grace that a proxy may take for a kill. Later it counts as wedged, and the fork server is asked
    /// to end its session without it. 2 s.
    pub wedged: Duration,
    /// Wait for the fork server to end a session or to report a proxy's death, after all graces. 10 s. A deadline below
    /// 7 s misses the report of survivors.
    pub kill: Duration,
    /// Wait for the fork server to exit in `shutdown`, after the last session has ended. 10 s.
    pub shutdown: Duration,
    /// Time that the fork server may stand still: stopped again whenever it is continued (which is done within 0.25 s), or silent without
    /// running. Then it is killed, the host ends its sessions, and another one takes its place. `None` for not watched at all. 1 s.
    pub fork_server: Option<Duration>,
    /// Detection of proxies that do not answer any more; `None` for none.
    pub health: Option<HealthPolicy>,
}

/// Health check of a session's proxy: a silent proxy is sent a ping.
///
/// ```
/// use std::time::Duration;
/// use proxy_manager::{Deadlines, HealthPolicy};
/// let health = HealthPolicy { interval: Duration::from_secs(5), ends: true, ..HealthPolicy::default() };
/// let strict = Deadlines { health: Some(health), ..Deadlines::default() };
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthPolicy {
    /// Silence before a ping is sent, and then before its answer counts as missed. 30 s.
    pub interval: Duration,
    /// Number of missed answers in a row after which the session is unresponsive, shown by a `session:status`. 3.
    pub misses: u32,
    /// True if the fork server then ends the session without the proxy. False by default.
    pub ends: bool,
}

impl Default for HealthPolicy {
    fn default() -> Self {
        Self { interval: Duration::from_secs(30), misses: 3, ends: false }
    }
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            hello: Duration::from_secs(5),
            start: Duration::from_secs(30),
            control: Duration::from_secs(10),
            operation: Duration::from_secs(30),
            compact: Duration::from_secs(300),
            wedged: Duration::from_secs(2),
            kill: Duration::from_secs(10),
            shutdown: Duration::from_secs(10),
            fork_server: Some(Duration::from_secs(1)),
            health: Some(HealthPolicy::default()),
        }
    }
}
