//! The adapter and the fake agent, over pipes.

use std::{
    io::{PipeWriter, Read, Write, pipe},
    sync::mpsc::{Receiver, channel},
    time::Duration,
};

use agents::{Action, Adapter, acp};
use ipc_protocol::{
    AgentSessionConfig, EnvVars, Event, McpServer, McpTransport, PermissionAnswer, ResolvedBy, StopReason, ToolStatus,
    WireError, message::AgentFact,
};

use crate::replay::{USER, setup};

/// Longest wait for anything.
const DEADLINE: Duration = Duration::from_secs(30);

struct Live {
    adapter: Box<dyn Adapter>,
    to_agent: PipeWriter,
    from_agent: Receiver<Vec<u8>>,
    actions: Vec<Action>,
}

impl Live {
    fn start(config: AgentSessionConfig, flags: &[&str]) -> Self {
        let (agent_input, to_agent) = pipe().expect("a pipe");
        let (mut from_agent, agent_output) = pipe().expect("a pipe");
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        std::thread::spawn(move || {
            fake_agent::run_on(fake_agent::Config { reexec: Vec::new() }, flags, agent_input, agent_output)
        });
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            let mut buffer = vec![0; 64 * 1024];
            while let Ok(len @ 1..) = from_agent.read(&mut buffer) {
                if sender.send(buffer[..len].to_vec()).is_err() {
                    return;
                }
            }
        });
        let adapter = acp::make(setup(config)).expect("an adapter");
        let mut live = Self { adapter, to_agent, from_agent: receiver, actions: Vec::new() };
        live.act(|adapter, out| adapter.start(out));
        live
    }

    fn ready(config: AgentSessionConfig, flags: &[&str]) -> Self {
        let mut live = Self::start(config, flags);
        let actions = live.until(|action| matches!(action, Action::Ready { .. } | Action::Fail(_)));
        let session = Action::Ready { native_session_id: Some("fake-session".into()) };
        assert_eq!(actions.last(), Some(&session), "{actions:?}");
        // Without a store it can load none.
        let told = live.until(|action| matches!(action, Action::Fact(_)));
        assert!(matches!(&told[..], [Action::Fact(AgentFact::NotResumable { .. })]), "{told:?}");
        live
    }

    /// Has the adapter do something, and writes what it wants written.
    fn act<T>(&mut self, act: impl FnOnce(&mut dyn Adapter, &mut Vec<Action>) -> T) -> T {
        let before = self.actions.len();
        let result = act(&mut *self.adapter, &mut self.actions);
        for action in &self.actions[before..] {
            if let Action::Write(bytes) = action {
                self.to_agent.write_all(bytes).expect("written");
            }
        }
        result
    }

    /// Goes on until an action is `last`, and returns all up to it.
    fn until(&mut self, last: impl Fn(&Action) -> bool) -> Vec<Action> {
        loop {
            if let Some(at) = self.actions.iter().position(&last) {
                return self.actions.drain(..=at).filter(|action| !matches!(action, Action::Write(_))).collect();
            }
            let bytes = self.from_agent.recv_timeout(DEADLINE).unwrap_or_else(|_| panic!("so far: {:?}", self.actions));
            self.act(|adapter, out| adapter.stdout(&bytes, out));
        }
    }

    fn prompt(&mut self, script: &str) {
        self.act(|adapter, out| adapter.prompt(&script.into(), out)).expect("a turn");
    }

    /// A whole turn, without its end.
    fn turn(&mut self, script: &str) -> Vec<Event> {
        self.prompt(script);
        self.turn_end()
    }

    fn turn_end(&mut self) -> Vec<Event> {
        let mut actions = self.until(|action| *action == Action::TurnEnded);
        actions.pop();
        let event = |action| match action {
            Action::Event(event) => Some(event),
            // With what it began.
            Action::Fact(AgentFact::Settings { .. }) => None,
            other => panic!("{other:?}"),
        };
        actions.into_iter().filter_map(event).collect()
    }

    fn failure(&mut self) -> WireError {
        match self.until(|action| matches!(action, Action::Fail(_) | Action::Ready { .. })).pop() {
            Some(Action::Fail(error)) => error,
            other => panic!("{other:?}"),
        }
    }

    /// Waits for a permission request and returns its id.
    fn asked(&mut self) -> String {
        match self.until(|action| matches!(action, Action::Event(Event::PermissionRequested(_)))).pop() {
            Some(Action::Event(Event::PermissionRequested(request))) => request.id,
            other => panic!("{other:?}"),
        }
    }
}

