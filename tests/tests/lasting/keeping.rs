//! What later managers know of a session: its record, its events, its key, and which secrets they miss.

use std::{
    collections::BTreeSet,
    fs,
    time::{Duration, SystemTime},
};

use agent_proxy_tests::sessions::{self, event, soon};
use proxy_manager::{
    AgentSessionConfig, AgentSpec, Budget, EndReason, Error, Event, KillOptions, Lifecycle, Limits, McpServer,
    McpTransport, ModelConfig, PermissionMode, Profile, Profiles, PromptMode, ProxyManager, RecordState, Restart,
    ResumeOptions, SessionFilter, SessionHandle, SessionRecord, SessionStatus, SupervisedProcesses, Timeouts,
};
use serde_json::{Value, json};

use crate::place::{Place, is_suspended, key, suspended};

async fn keyed(manager: &ProxyManager, name: &str) -> SessionHandle {
    let config = AgentSessionConfig { cwd: Some("/".into()), lifecycle: key(name), ..AgentSessionConfig::new("kept") };
    manager.start_session(config).await.expect("started")
}

#[tokio::test]
async fn the_same_key_is_the_same_conversation_across_managers() {
    let mut place = Place::new().await;
    let first = keyed(&place.manager, "chat-1").await;
    assert_eq!(place.ask(&first, "history").await, "0 before");
    // While it runs it is the one; two at once get one.
    let (one, two) = tokio::join!(keyed(&place.manager, "chat-1"), keyed(&place.manager, "chat-1"));
    assert_eq!((one.id(), two.id()), (first.id(), first.id()));
    let other = keyed(&place.manager, "chat-2").await;
    assert_ne!(other.id(), first.id());
    place.again().await;
    let record = place.manager.record(first.id()).expect("kept");
    assert_eq!((record.status(), record.turns), (SessionStatus::Suspended, 1));
    assert_eq!(record.state.reason(), Some(&EndReason::Shutdown));
    let again = keyed(&place.manager, "chat-1").await;
    assert_eq!(again.id(), first.id());
    assert_eq!(place.ask(&again, "history").await, "1 before");
    // One that was killed is over, and its conversation goes on in another one.
    place.manager.kill_session(again.id(), KillOptions::NOW).await.expect("killed");
    place.again().await;
    assert_eq!(place.manager.record(first.id()).expect("kept").status(), SessionStatus::Ended);
    let third = keyed(&place.manager, "chat-1").await;
    assert_ne!(third.id(), first.id());
    assert_eq!(place.ask(&third, "history").await, "2 before");
    place.manager.shutdown().await;
}

/// The last offset of a record is that of an event that can be read without a wait.
#[tokio::test(flavor = "multi_thread")]
async fn no_record_is_ahead_of_what_can_be_read() {
    let place = Place::new().await;
    let session = keyed(&place.manager, "chat").await;
    let mut seen = BTreeSet::new();
    // A turn that nobody looks into is over unseen where the machine is busy: then there is another.
    for _ in 0..50 {
        let flood = place.manager.send_prompt(session.id(), "flood 20000 10", PromptMode::Refuse);
        let mut turn = tokio::spawn(flood.await.expect("prompted").wait());
        while !turn.is_finished() {
            let last = place.manager.record(session.id()).expect("kept").last_offset;
            if seen.insert(last) {
                let mut events = place.manager.subscribe_from(session.id(), last - 1).expect("known");
                let read = tokio::time::timeout(Duration::ZERO, events.next()).await;
                assert_eq!(read.expect("it is there").expect("more may come").offset, last);
            }
            tokio::task::yield_now().await;
        }
        soon("the turn's end", &mut turn).await.expect("no panic").expect("ended");
        if seen.len() > 20 {
            break;
        }
    }
    assert!(seen.len() > 20, "{seen:?}");
    place.manager.shutdown().await;
}

