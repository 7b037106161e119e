//! Methods of killing a tree.

use serde::{Deserialize, Serialize};

/// Method of killing a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum KillMethod {
    /// `killpg`, and reaping every process it reached.
    Killpg,
    /// Write to `cgroup.kill`, and reaping.
    CgroupKill,
    /// Session with layer A.
    Baseline,
    /// Session with layer B.
    Cgroup,
    /// Session with layer C.
    Strict,
}

impl KillMethod {
    /// All methods, with their names in the table.
    pub(super) const ALL: [(Self, &'static str); 5] = [
        (Self::Killpg, "killpg"),
        (Self::CgroupKill, "raw cgroup.kill"),
        (Self::Baseline, "session, baseline"),
        (Self::Cgroup, "session, cgroup"),
        (Self::Strict, "session, strict"),
    ];

    /// Returns true for a session of the product.
    pub(super) fn is_ours(self) -> bool {
        matches!(self, Self::Baseline | Self::Cgroup | Self::Strict)
    }
}
