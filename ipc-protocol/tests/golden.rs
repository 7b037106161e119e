//! Golden messages of the reattach protocol: `golden/version-N.json` has those that version N was the first to send. Every later
//! release has to understand them, so a released file is never changed. A release that says more adds a file of its own.

use std::{collections::BTreeMap, fmt::Debug, path::Path, time::SystemTime};

use ipc_protocol::{
    message::{
        AgentFact, AttachedSession, DetachedSession, FromForkServer, FromProxy, Hello, ProxyCommand, ToForkServer,
        ToProxy, VERSION,
    },
    reattach::{AdoptRequest, AdoptResponse, NumberedMessage},
    *,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

/// Every version that said something new.
const FILES: [&str; 1] = [include_str!("golden/version-1.json")];

/// Messages of all files, and those of this release that no file has.
struct GoldenMessages {
    known: BTreeMap<String, Value>,
    missing: BTreeMap<&'static str, Value>,
}

/// Whether all of `old` is in `new`.
fn is_in(old: &Value, new: &Value) -> bool {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            old.iter().all(|(name, old)| new.get(name).is_some_and(|new| is_in(old, new)))
        }
        (Value::Array(old), Value::Array(new)) => {
            old.len() == new.len() && old.iter().zip(new).all(|(old, new)| is_in(old, new))
        }
        (old, new) => old == new,
    }
}

/// The same with a field in it that nobody knows: beside those of the message itself.
fn with_more(value: &Value) -> Value {
    let more = |fields: &Map<String, Value>| {
        let mut fields = fields.clone();
        fields.insert("ofALaterRelease".into(), Value::from(vec![1, 2]));
        Value::Object(fields)
    };
    match value {
        // The variant's name, and then its fields.
        Value::Object(fields) if fields.len() == 1 => {
            Value::Object(fields.iter().map(|(name, value)| (name.clone(), with_more(value))).collect())
        }
        Value::Object(fields) => more(fields),
        other => other.clone(),
    }
}

impl GoldenMessages {
    fn load() -> Self {
        let known = FILES.iter().flat_map(|text| {
            serde_json::from_str::<BTreeMap<String, Value>>(text).expect("a JSON object with a message for each name")
        });
        Self { known: known.collect(), missing: BTreeMap::new() }
    }

    fn check<T: Serialize + DeserializeOwned + PartialEq + Debug>(&mut self, name: &'static str, value: &T) {
        let now = serde_json::to_value(value).expect("JSON");
        let Some(file) = self.known.remove(name) else {
            self.missing.insert(name, now);
            return;
        };
        assert_eq!(serde_json::from_value::<T>(file.clone()).ok().as_ref(), Some(value), "{name} is understood");
        assert!(is_in(&file, &now), "{name}: what was said is said: {now}");
        serde_json::from_value::<T>(with_more(&file)).unwrap_or_else(|error| panic!("{name} with more in it: {error}"));
    }

    /// Demands that each message of the files was checked, and that each message of this release is in a file.
    fn finish(self) {
        assert!(self.known.is_empty(), "nobody looks whether these are understood: {:?}", self.known.keys());
        if self.missing.is_empty() {
            return;
        }
        let lines: Vec<_> = self.missing.iter().map(|(name, message)| format!("{name:?}: {message}")).collect();
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("version-{VERSION}.json"));
        std::fs::write(&path, format!("{{\n{}\n}}\n", lines.join(",\n"))).expect("written");
        panic!(
            "No file has {:?}. Put {} into tests/golden, and name it in FILES.",
            self.missing.keys(),
            path.display()
        );
    }
}

#[test]
fn the_messages_of_all_versions_are_understood() {
    let mut golden = GoldenMessages::load();
    claims(&mut golden);
    to_a_fork_server(&mut golden);
    from_a_fork_server(&mut golden);
    to_a_proxy(&mut golden);
    from_a_proxy(&mut golden);
    golden.finish();
}

const PROCESS: ProcessId = ProcessId { pid: 71, start_time: 99_002 };

fn session() -> SessionId {
    "s-1".parse().expect("valid")
}

fn hello() -> Hello {
    Hello { version: 1, process: PROCESS }
}