#[tokio::test]
async fn a_budget_is_counted_over_managers() {
    let mut place = Place::new().await;
    let budget = Budget { total_tokens: Some(100), ..Budget::default() };
    let config = AgentSessionConfig { cwd: Some("/".into()), budget, ..AgentSessionConfig::new("kept") };
    let session = place.manager.start_session(config).await.expect("started");
    place.ask(&session, "say one\ntokens 40 20").await;
    place.again().await;
    place.ask(&session, "say two\ntokens 30 10").await;
    for _ in 0..2 {
        let refused = place.manager.send_prompt(session.id(), "history", PromptMode::Refuse).await;
        let Err(Error::BudgetExceeded { exceeded, .. }) = &refused else { panic!("{refused:?}") };
        assert_eq!((exceeded.value, exceeded.measured), (100, 100));
        // Nor by the next one.
        place.again().await;
    }
    place.manager.shutdown().await;
}

impl Place {
    /// Two of the agent's variables.
    async fn env(&self, session: &SessionHandle) -> String {
        let mut events = self.manager.subscribe_from(session.id(), self.info(session).last_offset).expect("known");
        let prompt = r#"run printf '%s %s' "$API_KEY" "$COLOUR""#;
        let turn = self.manager.send_prompt(session.id(), prompt, PromptMode::Refuse).await.expect("prompted");
        let output = event(&mut events, "the output", |envelope| match &envelope.event {
            Event::ToolEnd(end) => Some(end.output.trim().to_owned()),
            _ => None,
        });
        let output = output.await;
        soon("the turn's end", turn.wait()).await.expect("ended");
        output
    }
}

#[tokio::test]
async fn secrets_are_given_again_to_a_later_manager_or_it_says_which_are_missing() {
    let mut place = Place::new().await;
    let env = |vars: &[(&str, &str)]| vars.iter().copied().collect();
    let config = AgentSessionConfig {
        cwd: Some("/".into()),
        env: env(&[("API_KEY", "hunter2"), ("COLOUR", "red"), ("OTHER_TOKEN", "x")]),
        not_secret: ["COLOUR".to_owned()].into(),
        lifecycle: key("chat"),
        ..AgentSessionConfig::new("kept")
    };
    let session = place.manager.start_session(config.clone()).await.expect("started");
    let id = session.id();
    assert_eq!(place.env(&session).await, "hunter2 red");
    // The manager that started it has them.
    place.manager.suspend_session(id, KillOptions::NOW).await.expect("suspended");
    assert_eq!(place.env(&session).await, "hunter2 red");
    place.again().await;
    place.manager.tag_session(id, &["kept".into()], &[]).await.expect("tagged");
    let secrets = ["API_KEY", "OTHER_TOKEN"].map(str::to_owned).to_vec();
    assert_eq!(place.manager.record(id).expect("kept").secrets, secrets);
    let is_missing = |error: Error, expected: &[String]| {
        assert!(expected.iter().all(|name| error.to_string().contains(name)), "{error}");
        assert!(matches!(&error, Error::SecretsMissing { names, .. } if names == expected), "{error}");
    };
    is_missing(place.manager.resume_session(id).await.expect_err("without any"), &secrets);
    let prompted = place.manager.send_prompt(id, "say x", PromptMode::Refuse).await;
    is_missing(prompted.expect_err("without any"), &secrets);
    let half = ResumeOptions { env: env(&[("API_KEY", "hunter3")]), ..ResumeOptions::default() };
    is_missing(place.manager.resume_session_with(id, half).await.expect_err("one is missing"), &secrets[1..]);
    assert!(is_suspended(&place.info(&session)));
    // One can be done without, by saying so.
    let all = ResumeOptions { env: env(&[("API_KEY", "hunter3"), ("OTHER_TOKEN", "")]), ..ResumeOptions::default() };
    assert!(!format!("{all:?}").contains("hunter3"));
    place.manager.resume_session_with(id, all).await.expect("resumed");
    assert_eq!(place.env(&session).await, "hunter3 red");
    // They are this manager's now, and still in no record.
    place.manager.suspend_session(id, KillOptions::NOW).await.expect("suspended");
    assert_eq!(place.env(&session).await, "hunter3 red");
    let record = place.manager.record(id).expect("kept");
    assert!(record.secrets == secrets && !serde_json::to_string(&record).expect("JSON").contains("hunter"));
    place.again().await;
    // A start with its key brings what it is started with.
    let again = place.manager.start_session(config).await.expect("resumed");
    assert_eq!(again.id(), id);
    assert_eq!(place.env(&session).await, "hunter2 red");
    place.manager.shutdown().await;
}

