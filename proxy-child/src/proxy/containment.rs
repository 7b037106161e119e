//! Containment of a session's agent, and the protection of the proxy from it.

use std::{path::PathBuf, sync::Arc};

use ipc_protocol::{
    AgentSessionConfig, ContainmentSpec, ContainmentStatus, FileLayer, HiddenFiles, ModelUpstream, OverlaySpec,
    ProcessId, SandboxSpec, SandboxStatus, WireError,
};
use registry::{
    FileRules, HidingNamespace, LandlockScope, MountView, ProcessRegistry, SandboxMounts, SessionCgroup, SessionHold,
    SessionNamespace, SessionNetwork, SpawnRequest, SpawnedProcess,
};
use tokio::sync::Notify;

use super::egress::{EgressSockets, SessionEgress};

/// What holds a session, and its way out.
pub(crate) struct SessionEnclosure {
    pub(crate) status: ContainmentStatus,
    pub(crate) network: Option<OwnNetwork>,
}

/// Network of a session's own.
pub(crate) struct OwnNetwork {
    pub(crate) entry: Arc<SessionNetwork>,
    pub(crate) egress: SessionEgress,
}

/// Makes the cgroup, the namespaces and the landlock domain that `enclosure` and `config` ask for, has `registry` hold
/// them and `program` start in them. `proxy` is this process. The result says what holds.
///
/// # Errors
/// [`WireError::Unsupported`] names what was asked for and cannot be had; [`WireError::System`]. What was made by then is
/// the registry's to take down.
pub(crate) fn enclose(
    registry: &mut ProcessRegistry,
    program: &mut SpawnRequest,
    proxy: ProcessId,
    config: &AgentSessionConfig,
    (enclosure, private, upstream): (ContainmentSpec, &[String], Option<ModelUpstream>),
    wake: &Arc<Notify>,
) -> Result<SessionEnclosure, WireError> {
    let ContainmentSpec { marker, cgroup, strict, sandbox, files, container, overlay } = enclosure;
    let mut hold = SessionHold { marker, since: proxy.start_time, strict, ..SessionHold::default() };
    let mounts = (private, sandbox.as_deref(), overlay.as_deref());
    let made = make(&mut hold, program, config, &files, cgroup.as_deref(), mounts);
    let layers = hold.layers();
    registry.set_hold(hold);
    let sandbox = made?;
    registry::set_dumpable(!config.hardening.undumpable)
        .map_err(|error| WireError::system("becoming undumpable", &error))?;
    // In a landlock domain an engine could mount nothing, and its own program is nobody's agent.
    if program.landlock.is_none() && container.is_none() {
        program.landlock = landlock(config, sandbox.is_some(), !files.is_empty() && !strict)?;
    }
    let landlock = program.landlock.is_some();
    program.oom_score_adj = Some(registry::agent_oom_score_adj());
    // Of a program that gets its view when it is started, only that tells whether it did: `sees_own_cgroups_only`.
    let own_cgroups_only = (program.view.is_some() && cgroup.is_some())
        || program.namespace.as_ref().is_some_and(|space| space.view_failure().is_none());
    let network = own_network(config, program, (sandbox.as_ref(), upstream), wake)?;
    let status = ContainmentStatus {
        layers,
        undumpable: config.hardening.undumpable,
        landlock,
        own_cgroups_only,
        sandbox,
        container: container.map(|container| container.status),
        ..ContainmentStatus::default()
    };
    Ok(SessionEnclosure { status, network })
}

/// Opens the way out of a network of the session's own.
fn own_network(
    config: &AgentSessionConfig,
    program: &SpawnRequest,
    (sandbox, upstream): (Option<&SandboxStatus>, Option<ModelUpstream>),
    wake: &Arc<Notify>,
) -> Result<Option<OwnNetwork>, WireError> {
    let failed = |error| WireError::system("opening the way out of the session's network", &error);
    let (Some(sandbox), Some(namespace)) = (sandbox, &program.namespace) else { return Ok(None) };
    let Some(entry) = namespace.network().map_err(failed)? else {
        if sandbox.network.is_own() {
            let operation = "have a network of its own: there is none in its namespaces".to_owned();
            return Err(WireError::Unsupported { agent: config.agent.clone(), operation });
        }
        return Ok(None);
    };
    let rules = sandbox.network.rules().to_vec();
    let sockets = EgressSockets::new(&rules, upstream.is_some());
    let sockets = entry.listen(&sockets.tcp, &sockets.udp).map_err(failed)?;
    let name = entry.name().map_err(failed)?;
    let egress = SessionEgress::start((rules, upstream), sockets, name, wake.clone()).map_err(failed)?;
    Ok(Some(OwnNetwork { entry: Arc::new(entry), egress }))
}

/// Takes note of what came of the view that a program was to have; there is none where nothing was started.
pub(crate) fn sees_own_cgroups_only(measures: &mut ContainmentStatus, program: Option<&SpawnedProcess>) {
    measures.own_cgroups_only &= program.is_some_and(|program| program.view_failure.is_none());
}

