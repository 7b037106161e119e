//! Protection of supervisors from the processes below them: the landlock scope around a program, and not to be dumpable.

use std::{io, os::fd::OwnedFd};

use ipc_protocol::ErrorChain;
use landlock::{CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreated, Scope};

use crate::{
    UnavailableFeature,
    sys::{self, ExecPlan},
};

/// A landlock domain, for one program ([`crate::SpawnRequest::landlock`]): it, and all below it, can neither signal nor ptrace
/// anything outside, nor connect to abstract sockets there. From outside it is signalled as ever. Without CAP_SYS_ADMIN it
/// takes `no_new_privs` too, which disables sudo.
///
/// Root can still read what CAP_PERFMON opens of any process (Linux 6.16: `environ`, `maps`; not its memory).
#[derive(Debug)]
pub struct LandlockScope(OwnedFd);

impl LandlockScope {
    /// Has the kernel make its rules.
    ///
    /// # Errors
    /// Why it has none.
    pub fn create() -> Result<Self, UnavailableFeature> {
        let create = || -> Result<RulesetCreated, landlock::RulesetError> {
            let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
            ruleset.scope(Scope::Signal | Scope::AbstractUnixSocket)?.create()
        };
        let created = create().map_err(|error| unavailable(ErrorChain(&error).to_string()))?;
        Option::from(created).map(Self).ok_or_else(|| unavailable("the kernel gave no ruleset".into()))
    }

    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    pub(crate) fn into_fd(self) -> OwnedFd {
        self.0
    }
}

/// Tries whether programs can be started in a [`LandlockScope`]: in a child that restricts itself and exits. Any process
/// may ask, with any number of threads.
///
/// # Errors
/// Why not.
pub fn landlock_scope_is_available() -> Result<(), UnavailableFeature> {
    let scope = LandlockScope::create()?;
    let exec = sys::dry_run_exec().map_err(|error| unavailable(error.to_string()))?;
    let tried = sys::dry_run(ExecPlan { landlock: Some(scope.into_fd()), ..exec });
    tried.map_err(|(step, error)| unavailable(format!("{}: {error}", step.name())))
}

fn unavailable(why: String) -> UnavailableFeature {
    UnavailableFeature {
        what: "a landlock scope".into(),
        why,
        advice: "it needs Linux 6.12 or later with landlock among its security modules (boot option lsm=landlock,…)"
            .into(),
    }
}

/// Returns whether others of the same user may ptrace this process and read its memory, environment and descriptors. A fork has
/// what its parent has; an exec makes a process dumpable again.
///
/// # Errors
/// None that Linux is known to give.
pub fn set_dumpable(dumpable: bool) -> io::Result<()> {
    Ok(nix::sys::prctl::set_dumpable(dumpable)?)
}
