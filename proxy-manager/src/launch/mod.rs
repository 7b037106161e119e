//! Plan of a session's start, complete before anything is created or forked.

mod agent_defaults;
mod check;
mod container;
mod conversation;
mod handoff_record;
mod outside_key;
mod preamble;
mod recording;
mod resume;
mod sandbox;
mod start_aftermath;

use std::{
    io::Read as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use agents::{
    AgentSpec, ModelConfig, Secret,
    conversations::{ConversationLocation, ResumedConversation},
    discovery::{SearchPaths, executable, packaged_program},
    provision::{
        Provision, ProvisionError, ProvisionFile, ProvisionRequest, needs_shim_dir, provision, sandbox_program,
        settings_file, settle_surface,
    },
};
use ipc_protocol::{
    AgentSessionConfig, ContainmentSpec, EnvVars, FileLayer, HiddenFiles, Home, Json, MARKER, NativeResume, OnMissing,
    SessionId, SessionMount, WorkspaceKind,
    message::{AgentCommand, DetachSpec, PermissionSupport},
};

pub(crate) use agent_defaults::AgentDefaults;
pub(crate) use container::{NAME_PREFIX, installed_engines};
pub(crate) use conversation::{ConversationOrigin, NewLease, OpenConversation};
pub(crate) use handoff_record::HandoffRecord;
pub(crate) use recording::check_recording;
pub(crate) use resume::{HomePlace, MAX_HISTORY, PastSession};
pub(crate) use start_aftermath::{LaunchOutcome, StartAftermath};

use self::{container::ContainerPlan, preamble::preamble, resume::ResolvedConversation};
use crate::{
    containment::ResolvedContainment,
    conversation_locks::ConversationLocks,
    description::{SessionDescription, SessionMetadata, SessionSettings},
    error::{Error, Result},
    homes::{SessionHomes, ShimDir, home_copy::HomeCopy},
    prices::SharedPrices,
    state::SessionJournal,
    supervision::SessionSlot,
    workspaces::{WorkspacePlan, WorkspaceStore},
};

/// No file with an agent's settings that is looked at is longer.
const LONGEST_SETTINGS: u64 = 1 << 20;

/// Variable that every process of a session carries in its environment, with the session's id.
pub const SESSION_MARKER: &str = "AGENT_PROXY_SESSION";

/// Environment variable of every process of a session: its nesting depth. A program that starts a session from within
/// one passes it on as `AgentSessionConfig::depth`.
pub const DEPTH_MARKER: &str = "AGENT_PROXY_DEPTH";

/// A checked configuration with the complete plan of its start.
#[derive(Debug)]
pub(crate) struct SessionLaunch {
    pub(crate) attempt: LaunchAttempt,
    /// Attempt without the conversation, for when it cannot be resumed.
    pub(crate) fallback: Option<Box<LaunchAttempt>>,
    pub(crate) enclosure: ContainmentSpec,
    pub(crate) description: SessionDescription,
    /// Location of the session's home.
    pub(crate) home_place: HomePlace,
    /// Parts of the user's home for the session's own.
    home_copy: HomeCopy,
    /// Folder of the programs that its agent runs, if there are any.
    shim_dir: Option<PathBuf>,
    /// Conversation of the session, as far as it is known.
    pub(crate) conversation: OpenConversation,
    /// Directory in which its agent keeps the files of conversations.
    pub(crate) native_files: Option<PathBuf>,
    /// Conversation to resume, as its agent keeps it on the disk.
    pub(crate) resumed: Option<ResumedConversation>,
    /// True for an agent that refuses to work fully with a home below the directory for temporary files: Codex.
    refuses_temporary_home: bool,
    /// Journal of its processes, if there is one.
    pub(crate) journal: Option<SessionJournal>,
    /// Place among the sessions.
    pub(crate) slot: Option<SessionSlot>,
    /// Detach settings, if the session may outlive this host.
    pub(crate) detach: Option<Box<DetachSpec>>,
    /// Prices of models.
    pub(crate) prices: SharedPrices,
    /// Workspace of the session, if its agent works in one.
    pub(crate) workspace: Option<WorkspacePlan>,
}

/// An attempt to start the agent.
#[derive(Debug)]
pub(crate) struct LaunchAttempt {
    pub(crate) config: AgentSessionConfig,
    pub(crate) command: AgentCommand,
    /// Conversation that it resumes, whoever instructs the agent.
    resume: Option<NativeResume>,
    /// Files for the agent's home.
    pub(crate) files: Vec<ProvisionFile>,
    /// Paths of those files that hold the key of the model configuration.
    keys: Vec<PathBuf>,
    /// Programs for the session's folder.
    programs: Vec<ProvisionFile>,
    /// Text before the first prompt.
    pub(crate) preamble: Option<String>,
    /// Reason why it begins a new conversation instead of resuming one.
    pub(crate) restart_reason: Option<String>,
    /// Conversation in a broken database, which is renamed before the agent starts.
    pub(crate) broken_database: Option<ResumedConversation>,
    /// Conversations of its agent.
    location: ConversationLocation,
}

/// Context in which a launch is planned.
pub(crate) struct LaunchContext<'a> {
    pub(crate) defaults: &'a AgentDefaults,
    pub(crate) homes: &'a SessionHomes,
    pub(crate) workspaces: Option<&'a WorkspaceStore>,
    pub(crate) locks: &'a Arc<ConversationLocks>,
    /// Looks up the manager's sessions.
    pub(crate) past_session: &'a (dyn Fn(&SessionId) -> Option<PastSession> + Sync),
}

