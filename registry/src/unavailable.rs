//! Why something that the system may offer cannot be had here.

/// What was tried, why it failed, and what would help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} is not available: {why}; {advice}")]
pub struct Unavailable {
    /// What was wanted: `a cgroup`, `a PID namespace`, …
    pub what: String,
    /// What failed, and the system's word for it.
    pub why: String,
    /// What to do to have it.
    pub advice: String,
}