#[tokio::test]
async fn an_mcp_server_is_given_again_unless_nothing_of_it_is_secret() {
    let mut place = Place::new().await;
    let server = |args: &[&str], url: &str| {
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        let stdio = McpTransport::Stdio { command: "/bin/true".into(), args, env: Default::default() };
        let http = McpTransport::Http { url: url.into(), headers: Default::default() };
        let named = |(name, transport)| McpServer { name: String::from(name), transport };
        [("s", stdio), ("h", http)].map(named).to_vec()
    };
    let config =
        |mcp_servers| AgentSessionConfig { cwd: Some("/".into()), mcp_servers, ..AgentSessionConfig::new("kept") };
    let secret = config(server(&["--key", "hunter2"], "https://127.0.0.1:1/@owner/mcp?key=hunter2"));
    let names = ["mcpServers.h.url", "mcpServers.s.args"];
    let marked = AgentSessionConfig { not_secret: names.map(str::to_owned).into(), ..secret.clone() };
    let plain = config(server(&[], "https://127.0.0.1:1/@owner/mcp"));
    let [secret, marked, plain] = [
        place.manager.start_session(secret).await.expect("started"),
        place
            .manager
            .start_session(AgentSessionConfig { session_id: "marked".parse().expect("an id"), ..marked })
            .await
            .expect("started"),
        place.manager.start_session(plain).await.expect("started"),
    ];
    place.again().await;
    for session in [&marked, &plain] {
        place.manager.resume_session(session.id()).await.expect("resumed with what is recorded");
    }
    let refused = place.manager.resume_session(secret.id()).await.expect_err("a part is missing");
    assert!(matches!(&refused, Error::SecretsMissing { names: missing, .. } if *missing == names), "{refused}");
    // One of them does without.
    let mcp_servers = server(&[], "https://127.0.0.1:1/mcp?key=hunter3");
    let options = ResumeOptions { mcp_servers, ..ResumeOptions::default() };
    place.manager.resume_session_with(secret.id(), options).await.expect("resumed");
    let record = place.manager.record(secret.id()).expect("kept");
    assert!(record.secrets == names[..1] && !serde_json::to_string(&record).expect("JSON").contains("hunter"));
    place.manager.suspend_session(secret.id(), KillOptions::NOW).await.expect("suspended");
    place.manager.resume_session(secret.id()).await.expect("this manager has them");
    place.manager.shutdown().await;
}

#[tokio::test]
async fn the_key_of_a_model_configuration_is_missed_too() {
    let mut place = Place::new().await;
    let model = |key: Option<&str>| -> ModelConfig {
        let json = serde_json::json!({ "name": "mock", "provider": "openai", "model": "fake-1", "key": key });
        serde_json::from_value(json).expect("a model configuration")
    };
    place.manager.set_models([model(Some("hunter2"))]);
    let config = AgentSessionConfig {
        cwd: Some("/".into()),
        model_config: Some("mock".into()),
        ..AgentSessionConfig::new("kept")
    };
    let session = place.manager.start_session(config).await.expect("started");
    place.ask(&session, "say x").await;
    place.again().await;
    let id = session.id();
    place.manager.set_models([model(None)]);
    let error = place.manager.resume_session(id).await.expect_err("without its key");
    assert!(matches!(&error, Error::SecretsMissing { names, .. } if *names == ["modelConfig.key"]), "{error}");
    place.manager.set_models([model(Some("hunter3"))]);
    place.manager.resume_session(id).await.expect("resumed");
    place.manager.shutdown().await;
}