impl SessionLaunch {
    /// Checks `config`, fills in defaults, and resolves its agent, model and conversation. Creates no home yet.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`], [`Error::UnknownAgent`], [`Error::UnknownProfile`], [`Error::UnknownModel`],
    /// [`Error::Unsupported`], [`Error::TooDeep`],
    /// [`Error::NativeSessionMissing`], [`Error::NativeSessionBusy`], [`Error::HandedOver`], [`Error::System`].
    pub(crate) fn plan(mut config: AgentSessionConfig, around: &LaunchContext<'_>) -> Result<Self> {
        let kit = around.defaults;
        kit.apply_profile(&mut config)?;
        let spec = kit.agent(&config)?;
        settle_surface(spec, &mut config).map_err(refused)?;
        container::apply_row(&mut config, spec);
        spec.resource_limits.apply(&mut config.limits);
        check::config(&config, kit.max_depth)?;
        let resumable = !config.ephemeral && spec.has_conversations() && spec.cannot_resume().is_none();
        if !resumable {
            check::restart(&config, spec)?;
        }
        check::turns(&config, spec)?;
        let resume = config.resume.clone();
        let origin = resume
            .as_ref()
            .map(|resume| ResolvedConversation::find(&config, resume, around.past_session))
            .transpose()?;
        if let Some(origin) = &origin {
            config.model_config = config.model_config.or_else(|| origin.model_config.clone());
        }
        let model = kit.model(&config)?;
        let outside_key = outside_key::plan(model, spec, &config)?;
        let model = outside_key.as_ref().map(|outside| &outside.stand_in).or(model);
        let upstream = outside_key.as_ref().and_then(|outside| outside.upstream.clone());
        let place = place(&config, origin.as_ref());
        if place == HomePlace::Shared && !config.home_copy.is_empty() {
            return Err(invalid("homeCopy", "the session has your home itself: leave one of the two out".to_owned()));
        }
        let default_cwd = origin.as_ref().and_then(|origin| origin.cwd.as_deref()).unwrap_or(&kit.cwd);
        let cwd = config.cwd.get_or_insert_with(|| default_cwd.to_owned()).clone();
        check::cwd(&cwd)?;
        let workspace = plan_workspace(&config, &cwd, around)?;
        if let Some(workspace) = &workspace {
            config.cwd = Some(utf8(&workspace.cwd())?);
        }
        let home = match &place {
            HomePlace::Shared => None,
            HomePlace::Own => Some(around.homes.path(&config.session_id)?),
            HomePlace::Inherited(home) => Some(home.clone()),
        };
        let folder =
            needs_shim_dir(spec, &config).then(|| ShimDir::path(around.homes, &config.session_id)).transpose()?;
        // Ids can be chosen, and two managers can choose the same: the marker identifies this one run.
        let mut enclosure = ContainmentSpec { marker: SessionId::mint().to_string(), ..ContainmentSpec::default() };
        let marker = enclosure.marker.clone();
        let own: Vec<&Path> = home.as_deref().into_iter().chain(folder.as_deref()).collect();
        let tree = workspace.as_ref().map(WorkspacePlan::tree);
        let worked_in = (tree.as_deref().unwrap_or(Path::new(&cwd)), tree.is_some());
        let container = container::plan(&config, kit, spec, (&marker, &own, worked_in), home.as_deref())?;
        enclosure.container = container.as_ref().map(|container| Box::new(container.spec.clone()));
        enclosure.overlay = workspace.as_ref().and_then(WorkspacePlan::overlay).map(Box::new);
        if enclosure.overlay.is_some() {
            check::overlay(&config, container.is_some())?;
        }
        // What is in a container that is removed is gone.
        let resumable = resumable && (container.is_none() || home.is_some() || keeps_conversations(spec));
        let draft = LaunchDraft {
            defaults: kit,
            spec,
            model,
            home: home.as_deref(),
            shim_dir: folder.as_deref(),
            marker: &marker,
            container: container.as_ref(),
        };
        let on_missing = resume.map(|resume| resume.on_missing);
        let LaunchAttempts { mut attempt, mut fallback } = draft.attempts(&config, origin, on_missing.as_ref())?;
        let home_copy = HomeCopy::plan(spec, &config, &kit.base_env)?;
        for attempt in [Some(&mut attempt), fallback.as_deref_mut()].into_iter().flatten() {
            attempt.command.upstream.clone_from(&upstream);
            // As a key, the login is in the home only while the session runs.
            attempt.keys.extend(home_copy.login_files().map(Path::to_owned));
        }
        if enclosure.container.is_none() {
            enclosure.sandbox =
                sandbox::plan(&config, kit, spec, &attempt, (home.as_deref(), &own), workspace.as_ref())?;
        }
        let surface = config.driving_surface();
        let home = home.map(|home| utf8(&home)).transpose()?;
        let conversation = conversation(spec, &attempt, home.is_some(), around.locks)?;
        let native_files = attempt.location.files().map(Path::to_owned);
        let location = || attempt.location.clone();
        let resumed = attempt.resume.as_ref().map(|native| ResumedConversation::new(spec, native, &cwd, location()));
        let default_model = || model.and_then(|model| model.model.as_deref()).or_else(|| spec.default_model());
        let metadata = SessionMetadata {
            session_id: config.session_id,
            agent: spec.id.clone(),
            agent_type: config.agent_type,
            user_id: config.user_id,
            workspace_id: config.workspace_id,
            cwd,
            profile: config.profile,
            home,
            depth: config.depth + 1,
            surface,
            started_at: SystemTime::now(),
        };
        let settings = SessionSettings {
            model: config.model.or_else(|| default_model().map(str::to_owned)),
            mode: config.mode,
            thinking: config.thinking,
        };
        let description = SessionDescription {
            metadata,
            settings,
            model_config: config.model_config,
            has_model_key: model.is_some_and(|model| model.key.is_some()),
            resumable,
        };
        let (journal, slot, detach) = (None, None, None);
        let refuses_temporary_home = spec.family() == Some("codex") && enclosure.container.is_none();
        Ok(Self {
            attempt,
            fallback,
            enclosure,
            description,
            home_place: place,
            home_copy,
            shim_dir: folder,
            conversation,
            native_files,
            resumed,
            refuses_temporary_home,
            journal,
            slot,
            detach,
            prices: kit.prices.clone(),
            workspace,
        })
    }

