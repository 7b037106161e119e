//! Container of a session's agent: the engine, the mounts, and the command that starts the agent in it.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use agents::{
    AgentSpec,
    discovery::{SearchPaths, executable},
};
use ipc_protocol::{
    AgentSessionConfig, ContainerEngine, ContainerSpec, ContainerStatus, Containment, EnvVars, HOST_LABEL, HostDeath,
    LimitKind, MARKER, NetworkAccess, RUN_LABEL, SESSION_LABEL, SessionMount, terminal::Surface,
};

use super::{AgentDefaults, DEPTH_MARKER, SESSION_MARKER, invalid};
use crate::{
    container_host::ContainerHost,
    error::{Error, Result},
};

/// Beginning of the names of containers.
pub(crate) const NAME_PREFIX: &str = "agent-proxy-";
/// Variables that mean something to an engine. The container gets them in words, and the engine keeps its own.
const ENGINE_VARIABLES: [&str; 11] =
    ["CONTAINER", "CONTAINERS_", "DBUS_", "DOCKER_", "HOME", "LD_", "PATH", "PODMAN_", "STORAGE_", "TMPDIR", "XDG_"];

/// Container of a session that is about to start.
#[derive(Debug)]
pub(super) struct ContainerPlan {
    pub(super) spec: ContainerSpec,
    /// User that an engine runs the agent as, where files of a mount were another's otherwise.
    user: Option<String>,
    ulimits: Vec<String>,
    session: String,
    marker: String,
    /// Host that the container ends with; `None` where it may outlive that.
    host: Option<ContainerHost>,
}

/// Gives the session the image and the mounts of its agent's row.
pub(super) fn apply_row(config: &mut AgentSessionConfig, spec: &AgentSpec) {
    let container = &mut config.container;
    if container.image.is_none() && !spec.image.is_empty() {
        let tag = if spec.tag.is_empty() { String::new() } else { format!(":{}", spec.tag) };
        container.image = Some(format!("{}{tag}", spec.image));
    }
    if container.image.is_none() {
        return;
    }
    let taken: BTreeSet<String> = container.mounts.iter().map(|mount| mount.target.clone()).collect();
    let rows = spec.mounts.iter().filter(|mount| !taken.contains(&mount.target)).map(|mount| SessionMount {
        source: mount.source.clone(),
        target: mount.target.clone(),
        read_only: mount.read_only,
    });
    container.mounts.splice(0..0, rows);
}

/// Plans the container of a session. `own` are directories of the session's own; `tree` is what its agent
/// works in, with true for a copy of the session's own.
///
/// # Errors
/// [`Error::InvalidConfig`] for an engine that is not there, and for what contradicts a container.
pub(super) fn plan(
    config: &AgentSessionConfig,
    defaults: &AgentDefaults,
    spec: &AgentSpec,
    (marker, own, tree): (&str, &[&Path], (&Path, bool)),
    home: Option<&Path>,
) -> Result<Option<ContainerPlan>> {
    let wanted = &config.container;
    let Some(image) = &wanted.image else {
        if wanted.mounts.is_empty() && wanted.engine.is_none() {
            return Ok(None);
        }
        let reason = "mounts and an engine are of no use without an image: name one (`image`)";
        return Err(invalid("container", reason.to_owned()));
    };
    if image.is_empty() || image.starts_with('-') || image.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(invalid(
            "container.image",
            format!("{image:?} is no name of an image: write it as NAME or NAME:TAG"),
        ));
    }
    let (engine, program) = find_engine(wanted.engine, defaults.engine_env())?;
    check(config, spec, engine)?;
    let mut mounts = Vec::new();
    let at_its_place = |path: &Path| -> Result<SessionMount> {
        let path = super::utf8(&path.to_path_buf())?;
        Ok(SessionMount { source: path.clone(), target: path, read_only: false })
    };
    mounts.push(at_its_place(tree.0)?);
    for path in own {
        mounts.push(at_its_place(path)?);
    }
    let template = &spec.session_config.session_dir_template;
    let target = &spec.session_config.session_dir_target;
    if !template.is_empty() && !target.is_empty() {
        let home = home.map(Path::to_owned).or_else(|| defaults.base_env.0.get("HOME").map(PathBuf::from));
        let home = home.unwrap_or_default();
        let source = template.replace("{home}", &home.to_string_lossy());
        std::fs::create_dir_all(&source)
            .map_err(|error| Error::system(format!("making the directory of conversations {source}"), error))?;
        mounts.push(SessionMount { source, target: target.clone(), read_only: false });
    }
    let users = mounts.iter().take(usize::from(!tree.1)).chain(&wanted.mounts);
    users.clone().try_for_each(|mount| check_hidden(mount, &defaults.hidden))?;
    mounts.extend(wanted.mounts.iter().cloned());
    mounts.iter().try_for_each(check_mount)?;
    let network_off = config.sandbox.network.as_ref().is_some_and(|network| *network == NetworkAccess::Off);
    let name = format!("{NAME_PREFIX}{marker}");
    let status = ContainerStatus { engine, image: image.clone(), name: name.clone(), mounts, network_off };
    let (uid, gid) = (nix::unistd::geteuid(), nix::unistd::getegid());
    // Podman without root maps this user to the container's root; Docker's daemon would be the machine's.
    let user = (engine == ContainerEngine::Docker && !uid.is_root()).then(|| format!("{uid}:{gid}"));
    let host = match config.on_host_death {
        HostDeath::Detach { .. } => None,
        _ => Some(ContainerHost::here().map_err(|error| Error::system("looking at this process", error))?),
    };
    let rlimits = config.limits.iter_set().filter_map(|(limit, value)| match limit {
        LimitKind::OpenFiles => Some(format!("nofile={value}:{value}")),
        LimitKind::FileSize => Some(format!("fsize={value}:{value}")),
        _ => None,
    });
    Ok(Some(ContainerPlan {
        spec: ContainerSpec { program, env: defaults.engine_env().clone(), name, status },
        user,
        ulimits: rlimits.collect(),
        session: config.session_id.to_string(),
        marker: marker.to_owned(),
        host,
    }))
}

