//! Managers that do not know of each other: a conversation has one living process, whose ever it is.

use std::path::Path;

use agent_proxy_tests::{
    detach::{self, Host},
    sessions::{self, said, soon},
    system::{self, until},
};
use proxy_manager::{
    AgentSessionConfig, Error, HostDeath, KillOptions, OnMissing, PromptMode, ProxyManager, ResumeFrom, ResumeRequest,
    SessionHandle, SessionState,
};
use tempfile::TempDir;

const HOST: &str = env!("CARGO_BIN_EXE_detach-host");
const CHILD: &str = env!("CARGO_BIN_EXE_proxy-child");
const FAKE: &str = env!("CARGO_BIN_EXE_fake-agent");

/// A manager with a state directory of its own, beside the conversations that all have.
async fn manager(scratch: &TempDir, state: &str) -> ProxyManager {
    built(scratch, state).await.expect("built")
}

async fn built(scratch: &TempDir, state: &str) -> Result<ProxyManager, Error> {
    let state = scratch.path().join(state);
    let kept = detach::kept(FAKE, state.to_str().expect("UTF-8"));
    sessions::builder(CHILD, FAKE).agent(kept).state_dir(state).build().await
}

fn kept() -> AgentSessionConfig {
    AgentSessionConfig { cwd: Some("/".into()), ..AgentSessionConfig::new("kept") }
}

fn resuming(from: ResumeFrom) -> AgentSessionConfig {
    AgentSessionConfig { resume: Some(ResumeRequest { from, fork: false, on_missing: OnMissing::Fail }), ..kept() }
}

fn native(id: &str) -> AgentSessionConfig {
    resuming(ResumeFrom::Native { id: id.to_owned() })
}

/// A session with a conversation that was used; the agent's id of that.
async fn begun(manager: &ProxyManager) -> (SessionHandle, String) {
    let session = manager.start_session(kept()).await.expect("started");
    let mut events = session.subscribe();
    let turn = session.prompt("say hello", PromptMode::Refuse).await.expect("prompted");
    said(&mut events, "hello").await;
    soon("the turn's end", turn.wait()).await.expect("ended");
    let native = session.info().conversation.native_session_id.expect("it has one");
    (session, native)
}

/// `manager` cannot have it, for `session` has: whose process is named.
async fn refused(manager: &ProxyManager, config: AgentSessionConfig, holder: &str) -> u32 {
    let busy = manager.start_session(config).await.expect_err("open");
    assert!(busy.to_string().contains(&format!("session {holder} of another manager (process ")), "{busy}");
    match busy {
        Error::NativeSessionBusy { session, manager: Some(process), .. } if session.as_str() == holder => process,
        busy => panic!("{busy:?}"),
    }
}

#[tokio::test]
async fn a_conversation_of_another_manager_is_refused_until_its_session_is_over() {
    let scratch = tempfile::tempdir().expect("a directory");
    let (one, other) = (manager(&scratch, "one").await, manager(&scratch, "other").await);
    let (first, id) = begun(&one).await;
    // By its name, or whichever the agent takes for the last.
    for config in [native(&id), resuming(ResumeFrom::MostRecent)] {
        assert_eq!(refused(&other, config, first.id().as_str()).await, std::process::id());
    }
    // A copy is another one.
    one.suspend_session(first.id(), KillOptions::NOW).await.expect("suspended");
    let second = other.start_session(native(&id)).await.expect("free");
    // Nor is one gone on with that was suspended.
    let busy = one.resume_session(first.id()).await.expect_err("open");
    assert!(matches!(&busy, Error::NativeSessionBusy { session, .. } if session == second.id()), "{busy}");
    assert!(matches!(first.info().state, SessionState::Suspended { .. }));
    second.kill(KillOptions::NOW).await.expect("killed");
    one.resume_session(first.id()).await.expect("free");
    refused(&other, native(&id), first.id().as_str()).await;
    one.shutdown().await;
    let last = other.start_session(native(&id)).await.expect("free");
    drop(last);
    other.shutdown().await;
}

/// A manager in another process begins a conversation in a session, and is killed. The agent's id of it; host, fork server and proxy.
fn killed(scratch: &Path, config: &AgentSessionConfig) -> (String, Vec<u32>) {
    let mut host = Host::start(HOST, CHILD, FAKE, &scratch.join("one"));
    let proxy = host.session(config);
    let id = config.session_id.as_str();
    host.prompt(id, "say hello");
    let native = host.line("its conversation", |line| {
        let of_it = line["eventStreamId"] == id;
        of_it.then(|| line["payload"]["nativeSessionId"].as_str().map(str::to_owned)).flatten()
    });
    host.line("the turn's end", |line| {
        (line["eventStreamId"] == id && line["type"] == "stream:complete").then_some(())
    });
    let processes = vec![host.pid(), host.fork_server, proxy];
    host.kill();
    (native, processes)
}

#[tokio::test]
async fn a_conversation_of_a_killed_manager_is_free_when_its_processes_are_gone() {
    let scratch = tempfile::tempdir().expect("a directory");
    let config = kept();
    let (id, processes) = killed(scratch.path(), &config);
    let marker = config.session_id.as_str();
    until("they are gone", || {
        let alive = processes.iter().any(|pid| system::is_alive(*pid));
        (!alive && system::with_marker(marker).is_empty()).then_some(())
    });
    let other = manager(&scratch, "other").await;
    other.start_session(native(&id)).await.expect("free");
    other.shutdown().await;
}

#[tokio::test]
async fn a_conversation_that_outlives_its_manager_stays_open() {
    let scratch = tempfile::tempdir().expect("a directory");
    let on_host_death = HostDeath::Detach { fetch_within_ms: 60_000, spool_bytes: 1 << 20 };
    let config = AgentSessionConfig { on_host_death, ..kept() };
    let (id, processes) = killed(scratch.path(), &config);
    let [_, _, proxy] = processes[..] else { panic!("{processes:?}") };
    let other = manager(&scratch, "other").await;
    let holder = config.session_id.as_str();
    assert_eq!(refused(&other, native(&id), holder).await, proxy, "nobody's but its own");
    // Nor has it anybody else when a host that lives has let go of it.
    let next = manager(&scratch, "one").await;
    assert_eq!(next.reattached(), std::slice::from_ref(&config.session_id));
    refused(&other, native(&id), holder).await;
    drop(next);
    let next = soon("the state directory is free", async {
        loop {
            match built(&scratch, "one").await {
                Ok(manager) => return manager,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    })
    .await;
    assert_eq!(refused(&other, native(&id), holder).await, proxy);
    next.kill_session(&config.session_id, KillOptions::NOW).await.expect("killed");
    other.start_session(native(&id)).await.expect("free");
    next.shutdown().await;
    other.shutdown().await;
}