    /// Sets the resolved containment of the session.
    ///
    /// # Errors
    /// [`Error::System`], where the session's folder has no place.
    pub(crate) fn set_containment(&mut self, held: ResolvedContainment, homes: &SessionHomes) -> Result<()> {
        let ResolvedContainment { cgroup, strict, hidden, layer } = held;
        if let Some(container) = &self.enclosure.container {
            let owned = |mount: &&SessionMount| !self.own_paths().any(|own| own == Path::new(&mount.source));
            let mounts = container.status.mounts.iter().filter(owned);
            return mounts.into_iter().try_for_each(|mount| container::check_hidden(mount, &hidden.hidden));
        }
        (self.enclosure.cgroup, self.enclosure.strict) = (cgroup, strict);
        let is_by_landlock = layer == FileLayer::Landlock && self.enclosure.sandbox.is_some();
        if is_by_landlock || (self.refuses_temporary_home && self.has_temporary_home()) {
            self.set_temporary_directory(homes)?;
        }
        let Some(sandbox) = &mut self.enclosure.sandbox else {
            let home = self.description.metadata.home.clone();
            let tree = self.workspace.as_ref().map(WorkspacePlan::tree);
            let paths = self.shim_dir.iter().chain(&tree).filter_map(|path| path.to_str().map(str::to_owned));
            *self.enclosure.files = HiddenFiles { shown: home.into_iter().chain(paths).collect(), ..hidden };
            return Ok(());
        };
        // What is the session's own there is in its sandbox already.
        sandbox.layer = layer;
        sandbox.hidden.extend(hidden.hidden);
        if layer == FileLayer::Mounts {
            let written = sandbox.write.clone();
            for attempt in [Some(&mut self.attempt), self.fallback.as_deref_mut()].into_iter().flatten() {
                sandbox::set_temporary_directory(attempt, &written);
            }
        }
        Ok(())
    }