#[tokio::test]
async fn events_outlive_the_manager() {
    let mut place = Place::new().await;
    let session = place.start(Lifecycle::default()).await;
    place.ask(&session, "say one").await;
    place.again().await;
    let id = session.id();
    place.manager.resume_session(id).await.expect("resumed");
    place.ask(&session, "say two").await;
    place.manager.kill_session(id, KillOptions::NOW).await.expect("killed");
    place.again().await;
    // Nobody remembers it but the log.
    assert!(matches!(place.manager.session(id), Err(Error::UnknownSession { .. })));
    let mut events = place.manager.subscribe_from(id, 0).expect("kept");
    let all = sessions::all(&mut events).await;
    let offsets: Vec<_> = all.iter().map(|envelope| envelope.offset).collect();
    assert_eq!(offsets, (1..=offsets.len() as u64).collect::<Vec<_>>());
    let texts: Vec<_> = all
        .iter()
        .filter_map(|envelope| match &envelope.event {
            Event::Text { text } => Some(text.trim()),
            _ => None,
        })
        .collect();
    assert_eq!(texts, ["one", "two"]);
    assert!(matches!(all.last().expect("some").event, Event::SessionEnded { reason: EndReason::Killed, .. }));
    let mut rest = place.manager.subscribe_from(id, offsets.len() as u64 - 2).expect("kept");
    assert_eq!(sessions::all(&mut rest).await.len(), 2);
    // Its id is taken until it is deleted.
    let config =
        AgentSessionConfig { session_id: id.clone(), cwd: Some("/".into()), ..AgentSessionConfig::new("kept") };
    let taken = place.manager.start_session(config.clone()).await;
    assert!(matches!(taken, Err(Error::DuplicateSession { .. })), "{taken:?}");
    place.manager.delete_session(id).await.expect("deleted");
    assert!(matches!(place.manager.subscribe_from(id, 0), Err(Error::UnknownSession { .. })));
    let anew = place.manager.start_session(config).await.expect("started");
    assert_eq!(anew.subscribe().next().await.expect("an event").offset, 1);
    place.manager.shutdown().await;
}

#[tokio::test]
async fn what_was_said_in_a_turn_can_be_read_at_its_end() {
    let place = Place::new().await;
    let session = place.start(Lifecycle::default()).await;
    for number in 1..=20 {
        let before = place.info(&session).last_offset;
        let mut events = place.manager.subscribe_from(session.id(), before).expect("known");
        let turn = place.manager.send_prompt(session.id(), "say it", PromptMode::Refuse).await.expect("prompted");
        soon("the turn's end", turn.wait()).await.expect("ended");
        let last = place.info(&session).last_offset;
        let mut ends = Vec::new();
        for _ in before..last {
            let envelope = soon("an event", events.next()).await.expect("it is there");
            ends.extend(envelope.turn.filter(|_| matches!(envelope.event, Event::Complete { .. })));
        }
        assert_eq!(ends, [number]);
    }
    let snapshot = place.manager.suspend_session(session.id(), KillOptions::NOW).await.expect("suspended");
    let mut last = place.manager.subscribe_from(session.id(), snapshot.last_offset - 1).expect("known");
    suspended(&mut last).await;
    assert_eq!(place.manager.record(session.id()).expect("kept").last_offset, snapshot.last_offset);
    place.manager.shutdown().await;
}

#[tokio::test]
async fn a_record_says_where_the_conversation_is_and_what_the_session_took() {
    let mut place = Place::new().await;
    let session = place.start(Lifecycle::default()).await;
    let id = session.id();
    let ready = place.manager.record(id).expect("kept");
    assert_eq!(
        (&ready.conversation.native_session_file, ready.messages),
        (&None, 0),
        "it is made with the first prompt"
    );
    let info = place.info(&session);
    assert!(info.processes.proxy.is_some() && info.processes.agent_process.is_some(), "{info:?}");
    assert_eq!(
        (ready.status(), ready.processes.proxy, ready.processes.agent_process),
        (SessionStatus::Idle, info.processes.proxy, info.processes.agent_process)
    );
    assert!(!ready.host_execution_id.is_empty());
    place.ask(&session, "say one\ntokens 7 3").await;
    place.manager.suspend_session(id, KillOptions::NOW).await.expect("suspended");
    let record = place.manager.record(id).expect("kept");
    let native = record.conversation.native_session_id.clone().expect("known");
    let file = place.scratch.path().join(format!("home/chats/{native}.json"));
    assert!(file.exists());
    assert_eq!(record.conversation.native_session_file.as_deref(), file.to_str());
    assert_eq!(place.info(&session).conversation.native_session_file, record.conversation.native_session_file);
    assert_eq!((record.turns, record.messages), (1, 2));
    assert_eq!(
        (record.status(), record.processes.proxy, record.processes.agent_process),
        (SessionStatus::Suspended, None, None)
    );
    assert_eq!((record.usage.input_tokens, record.usage.output_tokens), (Some(7), Some(3)));
    assert!(record.heartbeat >= ready.heartbeat && record.heartbeat <= record.updated_at);
    place.again().await;
    let later = place.manager.record(id).expect("kept");
    assert_eq!(later.conversation.native_session_file, record.conversation.native_session_file);
    let lost = record.heartbeat.duration_since(later.heartbeat).expect("not later");
    assert!(lost < Duration::from_millis(1), "it is kept to the millisecond");
    // The next life counts on.
    place.ask(&session, "say two\ntokens 7 3").await;
    place.manager.suspend_session(id, KillOptions::NOW).await.expect("suspended");
    let record = place.manager.record(id).expect("kept");
    assert_eq!((record.turns, record.messages, record.usage.input_tokens), (2, 4, Some(14)));
    assert_ne!(record.host_execution_id, ready.host_execution_id, "another run has it");
    assert!(record.heartbeat > later.heartbeat);
    place.manager.shutdown().await;
}