fn receipt() -> Receipt {
    let mut receipt = Receipt::begin(session(), KillCause::KillSession);
    receipt.proof = Proof::NoChildren;
    receipt
}

fn process() -> ProcessInfo {
    ProcessInfo {
        id: PROCESS,
        ppid: 1,
        pgid: 71,
        sid: 71,
        session_id: session(),
        command: Some("sleep".into()),
        args: vec!["9".into()],
        cwd: Some("/".into()),
        started_at: SystemTime::UNIX_EPOCH,
        status: ProcessStatus::Running,
        exit: None,
        error: None,
        cpu_percent: None,
        rss_bytes: Some(4096),
        tracked: true,
    }
}

fn claims(golden: &mut GoldenMessages) {
    golden.check("claim", &AdoptRequest { version: 1, understood: vec![0, 1], process: PROCESS });
    golden.check("verdict-owner", &AdoptResponse::Owner { version: 1, process: PROCESS, described: true });
    golden.check("verdict-busy", &AdoptResponse::Busy { owner: Some(PROCESS) });
    golden.check("verdict-refused", &AdoptResponse::Refused { reason: "you are user 7".into() });
}

fn to_a_fork_server(golden: &mut GoldenMessages) {
    golden.check("to-fork-server-hello", &ToForkServer::Hello(hello()));
    golden.check("to-fork-server-kill", &ToForkServer::Kill { session: session(), options: KillOptions::NOW });
    golden.check("to-fork-server-list", &ToForkServer::List { session: session() });
    golden.check("to-fork-server-adopt", &ToForkServer::Adopt { session: session(), after_seq: 12 });
}