    /// Returns whether the home of the session's own is below the directory for temporary files that its agent is going to have.
    fn has_temporary_home(&self) -> bool {
        const USUAL: &str = "/tmp";
        let named = self.attempt.command.env.0.get("TMPDIR").map_or(USUAL, String::as_str);
        let is_below = |directory: &str| {
            self.description.metadata.home.as_ref().is_some_and(|home| Path::new(home).starts_with(directory))
        };
        is_below(named) || (self.enclosure.sandbox.is_some() && is_below(USUAL))
    }

    /// Gives the session a directory for temporary files, since there is no `/tmp` of its own.
    fn set_temporary_directory(&mut self, homes: &SessionHomes) -> Result<()> {
        let folder = match &self.shim_dir {
            Some(folder) => folder.clone(),
            None => ShimDir::path(homes, self.id())?,
        };
        let temporary = utf8(&ShimDir::temporary(&folder))?;
        for attempt in [Some(&mut self.attempt), self.fallback.as_deref_mut()].into_iter().flatten() {
            attempt.command.env.0.insert("TMPDIR".to_owned(), temporary.clone());
        }
        if let Some(sandbox) = &mut self.enclosure.sandbox {
            sandbox.temporary = Some(temporary);
            sandbox.write.push(utf8(&folder)?);
        }
        self.shim_dir = Some(folder);
        Ok(())
    }

    /// Directories of the session's own.
    fn own_paths(&self) -> impl Iterator<Item = PathBuf> {
        let home = self.description.metadata.home.as_ref().map(PathBuf::from);
        let tree = self.workspace.as_ref().map(WorkspacePlan::tree);
        home.into_iter().chain(self.shim_dir.clone()).chain(tree)
    }

    /// Id of the session.
    pub(crate) fn id(&self) -> &SessionId {
        &self.attempt.config.session_id
    }
}

/// Returns whether an agent's conversations are kept outside of its container.
fn keeps_conversations(spec: &AgentSpec) -> bool {
    !spec.session_config.session_dir_template.is_empty() && !spec.session_config.session_dir_target.is_empty()
}

