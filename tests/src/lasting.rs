//! A session whose conversation is kept, for whoever kills what around it.

use std::path::Path;

use proxy_manager::{AgentSessionConfig, AgentSpec, Builder, Event, Lifecycle};

use crate::sessions;

/// The session's id.
pub const SESSION: &str = "lasting";

/// A manager whose agent `kept` keeps its conversations in `DIR/home`, with its state in `DIR/state`.
pub fn builder(child: &str, fake: &str, dir: &Path) -> Builder {
    let path = |name: &str| dir.join(name).to_str().expect("UTF-8").to_owned();
    let env = [("PATH", "/usr/bin:/bin"), ("HOME", &path("home"))].into_iter().collect();
    let kept = AgentSpec::new("kept", "acp", &[fake, "--store", "chats"]);
    sessions::builder(child, fake).base_env(env).agent(kept).state_dir(path("state").into())
}

/// A session of `kept`.
pub fn config(id: &str) -> AgentSessionConfig {
    AgentSessionConfig {
        session_id: id.parse().expect("an id"),
        cwd: Some("/".into()),
        lifecycle: Lifecycle { key: Some("chat".into()), ..Lifecycle::default() },
        ..AgentSessionConfig::new("kept")
    }
}

/// Tells the event that says that the agent is there.
pub type IsThere = fn(&Event) -> bool;

/// What brings the agent to where it is to be in a mode, and the event that says that it is there.
pub fn mode_prompt(mode: &str) -> Option<(String, IsThere)> {
    match mode {
        "idle" => None,
        "turn" => {
            Some(("say during\nwait".into(), |event| matches!(event, Event::Text { text } if text.contains("during"))))
        }
        "tool" => Some(("run exec sleep 1000".into(), |event| matches!(event, Event::ToolStart(_)))),
        other => panic!("{other:?} is no mode: idle, turn or tool"),
    }
}
