//! Work that threads do for a session: the runtime, which has one thread here, goes on while the disk hangs.

use std::path::{Path, PathBuf};

use super::{effects::process, *};
use crate::{
    conversation_locks::SharedLocks,
    launch::{ConversationOrigin, OpenConversation},
    state::{BootNamespace, JournalHeader, SessionJournal, StateDir},
};

/// Time in which what is not held back arrives.
const SHORT: Duration = Duration::from_millis(50);

/// A session with a journal in `scratch`.
fn recorded(scratch: &tempfile::TempDir) -> (SessionLaunch, StateDir) {
    let state = StateDir::open(scratch.path(), me()).expect("a state directory");
    let config = AgentSessionConfig { lifecycle: ipc_protocol::Lifecycle::default(), ..AgentSessionConfig::new("acp") };
    let mut launch = plan(config, &Arc::default()).expect("valid");
    let header = JournalHeader {
        session: launch.id().clone(),
        marker: "marker".to_owned(),
        place: BootNamespace::default(),
        since: 0,
        strict: false,
        host: HOST,
        fork_server: PROXY,
        cgroup: None,
        container: None,
    };
    launch.journal = Some(SessionJournal::new(Some(state.sessions.clone()), header));
    (launch, state)
}

fn me() -> ProcessId {
    registry::identify(std::process::id()).expect("alive")
}

fn journal(scratch: &tempfile::TempDir) -> Option<String> {
    let files = std::fs::read_dir(scratch.path().join("sessions")).expect("listed");
    let mut texts = files.map(|file| std::fs::read_to_string(file.expect("listed").path()).expect("readable"));
    texts.next()
}

/// Kills the session, whose proxy is told so, and waits for the receipt.
async fn kill(handle: &SessionHandle, proxy: FakeProxy, fork_server: FakeForkServer) {
    let id = handle.id().clone();
    let (killed, reason) = tokio::join!(handle.kill(KillOptions::NOW), end(proxy, fork_server, &id));
    assert_eq!(reason, EndReason::Killed);
    assert!(killed.expect("a receipt").is_empty());
    assert!(matches!(handle.info().state, SessionState::Ended { .. }));
}

/// A session whose journal cannot be written until somebody reads from the pipe that is in its place.
async fn hanging(scratch: &tempfile::TempDir) -> (SessionHandle, Ready, FakeForkServer, PathBuf) {
    let (launch, _state) = recorded(scratch);
    let draft = scratch.path().join(format!("sessions/{}.journal.draft", launch.id()));
    nix::unistd::mkfifo(&draft, nix::sys::stat::Mode::S_IRWXU).expect("made");
    let (handle, ready, mut fork_server) = begun_in(launch, patient(), &StreamContext::default());
    assert!(timeout(SHORT, fork_server.next()).await.is_err(), "nothing is forked");
    (handle, ready, fork_server, draft)
}

/// Lets the disk go on. Returns what is written.
fn reading(draft: &Path) -> tokio::task::JoinHandle<String> {
    let reader = std::fs::File::open(draft).expect("it is waited for");
    tokio::task::spawn_blocking(move || std::io::read_to_string(reader).expect("text"))
}

async fn is_removed(scratch: &tempfile::TempDir) {
    while scratch.path().join("sessions").read_dir().expect("listed").next().is_some() {
        soon(tokio::time::sleep(Duration::from_millis(5))).await;
    }
}

#[tokio::test]
async fn no_proxy_is_forked_before_the_journal_is_written() {
    let scratch = tempfile::tempdir().expect("a directory");
    let (handle, ready, mut fork_server, draft) = hanging(&scratch).await;
    let text = reading(&draft);
    let mut proxy = fork_server.fork().await;
    proxy.start(true).await;
    soon(ready).await.expect("an answer").expect("ready");
    kill(&handle, proxy, fork_server).await;
    soon(handle.session().wait_settled()).await.expect("settled");
    assert!(soon(text).await.expect("no panic").contains("marker=marker"));
    is_removed(&scratch).await;
}