/// What a SIGKILL at any moment would leave is what the record is for: so it is looked at in the log.
#[tokio::test]
async fn a_session_that_starts_has_a_record_that_says_so() {
    let scratch = tempfile::tempdir().expect("a directory");
    fs::create_dir(scratch.path().join("home")).expect("made");
    // It never says that it is ready.
    let mut profiles = Profiles::default();
    profiles.add(Profile { name: "quiet".into(), agent: "mute".into(), ..Profile::default() });
    let builder = Place::builder(&scratch).agent(AgentSpec::new("mute", "acp", &["/bin/sleep", "1000"]));
    let place = Place { manager: builder.profiles(profiles).build().await.expect("built"), scratch };
    let config = AgentSessionConfig {
        session_id: "mine".parse().expect("an id"),
        cwd: Some("/".into()),
        profile: Some("quiet".into()),
        ..AgentSessionConfig::new("")
    };
    let id = config.session_id.clone();
    let mut start = Box::pin(place.manager.start_session(config));
    let is_kept = async {
        while place.manager.record(&id).is_err() || place.manager.subscribe_from(&id, 0).is_err() {
            tokio::task::yield_now().await;
        }
        loop {
            // It is written behind the back of who looks.
            if let Some(left) = place.left(&id) {
                break left;
            }
            tokio::task::yield_now().await;
        }
    };
    let left = tokio::select! {
        started = &mut start => panic!("it is not ready: {started:?}"),
        left = soon("its record", is_kept) => left,
    };
    let kept = ["status", "agentProcess", "reason"].map(|field| left[field].clone());
    assert_eq!(kept, [json!("starting"), json!(null), json!(null)], "{left}");
    assert_eq!((&left["config"]["profile"], &left["config"]["agent"]), (&json!("quiet"), &json!("mute")));
    let record = place.manager.record(&id).expect("kept");
    assert_eq!((record.status(), record.config.profile.as_deref()), (SessionStatus::Starting, Some("quiet")));
    let (killed, started) = tokio::join!(place.manager.kill_session(&id, KillOptions::NOW), start);
    assert!(killed.expect("a receipt").is_empty());
    assert!(matches!(started, Err(Error::Ended { .. })), "{started:?}");
    // It never was ready: nothing is kept of it.
    assert!(place.manager.record(&id).is_err() && place.left(&id).is_none());
    place.manager.shutdown().await;
}