/// Finds the engine that is asked for, or the first that is installed.
fn find_engine(wanted: Option<ContainerEngine>, env: &EnvVars) -> Result<(ContainerEngine, String)> {
    let path = env.0.get("PATH").map(|path| std::env::split_paths(path).collect()).unwrap_or_default();
    let places = SearchPaths { path, home: None };
    let tried = ContainerEngine::ALL.into_iter().filter(|(engine, _)| wanted.is_none_or(|wanted| wanted == *engine));
    let found = tried.clone().find_map(|(engine, name)| Some((engine, executable(name, &places)?)));
    let Some((engine, program)) = found else {
        let names = tried.map(|(_, name)| name).collect::<Vec<_>>().join(" nor ");
        let neither = if wanted.is_some() { "no" } else { "neither" };
        let reason = format!("an image needs a container engine, and there is {neither} {names} in PATH: install one");
        return Err(invalid("container.engine", reason));
    };
    Ok((engine, super::utf8(&program)?))
}

/// Programs of the engines that are installed.
pub(crate) fn installed_engines(env: &EnvVars) -> Vec<String> {
    ContainerEngine::ALL.into_iter().filter_map(|(engine, _)| Some(find_engine(Some(engine), env).ok()?.1)).collect()
}

/// Refuses what a container has no place for.
fn check(config: &AgentSessionConfig, spec: &AgentSpec, engine: ContainerEngine) -> Result<()> {
    let refuse = |field, reason: &str| Err(invalid(field, reason.to_owned()));
    if config.sandbox.is_on() || !config.sandbox.read.is_empty() || !config.sandbox.write.is_empty() {
        return refuse("sandbox", "a container has its own files: leave the sandbox out, and mount what it may use");
    }
    if config.sandbox.network.as_ref().is_some_and(|network| matches!(network, NetworkAccess::Allow(_))) {
        let reason =
            "hosts are allowed by the proxy of a sandbox, which a container has not: `off` leaves it without a network";
        return refuse("network", reason);
    }
    if let Some(Containment::Cgroup | Containment::Strict) = config.containment {
        return refuse("containment", "a container has namespaces and a cgroup of its own: leave the containment out");
    }
    if config.hardening.landlock == Some(true) {
        return refuse("hardening.landlock", "a container engine cannot mount in a landlock domain: leave it out");
    }
    if config.endpoint.is_some() {
        return refuse(
            "endpoint",
            "the agent's server runs already, outside of any container: leave the image or the endpoint out",
        );
    }
    if spec.is_server() && spec.protocol == "opencode" {
        let reason = "this agent is reached at an address, which is inside of the container then: take its row for ACP (`opencode-acp`)";
        return refuse("container.image", reason);
    }
    if config.driving_surface() == Surface::Both {
        return refuse(
            "surface",
            "the agent's screen beside its protocol cannot be in a container: take one of the two",
        );
    }
    let is_watched = |limit| !matches!(limit, LimitKind::WallClock | LimitKind::OpenFiles | LimitKind::FileSize);
    if engine == ContainerEngine::Docker
        && let Some((limit, _)) = config.limits.iter_set().find(|(limit, _)| is_watched(*limit))
    {
        let reason = format!(
            "a limit on {limit} is watched in the session's processes, and Docker's daemon has its containers elsewhere: take podman"
        );
        return Err(invalid("limits", reason));
    }
    Ok(())
}

