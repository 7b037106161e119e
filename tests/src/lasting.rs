//! A session whose conversation is kept, for whoever kills what around it: of the fake agent or of a real one.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use proxy_manager::{
    AgentSessionConfig, AgentSpec, ChildProgram, Deadlines, Event, HostDeath, Lifecycle, ManagerBuilder, ProxyManager,
    SessionId,
};
use serde::{Deserialize, Serialize};

use crate::{
    real_agents::{self, Agent},
    sessions,
};

/// Whose conversation it is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Speaker {
    /// The fake agent, at this path. It keeps its conversations in the home that all of its sessions share.
    Fake(PathBuf),
    /// A real one, in a home of its own.
    Real {
        /// Catalog id.
        id: String,
        /// The folder with the agents' programs.
        programs: PathBuf,
        /// Root URL of its mock model.
        model: String,
    },
}

/// What the session does when something dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// It waits for its second prompt.
    Idle,
    /// It is in the midst of an answer.
    Turn,
    /// It runs a tool.
    Tool,
}

/// A session, and all that two hosts of it have to agree on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Lasting {
    /// Its agent.
    pub speaker: Speaker,
    /// The child binary of its managers.
    pub child: PathBuf,
    /// The folder of everything: homes, state (`DIR/state`), working directory.
    pub dir: PathBuf,
    /// Its id.
    pub id: SessionId,
    /// Whether it goes on without a host.
    pub detaches: bool,
    /// What it is to do.
    pub mode: Mode,
}

/// In the first prompt, and in nothing else that is said.
pub const WORD: &str = "before";

impl Lasting {
    /// Makes what has to be in its folder.
    ///
    /// # Errors
    /// The system's.
    pub fn furnish(&self) -> io::Result<()> {
        rustix::fs::mknodat(
            rustix::fs::CWD,
            self.asleep(),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )?;
        match self.agent() {
            None => fs::create_dir(self.dir.join("home")),
            Some(agent) => agent.furnish(&self.dir),
        }
    }

    /// The pipe in which its tool says a line when it runs.
    pub fn asleep(&self) -> PathBuf {
        self.dir.join("asleep")
    }

    /// Where its conversation is, among other things.
    pub fn home(&self) -> PathBuf {
        match self.speaker {
            Speaker::Fake(_) => self.dir.join("home"),
            Speaker::Real { .. } => self.state().join("homes"),
        }
    }

    /// The state directory of its managers.
    pub fn state(&self) -> PathBuf {
        self.dir.join("state")
    }

    fn agent(&self) -> Option<&'static Agent> {
        match &self.speaker {
            Speaker::Fake(_) => None,
            Speaker::Real { id, .. } => Some(Agent::named(id).unwrap_or_else(|| panic!("no agent {id}"))),
        }
    }

    /// A manager that knows its agent.
    pub fn builder(&self) -> ManagerBuilder {
        let builder = match (&self.speaker, self.agent()) {
            (Speaker::Real { programs, model, .. }, Some(agent)) => {
                ProxyManager::builder(ChildProgram::Path(self.child.clone()))
                    .base_env(agent.base_env(programs, &self.dir))
                    .models([agent.configuration(model, "sk-mock-lasting")])
            }
            (Speaker::Fake(fake), _) => {
                let [child, fake] = [&self.child, fake].map(|path| text(path));
                let env = [("PATH", "/usr/bin:/bin".to_owned()), ("HOME", text(&self.home()))];
                let kept = AgentSpec::new("kept", "acp", &[&fake, "--store", "chats"]);
                sessions::builder(&child, &fake).base_env(env.into_iter().collect()).agent(kept)
            }
            (Speaker::Real { .. }, None) => panic!("no agent"),
        };
        // A machine that does much else beside is no fault of an agent's.
        builder.deadlines(Deadlines { start: real_agents::STEP, ..Deadlines::default() }).state_dir(self.state())
    }

    /// Its configuration, under this id.
    pub fn config(&self, id: &SessionId) -> AgentSessionConfig {
        let config = match self.agent() {
            None => AgentSessionConfig { cwd: Some("/".into()), ..AgentSessionConfig::new("kept") },
            Some(agent) => agent.config(&self.dir),
        };
        AgentSessionConfig {
            session_id: id.clone(),
            lifecycle: Lifecycle { key: Some("chat".into()), ..Lifecycle::default() },
            on_host_death: if self.detaches { FETCHED } else { HostDeath::Kill },
            ..config
        }
    }

    /// Its first prompt.
    pub fn first(&self) -> String {
        match self.speaker {
            Speaker::Fake(_) => format!("say {WORD}"),
            Speaker::Real { .. } => format!("remember what was {WORD}"),
        }
    }

    /// The prompt that brings it to what it is to do, and the event that says that it does it (of a tool: that it is about to,
    /// and the pipe says the rest).
    pub fn second(&self) -> Option<(String, Shows)> {
        let is_fake = matches!(self.speaker, Speaker::Fake(_));
        match self.mode {
            Mode::Idle => None,
            Mode::Turn if is_fake => Some(("say during\nwait".into(), |event| says(event, "during"))),
            Mode::Turn => Some(("slow: 10000".into(), |event| says(event, "3 "))),
            Mode::Tool => {
                let word = if is_fake { "run" } else { "shell:" };
                let script = format!("{word} echo asleep > {}; exec sleep 1000", self.asleep().display());
                Some((script, |event| matches!(event, Event::ToolStart(_))))
            }
        }
    }

    /// Its last prompt: whether it remembers the first one can be told from the answer, or from what the model was asked.
    pub fn last(&self) -> &'static str {
        match self.speaker {
            Speaker::Fake(_) => "history",
            Speaker::Real { .. } => "and now",
        }
    }
}

/// Whether an event shows it.
pub type Shows = fn(&Event) -> bool;

/// By itself it ends soon, should the test be killed.
const FETCHED: HostDeath = HostDeath::Detach { fetch_within_ms: 60_000, spool_bytes: 64 << 20 };

fn says(event: &Event, words: &str) -> bool {
    matches!(event, Event::Text { text } if text.contains(words))
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
