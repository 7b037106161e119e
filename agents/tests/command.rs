//! Any command as an agent: the adapter, from outside.

#[path = "common/calls.rs"]
mod calls;

use agents::{Action, Adapter, AdapterSetup, command};
use ipc_protocol::{
    AgentSessionConfig, Event, Json, McpServer, McpTransport, Operation, PermissionAnswer, PermissionMode,
    PermissionPolicy, PermissionRule, Prompt, PromptPart, ResolvedBy, ResumeFrom, ResumeRequest, RuleDecision,
    WireError,
};
use proptest::{collection::vec, prelude::*, sample::Index};
use serde_json::json;

use crate::calls::{endless, garbage, in_pieces};

fn config() -> AgentSessionConfig {
    AgentSessionConfig { command: vec!["cat".into()], ..AgentSessionConfig::new("command") }
}

fn make(config: AgentSessionConfig) -> Result<Box<dyn Adapter>, WireError> {
    command::make(AdapterSetup {
        agent: "command".into(),
        config,
        protocol_config: json!({}),
        fresh_id: "0193a5a8-0000-7000-8000-000000000000".into(),
        resume: None,
        endpoint: None,
        directories: std::collections::BTreeMap::new(),
    })
}

/// What is told of bytes on both streams that come in these pieces.
fn told(stdout: &[u8], stderr: &[u8], splits: &[Index]) -> Vec<Action> {
    let mut adapter = make(config()).expect("an adapter");
    let mut out = Vec::new();
    adapter.start(&mut out);
    let mut splits = splits.iter().cycle();
    in_pieces(stdout, &mut splits, |piece| adapter.stdout(piece, &mut out));
    in_pieces(stderr, &mut splits, |piece| adapter.stderr(piece, &mut out));
    adapter.finish(&mut out);
    out
}

/// Lines, and bytes that are none.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    garbage(&["hello ü\r\n", "\n", "\n\n", "two words"])
}

/// The texts of what was printed, and of what was logged.
fn texts(actions: &[Action]) -> [String; 2] {
    let mut texts = [String::new(), String::new()];
    for action in actions {
        match action {
            Action::Event(Event::Text { text }) => texts[0].push_str(text),
            Action::Event(Event::Log { stream, text }) if stream == "stderr" => texts[1].push_str(text),
            Action::Ready { native_session_id: None } => {}
            other => panic!("{other:?}"),
        }
    }
    texts
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn splitting_changes_nothing(stdout in bytes(), stderr in bytes(), splits in vec(any::<Index>(), 1..32)) {
        prop_assert_eq!(told(&stdout, &stderr, &splits), told(&stdout, &stderr, &[]));
    }

    /// Whatever is written, wherever it ends: all of it is told, once, a line an event.
    #[test]
    fn any_prefix_is_told_whole(stdout in bytes(), stderr in bytes(), cuts in any::<[Index; 2]>()) {
        let [stdout, stderr] = [(&stdout, cuts[0]), (&stderr, cuts[1])].map(|(all, cut)| &all[..cut.index(all.len() + 1)]);
        let actions = told(stdout, stderr, &[]);
        calls::check(&actions);
        let by_line = |bytes: &[u8]| bytes.split_inclusive(|byte| *byte == b'\n').map(String::from_utf8_lossy).collect::<String>();
        prop_assert_eq!(texts(&actions), [by_line(stdout), by_line(stderr)]);
        let lines = |bytes: &[u8]| bytes.split_inclusive(|byte| *byte == b'\n').count();
        prop_assert_eq!(actions.len(), 1 + lines(stdout) + lines(stderr));
    }
}

/// What has no end is told in pieces, and nothing of it is lost.
#[test]
fn an_endless_line_is_told_in_pieces() {
    let whole = endless("x").collect::<Vec<_>>().concat();
    let actions = told(&whole, b"", &[]);
    assert_eq!(texts(&actions)[0].as_bytes(), whole);
    assert!(actions.len() > 9, "{} actions", actions.len());
}

