//! What a session can do, through `ProxyManager`, with the fake agent and with plain commands.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use agent_proxy_tests::{
    sessions::{self, all, event, fake, family, said, shell, soon},
    system::{self, until},
};
use proxy_manager::{
    AbortPolicy, AgentSessionConfig, EndReason, Error, Event, HistoryLimits, Json, KillOptions, KillScope, Limits,
    MAX_TURNS_REACHED, McpServer, McpTransport, OnAgentExit, PermissionAnswer, PermissionMode, PermissionRequest,
    ProcessOutcome, ProcessStatus, PromptMode, Proof, ProxyManager, ResolvedBy, SessionState, Signal, StopReason,
    Subscription,
};
use tokio::runtime::Runtime;

fn builder() -> proxy_manager::ManagerBuilder {
    sessions::builder(env!("CARGO_BIN_EXE_proxy-child"), env!("CARGO_BIN_EXE_fake-agent"))
}

async fn manager() -> ProxyManager {
    builder().build().await.expect("built")
}

/// Output of a running tool comes in steps of all of it so far, and none is held back when its agent falls silent.
#[tokio::test]
async fn the_output_of_a_silent_tool_is_complete() {
    const PIECES: usize = 200;
    let manager = manager().await;
    let session = manager.start_session(fake()).await.expect("started");
    let mut events = session.subscribe();
    let update = |update: serde_json::Value| {
        let params = serde_json::json!({"sessionId": "fake-session", "update": update});
        format!("raw {}", serde_json::json!({"jsonrpc": "2.0", "method": "session/update", "params": params}))
    };
    let begin =
        serde_json::json!({"sessionUpdate": "tool_call", "toolCallId": "c", "title": "make", "status": "in_progress"});
    let piece = serde_json::json!({"sessionUpdate": "tool_call_update", "toolCallId": "c",
        "_meta": {"terminal_output_delta": {"data": "x"}}});
    let script: Vec<_> = [update(begin)].into_iter().chain((0..PIECES).map(|_| update(piece.clone()))).collect();
    session.prompt(script.join("\n") + "\nwait", PromptMode::Refuse).await.expect("prompted");
    let mut updates = 0;
    let complete = event(&mut events, "all of the output", |envelope| {
        let Event::ToolUpdate(update) = &envelope.event else { return None };
        updates += 1;
        (update.output.as_ref()?.len() == PIECES).then_some(())
    });
    complete.await;
    assert!(updates < PIECES / 2, "{updates} updates");
    session.kill(KillOptions::NOW).await.expect("killed");
    manager.shutdown().await;
}

#[tokio::test]
async fn a_turn_from_prompt_to_complete() {
    let manager = manager().await;
    let session = manager.start_session(fake()).await.expect("started");
    assert_eq!(session.info().state, SessionState::Idle);
    let mut events = session.subscribe();
    let turn = session
        .prompt("think hm\nsay hello\nrun echo out; exit 3\nplan\nusage", PromptMode::Refuse)
        .await
        .expect("prompted");
    assert_eq!(turn.number(), Some(1));
    let end = soon("the turn's end", turn.wait()).await.expect("it ended");
    assert_eq!((end.turn, end.stop_reason, end.error), (Some(1), Some(StopReason::EndTurn), None));
    assert_eq!(session.info().state, SessionState::Idle);
    let receipt = session.kill(KillOptions::default()).await.expect("killed");
    assert!(receipt.is_empty());
    let events = all(&mut events).await;

    // Offsets are 1, 2, 3, …; what belongs to the turn says so.
    assert!(events.iter().zip(1..).all(|(envelope, offset)| envelope.offset == offset), "{events:#?}");
    let kinds: Vec<_> = events
        .iter()
        .filter(|e| {
            !matches!(
                e.event,
                Event::ProcessSpawned(_)
                    | Event::ProcessExited { .. }
                    | Event::SessionLossy { .. }
                    | Event::Usage(_)
                    | Event::ContextWindow { .. }
                    | Event::Harness { .. }
            )
        })
        .map(|e| (e.to_json().expect("serializes")["type"].as_str().expect("text").to_owned(), e.turn))
        .collect();
    let expected = [
        ("session:started", None),
        ("session:idle", None),
        // It can load no conversation.
        ("session:status", None),
        ("turn:started", Some(1)),
        ("session:busy", Some(1)),
        ("stream:thinking", Some(1)),
        ("stream:text", Some(1)),
        ("stream:tool_start", Some(1)),
        ("stream:tool_end", Some(1)),
        ("stream:plan", Some(1)),
        ("stream:complete", Some(1)),
        ("session:idle", Some(1)),
        ("session:ended", None),
    ];
    let without_updates: Vec<_> = kinds.iter().filter(|(kind, _)| kind != "stream:tool_update").collect();
    for (kind, expected) in without_updates.iter().zip(expected) {
        assert_eq!((kind.0.as_str(), kind.1), expected, "{kinds:?}");
    }
    assert_eq!(without_updates.len(), expected.len(), "{kinds:?}");
    let text = |wanted: &str| events.iter().any(|e| matches!(&e.event, Event::Text { text } if text == wanted));
    assert!(text("hello\n"));
    let output = events.iter().find_map(|e| match &e.event {
        Event::ToolEnd(end) => Some(end.output.clone()),
        _ => None,
    });
    assert!(output.is_some_and(|output| output.contains("out")), "{events:#?}");
    manager.shutdown().await;
}

