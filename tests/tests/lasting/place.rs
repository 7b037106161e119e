//! A manager with a state directory, and an agent that keeps its conversations.

use std::fs;

use agent_proxy_tests::sessions::{self, event, said, soon};
use proxy_manager::{
    AgentSessionConfig, AgentSpec, EndReason, Event, Lifecycle, ManagerBuilder, ProcessId, PromptMode, ProxyManager,
    SessionHandle, SessionId, SessionInfo, SessionState, Signal, Subscription,
};
use serde_json::Value;
use tempfile::TempDir;

use crate::FAKE;

pub(crate) struct Place {
    pub(crate) manager: ProxyManager,
    pub(crate) scratch: TempDir,
}

impl Place {
    pub(crate) async fn new() -> Self {
        let scratch = tempfile::tempdir().expect("a directory");
        fs::create_dir(scratch.path().join("home")).expect("made");
        Self { manager: Self::manager(&scratch).await, scratch }
    }

    pub(crate) async fn manager(scratch: &TempDir) -> ProxyManager {
        Self::builder(scratch).build().await.expect("built")
    }

    pub(crate) fn builder(scratch: &TempDir) -> ManagerBuilder {
        Self::without_state(scratch).state_dir(scratch.path().join("state"))
    }

    /// One that keeps events in memory only.
    pub(crate) fn without_state(scratch: &TempDir) -> ManagerBuilder {
        let home = scratch.path().join("home").to_str().expect("UTF-8").to_owned();
        let env = [("PATH", "/usr/bin:/bin"), ("HOME", &home)].into_iter().collect();
        let mut kept = AgentSpec::new("kept", "acp", &[FAKE, "--store", "chats", "--modes"]);
        kept.session_config.session_dir_template = "{home}/chats".to_owned();
        kept.env = [("KEPT_KEY", "{key}")].into_iter().collect();
        kept.session_config.attach_command = ["kept", "--resume", "{id}"].map(str::to_owned).to_vec();
        let mut passing = AgentSpec { id: "passing".to_owned(), ..kept.clone() };
        passing.session_config.can_recover = Some(false);
        // A screen of its own, which says its conversation, takes a line, and ends.
        let screen = r#"stty -echo; echo "screen of $0"; read -r line; echo "got $line""#;
        let mut shown = AgentSpec { id: "shown".to_owned(), ..kept.clone() };
        shown.terminal_cmd = vec!["/bin/sh".to_owned()];
        shown.session_config.attach_command = ["/bin/sh", "-c", screen, "{id}"].map(str::to_owned).to_vec();
        // A screen beside its protocol.
        let screen = r#"stty -echo; echo "screen of $0 pid=$$ shown"; while read -r line; do echo "got $line"; done"#;
        let mut driven = AgentSpec { id: "driven".to_owned(), ..kept.clone() };
        driven.companion_cmd = ["/bin/sh", "-c", screen, "{id}"].map(str::to_owned).to_vec();
        let builder = sessions::builder(env!("CARGO_BIN_EXE_proxy-child"), FAKE).base_env(env);
        builder.agent(kept).agent(passing).agent(shown).agent(driven)
    }

    pub(crate) async fn start(&self, lifecycle: Lifecycle) -> SessionHandle {
        let config = AgentSessionConfig { cwd: Some("/".into()), lifecycle, ..AgentSessionConfig::new("kept") };
        self.manager.start_session(config).await.expect("started")
    }

    pub(crate) fn info(&self, session: &SessionHandle) -> SessionInfo {
        self.manager.session(session.id()).expect("known").info()
    }

    /// What the agent says to a prompt of one line, whichever life of the session it is.
    pub(crate) async fn ask(&self, session: &SessionHandle, prompt: &str) -> String {
        let mut events = self.manager.subscribe_from(session.id(), self.info(session).last_offset).expect("known");
        let turn = self.manager.send_prompt(session.id(), prompt, PromptMode::Refuse).await.expect("prompted");
        let answer = said(&mut events, "").await.trim().to_owned();
        soon("the turn's end", turn.wait()).await.expect("ended");
        answer
    }
}

pub(crate) fn agent(info: &SessionInfo) -> u32 {
    info.processes.agent_process.expect("it had one").pid
}

pub(crate) fn is_suspended(info: &SessionInfo) -> bool {
    matches!(info.state, SessionState::Suspended { .. })
}

pub(crate) async fn resumed(events: &mut Subscription) -> String {
    event(events, "a resumption", |envelope| match &envelope.event {
        Event::SessionResumed { by, .. } => Some(by.clone()),
        _ => None,
    })
    .await
}

pub(crate) async fn idle(events: &mut Subscription) {
    event(events, "idle", |envelope| matches!(envelope.event, Event::SessionIdle {}).then_some(())).await;
}

pub(crate) async fn suspended(events: &mut Subscription) -> EndReason {
    event(events, "a suspension", |envelope| match &envelope.event {
        Event::SessionSuspended { reason, .. } => Some(reason.clone()),
        _ => None,
    })
    .await
}

pub(crate) fn kill(process: Option<ProcessId>) {
    let process = process.expect("it has one");
    registry::PidFd::open(process).and_then(|process| process.signal(Signal::Kill)).expect("signalled");
}

impl Place {
    /// What a SIGKILL would leave now of a session's record.
    pub(crate) fn left_of(&self, session: &SessionHandle) -> Value {
        self.left(session.id()).expect("a record")
    }

    pub(crate) fn left(&self, session: &SessionId) -> Option<Value> {
        let left = tempfile::tempdir().expect("a directory");
        for file in ["log.sqlite", "log.sqlite-wal"] {
            fs::copy(self.scratch.path().join("state").join(file), left.path().join(file)).expect("copied");
        }
        let log = event_log::EventLog::open(left.path().join("log.sqlite"), event_log::LogOptions::default());
        let record = log.expect("a log").session(session).expect("read")?;
        Some(serde_json::from_str(&record).expect("JSON"))
    }

    /// Another manager with the same directories.
    pub(crate) async fn again(&mut self) {
        self.manager.shutdown().await;
        self.manager = Self::manager(&self.scratch).await;
    }
}

pub(crate) fn key(key: &str) -> Lifecycle {
    Lifecycle { key: Some(key.into()), ..Lifecycle::default() }
}