/// A session from its start to its end: every action, in order.
#[test]
fn every_action_is_as_reviewed() {
    let mut adapter = make(config()).expect("an adapter");
    assert!(!adapter.has_turns());
    let mut out = Vec::new();
    adapter.start(&mut out);
    let parts = vec![PromptPart::Text("look at".into()), PromptPart::File { path: "a.txt".into() }];
    adapter.prompt(&Prompt { parts }, &mut out).expect("taken");
    adapter.stdout(b"one\ntw", &mut out);
    adapter.stderr(b"warning\n", &mut out);
    adapter.stdout(b"o\n\n", &mut out);
    adapter.prompt(&Prompt::from("with its newline\n"), &mut out).expect("taken");
    adapter.abort(&mut out).expect("a signal");
    let close = Operation::Native { message: Json::from(&json!({ "closeInput": true })) };
    adapter.operate(7, &close, &mut out).expect("taken");
    adapter.stdout(b"last \xff words", &mut out);
    adapter.stderr(b"half a line", &mut out);
    adapter.finish(&mut out);
    let lines = out.iter().map(|action| match action {
        Action::Write(bytes) => format!("> {:?}\n", String::from_utf8_lossy(bytes)),
        other => format!("{other:?}\n"),
    });
    insta::assert_snapshot!("command", lines.collect::<String>());
}

#[test]
fn what_a_command_has_no_place_for_is_refused() {
    let server = McpServer {
        name: "files".into(),
        transport: McpTransport::Stdio {
            command: "x".into(),
            args: Vec::new(),
            env: [("A", "b")].into_iter().collect(),
        },
    };
    let resume = ResumeRequest { from: ResumeFrom::MostRecent, fork: false, on_missing: ipc_protocol::OnMissing::Fail };
    let rule = |decision| PermissionRule { tool: Some("bash".into()), command: None, path: None, decision };
    let ruled = |decision| PermissionPolicy { rules: vec![rule(decision)], ..PermissionPolicy::default() };
    for (config, what) in [
        (AgentSessionConfig { model: Some("m".into()), ..config() }, "take a model"),
        (AgentSessionConfig { system_prompt: Some("s".into()), ..config() }, "take a system prompt"),
        (AgentSessionConfig { tools: vec!["bash".into()], ..config() }, "restrict its tools"),
        (AgentSessionConfig { mcp_servers: vec![server], ..config() }, "use MCP servers"),
        (AgentSessionConfig { mode: Some("plan".into()), ..config() }, "take a mode"),
        (AgentSessionConfig { thinking: Some("high".into()), ..config() }, "think"),
        (AgentSessionConfig { resume: Some(resume), ..config() }, "go on with a conversation"),
        (AgentSessionConfig { permission_mode: PermissionMode::Deny, ..config() }, "permission mode"),
        (AgentSessionConfig { permission_mode: PermissionMode::ReadOnly, ..config() }, "permission mode"),
        (AgentSessionConfig { permissions: ruled(RuleDecision::Deny), ..config() }, "permission rules"),
        (AgentSessionConfig { permissions: ruled(RuleDecision::Ask), ..config() }, "permission rules"),
    ] {
        let error = make(config).err();
        let Some(WireError::Unsupported { agent, operation }) = &error else { panic!("{what}: {error:?}") };
        assert!(agent == "command" && operation.contains(what), "{what}: {operation}");
    }
    for permission_mode in [PermissionMode::Ask, PermissionMode::Allow] {
        assert!(make(AgentSessionConfig { permission_mode, ..config() }).is_ok());
    }
}

#[test]
fn what_a_command_cannot_do_is_refused_and_does_nothing() {
    let mut adapter = make(config()).expect("an adapter");
    let mut out = Vec::new();
    let unsupported =
        |result: Result<(), WireError>| assert!(matches!(result, Err(WireError::Unsupported { .. })), "{result:?}");
    let image = PromptPart::Image { mime_type: "image/png".into(), data: "AA==".into() };
    unsupported(adapter.prompt(&Prompt { parts: vec![image] }, &mut out));
    unsupported(adapter.steer(&Prompt::from("left"), &mut out));
    for operation in [
        Operation::SetModel { model: "m".into() },
        Operation::SetMode { mode: "plan".into() },
        Operation::Compact,
        Operation::GetMessages,
        Operation::Native { message: Json::from(&json!({ "closeInput": false })) },
    ] {
        unsupported(adapter.operate(1, &operation, &mut out));
    }
    let answer = adapter.permission("r", &PermissionAnswer::Allow, ResolvedBy::User { name: None }, &mut out);
    assert_eq!(answer, Err(WireError::UnknownPermission { id: "r".into() }));
    assert_eq!(out, []);
}
