//! Agents that attack what supervises them, as root and as an ordinary user, and what holds against each attack.
//!
//! | | root, by default | ordinary user, by default | with `landlock: true` | strict |
//! |---|---|---|---|---|
//! | signal, stop, kill supervisors or another session | refused (landlock) | **not** refused; what it kills is cleaned up after | refused | refused: it sees none of them |
//! | ptrace, take descriptors of, read and write a proxy or the fork server | refused (landlock) | refused (not dumpable) | refused | refused |
//! | the same of another session's agent | refused (landlock) | **not** refused: its user's own process | refused | refused |
//! | `kill -9 -1` | ends the session only | **not** refused; what it leaves, itself, the next manager ends | ends the session only | ends the session only |
//! | abstract sockets outside | refused | **not** refused | refused | refused with landlock only |
//! | inherited descriptors and environment | none | none | none | none |
//! | exhaust descriptors or pids | listed and ended | listed and ended | listed and ended | listed and ended |
//! | mount over `/proc/PID` | seen and ended | cannot | seen and ended | seen and ended |
//! | write to cgroup files | its own group's, with the layer cgroup | what is its user's | as root, or its user's | its own group's |
//! | move supervisors into its group, freeze them | moved back, thawed | cannot | moved back, thawed | refused: it sees none of them |
//!
//! Root's CAP_PERFMON opens `environ`, `maps` and `auxv` of every process, landlock or not (Linux 6.16); there is nothing
//! of the host's in them.
//!
//! Each case runs in a process of its own: root's also as nobody, and what could reach others in a PID namespace of its own.

#![expect(clippy::print_stdout, reason = "what is not run is said there")]

use std::{
    future::Future,
    os::{linux::net::SocketAddrExt, unix::net::SocketAddr, unix::net::UnixListener, unix::process::CommandExt},
    pin::Pin,
    process::{Command, ExitCode},
    time::Duration,
};

use agent_proxy_tests::{
    sessions::{self, all, event, shell, soon},
    system::{self, until},
};
use libtest_mimic::{Arguments, Failed, Trial};
use proxy_manager::{
    AgentSessionConfig, Containment, EndReason, Event, ExitStatus, Hardening, KillOptions, LimitAction, LimitKind,
    Limits, ManagerBuilder, PromptMode, ProxyManager, Receipt, SessionHandle, Subscription,
};

#[path = "attacks/files.rs"]
mod files;

use files::{
    a_mount_hides_no_process, agents_are_ended_first_for_want_of_memory, cgroup_files_outside_are_out_of_reach,
    exits_are_told_without_the_proxy, supervisors_in_a_freezer, supervisors_in_the_sessions_group,
};

struct Case {
    name: &'static str,
    run: fn() -> Pin<Box<dyn Future<Output = ()>>>,
    place: Place,
}

/// Where a case runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// As any program.
    Here,
    /// In a PID namespace of its own: it could reach other processes of this machine.
    Apart,
    /// The same, in which there are few pids.
    Few,
    /// The same, as the one process that `kill -1` does not reach.
    First,
}

macro_rules! cases {
    ($($name:ident $($place:ident)?),* $(,)?) => {
        &[$(Case { name: stringify!($name), run: || Box::pin($name()), place: [$(Place::$place,)? Place::Here][0] }),*]
    };
}

const CASES: &[Case] = cases![
    signals_do_not_leave_the_session,
    a_proxy_that_its_agent_stops Apart,
    limits_of_a_proxy_that_its_agent_stops Apart,
    a_proxy_that_its_agent_kills Apart,
    a_fork_server_that_an_agent_kills Apart,
    a_fork_server_that_an_agent_stops Apart,
    another_agent_that_an_agent_kills Apart,
    another_agent_that_an_agent_stops Apart,
    another_proxy_that_an_agent_kills Apart,
    another_proxy_that_an_agent_stops Apart,
    supervisors_are_not_traced,
    descriptors_are_not_taken,
    memory_is_not_read,
    nothing_is_written_to_open_files,
    hardening_can_be_switched_off,
    sessions_say_what_hardening_they_have,
    nothing_is_inherited,
    abstract_sockets_outside_are_out_of_reach,
    out_of_descriptors,
    out_of_pids Few,
    more_processes_than_allowed Apart,
    kill_everybody Apart,
    kill_everybody_without_a_shield First,
    a_mount_hides_no_process Apart,
    cgroup_files_outside_are_out_of_reach,
    supervisors_in_the_sessions_group,
    supervisors_in_a_freezer,
    agents_are_ended_first_for_want_of_memory,
    exits_are_told_without_the_proxy Apart,
];

