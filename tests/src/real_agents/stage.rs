//! What a cell has for itself: a mock model, a manager, directories, a key.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use agents::{
    ModelConfig, Secret,
    provision::{Provision, ProvisionRequest, provision},
};
use ipc_protocol::{InvalidNetworkRule, SessionSandbox};
use proxy_manager::{
    AgentSessionConfig, AgentSpec, ChildProgram, Deadlines, EnvVars, Home, NetworkAccess, ProxyManager, SandboxMode,
    SessionId, WarmTarget,
};

use super::{Agent, Failure, STEP, Session, agents::NEXT, session::within, user_home};
use crate::{mock_model::MockModel, system::with_marker};

/// Where the programs are.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The child binary of the manager.
    pub child: PathBuf,
    /// The folder with the agents' programs.
    pub agents: PathBuf,
    /// An MCP server.
    pub mcp: PathBuf,
    /// What passes on bytes.
    pub relay: PathBuf,
}

/// What a cell has for itself.
#[derive(Debug)]
pub struct Stage {
    /// The agent.
    pub agent: &'static Agent,
    /// Its row.
    pub row: AgentSpec,
    /// The model configuration of the sessions.
    pub configuration: ModelConfig,
    /// The manager's base environment.
    pub base_env: EnvVars,
    /// Its model.
    pub model: MockModel,
    /// The manager; its only agents are this one's row and the built-in ones.
    pub manager: ProxyManager,
    /// The key of the model configuration: of this cell alone.
    pub key: String,
    /// What `Debug` shows of what the manager was made from.
    pub shown: String,
    /// The programs.
    pub programs: Programs,
    folder: PathBuf,
    sessions: Mutex<BTreeSet<SessionId>>,
    /// The sandbox of its sessions.
    sandbox: SessionSandbox,
}

/// Variable by which all sessions have a sandbox and reach the mock model alone.
const SANDBOX: &str = "AGENT_PROXY_REAL_SANDBOX";

fn sandbox(root_url: &str) -> Result<SessionSandbox, InvalidNetworkRule> {
    if std::env::var_os(SANDBOX).is_none() {
        return Ok(SessionSandbox::default());
    }
    // For sessions in the home of a user who has set up the agent; with a model configuration the model needs no rule.
    let rule = root_url.trim_start_matches("http://").parse()?;
    let network = Some(NetworkAccess::Allow(vec![rule]));
    Ok(SessionSandbox { mode: Some(SandboxMode::Workspace), network, ..SessionSandbox::default() })
}

impl Stage {
    /// Makes all of it. The row of the agent is changed by `change` first.
    ///
    /// # Errors
    /// What could not be had.
    pub async fn set(
        agent: &'static Agent,
        programs: &Programs,
        change: impl FnOnce(&mut AgentSpec, &Path),
    ) -> Result<Self, String> {
        Self::set_warm(agent, programs, 0, change).await
    }

    /// Makes all of it, with a manager that keeps so many sessions warm.
    ///
    /// # Errors
    /// As [`Stage::set`].
    pub async fn set_warm(
        agent: &'static Agent,
        programs: &Programs,
        warm: usize,
        change: impl FnOnce(&mut AgentSpec, &Path),
    ) -> Result<Self, String> {
        let name = SessionId::mint();
        let folder = std::env::temp_dir().join(format!("agent-proxy-real-{name}"));
        let text = |error: io::Error| format!("{}: {error}", folder.display());
        agent.furnish(&folder).map_err(text)?;
        let model = MockModel::start().await.map_err(text)?;
        let key = format!("sk-mock-{}-{}", agent.id, name.as_str().replace('-', ""));
        let mut row = agent.row()?;
        change(&mut row, &folder);
        let configuration = agent.configuration(&model.root_url(), &key);
        let base_env = agent.base_env(&programs.agents, &folder);
        let manager = ProxyManager::builder(ChildProgram::Path(programs.child.clone()))
            .base_env(base_env.clone())
            .agent(row.clone())
            .models([configuration.clone()])
            .deadlines(Deadlines { start: STEP, ..Deadlines::default() })
            .state_dir(folder.join("state"))
            .warm((warm > 0).then(|| WarmTarget { config: agent.config(&folder), sessions: warm }));
        let shown = format!("{manager:?} {configuration:?} {row:?}");
        let manager = match next(agent, &row, programs) {
            Some(next) => manager.agent(next),
            None => manager,
        };
        let manager = manager.build().await.map_err(|error| error.to_string())?;
        let sandbox = sandbox(&model.root_url()).map_err(|error| error.to_string())?;
        let (programs, sessions) = (programs.clone(), Mutex::default());
        Ok(Self {
            agent,
            row,
            configuration,
            base_env,
            model,
            manager,
            key,
            shown,
            programs,
            folder,
            sessions,
            sandbox,
        })
    }

    /// The directory that sessions work in.
    pub fn work(&self) -> PathBuf {
        self.folder.join("work")
    }

    /// The manager's state directory.
    pub fn state(&self) -> PathBuf {
        self.folder.join("state")
    }

    /// A directory of the cell's, for whatever.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A session that allows everything.
    pub fn config(&self) -> AgentSessionConfig {
        self.agent.config(&self.folder)
    }

    /// The same with the network of this machine, where what is in between could not reach the agent's server else.
    pub fn on_the_machines_network(&self) -> AgentSessionConfig {
        AgentSessionConfig { sandbox: SessionSandbox { network: None, ..self.sandbox.clone() }, ..self.config() }
    }