#[tokio::test]
async fn a_session_of_a_profile_is_one_of_its_agent_for_later_managers_too() {
    let mut place = Place::new().await;
    let profiles = || {
        let mut profiles = Profiles::default();
        profiles.add(Profile { name: "p".into(), agent: "kept".into(), ..Profile::default() });
        profiles
    };
    let config = || AgentSessionConfig {
        cwd: Some("/".into()),
        profile: Some("p".into()),
        lifecycle: key("chat"),
        ..AgentSessionConfig::new("")
    };
    place.manager.set_profiles(profiles());
    let session = place.manager.start_session(config()).await.expect("started");
    assert_eq!(place.ask(&session, "history").await, "0 before");
    place.again().await;
    place.manager.set_profiles(profiles());
    let of_agent = SessionFilter { agent: Some("kept".into()), ..SessionFilter::default() };
    let found = place.manager.records(&of_agent);
    assert_eq!(found.iter().map(|record| record.config.profile.as_deref()).collect::<Vec<_>>(), [Some("p")]);
    assert_eq!(place.info(&session).metadata.agent, "kept");
    assert_eq!(place.manager.attach_command(session.id()).expect("it has one")[0], "kept");
    assert_eq!(place.ask(&session, "history").await, "1 before");
    // One that is over goes on in the next of its key.
    place.manager.kill_session(session.id(), KillOptions::NOW).await.expect("killed");
    let next = place.manager.start_session(config()).await.expect("started");
    assert_ne!(next.id(), session.id());
    assert_eq!(place.ask(&next, "history").await, "2 before");
    // Another agent has no part in that.
    next.kill(KillOptions::NOW).await.expect("killed");
    let mut profiles = Profiles::default();
    profiles.add(Profile { name: "p".into(), agent: "passing".into(), ..Profile::default() });
    place.manager.set_profiles(profiles);
    let another = place.manager.start_session(config()).await.expect("started");
    assert_eq!(place.info(&another).metadata.agent, "passing");
    assert_eq!(place.ask(&another, "history").await, "0 before");
    place.manager.shutdown().await;
}