#[tokio::test]
async fn the_living_processes_are_listed_and_the_dead_ones_in_the_receipt() {
    let manager = manager().await;
    let session = manager.start_session(fake()).await.expect("started");
    let mut events = session.subscribe();
    let family = family(&session).await;
    let list = session.processes().await.expect("listed");
    for pid in &family.pids {
        let info = list.iter().find(|info| info.id.pid == *pid).unwrap_or_else(|| panic!("{pid} in {list:#?}"));
        assert_eq!(info.status, ProcessStatus::Running);
        assert_eq!(info.session_id, *session.id());
        assert!(info.rss_bytes.is_some() && info.cpu_percent.is_some(), "{info:?}");
    }
    let agent = session.info().processes.agent_process.expect("it runs");
    assert!(list.iter().any(|info| info.id == agent && info.tracked));
    let other_sessions = list.iter().filter(|info| info.sid != agent.pid).count();
    assert!(other_sessions >= 2, "setsid and daemon: {list:#?}");

    // Each was announced when it was first seen.
    let mut announced = BTreeSet::new();
    event(&mut events, "all of them announced", |envelope| {
        if let Event::ProcessSpawned(info) = &envelope.event {
            announced.insert(info.id.pid);
        }
        family.pids.iter().all(|pid| announced.contains(pid)).then_some(())
    })
    .await;

    let receipt = session.kill(KillOptions::grace(Duration::from_millis(200))).await.expect("killed");
    assert!(receipt.is_empty() && receipt.proof == Proof::NoChildren, "{receipt:?}");
    for pid in &family.pids {
        let entry =
            receipt.processes.iter().find(|entry| entry.id.pid == *pid).unwrap_or_else(|| panic!("{receipt:#?}"));
        assert!(matches!(entry.outcome, ProcessOutcome::Ended(_)), "{entry:?}");
    }
    assert!(system::sleeping(&family.seconds).is_empty());
    assert!(system::with_marker(session.id().as_str()).is_empty());
    assert_eq!(session.kill(KillOptions::default()).await.expect("the stored receipt"), receipt);
    assert!(session.processes().await.expect("an empty list").is_empty());
    assert_eq!(manager.shutdown().await.len(), 0);
}

#[tokio::test]
async fn all_but_the_agent_or_one_process_can_be_killed() {
    let manager = manager().await;
    let session = manager.start_session(fake()).await.expect("started");
    let family = family(&session).await;
    let one = family.pids[1];
    let receipt =
        session.kill_scope(KillScope::Process { pid: one, tree: false }, KillOptions::default()).await.expect("killed");
    assert_eq!(receipt.proof, Proof::ProcessGone);
    assert_eq!(receipt.processes.iter().map(|e| e.id.pid).collect::<Vec<_>>(), [one]);
    assert!(!system::is_alive(one) && system::is_alive(family.pids[0]));
    let error = session
        .kill_scope(KillScope::Process { pid: std::process::id(), tree: false }, KillOptions::NOW)
        .await
        .expect_err("a stranger");
    assert!(matches!(error, Error::UnknownProcess { pid, .. } if pid == std::process::id()), "{error}");

    let receipt = session
        .kill_scope(KillScope::AllButAgent, KillOptions::grace(Duration::from_millis(100)))
        .await
        .expect("killed");
    assert!(receipt.is_empty(), "{receipt:?}");
    assert!(system::sleeping(&family.seconds).is_empty());
    let agent = session.info().processes.agent_process.expect("it runs");
    assert!(!receipt.processes.iter().any(|entry| entry.id == agent));
    let turn = session.prompt("say still here", PromptMode::Refuse).await.expect("the agent lives");
    soon("the turn's end", turn.wait()).await.expect("ended");
    let receipts = manager.shutdown().await;
    assert!(receipts.len() == 1 && receipts[0].is_empty(), "{receipts:?}");
}

#[tokio::test]
async fn a_busy_session_refuses_queues_or_is_steered() {
    let manager = manager().await;
    let session = manager.start_session(fake()).await.expect("started");
    let mut events = session.subscribe();
    let first = session.prompt("say working\nwait", PromptMode::Refuse).await.expect("prompted");
    said(&mut events, "working").await;
    assert!(matches!(session.info().state, SessionState::Busy { .. }));
    let error = session.prompt("say no", PromptMode::Refuse).await.expect_err("busy");
    assert!(matches!(error, Error::Busy { .. }), "{error}");
    let second = session.prompt("say second", PromptMode::Queue).await.expect("queued");
    let third = session.prompt("say third", PromptMode::Queue).await.expect("queued");
    session.steer("look left").await.expect("steered");
    said(&mut events, "steered: look left").await;
    let steered = session.prompt("look right", PromptMode::Steer).await.expect("steered");
    said(&mut events, "steered: look right").await;
    drop(steered);
    session.abort(AbortPolicy::LeaveProcesses).await.expect("aborted");
    let end = soon("the first turn's end", first.wait()).await.expect("ended");
    assert_eq!(end.stop_reason, Some(StopReason::Cancelled));
    said(&mut events, "second").await;
    said(&mut events, "third").await;
    for turn in [second, third] {
        assert_eq!(soon("its end", turn.wait()).await.expect("ended").stop_reason, Some(StopReason::EndTurn));
    }
    let error = session.steer("too late").await.expect_err("no turn runs");
    assert!(!error.to_string().is_empty());
    manager.shutdown().await;
}