#[tokio::test]
async fn a_kill_does_not_wait_for_the_journal_and_nothing_is_started() {
    let scratch = tempfile::tempdir().expect("a directory");
    let (handle, ready, mut fork_server, draft) = hanging(&scratch).await;
    let killing = async {
        let mut proxy = fork_server.fork().await;
        let hello = proxy.receive().await;
        assert!(matches!(hello, Some(ToProxy::Hello(_))), "{hello:?}");
        // The kill is next, and no start before it.
        end(proxy, fork_server, handle.id()).await
    };
    let (killed, reason) = tokio::join!(soon(handle.kill(KillOptions::NOW)), killing);
    assert_eq!((reason, killed.expect("a receipt").is_empty()), (EndReason::Killed, true));
    assert!(soon(ready).await.expect("an answer").is_err());
    assert!(soon(reading(&draft)).await.expect("no panic").contains("marker=marker"));
    is_removed(&scratch).await;
}

#[tokio::test]
async fn a_proxy_gets_no_prompt_before_the_journal_has_its_processes_but_kills_and_pings() {
    for is_killed in [false, true] {
        let scratch = tempfile::tempdir().expect("a directory");
        let (launch, state) = recorded(&scratch);
        let Starting { handle, ready, mut proxy, fork_server } =
            launched(launch, patient(), HistoryLimits::default()).await;
        proxy.start(true).await;
        soon(ready).await.expect("an answer").expect("ready");
        round_trip(&handle, &mut proxy).await;
        while !journal(&scratch).expect("there").contains(&AGENT.to_string()) {
            soon(tokio::time::sleep(Duration::from_millis(5))).await;
        }
        let hangs = state.sessions.hang();
        let event = Event::ProcessSpawned(Box::new(process(TOOL)));
        proxy.send(FromProxy::Event { turn: 0, event }).await;
        // The session has the event once its pong is there.
        round_trip(&handle, &mut proxy).await;
        round_trip(&handle, &mut proxy).await;
        let _turn = soon(handle.prompt("go", PromptMode::Queue)).await.expect("queued");
        assert!(timeout(SHORT, proxy.next()).await.is_err(), "the prompt is held back");
        assert!(!journal(&scratch).expect("there").contains(&TOOL.to_string()));
        if is_killed {
            kill(&handle, proxy, fork_server).await;
            drop(hangs);
            continue;
        }
        drop(hangs);
        proxy.take_prompt("go").await;
        assert!(journal(&scratch).expect("there").contains(&TOOL.to_string()));
        kill(&handle, proxy, fork_server).await;
    }
}

#[tokio::test]
async fn a_lease_is_waited_for_and_nothing_but_the_proxy_s_messages_waits_with_it() {
    for is_killed in [false, true] {
        let scratch = tempfile::tempdir().expect("a directory");
        let claims = SharedLocks::within(scratch.path().join("claims"), me(), me());
        let leases = Arc::new(ConversationLocks::new(Some(claims)));
        let config =
            AgentSessionConfig { lifecycle: ipc_protocol::Lifecycle::default(), ..AgentSessionConfig::new("acp") };
        let mut launch = plan(config, &leases).expect("valid");
        let (family, store) = ("acp".to_owned(), Some("/h".into()));
        launch.conversation = OpenConversation::new(
            leases,
            family,
            store,
            "acp".to_owned(),
            launch.id().clone(),
            ConversationOrigin::Existing,
        );
        let Starting { handle, mut ready, mut proxy, fork_server } =
            launched(launch, patient(), HistoryLimits::default()).await;
        let hangs = SharedLocks::hang();
        let request = proxy.hello().await;
        proxy.is_ready(request, Some("n-1"), true).await;
        let event = Event::SessionStatus { status: "later".to_owned(), detail: String::new() };
        proxy.send(FromProxy::Event { turn: 0, event }).await;
        assert!(timeout(SHORT, &mut ready).await.is_err(), "it is not ready without its conversation");
        if is_killed {
            kill(&handle, proxy, fork_server).await;
            assert!(soon(ready).await.expect("an answer").is_err());
            drop(hangs);
            continue;
        }
        drop(hangs);
        soon(ready).await.expect("an answer").expect("ready");
        round_trip(&handle, &mut proxy).await;
        assert_eq!(soon(kinds(&handle)).await, ["session:started@0", "session:idle@0", "session:status@0"]);
        kill(&handle, proxy, fork_server).await;
    }
}

