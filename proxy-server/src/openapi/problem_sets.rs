//! Kinds of problems that many routes have in common.

/// Problems of every call of the manager.
pub(crate) const MANAGER: &[&str] = &["failed", "system", "log", "shut-down"];

/// Problems of a session that is named in the path.
pub(crate) const SESSION: &[&str] = &[
    "usage",
    "invalid-config",
    "ambiguous-id",
    "unknown-session",
    "ended",
    "node-silent",
    "other-node",
    "fleet-unreachable",
    "failed",
    "system",
    "log",
    "shut-down",
];

/// Problems of a call that the session's processes answer, in addition to [`SESSION`].
pub(crate) const PROXY: &[&str] = &[
    "suspended",
    "handed-over",
    "unsupported",
    "deadline",
    "agent-died",
    "proxy-died",
    "fork-server-died",
    "protocol",
];

/// Problems of a session's start, in addition to those of [`MANAGER`].
pub(crate) const START: &[&str] = &[
    "usage",
    "invalid-config",
    "unknown-agent",
    "unknown-profile",
    "unknown-model",
    "program-not-found",
    "cwd-missing",
    "child-unusable",
    "fds-exhausted",
    "native-session-missing",
    "native-session-busy",
    "secrets-missing",
    "containment-unavailable",
    "too-deep",
    "not-owner",
    "fleet-unavailable",
    "too-many-sessions",
    "draining",
    "version-mismatch",
    "duplicate-session",
    "unsupported",
    "deadline",
    "agent-refused",
    "agent-died",
    "proxy-died",
    "fork-server-died",
    "protocol",
    "ended",
    "survivors",
];

/// Problems of a prompt, in addition to [`SESSION`] and [`PROXY`].
pub(crate) const PROMPT: &[&str] =
    &["busy", "max-prompts", "budget-exceeded", "permission-bypassed", "agent-refused", "draining"];

/// Problems of configuration files.
pub(crate) const CONFIGURATION: &[&str] = &["invalid-config", "usage", "system", "failed", "busy"];