async fn asked(events: &mut Subscription) -> PermissionRequest {
    event(events, "a permission request", |envelope| match &envelope.event {
        Event::PermissionRequested(request) => Some((**request).clone()),
        _ => None,
    })
    .await
}

#[tokio::test]
async fn permissions_are_asked_answered_and_closed_by_an_abort() {
    let manager = manager().await;
    let session = manager.start_session(fake()).await.expect("started");
    let mut events = session.subscribe();
    for (answer, outcome) in [
        (PermissionAnswer::Allow, "allow-once"),
        (PermissionAnswer::Deny, "reject-once"),
        (PermissionAnswer::Option("allow-always".into()), "allow-always"),
    ] {
        let turn = session.prompt("ask may I", PromptMode::Refuse).await.expect("prompted");
        let request = asked(&mut events).await;
        let unknown = session.respond_permission("nonsense", PermissionAnswer::Allow).await.expect_err("unknown");
        assert!(matches!(unknown, Error::UnknownPermission { .. }), "{unknown}");
        let unknown = session.respond_permission(&request.id, PermissionAnswer::Option("maybe".into())).await;
        assert!(matches!(unknown, Err(Error::UnknownPermission { .. })), "{unknown:?}");
        session.respond_permission(&request.id, answer).await.expect("answered");
        assert_eq!(said(&mut events, "permission: ").await.trim(), outcome);
        soon("its end", turn.wait()).await.expect("ended");
        let again =
            session.respond_permission(&request.id, PermissionAnswer::Allow).await.expect_err("answered before");
        assert!(matches!(again, Error::UnknownPermission { .. }), "{again}");
    }
    let turn = session.prompt("ask and wait", PromptMode::Refuse).await.expect("prompted");
    asked(&mut events).await;
    session.abort(AbortPolicy::LeaveProcesses).await.expect("aborted");
    let by = event(&mut events, "resolved", |envelope| match &envelope.event {
        Event::PermissionResolved { by, .. } => Some(by.clone()),
        _ => None,
    })
    .await;
    assert_eq!(by, ResolvedBy::Abort);
    soon("its end", turn.wait()).await.expect("ended");

    for (mode, outcome) in [(PermissionMode::Allow, "allow-once"), (PermissionMode::Deny, "reject-once")] {
        let config = AgentSessionConfig { permission_mode: mode, ..fake() };
        let session = manager.start_session(config).await.expect("started");
        let mut events = session.subscribe();
        session.prompt("ask may I", PromptMode::Refuse).await.expect("prompted");
        assert_eq!(said(&mut events, "permission: ").await.trim(), outcome);
    }
    manager.shutdown().await;
}

#[tokio::test]
async fn a_turn_ends_at_its_model_replies() {
    let manager = manager().await;
    let config = AgentSessionConfig { max_turns: Some(3), ..fake() };
    let session = manager.start_session(config).await.expect("started");
    // Each text after the result of a tool stands for a reply of the model. The prompt after the bound begins at 0.
    let replies = |count: u32| (1..=count).map(|n| format!("say {n}\ntool Bash\nsleep 20ms\n")).collect::<String>();
    for (prompt, reached) in [(replies(3), false), (replies(500), true), (replies(2), false)] {
        let mut events = session.subscribe();
        let turn = session.prompt(prompt, PromptMode::Refuse).await.expect("prompted");
        let number = turn.number();
        let end = soon("its end", turn.wait()).await.expect("ended");
        let reason = if reached { StopReason::MaxRequests } else { StopReason::EndTurn };
        assert_eq!((end.stop_reason, end.error), (Some(reason), None));
        let mut said = Vec::new();
        let told = event(&mut events, "the end or the bound", |envelope| match &envelope.event {
            _ if envelope.turn != number => None,
            Event::SessionStatus { status, detail } if status == MAX_TURNS_REACHED => Some(Some(detail.clone())),
            Event::SessionIdle {} => Some(None),
            Event::Text { text } => {
                said.push(text.clone());
                None
            }
            _ => None,
        });
        let told = told.await;
        assert_eq!(told.is_some(), reached, "{told:?}");
        assert!(told.is_none_or(|told| told.contains("its 3 model replies") && said.len() == 4), "{said:?}");
    }
    manager.shutdown().await;
}

#[tokio::test]
async fn a_session_takes_no_more_than_its_prompts() {
    let manager = manager().await;
    let config = AgentSessionConfig { max_prompts: Some(2), ..fake() };
    let session = manager.start_session(config).await.expect("started");
    for number in 1..=2 {
        let turn = session.prompt("say hi", PromptMode::Refuse).await.expect("prompted");
        assert_eq!(soon("its end", turn.wait()).await.expect("ended").turn, Some(number));
    }
    let error = session.prompt("say more", PromptMode::Refuse).await.expect_err("it has taken its prompts");
    assert!(matches!(error, Error::MaxPrompts { max_prompts: 2, .. }), "{error}");
    manager.shutdown().await;
}