/// Plans the session's workspace.
fn plan_workspace(config: &AgentSessionConfig, cwd: &str, around: &LaunchContext<'_>) -> Result<Option<WorkspacePlan>> {
    let kind = config.workspace.unwrap_or_default();
    if kind == WorkspaceKind::Off {
        return Ok(None);
    }
    if config.endpoint.is_some() {
        let reason =
            "the agent's server runs already, in a tree that it chose: leave the workspace or the endpoint out";
        return Err(invalid("workspace", reason.to_owned()));
    }
    let store = around.workspaces.ok_or_else(|| {
        invalid("workspace", "there is no directory for workspaces: name a state directory".to_owned())
    })?;
    store.plan((&config.session_id, config.user_id.as_deref()), kind, cwd).map(Some)
}

/// Resolves the location of the session's home.
fn place(config: &AgentSessionConfig, origin: Option<&ResolvedConversation>) -> HomePlace {
    if let Some(place) = origin.and_then(|origin| origin.place.clone()) {
        return place;
    }
    match config.home {
        Some(Home::Own) => HomePlace::Own,
        Some(Home::Shared) => HomePlace::Shared,
        None if config.model_config.is_some() || !config.home_copy.is_empty() => HomePlace::Own,
        None => HomePlace::Shared,
    }
}

/// Resolves the session's conversation, and takes its lease if its id is known.
fn conversation(
    spec: &AgentSpec,
    attempt: &LaunchAttempt,
    has_home: bool,
    leases: &Arc<ConversationLocks>,
) -> Result<OpenConversation> {
    let LaunchAttempt { config, resume, location, .. } = attempt;
    // A fork is a new conversation.
    let resume = resume.as_ref().filter(|resume| !resume.fork);
    let store = location.root().map(Path::to_owned);
    let family = spec.conversation_family().to_owned();
    let (agent, session) = (spec.id.clone(), config.session_id.clone());
    let is = if resume.is_some() { ConversationOrigin::Existing } else { ConversationOrigin::New };
    let conversation = OpenConversation::new(leases.clone(), family, store, agent, session, is);
    let mut conversation = conversation.within(has_home);
    if let Some(id) = resume.and_then(|resume| resume.id.as_deref()) {
        conversation.set_id(id)?;
    }
    Ok(conversation)
}

/// Inputs shared by the attempts of a session.
struct LaunchDraft<'a> {
    defaults: &'a AgentDefaults,
    spec: &'a AgentSpec,
    model: Option<&'a ModelConfig>,
    home: Option<&'a Path>,
    shim_dir: Option<&'a Path>,
    marker: &'a str,
    container: Option<&'a ContainerPlan>,
}

/// The first attempt, and the fallback if the conversation cannot be resumed.
struct LaunchAttempts {
    attempt: LaunchAttempt,
    fallback: Option<Box<LaunchAttempt>>,
}

