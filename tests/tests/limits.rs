//! What takes too much is noticed and ended as configured, while other sessions go on.

use std::{path::PathBuf, time::Duration};

use agent_proxy_tests::{
    sessions::{self, all, event, fake, said, soon},
    system::{self, until},
};
use proxy_manager::{
    AgentSessionConfig, Containment, EndReason, Envelope, Event, ExitStatus, KillCause, KillOptions, LimitAction,
    LimitExceeded, LimitForm, LimitKind, Limits, ObserverKind, OnAgentExit, ProcessId, PromptMode, ProxyManager,
    SessionHandle, SessionState, Subscription,
};

const RUNAWAY: &str = env!("CARGO_BIN_EXE_runaway");
const MIB: u64 = 1 << 20;

/// A session with limits, beside one that has nothing to do with it.
struct Scene {
    manager: ProxyManager,
    other: SessionHandle,
    session: SessionHandle,
    events: Subscription,
    directory: Directory,
}

/// Is gone with its test, however that ends.
struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Scene {
    /// In a cgroup with its controllers the forms of the limits would be others.
    async fn new(limits: Limits) -> Self {
        Self::within(limits, Containment::Baseline).await
    }

    async fn within(limits: Limits, containment: Containment) -> Self {
        let manager = sessions::builder(env!("CARGO_BIN_EXE_proxy-child"), env!("CARGO_BIN_EXE_fake-agent"))
            .build()
            .await
            .expect("built");
        let other = manager.start_session(fake()).await.expect("started");
        let config = AgentSessionConfig { limits, containment: Some(containment), ..fake() };
        let session = manager.start_session(config).await.expect("started");
        let events = session.subscribe();
        let directory = std::env::temp_dir().join(format!("limits-{}", session.id()));
        std::fs::create_dir(&directory).expect("made");
        let directory = Directory(directory);
        Self { manager, other, session, events, directory }
    }

    fn path(&self, name: &str) -> String {
        self.directory.0.join(name).to_str().expect("text").to_owned()
    }

    /// Lets the agent start the runaway as a process of its own, and returns its pid.
    async fn spawn(&mut self, arguments: &str) -> u32 {
        let script = format!("spawn exec {RUNAWAY} {arguments}");
        self.session.prompt(script, PromptMode::Refuse).await.expect("prompted");
        // What it passes can be told before its pid is.
        said(&mut self.session.subscribe(), "spawn ").await.trim().parse().expect("a pid")
    }

    async fn exceeded(&mut self) -> LimitExceeded {
        event(&mut self.events, "limit:exceeded", limit_exceeded).await
    }

    /// Neither this session nor the other one is disturbed.
    async fn both_work(&mut self) {
        for session in [&self.other, &self.session] {
            works(session).await;
        }
    }

    /// Who sees the session's processes.
    async fn observer(&self) -> ObserverKind {
        let mut events = self.session.subscribe();
        event(&mut events, "the start", |envelope| match &envelope.event {
            Event::SessionStarted { measures, .. } => Some(measures.observer),
            _ => None,
        })
        .await
    }

    /// The end of the one process, and of nothing else. How it ended may not be seen where nobody tells.
    async fn killed(&mut self, pid: u32) -> ProcessId {
        // The fork server may tell it before the proxy says why.
        event(&mut self.session.subscribe(), "the end of the process", |envelope| match envelope.event {
            Event::ProcessExited { process, exit: Some(ExitStatus::Signal(9)) | None, .. } if process.pid == pid => {
                Some(process)
            }
            _ => None,
        })
        .await
    }

    /// The session ends for `kind`, with a receipt that says so; the other one goes on.
    async fn ended_for(&mut self, kind: LimitKind) {
        let rest = all(&mut self.events).await;
        let end = &rest.last().expect("an end").event;
        let Event::SessionEnded { reason, receipt: Some(receipt) } = end else { panic!("{end:?}") };
        assert_eq!(*reason, EndReason::LimitExceeded(kind));
        assert_eq!(receipt.cause, KillCause::Limit);
        assert!(receipt.is_empty(), "{receipt:?}");
        assert!(rest.iter().all(|envelope| limit_exceeded(envelope).is_none()), "said once: {rest:#?}");
        assert!(system::with_marker(self.session.id().as_str()).is_empty());
        works(&self.other).await;
    }

    /// Ends everything. What was said of limits since the last look is returned.
    async fn close(mut self) -> Vec<LimitExceeded> {
        if !matches!(self.session.info().state, SessionState::Ended { .. }) {
            let receipt = self.session.kill(KillOptions::NOW).await.expect("killed");
            assert!(receipt.is_empty(), "{receipt:?}");
        }
        let rest = all(&mut self.events).await;
        self.manager.shutdown().await;
        rest.iter().filter_map(|envelope| limit_exceeded(envelope)).collect()
    }
}

