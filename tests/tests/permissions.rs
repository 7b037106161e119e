//! Who answers a permission request: rules, the mode, a deadline, a user. All of it in the proxy, as it happens to sessions.

#[path = "permissions/screen.rs"]
mod screen;

use std::sync::Arc;

use agent_proxy_tests::sessions::{self, all, event, fake, soon};
use proxy_manager::{
    AgentSessionConfig, AgentSpec, BypassAction, Envelope, Event, Home, KillOptions, PermissionAnswer, PermissionMode,
    PermissionPolicy, PermissionRule, PromptMode, ProxyManager, ResolvedBy, RuleDecision, SessionHandle, StopReason,
    Subscription, UNTRIED_VERSION,
};
use serde_json::{Value, json};

async fn manager() -> ProxyManager {
    let builder = sessions::builder(env!("CARGO_BIN_EXE_proxy-child"), env!("CARGO_BIN_EXE_fake-agent"));
    builder.build().await.expect("built")
}

fn rule(tool: &str, command: &str, path: &str, decision: RuleDecision) -> PermissionRule {
    let glob = |glob: &str| (!glob.is_empty()).then(|| glob.to_owned());
    PermissionRule { tool: glob(tool), command: glob(command), path: glob(path), decision }
}

fn config(mode: PermissionMode, policy: PermissionPolicy) -> AgentSessionConfig {
    AgentSessionConfig { cwd: Some("/".into()), permission_mode: mode, permissions: policy, ..fake() }
}

