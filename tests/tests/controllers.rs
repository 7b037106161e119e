//! Limits that the kernel enforces, where the machine hands controllers to cgroups of version 2; and what is left of them
//! when a session lifts its own. `tests/vm/run` has a machine that does.

use agent_proxy_tests::{
    sessions::{self, all, event, fake, soon},
    system,
};
use proxy_manager::{
    AgentSessionConfig, Containment, EndReason, Envelope, Event, KillCause, KillOptions, LimitAction, LimitExceeded,
    LimitForm, LimitKind, Limits, PromptMode, ProxyManager, SessionHandle, Subscription,
};
use registry::CgroupControllers;

const RUNAWAY: &str = env!("CARGO_BIN_EXE_runaway");
const MIB: u64 = 1 << 20;
const MEMORY: u64 = 256 * MIB;
const PROCESSES: u64 = 40;

/// Says what is not run, where the controller is not to be had.
fn has(what: &str, has: impl Fn(CgroupControllers) -> bool) -> bool {
    let own = registry::identify(std::process::id()).expect("alive");
    let why = match registry::ManagerCgroup::create(None, own) {
        Ok(groups) if has(groups.controllers()) => return true,
        Ok(groups) => format!("{} has no {what} controller to hand out", groups.path().display()),
        Err(unavailable) => unavailable.to_string(),
    };
    system::not_run(format_args!("a limit enforced by the {what} controller: {why}"));
    false
}

/// A session in a cgroup with limits.
struct Scene {
    manager: ProxyManager,
    session: SessionHandle,
    events: Subscription,
}

impl Scene {
    async fn new(limits: Limits) -> Self {
        let builder = sessions::builder(env!("CARGO_BIN_EXE_proxy-child"), env!("CARGO_BIN_EXE_fake-agent"));
        let manager = soon("a manager", builder.build()).await.expect("built");
        let config = AgentSessionConfig { limits, containment: Some(Containment::Cgroup), ..fake() };
        let session = soon("a start", manager.start_session(config)).await.expect("started");
        let events = session.subscribe();
        Self { manager, session, events }
    }

    /// The agent starts it, and goes on.
    async fn spawn(&self, script: &str) {
        // The session may end before it is answered.
        let _ = self.session.prompt(format!("spawn {script}"), PromptMode::Refuse).await;
    }

    /// What enforces a limit is the kernel, as the session says at its start.
    async fn enforced(&self, kind: LimitKind) {
        let measures = event(&mut self.session.subscribe(), "its start", |envelope| match &envelope.event {
            Event::SessionStarted { measures, .. } => Some((**measures).clone()),
            _ => None,
        })
        .await;
        assert!(measures.limits.iter().any(|it| it.limit == kind && it.form == LimitForm::Cgroup), "{measures:?}");
    }

    async fn exceeded(&mut self) -> LimitExceeded {
        event(&mut self.events, "limit:exceeded", limit_exceeded).await
    }

    /// Its cgroup's directory.
    async fn ended_for(mut self, kind: LimitKind) {
        let rest = all(&mut self.events).await;
        let end = &rest.last().expect("an end").event;
        let Event::SessionEnded { reason, receipt: Some(receipt) } = end else { panic!("{end:?}") };
        assert_eq!((reason, receipt.cause), (&EndReason::LimitExceeded(kind), KillCause::Limit));
        assert!(receipt.is_empty(), "{receipt:?}");
        assert!(rest.iter().all(|envelope| limit_exceeded(envelope).is_none()), "said once: {rest:#?}");
        self.manager.shutdown().await;
    }

    async fn goes_on(self) {
        let turn = self.session.prompt("say still here", PromptMode::Queue).await.expect("prompted");
        soon("an answer", turn.wait()).await.expect("answered");
        assert!(soon("a kill", self.session.kill(KillOptions::NOW)).await.expect("killed").is_empty());
        self.manager.shutdown().await;
    }
}

