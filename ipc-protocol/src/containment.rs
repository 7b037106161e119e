//! How a session is held together: what was asked for, and what the machine gave.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{Layer, LimitInForce};

/// Environment variable of every process of a session. Its value is unique to one run of one session: by it what has
/// left the process tree is told apart from everybody else's processes.
pub const MARKER: &str = "AGENT_PROXY_RUN";

/// Which layers hold a session. A layer that is asked for and cannot be had refuses the session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Containment {
    /// A cgroup where one can be had, else the baseline. Never strict.
    #[default]
    Auto,
    /// Process group, subreaper, kill loop to a proof, the fork server's guard.
    Baseline,
    /// The baseline and a cgroup (version 2) of the session's own.
    Cgroup,
    /// The baseline and a PID and mount namespace of the session's own; a cgroup too, where one can be had.
    Strict,
}

impl Containment {
    /// Every value, with its name.
    pub const ALL: [(Self, &'static str); 4] =
        [(Self::Auto, "auto"), (Self::Baseline, "baseline"), (Self::Cgroup, "cgroup"), (Self::Strict, "strict")];
}

impl fmt::Display for Containment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::ALL[*self as usize].1)
    }
}

/// Text that names no [`Containment`].
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown containment {0:?}: use one of auto baseline cgroup strict")]
pub struct UnknownContainment(pub String);

impl FromStr for Containment {
    type Err = UnknownContainment;

    fn from_str(text: &str) -> Result<Self, UnknownContainment> {
        let known = Self::ALL.iter().find(|(_, name)| *name == text);
        known.map(|(value, _)| *value).ok_or_else(|| UnknownContainment(text.chars().take(80).collect()))
    }
}

/// What protects the supervisors, and other sessions, from a session's processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Hardening {
    /// The proxy is not dumpable: a process of the same user can neither ptrace it nor read its memory, environment and
    /// descriptors. On by default.
    pub undumpable: bool,
    /// A landlock domain around the agent: it can neither signal nor ptrace anything outside its session, nor reach
    /// abstract sockets there. By default on for root; for others it takes `no_new_privs`, which disables sudo, so it has
    /// to be asked for. `true` where the kernel has no such scope refuses the session.
    pub landlock: Option<bool>,
}

impl Default for Hardening {
    fn default() -> Self {
        Self { undumpable: true, landlock: None }
    }
}

/// What a proxy and its guard are told about how their session is held: resolved by the host, no choice left.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enclosure {
    /// Value of [`MARKER`] in the environment of every process of this run.
    pub marker: String,
    /// Directory of the session's cgroup, absolute. The proxy makes it; whoever ends the session removes it.
    pub cgroup: Option<String>,
    /// Whether the agent gets a PID and mount namespace.
    pub strict: bool,
}

/// Who sees a session's processes come and go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Observer {
    /// The kernel's proc connector, listened to by the fork server: every process.
    Connector,
    /// The proxy looks at `/proc`: what lives shorter than a look apart can be missed.
    Polling,
}

/// What holds in a session, as its `session:started` says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Measures {
    /// Layers of containment.
    pub layers: Vec<Layer>,
    /// Who sees its processes come and go.
    pub observer: Observer,
    /// Its limits, each with what enforces it.
    pub limits: Vec<LimitInForce>,
    /// Whether the proxy is not dumpable.
    pub undumpable: bool,
    /// Whether the agent is in a landlock domain.
    pub landlock: bool,
    /// Whether the agent sees no writable cgroup file but those of its session's group.
    #[serde(default)]
    pub own_cgroups_only: bool,
    /// The sandbox of the agent's own around its tools: `none`, `read-only`, `workspace-write`, or a word of the agent's; `null`
    /// where that is not known.
    #[serde(default)]
    pub agent_sandbox: Option<String>,
}

impl Default for Measures {
    /// Layer A, seen by polling; nothing else.
    fn default() -> Self {
        Self {
            layers: vec![Layer::Baseline],
            observer: Observer::Polling,
            limits: Vec::new(),
            undumpable: false,
            landlock: false,
            own_cgroups_only: false,
            agent_sandbox: None,
        }
    }
}

/// What an abort does to processes, besides cancelling the turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum AbortPolicy {
    /// Nothing.
    #[default]
    LeaveProcesses,
    /// What started since the turn began is ended. What was there before, the agent among it, stays.
    KillTurnProcesses,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_containment_is_at_its_place_and_parses_back() {
        for (value, name) in Containment::ALL {
            assert_eq!(value.to_string(), name);
            assert_eq!(name.parse(), Ok(value));
        }
        assert!("Cgroup2".parse::<Containment>().is_err());
    }
}
