//! Kills that are not of everything, and what has left the tree.

use agent_proxy_tests::{
    sessions::{builder, event, fake, said, shell, soon},
    system::{self, is_alive, sleeping, unique_seconds, until},
};
use proxy_manager::{
    AbortPolicy, AgentSessionConfig, Containment, Envelope, Error, Event, ExitStatus, KillCause, KillOptions,
    KillScope, ObserverKind, ProcessOutcome, PromptMode, Proof, ProxyManager, ReapedBy, Receipt, SessionHandle, Signal,
    Subscription,
};
use registry::SpawnRequest;

async fn manager() -> ProxyManager {
    builder(env!("CARGO_BIN_EXE_proxy-child"), env!("CARGO_BIN_EXE_fake-agent")).build().await.expect("a manager")
}

/// Waits until `count` processes sleep for `seconds`; their pids.
fn asleep(seconds: &str, count: usize) -> Vec<u32> {
    until(&format!("{count} sleep {seconds}"), || Some(sleeping(seconds)).filter(|pids| pids.len() == count))
}

fn pids(receipt: &Receipt) -> Vec<u32> {
    let mut pids: Vec<_> = receipt.processes.iter().map(|entry| entry.id.pid).collect();
    pids.sort_unstable();
    pids
}

/// What the agent writes after `prefix`, as a line of its own.
async fn line(events: &mut Subscription, prefix: &str) -> String {
    said(events, prefix).await.trim().to_owned()
}

#[tokio::test]
async fn a_tree_is_ended_with_all_below_it_and_nothing_beside_it() {
    let manager = manager().await;
    let (inside, beside) = (unique_seconds(), unique_seconds());
    let script = format!(
        "(sleep {inside} & setsid sleep {inside} & (trap '' TERM; sleep {inside} & wait) & wait) & echo root $!\n\
         sleep {beside} & wait"
    );
    let session = manager.start_session(shell(&script)).await.expect("started");
    let mut events = session.subscribe();
    let root: u32 = line(&mut events, "root ").await.parse().expect("a pid");
    let (members, others) = (asleep(&inside, 3), asleep(&beside, 1));
    let receipt = soon("the kill", session.kill_scope(KillScope::Process { pid: root, tree: true }, KillOptions::NOW))
        .await
        .expect("proven");
    assert_eq!((receipt.cause, receipt.proof), (KillCause::KillProcess, Proof::ProcessGone));
    let named = pids(&receipt);
    assert!(named.contains(&root) && members.iter().all(|pid| named.contains(pid)), "{receipt:?}");
    assert_eq!(named.len(), 5, "the root, its subshell and three sleepers: {receipt:?}");
    assert_eq!((sleeping(&inside), sleeping(&beside)), (vec![], others));
    assert!(soon("the end", session.kill(KillOptions::NOW)).await.expect("proven").is_empty());
    manager.shutdown().await;
}

#[tokio::test]
async fn one_process_of_a_tree_can_be_ended_without_the_rest() {
    let manager = manager().await;
    let seconds = unique_seconds();
    let script = format!("(sleep {seconds} & wait; sleep {seconds} & wait) & echo root $!\nwait");
    let session = manager.start_session(shell(&script)).await.expect("started");
    let mut events = session.subscribe();
    let root: u32 = line(&mut events, "root ").await.parse().expect("a pid");
    let [first] = asleep(&seconds, 1)[..] else { panic!("one sleeps") };
    let receipt =
        soon("the kill", session.kill_scope(KillScope::Process { pid: first, tree: false }, KillOptions::NOW))
            .await
            .expect("proven");
    assert_eq!(pids(&receipt), [first]);
    let second = until("the next one sleeps", || sleeping(&seconds).into_iter().find(|pid| *pid != first));
    assert!(is_alive(root) && is_alive(second));
    manager.shutdown().await;
    assert!(sleeping(&seconds).is_empty());
}