fn limit_exceeded(envelope: &Envelope) -> Option<LimitExceeded> {
    match &envelope.event {
        Event::LimitExceeded(exceeded) => Some(**exceeded),
        _ => None,
    }
}

async fn works(session: &SessionHandle) {
    let turn = session.prompt("say still here", PromptMode::Queue).await.expect("prompted");
    soon("an answer", turn.wait()).await.expect("answered");
}

fn with(on_limit: LimitAction, limits: Limits) -> Limits {
    Limits { on_limit, ..limits }
}

const ACTIONS: [LimitAction; 3] = [LimitAction::Warn, LimitAction::KillProcess, LimitAction::KillSession];

#[tokio::test]
async fn memory() {
    const LIMIT: u64 = 256 * MIB;
    for action in ACTIONS {
        let mut scene = Scene::new(with(action, Limits { memory_bytes: Some(LIMIT), ..Limits::default() })).await;
        let report = scene.path("touched");
        // Nothing stops it where nothing is to.
        let most = if action == LimitAction::Warn { 512 } else { 2048 };
        let pid = scene.spawn(&format!("memory {report} {most}")).await;
        let exceeded = scene.exceeded().await;
        assert_eq!((exceeded.limit, exceeded.value, exceeded.action), (LimitKind::Memory, LIMIT, action));
        assert!(exceeded.measured > LIMIT && exceeded.process.is_some_and(|it| it.pid == pid), "{exceeded:?}");
        assert_eq!(exceeded.form, LimitForm::Watchdog);
        match action {
            LimitAction::Warn => scene.both_work().await,
            LimitAction::KillProcess => {
                scene.killed(pid).await;
                scene.both_work().await;
            }
            LimitAction::KillSession => scene.ended_for(LimitKind::Memory).await,
        }
        let touched = || std::fs::read_to_string(&report).ok()?.trim().parse::<u64>().ok();
        let peak = match action {
            LimitAction::Warn => until("all of it", || touched().filter(|touched| *touched == most)),
            _ => touched().expect("a number"),
        };
        assert!(action == LimitAction::Warn || peak < most, "it was stopped by nothing but its own bound");
        println!(
            "memory, {action}: limit {} MiB, noticed at {} MiB, touched {peak} MiB",
            LIMIT / MIB,
            exceeded.measured / MIB
        );
        assert_eq!(scene.close().await, [], "said once");
    }
}

/// In a PID namespace of its own: a mistake must not reach anything else.
#[test]
fn processes() {
    in_pid_namespace("processes_within");
}

#[tokio::test]
#[ignore = "run by `processes`"]
async fn processes_within() {
    const LIMIT: u64 = 30;
    for action in ACTIONS {
        let mut scene = Scene::new(with(action, Limits { processes: Some(LIMIT), ..Limits::default() })).await;
        scene.spawn("forks 6").await;
        let exceeded = scene.exceeded().await;
        assert_eq!((exceeded.limit, exceeded.value, exceeded.action), (LimitKind::Processes, LIMIT, action));
        assert!(exceeded.measured > LIMIT && exceeded.process.is_some(), "{exceeded:?}");
        println!("processes, {action}: limit {LIMIT}, noticed at {}", exceeded.measured);
        let alive = |scene: &Scene| system::with_marker(scene.session.id().as_str());
        match action {
            LimitAction::Warn => {
                // The bomb, its root and the agent.
                until("all of them", || (alive(&scene).len() > 100).then_some(()));
                scene.both_work().await;
            }
            LimitAction::KillProcess => {
                until("no more than allowed", || (alive(&scene).len() as u64 <= LIMIT).then_some(()));
                scene.both_work().await;
            }
            LimitAction::KillSession => scene.ended_for(LimitKind::Processes).await,
        }
        assert_eq!(scene.close().await, [], "said once");
    }
}