/// Between SIGTERM and SIGKILL, where there is to be something between them.
const GRACE: Duration = Duration::from_millis(100);
/// No call takes longer, beyond its grace.
const LONGEST_CALL: Duration = Duration::from_secs(3);
/// Nobody.
const ORDINARY: u32 = 65534;
const PID_MAX: &str = "/proc/sys/kernel/pid_max";
/// The kernel takes no less.
const LEAST_PIDS: &str = "301";
/// In the environment of every host here, and of nothing below it.
const SECRET: &str = "ATTACKS_HOST_SECRET";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    if let [_, flag, name] = args.as_slice()
        && flag == "--case"
    {
        let case = CASES.iter().find(|case| case.name == name).expect("a known case");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on((case.run)());
        return ExitCode::SUCCESS;
    }
    let users: &[Option<u32>] = if is_root() { &[None, Some(ORDINARY)] } else { &[None] };
    let trials = users.iter().flat_map(|user| {
        let who = if user.is_some() || !is_root() { "ordinary" } else { "root" };
        CASES.iter().map(move |case| Trial::test(format!("{who}::{}", case.name), move || run(case, *user)))
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

#[expect(clippy::disallowed_methods, reason = "the registry under test shall not start its own test")]
fn run(case: &Case, user: Option<u32>) -> Result<(), Failed> {
    let exe = std::env::current_exe()?;
    let is_ordinary = user.is_some() || !is_root();
    let mut command = if case.place == Place::Here {
        Command::new(exe)
    } else {
        let mut command = Command::new("unshare");
        if is_ordinary {
            command.args(["--user", "--map-current-user"]);
        }
        command.args(["--pid", "--fork", "--mount-proc", "--kill-child"]);
        match case.place {
            Place::Here | Place::First => {}
            // It takes the rights of the namespace's owner, which nobody has who is not root there: they are given up again.
            Place::Few if is_ordinary && pids_are_a_namespaces_own() => {
                let give_up = "setpriv --ambient-caps=-all --inh-caps=-all";
                let script = format!("echo {LEAST_PIDS} >{PID_MAX}; {give_up} \"$@\"; exit $?");
                command.args(["--keep-caps", "sh", "-c", &script, "sh"]);
            }
            // The first process of a namespace is none that `kill -1` reaches, so the host is not the first.
            Place::Apart | Place::Few => {
                command.args(["sh", "-c", "\"$@\"; exit $?", "sh"]);
            }
        }
        command.arg(exe);
        command
    };
    command.args(["--case", case.name]).env(SECRET, "hunter2").current_dir("/");
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    for line in said.lines().filter(|line| line.starts_with("NOT RUN")) {
        println!("{line} ({})", case.name);
    }
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    if case.place != Place::Here && errors.contains("unshare: ") {
        println!("NOT RUN: {} ({})", errors.trim(), case.name);
        return Ok(());
    }
    Err(format!("{}\n{errors}", output.status).into())
}

/// Whether a PID namespace has a bound of its own on pids: before Linux 6.14 it is the whole machine's.
fn pids_are_a_namespaces_own() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("readable");
    let mut numbers = release.split('.').map_while(|number| number.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(14))
}

// ---- what is attacked, and how

/// What shall hold an attacker back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shield {
    /// What a session has that asks for nothing.
    Default,
    Landlock,
    /// Strict containment, without landlock.
    Strict,
    /// Nothing but that proxies are not dumpable.
    Undumpable,
    None,
}

