//! The recovery matrix: whoever dies, and whatever the session did then, its events are found and its conversation goes on.
//!
//! Its rows are for the fake agent, and with the feature `real-agents` for a real one too (`tests/real-agents/run --matrix`).
//! `AGENT_PROXY_MATRIX=N` does each row N times.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader},
    num::NonZero,
    path::{Path, PathBuf},
    pin::Pin,
    process::ExitCode,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use agent_proxy_tests::{
    lasting::{Lasting, Mode, Speaker, WORD},
    mock_model::{MockModel, says},
    sessions::{all, event, soon},
    system::{self, is_alive, until, with_marker},
};
use libtest_mimic::{Arguments, Trial};
use proxy_manager::{
    AbortPolicy, AgentSessionConfig, EndReason, Envelope, Error, Event, KillOptions, Lifecycle, OnMissing, ProcessId,
    PromptMode, ProxyManager, Receipt, Restart, ResumeFrom, ResumeOptions, ResumeRequest, SessionHandle, SessionState,
    SessionStatus, Signal, Subscription,
};
use registry::{PidFd, SpawnInput, SpawnOutput, SpawnRequest, SpawnedProcess};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use tempfile::TempDir;
use tokio::{io::AsyncBufReadExt, net::unix::pipe};

/// Longest time of a kill at once, and from a proxy's death to its session's end.
const CALL: Duration = Duration::from_secs(3);

const ALL: &[Mode] = &[Mode::Idle, Mode::Turn, Mode::Tool];

/// Whom of a host with its session to kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Host,
    ForkServer,
    Proxy,
    Agent,
}

const EVERYBODY: &[Victim] = &[Victim::ForkServer, Victim::Proxy, Victim::Agent, Victim::Host];