#[tokio::test]
async fn file_size() {
    const LIMIT: u64 = 4 * MIB;
    for action in ACTIONS {
        let mut scene = Scene::new(with(action, Limits { file_size_bytes: Some(LIMIT), ..Limits::default() })).await;
        if action != LimitAction::Warn && scene.observer().await == ObserverKind::Polling {
            // The kernel ends the writer, and its parent takes the status before anybody can look.
            system::not_run(format_args!("the end of a writer at its limit ({action}): no proc connector here"));
            scene.close().await;
            continue;
        }
        let path = scene.path("file");
        let script = format!("spawn exec {RUNAWAY} file {path}");
        // The session may end before it is answered.
        let _ = scene.session.prompt(script, PromptMode::Refuse).await;
        let exceeded = scene.exceeded().await;
        assert_eq!((exceeded.limit, exceeded.value, exceeded.action), (LimitKind::FileSize, LIMIT, action));
        let writer = exceeded.process.expect("known");
        let args = event(&mut scene.session.subscribe(), "its start", |envelope| match &envelope.event {
            Event::ProcessSpawned(info) if info.id == writer => Some(info.args.join(" ")),
            _ => None,
        })
        .await;
        // It may be gone before its words are read, or all of them: before it became the program, or after that.
        let words = [format!("-c exec {RUNAWAY} file {path}"), format!("file {path}")];
        assert!(words.iter().any(|words| words.starts_with(&args)), "{args}");
        let size = || std::fs::metadata(&path).map_or(0, |file| file.len());
        match action {
            LimitAction::Warn => {
                assert!(exceeded.measured > LIMIT && exceeded.form == LimitForm::Watchdog, "{exceeded:?}");
                until("all of it written", || (size() == 64 * MIB).then_some(()));
                scene.both_work().await;
            }
            LimitAction::KillProcess => {
                assert!(exceeded.measured == LIMIT && exceeded.form == LimitForm::Rlimit, "{exceeded:?}");
                until("its end", || (!system::is_alive(writer.pid)).then_some(()));
                scene.both_work().await;
            }
            LimitAction::KillSession => scene.ended_for(LimitKind::FileSize).await,
        }
        assert!(action == LimitAction::Warn || size() == LIMIT, "{}", size());
        assert_eq!(scene.close().await, [], "said once");
    }
}

#[tokio::test]
async fn a_file_at_its_limit_whose_writer_ignores_the_signal() {
    let limits = Limits { file_size_bytes: Some(MIB), ..Limits::default() };
    let mut scene = Scene::new(with(LimitAction::KillProcess, limits)).await;
    let path = scene.path("file");
    let seconds = system::unique_seconds();
    // The shell keeps the file open, and itself ends only when it is ended.
    let script = format!("spawn trap '' XFSZ; exec 3>{path}; head -c 2M /dev/zero >&3; sleep {seconds}");
    scene.session.prompt(script, PromptMode::Refuse).await.expect("prompted");
    let exceeded = scene.exceeded().await;
    assert_eq!((exceeded.limit, exceeded.value, exceeded.measured), (LimitKind::FileSize, MIB, MIB));
    let process = exceeded.process.expect("known");
    // One that was about to end may do so by itself.
    until("its end", || (!system::is_alive(process.pid)).then_some(()));
    scene.both_work().await;
    scene.close().await;
}