impl Shield {
    /// Whether this machine has it; says so if not.
    fn is_there(self) -> bool {
        let tried = match self {
            Self::Landlock => registry::landlock_scope_is_available(),
            Self::Default if is_root() => registry::landlock_scope_is_available(),
            Self::Strict => registry::strict_is_available(),
            _ => Ok(()),
        };
        tried.map_err(|why| println!("NOT RUN: {self:?}: {why}")).is_ok()
    }

    fn config(self) -> AgentSessionConfig {
        let landlock = match self {
            Self::Default => None,
            Self::Landlock => Some(true),
            Self::Strict | Self::Undumpable | Self::None => Some(false),
        };
        AgentSessionConfig {
            command: vec![env!("CARGO_BIN_EXE_attacker").into()],
            cwd: Some("/".into()),
            containment: Some(if self == Self::Strict { Containment::Strict } else { Containment::Baseline }),
            hardening: Hardening { undumpable: self != Self::None, landlock },
            ..AgentSessionConfig::new("command")
        }
    }
}

fn builder() -> ManagerBuilder {
    sessions::builder(env!("CARGO_BIN_EXE_proxy-child"), env!("CARGO_BIN_EXE_fake-agent"))
}

/// A manager with a session that attacks and one that is none of its business.
struct Scene {
    manager: ProxyManager,
    bystander: SessionHandle,
    attacker: SessionHandle,
    events: Subscription,
}

impl Scene {
    async fn new(config: AgentSessionConfig) -> Self {
        Self::of(builder(), config).await
    }

    async fn of(builder: ManagerBuilder, config: AgentSessionConfig) -> Self {
        let manager = soon("a manager", builder.build()).await.expect("built");
        let bystander = soon("a start", manager.start_session(shell("cat"))).await.expect("started");
        let attacker = soon("a start", manager.start_session(config)).await.expect("started");
        let events = attacker.subscribe();
        Self { manager, bystander, attacker, events }
    }

    fn own_proxy(&self) -> u32 {
        self.attacker.info().processes.proxy.expect("it runs").pid
    }

    fn fork_server(&self) -> u32 {
        self.manager.fork_server().pid
    }

    /// Who watches over sessions.
    fn supervisors(&self) -> Vec<u32> {
        vec![self.own_proxy(), self.fork_server(), self.other_proxy()]
    }

    fn other_proxy(&self) -> u32 {
        self.bystander.info().processes.proxy.expect("it runs").pid
    }

    fn other_agent(&self) -> u32 {
        self.bystander.info().processes.agent_process.expect("it runs").pid
    }

    /// Tells the attacker what to do, and waits for nothing. Whoever would say that it was told may die of it first.
    async fn order(&self, attack: &str, target: impl ToString) {
        let order = format!("{attack} {}", target.to_string());
        let _ = soon("an order", self.attacker.prompt(order, PromptMode::Refuse)).await;
    }

    /// Has it attack; what it says came of it.
    async fn attack(&mut self, attack: &str, target: impl ToString) -> Vec<String> {
        self.order(attack, target).await;
        let mut said = Vec::new();
        loop {
            let line = event(&mut self.events, "what came of an attack", |envelope| match &envelope.event {
                Event::Text { text } => Some(text.trim_end().to_owned()),
                _ => None,
            });
            match line.await {
                end if end == "end" => return said,
                line => said.push(line),
            }
        }
    }

    /// Has it attack; panics unless every attempt was refused.
    async fn refused(&mut self, shield: Shield, attack: &str, target: u32) {
        let said = self.attack(attack, target).await;
        let errors = ["EPERM", "EACCES", "ESRCH", "ENOENT"];
        let is_refused = |line: &String| line.rsplit_once(": ").is_some_and(|(_, error)| errors.contains(&error));
        assert!(!said.is_empty() && said.iter().all(is_refused), "{shield:?}, {attack} {target}: {said:?}");
    }