async fn start_in_turn(session: &SessionHandle, script: &str) -> proxy_manager::Turn {
    session.prompt(script, PromptMode::Refuse).await.expect("prompted")
}

#[tokio::test]
async fn an_abort_ends_what_its_turn_started_and_keeps_the_rest() {
    let manager = manager().await;
    let session = manager.start_session(fake()).await.expect("started");
    let mut events = session.subscribe();
    let (before, during) = (unique_seconds(), unique_seconds());
    let turn = start_in_turn(&session, &format!("spawn exec sleep {before}\ndaemon exec sleep {before}")).await;
    soon("the first turn", turn.wait()).await.expect("ended");
    let kept = asleep(&before, 2);
    let script = format!("spawn exec sleep {during}\nsetsid exec sleep {during}\ndaemon exec sleep {during}\nwait");
    let turn = start_in_turn(&session, &script).await;
    said(&mut events, "daemon ").await;
    let started = asleep(&during, 3);
    let receipt = soon("the abort", session.abort(AbortPolicy::KillTurnProcesses)).await.expect("proven");
    let receipt = receipt.expect("a receipt");
    assert_eq!(receipt.cause, KillCause::AbortTurn);
    assert!(started.iter().all(|pid| pids(&receipt).contains(pid)), "{receipt:?}");
    assert!(!kept.iter().any(|pid| pids(&receipt).contains(pid)), "{receipt:?}");
    assert!(sleeping(&during).is_empty());
    assert_eq!(asleep(&before, 2), kept);
    soon("the aborted turn's end", turn.wait()).await.expect("ended");
    let turn = start_in_turn(&session, "say still here").await;
    soon("another turn", turn.wait()).await.expect("the agent lives");
    // Without the policy nothing is ended.
    let turn = start_in_turn(&session, &format!("spawn exec sleep {during}\nwait")).await;
    let left = asleep(&during, 1);
    assert_eq!(soon("the abort", session.abort(AbortPolicy::LeaveProcesses)).await.expect("aborted"), None);
    soon("the turn's end", turn.wait()).await.expect("ended");
    assert_eq!(sleeping(&during), left);
    manager.shutdown().await;
    assert_eq!((sleeping(&before), sleeping(&during)), (vec![], vec![]));
}

#[tokio::test]
async fn an_abort_spares_what_the_next_turn_starts() {
    let manager = manager().await;
    let session = manager.start_session(fake()).await.expect("started");
    let (during, after) = (unique_seconds(), unique_seconds());
    // It lasts until the grace of the abort is over.
    let first = start_in_turn(&session, &format!("spawn trap '' TERM; exec sleep {during}\nwait")).await;
    let stubborn = asleep(&during, 1);
    let next = format!("spawn exec sleep {after}");
    let next = session.prompt(next.as_str(), PromptMode::Queue).await.expect("queued");
    let receipt = soon("the abort", session.abort(AbortPolicy::KillTurnProcesses)).await.expect("proven");
    soon("the first turn's end", first.wait()).await.expect("ended");
    soon("the next turn", next.wait()).await.expect("ended");
    assert_eq!(pids(&receipt.expect("a receipt")), stubborn);
    assert_eq!((sleeping(&during).len(), asleep(&after, 1).len()), (0, 1));
    manager.shutdown().await;
    assert!(sleeping(&after).is_empty());
}