impl LaunchDraft<'_> {
    /// Plans the attempts.
    fn attempts(
        &self,
        config: &AgentSessionConfig,
        origin: Option<ResolvedConversation>,
        on_missing: Option<&OnMissing>,
    ) -> Result<LaunchAttempts> {
        let Some(origin) = origin else {
            return Ok(LaunchAttempts { attempt: self.attempt(config, None, None, None)?, fallback: None });
        };
        let anew = |why: String| {
            let history = match on_missing {
                None | Some(OnMissing::Fail) => return Ok(None),
                Some(OnMissing::StartAnew) => None,
                Some(OnMissing::Inject { history }) => Some(history.as_str()),
            };
            self.attempt(config, None, history, Some(why)).map(|attempt| Some(Box::new(attempt)))
        };
        let first = match origin.native {
            Ok(native) => self.attempt(config, Some(&native), None, None),
            Err(missing) => Err(missing),
        };
        match first {
            // The agent's own reason replaces this one.
            Ok(attempt) => Ok(LaunchAttempts { attempt, fallback: anew(String::new())? }),
            Err(error @ (Error::NativeSessionMissing { .. } | Error::Unsupported { .. })) => {
                // An agent that cannot do the fallback either fails here.
                match anew(error.chain())? {
                    Some(attempt) => Ok(LaunchAttempts { attempt: *attempt, fallback: None }),
                    None => Err(error),
                }
            }
            Err(error) => Err(error),
        }
    }

    fn attempt(
        &self,
        config: &AgentSessionConfig,
        resume: Option<&NativeResume>,
        history: Option<&str>,
        anew: Option<String>,
    ) -> Result<LaunchAttempt> {
        let fresh_id = SessionId::mint().to_string();
        let secret = Secret::from(format!("{}{}", SessionId::mint(), SessionId::mint()));
        let shared = self.defaults.base_env.0.get("HOME").map(Path::new);
        let settings =
            shared.filter(|_| self.home.is_none()).and_then(|home| settings_file(self.spec, &config.env, home));
        let user_settings = settings.and_then(|file| settings_text(&file));
        let request = ProvisionRequest {
            config,
            model: self.model,
            home: self.home,
            shared_home: shared,
            user_settings: user_settings.as_deref(),
            shim_dir: self.shim_dir,
            resume,
            fresh_id: &fresh_id,
            fresh_secret: &secret,
        };
        let provision = provision(self.spec, &request).map_err(refused)?;
        let Provision {
            argv,
            env,
            files,
            programs,
            endpoint,
            cwd,
            model,
            resume: told,
            agent_sandbox,
            sandbox,
            bounds_turns,
            reports,
            commands,
            companion,
            socket,
            uses_entrypoint,
        } = provision;
        let inside = self.container.map(|_| {
            let home = self.home.map(|home| home_variables(home).collect()).unwrap_or_default();
            container::environment(config, home, env.clone(), self.marker)
        });
        let env = self.environment(config, env);
        check::program(&argv, &env)?;
        let missing = self.spec.missing_env(inside.as_ref().unwrap_or(&env));
        if self.model.is_none() && !missing.is_empty() {
            let reason =
                format!("agent {:?} needs {}: set it, or name a model configuration", config.agent, missing.join(", "));
            return Err(invalid("env", reason));
        }
        let context = config.runtime_context.then_some((&config.session_id, self.spec.id.as_str(), config.depth + 1));
        let places = places(&env);
        // What an image has is not seen from here.
        let program = argv.first().filter(|_| inside.is_none());
        let program = program.and_then(|program| packaged_program(self.spec, program, &places));
        let needed = program.as_deref().and_then(|program| sandbox_program(program, sandbox.as_deref()));
        if let Some(needed) = needed.filter(|needed| executable(needed, &places).is_none()) {
            let reason = format!(
                "the agent's sandbox ({}) is made with {needed}, which is not in PATH: install it, or give the agent full access \
                 (`agentSandbox`: `none`)",
                sandbox.as_deref().unwrap_or_default()
            );
            return Err(invalid("agentSandbox", reason));
        }
        let asking = PermissionSupport {
            asks: self.spec.permission_config.asks.clone(),
            has_user_settings: self.home.is_none(),
            tried: self.spec.discovery.tried.clone(),
            program,
            sandbox,
        };
        let mut config = AgentSessionConfig { model, agent_sandbox, ..config.clone() };
        if resume.is_none() {
            config.resume = None;
        }
        if let Some(terminal) = &mut config.terminal {
            (terminal.reports, terminal.commands) = (reports, commands);
        }
        let starts_in = cwd.as_deref().or(config.cwd.as_deref()).unwrap_or_default();
        let location = ConversationLocation::new(self.spec, &env, Path::new(starts_in));
        let (argv, env) = match (self.container, &inside) {
            (Some(container), Some(inside)) => {
                container.command((&argv, !uses_entrypoint), inside, starts_in, config.terminal.is_some())
            }
            _ => (argv, env),
        };
        let cwd = cwd.filter(|_| inside.is_none());
        let command = AgentCommand {
            private: location.pid_records().iter().map(utf8).collect::<Result<_>>()?,
            agent: self.spec.id.clone(),
            protocol: self.spec.protocol.clone(),
            argv,
            env,
            cwd,
            protocol_config: Json::from(&self.spec.protocol_config),
            fresh_id,
            resume: told,
            endpoint,
            max_turns: config.max_turns.filter(|_| !bounds_turns),
            asking,
            companion,
            socket,
            upstream: None,
        };
        let resume = resume.cloned();
        let preamble = preamble(context, history);
        let key = self.model.and_then(|model| model.key.as_ref());
        let keys = key.map_or_else(Vec::new, |key| files_with_key(key, &files));
        Ok(LaunchAttempt {
            config,
            command,
            resume,
            files,
            keys,
            programs,
            preamble,
            restart_reason: anew,
            broken_database: None,
            location,
        })
    }

    /// Builds the agent's whole environment in layers: the manager's, the home's, the agent's, the session's, ours.
    fn environment(&self, config: &AgentSessionConfig, agents: EnvVars) -> EnvVars {
        let mut env = self.defaults.base_env.clone();
        if let Some(home) = self.home {
            env.0.extend(home_variables(home));
        }
        env.0.extend(agents.0);
        env.0.extend(config.env.0.clone());
        env.0.extend(sandbox::network_variables(config));
        env.0.insert(SESSION_MARKER.to_owned(), config.session_id.to_string());
        env.0.insert(DEPTH_MARKER.to_owned(), (config.depth + 1).to_string());
        env.0.insert(MARKER.to_owned(), self.marker.to_owned());
        env
    }
}