    /// Both sessions work, and end as any other.
    async fn unharmed(self) {
        soon("an answer", self.bystander.ping()).await.expect("the bystander works on");
        soon("an answer", self.attacker.ping()).await.expect("the attacker works on");
        let state = system::state(self.fork_server());
        assert!(!matches!(state, None | Some('T' | 't' | 'Z' | 'X')), "the fork server: {state:?}");
        self.end().await;
    }

    async fn end(self) {
        let receipt = soon("a kill", self.attacker.kill(KillOptions::NOW)).await.expect("killed");
        assert!(receipt.is_empty(), "{receipt:?}");
        soon("the manager's end", self.manager.shutdown()).await;
    }
}

async fn last(events: &mut Subscription) -> (EndReason, Box<Receipt>) {
    match &all(events).await.last().expect("a last event").event {
        Event::SessionEnded { reason, receipt } => (reason.clone(), receipt.clone().expect("a receipt")),
        other => panic!("{other:?}"),
    }
}

/// An attacker that has a daemon in a session of its own; and what that sleeps for.
fn with_daemon(shield: Shield) -> (AgentSessionConfig, String) {
    let seconds = system::unique_seconds();
    let script = format!("setsid sleep {seconds} & exec {}", env!("CARGO_BIN_EXE_attacker"));
    let command = vec!["/bin/sh".into(), "-c".into(), script];
    (AgentSessionConfig { command, ..shield.config() }, seconds)
}

fn daemon_is_there(seconds: &str) {
    until("the daemon", || (system::sleeping(seconds).len() == 1).then_some(()));
}

// ---- attacks

async fn signals_do_not_leave_the_session() {
    // By default only root is held back: for others it would disable sudo.
    let by_default = is_root().then_some(Shield::Default);
    for shield in by_default.into_iter().chain([Shield::Landlock, Shield::Strict]) {
        if !shield.is_there() {
            continue;
        }
        let mut scene = Scene::new(shield.config()).await;
        let others = [scene.other_agent(), std::process::id()];
        for target in scene.supervisors().into_iter().chain(others) {
            scene.refused(shield, "signal", target).await;
        }
        scene.unharmed().await;
    }
}

async fn a_proxy_that_its_agent_stops() {
    let (config, seconds) = with_daemon(Shield::Undumpable);
    let scene = Scene::new(config).await;
    daemon_is_there(&seconds);
    let proxy = scene.own_proxy();
    scene.order("keep-stopped", proxy).await;
    until("the proxy stands still", || (system::state(proxy) == Some('T')).then_some(()));
    // The fork server does what the proxy cannot.
    let receipt = soon("a kill", scene.attacker.kill(KillOptions::NOW)).await.expect("killed");
    assert!(receipt.is_empty(), "{receipt:?}");
    assert!(system::sleeping(&seconds).is_empty() && !system::is_alive(proxy));
    soon("an answer", scene.bystander.ping()).await.expect("the bystander works on");
    scene.manager.shutdown().await;
}

async fn limits_of_a_proxy_that_its_agent_stops() {
    let limits = Limits { wall_clock_ms: Some(500), ..Limits::default() };
    let mut scene = Scene::new(AgentSessionConfig { limits, ..Shield::Undumpable.config() }).await;
    scene.order("keep-stopped", scene.own_proxy()).await;
    let (reason, receipt) = last(&mut scene.events).await;
    assert_eq!(reason, EndReason::LimitExceeded(LimitKind::WallClock));
    assert!(receipt.is_empty(), "{receipt:?}");
    soon("an answer", scene.bystander.ping()).await.expect("the bystander works on");
    scene.manager.shutdown().await;
}