/// Something outside the session's tree carries its marker, as what an outside daemon starts on its behalf may.
#[tokio::test]
async fn what_carries_the_marker_is_ended_wherever_it_hangs() {
    let manager = manager().await;
    let (stray, stranger) = (unique_seconds(), unique_seconds());
    let start = || shell("echo marker $AGENT_PROXY_RUN; exec sleep 1000");
    let session = manager.start_session(start()).await.expect("started");
    let other = manager.start_session(start()).await.expect("started");
    let marker = line(&mut session.subscribe(), "marker ").await;
    let others = line(&mut other.subscribe(), "marker ").await;
    assert!(marker.len() > 30 && marker != others);
    // Children of this test: no descendants of any session.
    let outside = |seconds: &str, marker: &str| {
        let spawned = registry::spawn(SpawnRequest {
            argv: vec!["sleep".into(), seconds.into()],
            env: vec![("AGENT_PROXY_RUN".into(), marker.into())],
            ..SpawnRequest::new("/bin/sleep")
        });
        spawned.expect("started").process
    };
    let (marked, unmarked) = (outside(&stray, &marker), outside(&stranger, &format!("{marker}0")));
    let receipt = soon("the kill", session.kill(KillOptions::NOW)).await.expect("proven");
    assert_eq!((receipt.is_empty(), receipt.unmarked), (true, Some(true)));
    let entry = receipt.processes.iter().find(|entry| entry.id == marked.id()).expect("in the receipt");
    assert!(matches!(entry.outcome, ProcessOutcome::Ended(_) | ProcessOutcome::Gone), "{entry:?}");
    assert!(until("reaped", || marked.try_reap().expect("our child")).to_string().contains("KILL"));
    assert!(is_alive(unmarked.id().pid), "another marker is another session's");
    assert!(soon("a ping", other.ping()).await.is_ok());
    unmarked.signal(Signal::Kill).expect("ours");
    until("reaped", || unmarked.try_reap().expect("our child"));
    manager.shutdown().await;
}

/// Many end at once, and share a look: each has what carries its own marker ended, and none what carries another's.
#[tokio::test]
async fn sessions_that_end_together_each_end_what_carries_their_marker() {
    const SESSIONS: usize = 24;
    let manager = manager().await;
    let seconds = unique_seconds();
    let outside = |marker: &str| {
        let spawned = registry::spawn(SpawnRequest {
            argv: vec!["sleep".into(), seconds.clone().into()],
            env: vec![("AGENT_PROXY_RUN".into(), marker.into())],
            ..SpawnRequest::new("/bin/sleep")
        });
        spawned.expect("started").process
    };
    let (mut sessions, mut strays) = (Vec::new(), Vec::new());
    for _ in 0..=SESSIONS {
        let start = shell("echo marker $AGENT_PROXY_RUN; exec sleep 1000");
        let session = manager.start_session(start).await.expect("started");
        strays.push(outside(&line(&mut session.subscribe(), "marker ").await));
        sessions.push(session);
    }
    let (kept, stranger) = (sessions.pop().expect("one more"), strays.pop().expect("one more"));
    let kills: Vec<_> =
        sessions.into_iter().map(|session| tokio::spawn(async move { session.kill(KillOptions::NOW).await })).collect();
    for (kill, stray) in kills.into_iter().zip(strays) {
        let receipt = soon("a kill", kill).await.expect("no panic").expect("proven");
        assert_eq!((receipt.is_empty(), receipt.unmarked), (true, Some(true)));
        assert!(receipt.processes.iter().any(|entry| entry.id == stray.id()), "{receipt:?}");
        until("reaped", || stray.try_reap().expect("our child"));
    }
    assert!(is_alive(stranger.id().pid), "its session lives");
    soon("the last kill", kept.kill(KillOptions::NOW)).await.expect("proven");
    until("reaped", || stranger.try_reap().expect("our child"));
    manager.shutdown().await;
}

