//! Going on with a conversation, and what is tried when that cannot be had.

use std::{fs, path::Path};

use ipc_protocol::{OnMissing, PromptPart, ResumeFrom, ResumeRequest};

use super::*;

fn resuming(from: ResumeFrom, on_missing: OnMissing) -> AgentSessionConfig {
    AgentSessionConfig {
        resume: Some(ResumeRequest { from, fork: false, on_missing }),
        runtime_context: true,
        ..AgentSessionConfig::new("acp")
    }
}

fn native(id: &str) -> ResumeFrom {
    ResumeFrom::Native { id: id.into() }
}

fn missing() -> WireError {
    WireError::NativeSessionMissing { agent: "acp".into(), id: "n-1".into(), reason: "no such file".into() }
}

impl FakeProxy {
    /// Expects a start, refuses it, and ends.
    async fn refuse(mut self, handle: &SessionHandle, error: WireError) {
        let request = self.hello().await;
        let reason = EndReason::Failed(error.to_string());
        self.send(FromProxy::Failed { request, error }).await;
        self.send(FromProxy::Ended { reason, receipt: Box::new(receipt(handle.id())) }).await;
    }

    pub(crate) async fn start_as(&mut self, native_session_id: &str) {
        let request = self.hello().await;
        self.is_ready(request, Some(native_session_id), true).await;
    }

    /// Expects a prompt of these texts and takes it.
    async fn take_texts(&mut self) -> Vec<String> {
        let Some(ToProxy::Request { request, command: ProxyCommand::Prompt { prompt, .. } }) = self.receive().await
        else {
            panic!("no prompt")
        };
        self.send(FromProxy::Done { request }).await;
        let text = |part| match part {
            PromptPart::Text(text) => text,
            other => panic!("{other:?}"),
        };
        prompt.parts.into_iter().map(text).collect()
    }
}

#[tokio::test]
async fn what_cannot_be_gone_on_with_is_begun_anew_in_the_same_session() {
    let config = resuming(native("n-1"), OnMissing::Inject { history: "User: hi".into() });
    let Starting { handle, ready, proxy, mut fork_server } =
        starting(config, patient(), HistoryLimits::default()).await;
    let queued = handle.prompt("first", PromptMode::Queue).await.expect("queued");
    proxy.refuse(&handle, missing()).await;
    fork_server.gone(handle.id(), guard_receipt(handle.id()));
    let mut proxy = fork_server.fork().await;
    proxy.start_as("n-2").await;
    soon(ready).await.expect("an answer").expect("ready");
    let texts = proxy.take_texts().await;
    assert_eq!(texts.len(), 2, "{texts:?}");
    assert!(texts[0].contains(&format!("session {}", handle.id())), "{texts:?}");
    assert!(texts[0].contains("User: hi") && texts[1] == "first", "{texts:?}");
    proxy.end_turn(1).await;
    soon(queued.wait()).await.expect("ended");
    let (second, texts) = tokio::join!(handle.prompt("second", PromptMode::Refuse), proxy.take_texts());
    assert_eq!(texts, ["second"], "told once");
    second.expect("taken");
    assert_eq!(handle.info().conversation.native_session_id.as_deref(), Some("n-2"));
    let expected = "agent:action:prompt:called@0 session:status@0 session:started@0 session:idle@0 turn:started@1 session:busy@1 \
                    stream:complete@1 session:idle@1 turn:started@2 session:busy@2";
    assert_eq!(kinds(&handle).await.join(" "), expected);
    let status = soon(handle.subscribe_from(1).next()).await.expect("an event");
    assert!(
        matches!(&status.event, Event::SessionStatus { status, detail } if status == "resumeFailed" && detail.contains("no such file")),
        "{status:?}"
    );
}

/// A session of OpenCode that goes on with a conversation, in a directory with a database of this file.
fn with_database(directory: &Path, on_missing: OnMissing, leases: &Arc<ConversationLocks>) -> SessionLaunch {
    fs::create_dir_all(directory.join("opencode")).expect("made");
    fs::write(directory.join("opencode/opencode.db"), "garbage").expect("written");
    let env = [("XDG_DATA_HOME", &*directory.to_string_lossy())].into_iter().collect();
    let config = AgentSessionConfig { agent: "opencode-acp".into(), env, ..resuming(native("n-1"), on_missing) };
    plan(config, leases).expect("valid")
}

impl FakeProxy {
    /// Expects a start, and has the agent end with these words.
    async fn die(mut self, handle: &SessionHandle, words: &str) {
        let request = self.hello().await;
        let error = WireError::AgentDied { reason: format!("exit code 1; its last words: {words}") };
        let exit = ExitStatus::Code(1);
        self.send(FromProxy::Failed { request, error }).await;
        self.send(FromProxy::AgentExited { exit, kept: false }).await;
        let receipt = Box::new(receipt(handle.id()));
        self.send(FromProxy::Ended { reason: EndReason::AgentExited(Some(exit)), receipt }).await;
    }
}