async fn a_proxy_that_its_agent_kills() {
    let (config, seconds) = with_daemon(Shield::Undumpable);
    let mut scene = Scene::new(config).await;
    daemon_is_there(&seconds);
    scene.order("kill", scene.own_proxy()).await;
    let (reason, receipt) = last(&mut scene.events).await;
    assert_eq!(reason, EndReason::ProxyDied(Some(ExitStatus::Signal(9))));
    assert!(receipt.is_empty(), "{receipt:?}");
    assert!(system::sleeping(&seconds).is_empty());
    soon("an answer", scene.bystander.ping()).await.expect("the bystander works on");
    scene.manager.shutdown().await;
}

async fn a_fork_server_that_an_agent_kills() {
    let (config, seconds) = with_daemon(Shield::Undumpable);
    let mut scene = Scene::new(config).await;
    daemon_is_there(&seconds);
    let mut bystander = scene.bystander.subscribe();
    scene.order("kill", scene.fork_server()).await;
    for events in [&mut scene.events, &mut bystander] {
        let (reason, receipt) = last(events).await;
        assert_eq!(reason, EndReason::ForkServerDied);
        assert!(receipt.is_empty(), "{receipt:?}");
    }
    assert!(system::sleeping(&seconds).is_empty());
    scene.manager.shutdown().await;
}

async fn a_fork_server_that_an_agent_stops() {
    let (config, seconds) = with_daemon(Shield::Undumpable);
    let mut scene = Scene::new(config).await;
    daemon_is_there(&seconds);
    let fork_server = scene.fork_server();
    assert_eq!(scene.attack("stop", fork_server).await, ["stop: done"]);
    // The proxy needs nobody for its proof, and the host continues the fork server.
    let receipt = soon("a kill", scene.attacker.kill(KillOptions::NOW)).await.expect("killed");
    assert!(receipt.is_empty() && receipt.processes.len() >= 2, "{receipt:?}");
    assert!(system::sleeping(&seconds).is_empty());
    soon("an answer", scene.bystander.ping()).await.expect("the bystander works on");
    until("it is continued", || system::state(fork_server).is_some_and(|state| state != 'T').then_some(()));
    let another = soon("a start", scene.manager.start_session(shell("cat"))).await.expect("started");
    for session in [&another, &scene.bystander] {
        let receipt = soon("a kill", session.kill(KillOptions::NOW)).await.expect("killed");
        assert!(receipt.is_empty(), "{receipt:?}");
    }
    scene.manager.shutdown().await;
}

async fn another_agent_that_an_agent_stops() {
    let scene = Scene::new(Shield::Undumpable.config()).await;
    let agent = scene.other_agent();
    scene.order("keep-stopped", agent).await;
    until("the agent stands still", || (system::state(agent) == Some('T')).then_some(()));
    // With a grace: it is continued for that, and stopped again at once.
    let receipt = soon("a kill", scene.bystander.kill(KillOptions::grace(GRACE))).await.expect("killed");
    assert!(receipt.is_empty() && !system::is_alive(agent), "{receipt:?}");
    scene.end().await;
}

async fn another_proxy_that_an_agent_kills() {
    let scene = Scene::new(Shield::Undumpable.config()).await;
    let mut bystander = scene.bystander.subscribe();
    let agent = scene.other_agent();
    scene.order("kill", scene.other_proxy()).await;
    let (reason, receipt) = last(&mut bystander).await;
    assert_eq!(reason, EndReason::ProxyDied(Some(ExitStatus::Signal(9))));
    assert!(receipt.is_empty() && !system::is_alive(agent), "{receipt:?}");
    soon("an answer", scene.attacker.ping()).await.expect("who did it works on");
    scene.end().await;
}

async fn another_proxy_that_an_agent_stops() {
    let scene = Scene::new(Shield::Undumpable.config()).await;
    let (agent, proxy) = (scene.other_agent(), scene.other_proxy());
    scene.order("keep-stopped", proxy).await;
    until("the proxy stands still", || (system::state(proxy) == Some('T')).then_some(()));
    let receipt = soon("a kill", scene.bystander.kill(KillOptions::NOW)).await.expect("killed");
    assert!(receipt.is_empty() && !system::is_alive(agent) && !system::is_alive(proxy), "{receipt:?}");
    soon("an answer", scene.attacker.ping()).await.expect("who did it works on");
    scene.end().await;
}