/// What an agent asks with for this tool call.
fn request(id: u64, call: &Value) -> Value {
    let options = json!([
        {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
        {"optionId": "no", "name": "No", "kind": "reject_once"},
    ]);
    let params = json!({"sessionId": "fake-session", "toolCall": call, "options": options});
    json!({"jsonrpc": "2.0", "id": id, "method": "session/request_permission", "params": params})
}

/// A prompt that has the agent ask for this tool call, and wait for ever.
fn asks(call: &Value) -> String {
    format!("raw {}\nwait", request(1000, call))
}

fn call(command: &str) -> Value {
    json!({"toolCallId": "c", "title": "t", "kind": "execute", "rawInput": {"command": command}})
}

fn runs(command: &str) -> String {
    asks(&call(command))
}

fn edits(path: &str) -> String {
    asks(&json!({"toolCallId": "c", "title": "t", "kind": "edit", "locations": [{"path": path}]}))
}

async fn requested(events: &mut Subscription) -> String {
    event(events, "a permission request", |envelope| match &envelope.event {
        Event::PermissionRequested(request) => Some(request.id.clone()),
        _ => None,
    })
    .await
}

async fn resolved(events: &mut Subscription) -> (Option<String>, ResolvedBy) {
    event(events, "its answer", |envelope| match &envelope.event {
        Event::PermissionResolved { option, by, .. } => Some((option.clone(), by.clone())),
        _ => None,
    })
    .await
}

async fn prompted(session: &SessionHandle, script: String) -> Subscription {
    let events = session.subscribe();
    session.prompt(script, PromptMode::Refuse).await.expect("prompted");
    events
}

#[tokio::test]
async fn rules_answer_before_the_mode_and_say_which() {
    let manager = manager().await;
    let rules = vec![
        rule("", "git push *", "", RuleDecision::Deny),
        rule("execute", "git *", "", RuleDecision::Allow),
        rule("edit", "", "/work/**", RuleDecision::Allow),
    ];
    let by_rule = |index| ResolvedBy::Rule { index };
    let by_mode = ResolvedBy::Mode(PermissionMode::Deny);
    for (script, option, by) in [
        (runs("git log"), "yes", by_rule(1)),
        (runs("git push origin"), "no", by_rule(0)),
        (runs("git log; git push origin"), "no", by_rule(0)),
        (runs("git log; rm -rf /"), "no", by_mode.clone()),
        (edits("/work/src/a.rs"), "yes", by_rule(2)),
        (edits("/work/../etc/passwd"), "no", by_mode.clone()),
        (edits("work/a"), "yes", by_rule(2)),
    ] {
        let policy = PermissionPolicy { rules: rules.clone(), ..PermissionPolicy::default() };
        let session = manager.start_session(config(PermissionMode::Deny, policy)).await.expect("started");
        let mut events = prompted(&session, script.clone()).await;
        requested(&mut events).await;
        assert_eq!(resolved(&mut events).await, (Some(option.to_owned()), by), "{script}");
        session.kill(KillOptions::NOW).await.expect("killed");
    }
    manager.shutdown().await;
}

#[tokio::test]
async fn a_rule_that_asks_asks_in_every_mode_and_the_answer_has_a_name() {
    let manager = manager().await;
    let policy = PermissionPolicy { rules: vec![rule("*", "", "", RuleDecision::Ask)], ..PermissionPolicy::default() };
    let session = manager.start_session(config(PermissionMode::Allow, policy)).await.expect("started");
    let mut events = prompted(&session, runs("ls")).await;
    let id = requested(&mut events).await;
    session.respond_permission_as("somebody", &id, PermissionAnswer::Deny).await.expect("answered");
    let by = ResolvedBy::User { name: Some("somebody".into()) };
    assert_eq!(resolved(&mut events).await, (Some("no".into()), by));
    manager.shutdown().await;
}

#[tokio::test]
async fn a_request_waits_until_its_deadline() {
    let manager = manager().await;
    for (allow_at_deadline, option) in [(true, "yes"), (false, "no")] {
        let policy = PermissionPolicy { deadline_ms: Some(20), allow_at_deadline, ..PermissionPolicy::default() };
        let session = manager.start_session(config(PermissionMode::Ask, policy)).await.expect("started");
        let mut events = prompted(&session, runs("ls")).await;
        let id = requested(&mut events).await;
        assert_eq!(resolved(&mut events).await, (Some(option.to_owned()), ResolvedBy::Deadline));
        let late = session.respond_permission(&id, PermissionAnswer::Allow).await;
        assert!(matches!(late, Err(proxy_manager::Error::UnknownPermission { .. })), "{late:?}");
    }
    manager.shutdown().await;
}

#[tokio::test]
async fn what_was_answered_in_time_is_not_answered_again() {
    let manager = manager().await;
    let policy = PermissionPolicy { deadline_ms: Some(2000), ..PermissionPolicy::default() };
    let session = manager.start_session(config(PermissionMode::Ask, policy)).await.expect("started");
    // The deadline of the second, which nobody answers, is not before the first one's.
    let [first, second] = [request(1000, &call("first")), request(1001, &call("second"))];
    let mut events = prompted(&session, format!("raw {first}\nraw {second}\nwait")).await;
    let [first, second] = [requested(&mut events).await, requested(&mut events).await];
    session.respond_permission(&first, PermissionAnswer::Allow).await.expect("answered");
    let by_deadline = |envelope: &Envelope| {
        matches!(&envelope.event, Event::PermissionResolved { by: ResolvedBy::Deadline, .. }).then_some(())
    };
    event(&mut events, "the deadline", by_deadline).await;
    session.kill(KillOptions::NOW).await.expect("killed");
    let resolved = |envelope: Arc<Envelope>| match &envelope.event {
        Event::PermissionResolved { id, by, .. } => Some((id.clone(), by.clone())),
        _ => None,
    };
    let resolved: Vec<_> = all(&mut session.subscribe()).await.into_iter().filter_map(resolved).collect();
    assert_eq!(resolved, [(first, ResolvedBy::User { name: None }), (second, ResolvedBy::Deadline)]);
    manager.shutdown().await;
}

/// What allows, once, has to be there, or what rejects: else somebody has to say which of the options it is, or the deadline
/// takes none.
#[tokio::test]
async fn where_nothing_allows_nothing_is_chosen() {
    let manager = manager().await;
    let params = json!({"sessionId": "fake-session", "toolCall": {"toolCallId": "c"},
                        "options": [{"optionId": "odd", "name": "Odd", "kind": "reject_always"}]});
    let request = json!({"jsonrpc": "2.0", "id": 1000, "method": "session/request_permission", "params": params});
    let policy = PermissionPolicy { deadline_ms: Some(20), allow_at_deadline: true, ..PermissionPolicy::default() };
    let session = manager.start_session(config(PermissionMode::Allow, policy)).await.expect("started");
    let mut events = prompted(&session, format!("raw {request}\nwait")).await;
    requested(&mut events).await;
    assert_eq!(resolved(&mut events).await, (None, ResolvedBy::Deadline), "it would be for ever");
    manager.shutdown().await;
}

#[tokio::test]
async fn a_policy_that_cannot_be_followed_starts_nothing() {
    let manager = manager().await;
    let rules = vec![rule("*", "", "", RuleDecision::Ask), rule("", "", "/a/{b", RuleDecision::Deny)];
    let policy = PermissionPolicy { rules, ..PermissionPolicy::default() };
    let refused = soon("a refusal", manager.start_session(config(PermissionMode::Ask, policy))).await;
    let refused = refused.expect_err("refused").to_string();
    assert!(refused.contains("rule 1") && refused.contains("/a/{b"), "{refused}");
    assert!(manager.list_sessions().is_empty());
    manager.shutdown().await;
}

/// What an agent says of a call that it makes without asking: it begins, and is done.
fn runs_unasked(kind: &str, command: &str) -> String {
    let update = |update: Value| {
        let params = json!({"sessionId": "fake-session", "update": update});
        format!("raw {}", json!({"jsonrpc": "2.0", "method": "session/update", "params": params}))
    };
    let begin = json!({"sessionUpdate": "tool_call", "toolCallId": "c", "title": command, "kind": kind, "status": "in_progress",
        "rawInput": {"command": command}});
    let end = json!({"sessionUpdate": "tool_call_update", "toolCallId": "c", "status": "completed"});
    format!("{}\n{}", update(begin), update(end))
}

#[tokio::test]
async fn a_call_that_bypasses_the_policy_is_told_and_aborts_the_turn() {
    let manager = manager().await;
    let deny = vec![rule("execute", "touch *", "", RuleDecision::Deny)];
    let by_mode = |mode| (Some(ResolvedBy::Mode(mode)), BypassAction::AbortTurn);
    for (mode, rules, expected) in [
        (PermissionMode::Deny, vec![], by_mode(PermissionMode::Deny)),
        (PermissionMode::ReadOnly, vec![], by_mode(PermissionMode::ReadOnly)),
        (PermissionMode::Allow, deny, (Some(ResolvedBy::Rule { index: 0 }), BypassAction::AbortTurn)),
    ] {
        let policy = PermissionPolicy { rules, ..PermissionPolicy::default() };
        let session = manager.start_session(config(mode, policy)).await.expect("started");
        // It would go on for ever.
        let mut events = prompted(&session, runs_unasked("execute", "touch made") + "\nwait").await;
        let found = event(&mut events, "the bypass", |envelope| match &envelope.event {
            Event::PermissionBypassed(found) => Some((**found).clone()),
            _ => None,
        });
        let found = found.await;
        assert_eq!(
            (found.tool_call_id.as_str(), found.kind.as_str(), found.title.as_str()),
            ("c", "execute", "touch made")
        );
        assert_eq!((found.denied_by, found.action), expected);
        let stop = event(&mut events, "the end of the turn", |envelope| match &envelope.event {
            Event::Complete { stop_reason, .. } => Some(stop_reason.clone()),
            _ => None,
        });
        assert_eq!(stop.await, StopReason::Cancelled);
        session.kill(KillOptions::NOW).await.expect("killed");
    }
}

#[tokio::test]
async fn a_call_that_its_agent_should_have_asked_about_is_a_warning() {
    let fake_agent = env!("CARGO_BIN_EXE_fake-agent");
    let builder = sessions::builder(env!("CARGO_BIN_EXE_proxy-child"), fake_agent);
    let mut row = AgentSpec::new("asks", "acp", &[fake_agent]);
    row.permission_config.asks = vec!["execute".into()];
    let manager = builder.agent(row).build().await.expect("built");
    for (home, kind, warns) in
        [(Home::Own, "execute", true), (Home::Own, "fetch", false), (Home::Shared, "execute", false)]
    {
        let config = config(PermissionMode::Ask, PermissionPolicy::default());
        let config = AgentSessionConfig { agent: "asks".into(), home: Some(home), ..config };
        let session = manager.start_session(config).await.expect("started");
        let mut events = prompted(&session, runs_unasked(kind, "make") + "\nsay done").await;
        let mut bypassed = Vec::new();
        let stop = event(&mut events, "the end of the turn", |envelope| match &envelope.event {
            Event::PermissionBypassed(found) => {
                bypassed.push((found.denied_by.clone(), found.action));
                None
            }
            Event::Complete { stop_reason, .. } => Some(stop_reason.clone()),
            _ => None,
        });
        assert_eq!(stop.await, StopReason::EndTurn, "it goes on");
        let expected = if warns { vec![(None, BypassAction::Warn)] } else { vec![] };
        assert_eq!(bypassed, expected, "{home:?} {kind}");
        session.kill(KillOptions::NOW).await.expect("killed");
    }
}

/// The agent names itself as it begins; its row names the versions that were tried.
#[tokio::test]
async fn a_version_that_was_not_tried_is_told_at_the_start() {
    let fake_agent = env!("CARGO_BIN_EXE_fake-agent");
    let builder = sessions::builder(env!("CARGO_BIN_EXE_proxy-child"), fake_agent);
    let row = |id: &str, tried: String| {
        let mut row = AgentSpec::new(id, "acp", &[fake_agent]);
        row.discovery.tried = vec![tried];
        row
    };
    let version = env!("CARGO_PKG_VERSION");
    let builder = builder.agent(row("tried", format!("fake-agent {version}")));
    let manager = builder.agent(row("untried", "fake-agent 0.0.1".into())).build().await.expect("built");
    for (agent, is_told) in [("tried", false), ("untried", true)] {
        let config = config(PermissionMode::Deny, PermissionPolicy::default());
        let session =
            manager.start_session(AgentSessionConfig { agent: agent.into(), ..config }).await.expect("started");
        let mut events = session.subscribe_from(0);
        let mut told = Vec::new();
        event(&mut events, "that it is idle", |envelope| match &envelope.event {
            Event::SessionStatus { status, detail } => {
                told.push((status.clone(), detail.clone()));
                None
            }
            Event::SessionIdle {} => Some(()),
            _ => None,
        })
        .await;
        let untried: Vec<_> = told.iter().filter(|(status, _)| status == UNTRIED_VERSION).collect();
        assert_eq!(untried.len(), usize::from(is_told), "{agent}: {told:?}");
        assert!(untried.iter().all(|(_, detail)| detail.contains(&format!("fake-agent {version} was not tried"))));
        session.kill(KillOptions::NOW).await.expect("killed");
    }
}