#[tokio::test]
async fn a_broken_database_is_put_aside_where_a_new_conversation_is_wanted() {
    let scratch = tempfile::tempdir().expect("a directory");
    let launch = with_database(scratch.path(), OnMissing::StartAnew, &Arc::default());
    let Starting { handle, ready, proxy, mut fork_server } =
        launched(launch, patient(), HistoryLimits::default()).await;
    proxy.die(&handle, "file is not a database").await;
    fork_server.gone(handle.id(), guard_receipt(handle.id()));
    let mut proxy = fork_server.fork().await;
    let kept = scratch.path().join("opencode/opencode.db.broken-1");
    assert_eq!(fs::read_to_string(&kept).expect("it is kept"), "garbage");
    assert!(!scratch.path().join("opencode/opencode.db").exists());
    proxy.start_as("n-2").await;
    soon(ready).await.expect("an answer").expect("ready");
    let status = soon(handle.subscribe().next()).await.expect("an event");
    let Event::SessionStatus { status, detail } = &status.event else { panic!("{status:?}") };
    assert!(detail.contains("opencode.db is broken: file is not a database"), "{detail}");
    assert!(status == "resumeFailed" && detail.ends_with(&format!("kept as {}", kept.display())), "{status} {detail}");
}

#[tokio::test]
async fn a_second_try_that_fails_is_the_last() {
    let scratch = tempfile::tempdir().expect("a directory");
    let launch = with_database(scratch.path(), OnMissing::StartAnew, &Arc::default());
    let Starting { handle, ready, proxy, mut fork_server } =
        launched(launch, patient(), HistoryLimits::default()).await;
    for proxy in [Some(proxy), None] {
        let proxy = match proxy {
            Some(proxy) => proxy,
            None => fork_server.fork().await,
        };
        proxy.die(&handle, "file is not a database").await;
        fork_server.gone(handle.id(), guard_receipt(handle.id()));
    }
    let failed = soon(ready).await.expect("an answer");
    assert!(matches!(&failed, Err(Error::AgentDied { reason, .. }) if reason.contains("database")), "{failed:?}");
    assert!(!scratch.path().join("opencode/opencode.db.broken-2").exists());
}

#[tokio::test]
async fn a_broken_database_stays_where_nothing_else_is_wanted_or_another_session_has_it_open() {
    for is_shared in [false, true] {
        let scratch = tempfile::tempdir().expect("a directory");
        let leases = Arc::default();
        let anew = || if is_shared { OnMissing::StartAnew } else { OnMissing::Fail };
        let mut neighbour = with_database(scratch.path(), OnMissing::Fail, &leases).conversation;
        neighbour.set_id("n-2").expect("free");
        let neighbour = Some(neighbour).filter(|_| is_shared);
        let launch = with_database(scratch.path(), anew(), &leases);
        let Starting { handle, ready, proxy, fork_server } =
            launched(launch, patient(), HistoryLimits::default()).await;
        proxy.die(&handle, "database disk image is malformed").await;
        match soon(ready).await.expect("an answer") {
            Err(Error::NativeSessionMissing { agent, id, reason }) => {
                assert_eq!((agent.as_str(), id.as_str()), ("opencode-acp", "n-1"));
                assert!(reason.contains("opencode.db is broken: database disk image is malformed"), "{reason}");
                assert_eq!(reason.contains("has it open: end that first"), neighbour.is_some(), "{reason}");
            }
            other => panic!("{other:?}"),
        }
        fork_server.gone(handle.id(), guard_receipt(handle.id()));
        let all = fs::read_dir(scratch.path().join("opencode")).expect("listed");
        assert_eq!(all.count(), 1, "it is as it was");
    }
}

#[tokio::test]
async fn an_agent_that_ends_for_another_reason_is_not_started_again() {
    let scratch = tempfile::tempdir().expect("a directory");
    let launch = with_database(scratch.path(), OnMissing::StartAnew, &Arc::default());
    let Starting { handle, ready, proxy, fork_server } = launched(launch, patient(), HistoryLimits::default()).await;
    proxy.die(&handle, "no such option").await;
    let failed = soon(ready).await.expect("an answer");
    assert!(matches!(&failed, Err(Error::AgentDied { reason, .. }) if reason.contains("no such option")), "{failed:?}");
    fork_server.gone(handle.id(), guard_receipt(handle.id()));
    assert!(scratch.path().join("opencode/opencode.db").exists());
}

#[tokio::test]
async fn without_a_word_about_it_the_start_fails() {
    let config = resuming(native("n-1"), OnMissing::Fail);
    let Starting { handle, ready, proxy, fork_server } = starting(config, patient(), HistoryLimits::default()).await;
    proxy.refuse(&handle, missing()).await;
    assert!(matches!(soon(ready).await, Ok(Err(Error::NativeSessionMissing { .. }))));
    fork_server.gone(handle.id(), guard_receipt(handle.id()));
    soon(handle.kill(KillOptions::NOW)).await.expect("a receipt");
    assert!(matches!(handle.info().state, SessionState::Ended { reason: EndReason::Failed(_), .. }));
}

