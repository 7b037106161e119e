//! Protection of supervisors, and of files, from the processes below them: the landlock domain around a program, and not to be dumpable.

use std::{io, os::fd::OwnedFd, path::PathBuf, sync::Arc};

use ipc_protocol::{ErrorChain, HiddenFiles, SandboxSpec};
use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError, Scope,
};

use crate::{
    UnavailableFeature,
    file_rules::{FileAccess, FileRules},
    sys::{self, ConfinementPlan, ExecPlan},
};

/// Rights that a domain of hidden files takes from whoever has no rule for them. Names of files below a hidden directory can be listed.
const HIDING: ABI = ABI::V3;
/// Rights that a sandbox takes.
const SANDBOX: ABI = ABI::V3;

/// A landlock domain, for one program ([`crate::SpawnRequest::landlock`]): it, and all below it, can neither signal nor ptrace
/// anything outside, nor connect to abstract sockets there. From outside it is signalled as ever. Without CAP_SYS_ADMIN it
/// takes `no_new_privs` too, which disables sudo.
///
/// Root can still read what CAP_PERFMON opens of any process (Linux 6.16: `environ`, `maps`; not its memory).
#[derive(Debug)]
pub struct LandlockScope {
    ruleset: OwnedFd,
    /// What a sandbox needs besides, by the paths that it writes.
    confinement: Option<Arc<[PathBuf]>>,
    /// True if audit tells what it refuses to programs that were executed in it.
    is_logged: bool,
}

impl LandlockScope {
    /// Has the kernel make its rules.
    ///
    /// # Errors
    /// Why it has none.
    pub fn create() -> Result<Self, UnavailableFeature> {
        let create = || -> Result<RulesetCreated, RulesetError> {
            let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
            ruleset.scope(Scope::Signal | Scope::AbstractUnixSocket)?.create()
        };
        let created = create().map_err(|error| unavailable(reason(&error)))?;
        Self::of(created, None)
    }

    /// The same, from which files are hidden as well. Directories around hidden ones show what they have now: what is made in them later
    /// cannot be opened, and nothing can be made there. Kernels without the scope have a domain without it.
    ///
    /// # Errors
    /// Why the kernel cannot hide them.
    pub fn hide(files: &HiddenFiles) -> Result<Self, UnavailableFeature> {
        let failed = |why: String| unavailable_rules("hidden files by landlock", "6.2", why);
        let rules = FileRules::hiding(files).map_err(|error| failed(error.to_string()))?;
        let handled = AccessFs::from_all(HIDING) & !(AccessFs::ReadDir | AccessFs::Execute);
        let create = || -> Result<RulesetCreated, RulesetError> {
            let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement).handle_access(handled)?;
            let ruleset = ruleset.set_compatibility(CompatLevel::BestEffort);
            ruleset.scope(Scope::Signal | Scope::AbstractUnixSocket)?.create()
        };
        let created = create().map_err(|error| failed(reason(&error)))?;
        Self::of(add_rules(created, &rules, handled).map_err(failed)?, None)
    }

    /// A domain for a sandbox where there is no namespace. Its programs gain no rights by exec, and root has none over the machine. They
    /// make no sockets of the file system, share no memory with others, and change modes, owners and times of what they may write alone.
    ///
    /// # Errors
    /// Why the kernel cannot enforce it.
    pub fn sandbox(spec: &SandboxSpec) -> Result<(Self, FileRules), UnavailableFeature> {
        let failed = |why: String| unavailable_rules("a sandbox by landlock", "6.12", why);
        let rules = FileRules::sandbox(spec).map_err(|error| failed(error.to_string()))?;
        let handled = AccessFs::from_all(SANDBOX);
        let create = || -> Result<RulesetCreated, RulesetError> {
            let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement).handle_access(handled)?;
            ruleset.scope(Scope::Signal | Scope::AbstractUnixSocket)?.create()
        };
        let created = create().map_err(|error| failed(reason(&error)))?;
        let created = add_rules(created, &rules, handled).map_err(failed)?;
        let write = rules.write.iter().cloned().collect();
        Ok((Self::of(created, Some(write))?, rules))
    }

    fn of(created: RulesetCreated, confinement: Option<Arc<[PathBuf]>>) -> Result<Self, UnavailableFeature> {
        let ruleset = Option::from(created).ok_or_else(|| unavailable("the kernel gave no ruleset".into()))?;
        Ok(Self { ruleset, confinement, is_logged: false })
    }

    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            ruleset: self.ruleset.try_clone()?,
            confinement: self.confinement.clone(),
            is_logged: self.is_logged,
        })
    }

    /// Has the kernel's audit tell what is refused ([`crate::LandlockAudit`]), where the kernel can.
    #[must_use]
    pub fn logged(self) -> Self {
        Self { is_logged: true, ..self }
    }

    /// Returns whether audit tells what it refuses.
    pub(crate) fn is_logged(&self) -> bool {
        self.is_logged
    }

    /// Paths that programs of a sandbox write; `None` for a domain of another kind.
    pub(crate) fn confinement(&self) -> Option<Arc<[PathBuf]>> {
        self.confinement.clone()
    }

    pub(crate) fn into_fd(self) -> OwnedFd {
        self.ruleset
    }
}