fn from_a_fork_server(golden: &mut GoldenMessages) {
    golden.check("from-fork-server-hello", &FromForkServer::Hello(hello()));
    let card = Json::new(r#"{"labels":{"agent":"fake"}}"#).expect("JSON");
    let detached = DetachedSession { session: session(), process: PROCESS, card };
    golden.check("from-fork-server-detached", &FromForkServer::Detached(vec![detached]));
    let event = Event::ProcessExited { process: PROCESS, command: None, exit: Some(ExitStatus::Signal(9)) };
    golden.check("from-fork-server-observed", &FromForkServer::Observed { session: session(), event });
    golden.check("from-fork-server-listed", &FromForkServer::Listed { session: session(), processes: vec![process()] });
    let (exit, receipt) = (Some(ExitStatus::Code(0)), Box::new(receipt()));
    golden.check(
        "from-fork-server-proxy-gone",
        &FromForkServer::ProxyGone { session: session(), process: PROCESS, exit, receipt },
    );
}

fn to_a_proxy(golden: &mut GoldenMessages) {
    let (request, options) = (7, KillOptions::NOW);
    golden.check("to-proxy-hello", &ToProxy::Hello(hello()));
    let mut check_command = |name: &'static str, command| golden.check(name, &ToProxy::Request { request, command });
    check_command("to-proxy-prompt", ProxyCommand::Prompt { turn: 2, prompt: "say hello".into() });
    check_command("to-proxy-steer", ProxyCommand::Steer { prompt: "faster".into() });
    let operation = Operation::SetModel { model: "small".into() };
    check_command("to-proxy-operate", ProxyCommand::Operate { operation });
    let policy = AbortPolicy::LeaveProcesses;
    check_command("to-proxy-abort", ProxyCommand::Abort { policy, options });
    let (answer, by) = (PermissionAnswer::Allow, Some("user-1".into()));
    check_command("to-proxy-permission", ProxyCommand::Permission { id: "p-1".into(), answer, by });
    check_command("to-proxy-list-processes", ProxyCommand::ListProcesses);
    let kill = |scope| ProxyCommand::Kill { scope, options, reason: EndReason::Killed };
    check_command("to-proxy-kill-process", kill(KillScope::Process { pid: 71, tree: true }));
    check_command("to-proxy-kill-all-but-agent", kill(KillScope::AllButAgent));
    check_command("to-proxy-kill-session", kill(KillScope::Session));
    check_command("to-proxy-ping", ProxyCommand::Ping);
    golden.check("to-proxy-ack", &ToProxy::Ack { seq: 12 });
}

fn from_a_proxy(golden: &mut GoldenMessages) {
    let said = |seq, say: FromProxy| NumberedMessage { seq, say };
    let request = 7;
    golden.check("from-proxy-hello", &said(0, FromProxy::Hello(hello())));
    let permission = PermissionRequest {
        id: "p-1".into(),
        tool_call_id: None,
        tool: "bash".into(),
        title: "ls".into(),
        kind: "execute".into(),
        command: Some("ls".into()),
        paths: vec![],
        input: Json::null(),
        options: vec![],
        parent: None,
    };
    let attached = AttachedSession {
        epoch: 2,
        next_seq: 13,
        waiting: 5,
        detached_ms: 1500,
        agent: Some(PROCESS),
        native_session_id: Some("n-1".into()),
        turns: true,
        measures: Some(ContainmentStatus::default()),
        turn: Some(3),
        turn_count: 3,
        permissions: vec![permission],
        model: Some("small".into()),
        mode: None,
        thinking: None,
        ending: None,
    };
    golden.check("from-proxy-attached", &said(0, FromProxy::Attached(Box::new(attached))));
    let (native_session_id, measures) = (Some("n-1".into()), Box::default());
    let started = FromProxy::Started { request, process: PROCESS, native_session_id, turns: true, measures };
    golden.check("from-proxy-started", &said(1, started));
    let event = Event::Text { text: "hello".into() };
    golden.check("from-proxy-event", &said(2, FromProxy::Event { turn: 1, event }));
    let event = Event::Voided { text_bytes: 5, thinking_bytes: 0 };
    golden.check("from-proxy-event-voided", &said(2, FromProxy::Event { turn: 1, event }));
    let (limit, message) = ("five_hour".into(), "no more".into());
    let event = Event::UsageLimited { limit, message, resets_at: Some(1_767_323_045_678), waits: false };
    golden.check("from-proxy-event-usage-limited", &said(2, FromProxy::Event { turn: 1, event }));
    let event = Event::retry("500", "no", Some(1), Some(600));
    golden.check("from-proxy-event-retry", &said(2, FromProxy::Event { turn: 1, event }));
    let (denied_by, action) = (Some(ResolvedBy::Mode(PermissionMode::Deny)), BypassAction::AbortTurn);
    let (tool, kind, title) = ("bash".into(), "execute".into(), "touch made".into());
    let bypassed = PermissionBypassed { tool_call_id: "c-1".into(), tool, kind, title, denied_by, action };
    let event = Event::PermissionBypassed(Box::new(bypassed));
    golden.check("from-proxy-bypassed", &said(2, FromProxy::Event { turn: 1, event }));
    golden.check("from-proxy-turn-ended", &said(3, FromProxy::TurnEnded { turn: 1 }));
    golden.check("from-proxy-agent-exited", &said(4, FromProxy::AgentExited { exit: ExitStatus::Code(1), kept: true }));
    golden.check("from-proxy-native-session", &said(5, FromProxy::NativeSession { id: "n-2".into() }));
    golden.check(
        "from-proxy-ended",
        &said(6, FromProxy::Ended { reason: EndReason::Killed, receipt: Box::new(receipt()) }),
    );
    golden.check("from-proxy-processes", &said(0, FromProxy::Processes { request, processes: vec![process()] }));
    golden.check("from-proxy-receipt", &said(0, FromProxy::Receipt { request, receipt: Box::new(receipt()) }));
    golden.check("from-proxy-reply", &said(0, FromProxy::Reply { request, reply: Json::null() }));
    golden.check("from-proxy-done", &said(0, FromProxy::Done { request }));
    golden.check("from-proxy-failed", &said(0, FromProxy::Failed { request, error: WireError::Busy }));
    let detail = "it can load none".into();
    golden.check("from-proxy-fact-not-resumable", &said(5, FromProxy::Fact(AgentFact::NotResumable { detail })));
    let address = "http://127.0.0.1:4096".into();
    golden.check("from-proxy-fact-server-listens", &said(5, FromProxy::Fact(AgentFact::ServerListens { address })));
}
