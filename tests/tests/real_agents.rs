//! Real agents, from prompt to proven kill: `tests/real-agents/install` first, then
//! `AGENT_PROXY_AGENTS=<the folder it printed> cargo test -p agent-proxy-tests --features real-agents --test real_agents`.
//!
//! The model is a mock on loopback. The agent gets an environment built from nothing, a throw-away home and a dummy key.
//! Without the installed agent a test fails; it never skips.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a test's output is for whoever runs it")]

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use agent_proxy_tests::{
    mock_model::MockModel,
    sessions::{all, soon},
    system::{with_marker, with_word},
};
use ipc_protocol::{
    AgentSessionConfig, EndReason, Envelope, Event, KillOptions, PermissionMode, ProcessId, ResolvedBy, SessionId,
    StopReason, ToolStatus,
};
use proxy_manager::{AgentSpec, Child, PromptMode, ProxyManager};
use serde_json::json;

/// The key that the agents are given and the mock wants to see.
const KEY: (&str, &str) = ("MOCK_API_KEY", "dummy");

/// What differs from agent to agent.
struct Agent {
    /// Catalog id, and name of the program in the install folder.
    id: &'static str,
    /// Arguments that make it speak ACP.
    args: &'static [&'static str],
    /// Environment, beside `HOME` and the key.
    env: &'static [(&'static str, &'static str)],
    /// Its variable for the folder of its configuration, and that folder beneath its home.
    config_dir: (&'static str, &'static str),
    /// Writes its configuration, with the mock as the only model and permission asked before each shell command.
    configure: fn(&Path, &MockModel),
    /// Where it asks the mock.
    endpoint: &'static str,
}

const CODEX: Agent = Agent {
    id: "codex-acp",
    args: &[],
    env: &[],
    config_dir: ("CODEX_HOME", ".codex"),
    configure: configure_codex,
    endpoint: "/v1/responses",
};

const OPENCODE: Agent = Agent {
    id: "opencode",
    args: &["acp"],
    env: &[
        ("OPENCODE_DISABLE_AUTOUPDATE", "1"),
        ("OPENCODE_DISABLE_MODELS_FETCH", "1"),
        ("OPENCODE_DISABLE_LSP_DOWNLOAD", "1"),
        ("OPENCODE_DISABLE_DEFAULT_PLUGINS", "1"),
    ],
    config_dir: ("OPENCODE_CONFIG_DIR", ".config/opencode"),
    configure: configure_opencode,
    endpoint: "/v1/chat/completions",
};

/// codex's own sandbox is off: it needs bubblewrap beside the agent or in PATH, and without it each tool fails.
fn configure_codex(dir: &Path, model: &MockModel) {
    let config = format!(
        r#"model = "mock-model"
model_provider = "mock"
approval_policy = "untrusted"
sandbox_mode = "danger-full-access"

[model_providers.mock]
name = "mock"
base_url = "{}"
env_key = "{}"
wire_api = "responses"
supports_websockets = false
"#,
        model.base_url(),
        KEY.0
    );
    fs::write(dir.join("config.toml"), config).expect("codex's configuration");
}

fn configure_opencode(dir: &Path, model: &MockModel) {
    let config = json!({
        "model": "mock/mock-model",
        "permission": { "bash": "ask" },
        "provider": { "mock": {
            "npm": "@ai-sdk/openai-compatible",
            "name": "mock",
            "options": { "baseURL": model.base_url(), "apiKey": format!("{{env:{}}}", KEY.0) },
            "models": { "mock-model": { "name": "mock-model" } },
        } },
    });
    fs::write(dir.join("opencode.json"), config.to_string()).expect("opencode's configuration");
}

/// A folder that goes away with its value.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &SessionId) -> Self {
        let path = std::env::temp_dir().join(format!("agent-proxy-real-{name}"));
        fs::create_dir_all(&path).expect("a scratch folder");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("{} is left behind: {error}", self.0.display());
        }
    }
}

/// The program `name` that `tests/real-agents/install` put there.
fn installed(name: &str) -> PathBuf {
    let agents = std::env::var("AGENT_PROXY_AGENTS")
        .expect("AGENT_PROXY_AGENTS is not set: it is the folder that tests/real-agents/install prints");
    let program = Path::new(&agents).join("bin").join(name);
    assert!(program.exists(), "{} is not there: run tests/real-agents/install", program.display());
    program
}

/// Whether `/proc` still has this very process (as a zombie, too).
fn exists(id: ProcessId) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{}/stat", id.pid)) else { return false };
    // The name before the last parenthesis may contain anything; the start time is field 22, the 20th after it.
    let start_time = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(19)?.parse().ok());
    start_time == Some(id.start_time)
}

#[tokio::test]
async fn codex_acp_leaves_a_daemon_behind_and_the_kill_proves_it_gone() {
    prompt_to_proven_kill(&CODEX).await;
}

#[tokio::test]
async fn opencode_leaves_a_daemon_behind_and_the_kill_proves_it_gone() {
    prompt_to_proven_kill(&OPENCODE).await;
}