fn add_rules(
    mut created: RulesetCreated,
    rules: &FileRules,
    handled: BitFlags<AccessFs>,
) -> Result<RulesetCreated, String> {
    let file = AccessFs::from_file(SANDBOX);
    let read = AccessFs::Execute | AccessFs::ReadFile | AccessFs::ReadDir;
    let devices = AccessFs::MakeChar | AccessFs::MakeBlock;
    for (path, access) in &rules.rules {
        let allowed = match access {
            FileAccess::Read => read,
            FileAccess::Device => read | AccessFs::WriteFile | AccessFs::Truncate,
            FileAccess::Write => AccessFs::from_all(SANDBOX) & !devices,
            FileAccess::All => AccessFs::from_all(SANDBOX),
        };
        // What has gone meanwhile needs no rule.
        let Ok(fd) = PathFd::new(path) else { continue };
        let allowed = if path.is_dir() { allowed } else { allowed & file };
        created = created
            .add_rule(PathBeneath::new(fd, allowed & handled))
            .map_err(|error| format!("{}: {}", path.display(), ErrorChain(&error)))?;
    }
    Ok(created)
}

/// Tries whether a sandbox can be had without namespaces, in a child that is gone afterwards. Any process may ask, with any number of
/// threads.
///
/// # Errors
/// Why not.
pub fn landlock_sandbox_is_available() -> Result<(), UnavailableFeature> {
    let failed = |why: String| unavailable_rules("a sandbox by landlock", "6.12", why);
    let (scope, _) = LandlockScope::sandbox(&SandboxSpec::default())?;
    let (plan, _listener) = ConfinementPlan::new().map_err(|error| failed(error.to_string()))?;
    let exec = sys::dry_run_exec().map_err(|error| failed(error.to_string()))?;
    let exec = ExecPlan { landlock: Some(scope.into_fd()), confinement: Some(plan), ..exec };
    sys::dry_run(exec).map_err(|(step, error)| failed(format!("{}: {error}", step.name())))
}

/// Reason why there is no ruleset. The crate lists the bits of rights that a kernel lacks.
fn reason(error: &RulesetError) -> String {
    let text = ErrorChain(error).to_string();
    if text.contains("incompatible") { "this kernel does not know its rules".to_owned() } else { text }
}

fn unavailable_rules(what: &str, version: &str, why: String) -> UnavailableFeature {
    let advice = format!(
        "it needs Linux {version} or later with landlock among its security modules (boot option lsm=landlock,…), or user namespaces"
    );
    UnavailableFeature { what: what.into(), why, advice }
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
