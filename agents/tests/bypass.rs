//! Tool calls that ran although nobody decided on them.

use agents::permission::{BypassDetector, CompiledPolicy};
use ipc_protocol::{
    BypassAction::{self, AbortTurn, Warn},
    Event, Json, PermissionMode, PermissionOption, PermissionOptionKind, PermissionPolicy, PermissionRequest,
    PermissionRule, ResolvedBy, RuleDecision, StopReason, ToolEnd, ToolStart, ToolStatus, ToolUpdate,
    message::PermissionSupport,
};
use serde_json::{Value, json};

/// A detector beside the policy of its session.
struct Session {
    policy: CompiledPolicy,
    detector: BypassDetector,
    runs: u32,
}

impl Session {
    fn new(mode: PermissionMode, rules: &[PermissionRule], asks: &[&str], has_user_settings: bool) -> Self {
        let rules = PermissionPolicy { rules: rules.to_vec(), ..PermissionPolicy::default() };
        let policy = CompiledPolicy::new(&rules, mode, "/work").expect("a policy");
        let asks = asks.iter().map(|kind| (*kind).to_owned()).collect();
        let detector =
            BypassDetector::new(&policy, PermissionSupport { asks, has_user_settings, ..PermissionSupport::default() });
        Self { policy, detector, runs: 0 }
    }

    fn of(mode: PermissionMode) -> Self {
        Self::new(mode, &[], &["execute", "edit"], false)
    }

    fn note(&mut self, event: &Event) -> Option<BypassAction> {
        self.detector.note(event, &self.policy).map(|bypassed| bypassed.action)
    }

    fn start(&mut self, id: &str, kind: &str, input: Value) {
        let start = ToolStart {
            id: id.into(),
            name: kind.into(),
            title: "t".into(),
            kind: kind.into(),
            input: Json::from(&input),
            status: ToolStatus::InProgress,
            parent: None,
        };
        assert_eq!(self.note(&Event::ToolStart(Box::new(start))), None, "announced is not begun");
    }

    fn output(&mut self, id: &str, output: &str) -> Option<BypassAction> {
        let output = Some(output.to_owned());
        self.note(&Event::ToolUpdate(Box::new(ToolUpdate {
            id: id.into(),
            title: None,
            status: None,
            input: None,
            output,
        })))
    }

    fn end(&mut self, id: &str, status: ToolStatus, output: &str) -> Option<BypassAction> {
        self.note(&Event::ToolEnd(Box::new(ToolEnd { id: id.into(), status, output: output.into() })))
    }

    /// A whole call without a decision.
    fn run(&mut self, kind: &str, input: Value) -> Option<BypassAction> {
        self.runs += 1;
        let id = format!("run-{}", self.runs);
        self.start(&id, kind, input);
        self.end(&id, ToolStatus::Completed, "")
    }

    fn ask(&mut self, call: Option<&str>, kind: &str) {
        let option = |id: &str, kind| PermissionOption { id: id.into(), name: id.into(), kind };
        let request = PermissionRequest {
            id: "p".into(),
            tool_call_id: call.map(str::to_owned),
            title: "t".into(),
            tool: kind.into(),
            kind: kind.into(),
            command: None,
            paths: Vec::new(),
            input: Json::null(),
            options: vec![
                option("once", PermissionOptionKind::AllowOnce),
                option("always", PermissionOptionKind::AllowAlways),
                option("no", PermissionOptionKind::RejectOnce),
            ],
            parent: None,
        };
        assert_eq!(self.note(&Event::PermissionRequested(Box::new(request))), None);
    }

    fn answer(&mut self, option: &str) {
        let by = ResolvedBy::User { name: None };
        let resolved = Event::PermissionResolved { id: "p".into(), option: Some(option.into()), by };
        assert_eq!(self.note(&resolved), None);
    }
}

fn rule(command: &str, path: &str, decision: RuleDecision) -> PermissionRule {
    let glob = |glob: &str| (!glob.is_empty()).then(|| glob.to_owned());
    PermissionRule { tool: None, command: glob(command), path: glob(path), decision }
}

#[test]
fn what_changes_something_is_not_to_run_without_a_decision() {
    use PermissionMode::{Allow, Ask, Deny, ReadOnly};
    let command = json!({ "command": "touch made" });
    for (mode, kind, action) in [
        (Deny, "execute", Some(AbortTurn)),
        (ReadOnly, "execute", Some(AbortTurn)),
        (Ask, "execute", Some(Warn)),
        (Allow, "execute", None),
        (Deny, "edit", Some(AbortTurn)),
        (Deny, "delete", Some(AbortTurn)),
        (Deny, "move", Some(AbortTurn)),
        (Deny, "fetch", Some(AbortTurn)),
        (Deny, "other", Some(AbortTurn)),
        (Deny, "of a later protocol", Some(AbortTurn)),
        // The row does not say that it asks for these.
        (Ask, "fetch", None),
        (Deny, "read", None),
        (Deny, "search", None),
        (Deny, "think", None),
        (Deny, "question", None),
        (Deny, "switch_mode", None),
        (ReadOnly, "read", None),
    ] {
        assert_eq!(Session::of(mode).run(kind, command.clone()), action, "{mode:?} {kind}");
    }
}