/// Whom its own parent reaps, the proxy finds gone; the kernel tells how it ended.
#[tokio::test]
async fn how_a_process_ended_is_told_though_its_own_parent_reaped_it() {
    let manager = manager().await;
    let seconds = unique_seconds();
    // The shell waits for each, and goes on.
    let script = format!("sh -c 'trap \"exit 7\" TERM; sleep {seconds} & wait'; sleep {seconds}; exec sleep {seconds}");
    let session = manager.start_session(shell(&script)).await.expect("started");
    let observer = event(&mut session.subscribe(), "its start", |envelope| match &envelope.event {
        Event::SessionStarted { measures, .. } => Some(measures.observer),
        _ => None,
    })
    .await;
    if observer != ObserverKind::Connector {
        system::not_run("the end of a process that its own parent reaps: no proc connector here");
        manager.shutdown().await;
        return;
    }
    asleep(&seconds, 1);
    let listed = soon("a list", session.processes()).await.expect("listed");
    let trapping = listed.iter().find(|info| info.args.iter().any(|arg| arg.contains("exit 7")) && !info.tracked);
    let trapping = trapping.expect("it runs").id;
    let options = KillOptions::grace(std::time::Duration::from_secs(10));
    let receipt = soon("a kill", session.kill_scope(KillScope::Process { pid: trapping.pid, tree: false }, options))
        .await
        .expect("proven");
    let [entry] = receipt.processes.as_slice() else { panic!("{receipt:?}") };
    assert_eq!((entry.id, entry.outcome), (trapping, ProcessOutcome::Ended(ExitStatus::Code(7))));
    assert_eq!(entry.reaped_by, Some(ReapedBy::Parent));
    manager.shutdown().await;
}

/// A kill of everything that the session has, asked for while its agent floods.
#[tokio::test]
async fn a_flood_of_events_holds_up_no_kill() {
    let manager = manager().await;
    let session = manager.start_session(shell("exec yes")).await.expect("started");
    let mut events = session.subscribe();
    event(&mut events, "the flood", |envelope| matches!(&envelope.event, Event::Text { .. }).then_some(())).await;
    let receipt = soon("the kill", session.kill(KillOptions::NOW)).await.expect("proven");
    assert!(receipt.is_empty() && receipt.processes.len() == 1, "{receipt:?}");
    manager.shutdown().await;
}

/// Who ends a session in a dead proxy's place never saw what had died until then.
#[tokio::test]
async fn a_receipt_names_what_died_before_the_proxy_did_in_the_middle_of_a_kill() {
    let manager = manager().await;
    let seconds = unique_seconds();
    // SIGTERM ends the sleeper; the shell reaps it, stays, and with it `cat`, until the proxy is dead.
    let script = format!("sleep {seconds} & trap '' TERM; echo sleeper $!; wait $!; cat");
    let session = manager.start_session(shell(&script)).await.expect("started");
    let mut events = session.subscribe();
    let sleeper: u32 = line(&mut events, "sleeper ").await.parse().expect("a pid");
    asleep(&seconds, 1);
    // What is not seen cannot be told.
    soon("a list", session.processes()).await.expect("listed");
    let options = KillOptions::grace(std::time::Duration::from_secs(100));
    let kill = tokio::spawn({
        let session = session.clone();
        async move { session.kill(options).await }
    });
    let is_sleeper = |envelope: &Envelope| match &envelope.event {
        Event::ProcessExited { process, .. } if process.pid == sleeper => Some(*process),
        _ => None,
    };
    let sleeper = event(&mut events, "the sleeper's end", is_sleeper).await;
    signal_proxy(&session, Signal::Kill);
    let receipt = soon("the kill", kill).await.expect("no panic").expect("proven");
    assert!(receipt.is_empty() && matches!(receipt.proof, Proof::QuietRounds(_)), "{receipt:?}");
    assert!(receipt.processes.iter().any(|entry| entry.id == sleeper), "{receipt:#?}");
    let agent = session.info().processes.agent_process.expect("it had one");
    assert!(receipt.processes.iter().any(|entry| entry.id == agent), "{receipt:#?}");
    manager.shutdown().await;
}

