//! The policy holds on an agent's own screen, whose hooks ask while its dialog is shown.

use agent_proxy_tests::{
    sessions::{self, event, soon},
    system::{until, with_marker},
};
use proxy_manager::{
    AgentSessionConfig, AgentSpec, Event, KillOptions, PermissionAnswer, PermissionMode, PermissionPolicy, PromptMode,
    ProxyManager, ResolvedBy, RuleDecision, SessionHandle, Signal, Subscription, ToolStatus,
    terminal::{FromTerminal, KeyboardWish, TerminalConfig, TerminalSize, TerminalViewer, ToTerminal},
};
use serde_json::json;

use crate::{requested, rule};

const SCREEN: &str = include_str!("screen.sh");

struct Screen {
    manager: ProxyManager,
    session: SessionHandle,
    events: Subscription,
    viewer: TerminalViewer,
    _scratch: tempfile::TempDir,
}

impl Screen {
    async fn new(mode: PermissionMode, policy: PermissionPolicy) -> Self {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().to_str().expect("UTF-8").to_owned();
        let env = [("PATH", "/usr/bin:/bin"), ("HOME", &path)].into_iter().collect();
        let mut row = AgentSpec::new("screen", "claude-code", &["true"]);
        row.terminal_cmd = ["/bin/sh", "-c", SCREEN, "screen"].map(str::to_owned).to_vec();
        row.protocol_config = json!({ "config": "claude" });
        let builder = sessions::builder(env!("CARGO_BIN_EXE_proxy-child"), env!("CARGO_BIN_EXE_fake-agent"));
        let manager = builder.base_env(env).agent(row).build().await.expect("built");
        let terminal = Some(TerminalConfig { observed: true, ..TerminalConfig::default() });
        let session = manager.start_session(AgentSessionConfig {
            cwd: Some(path),
            permission_mode: mode,
            permissions: policy,
            terminal,
            ..AgentSessionConfig::new("screen")
        });
        let session = session.await.expect("started");
        let events = session.subscribe();
        let mut viewer = soon("a viewer's connection", session.view_terminal()).await.expect("a terminal");
        let (size, keyboard) = (TerminalSize::bounded(24, 200), KeyboardWish::Type);
        viewer.send(&ToTerminal::Attach { size, keyboard, in_place: false }).await.expect("sent");
        let mut screen = Self { manager, session, events, viewer, _scratch: scratch };
        screen.shows("screen of").await;
        screen
    }

    async fn shows(&mut self, text: &str) {
        soon(text, async {
            let mut seen = String::new();
            while !seen.contains(text) {
                match self.viewer.next().await {
                    Some(FromTerminal::Frame { bytes, .. }) => seen.push_str(&String::from_utf8_lossy(&bytes)),
                    Some(FromTerminal::Ended { .. }) | None => panic!("it ended after {seen:?}"),
                    Some(_) => {}
                }
            }
        })
        .await;
    }

    async fn types(&mut self, line: &str) {
        self.viewer.send(&ToTerminal::Input(format!("{line}\r").into_bytes())).await.expect("typed");
    }

    async fn resolved(&mut self) -> (String, Option<String>, ResolvedBy) {
        event(&mut self.events, "an answer", |envelope| match &envelope.event {
            Event::PermissionResolved { id, option, by } => Some((id.clone(), option.clone(), by.clone())),
            _ => None,
        })
        .await
    }

    async fn end(self) {
        self.manager.kill_session(self.session.id(), KillOptions::NOW).await.expect("killed");
        until("its processes are gone", || with_marker(self.session.id().as_str()).is_empty().then_some(()));
        self.manager.shutdown().await;
    }
}

#[tokio::test]
async fn rules_and_modes_answer_on_the_screen() {
    let rules = vec![rule("Bash", "touch *", "", RuleDecision::Allow)];
    let policy = PermissionPolicy { rules, ..PermissionPolicy::default() };
    let mut screen = Screen::new(PermissionMode::Deny, policy).await;
    // A prompt is typed there.
    screen.manager.send_prompt(screen.session.id(), "run touch a", PromptMode::Refuse).await.expect("typed");
    let request = requested(&mut screen.events).await;
    assert_eq!(screen.resolved().await, (request, Some("allow".into()), ResolvedBy::Rule { index: 0 }));
    screen.shows(r#""behavior":"allow""#).await;
    // More than a pipe holds at once.
    let long = "x".repeat(3000);
    screen.types(&format!("run rm {long}")).await;
    let request = requested(&mut screen.events).await;
    let denied = (request, Some("reject".into()), ResolvedBy::Mode(PermissionMode::Deny));
    assert_eq!(screen.resolved().await, denied);
    screen.shows(r#""behavior":"deny""#).await;
    screen.end().await;
}

#[tokio::test]
async fn a_user_answers_here_or_on_the_screen() {
    let mut screen = Screen::new(PermissionMode::Ask, PermissionPolicy::default()).await;
    screen.types("run touch a").await;
    let request = requested(&mut screen.events).await;
    let answer = PermissionAnswer::DenyWith { message: "not now".into() };
    screen.session.respond_permission(&request, answer).await.expect("open");
    screen.shows(r#""message":"not now""#).await;
    let by = ResolvedBy::User { name: None };
    assert_eq!(screen.resolved().await, (request, Some("reject".into()), by));

    // Each way in which an answer there is noticed: the call was made, its dialog has gone, its hook has been ended.
    for (lines, status) in [
        (&["yes"][..], ToolStatus::Completed),
        (&["blocked", "working"], ToolStatus::Failed),
        (&["escape"], ToolStatus::Failed),
    ] {
        screen.types("run touch b").await;
        let request = requested(&mut screen.events).await;
        for line in lines {
            screen.types(line).await;
            if *line == "blocked" {
                let is_blocked =
                    |event: &Event| matches!(event, Event::TerminalStatus { status, .. } if status == line);
                event(&mut screen.events, "the status", |envelope| is_blocked(&envelope.event).then_some(())).await;
            }
        }
        assert_eq!(screen.resolved().await, (request.clone(), None, ResolvedBy::Terminal), "{lines:?}");
        screen.shows("the hook said <>").await;
        let late = screen.session.respond_permission(&request, PermissionAnswer::Allow).await;
        assert!(late.is_err(), "{late:?}");
        if status == ToolStatus::Completed {
            let output = event(&mut screen.events, "its output", |envelope| match &envelope.event {
                Event::ToolEnd(end) if end.status == status => Some(end.output.clone()),
                _ => None,
            });
            assert_eq!(output.await, "done");
        }
    }
    screen.end().await;
}

#[tokio::test]
async fn nothing_is_left_of_a_hook_whose_proxy_was_killed() {
    let mut screen = Screen::new(PermissionMode::Ask, PermissionPolicy::default()).await;
    screen.types("run touch a").await;
    requested(&mut screen.events).await;
    let proxy = screen.session.info().processes.proxy.expect("it has one");
    registry::PidFd::open(proxy).and_then(|proxy| proxy.signal(Signal::Kill)).expect("killed");
    let ended = event(&mut screen.events, "the end", |envelope| {
        matches!(envelope.event, Event::SessionEnded { .. }).then_some(())
    });
    ended.await;
    until("its processes are gone", || with_marker(screen.session.id().as_str()).is_empty().then_some(()));
    screen.manager.shutdown().await;
}