/// All that a record has of one, by name; times to the millisecond, as they are kept.
fn fields(record: &SessionRecord) -> serde_json::Map<String, Value> {
    match serde_json::to_value(record).expect("JSON") {
        Value::Object(fields) => fields,
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_later_manager_reads_what_an_earlier_one_has_written_down_field_by_field() {
    let mut place = Place::new().await;
    let cwd = place.scratch.path().join("work");
    fs::create_dir(&cwd).expect("made");
    let given = |key: &str| AgentSessionConfig {
        agent_type: Some("plan".into()),
        user_id: Some("ada".into()),
        workspace_id: Some("w-1".into()),
        cwd: Some(cwd.to_str().expect("UTF-8").to_owned()),
        model: Some("fake-2".into()),
        system_prompt: Some("be brief".into()),
        env: [("COLOUR", "red"), ("API_KEY", "hunter2")].into_iter().collect(),
        not_secret: ["COLOUR".to_owned()].into(),
        permission_mode: PermissionMode::Allow,
        max_turns: Some(50),
        max_prompts: Some(60),
        limits: Limits { open_files: Some(200), ..Limits::default() },
        mode: Some("plan".into()),
        thinking: Some("high".into()),
        verbatim: Some(false),
        timeouts: Timeouts { turn_ms: Some(123_000), ..Timeouts::default() },
        runtime_context: true,
        depth: 1,
        lifecycle: Lifecycle {
            key: Some(key.into()),
            title: Some("Rouge".into()),
            tags: vec!["red".into(), "warm".into()],
            idle_suspend_ms: Some(3_600_000),
            resume_on_prompt: false,
            restart: Restart::OnCrash { max: 3, backoff_ms: 250 },
            ..Lifecycle::default()
        },
        budget: Budget { total_tokens: Some(1_000), ..Budget::default() },
        ..AgentSessionConfig::new("kept")
    };
    let (resting, running) = (given("resting"), given("running"));
    let began = SystemTime::now();
    let first = place.manager.start_session(resting.clone()).await.expect("started");
    let second = place.manager.start_session(running.clone()).await.expect("started");
    let started = SystemTime::now();
    for session in [&first, &second] {
        place.ask(session, "say one\ntokens 7 3").await;
    }
    place.manager.suspend_session(first.id(), KillOptions::NOW).await.expect("suspended");
    place.manager.archive_session(first.id(), true).await.expect("archived");
    let written = [&first, &second].map(|session| place.manager.record(session.id()).expect("kept"));
    let info = first.info();
    let file = place
        .scratch
        .path()
        .join(format!("home/chats/{}.json", info.conversation.native_session_id.clone().expect("known")));
    // Each field by its name: a new one is missed here.
    let SessionRecord {
        session_id,
        state,
        waiting_for,
        archived,
        warm,
        config,
        secrets,
        conversation,
        agent_status,
        endpoint,
        home,
        host_execution_id,
        processes,
        created_at,
        updated_at,
        heartbeat,
        turns,
        messages,
        usage,
        turn_usage,
        last_offset,
        queued,
    } = written[0].clone();
    let suspended = RecordState::Suspended { reason: EndReason::Suspended, handed_over: false };
    assert_eq!((&session_id, state), (first.id(), suspended));
    assert_eq!((archived, warm, queued, waiting_for), (true, false, 0, None));
    assert_eq!(config, resting.without_secrets());
    assert_eq!(secrets, ["API_KEY"]);
    assert_eq!((&conversation, conversation.native_session_file.as_deref()), (&info.conversation, file.to_str()));
    assert!(conversation.resumable && conversation.native_session_id.is_some());
    assert_eq!(agent_status, info.agent_status);
    assert_eq!((endpoint, home, processes), (None, None, SupervisedProcesses::default()));
    assert!(!host_execution_id.is_empty());
    assert!(began <= created_at && created_at <= started && created_at <= heartbeat && heartbeat <= updated_at);
    assert_eq!((turns, messages, usage.input_tokens, usage.output_tokens), (1, 2, Some(7), Some(3)));
    assert_eq!((turn_usage.turn, turn_usage.usage), (1, usage));
    assert_eq!(last_offset, info.last_offset);
    place.again().await;
    let [was_resting, was_running] = written.map(|record| fields(&record));
    let [rests, ran] = [&first, &second].map(|session| fields(&place.manager.record(session.id()).expect("kept")));
    assert_eq!(rests, was_resting);
    // The end of its host is all that has come to this one.
    let changes = |name: &&String| ran.get(*name) != was_running.get(*name);
    let changed: BTreeSet<_> = ran.keys().filter(changes).map(String::as_str).collect();
    let expected = ["agentProcess", "heartbeat", "lastOffset", "proxy", "reason", "status", "updatedAt"];
    assert_eq!(changed, expected.into(), "{ran:?}");
    assert_eq!(ran.len(), was_running.len());
    let now = ["agentProcess", "proxy", "reason", "status"].map(|name| ran[name].clone());
    assert_eq!(now, [json!(null), json!(null), json!("shutdown"), json!("suspended")]);
    assert_eq!(ran["config"], serde_json::to_value(running.without_secrets()).expect("JSON"));
    // It is what is listed too.
    let all = SessionFilter { user_id: Some("ada".into()), archived: true, ..SessionFilter::default() };
    assert_eq!(place.manager.records(&all).len(), 2);
    place.manager.shutdown().await;
}

#[tokio::test]
async fn sessions_are_named_tagged_put_aside_and_found() {
    let mut place = Place::new().await;
    let red = place.start(Lifecycle { tags: vec!["red".into()], ..Lifecycle::default() }).await;
    let blue = place.start(Lifecycle { title: Some("Blue".into()), ..Lifecycle::default() }).await;
    place.manager.tag_session(blue.id(), &["blue".into()], &[]).await.expect("tagged");
    place.manager.tag_session(red.id(), &["warm".into()], &["red".into()]).await.expect("tagged");
    place.manager.rename_session(red.id(), Some("Rouge".into())).await.expect("named");
    let left = place.left_of(&red);
    assert_eq!(left["config"]["lifecycle"]["title"], "Rouge", "{left}");
    let bad = place.manager.rename_session(red.id(), Some("two\nlines".into())).await;
    assert!(matches!(bad, Err(Error::InvalidConfig { field: "title", .. })), "{bad:?}");
    place.ask(&red, "history").await;
    place.again().await;
    let found = |filter: SessionFilter| -> Vec<_> {
        place.manager.records(&filter).into_iter().map(|record| record.session_id).collect()
    };
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(found(SessionFilter { text: text("rouge"), ..Default::default() }), [red.id().clone()]);
    assert_eq!(found(SessionFilter { tag: text("warm"), ..Default::default() }), [red.id().clone()]);
    assert_eq!(found(SessionFilter { tag: text("red"), ..Default::default() }), []);
    assert_eq!(found(SessionFilter { tag: text("blue"), ..Default::default() }), [blue.id().clone()]);
    place.manager.archive_session(blue.id(), true).await.expect("archived");
    assert_eq!(found(SessionFilter::default()), [red.id().clone()]);
    assert_eq!(found(SessionFilter { archived: true, ..Default::default() }).len(), 2);
    place.manager.shutdown().await;
}