#[tokio::test]
async fn a_writer_that_its_own_parent_reaps_is_seen_by_the_connector() {
    let limits = Limits { file_size_bytes: Some(MIB), ..Limits::default() };
    let mut scene = Scene::new(with(LimitAction::KillProcess, limits)).await;
    let observer = event(&mut scene.session.subscribe(), "its start", |envelope| match &envelope.event {
        Event::SessionStarted { measures, .. } => Some(measures.observer),
        _ => None,
    })
    .await;
    let (path, seconds) = (scene.path("file"), system::unique_seconds());
    let script = format!("spawn {RUNAWAY} file {path}; sleep {seconds}");
    scene.session.prompt(script, PromptMode::Refuse).await.expect("prompted");
    if observer == ObserverKind::Connector {
        let exceeded = scene.exceeded().await;
        assert_eq!((exceeded.limit, exceeded.value, exceeded.measured), (LimitKind::FileSize, MIB, MIB));
        assert!(exceeded.process.is_some(), "{exceeded:?}");
    } else {
        system::not_run("an event for a writer that its own parent reaps: no proc connector here");
    }
    // It was stopped in either case, and its shell goes on.
    until("the shell goes on", || (system::sleeping(&seconds).len() == 1).then_some(()));
    assert_eq!(std::fs::metadata(&path).expect("there").len(), MIB);
    scene.both_work().await;
    assert_eq!(scene.close().await, [], "said once");
}

#[tokio::test]
async fn cpu_time() {
    const LIMIT: u64 = 300;
    for action in ACTIONS {
        let mut scene = Scene::new(with(action, Limits { cpu_time_ms: Some(LIMIT), ..Limits::default() })).await;
        let pid = scene.spawn("cpu").await;
        let exceeded = scene.exceeded().await;
        assert_eq!((exceeded.limit, exceeded.value, exceeded.action), (LimitKind::CpuTime, LIMIT, action));
        assert!(exceeded.measured > LIMIT && exceeded.process.is_some_and(|it| it.pid == pid), "{exceeded:?}");
        println!("cpu time, {action}: limit {LIMIT} ms, noticed at {} ms", exceeded.measured);
        match action {
            LimitAction::Warn => scene.both_work().await,
            LimitAction::KillProcess => {
                scene.killed(pid).await;
                scene.both_work().await;
            }
            LimitAction::KillSession => scene.ended_for(LimitKind::CpuTime).await,
        }
        assert_eq!(scene.close().await, [], "said once");
    }
}

#[tokio::test]
async fn cpu_time_of_the_dead_counts() {
    let limits = Limits { cpu_time_ms: Some(600), ..Limits::default() };
    let mut scene = Scene::new(limits).await;
    // None of them alone takes as much; some are waited for by their parent, some re-parented and reaped by the proxy.
    let burn = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
    let script = format!("spawn while :; do sh -c '{burn}'; (sh -c '{burn}' &); done");
    scene.session.prompt(script, PromptMode::Refuse).await.expect("prompted");
    let exceeded = scene.exceeded().await;
    assert_eq!(exceeded.limit, LimitKind::CpuTime);
    scene.ended_for(LimitKind::CpuTime).await;
    scene.close().await;
}

#[tokio::test]
async fn cpu_percent() {
    // Low: the machine may be busy with other things.
    const LIMIT: u64 = 10;
    for action in ACTIONS {
        let mut scene = Scene::new(with(action, Limits { cpu_percent: Some(LIMIT), ..Limits::default() })).await;
        let pid = scene.spawn("cpu").await;
        let exceeded = scene.exceeded().await;
        assert_eq!((exceeded.limit, exceeded.value, exceeded.action), (LimitKind::CpuPercent, LIMIT, action));
        assert!(exceeded.measured > LIMIT && exceeded.process.is_some_and(|it| it.pid == pid), "{exceeded:?}");
        match action {
            LimitAction::Warn => scene.both_work().await,
            LimitAction::KillProcess => {
                scene.killed(pid).await;
                scene.both_work().await;
            }
            LimitAction::KillSession => scene.ended_for(LimitKind::CpuPercent).await,
        }
        scene.close().await;
    }
}