fn make(
    hold: &mut SessionHold,
    program: &mut SpawnRequest,
    config: &AgentSessionConfig,
    files: &HiddenFiles,
    cgroup: Option<&str>,
    (private, sandbox, overlay): (&[String], Option<&SandboxSpec>, Option<&OverlaySpec>),
) -> Result<Option<SandboxStatus>, WireError> {
    let mut status = None;
    if overlay.is_some() && !hold.strict {
        return Err(unsupported(config, "work in an overlay", &"only a strict session has mounts of its own"));
    }
    if let Some(spec) = sandbox.filter(|spec| spec.layer == FileLayer::Landlock) {
        status = Some(confine(program, config, spec)?);
    }
    if let Some(path) = cgroup {
        let group = SessionCgroup::create(path.as_ref())
            .map_err(|error| WireError::system("making the session's cgroup", &error))?;
        let fd = group.as_fd().try_clone_to_owned();
        hold.group = Some(group);
        program.group = Some(fd.map_err(|error| WireError::system("opening the session's cgroup", &error))?);
    }
    let by_mounts = !files.is_empty() && files.layer == FileLayer::Mounts;
    if hold.strict {
        let view =
            MountView::plan(hold.group.as_ref()).map_err(|error| WireError::system("looking for cgroups", &error))?;
        let mut view = view.with_private(private).with_hidden(files);
        if let Some(overlay) = overlay {
            view = view.with_overlay(overlay).map_err(|error| WireError::system("planning the overlay", &error))?;
        }
        let group = hold.group.as_ref().map(SessionCgroup::as_fd);
        let namespace = match sandbox {
            None => SessionNamespace::create_with_view(group, view),
            Some(spec) => {
                let mounts =
                    SandboxMounts::plan(spec).map_err(|error| WireError::system("planning the sandbox", &error))?;
                status = Some(sandbox_status(spec, &mounts.write, &mounts.hidden));
                SessionNamespace::create_with_sandbox(group, view, mounts)
            }
        };
        let namespace = namespace.map_err(|why| {
            let how = match (sandbox, overlay) {
                (Some(_), _) => "be kept in a sandbox",
                (None, Some(_)) => "work in an overlay",
                (None, None) => "be contained strictly",
            };
            WireError::Unsupported { agent: config.agent.clone(), operation: format!("{how}: {why}") }
        })?;
        let init = namespace.init().try_clone();
        program.namespace = Some(namespace);
        hold.init =
            Some(init.map_err(|error| WireError::system("keeping the init of the session's namespaces", &error))?);
    } else if hold.group.is_some() && nix::unistd::geteuid().is_root() {
        // Others cannot mount, and what they may write to of cgroups is their own.
        let view =
            MountView::plan(hold.group.as_ref()).map_err(|error| WireError::system("looking for cgroups", &error))?;
        program.view = Some(if by_mounts { view.with_hidden(files) } else { view });
    } else if by_mounts && nix::unistd::geteuid().is_root() {
        program.view = Some(MountView::unchanged().with_hidden(files));
    } else if by_mounts {
        program.hiding = Some(HidingNamespace::create(files).map_err(|why| unsupported(config, HIDING, &why))?);
    }
    if !files.is_empty() && !by_mounts && !hold.strict {
        if config.hardening.landlock == Some(false) {
            return Err(unsupported(config, HIDING, &"hardening.landlock is false, and nothing else can hide them"));
        }
        program.landlock = Some(LandlockScope::hide(files).map_err(|why| unsupported(config, HIDING, &why))?);
    }
    Ok(status)
}

/// Confines a program to a sandbox without namespaces.
fn confine(
    program: &mut SpawnRequest,
    config: &AgentSessionConfig,
    spec: &SandboxSpec,
) -> Result<SandboxStatus, WireError> {
    let refused = |why: &dyn std::fmt::Display| unsupported(config, "be kept in a sandbox", why);
    if spec.network.is_own() {
        return Err(refused(&"there is no network namespace, which a network of its own needs"));
    }
    let (scope, FileRules { write, hidden, .. }) = LandlockScope::sandbox(spec).map_err(|why| refused(&why))?;
    program.landlock = Some(scope);
    Ok(sandbox_status(spec, &write, &hidden))
}

fn sandbox_status(spec: &SandboxSpec, write: &[PathBuf], hidden: &[PathBuf]) -> SandboxStatus {
    let text = |paths: &[PathBuf]| paths.iter().map(|path| path.to_string_lossy().into_owned()).collect();
    SandboxStatus {
        mode: spec.mode,
        layer: spec.layer.to_string(),
        write: text(write),
        hidden: text(hidden),
        network: spec.network.clone(),
    }
}

/// Operation that a session fails at where the server's files cannot be hidden.
const HIDING: &str = "be kept from the files of a server that listens on the network";

fn unsupported(config: &AgentSessionConfig, operation: &str, why: &dyn std::fmt::Display) -> WireError {
    WireError::Unsupported { agent: config.agent.clone(), operation: format!("{operation}: {why}") }
}

/// The domain around the agent. By default root has one where the kernel has any. In a sandbox that keeps abstract sockets out of
/// reach. With hidden files root needs one (`is_needed`): else it finds them again through any process outside.
fn landlock(
    config: &AgentSessionConfig,
    is_required: bool,
    is_needed: bool,
) -> Result<Option<LandlockScope>, WireError> {
    if is_needed && nix::unistd::geteuid().is_root() {
        return match config.hardening.landlock {
            Some(false) => Err(unsupported(
                config,
                HIDING,
                &"hardening.landlock is false: leave it out, or take strict containment",
            )),
            _ => LandlockScope::create().map(Some).map_err(|why| unsupported(config, HIDING, &why)),
        };
    }
    match config.hardening.landlock.filter(|_| !is_required).or(is_required.then_some(true)) {
        Some(false) => Ok(None),
        None if !nix::unistd::geteuid().is_root() => Ok(None),
        None => Ok(LandlockScope::create().ok()),
        Some(true) => {
            LandlockScope::create().map(Some).map_err(|why| unsupported(config, "be held back by landlock", &why))
        }
    }
}