#[tokio::test]
async fn there_is_no_second_try_beside_what_is_left_of_the_first_or_against_a_kill() {
    for killed in [false, true] {
        let config = resuming(native("n-1"), OnMissing::StartAnew);
        let Starting { handle, ready, proxy, fork_server } =
            starting(config, patient(), HistoryLimits::default()).await;
        proxy.refuse(&handle, missing()).await;
        let left = if killed {
            let caller = handle.clone();
            let kill = tokio::spawn(async move { caller.kill(KillOptions::NOW).await });
            assert!(matches!(soon(ready).await, Ok(Err(Error::Ended { .. }))));
            fork_server.gone(handle.id(), guard_receipt(handle.id()));
            soon(kill).await.expect("no panic").expect("a receipt");
            continue;
        } else {
            Receipt { survivors: vec![AGENT], proof: Proof::None, ..receipt(handle.id()) }
        };
        fork_server.gone(handle.id(), left);
        assert!(matches!(soon(ready).await, Ok(Err(Error::NativeSessionMissing { .. }))));
        assert!(matches!(soon(handle.kill(KillOptions::NOW)).await, Err(Error::Survivors(_))));
    }
}

#[tokio::test]
async fn a_conversation_has_one_living_process() {
    let leases = Arc::new(ConversationLocks::default());
    let new = plan(AgentSessionConfig::new("acp"), &leases).expect("valid");
    let Starting { handle, ready, mut proxy, fork_server: _alive } =
        launched(new, patient(), HistoryLimits::default()).await;
    proxy.start_as("n-1").await;
    soon(ready).await.expect("an answer").expect("ready");
    // Named at the start.
    let busy = plan(resuming(native("n-1"), OnMissing::StartAnew), &leases);
    assert!(matches!(&busy, Err(Error::NativeSessionBusy { session, .. }) if session == handle.id()), "{busy:?}");
    let mut copy = resuming(native("n-1"), OnMissing::Fail);
    copy.resume.as_mut().expect("there").fork = true;
    plan(copy, &leases).expect("a copy is exempt");
    // Known when the agent is ready.
    let recent = plan(resuming(ResumeFrom::MostRecent, OnMissing::StartAnew), &leases).expect("who knows which");
    let Starting { handle: second, ready, mut proxy, fork_server } =
        launched(recent, patient(), HistoryLimits::default()).await;
    proxy.start_as("n-1").await;
    assert!(matches!(soon(ready).await, Ok(Err(Error::NativeSessionBusy { .. }))));
    drop(proxy);
    fork_server.gone(second.id(), guard_receipt(second.id()));
    soon(second.kill(KillOptions::NOW)).await.expect("a receipt");
    // Gone over to later.
    let other = plan(AgentSessionConfig::new("acp"), &leases).expect("valid");
    let Starting { handle: third, ready, mut proxy, fork_server: _alive } =
        launched(other, patient(), HistoryLimits::default()).await;
    proxy.start_as("n-3").await;
    soon(ready).await.expect("an answer").expect("ready");
    proxy.send(FromProxy::NativeSession { id: "n-4".into() }).await;
    round_trip(&third, &mut proxy).await;
    assert_eq!(third.info().conversation.native_session_id.as_deref(), Some("n-4"));
    plan(resuming(native("n-3"), OnMissing::Fail), &leases).expect("left");
    proxy.send(FromProxy::NativeSession { id: "n-1".into() }).await;
    let Some(ToProxy::Request { command: ProxyCommand::Kill { reason: EndReason::Failed(why), .. }, .. }) =
        proxy.receive().await
    else {
        panic!("no shutdown")
    };
    assert!(why.contains("n-1") && why.contains(handle.id().as_str()), "{why}");
}

#[tokio::test]
async fn a_conversation_is_free_when_its_session_is_over() {
    let leases = Arc::new(ConversationLocks::default());
    let new = plan(resuming(native("n-1"), OnMissing::Fail), &leases).expect("free");
    let Starting { handle, ready, mut proxy, fork_server } = launched(new, patient(), HistoryLimits::default()).await;
    proxy.start_as("n-1").await;
    soon(ready).await.expect("an answer").expect("ready");
    assert!(plan(resuming(native("n-1"), OnMissing::Fail), &leases).is_err());
    let caller = handle.clone();
    let kill = tokio::spawn(async move { caller.kill(KillOptions::NOW).await });
    let Some(ToProxy::Request { command: ProxyCommand::Kill { reason, .. }, .. }) = proxy.receive().await else {
        panic!("no shutdown")
    };
    proxy.send(FromProxy::Ended { reason, receipt: Box::new(receipt(handle.id())) }).await;
    drop(proxy);
    fork_server.gone(handle.id(), guard_receipt(handle.id()));
    soon(kill).await.expect("no panic").expect("a receipt");
    plan(resuming(native("n-1"), OnMissing::Fail), &leases).expect("free again");
}

#[tokio::test]
async fn what_takes_no_prompts_is_told_nothing_before_them() {
    let config = AgentSessionConfig { runtime_context: true, ..AgentSessionConfig::new("command") };
    let Starting { ready, mut proxy, fork_server: _alive, .. } =
        starting(config, patient(), HistoryLimits::default()).await;
    proxy.start(false).await;
    assert!(matches!(soon(ready).await, Ok(Err(Error::Unsupported { .. }))));
}