#[tokio::test]
async fn wall_clock() {
    const LIMIT: u64 = 700;
    for action in ACTIONS {
        let mut scene = Scene::new(with(action, Limits { wall_clock_ms: Some(LIMIT), ..Limits::default() })).await;
        let exceeded = scene.exceeded().await;
        assert_eq!((exceeded.limit, exceeded.value, exceeded.form), (LimitKind::WallClock, LIMIT, LimitForm::Clock));
        assert!(exceeded.measured > LIMIT && exceeded.process.is_none(), "{exceeded:?}");
        if action == LimitAction::Warn {
            assert_eq!(exceeded.action, LimitAction::Warn);
            scene.both_work().await;
        } else {
            // No process takes the time.
            assert_eq!(exceeded.action, LimitAction::KillSession);
            scene.ended_for(LimitKind::WallClock).await;
        }
        assert_eq!(scene.close().await, [], "said once");
    }
}

#[tokio::test]
async fn open_files() {
    const LIMIT: u64 = 24;
    for action in ACTIONS {
        let mut scene = Scene::new(with(action, Limits { open_files: Some(LIMIT), ..Limits::default() })).await;
        let report = scene.path("report");
        let pid = scene.spawn(&format!("open-files > {report}")).await;
        let exceeded = scene.exceeded().await;
        assert_eq!((exceeded.limit, exceeded.value, exceeded.action), (LimitKind::OpenFiles, LIMIT, action));
        assert_eq!((exceeded.measured, exceeded.form), (LIMIT, LimitForm::Rlimit));
        assert!(exceeded.process.is_some_and(|it| it.pid == pid), "{exceeded:?}");
        // Beyond that the kernel lets nobody.
        let output = || std::fs::read_to_string(&report).expect("readable");
        let output = match action {
            LimitAction::Warn => until("its line", || Some(output()).filter(|output| output.ends_with('\n'))),
            _ => output(),
        };
        // One that is ended may not have come to its line.
        let is_cut = output.is_empty() && action != LimitAction::Warn;
        assert!(is_cut || output == "opened 21, then: Too many open files (os error 24)\n", "{output}");
        match action {
            LimitAction::Warn => scene.both_work().await,
            LimitAction::KillProcess => {
                scene.killed(pid).await;
                scene.both_work().await;
            }
            LimitAction::KillSession => scene.ended_for(LimitKind::OpenFiles).await,
        }
        assert_eq!(scene.close().await, [], "said once");
    }
}

#[tokio::test]
async fn core_dumps_are_off_unless_asked_for() {
    let mut scene = Scene::new(Limits::default()).await;
    let limits = |session: &SessionHandle| {
        let agent = session.info().processes.agent_process.expect("it runs");
        std::fs::read_to_string(format!("/proc/{}/limits", agent.pid)).expect("readable")
    };
    let core = |text: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix("Max core file size")).expect("a line");
        line.split_whitespace().map(str::to_owned).take(2).collect::<Vec<_>>()
    };
    assert_eq!(core(&limits(&scene.session)), ["0", "0"]);
    let dumping = AgentSessionConfig { limits: Limits { core_dumps: true, ..Limits::default() }, ..fake() };
    let dumping = scene.manager.start_session(dumping).await.expect("started");
    let own = std::fs::read_to_string("/proc/self/limits").expect("readable");
    assert_eq!(core(&limits(&dumping)), core(&own));
    scene.both_work().await;
    scene.close().await;
}

#[tokio::test]
async fn what_enforces_each_limit_is_said_at_the_start() {
    let limits = Limits {
        memory_bytes: Some(1 << 40),
        processes: Some(1000),
        cpu_time_ms: Some(1 << 40),
        open_files: Some(500),
        file_size_bytes: Some(1 << 40),
        wall_clock_ms: Some(1 << 40),
        ..Limits::default()
    };
    let scene = Scene::new(limits).await;
    let in_force = |events: Subscription| async {
        let mut events = events;
        event(&mut events, "its start", |envelope| match &envelope.event {
            Event::SessionStarted { measures, .. } => Some(measures.limits.clone()),
            _ => None,
        })
        .await
    };
    let forms: Vec<_> =
        in_force(scene.session.subscribe()).await.into_iter().map(|limit| (limit.limit, limit.form)).collect();
    let expected = [
        (LimitKind::Memory, LimitForm::Watchdog),
        (LimitKind::Processes, LimitForm::Watchdog),
        (LimitKind::CpuTime, LimitForm::Watchdog),
        (LimitKind::OpenFiles, LimitForm::Rlimit),
        (LimitKind::FileSize, LimitForm::Rlimit),
        (LimitKind::WallClock, LimitForm::Clock),
    ];
    assert_eq!(forms, expected);
    assert!(in_force(scene.other.subscribe()).await.is_empty());
    scene.close().await;
}