fn config() -> AgentSessionConfig {
    AgentSessionConfig { cwd: Some("/".into()), ..AgentSessionConfig::new("fake") }
}

fn text(text: &str) -> Event {
    Event::Text { text: text.to_owned() }
}

fn complete(stop_reason: StopReason) -> Event {
    Event::Complete { stop_reason, usage: None }
}

#[test]
fn a_turn_becomes_events() {
    let mut live = Live::ready(config(), &["--banner", "welcome"]);
    let script = "hello\nthink hm\ntool Bash\nplan\nusage\nraw not json\nrun echo out; exit 3";
    let events = live.turn(script);
    assert_eq!(events[..2], [text("hello\n"), Event::Thinking { text: "hm\n".into() }]);
    let Event::ToolStart(start) = &events[2] else { panic!("{events:?}") };
    assert_eq!((start.name.as_str(), start.kind.as_str(), start.status), ("Bash", "execute", ToolStatus::InProgress));
    let Event::ToolUpdate(update) = &events[3] else { panic!("{events:?}") };
    assert_eq!((&update.id, update.output.as_deref()), (&start.id, Some("half")));
    let Event::ToolEnd(end) = &events[4] else { panic!("{events:?}") };
    assert_eq!((&end.id, end.status, end.output.as_str()), (&start.id, ToolStatus::Completed, "done"));
    let Event::Plan { entries } = &events[5] else { panic!("{events:?}") };
    assert_eq!((entries[1].content.as_str(), entries[1].status.as_str()), ("think", "in_progress"));
    assert_eq!(events[6], Event::context_window(1234, 200_000));
    assert_eq!(events[7], Event::Log { stream: "stdout".into(), text: "not json\n".into() });
    let Event::ToolStart(start) = &events[8] else { panic!("{events:?}") };
    assert_eq!(start.input.as_str(), r#"{"command":"echo out; exit 3"}"#);
    let Event::ToolEnd(end) = &events[9] else { panic!("{events:?}") };
    assert_eq!((end.status, end.output.as_str()), (ToolStatus::Failed, "out\nexit code 3\n"));
    assert_eq!(events[10..], [complete(StopReason::EndTurn)]);
}

#[test]
fn a_flood_arrives_whole_and_in_order() {
    let mut live = Live::ready(config(), &[]);
    let events = live.turn("flood 20000 64");
    assert_eq!(events.len(), 20_001);
    for (number, event) in events[..20_000].iter().enumerate() {
        let Event::Text { text } = event else { panic!("{event:?}") };
        assert_eq!(text.len(), 64);
        assert_eq!(text[..10].parse(), Ok(number));
    }
}

#[test]
fn model_system_prompt_and_servers_reach_the_agent() {
    for flags in [&[][..], &["--set-model"]] {
        let server = McpServer {
            name: "files".into(),
            transport: McpTransport::Stdio { command: "/bin/mcp".into(), args: Vec::new(), env: EnvVars::default() },
        };
        let config = AgentSessionConfig {
            model: Some("fake-2".into()),
            system_prompt: Some("be brief".into()),
            mcp_servers: vec![server],
            ..config()
        };
        let mut live = Live::ready(config, flags);
        let events = live.turn("model\nsystem\nmcp");
        assert_eq!(events[..3], [text("fake-2\n"), text("be brief\n"), text("1 MCP servers\n")]);
        assert_eq!(live.turn("hello")[0], text("hello\n"), "the system prompt is said once");
    }
}

#[test]
fn a_model_that_cannot_be_had_is_refused() {
    let model = |model: &str| AgentSessionConfig { model: Some(model.into()), ..config() };
    for (config, flags) in [(model("fake-2"), &["--no-model"][..]), (model("other"), &[])] {
        let error = Live::start(config, flags).failure();
        assert!(matches!(error, WireError::Unsupported { .. }), "{error}");
    }
}

#[test]
fn a_handshake_that_fails_says_why() {
    let error = Live::start(config(), &["--bad-handshake"]).failure();
    assert!(error.to_string().contains("-32603") && error.to_string().contains("told to refuse"), "{error}");
    let error = Live::start(config(), &["--protocol-version", "2"]).failure();
    assert!(matches!(&error, WireError::AgentProtocol { .. }) && error.to_string().contains("version 2"), "{error}");
}

#[test]
fn permission_requests_wait_for_their_answer() {
    let mut live = Live::ready(config(), &[]);
    for (answer, said) in [
        (PermissionAnswer::Allow, "allow-once"),
        (PermissionAnswer::Deny, "reject-once"),
        (PermissionAnswer::Option("allow-always".into()), "allow-always"),
        (PermissionAnswer::Cancelled, "cancelled"),
    ] {
        live.prompt("ask May I?");
        let id = live.asked();
        let unknown = PermissionAnswer::Option("no-such".into());
        let error = live.act(|adapter, out| adapter.permission(&id, &unknown, USER, out)).expect_err("unknown");
        assert!(matches!(&error, WireError::UnknownOption { options, .. } if options.len() == 3), "{error}");
        live.act(|adapter, out| adapter.permission(&id, &answer, USER, out)).expect("open");
        let error = live.act(|adapter, out| adapter.permission(&id, &answer, USER, out)).expect_err("answered");
        assert!(matches!(error, WireError::UnknownPermission { .. }), "{error}");
        let events = live.turn_end();
        let Event::PermissionResolved { by: USER, option, .. } = &events[0] else { panic!("{events:?}") };
        assert_eq!(option.as_deref().unwrap_or("cancelled"), said);
        // The fake agent says nothing of the call itself.
        let Event::ToolEnd(end) = &events[2] else { panic!("{events:?}") };
        let status = if said.starts_with("allow") { ToolStatus::Completed } else { ToolStatus::Failed };
        assert_eq!(end.status, status, "{said}");
        assert_eq!(events[1], text(&format!("permission: {said}\n")));
        assert_eq!(events[3..], [complete(StopReason::EndTurn)]);
    }
}

/// The fake agent is deaf to a cancel while it asks.
#[test]
fn an_abort_gets_through_to_an_agent_that_waits_for_an_answer() {
    let mut live = Live::ready(config(), &[]);
    live.prompt("ask May I?\nwait");
    let id = live.asked();
    live.act(|adapter, out| adapter.abort(out)).expect("abortable");
    let resolved = Event::PermissionResolved { id, option: None, by: ResolvedBy::Abort };
    let events = live.turn_end();
    assert_eq!(events[..2], [resolved, text("permission: cancelled\n")]);
    assert!(matches!(&events[2], Event::ToolEnd(end) if end.status == ToolStatus::Failed), "{events:?}");
    assert_eq!(events[3..], [complete(StopReason::Cancelled)]);
    // Between turns there is nothing to cancel.
    live.act(|adapter, out| adapter.abort(out)).expect("abortable");
    assert_eq!(live.actions, []);
    live.prompt("say begun\nwait");
    live.until(|action| *action == Action::Event(text("begun\n")));
    live.act(|adapter, out| adapter.abort(out)).expect("abortable");
    assert_eq!(live.turn_end(), [complete(StopReason::Cancelled)]);
}

/// A request that comes after the abort is answered too: the turn could not end otherwise.
#[test]
fn a_request_in_a_cancelled_turn_is_cancelled_at_once() {
    let mut live = Live::ready(config(), &[]);
    live.prompt("ask first\nask second");
    live.asked();
    // The agent reads the answer first, goes on, and asks again before it sees the cancellation.
    let mut out = Vec::new();
    live.adapter.abort(&mut out).expect("abortable");
    let writes: Vec<_> =
        out.iter().filter_map(|a| if let Action::Write(bytes) = a { Some(bytes) } else { None }).collect();
    live.to_agent.write_all(writes[0]).expect("written");
    let events = live.turn_end();
    let aborted =
        events.iter().filter(|event| matches!(event, Event::PermissionResolved { by: ResolvedBy::Abort, .. }));
    assert_eq!(aborted.count(), 1, "{events:?}");
    // It has not heard of the cancellation: it ends the turn by itself, without what it asked for.
    assert_eq!(events.last(), Some(&complete(StopReason::Cancelled)));
}

/// As OpenCode and the wrapper of Claude Code do.
#[test]
fn trap_each_prompt_of_a_steered_turn_is_answered() {
    let mut live = Live::ready(config(), &[]);
    live.prompt("say begun\nask more?");
    let id = live.asked();
    live.act(|adapter, out| adapter.steer(&"go left".into(), out)).expect("steered");
    live.until(|action| *action == Action::Event(text("steered: go left\n")));
    live.act(|adapter, out| adapter.permission(&id, &PermissionAnswer::Allow, USER, out)).expect("open");
    assert_eq!(live.turn_end().last(), Some(&complete(StopReason::EndTurn)));
    assert_eq!(live.turn("hello")[0], text("hello\n"));
}