/// What happens, and what has to come of it.
#[derive(Clone, Copy)]
enum Row {
    /// These die; the next manager goes on.
    Die(&'static [Victim]),
    /// The host dies, and the session does not.
    Detach,
    /// One dies with the host alive, and the session is started again.
    Restart(Victim),
    /// The fork server dies with the host alive; the next manager goes on.
    ForkServer,
    /// These die with the host alive, and it goes on itself.
    HostGoesOn(&'static [Victim]),
    /// These are stopped with the host alive, and the session goes on.
    Stop(&'static [Victim]),
    /// A resource of one is limited by a stranger, hard or not, before the session ends; the host goes on.
    Limit(Victim, Resource, bool),
    /// All die with the machine.
    Boot,
    /// The agent has no such conversation any more.
    ConversationGone,
    /// The manager has no such session any more.
    StoreGone,
}

/// Name, whether the session is to outlive its host, what it does meanwhile.
const ROWS: &[(&str, Row, bool, &[Mode])] = &[
    ("the_host_dies", Row::Die(&[Victim::Host]), false, ALL),
    ("the_host_of_a_session_that_outlives_it_dies", Row::Detach, true, ALL),
    ("host_and_proxy_die", Row::Die(&[Victim::Proxy, Victim::Host]), false, ALL),
    ("host_and_fork_server_die", Row::Die(&[Victim::ForkServer, Victim::Host]), false, ALL),
    ("all_die", Row::Die(EVERYBODY), false, ALL),
    ("all_of_a_session_that_outlives_its_host_die", Row::Die(EVERYBODY), true, ALL),
    ("host_and_proxy_of_a_session_that_outlives_it_die", Row::Die(&[Victim::Proxy, Victim::Host]), true, ALL),
    ("the_proxy_dies", Row::Restart(Victim::Proxy), false, ALL),
    ("the_agent_dies", Row::Restart(Victim::Agent), false, ALL),
    ("the_fork_server_dies", Row::ForkServer, false, ALL),
    ("the_fork_server_of_a_session_that_outlives_its_host_dies", Row::ForkServer, true, ALL),
    ("the_fork_server_dies_and_its_host_goes_on", Row::HostGoesOn(&[Victim::ForkServer]), false, ALL),
    ("proxy_and_fork_server_die", Row::HostGoesOn(&[Victim::ForkServer, Victim::Proxy]), false, ALL),
    (
        "proxy_and_fork_server_of_a_session_that_outlives_its_host_die",
        Row::HostGoesOn(&[Victim::ForkServer, Victim::Proxy]),
        true,
        ALL,
    ),
    ("the_fork_server_is_stopped", Row::Stop(&[Victim::ForkServer]), false, ALL),
    ("the_proxy_is_stopped", Row::Stop(&[Victim::Proxy]), false, ALL),
    ("proxy_and_fork_server_are_stopped", Row::Stop(&[Victim::ForkServer, Victim::Proxy]), false, ALL),
    ("files_of_the_fork_server_are_limited", Row::Limit(Victim::ForkServer, Resource::Nofile, false), false, ALL),
    ("files_of_the_fork_server_are_limited_hard", Row::Limit(Victim::ForkServer, Resource::Nofile, true), false, ALL),
    ("time_of_the_fork_server_is_limited", Row::Limit(Victim::ForkServer, Resource::Cpu, true), false, ALL),
    ("writes_of_the_fork_server_are_limited", Row::Limit(Victim::ForkServer, Resource::Fsize, true), false, ALL),
    ("files_of_the_proxy_are_limited", Row::Limit(Victim::Proxy, Resource::Nofile, false), false, ALL),
    ("files_of_the_proxy_are_limited_hard", Row::Limit(Victim::Proxy, Resource::Nofile, true), false, ALL),
    ("time_of_the_proxy_is_limited", Row::Limit(Victim::Proxy, Resource::Cpu, true), false, ALL),
    ("writes_of_the_proxy_are_limited", Row::Limit(Victim::Proxy, Resource::Fsize, true), false, ALL),
    ("the_machine_boots_anew", Row::Boot, false, &[Mode::Turn]),
    ("the_machine_of_a_session_that_outlives_its_host_boots_anew", Row::Boot, true, &[Mode::Turn]),
    ("the_conversation_is_gone", Row::ConversationGone, false, ALL),
    ("the_store_is_gone", Row::StoreGone, false, ALL),
];

/// The agents that all rows are for: no id is the fake agent.
#[cfg(not(feature = "real-agents"))]
const AGENTS: &[Option<&str>] = &[None];
#[cfg(feature = "real-agents")]
const AGENTS: &[Option<&str>] = &[None, Some("claude-code")];

fn main() -> ExitCode {
    let times = std::env::var("AGENT_PROXY_MATRIX").map_or(1, |times| times.parse().expect("a number"));
    let mut trials = Vec::new();
    for &agent in AGENTS {
        for &(name, row, detaches, modes) in ROWS {
            for &mode in modes {
                let agent_name = agent.map_or_else(|| "fake".to_owned(), |id| format!("real::{id}"));
                let name = format!("{agent_name}::{name}::{mode:?}").to_lowercase();
                trials.push(Trial::test(name, move || {
                    for _ in 0..times {
                        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                        runtime.expect("a runtime").block_on(run(row, Stage::set(agent, detaches, mode)));
                    }
                    Ok(())
                }));
            }
        }
    }
    let mut arguments = Arguments::from_args();
    // One more than there are processors: they also wait.
    let threads = || thread::available_parallelism().map_or(1, NonZero::get) + 1;
    arguments.test_threads = arguments.test_threads.or_else(|| Some(threads()));
    libtest_mimic::run(&arguments, trials).exit_code()
}

async fn run(row: Row, stage: impl Future<Output = Stage>) {
    let stage = Box::pin(stage).await;
    // Boxed: unoptimized, each arm's future takes its place on the stack.
    let trial: Pin<Box<dyn Future<Output = ()>>> = match row {
        Row::Die(victims) => Box::pin(async {
            stage.host_dies(victims).await;
            stage.goes_on().await;
        }),
        Row::Detach => Box::pin(stage.outlives()),
        Row::Restart(victim) => Box::pin(stage.restarts(victim)),
        Row::ForkServer => Box::pin(stage.fork_server_dies()),
        Row::HostGoesOn(victims) => Box::pin(stage.host_goes_on(victims)),
        Row::Stop(victims) => Box::pin(stage.is_stopped(victims)),
        Row::Limit(victim, resource, hard) => Box::pin(stage.is_limited(victim, resource, hard)),
        Row::Boot => Box::pin(stage.boots_anew()),
        Row::ConversationGone => Box::pin(stage.conversation_is_gone()),
        Row::StoreGone => Box::pin(stage.store_is_gone()),
    };
    trial.await;
    stage.strike();
}

/// A session, and what it needs beside its manager.
struct Stage {
    lasting: Lasting,
    model: Option<MockModel>,
    scratch: TempDir,
}

/// The processes of a host and its session.
struct Pids {
    fork_server: ProcessId,
    proxy: ProcessId,
    agent: ProcessId,
}

impl Stage {
    async fn set(agent: Option<&str>, detaches: bool, mode: Mode) -> Self {
        let scratch = tempfile::tempdir().expect("a directory");
        let mut model = None;
        let speaker = match agent {
            None => Speaker::Fake(env!("CARGO_BIN_EXE_fake-agent").into()),
            Some(id) => {
                let agents = std::env::var_os("AGENT_PROXY_AGENTS");
                let agents = agents.expect("AGENT_PROXY_AGENTS: the folder that tests/real-agents/install prints");
                let mock = MockModel::start().await.expect("a model");
                let root = model.insert(mock).root_url();
                Speaker::Real { id: id.to_owned(), programs: PathBuf::from(agents).join("bin"), model: root }
            }
        };
        let (child, dir) = (env!("CARGO_BIN_EXE_proxy-child").into(), scratch.path().to_owned());
        let lasting = Lasting { speaker, child, dir, id: proxy_manager::SessionId::mint(), detaches, mode };
        lasting.furnish().expect("furnished");
        Self { lasting, model, scratch }
    }

    /// All is ended: nothing of the session runs, and no host waits for it.
    fn strike(self) {
        self.nothing_runs();
        let doors = fs::read_dir(self.lasting.state().join("detached")).into_iter().flatten().flatten();
        let doors: Vec<_> = doors.map(|entry| entry.path()).collect();
        assert!(doors.is_empty(), "{doors:?} are left");
        self.scratch.close().expect("removed");
    }

    fn nothing_runs(&self) {
        let left = with_marker(self.lasting.id.as_str());
        assert!(left.is_empty(), "processes {left:?} of the session are left");
    }

    async fn manager(&self) -> ProxyManager {
        soon("a manager", self.lasting.builder().build()).await.expect("built")
    }

    fn config(&self, id: &str) -> AgentSessionConfig {
        self.lasting.config(&id.parse().expect("an id"))
    }

    fn session(&self, manager: &ProxyManager) -> SessionHandle {
        manager.session(&self.lasting.id).expect("known")
    }

    /// A host in a process of its own comes to where the mode says, and then these die.
    async fn host_dies(&self, victims: &[Victim]) -> Pids {
        let program = env!("CARGO_BIN_EXE_lasting-host");
        let lasting = serde_json::to_string(&self.lasting).expect("JSON");
        let mut host = registry::spawn(SpawnRequest {
            argv: vec![program.into(), lasting.into()],
            stdin: SpawnInput::Pipe,
            stdout: SpawnOutput::Pipe,
            stderr: SpawnOutput::Inherit,
            ..SpawnRequest::new(program)
        })
        .expect("started");
        let stdout = host.stdout.take().expect("a pipe");
        rustix::io::ioctl_fionbio(&stdout, false).expect("blocking");
        let line = tokio::task::spawn_blocking(|| {
            let mut line = String::new();
            BufReader::new(File::from(stdout)).read_line(&mut line).expect("a line");
            line
        });
        let line = soon("the host's line", line).await.expect("no panic");
        let pids: Vec<_> = line.split_whitespace().map(|pid| pid.parse().expect("a pid")).collect();
        let ids: Vec<_> = pids.iter().map(|pid| registry::identify(*pid).expect("alive")).collect();
        let &[fork_server, proxy, agent] = ids.as_slice() else { panic!("{line:?}") };
        self.tool_runs().await;
        // They die at once: it sees none of the others die.
        host.process.signal(Signal::Stop).expect("signalled");
        for victim in victims {
            match victim {
                Victim::Host => host.process.signal(Signal::Kill).expect("signalled"),
                Victim::ForkServer => kill(fork_server),
                Victim::Proxy => kill(proxy),
                Victim::Agent => kill(agent),
            }
        }
        until("the host's end", || host.process.try_reap().expect("our child"));
        let is_over = !self.lasting.detaches || victims.contains(&Victim::Proxy);
        if !victims.contains(&Victim::ForkServer) && is_over {
            // It ends what the host left, before another manager has to.
            until("the end of its fork server", || (!is_alive(fork_server.pid)).then_some(()));
        }
        Pids { fork_server, proxy, agent }
    }

    /// The tool of a session that is to run one runs.
    async fn tool_runs(&self) {
        if self.lasting.mode == Mode::Tool {
            // For writing too: then there is no end.
            let pipe = pipe::OpenOptions::new().read_write(true).open_receiver(self.lasting.asleep()).expect("a pipe");
            let mut lines = tokio::io::BufReader::new(pipe).lines();
            soon("the tool runs", lines.next_line()).await.expect("a line");
        }
    }

    /// A session with its first turn, and where the mode says.
    async fn begun(&self, manager: &ProxyManager, config: AgentSessionConfig) -> SessionHandle {
        let session = soon("a session", manager.start_session(config)).await.expect("started");
        self.ask(&session, &self.lasting.first()).await;
        if let Some((prompt, is_there)) = self.lasting.second() {
            let mut events = session.subscribe();
            session.prompt(prompt, PromptMode::Refuse).await.expect("prompted");
            event(&mut events, "it is there", |envelope| is_there(&envelope.event).then_some(())).await;
            self.tool_runs().await;
        }
        session
    }

    /// All events of the session, which have no hole.
    async fn events(&self, manager: &ProxyManager) -> Vec<Arc<Envelope>> {
        let last = self.session(manager).info().last_offset;
        let mut events = manager.subscribe_from(&self.lasting.id, 0).expect("known");
        let mut found = Vec::new();
        while (found.len() as u64) < last {
            let envelope = soon("an event", events.next()).await.expect("there are more");
            assert_eq!(envelope.offset, found.len() as u64 + 1);
            found.push(envelope);
        }
        found
    }

    /// What the agent says to a prompt.
    async fn ask(&self, session: &SessionHandle, prompt: &str) -> String {
        let mut events = session.subscribe_from(session.info().last_offset);
        let turn = soon("the prompt", session.prompt(prompt, PromptMode::Refuse)).await.expect("prompted");
        soon("the turn's end", turn.wait()).await.expect("ended");
        let mut answer = String::new();
        event(&mut events, "it waits", |envelope| {
            if let Event::Text { text } = &envelope.event {
                answer.push_str(text);
            }
            (envelope.event == Event::SessionIdle {} && !answer.is_empty()).then_some(())
        })
        .await;
        answer.trim().to_owned()
    }

    /// The conversation goes on: the agent knows its first prompt, or has told it to the model.
    async fn remembers(&self, session: &SessionHandle) {
        let (first, last) = (self.lasting.first(), self.lasting.last());
        let answer = self.ask(session, last).await;
        let Some(model) = &self.model else {
            assert!(answer.ends_with(" before") && answer != "0 before", "{answer}");
            return;
        };
        let requests = model.requests();
        let is_told = requests.iter().any(|request| says(&request.body, &first) && says(&request.body, last));
        assert!(answer.contains(&format!("you said: {last}")) && is_told, "{answer}: {requests:?}");
    }

    /// The next manager finds all that was said, and goes on.
    async fn goes_on(&self) {
        let manager = self.manager().await;
        assert!(manager.recovered().iter().all(proxy_manager::RecoveredSession::is_empty), "{:?}", manager.recovered());
        assert_eq!(manager.reattached(), []);
        let record = manager.record(&self.lasting.id).expect("kept");
        let turns = if self.lasting.mode == Mode::Idle { 1 } else { 2 };
        assert_eq!((record.status(), record.turns), (SessionStatus::Suspended, turns));
        let found = self.events(&manager).await;
        self.has_said(&found);
        assert!(matches!(found.last().expect("some").event, Event::SessionSuspended { .. }), "{found:?}");
        // By its key, as whoever had it does.
        let another = self.config("another");
        let session = soon("a resume", manager.start_session(another)).await.expect("resumed");
        assert_eq!(session.id(), &self.lasting.id);
        self.remembers(&session).await;
        self.killed(&session).await;
        manager.shutdown().await;
    }

    fn has_said(&self, found: &[Arc<Envelope>]) {
        let has = |wanted: &dyn Fn(&Event) -> bool| found.iter().any(|envelope| wanted(&envelope.event));
        assert!(has(&|event| matches!(event, Event::Text { text } if text.contains(WORD))), "{found:?}");
        if let Some((_, is_there)) = self.lasting.second() {
            assert!(has(&is_there), "{found:?}");
        }
    }

    async fn killed(&self, session: &SessionHandle) {
        let receipt = soon("the kill", session.kill(KillOptions::NOW)).await.expect("killed");
        assert!(receipt.is_empty(), "{receipt:?}");
    }

    /// The next manager goes on with the same processes, in whatever they do.
    async fn outlives(&self) {
        let pids = self.host_dies(&[Victim::Host]).await;
        let manager = self.manager().await;
        assert_eq!(manager.reattached(), std::slice::from_ref(&self.lasting.id));
        let session = self.session(&manager);
        let info = session.info();
        assert_eq!((info.processes.proxy, info.processes.agent_process), (Some(pids.proxy), Some(pids.agent)));
        assert_ne!(manager.fork_server(), pids.fork_server);
        if self.lasting.mode == Mode::Idle {
            assert_eq!(info.state, SessionState::Idle);
        } else {
            assert_eq!(info.state, SessionState::Busy { turn: 2 });
            let mut events = session.subscribe_from(info.last_offset);
            if self.lasting.mode == Mode::Turn && self.model.is_some() {
                let is_text = |envelope: &Envelope| matches!(envelope.event, Event::Text { .. }).then_some(());
                event(&mut events, "more of the answer", is_text).await;
            }
            soon("the abort", session.abort(AbortPolicy::KillTurnProcesses)).await.expect("aborted");
            event(&mut events, "the turn's end", |envelope| {
                (envelope.event == Event::SessionIdle {} && envelope.turn == Some(2)).then_some(())
            })
            .await;
        }
        let found = self.events(&manager).await;
        self.has_said(&found);
        if self.lasting.mode == Mode::Turn && self.model.is_some() {
            // Nothing of the answer is lost or doubled.
            let of_turn = found.iter().filter(|envelope| envelope.turn == Some(2));
            let text: String = of_turn.filter_map(|envelope| text(&envelope.event)).collect();
            let count: String = (1..=text.len()).map(|number| format!("{number} ")).collect();
            assert!(count.starts_with(&text), "{text}");
        }
        self.remembers(&session).await;
        self.killed(&session).await;
        manager.shutdown().await;
    }

    /// With a living host the session is started again where it is asked for.
    async fn restarts(&self, victim: Victim) {
        let manager = self.manager().await;
        let mut config = self.config(self.lasting.id.as_str());
        config.lifecycle = Lifecycle { restart: Restart::OnCrash { max: 1, backoff_ms: 1 }, ..config.lifecycle };
        let session = self.begun(&manager, config).await;
        let info = session.info();
        let mut events = session.subscribe_from(info.last_offset);
        let (proxy, agent) = (info.processes.proxy.expect("it runs"), info.processes.agent_process.expect("it runs"));
        // The agent, and what it has started: in the midst of an exec it shows no environment.
        let of_first = until("the agent and its tool", || {
            let marked = with_marker(self.lasting.id.as_str()).into_iter().filter(|pid| *pid != proxy.pid);
            let found: Vec<_> = marked.filter_map(|pid| registry::identify(pid).ok()).collect();
            (found.contains(&agent) && (self.lasting.mode != Mode::Tool || found.len() > 1)).then_some(found)
        });
        kill(if victim == Victim::Proxy { proxy } else { agent });
        event(&mut events, "a restart", |envelope| {
            matches!(&envelope.event, Event::SessionResumed { by, .. } if by == "restart").then_some(())
        })
        .await;
        let lives = |process: &&ProcessId| {
            is_alive(process.pid) && registry::identify(process.pid).is_ok_and(|now| now == **process)
        };
        let left: Vec<_> = of_first.iter().filter(lives).collect();
        assert!(left.is_empty(), "{left:?} of its first life live in its second");
        event(&mut events, "ready", |envelope| (envelope.event == Event::SessionIdle {}).then_some(())).await;
        let session = self.session(&manager);
        self.has_said(&self.events(&manager).await);
        self.remembers(&session).await;
        self.killed(&session).await;
        manager.shutdown().await;
    }

    /// Without its fork server a session rests, whether or not it would outlive its host: nobody could end it for sure.
    async fn fork_server_dies(&self) {
        let first = self.manager().await;
        let session = self.begun(&first, self.config(self.lasting.id.as_str())).await;
        let mut events = session.subscribe_from(session.info().last_offset);
        kill(first.fork_server());
        let reason = event(&mut events, "its end", |envelope| match &envelope.event {
            Event::SessionSuspended { reason, .. } => Some(reason.clone()),
            _ => None,
        })
        .await;
        assert_eq!(reason, EndReason::ForkServerDied);
        self.nothing_runs();
        first.shutdown().await;
        self.goes_on().await;
    }

    /// The host ends what is left, proves it, and goes on with another fork server.
    async fn host_goes_on(&self, victims: &[Victim]) {
        let manager = self.manager().await;
        let session = self.begun(&manager, self.config(self.lasting.id.as_str())).await;
        let mut events = session.subscribe_from(session.info().last_offset);
        let fork_server = manager.fork_server();
        let struck = victims.iter().map(|victim| victim_of(*victim, &manager, &session)).collect::<Vec<_>>();
        struck.iter().for_each(|process| send(*process, Signal::Stop));
        struck.iter().for_each(|process| kill(*process));
        let (reason, receipt) = self.rests(&mut events).await;
        assert_eq!(reason, EndReason::ForkServerDied);
        assert!(receipt.is_empty(), "{receipt:?}");
        self.nothing_runs();
        self.has_said(&self.events(&manager).await);
        let session = soon("a resume", manager.resume_session(&self.lasting.id)).await.expect("resumed");
        assert_ne!(manager.fork_server(), fork_server);
        self.remembers(&session).await;
        self.killed(&session).await;
        manager.shutdown().await;
    }

    /// How a session was suspended, or ended.
    async fn rests(&self, events: &mut Subscription) -> (EndReason, Box<Receipt>) {
        event(events, "its end", |envelope| match &envelope.event {
            Event::SessionSuspended { reason, receipt } | Event::SessionEnded { reason, receipt } => {
                Some((reason.clone(), receipt.clone().expect("a receipt")))
            }
            _ => None,
        })
        .await
    }

    /// What is stopped is continued, in whatever it does, without a call that needs it.
    async fn is_stopped(&self, victims: &[Victim]) {
        let manager = self.manager().await;
        let session = self.begun(&manager, self.config(self.lasting.id.as_str())).await;
        let stopped: Vec<_> = victims.iter().map(|victim| victim_of(*victim, &manager, &session)).collect();
        stopped.iter().for_each(|process| send(*process, Signal::Stop));
        let goes_on = async {
            while stopped.iter().any(|process| system::state(process.pid) == Some('T')) {
                tokio::task::yield_now().await;
            }
        };
        soon("they go on", goes_on).await;
        soon("an answer", session.ping()).await.expect("it goes on");
        let began = Instant::now();
        stopped.iter().for_each(|process| send(*process, Signal::Stop));
        self.killed(&session).await;
        assert!(began.elapsed() < CALL, "{:?}", began.elapsed());
        self.nothing_runs();
        works(&manager, self.config("next")).await;
        manager.shutdown().await;
    }

    /// Whoever is ended by it or cannot look any more, nothing is left and another session goes on with the conversation.
    async fn is_limited(&self, victim: Victim, resource: Resource, hard: bool) {
        let manager = self.manager().await;
        let session = self.begun(&manager, self.config(self.lasting.id.as_str())).await;
        let mut events = session.subscribe_from(session.info().last_offset);
        let process = victim_of(victim, &manager, &session);
        let maximum = if hard { Some(0) } else { getrlimit(resource).maximum };
        let limit = Rlimit { current: Some(0), maximum };
        prlimit(Pid::from_raw(process.pid.cast_signed()), resource, limit).expect("lowered");
        let began = Instant::now();
        if victim == Victim::ForkServer {
            kill(victim_of(Victim::Proxy, &manager, &session));
        } else {
            // A proxy that its limit has ended already has left a receipt.
            self.killed(&session).await;
        }
        let (reason, receipt) = self.rests(&mut events).await;
        assert!(receipt.is_empty() && began.elapsed() < CALL, "{reason} after {:?}: {receipt:?}", began.elapsed());
        self.nothing_runs();
        let from = ResumeFrom::Session { id: self.lasting.id.clone() };
        let resume = Some(ResumeRequest { from, fork: false, on_missing: OnMissing::Fail });
        let lifecycle = Lifecycle { key: None, ..self.config("next").lifecycle };
        let config = AgentSessionConfig { resume, lifecycle, ..self.config("next") };
        let session = soon("a session", manager.start_session(config)).await.expect("started");
        self.remembers(&session).await;
        self.killed(&session).await;
        manager.shutdown().await;
    }

    /// After a reboot nothing of the session runs, and its numbers are other processes'.
    async fn boots_anew(&self) {
        self.host_dies(&[Victim::ForkServer, Victim::Proxy, Victim::Agent, Victim::Host]).await;
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("readable");
        let stranger = Stranger::new();
        let mut changed = 0;
        for entry in fs::read_dir(self.lasting.state().join("sessions")).expect("there").flatten() {
            let text = fs::read_to_string(entry.path()).expect("a journal");
            if text.contains(boot.trim()) {
                let text = text.replace(boot.trim(), "00000000-0000-4000-8000-000000000000");
                // A number of the session's, which another process has now.
                let ProcessId { pid, start_time } = stranger.0.id();
                fs::write(entry.path(), format!("{text}+{pid}@{start_time}\n")).expect("written");
                changed += 1;
            }
        }
        assert_eq!(changed, 1, "one journal says when the machine was booted");
        self.goes_on().await;
        assert_eq!(stranger.0.process.try_reap().expect("our child"), None, "a process of nobody's was ended");
    }

    async fn conversation_is_gone(&self) {
        self.host_dies(&[Victim::Host]).await;
        let holding = holding(&self.lasting.home(), &self.lasting.first()).expect("searched");
        assert!(!holding.is_empty(), "the agent has kept nothing");
        for file in holding {
            fs::remove_file(file).expect("removed");
        }
        let manager = self.manager().await;
        // Its variables are kept nowhere.
        let options = ResumeOptions { env: self.config("gone").env, ..ResumeOptions::default() };
        let resumed = soon("an answer", manager.resume_session_with(&self.lasting.id, options)).await;
        let error = resumed.expect_err("gone");
        assert!(matches!(error, Error::NativeSessionMissing { .. }), "{error}");
        // Its events are there all the same, and so is it.
        self.has_said(&self.events(&manager).await);
        assert_eq!(manager.record(&self.lasting.id).expect("kept").status(), SessionStatus::Suspended);
        manager.shutdown().await;
    }

    async fn store_is_gone(&self) {
        self.host_dies(&[Victim::Host]).await;
        for entry in fs::read_dir(self.lasting.state()).expect("there").flatten() {
            if entry.file_name().to_string_lossy().starts_with("log.sqlite") {
                fs::remove_file(entry.path()).expect("removed");
            }
        }
        let manager = self.manager().await;
        let id = &self.lasting.id;
        assert!(matches!(manager.record(id), Err(Error::UnknownSession { .. })));
        assert!(matches!(manager.subscribe_from(id, 0), Err(Error::UnknownSession { .. })));
        // Which conversation it had is known all the same.
        let from = ResumeFrom::Session { id: id.clone() };
        let resume = Some(ResumeRequest { from, fork: false, on_missing: OnMissing::Fail });
        let config = AgentSessionConfig { resume, ..self.config("next") };
        let session = soon("a session", manager.start_session(config)).await.expect("started");
        self.remembers(&session).await;
        self.killed(&session).await;
        let ended = all(&mut session.subscribe()).await;
        assert!(ended.iter().map(|envelope| envelope.offset).eq(1..=ended.len() as u64));
        manager.shutdown().await;
    }
}

/// A process that is of no session, ended with this.
struct Stranger(SpawnedProcess);

impl Stranger {
    fn new() -> Self {
        let argv = vec!["sleep".into(), system::unique_seconds().into()];
        Self(registry::spawn(SpawnRequest { argv, ..SpawnRequest::new("/bin/sleep") }).expect("started"))
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        if self.0.process.signal(Signal::Kill).is_ok() {
            until("its end", || self.0.process.try_reap().expect("our child"));
        }
    }
}

/// A session can be started and ended.
async fn works(manager: &ProxyManager, config: AgentSessionConfig) {
    let config = AgentSessionConfig { lifecycle: Lifecycle { key: None, ..config.lifecycle.clone() }, ..config };
    let session = soon("a session", manager.start_session(config)).await.expect("started");
    let receipt = soon("the kill", session.kill(KillOptions::NOW)).await.expect("killed");
    assert!(receipt.is_empty(), "{receipt:?}");
}

fn victim_of(victim: Victim, manager: &ProxyManager, session: &SessionHandle) -> ProcessId {
    match victim {
        Victim::ForkServer => manager.fork_server(),
        Victim::Proxy => session.info().processes.proxy.expect("it runs"),
        Victim::Agent => session.info().processes.agent_process.expect("it runs"),
        Victim::Host => registry::identify(std::process::id()).expect("alive"),
    }
}

/// One that the death of another has ended already is dead, too.
fn kill(process: ProcessId) {
    send(process, Signal::Kill);
}

fn send(process: ProcessId, signal: Signal) {
    match PidFd::open(process).and_then(|process| process.signal(signal)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{process}: {error}"),
        _ => {}
    }
}

fn text(event: &Event) -> Option<&str> {
    if let Event::Text { text } = event { Some(text) } else { None }
}

/// The files below `directory` that hold `words`.
fn holding(directory: &Path, words: &str) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let (path, kind) = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)))?;
        if kind.is_dir() {
            found.append(&mut holding(&path, words)?);
        } else if kind.is_file() && fs::read(&path)?.windows(words.len()).any(|window| window == words.as_bytes()) {
            found.push(path);
        }
    }
    Ok(found)
}