#[tokio::test]
async fn the_agent_gets_what_the_configuration_says_and_nothing_else() {
    let manager = manager().await;
    let config = AgentSessionConfig {
        cwd: Some("/usr".into()),
        model: Some("fake-2".into()),
        system_prompt: Some("be brief".into()),
        env: [("EXTRA", "1")].into_iter().collect(),
        mcp_servers: vec![McpServer {
            name: "files".into(),
            transport: McpTransport::Stdio { command: "/bin/true".into(), args: Vec::new(), env: Default::default() },
        }],
        user_id: Some("user-1".into()),
        agent_type: Some("execution".into()),
        ..fake()
    };
    let session = manager.start_session(config).await.expect("started");
    let mut events = session.subscribe();
    let info = session.info();
    assert_eq!(
        (info.metadata.user_id.as_deref(), info.metadata.agent_type.as_deref()),
        (Some("user-1"), Some("execution"))
    );
    let turn = session.prompt("cwd\nmcp\nmodel\nsystem\nenv", PromptMode::Refuse).await.expect("prompted");
    soon("its end", turn.wait()).await.expect("ended");
    session.kill(KillOptions::NOW).await.expect("killed");
    let text: String = all(&mut events)
        .await
        .iter()
        .filter_map(|envelope| match &envelope.event {
            Event::Text { text } => Some(text.clone()),
            _ => None,
        })
        .collect();
    for wanted in ["/usr", "1", "fake-2", "be brief", "EXTRA", "PATH", "AGENT_PROXY_SESSION"] {
        assert!(text.contains(wanted), "{wanted} in {text}");
    }
    assert!(!text.contains("CARGO"), "this test's own environment reached the agent: {text}");
    manager.shutdown().await;
}

#[tokio::test]
async fn what_cannot_start_says_why_and_leaves_nothing() {
    let manager = manager().await;
    let first =
        manager.start_session(AgentSessionConfig { session_id: "twin".parse().expect("valid"), ..fake() }).await;
    first.expect("started");
    type Expected = fn(&Error) -> bool;
    let cases: [(AgentSessionConfig, Expected); 10] = [
        (AgentSessionConfig { session_id: "twin".parse().expect("valid"), ..fake() }, |e| {
            matches!(e, Error::DuplicateSession { .. })
        }),
        (
            AgentSessionConfig::new("clod"),
            |e| matches!(e, Error::UnknownAgent { known, .. } if known.contains(&"command".to_owned())),
        ),
        (AgentSessionConfig::new("command"), |e| matches!(e, Error::InvalidConfig { .. })),
        (
            AgentSessionConfig { command: vec!["no-such".into()], ..AgentSessionConfig::new("command") },
            |e| matches!(e, Error::ProgramNotFound { program, .. } if program == "no-such"),
        ),
        (
            AgentSessionConfig { cwd: Some("/no/such".into()), ..shell("true") },
            |e| matches!(e, Error::CwdMissing { cwd, .. } if cwd == "/no/such"),
        ),
        (AgentSessionConfig { cwd: Some("relative".into()), ..shell("true") }, |e| {
            matches!(e, Error::InvalidConfig { .. })
        }),
        (AgentSessionConfig { limits: Limits { memory_bytes: Some(0), ..Limits::default() }, ..fake() }, |e| {
            matches!(e, Error::InvalidConfig { field: "limits.memoryBytes", .. })
        }),
        (AgentSessionConfig { tools: vec!["shell".into()], ..fake() }, |e| matches!(e, Error::Unsupported { .. })),
        (AgentSessionConfig { model: Some("m".into()), ..shell("true") }, |e| matches!(e, Error::Unsupported { .. })),
        (
            AgentSessionConfig { command: vec!["--exit-at-start".into(), "9".into()], ..fake() },
            |e| matches!(e, Error::AgentDied { reason, .. } if reason.contains("exit code 9")),
        ),
    ];
    for (config, expected) in cases {
        let id = config.session_id.clone();
        let error = soon("a refusal", manager.start_session(config)).await.expect_err("refused");
        assert!(expected(&error), "{error:?}: {error}");
        if id.as_str() != "twin" {
            assert!(system::with_marker(id.as_str()).is_empty(), "{error}");
        }
    }
    let error = manager
        .start_session(AgentSessionConfig { command: vec!["--bad-handshake".into()], ..fake() })
        .await
        .expect_err("refused");
    assert!(matches!(error, Error::Protocol { .. }), "{error:?}");
    let receipts = manager.shutdown().await;
    assert_eq!(receipts.len(), 1, "{receipts:?}");
}

#[tokio::test]
async fn an_agent_that_never_answers_runs_into_the_deadline() {
    let deadlines = proxy_manager::Deadlines { start: Duration::from_millis(300), ..Default::default() };
    let manager = builder().deadlines(deadlines).build().await.expect("built");
    let config = AgentSessionConfig { command: vec!["--no-handshake".into()], ..fake() };
    let id = config.session_id.clone();
    let error = soon("the deadline", manager.start_session(config)).await.expect_err("it never answers");
    assert!(matches!(&error, Error::Deadline { after, .. } if *after == Duration::from_millis(300)), "{error}");
    until("its processes are gone", || system::with_marker(id.as_str()).is_empty().then_some(()));
    manager.shutdown().await;
}

