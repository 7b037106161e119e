//! Error for a system feature that is not available here.

/// Feature that is not available, with the reason and advice.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} is not available: {why}; {advice}")]
pub struct UnavailableFeature {
    /// Name of the feature: `a cgroup`, `a PID namespace`, …
    pub what: String,
    /// Operation that failed, and the system's reason.
    pub why: String,
    /// Advice on how to get the feature.
    pub advice: String,
}