async fn another_agent_that_an_agent_kills() {
    let scene = Scene::new(Shield::Undumpable.config()).await;
    let mut bystander = scene.bystander.subscribe();
    scene.order("kill", scene.other_agent()).await;
    let (reason, receipt) = last(&mut bystander).await;
    assert_eq!(reason, EndReason::AgentExited(Some(ExitStatus::Signal(9))));
    assert!(receipt.is_empty(), "{receipt:?}");
    scene.end().await;
}

/// `attack` on the supervisors with each shield that holds for them, and on others where one holds for these.
async fn against_what_is_not_dumpable(attack: &str) {
    for shield in [Shield::Default, Shield::Landlock, Shield::Strict] {
        if !shield.is_there() {
            continue;
        }
        let mut scene = Scene::new(shield.config()).await;
        let mut targets = scene.supervisors();
        // Another session's agent is dumpable, as any program is, and so is this host.
        if is_root() || shield != Shield::Default {
            targets.extend([scene.other_agent(), std::process::id()]);
        }
        for target in targets {
            scene.refused(shield, attack, target).await;
        }
        scene.unharmed().await;
    }
}

async fn supervisors_are_not_traced() {
    against_what_is_not_dumpable("ptrace").await;
}

async fn descriptors_are_not_taken() {
    against_what_is_not_dumpable("take").await;
}

async fn nothing_is_written_to_open_files() {
    against_what_is_not_dumpable("write").await;
}

async fn memory_is_not_read() {
    for shield in [Shield::Default, Shield::Landlock, Shield::Strict] {
        if !shield.is_there() {
            continue;
        }
        let mut scene = Scene::new(shield.config()).await;
        for target in scene.supervisors() {
            let said = scene.attack("read", target).await;
            let done: Vec<_> = said.iter().filter_map(|line| line.strip_suffix(": done")).collect();
            // What root's CAP_PERFMON opens has nothing of the host's in it.
            let open: &[&str] = if is_root() && shield != Shield::Strict {
                let environment = std::fs::read_to_string(format!("/proc/{target}/environ")).expect("root's to read");
                assert_eq!(environment, "", "of {target}");
                &["read environ", "read maps", "read auxv"]
            } else {
                &[]
            };
            assert!(said.len() == 7 && done.iter().all(|what| open.contains(what)), "{shield:?}, {target}: {said:?}");
        }
        scene.unharmed().await;
    }
}

async fn hardening_can_be_switched_off() {
    let mut scene = Scene::new(Shield::None.config()).await;
    let own = scene.own_proxy();
    for attack in ["take", "read"] {
        let said = scene.attack(attack, own).await;
        assert!(said.iter().all(|line| line.ends_with(": done")), "{said:?}");
    }
    // Only its own proxy is open to it.
    if !is_root() {
        for other in [scene.fork_server(), scene.other_proxy()] {
            scene.refused(Shield::None, "take", other).await;
        }
    }
    scene.unharmed().await;
}

async fn sessions_say_what_hardening_they_have() {
    let shields =
        [(Shield::Default, (true, is_root())), (Shield::Landlock, (true, true)), (Shield::None, (false, false))];
    for (shield, expected) in shields {
        if !shield.is_there() {
            continue;
        }
        let scene = Scene::new(shield.config()).await;
        let mut events = scene.attacker.subscribe_from(0);
        let started = event(&mut events, "its start", |envelope| match &envelope.event {
            Event::SessionStarted { measures, .. } => Some((measures.undumpable, measures.landlock)),
            _ => None,
        });
        assert_eq!(started.await, expected, "{shield:?}");
        scene.unharmed().await;
    }
}

