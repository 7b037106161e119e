//! What a session's agent is started in, and what protects the proxy from it.

use ipc_protocol::{AgentSessionConfig, Enclosure, Measures, ProcessId, WireError};
use registry::{Group, Hold, LandlockScope, Namespace, ProcessRegistry, Spawn};

/// Makes the cgroup, the namespaces and the landlock domain that `enclosure` and `config` ask for, has `registry` hold
/// them and `program` start in them. `proxy` is this process. The result says what holds.
///
/// # Errors
/// [`WireError::Unsupported`] names what was asked for and cannot be had; [`WireError::System`]. What was made by then is
/// the registry's to take down.
pub(crate) fn enclose(
    registry: &mut ProcessRegistry,
    program: &mut Spawn,
    proxy: ProcessId,
    config: &AgentSessionConfig,
    enclosure: Enclosure,
) -> Result<Measures, WireError> {
    let Enclosure { marker, cgroup, strict } = enclosure;
    let mut hold = Hold { marker, since: proxy.start_time, strict, ..Hold::default() };
    let made = make(&mut hold, program, config, cgroup.as_deref());
    let layers = hold.layers();
    registry.hold(hold);
    made?;
    registry::set_dumpable(!config.hardening.undumpable).map_err(|error| failed("becoming undumpable", &error))?;
    program.landlock = landlock(config)?;
    let landlock = program.landlock.is_some();
    Ok(Measures { layers, undumpable: config.hardening.undumpable, landlock, ..Measures::default() })
}

fn make(
    hold: &mut Hold,
    program: &mut Spawn,
    config: &AgentSessionConfig,
    cgroup: Option<&str>,
) -> Result<(), WireError> {
    if let Some(path) = cgroup {
        let group = Group::create(path.as_ref()).map_err(|error| failed("making the session's cgroup", &error))?;
        let fd = group.as_fd().try_clone_to_owned();
        hold.group = Some(group);
        program.group = Some(fd.map_err(|error| failed("opening the session's cgroup", &error))?);
    }
    if hold.strict {
        let namespace = Namespace::create(hold.group.as_ref().map(Group::as_fd)).map_err(|why| {
            WireError::Unsupported { agent: config.agent.clone(), operation: format!("be contained strictly: {why}") }
        })?;
        let init = namespace.init().try_clone();
        program.namespace = Some(namespace);
        hold.init = Some(init.map_err(|error| failed("keeping the init of the session's namespaces", &error))?);
    }
    Ok(())
}

/// The domain around the agent. By default root has one where the kernel has any.
fn landlock(config: &AgentSessionConfig) -> Result<Option<LandlockScope>, WireError> {
    match config.hardening.landlock {
        Some(false) => Ok(None),
        None if !rustix::process::geteuid().is_root() => Ok(None),
        None => Ok(LandlockScope::create().ok()),
        Some(true) => LandlockScope::create().map(Some).map_err(|why| WireError::Unsupported {
            agent: config.agent.clone(),
            operation: format!("be held back by landlock: {why}"),
        }),
    }
}

fn failed(operation: &str, error: &std::io::Error) -> WireError {
    WireError::System { operation: operation.into(), reason: error.to_string() }
}