/// A session whose agent resumed a conversation, for each further one of which the lease is taken in a thread.
async fn resumed(scratch: &tempfile::TempDir, deadlines: Deadlines) -> Running {
    let claims = SharedLocks::within(scratch.path().join("claims"), me(), me());
    let leases = Arc::new(ConversationLocks::new(Some(claims)));
    let config = AgentSessionConfig { lifecycle: ipc_protocol::Lifecycle::default(), ..AgentSessionConfig::new("acp") };
    let mut launch = plan(config, &leases).expect("valid");
    let (family, store) = ("acp".to_owned(), Some("/h".into()));
    let (agent, id, origin) = ("acp".to_owned(), launch.id().clone(), ConversationOrigin::Existing);
    launch.conversation = OpenConversation::new(leases, family, store, agent, id, origin);
    let Starting { handle, ready, mut proxy, fork_server } =
        launched(launch, deadlines, HistoryLimits::default()).await;
    let request = proxy.hello().await;
    proxy.is_ready(request, Some("n-1"), true).await;
    soon(ready).await.expect("an answer").expect("ready");
    Running { handle, proxy, fork_server }
}

#[tokio::test]
async fn what_waited_for_a_lease_is_answered_when_nothing_else_comes() {
    let scratch = tempfile::tempdir().expect("a directory");
    let Running { handle, mut proxy, fork_server } = resumed(&scratch, patient()).await;
    let (turn, number) = tokio::join!(handle.prompt("go", PromptMode::Refuse), proxy.take_prompt("go"));
    let turn = turn.expect("taken");
    let hangs = SharedLocks::hang();
    proxy.send(FromProxy::NativeSession { id: "n-2".to_owned() }).await;
    proxy.end_turn(number).await;
    let mut ended = std::pin::pin!(turn.wait());
    assert!(timeout(SHORT, &mut ended).await.is_err(), "it is read behind the lease");
    drop(hangs);
    soon(ended).await.expect("ended");
    kill(&handle, proxy, fork_server).await;
}

#[tokio::test]
async fn a_lease_that_hangs_ends_the_session_and_its_silence_is_not_the_proxy_s() {
    let scratch = tempfile::tempdir().expect("a directory");
    let health = crate::deadlines::HealthPolicy { interval: Duration::from_millis(50), misses: 1, ends: true };
    let deadlines = Deadlines { control: Duration::from_millis(500), health: Some(health), ..patient() };
    let Running { handle, mut proxy, fork_server } = resumed(&scratch, deadlines).await;
    let hangs = SharedLocks::hang();
    proxy.send(FromProxy::NativeSession { id: "n-2".to_owned() }).await;
    let reason = loop {
        match proxy.receive().await {
            Some(ToProxy::Request { request, command: ProxyCommand::Ping }) => {
                proxy.send(FromProxy::Done { request }).await;
            }
            Some(ToProxy::Request { command: ProxyCommand::Kill { reason, .. }, .. }) => break reason,
            other => panic!("no kill: {other:?}"),
        }
    };
    drop(hangs);
    let text = reason.to_string();
    assert!(matches!(reason, EndReason::Failed(_)) && text.contains("leasing a conversation"), "{text}");
    proxy.send(FromProxy::Ended { reason, receipt: Box::new(receipt(handle.id())) }).await;
    drop(proxy);
    fork_server.gone(handle.id(), guard_receipt(handle.id()));
    soon(handle.session().wait_settled()).await.expect("settled");
}