/// What ends a session overtakes the kills that are under way.
#[tokio::test]
async fn a_receipt_names_what_died_before_the_agent_did_in_the_middle_of_a_kill() {
    let manager = manager().await;
    let (below, above) = (unique_seconds(), unique_seconds());
    // SIGTERM ends the lower one. The upper one stays until the session ends, which it does when the shell has read a line.
    let script = format!("(sleep {below} & trap '' TERM; exec sleep {above}) & read line");
    let session = manager.start_session(shell(&script)).await.expect("started");
    let mut events = session.subscribe();
    let (below, above) = (asleep(&below, 1)[0], asleep(&above, 1)[0]);
    // What is not seen cannot be told.
    soon("a list", session.processes()).await.expect("listed");
    let kill = tokio::spawn({
        let session = session.clone();
        async move {
            session
                .kill_scope(
                    KillScope::Process { pid: above, tree: true },
                    KillOptions::grace(std::time::Duration::from_secs(100)),
                )
                .await
        }
    });
    let is_over = |envelope: &Envelope| match &envelope.event {
        Event::ProcessExited { process, .. } => (process.pid == below).then_some(()),
        _ => None,
    };
    event(&mut events, "the lower one's end", is_over).await;
    soon("a list", session.processes()).await.expect("listed");
    soon("a line", session.prompt("go", PromptMode::Refuse)).await.expect("taken");
    let receipt = soon("the kill", kill).await.expect("no panic").expect("proven");
    let mut both = [below, above];
    both.sort_unstable();
    assert_eq!(pids(&receipt), both, "{receipt:#?}");
    assert_eq!((receipt.cause, receipt.is_empty()), (KillCause::KillProcess, true), "{receipt:#?}");
    manager.shutdown().await;
}

/// Sends a signal to the proxy of a session.
fn signal_proxy(session: &SessionHandle, signal: Signal) {
    let proxy = session.info().processes.proxy.expect("it has one");
    registry::PidFd::open(proxy).and_then(|proxy| proxy.signal(signal)).expect("signalled");
}

#[tokio::test]
async fn a_part_of_a_session_can_be_ended_though_its_proxy_was_stopped() {
    let manager = manager().await;
    let seconds = unique_seconds();
    let script = format!("sleep {seconds} & setsid sleep {seconds} & wait");
    let session = manager.start_session(shell(&script)).await.expect("started");
    let pids_of_two = asleep(&seconds, 2);
    signal_proxy(&session, Signal::Stop);
    let receipt =
        soon("one", session.kill_scope(KillScope::Process { pid: pids_of_two[0], tree: false }, KillOptions::NOW))
            .await
            .expect("proven");
    assert_eq!(pids(&receipt), [pids_of_two[0]]);
    signal_proxy(&session, Signal::Stop);
    let receipt = soon("all", session.kill_scope(KillScope::AllButAgent, KillOptions::NOW)).await.expect("proven");
    assert!(receipt.is_empty() && pids(&receipt).contains(&pids_of_two[1]), "{receipt:?}");
    assert!(sleeping(&seconds).is_empty());
    manager.shutdown().await;
}

/// What holds a strict session is no process of it, whoever looks.
#[tokio::test]
async fn a_strict_session_whose_proxy_is_stopped_shows_its_own_processes_only() {
    let manager = manager().await;
    let seconds = unique_seconds();
    let config = AgentSessionConfig {
        containment: Some(Containment::Strict),
        ..shell(&format!("setsid sleep {seconds} & exec sleep {seconds}"))
    };
    let session = match manager.start_session(config).await {
        Ok(session) => session,
        Err(error @ Error::ContainmentUnavailable { .. }) => {
            system::not_run(format_args!("a strict session: {error}"));
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let mut both = asleep(&seconds, 2);
    both.sort_unstable();
    let _stopped = system::Stopper::new(session.info().processes.proxy.expect("it has one"));
    let mut listed: Vec<_> =
        soon("the list", session.processes()).await.expect("listed").iter().map(|info| info.id.pid).collect();
    listed.sort_unstable();
    assert_eq!(listed, both);
    let receipt = soon("the kill", session.kill(KillOptions::default())).await.expect("proven");
    assert_eq!((receipt.is_empty(), pids(&receipt)), (true, both));
    manager.shutdown().await;
}