fn limit_exceeded(envelope: &Envelope) -> Option<LimitExceeded> {
    match &envelope.event {
        Event::LimitExceeded(exceeded) => Some(**exceeded),
        _ => None,
    }
}

#[tokio::test]
async fn memory() {
    if !has("memory", |controllers| controllers.memory) {
        return;
    }
    for action in [LimitAction::KillProcess, LimitAction::KillSession] {
        let limits = Limits { memory_bytes: Some(MEMORY), on_limit: action, ..Limits::default() };
        let mut scene = Scene::new(limits).await;
        scene.enforced(LimitKind::Memory).await;
        scene.spawn(&format!("exec {RUNAWAY} memory /dev/null 2048")).await;
        let exceeded = scene.exceeded().await;
        assert_eq!((exceeded.limit, exceeded.value, exceeded.measured), (LimitKind::Memory, MEMORY, MEMORY));
        assert_eq!((exceeded.form, exceeded.action), (LimitForm::Cgroup, action));
        match action {
            LimitAction::KillSession => scene.ended_for(LimitKind::Memory).await,
            // The kernel ended the one that takes most.
            _ => scene.goes_on().await,
        }
    }
}

#[tokio::test]
async fn processes() {
    if !has("pids", |controllers| controllers.pids) {
        return;
    }
    let limits = Limits { processes: Some(PROCESSES), ..Limits::default() };
    let mut scene = Scene::new(limits).await;
    scene.enforced(LimitKind::Processes).await;
    scene.spawn(&format!("for i in $(seq {}); do sleep 1000 & done; wait", 2 * PROCESSES)).await;
    let exceeded = scene.exceeded().await;
    assert_eq!((exceeded.limit, exceeded.value, exceeded.measured), (LimitKind::Processes, PROCESSES, PROCESSES));
    assert_eq!(exceeded.form, LimitForm::Cgroup);
    scene.ended_for(LimitKind::Processes).await;
}

#[tokio::test]
async fn cpu() {
    const LIMIT: u64 = 20;
    if !has("cpu", |controllers| controllers.cpu) {
        return;
    }
    let limits = Limits { cpu_percent: Some(LIMIT), ..Limits::default() };
    let mut scene = Scene::new(limits).await;
    scene.enforced(LimitKind::CpuPercent).await;
    scene.spawn(&format!("exec {RUNAWAY} cpu")).await;
    let exceeded = scene.exceeded().await;
    assert_eq!((exceeded.limit, exceeded.value, exceeded.form), (LimitKind::CpuPercent, LIMIT, LimitForm::Cgroup));
    // Held at it by the kernel: it wanted more, and had no more than the slack of a period.
    assert!((LIMIT + 1..3 * LIMIT).contains(&exceeded.measured), "{exceeded:?}");
    scene.ended_for(LimitKind::CpuPercent).await;
}

/// As root can: the files of its own cgroup are its to write.
#[tokio::test]
async fn what_a_session_lifts_is_kept_all_the_same() {
    if !has("memory", |controllers| controllers.memory && controllers.pids) {
        return;
    }
    let limits = Limits { memory_bytes: Some(MEMORY), processes: Some(PROCESSES), ..Limits::default() };
    for (kind, file, rest) in [
        (LimitKind::Memory, "memory.max", format!("exec {RUNAWAY} memory /dev/null 2048")),
        (LimitKind::Processes, "pids.max", format!("for i in $(seq {}); do sleep 1000 & done; wait", 2 * PROCESSES)),
    ] {
        let mut scene = Scene::new(limits.clone()).await;
        scene.enforced(kind).await;
        // It sees its own group in the place of the hierarchy.
        scene.spawn(&format!("echo max >/sys/fs/cgroup/{file} && {rest}")).await;
        let exceeded = scene.exceeded().await;
        assert_eq!((exceeded.limit, exceeded.form), (kind, LimitForm::Watchdog));
        assert!(exceeded.measured > exceeded.value, "{exceeded:?}");
        scene.ended_for(kind).await;
    }
}
