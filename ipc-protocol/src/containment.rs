//! Containment of a session: the requested layers, and those in force.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{
    ContainerSpec, ContainerStatus, ContainmentLayer, FileLayer, LimitInForce, OverlaySpec, SandboxSpec, SandboxStatus,
};

/// Environment variable of every process of a session. Its value is unique to one run of one session, and
/// identifies processes that have left the process tree.
pub const MARKER: &str = "AGENT_PROXY_RUN";

/// Layers that contain a session. A session whose requested layer is not available is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Containment {
    /// Uses a cgroup if one is available, else the baseline. Never strict.
    #[default]
    Auto,
    /// Process group, subreaper, kill loop to a proof, the fork server's guard.
    Baseline,
    /// Baseline, and a cgroup (version 2) for the session alone.
    Cgroup,
    /// Baseline, and a PID and mount namespace for the session alone; a cgroup too, if one is available.
    Strict,
}

impl Containment {
    /// All values, each with its name.
    pub const ALL: [(Self, &'static str); 4] =
        [(Self::Auto, "auto"), (Self::Baseline, "baseline"), (Self::Cgroup, "cgroup"), (Self::Strict, "strict")];
}

impl fmt::Display for Containment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::ALL[*self as usize].1)
    }
}

/// Error for text that names no [`Containment`].
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

/// Protection of the supervisors, and of other sessions, from a session's processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Hardening {
    /// Makes the proxy undumpable: a process of the same user can neither ptrace it nor read its memory,
    /// environment and descriptors. On by default.
    pub undumpable: bool,
    /// Puts the agent into a landlock domain: it can neither signal nor ptrace anything outside its session, nor
    /// reach abstract sockets there. On by default for root. For others it needs `no_new_privs`, which disables
    /// sudo, so it must be requested. `true` refuses the session if the kernel lacks that scope.
    pub landlock: Option<bool>,
}

impl Default for Hardening {
    fn default() -> Self {
        Self { undumpable: true, landlock: None }
    }
}

/// Containment of a session as its proxy and guard get it: resolved by the host, with no choice left.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainmentSpec {
    /// Value of [`MARKER`] in the environment of every process of this run.
    pub marker: String,
    /// Absolute directory of the session's cgroup. The proxy creates it; whoever ends the session removes it.
    pub cgroup: Option<String>,
    /// True if the agent gets a PID and mount namespace.
    pub strict: bool,
    /// Sandbox of the session.
    #[serde(default)]
    pub sandbox: Option<Box<SandboxSpec>>,
    /// Files out of its reach.
    #[serde(default)]
    pub files: Box<HiddenFiles>,
    /// Container of the agent.
    #[serde(default)]
    pub container: Option<Box<ContainerSpec>>,
    /// Overlay that the agent works in.
    #[serde(default)]
    pub overlay: Option<Box<OverlaySpec>>,
}

/// Files of the server that a session must not reach: with them its agent would be an operator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HiddenFiles {
    /// Directories, and other files, that are hidden. Where that cannot be had nothing starts.
    pub hidden: Vec<String>,
    /// Directories of the session's own below them, which stay visible.
    pub shown: Vec<String>,
    /// Layer that hides them from a session that is not strict.
    #[serde(default)]
    pub layer: FileLayer,
}

impl HiddenFiles {
    /// Returns true if nothing is hidden.
    pub fn is_empty(&self) -> bool {
        self.hidden.is_empty()
    }
}

/// Observer of a session's processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum ObserverKind {
    /// Kernel's proc connector, read by the fork server: sees every process.
    Connector,
    /// Polling of `/proc` by the proxy: can miss a process that lives for less than an interval.
    Polling,
}

/// Measures in force for a session, as reported in its `session:started`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ContainmentStatus {
    /// Layers of containment.
    pub layers: Vec<ContainmentLayer>,
    /// Observer of its processes.
    pub observer: ObserverKind,
    /// Limits, each with its form of enforcement.
    pub limits: Vec<LimitInForce>,
    /// True if the proxy is not dumpable.
    pub undumpable: bool,
    /// True if the agent is in a landlock domain.
    pub landlock: bool,
    /// True if the agent sees no writable cgroup file but those of its session's group.
    pub own_cgroups_only: bool,
    /// The sandbox of the agent's own around its tools: `none`, `read-only`, `workspace-write`, or a word of the agent's; `null`
    /// where that is not known.
    pub agent_sandbox: Option<String>,
    /// The session's sandbox; `null` without one.
    #[serde(default)]
    pub sandbox: Option<SandboxStatus>,
    /// The agent's container; `null` without one.
    #[serde(default)]
    pub container: Option<ContainerStatus>,
}

impl Default for ContainmentStatus {
    /// Returns layer A, observed by polling, and nothing else.
    fn default() -> Self {
        Self {
            layers: vec![ContainmentLayer::Baseline],
            observer: ObserverKind::Polling,
            limits: Vec::new(),
            undumpable: false,
            landlock: false,
            own_cgroups_only: false,
            agent_sandbox: None,
            sandbox: None,
            container: None,
        }
    }
}

/// Effect of an abort on processes, besides cancelling the turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum AbortPolicy {
    /// Leaves all processes.
    #[default]
    LeaveProcesses,
    /// Ends the processes started since the turn began. Older ones, the agent included, stay.
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