    /// The same, which also reaches a server of this machine by its address, where it has a network of its own.
    ///
    /// # Errors
    /// When the address cannot be a rule.
    pub fn reaching(&self, url: &str) -> Result<AgentSessionConfig, String> {
        let mut sandbox = self.sandbox.clone();
        if let Some(NetworkAccess::Allow(rules)) = &mut sandbox.network {
            let host = url.trim_start_matches("http://").split('/').next().unwrap_or_default();
            rules.push(host.parse().map_err(|error: InvalidNetworkRule| error.to_string())?);
        }
        Ok(AgentSessionConfig { sandbox, ..self.config() })
    }

    /// Makes `home` what the home of a session of its own would be; what that session would be started with.
    ///
    /// # Errors
    /// The system's, and what the agent cannot be given.
    pub fn provision(&self, home: &Path) -> io::Result<Provision> {
        let config = self.config();
        let request = ProvisionRequest {
            config: &config,
            model: Some(&self.configuration),
            home: Some(home),
            shared_home: None,
            user_settings: None,
            shim_dir: Some(home),
            resume: None,
            fresh_id: &uuid::Uuid::now_v7().to_string(),
            fresh_secret: &Secret::from("start".to_owned()),
        };
        let provision = provision(&self.row, &request).map_err(io::Error::other)?;
        fs::create_dir_all(home)?;
        let files = provision.files.iter().map(|file| (file, 0o600));
        for (file, mode) in files.chain(provision.programs.iter().map(|program| (program, 0o700))) {
            let path = home.join(&file.path);
            fs::create_dir_all(path.parent().unwrap_or(home))?;
            let mut options = fs::OpenOptions::new();
            let mut written = options.write(true).create_new(true).mode(mode).open(path)?;
            written.write_all(file.contents.expose().as_bytes())?;
        }
        Ok(provision)
    }

    /// A session in the shared home, in which its user has set the agent up. To be had once.
    ///
    /// # Errors
    /// As [`Stage::provision`].
    pub fn shared(&self) -> io::Result<AgentSessionConfig> {
        let config = self.config();
        let mut env = self.provision(&self.folder.join("base"))?.env;
        // Each session's server has one of its own.
        env.0.remove("OPENCODE_SERVER_PASSWORD");
        env.0.extend(config.env.0);
        let model = Some(self.agent.set_model[0].to_owned());
        Ok(AgentSessionConfig { home: Some(Home::Shared), model_config: None, model, env, ..config })
    }

    /// Makes the shared home that of a user with a login and settings of their own.
    ///
    /// # Errors
    /// The system's.
    pub fn log_in(&self) -> io::Result<()> {
        let family = self.row.family().ok_or_else(|| io::Error::other("its row names no family"))?;
        user_home::furnish(family, &self.folder.join("base"), &self.model.root_url(), &self.key)
    }

    /// A session of `agent` of which nothing but the id and the directory is said.
    pub fn plain(&self, agent: &str) -> AgentSessionConfig {
        let cwd = Some(self.work().to_string_lossy().into_owned());
        AgentSessionConfig { cwd, ..AgentSessionConfig::new(agent) }
    }

    /// Starts a session.
    ///
    /// # Errors
    /// As `start_session`, and when it takes too long.
    pub async fn start(&self, config: AgentSessionConfig) -> Result<Session, Failure> {
        Ok(self.try_start(config).await??)
    }

    /// Starts a session; what `start_session` says is inside.
    ///
    /// # Errors
    /// When it takes too long.
    pub async fn try_start(&self, mut config: AgentSessionConfig) -> Result<proxy_manager::Result<Session>, Failure> {
        if !config.sandbox.is_on() {
            config.sandbox.clone_from(&self.sandbox);
        }
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).insert(config.session_id.clone());
        let started = within("the agent is ready, or not", self.manager.start_session(config)).await?;
        Ok(started.map(Session::new))
    }

    /// Starts a session that allows everything.
    ///
    /// # Errors
    /// As [`Stage::start`].
    pub async fn session(&self) -> Result<Session, Failure> {
        self.start(self.config()).await
    }

    /// Ends all of it, and says what was left. Its files stay.
    ///
    /// # Errors
    /// What should not be there.
    pub async fn end(&self) -> Result<(), String> {
        let receipts = self.manager.shutdown().await;
        let mut wrong: Vec<String> = receipts
            .iter()
            .filter(|receipt| !receipt.is_empty())
            .map(|receipt| format!("a receipt is not empty: {receipt:?}"))
            .collect();
        let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for session in sessions {
            let left = with_marker(session.as_str());
            if !left.is_empty() {
                wrong.push(format!("processes {left:?} of session {session} are left"));
            }
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
    }

    /// [`Stage::end`], and removes its files.
    ///
    /// # Errors
    /// What should not be there.
    pub async fn strike(&self) -> Result<(), String> {
        let mut wrong: Vec<String> = self.end().await.err().into_iter().collect();
        wrong.extend(remove(&self.folder).err());
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
    }
}

/// The row of the newest version of an agent's wrapper, beside `row`.
fn next(agent: &Agent, row: &AgentSpec, programs: &Programs) -> Option<AgentSpec> {
    let mut next = AgentSpec { id: NEXT.into(), ..row.clone() };
    let program = next.cmd.first_mut().filter(|_| agent.has_next)?;
    let path = programs.agents.parent()?.join("next/bin").join(&*program);
    *program = path.to_string_lossy().into_owned();
    Some(next)
}

/// Removes a stage's files.
///
/// # Errors
/// What is left.
pub fn remove(folder: &Path) -> Result<(), String> {
    fs::remove_dir_all(folder).map_err(|error| format!("{} is left: {error}", folder.display()))
}