/// Returns the files that contain `key`, verbatim or as a JSON string.
fn files_with_key(key: &Secret, files: &[ProvisionFile]) -> Vec<PathBuf> {
    let key = key.expose();
    let escaped = Json::from(&key.into());
    let escaped = escaped.as_str().trim_matches('"');
    let holds = |contents: &str| !key.is_empty() && (contents.contains(key) || contents.contains(escaped));
    files.iter().filter(|file| holds(file.contents.expose())).map(|file| file.path.clone()).collect()
}

/// Returns the directories in which a process of this environment looks for programs.
fn places(env: &EnvVars) -> SearchPaths {
    let path = env.0.get("PATH").map(|path| std::env::split_paths(path).collect());
    SearchPaths { path: path.unwrap_or_default(), home: env.0.get("HOME").map(PathBuf::from) }
}

/// The text of a settings file, if it can be had; it is the agent that says what is wrong with it.
fn settings_text(path: &Path) -> Option<String> {
    let mut text = String::new();
    std::fs::File::open(path).ok()?.take(LONGEST_SETTINGS).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Returns the variables that make programs use this home and no other.
fn home_variables(home: &Path) -> impl Iterator<Item = (String, String)> + use<> {
    let home = home.to_string_lossy().into_owned();
    let places = [
        ("HOME", ""),
        ("XDG_CONFIG_HOME", "/.config"),
        ("XDG_DATA_HOME", "/.local/share"),
        ("XDG_STATE_HOME", "/.local/state"),
        ("XDG_CACHE_HOME", "/.cache"),
    ];
    places.into_iter().map(move |(name, place)| (name.to_owned(), format!("{home}{place}")))
}

fn refused(error: ProvisionError) -> Error {
    match error {
        ProvisionError::Unsupported { agent, operation } => Error::Unsupported { agent, operation },
        ProvisionError::NoCommand { .. } => invalid("command", error.to_string()),
        ProvisionError::NeedsHome { .. } => invalid("home", error.to_string()),
    }
}

fn utf8(path: &PathBuf) -> Result<String> {
    let reason = || format!("{path:?} is not UTF-8: name another state directory");
    path.to_str().map(str::to_owned).ok_or_else(|| invalid("home", reason()))
}

fn invalid(field: &'static str, reason: String) -> Error {
    Error::InvalidConfig { field, reason }
}

#[cfg(test)]
mod tests;