#[test]
fn the_rules_are_asked_too() {
    let denies = [rule("git push*", "", RuleDecision::Deny), rule("", "/etc/**", RuleDecision::Deny)];
    let mut session = Session::new(PermissionMode::Allow, &denies, &["execute"], false);
    assert_eq!(session.run("execute", json!({ "command": "git push" })), Some(AbortTurn));
    assert_eq!(session.run("execute", json!({ "command": ["bash", "-lc", "ls; git push"] })), Some(AbortTurn));
    assert_eq!(session.run("execute", json!({ "command": "git log" })), None, "it would be allowed");
    assert_eq!(session.run("edit", json!({ "file_path": "/etc/passwd" })), Some(AbortTurn));
    assert_eq!(session.run("edit", json!({ "changes": [{ "path": "/etc/passwd" }] })), Some(AbortTurn));
    assert_eq!(session.run("edit", json!({ "changes": { "/etc/passwd": { "type": "add" } } })), Some(AbortTurn));
    assert_eq!(session.run("edit", json!({ "path": "here" })), None);
    let asks = [rule("make", "", RuleDecision::Ask)];
    let mut session = Session::new(PermissionMode::Allow, &asks, &["execute"], false);
    assert_eq!(session.run("execute", json!({ "command": "make" })), Some(Warn));
    let allows = [rule("make", "", RuleDecision::Allow)];
    let mut session = Session::new(PermissionMode::Deny, &allows, &["execute"], false);
    assert_eq!(session.run("execute", json!({ "command": "make" })), None, "nobody would have refused it");
}

#[test]
fn what_was_decided_on_may_run() {
    for option in ["once", "no"] {
        let mut session = Session::of(PermissionMode::Deny);
        session.start("c", "execute", json!({}));
        session.ask(Some("c"), "execute");
        session.answer(option);
        assert_eq!(session.output("c", "out"), None);
        assert_eq!(session.end("c", ToolStatus::Completed, "out"), None);
        assert_eq!(session.run("execute", json!({})), Some(AbortTurn), "another call");
    }
    // A request that names no call is about the next one of its kind.
    let mut session = Session::of(PermissionMode::Deny);
    session.ask(None, "edit");
    session.answer("once");
    session.start("e", "edit", json!({}));
    assert_eq!(session.run("execute", json!({})), Some(AbortTurn), "another kind");
    assert_eq!(session.end("e", ToolStatus::Completed, ""), None);
    session.ask(None, "edit");
    session.answer("once");
    session.note(&Event::Complete { stop_reason: StopReason::EndTurn, usage: None });
    assert_eq!(session.run("edit", json!({})), Some(AbortTurn), "of another turn");
    // One that waits for its answer is none.
    let mut session = Session::of(PermissionMode::Deny);
    session.start("c", "execute", json!({}));
    session.ask(Some("c"), "execute");
    assert_eq!(session.end("c", ToolStatus::Completed, ""), Some(AbortTurn));
}

#[test]
fn announced_is_not_begun_and_a_call_is_told_once() {
    let mut session = Session::of(PermissionMode::Deny);
    session.start("c", "execute", json!({}));
    assert_eq!(session.output("c", "  "), None);
    assert_eq!(session.output("c", "out"), Some(AbortTurn), "long before its end");
    assert_eq!(session.output("c", "output"), None, "it is known");
    assert_eq!(session.end("c", ToolStatus::Completed, "output"), None);
    for (kind, status, output, action) in [
        ("execute", ToolStatus::Failed, "No such file", Some(AbortTurn)),
        ("execute", ToolStatus::Failed, "", None),
        // Those that an adapter ends itself.
        ("execute", ToolStatus::Failed, "the turn has ended", None),
        ("edit", ToolStatus::Failed, "there is no such file", None),
        ("edit", ToolStatus::Completed, "", Some(AbortTurn)),
    ] {
        session.start("d", kind, json!({}));
        assert_eq!(session.end("d", status, output), action, "{kind} {output}");
        session = Session::of(PermissionMode::Deny);
    }
    // What is shown of an edit is what it would do.
    session.start("e", "edit", json!({}));
    assert_eq!(session.output("e", "- a\n+ b"), None);
    assert_eq!(session.end("unknown", ToolStatus::Completed, "out"), None);
}

#[test]
fn what_its_user_allowed_is_no_bypass() {
    let mut session = Session::new(PermissionMode::Ask, &[], &["execute"], true);
    assert_eq!(session.run("execute", json!({})), None, "settings of the user's own may allow it");
    let mut session = Session::new(PermissionMode::Deny, &[], &["execute"], true);
    assert_eq!(session.run("execute", json!({})), Some(AbortTurn), "but not where nothing is");
    let mut session = Session::of(PermissionMode::Ask);
    session.start("a", "execute", json!({}));
    session.ask(Some("a"), "execute");
    session.answer("always");
    assert_eq!(session.end("a", ToolStatus::Completed, ""), None);
    assert_eq!(session.run("execute", json!({})), None, "it was allowed for good");
    assert_eq!(session.run("edit", json!({})), Some(Warn));
}