async fn prompt_to_proven_kill(agent: &Agent) {
    let program = installed(agent.id);
    let session = SessionId::mint();
    let scratch = Scratch::new(&session);
    let path =
        |folder: &str| scratch.0.join(folder).to_str().expect("the temporary directory's path is text").to_owned();
    let config_dir = path(agent.config_dir.1);
    fs::create_dir_all(&config_dir).expect("a folder for the agent's configuration");
    fs::create_dir_all(path("work")).expect("a folder to work in");
    let model = MockModel::start().await.expect("mock model");
    (agent.configure)(Path::new(&config_dir), &model);

    let argv: Vec<&str> =
        [program.to_str().expect("the program's path is text")].iter().chain(agent.args).copied().collect();
    let own = [("HOME", path("").as_str()), (agent.config_dir.0, config_dir.as_str()), KEY]
        .map(|(k, v)| (k.to_owned(), v.to_owned()));
    let manager = ProxyManager::builder(Child::Path(env!("CARGO_BIN_EXE_proxy-child").into()))
        .base_env([("PATH", "/usr/local/bin:/usr/bin:/bin")].into_iter().collect())
        .agent(AgentSpec {
            env: agent.env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).chain(own).collect(),
            ..AgentSpec::new(agent.id, "acp", &argv)
        })
        .build();
    let manager = soon("the fork server", manager).await.expect("manager");
    let config = AgentSessionConfig {
        session_id: session.clone(),
        cwd: Some(path("work")),
        permission_mode: PermissionMode::Allow,
        ..AgentSessionConfig::new(agent.id)
    };
    let handle = soon("the agent to be ready", manager.start_session(config)).await.expect("session");
    let mut events = handle.subscribe();
    assert!(!with_marker(session.as_str()).is_empty(), "the agent does not carry the session's marker");

    // Ends by itself in five minutes; the digits after the dot make its command line unique.
    let seconds = format!("300.{}", session.as_str().chars().filter(char::is_ascii_digit).collect::<String>());
    // The tool ends when its daemon runs: from then on it is nobody's child but the session's.
    let prompt = format!(
        "shell: setsid sleep {seconds} >/dev/null 2>&1 & until grep -q sleep /proc/$!/comm; do :; done; echo started"
    );
    let turn = soon("the prompt", handle.prompt(prompt, PromptMode::Refuse)).await.expect("turn");
    let end = soon("the turn", turn.wait()).await.expect("end of the turn");
    assert_eq!((end.stop_reason, end.error), (Some(StopReason::EndTurn), None));

    let listed = soon("the listing", handle.processes()).await.expect("processes");
    let sleeper = listed
        .iter()
        .find(|process| process.args == [seconds.clone()])
        .unwrap_or_else(|| panic!("sleep {seconds} is not in {listed:#?}"));
    assert_eq!(sleeper.command.as_deref(), Some("sleep"));
    assert_eq!((sleeper.sid, sleeper.pgid), (sleeper.id.pid, sleeper.id.pid), "setsid gives it a session of its own");
    assert_eq!(with_word(&seconds), [sleeper.id.pid]);

    let receipt = soon("the kill", handle.kill(KillOptions::default())).await.expect("an empty receipt");
    println!("{}: {receipt}", agent.id);
    assert!(receipt.is_empty(), "{receipt:#?}");
    let entry = receipt.processes.iter().find(|entry| entry.id == sleeper.id);
    let entry = entry.unwrap_or_else(|| panic!("the sleeper is not in {receipt:#?}"));
    let command = entry.command.as_deref().unwrap_or_default();
    assert!(command.contains("sleep") && command.contains(&seconds), "{entry:?}");
    // What the receipt claims, checked without it.
    assert_eq!(with_marker(session.as_str()), [0; 0]);
    assert_eq!(with_word(&seconds), [0; 0]);
    let left: Vec<_> = receipt.processes.iter().filter(|entry| exists(entry.id)).collect();
    assert!(left.is_empty(), "{left:#?}");

    let seen = all(&mut events).await;
    check_turn(&seen);
    let last = seen.last().map(|envelope| &envelope.event);
    assert!(matches!(last, Some(Event::SessionEnded { reason: EndReason::Killed, receipt: Some(_) })), "{last:#?}");

    let requests = model.requests();
    assert!(requests.len() >= 2, "one for the call, one for its output: {requests:#?}");
    for request in requests {
        assert_eq!((request.path.as_str(), request.authorization.as_deref()), (agent.endpoint, Some("Bearer dummy")));
    }
    assert!(soon("the shutdown", manager.shutdown()).await.iter().all(|receipt| receipt.is_empty()));
}

/// A turn with one shell tool: allowed, started, ended, and told of.
fn check_turn(seen: &[Arc<Envelope>]) {
    let mut told = String::new();
    let (mut allowed, mut started, mut ended) = (false, None, false);
    for envelope in seen {
        match &envelope.event {
            Event::Text { text } => told.push_str(text),
            Event::PermissionResolved { by: ResolvedBy::Mode, option: Some(_), .. } => allowed = true,
            Event::ToolStart(tool) if tool.kind == "execute" => started = Some(tool.id.clone()),
            Event::ToolEnd(tool) if started.as_ref() == Some(&tool.id) => {
                assert!(allowed, "the tool ran without permission: {seen:#?}");
                assert_eq!(tool.status, ToolStatus::Completed);
                assert!(tool.output.contains("started"), "{tool:?}");
                ended = true;
            }
            _ => {}
        }
    }
    assert!(ended, "no tool started and ended: {seen:#?}");
    assert!(told.contains("done: "), "the model was not told: {told}");
}