#[tokio::test]
async fn an_agent_that_takes_too_much_alone_is_ended() {
    let limits = Limits { cpu_time_ms: Some(200), on_limit: LimitAction::KillProcess, ..Limits::default() };
    let mut scene = Scene::new(Limits::default()).await;
    let config = AgentSessionConfig {
        limits,
        command: vec![RUNAWAY.into(), "cpu".into()],
        on_agent_exit: OnAgentExit::Kill,
        ..AgentSessionConfig::new("command")
    };
    let session = scene.manager.start_session(config).await.expect("started");
    let mut events = session.subscribe();
    let exceeded = event(&mut events, "limit:exceeded", limit_exceeded).await;
    assert_eq!(exceeded.process, session.info().processes.agent_process.or(exceeded.process));
    let rest = all(&mut events).await;
    assert!(
        matches!(
            rest.last().map(|envelope| &envelope.event),
            Some(Event::SessionEnded { reason: EndReason::AgentExited(Some(ExitStatus::Signal(9))), .. })
        ),
        "{rest:#?}"
    );
    scene.both_work().await;
    scene.close().await;
}

/// What sampling costs: 100 idle processes, every limit of the watchdog.
#[tokio::test]
#[ignore = "a measurement: 20 s"]
async fn cost_of_a_hundred_idle_processes() {
    let limits = Limits {
        memory_bytes: Some(8 << 30),
        processes: Some(1000),
        cpu_time_ms: Some(1 << 40),
        cpu_percent: Some(1000),
        ..Limits::default()
    };
    for (name, limits) in [("no limits", Limits::default()), ("limits", limits)] {
        let mut scene = Scene::new(limits).await;
        let seconds = system::unique_seconds();
        let script = format!("spawn for i in $(seq 100); do sleep {seconds} & done; wait");
        scene.session.prompt(script, PromptMode::Refuse).await.expect("prompted");
        until("all sleep", || (system::sleeping(&seconds).len() == 100).then_some(()));
        scene.both_work().await;
        let proxy = scene.session.info().processes.proxy.expect("it runs").pid;
        tokio::time::sleep(Duration::from_secs(3)).await;
        let before = cpu_ticks(proxy);
        tokio::time::sleep(Duration::from_secs(7)).await;
        let used = cpu_ticks(proxy) - before;
        println!("{name}: {:.2} % of a core", used as f64 / 7.0);
        scene.close().await;
    }
}

/// User and system time, in hundredths of a second.
fn cpu_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("readable");
    let (_, rest) = stat.rsplit_once(") ").expect("a stat line");
    let words: Vec<&str> = rest.split(' ').collect();
    [11, 12].iter().map(|at| words[*at].parse::<u64>().expect("a number")).sum()
}

/// Runs the ignored test `name` of this program in a PID namespace of its own, where one can be had.
#[expect(clippy::disallowed_methods, reason = "this starts the test itself, not a session's process")]
#[expect(clippy::print_stdout, reason = "part of a test")]
fn in_pid_namespace(name: &str) {
    const NAMESPACE: &[&str] = &["--pid", "--fork", "--mount-proc", "--kill-child"];
    const AS_USER: &[&str] = &["--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"];
    let test = std::env::current_exe().expect("known");
    let has = |arguments: &&&[&str]| {
        let probe = std::process::Command::new("unshare").args(**arguments).arg("true").output();
        probe.is_ok_and(|output| output.status.success())
    };
    let mut command = match [NAMESPACE, AS_USER].iter().find(has) {
        Some(arguments) => {
            let mut command = std::process::Command::new("unshare");
            command.args(*arguments).arg(test);
            command
        }
        None => {
            system::not_run(format_args!("{name} in a PID namespace, which cannot be had here; it runs outside one"));
            std::process::Command::new(test)
        }
    };
    let output = command.args(["--exact", name, "--ignored", "--nocapture"]).output().expect("started");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "{text}");
    println!("{text}");
}