#[tokio::test]
async fn a_start_that_nobody_waits_for_any_more_leaves_nothing() {
    let manager = manager().await;
    let config = AgentSessionConfig { command: vec!["--no-handshake".into()], ..fake() };
    let id = config.session_id.clone();
    let start = tokio::spawn({
        let manager = manager.clone();
        async move { manager.start_session(config).await }
    });
    soon("the agent runs", async {
        while system::with_marker(id.as_str()).is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    start.abort();
    soon("nothing is left", async {
        while !system::with_marker(id.as_str()).is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    manager.shutdown().await;
}

#[tokio::test]
async fn a_command_has_lines_and_no_turns() {
    let manager = manager().await;
    let script = "trap 'echo interrupted; exit 4' INT; echo oops >&2; while read line; do echo \"got $line\"; done";
    let session = manager.start_session(shell(script)).await.expect("started");
    let mut events = session.subscribe();
    let log = event(&mut events, "its standard error", |envelope| match &envelope.event {
        Event::Log { stream, text } => Some((stream.clone(), text.clone())),
        _ => None,
    })
    .await;
    assert_eq!(log, ("stderr".into(), "oops\n".into()));
    for line in ["one", "two"] {
        let turn = session.prompt(line, PromptMode::Refuse).await.expect("never busy");
        assert_eq!(turn.number(), None);
        assert_eq!(said(&mut events, "got ").await, format!("{line}\n"));
        assert_eq!(session.info().state, SessionState::Idle);
    }
    let error = session.steer("x").await.expect_err("it has no turns");
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    session.abort(AbortPolicy::LeaveProcesses).await.expect("interrupted");
    let events = all(&mut events).await;
    assert!(events.iter().any(|e| matches!(&e.event, Event::Text { text } if text == "interrupted\n")), "{events:#?}");
    let Event::SessionEnded { reason, receipt } = &events.last().expect("a last event").event else {
        panic!("{events:#?}")
    };
    assert_eq!(*reason, EndReason::AgentExited(Some(proxy_manager::ExitStatus::Code(4))));
    assert!(receipt.as_ref().is_some_and(|receipt| receipt.is_empty()));
    manager.shutdown().await;
}

#[tokio::test]
async fn a_command_that_does_not_read_is_told_no_more_than_is_kept_for_it_and_lives() {
    let manager = manager().await;
    let session = manager.start_session(shell("kill -STOP $$; exec wc -l")).await.expect("started");
    let mut events = session.subscribe();
    let line = "x".repeat(8_000_000);
    let mut told = 0;
    let error = loop {
        match session.prompt(line.as_str(), PromptMode::Refuse).await {
            Ok(_) => told += 1,
            Err(error) => break error,
        }
        assert!(told < 20);
    };
    assert!(matches!(&error, Error::System { source, .. } if source.to_string().contains("has not read")), "{error}");
    let agent = session.info().processes.agent_process.expect("it lives");
    session.native(Json::from(&serde_json::json!({ "closeInput": true }))).await.expect("closed");
    registry::PidFd::open(agent).expect("alive").signal(Signal::Cont).expect("signalled");
    let read = event(&mut events, "the number of lines", |envelope| match &envelope.event {
        Event::Text { text } => text.trim().parse::<u32>().ok(),
        _ => None,
    });
    assert_eq!(read.await, told, "all that was taken for it");
    manager.shutdown().await;
}

#[tokio::test]
async fn what_an_agent_leaves_can_be_kept_until_the_kill() {
    let manager = manager().await;
    let seconds = system::unique_seconds();
    let config = AgentSessionConfig {
        on_agent_exit: OnAgentExit::Keep,
        ..shell(&format!("setsid sleep {seconds} & read line; exit 0"))
    };
    let session = manager.start_session(config).await.expect("started");
    let mut events = session.subscribe();
    until("it sleeps", || (system::sleeping(&seconds).len() == 1).then_some(()));
    session.prompt("go", PromptMode::Refuse).await.expect("prompted");
    event(&mut events, "the agent is gone", |envelope| {
        matches!(&envelope.event, Event::SessionStatus { status, .. } if status == "agentExited").then_some(())
    })
    .await;
    assert_eq!(system::sleeping(&seconds).len(), 1);
    let error = session.prompt("more", PromptMode::Refuse).await.expect_err("nobody is there");
    assert!(matches!(error, Error::AgentDied { .. }), "{error}");
    let receipt = session.kill(KillOptions::default()).await.expect("killed");
    assert!(receipt.is_empty() && receipt.processes.len() == 1, "{receipt:?}");
    assert!(system::sleeping(&seconds).is_empty());
    manager.shutdown().await;
}

#[tokio::test]
async fn an_agent_that_ended_badly_is_listed_with_its_error() {
    let manager = manager().await;
    let seconds = system::unique_seconds();
    let config = AgentSessionConfig {
        on_agent_exit: OnAgentExit::Keep,
        ..shell(&format!("setsid sleep {seconds} & read line; echo 'no such plum' >&2; exit 3"))
    };
    let session = manager.start_session(config).await.expect("started");
    let mut events = session.subscribe();
    session.prompt("go", PromptMode::Refuse).await.expect("prompted");
    event(&mut events, "the agent is gone", |envelope| {
        matches!(&envelope.event, Event::SessionStatus { status, .. } if status == "agentExited").then_some(())
    })
    .await;
    let listed = session.processes().await.expect("listed");
    let agent = listed.iter().find(|info| info.tracked).expect("the agent");
    let error = Some("exit code 3: no such plum".to_owned());
    assert_eq!((agent.status, &agent.error), (ProcessStatus::Error, &error), "{listed:?}");
    assert!(listed.iter().all(|info| info.tracked || info.error.is_none()), "{listed:?}");
    session.kill(KillOptions::default()).await.expect("killed");
    manager.shutdown().await;
}

#[tokio::test]
async fn a_flood_is_complete_and_a_slow_subscriber_is_told_what_it_missed() {
    let limits = HistoryLimits { events: 1000, ..HistoryLimits::default() };
    let manager = builder().history(limits).build().await.expect("built");
    let session = manager.start_session(fake()).await.expect("started");
    let mut slow = session.subscribe();
    let first = slow.next().await.expect("the first event");
    assert_eq!(first.offset, 1);
    let turn = session.prompt("flood 20000 64", PromptMode::Refuse).await.expect("prompted");
    soon("its end", turn.wait()).await.expect("ended");
    // The session went on without it; now it reads.
    session.kill(KillOptions::NOW).await.expect("killed");
    let rest = all(&mut slow).await;
    let mut next = 2;
    let mut gaps = 0;
    for envelope in &rest {
        if let Event::SessionGap(gap) = envelope.event {
            assert_eq!((gap.from, gap.to), (next, envelope.offset), "{gap:?}");
            next = gap.to + 1;
            gaps += 1;
        } else {
            assert_eq!(envelope.offset, next);
            next += 1;
        }
    }
    assert!(gaps >= 1);
    assert!(next > 20_000, "{next}");
    manager.shutdown().await;
}

#[tokio::test]
async fn one_subscription_sees_all_sessions() {
    let manager = manager().await;
    let mut everything = manager.subscribe_all();
    let mut expected = BTreeSet::new();
    for _ in 0..3 {
        let session = manager.start_session(shell("echo hello; cat")).await.expect("started");
        expected.insert(session.id().to_string());
    }
    let mut seen = BTreeSet::new();
    event(&mut everything, "hello of each", |envelope| {
        if matches!(&envelope.event, Event::Text { text } if text == "hello\n") {
            seen.insert(envelope.session.to_string());
        }
        (seen == expected).then_some(())
    })
    .await;
    assert_eq!(manager.list_sessions().len(), 3);
    let receipts = manager.shutdown().await;
    assert!(receipts.len() == 3 && receipts.iter().all(|receipt| receipt.is_empty()));
    let error = manager.start_session(fake()).await.expect_err("shut down");
    assert!(matches!(error, Error::ShutDown), "{error}");
}

#[tokio::test]
async fn a_wedged_proxy_is_no_obstacle() {
    let manager = manager().await;
    let session = manager.start_session(fake()).await.expect("started");
    let family = family(&session).await;
    let proxy = session.info().processes.proxy.expect("it runs");
    let _stopped = system::Stopper::new(proxy);
    let receipt = soon("the kill", session.kill(KillOptions::grace(Duration::from_millis(100)))).await.expect("killed");
    assert!(receipt.is_empty(), "{receipt:?}");
    for pid in &family.pids {
        assert!(receipt.processes.iter().any(|entry| entry.id.pid == *pid), "{receipt:#?}");
    }
    assert!(system::sleeping(&family.seconds).is_empty());
    assert!(!system::is_alive(proxy.pid));
    manager.shutdown().await;
}

/// Waits for a future in a thread without a runtime.
fn outside<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> T {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let run = move || {
        let waker = Arc::new(Unpark(std::thread::current())).into();
        let mut future = std::pin::pin!(future);
        loop {
            match future.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
                std::task::Poll::Ready(value) => return value,
                std::task::Poll::Pending => std::thread::park_timeout(Duration::from_secs(30)),
            }
        }
    };
    std::thread::spawn(run).join().expect("no panic")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_outside_a_runtime_are_errors() {
    let built = outside(builder().build());
    assert!(matches!(built, Err(Error::NoRuntime)), "{built:?}");
    let manager = manager().await;
    let session = manager.start_session(fake()).await.expect("started");
    let id = session.id().clone();
    macro_rules! refused {
        ($manager:ident, $session:ident, $id:ident: $($call:expr),* $(,)?) => {$({
            let ($manager, $session, $id) = ($manager.clone(), $session.clone(), $id.clone());
            let result = outside(async move {
                let _all = (&$manager, &$session, &$id);
                $call.await.map(drop)
            });
            assert!(matches!(result, Err(Error::NoRuntime)), "{}: {result:?}", stringify!($call));
        })*};
    }
    refused!(manager, session, id:
        manager.start_session(fake()),
        manager.ask(fake(), "say x"),
        manager.send_prompt(&id, "x", PromptMode::Queue),
        manager.list_processes(&id),
        manager.delete_session(&id),
        manager.resume_session(&id),
        manager.archive_session(&id, true),
        manager.suspend_session(&id, KillOptions::NOW),
        manager.hand_over(&id, KillOptions::NOW),
        manager.append_event(&id, "a:b", 1, Json::null()),
        manager.import_events(std::io::empty()),
        manager.capabilities(),
        session.prompt("x", PromptMode::Refuse),
        session.ask("x"),
        session.steer("x"),
        session.state(),
        session.abort(AbortPolicy::KillTurnProcesses),
        session.kill(KillOptions::NOW),
        session.kill_scope(KillScope::AllButAgent, KillOptions::NOW),
        session.processes(),
        session.respond_permission("x", PermissionAnswer::Allow),
        session.ping(),
    );
    // What only reads needs none, and what answers with no error uses the manager's own.
    assert_eq!(manager.list_sessions().len(), 1);
    let reader = session.clone();
    outside(async move { reader.transcript().await }).expect("read");
    let mut events = session.subscribe();
    assert!(outside(async move { events.next().await }).is_some());
    let measuring = manager.clone();
    assert_eq!(outside(async move { measuring.measured_sessions().await }).len(), 1);
    let draining = manager.clone();
    let (receipts, reports) = outside(async move {
        let mut reports = 0;
        let receipts = draining.drain(Duration::from_secs(1), |_| reports += 1).await;
        (receipts, reports)
    });
    assert!(receipts.len() == 1 && receipts[0].is_empty() && reports > 0, "{receipts:?} {reports}");
    assert!(outside(async move { manager.shutdown().await }).is_empty(), "it was shut down");
}

/// Runtime of a program that embeds a manager.
fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

#[test]
fn a_manager_whose_runtime_has_ended_says_so_at_once_and_leaves_nothing() {
    let first = runtime();
    let (manager, session, turn) = first.block_on(async {
        let manager = manager().await;
        let session = manager.start_session(fake()).await.expect("started");
        let turn = session.prompt("setsid exec sleep 600\nwait", PromptMode::Refuse).await.expect("prompted");
        said(&mut session.subscribe(), "setsid ").await;
        (manager, session, turn)
    });
    let fork_server = manager.fork_server();
    let processes = session.info().processes;
    drop(first);
    let second = runtime();
    second.block_on(async {
        let begin = Instant::now();
        macro_rules! refused {
            ($($operation:literal: $call:expr),* $(,)?) => {$({
                let result = soon($operation, $call).await.map(drop);
                let Err(error @ Error::RuntimeEnded { .. }) = result else { panic!("{}: {result:?}", stringify!($call)) };
                let text = error.to_string();
                assert!(text.contains($operation) && text.contains("build another manager"), "{text}");
            })*};
        }
        let id = session.id();
        refused! {
            "starting": manager.start_session(fake()),
            "starting": manager.ask(fake(), "say x"),
            "prompting": session.prompt("say x", PromptMode::Refuse),
            "prompting": session.ask("say x"),
            "prompting": manager.send_prompt(id, "say x", PromptMode::Queue),
            "pinging": session.ping(),
            "aborting": session.abort(AbortPolicy::LeaveProcesses),
            "killing": session.abort(AbortPolicy::KillTurnProcesses),
            "listing": session.processes(),
            "killing": session.kill(KillOptions::NOW),
            "killing": manager.kill_session(id, KillOptions::NOW),
            "killing": session.kill_scope(KillScope::AllButAgent, KillOptions::NOW),
            "suspending": manager.suspend_session(id, KillOptions::NOW),
            "appending": manager.append_event(id, "a:b", 1, Json::null()),
            "trying": manager.capabilities(),
            "turn": turn.wait(),
        }
        let mut events = session.subscribe();
        while soon("the end of its events", events.next()).await.is_some() {}
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
        // Its session has ended with the runtime: nobody has a receipt of that.
        assert!(matches!(session.info().state, SessionState::Ended { .. }), "{:?}", session.info().state);
        assert_eq!(soon("the end", manager.shutdown()).await, []);
    });
    for process in [processes.proxy, processes.agent_process, Some(fork_server)].into_iter().flatten() {
        until("its end", || (!system::is_alive(process.pid)).then_some(()));
    }
}

#[test]
fn a_call_that_waits_while_the_managers_runtime_ends_is_answered() {
    let (first, second) = (runtime(), runtime());
    let manager = first.block_on(manager());
    let session = second.block_on(manager.start_session(fake())).expect("started");
    let turn = second.block_on(session.prompt("wait", PromptMode::Refuse)).expect("prompted");
    let waits = second.spawn(async move { turn.wait().await });
    // The turn runs.
    second.block_on(async {
        let mut events = session.subscribe();
        event(&mut events, "the turn", |envelope| matches!(envelope.event, Event::SessionBusy {}).then_some(())).await;
    });
    drop(first);
    let waited = second.block_on(soon("an answer", waits)).expect("no panic");
    assert!(matches!(waited, Err(Error::RuntimeEnded { .. })), "{waited:?}");
    second.block_on(soon("the end", manager.shutdown()));
}

#[test]
fn a_session_lives_as_long_as_the_runtime_of_its_manager() {
    let home = runtime();
    let manager = home.block_on(manager());
    let other = runtime();
    let session = other.block_on(manager.start_session(fake())).expect("started");
    drop(other);
    home.block_on(async {
        let answer = soon("an answer", session.ask("say hello")).await.expect("answered");
        assert_eq!(answer.reply, "hello\n");
        let receipt = soon("its end", session.kill(KillOptions::NOW)).await.expect("killed");
        assert!(receipt.is_empty(), "{receipt}");
        manager.shutdown().await;
    });
}

#[test]
fn a_runtime_without_its_drivers_is_refused() {
    for (mut runtime, missing) in [
        (tokio::runtime::Builder::new_current_thread(), "no time driver"),
        (tokio::runtime::Builder::new_multi_thread(), "no time driver"),
    ] {
        let built = runtime.build().expect("a runtime").block_on(builder().build());
        let error = built.expect_err("refused");
        assert!(error.to_string().contains(missing) && error.to_string().contains("enable_all()"), "{error}");
    }
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let error = runtime.enable_time().build().expect("a runtime").block_on(builder().build()).expect_err("refused");
    assert!(matches!(error, Error::RuntimeIncomplete { missing: "I/O" }), "{error}");
}

/// Drops the start of an agent with these flags once `is_reached` says so of the session, and starts another one with the same id.
async fn start_again_after_dropping(flags: &[&str], is_reached: fn(&SessionState) -> bool) {
    let manager = manager().await;
    let config = || AgentSessionConfig { session_id: "again".parse().expect("an id"), ..fake() };
    let first = AgentSessionConfig { command: flags.iter().map(|&flag| flag.to_owned()).collect(), ..config() };
    let info = || manager.list_sessions().into_iter().find(|info| info.metadata.session_id.as_str() == "again");
    let reached = async {
        loop {
            match info() {
                Some(info) if is_reached(&info.state) && info.processes.proxy.is_some() => return info,
                _ => tokio::task::yield_now().await,
            }
        }
    };
    let dropped = tokio::select! {
        biased;
        info = soon("the state", reached) => info,
        started = manager.start_session(first) => panic!("{started:?}"),
    };
    let again = async {
        loop {
            match manager.start_session(config()).await {
                // The dropped start ends.
                Err(Error::DuplicateSession { .. }) => tokio::task::yield_now().await,
                started => return started,
            }
        }
    };
    let session = soon("another start", again).await.expect("started");
    assert_eq!(manager.list_sessions().len(), 1);
    let gone = [dropped.processes.proxy, dropped.processes.agent_process];
    for process in gone.into_iter().flatten() {
        until("the end of the dropped one", || (!system::is_alive(process.pid)).then_some(()));
    }
    assert_eq!(soon("an answer", session.ask("say hello")).await.expect("answered").reply, "hello\n");
    let receipt = session.kill(KillOptions::NOW).await.expect("killed");
    assert!(receipt.is_empty(), "{receipt}");
    manager.shutdown().await;
}

#[tokio::test]
async fn a_start_that_is_dropped_leaves_its_id_free() {
    // One that is ready soon may never be seen starting.
    start_again_after_dropping(&["--no-handshake"], |state| matches!(state, SessionState::Starting)).await;
}

#[tokio::test]
async fn a_start_that_is_dropped_when_its_agent_is_ready_leaves_its_id_free() {
    start_again_after_dropping(&[], |state| matches!(state, SessionState::Idle)).await;
}

#[tokio::test]
async fn an_empty_path_is_named_with_what_to_do() {
    let manager = builder().base_env(Default::default()).build().await.expect("built");
    for env in [None, Some(("PATH", ""))] {
        let env = env.into_iter().collect();
        let config = AgentSessionConfig { env, ..AgentSessionConfig::new("command").with_command(["sleep", "600"]) };
        let error = soon("a refusal", manager.start_session(config)).await.expect_err("refused");
        let text = format!("{error:?}");
        for part in ["\"sleep\"", "PATH, which is empty", "set PATH in the `env` of the session"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
    manager.shutdown().await;
}

/// It builds, and a first session would fail late and far from the cause.
#[tokio::test]
async fn a_child_binary_inside_a_runtime_is_refused_with_what_to_write() {
    let program = env!("CARGO_BIN_EXE_child-in-runtime");
    let built = ProxyManager::builder(proxy_manager::ChildProgram::Path(program.into())).build();
    let error = soon("a refusal", built).await.expect_err("refused");
    assert!(matches!(&error, Error::ChildInRuntime { child } if child == program), "{error:?}");
    let text = error.to_string();
    for part in ["inside a tokio runtime", "let token = agent_proxy_sdk::run_if_child();", "block_on(run(token))"] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[tokio::test]
async fn a_child_binary_that_is_none_is_refused() {
    for (program, why) in [("/bin/cat", ""), ("/bin/true", ""), ("/no/such/child", "not found")] {
        let result =
            soon("a refusal", ProxyManager::builder(proxy_manager::ChildProgram::Path(program.into())).build()).await;
        match result {
            Err(Error::ChildUnusable { child, reason }) => {
                assert!(child == program && reason.contains(why), "{reason}")
            }
            Err(other) => panic!("{program}: {other:?}"),
            Ok(_) => panic!("{program} was accepted"),
        }
    }
}