async fn nothing_is_inherited() {
    for shield in [Shield::Default, Shield::Strict] {
        if !shield.is_there() {
            continue;
        }
        let mut scene = Scene::new(shield.config()).await;
        let mut said = scene.attack("own", "").await;
        said.sort();
        let (descriptors, variables) = said.split_at(3);
        for (number, line) in descriptors.iter().enumerate() {
            assert!(line.starts_with(&format!("descriptor {number}: pipe:")), "{said:?}");
        }
        let ours =
            ["AGENT_PROXY_DEPTH", "AGENT_PROXY_RUN", "AGENT_PROXY_SESSION"].map(|name| format!("variable {name}"));
        assert_eq!((&variables[..3], &variables[3..]), (&ours[..], &["variable PATH".to_owned()][..]));
        assert!(std::env::var_os(SECRET).is_some());
        scene.unharmed().await;
    }
}

async fn abstract_sockets_outside_are_out_of_reach() {
    let name = format!("agent-proxy-attacks-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).expect("an address");
    let _listener = UnixListener::bind_addr(&address).expect("bound");
    let mut scene = Scene::new(Shield::Undumpable.config()).await;
    assert_eq!(scene.attack("connect", &name).await, ["connect: done"]);
    scene.unharmed().await;
    if Shield::Landlock.is_there() {
        let mut scene = Scene::new(Shield::Landlock.config()).await;
        assert_eq!(scene.attack("connect", &name).await, ["connect: EPERM"]);
        scene.unharmed().await;
    }
}

async fn out_of_descriptors() {
    let limits = Limits { open_files: Some(64), on_limit: LimitAction::Warn, ..Limits::default() };
    let mut scene = Scene::new(AgentSessionConfig { limits, ..Shield::Default.config() }).await;
    assert_eq!(scene.attack("descriptors", "").await, ["descriptors 61: EMFILE"]);
    let listed = soon("a list", scene.attacker.processes()).await.expect("listed");
    assert!(listed.iter().any(|info| Some(info.id) == scene.attacker.info().processes.agent_process), "{listed:?}");
    scene.unharmed().await;
}

async fn out_of_pids() {
    if !pids_are_a_namespaces_own() {
        return println!("NOT RUN: kernel.pid_max is the whole machine's before Linux 6.14");
    }
    let few = std::fs::write(PID_MAX, LEAST_PIDS).or_else(|error| {
        // Whoever may not has them from who started this.
        let is_set = std::fs::read_to_string(PID_MAX).is_ok_and(|now| now.trim() == LEAST_PIDS);
        if is_set { Ok(()) } else { Err(error) }
    });
    if let Err(error) = few {
        return println!("NOT RUN: kernel.pid_max of this namespace cannot be set: {error}");
    }
    let status = std::fs::read_to_string("/proc/self/status").expect("readable");
    assert!(is_root() || status.contains("\nCapEff:\t0000000000000000\n"), "not an ordinary user: {status}");
    let mut scene = Scene::new(Shield::Default.config()).await;
    // 40 pids are left to this namespace, and no other: the numbers before them are used up, by threads.
    until("the last of the numbers", || {
        let thread = std::thread::spawn(nix::unistd::gettid).join().expect("no panic");
        (thread.as_raw() >= 260).then_some(())
    });
    let said = scene.attack("pids", "").await;
    let started = said[0].strip_prefix("pids ").and_then(|said| said.split_once(": "));
    let (started, why) = started.expect("it says how many");
    assert!(started.parse::<u32>().expect("a number") <= 41 && why.contains("os error 11"), "{said:?}");
    let listed = soon("a list", scene.attacker.processes()).await.expect("listed");
    assert!(listed.len() > 30, "{listed:?}");
    let receipt = soon("a kill", scene.attacker.kill(KillOptions::NOW)).await.expect("killed");
    assert!(receipt.is_empty() && receipt.processes.len() > 30, "{receipt:?}");
    soon("an answer", scene.bystander.ping()).await.expect("the bystander works on");
    scene.manager.shutdown().await;
}

async fn more_processes_than_allowed() {
    const LIMIT: u64 = 30;
    let limits = Limits { processes: Some(LIMIT), on_limit: LimitAction::KillSession, ..Limits::default() };
    let mut scene = Scene::new(AgentSessionConfig { limits, ..Shield::Default.config() }).await;
    scene.order("pids", "").await;
    let (reason, receipt) = last(&mut scene.events).await;
    assert_eq!(reason, EndReason::LimitExceeded(LimitKind::Processes));
    assert!(receipt.is_empty() && receipt.processes.len() as u64 > LIMIT, "{receipt:?}");
    assert!(system::with_marker(scene.attacker.id().as_str()).is_empty());
    soon("an answer", scene.bystander.ping()).await.expect("the bystander works on");
    scene.manager.shutdown().await;
}

async fn kill_everybody() {
    // Not even root's processes were spared, were this not a namespace of its own.
    assert!(std::fs::read_to_string("/proc/1/cmdline").expect("readable").starts_with("sh\0"), "not apart");
    for shield in [Shield::Landlock, Shield::Strict] {
        if !shield.is_there() {
            continue;
        }
        let (config, seconds) = with_daemon(shield);
        let mut scene = Scene::new(config).await;
        daemon_is_there(&seconds);
        let said = scene.attack("kill-all", "").await;
        until("its own daemon is gone", || system::sleeping(&seconds).is_empty().then_some(()));
        assert_eq!(said.len(), 1, "{said:?}");
        scene.unharmed().await;
    }
}

/// Where nothing holds it back, it ends its host, were that not the first of its namespace, and all supervisors at once. The
/// session's end says why; what the stroke spares, itself, the host ends in the place of all supervisors.
async fn kill_everybody_without_a_shield() {
    assert_eq!(std::process::id(), 1, "not apart");
    let state = tempfile::tempdir().expect("made");
    let builder = || builder().state_dir(state.path().to_owned());
    let (daemon, seconds) = (system::unique_seconds(), system::unique_seconds());
    // Of the shell's own: nobody is left to be asked.
    let script = format!("setsid sleep {daemon} & read line; kill -9 -1; exec sleep {seconds}");
    let command = vec!["/bin/sh".into(), "-c".into(), script];
    let mut scene = Scene::of(builder(), AgentSessionConfig { command, ..Shield::None.config() }).await;
    daemon_is_there(&daemon);
    let (attacker, bystander) = (scene.attacker.info().processes.agent_process.expect("it runs"), scene.other_agent());
    let supervisors = scene.supervisors();
    let (mut others, mut ended) = (scene.bystander.subscribe(), Vec::new());
    scene.order("now", "").await;
    for events in [&mut scene.events, &mut others] {
        let events = all(events).await;
        let Event::SessionEnded { reason, receipt } = &events.last().expect("a last event").event else {
            panic!("{events:?}")
        };
        assert_eq!(*reason, EndReason::ForkServerDied);
        let receipt = receipt.as_ref().expect("a receipt");
        assert!(receipt.is_empty(), "{receipt:?}");
        ended.extend(receipt.processes.iter().map(|entry| entry.id));
    }
    assert!(ended.contains(&attacker), "{ended:?}");
    for session in [&scene.attacker, &scene.bystander] {
        let receipt = soon("an answer", session.kill(KillOptions::NOW)).await.expect("the stored receipt");
        assert!(receipt.is_empty(), "{receipt:?}");
    }
    assert!(system::sleeping(&seconds).is_empty());
    assert!(system::sleeping(&daemon).is_empty() && !system::is_alive(bystander));
    assert!(!supervisors.into_iter().any(system::is_alive));
    soon("the manager's end", scene.manager.shutdown()).await;
    drop(scene.manager);

    let next = soon("the next manager", builder().build()).await.expect("built");
    assert_eq!(next.recovered(), []);
    assert!(system::sleeping(&seconds).is_empty());
    for session in [&scene.attacker, &scene.bystander] {
        assert!(system::with_marker(session.id().as_str()).is_empty());
    }
    soon("the next manager's end", next.shutdown()).await;
}