fn check_mount(mount: &SessionMount) -> Result<()> {
    let refuse = |reason: String| Err(invalid("container.mounts", format!("{mount}: {reason}")));
    let SessionMount { source, target, .. } = mount;
    for path in [source, target] {
        if !path.starts_with('/') || path.contains([',', '"', '\n', '\0']) {
            return refuse(format!("{path:?} is no absolute path without commas, quotes and line breaks"));
        }
    }
    if target.split('/').all(|part| matches!(part, "" | "." | "..")) {
        return refuse("the root of the image cannot be mounted over: take a directory below it".to_owned());
    }
    Ok(())
}

/// Refuses a mount that shows files which no session sees.
///
/// # Errors
/// [`Error::InvalidConfig`].
pub(super) fn check_hidden<P: AsRef<Path>>(mount: &SessionMount, hidden: &[P]) -> Result<()> {
    let real = std::fs::canonicalize(&mount.source)
        .map_err(|error| invalid("container.mounts", format!("{mount}: {:?}: {error}", mount.source)))?;
    let hidden = hidden.iter().map(AsRef::as_ref).filter(|hidden| hidden.exists());
    match hidden.into_iter().find(|hidden| hidden.starts_with(&real) || real.starts_with(hidden)) {
        Some(hidden) => {
            let reason = format!("{mount}: {} is hidden from every session: mount less", hidden.display());
            Err(invalid("container.mounts", reason))
        }
        None => Ok(()),
    }
}

impl ContainerPlan {
    /// Returns the engine's command and its environment. `env` is the agent's own; without `argv` the image's own program is
    /// started, with the words of `arguments`.
    pub(super) fn command(
        &self,
        (argv, has_program): (&[String], bool),
        env: &EnvVars,
        cwd: &str,
        is_terminal: bool,
    ) -> (Vec<String>, EnvVars) {
        let ContainerSpec { program, env: engine_env, status, .. } = &self.spec;
        let mut words: Vec<String> =
            [program, "run", "--rm", "--interactive", "--log-driver=none", "--name", &status.name]
                .map(str::to_owned)
                .to_vec();
        let mut option = |name: &str, value: String| words.extend([name.to_owned(), value]);
        option("--label", format!("{SESSION_LABEL}={}", self.session));
        option("--label", format!("{RUN_LABEL}={}", self.marker));
        if let Some(host) = &self.host {
            option("--label", format!("{HOST_LABEL}={host}"));
        }
        option("--workdir", cwd.to_owned());
        option("--security-opt", "label=disable".to_owned());
        for SessionMount { source, target, read_only } in &status.mounts {
            let read_only = if *read_only { ",readonly=true" } else { "" };
            option("--mount", format!("type=bind,source={source},target={target}{read_only}"));
        }
        if status.network_off {
            option("--network", "none".to_owned());
        }
        for limit in &self.ulimits {
            option("--ulimit", limit.clone());
        }
        if let Some(user) = &self.user {
            option("--user", user.clone());
        }
        let mut engine = engine_env.clone();
        for (name, value) in &env.0 {
            let is_engines = engine_env.0.contains_key(name)
                || ENGINE_VARIABLES.iter().any(|prefix| name.starts_with(prefix))
                || name.to_ascii_lowercase().ends_with("_proxy");
            if is_engines {
                option("--env", format!("{name}={value}"));
            } else {
                // Its value is in no command line, which every user may read.
                option("--env", name.clone());
                engine.0.insert(name.clone(), value.clone());
            }
        }
        if is_terminal {
            words.push("--tty".to_owned());
            words.push("--detach-keys=".to_owned());
        }
        let arguments = match argv.split_first().filter(|_| has_program) {
            Some((program, arguments)) => {
                words.push(format!("--entrypoint={program}"));
                arguments
            }
            None => argv,
        };
        words.push(status.image.clone());
        words.extend(arguments.iter().cloned());
        (words, engine)
    }
}

/// Returns the variables of a container: those of the session, and none of the host's.
pub(super) fn environment(config: &AgentSessionConfig, home: EnvVars, agents: EnvVars, marker: &str) -> EnvVars {
    let mut env = home;
    env.0.extend(agents.0);
    env.0.extend(config.env.0.clone());
    for (name, value) in [
        (SESSION_MARKER, config.session_id.to_string()),
        (DEPTH_MARKER, (config.depth + 1).to_string()),
        (MARKER, marker.to_owned()),
    ] {
        env.0.insert(name.to_owned(), value);
    }
    env
}
