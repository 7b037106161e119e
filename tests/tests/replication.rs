//! Sessions of a fleet: managers with a replicated log that is played here, in memory. What nobody has acknowledged nobody sees; a
//! session goes from one manager to another, and its stream goes on; who has lost it shows nothing more and leaves nothing at work.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use agent_proxy_tests::{
    sessions::{self, event, said, soon},
    system,
};
use proxy_manager::{
    AgentSessionConfig, AgentSpec, Envelope, Error, Event, Json, KillOptions, Lifecycle, PromptMode, ProxyManager,
    SessionHandle, SessionId, SessionState, Subscription,
    config::Home,
    events::FeedStart,
    replication::{
        ClaimError, ClaimFuture, ClaimPurpose, Epoch, Replication, Replicator, SessionExport, TakeOver,
        UnavailablePolicy,
    },
};
use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    sync::{OwnedRwLockWriteGuard, RwLock, watch},
    task::JoinHandle,
};

const FAKE: &str = env!("CARGO_BIN_EXE_fake-agent");
const CHILD: &str = env!("CARGO_BIN_EXE_proxy-child");

/// The replicated log, and who owns what.
#[derive(Default)]
struct Fleet(Mutex<HashMap<SessionId, FleetStream>>);

#[derive(Clone, Debug, Default)]
struct FleetStream {
    owner: String,
    epoch: u64,
    /// Its events, as they were shipped, each with the epoch under which that was.
    lines: Vec<(u64, Value)>,
    tail: u64,
}

impl Fleet {
    fn streams(&self) -> MutexGuard<'_, HashMap<SessionId, FleetStream>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stream(&self, session: &SessionId) -> FleetStream {
        self.streams().get(session).cloned().unwrap_or_default()
    }

    /// Gives a session to a node: its new epoch, and where its stream ends.
    fn give(&self, session: &SessionId, node: &str) -> (Epoch, u64) {
        let mut streams = self.streams();
        let stream = streams.get_mut(session).expect("claimed");
        node.clone_into(&mut stream.owner);
        stream.epoch += 1;
        (Epoch(stream.epoch), stream.tail)
    }

    /// Appends what a node ships. `Err` if another one has the session.
    fn publish(&self, session: &SessionId, Epoch(epoch): Epoch, first: u64, last: u64, lines: &[u8]) -> Result<(), ()> {
        let mut streams = self.streams();
        let stream = streams.get_mut(session).expect("claimed");
        if epoch < stream.epoch {
            return Err(());
        }
        assert_eq!(first, stream.tail + 1, "a node ships in order, once");
        let text = std::str::from_utf8(lines).expect("text");
        stream.lines.extend(text.lines().map(|line| (epoch, serde_json::from_str(line).expect("JSON"))));
        stream.tail = last;
        Ok(())
    }
}

/// A node's side of the fleet.
struct Node {
    name: &'static str,
    fleet: Arc<Fleet>,
    /// Sessions with something to ship, and a count that grows with each commit.
    dirty: Mutex<BTreeSet<SessionId>>,
    commits: watch::Sender<u64>,
    /// Shared while something is shipped; who has it alone pauses that.
    shipping: Arc<RwLock<()>>,
    turns: Mutex<Vec<SessionId>>,
    forgotten: Mutex<Vec<SessionId>>,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Replicator for Node {
    fn claim<'a>(&'a self, session: &'a SessionId, purpose: ClaimPurpose) -> ClaimFuture<'a> {
        let mut streams = self.fleet.streams();
        let known = streams.get(session).map(|stream| (stream.owner.clone(), stream.epoch));
        let claimed = match (purpose, known) {
            (ClaimPurpose::Resume, Some((owner, epoch))) if owner == self.name => Ok(Epoch(epoch)),
            (_, Some((owner, _))) => Err(ClaimError::Owned { owner }),
            (_, None) => {
                let stream = FleetStream { owner: self.name.to_owned(), epoch: 1, ..FleetStream::default() };
                streams.insert(session.clone(), stream);
                Ok(Epoch(1))
            }
        };
        Box::pin(std::future::ready(claimed))
    }

    fn committed(&self, session: &SessionId, _last: u64) {
        self.dirty.lock().expect("not poisoned").insert(session.clone());
        self.commits.send_modify(|commits| *commits += 1);
    }

    fn turn_ended(&self, session: &SessionId) {
        self.turns.lock().expect("not poisoned").push(session.clone());
    }

    fn forgotten(&self, session: &SessionId) {
        self.forgotten.lock().expect("not poisoned").push(session.clone());
        self.fleet.streams().remove(session);
    }
}

/// A manager in the fleet.
struct Place {
    manager: ProxyManager,
    node: Arc<Node>,
    shipper: JoinHandle<()>,
    scratch: TempDir,
}

impl Place {
    async fn new(name: &'static str, fleet: &Arc<Fleet>) -> Self {
        Self::with(name, fleet, |replication| replication).await
    }

    async fn with(name: &'static str, fleet: &Arc<Fleet>, adapt: impl FnOnce(Replication) -> Replication) -> Self {
        let scratch = tempfile::tempdir().expect("a directory");
        let node = Arc::new(Node {
            name,
            fleet: fleet.clone(),
            dirty: Mutex::default(),
            commits: watch::Sender::new(0),
            shipping: Arc::default(),
            turns: Mutex::default(),
            forgotten: Mutex::default(),
        });
        let manager = build(&scratch, adapt(Replication::new(node.clone()))).await;
        let shipper = tokio::spawn(ship(manager.clone(), node.clone()));
        Self { manager, node, shipper, scratch }
    }

    /// Pauses the shipping until this is dropped. Nothing is on its way then.
    async fn pause(&self) -> OwnedRwLockWriteGuard<()> {
        self.node.shipping.clone().write_owned().await
    }

    /// Offset of the last acknowledged event.
    fn shown(&self, session: &SessionId) -> u64 {
        self.manager.replicated_stream(session).expect("replicated").acknowledged
    }

    /// A session in a home of its own, that keeps its conversation.
    async fn start(&self) -> SessionHandle {
        self.start_with(Lifecycle::default()).await
    }

    async fn start_with(&self, lifecycle: Lifecycle) -> SessionHandle {
        let kept = AgentSessionConfig::new("kept");
        let config = AgentSessionConfig { cwd: Some("/".into()), home: Some(Home::Own), lifecycle, ..kept };
        self.manager.start_session(config).await.expect("started")
    }

    async fn ask(&self, session: &SessionId, prompt: &str) -> String {
        let from = self.manager.session(session).expect("known").info().last_offset;
        let mut events = self.manager.subscribe_from(session, from).expect("known");
        let turn = self.manager.send_prompt(session, prompt, PromptMode::Refuse).await.expect("prompted");
        let answer = said(&mut events, "").await.trim().to_owned();
        soon("the turn's end", turn.wait()).await.expect("ended");
        answer
    }

    /// Waits until the log has an event, shown or not, that nobody has acknowledged.
    async fn committed(&self, session: &SessionId, kind: &str) {
        let mut commits = self.node.commits.subscribe();
        soon(kind, async {
            loop {
                commits.borrow_and_update();
                if self.unacknowledged(session).await.iter().any(|line| line["type"] == kind) {
                    return;
                }
                commits.changed().await.expect("the node is there");
            }
        })
        .await;
    }

    async fn unacknowledged(&self, session: &SessionId) -> Vec<Value> {
        let events = self.manager.read_unacknowledged(session, 10_000, 1 << 24).await.expect("read");
        let text = String::from_utf8(events.lines).expect("text");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    /// Waits until all of a session is acknowledged.
    async fn shipped(&self, session: &SessionId) {
        soon("all is shipped", async {
            loop {
                let stream = self.manager.replicated_stream(session).expect("replicated");
                if stream.acknowledged == stream.last {
                    return;
                }
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    async fn end(self) {
        self.manager.shutdown().await;
        self.shipper.abort();
    }
}

async fn build(scratch: &TempDir, replication: Replication) -> ProxyManager {
    let mut kept = AgentSpec::new("kept", "acp", &[FAKE, "--store", "chats"]);
    kept.session_config.session_dir_template = "{home}/chats".to_owned();
    let builder = sessions::builder(CHILD, FAKE).agent(kept).state_dir(scratch.path().join("state"));
    builder.replication(replication).build().await.expect("built")
}

/// Ships what is committed, for as long as the manager is there.
async fn ship(manager: ProxyManager, node: Arc<Node>) {
    let mut commits = node.commits.subscribe();
    for stream in manager.replicated_streams() {
        node.dirty.lock().expect("not poisoned").insert(stream.session);
    }
    loop {
        commits.borrow_and_update();
        let dirty = std::mem::take(&mut *node.dirty.lock().expect("not poisoned"));
        let mut is_idle = dirty.is_empty();
        for session in dirty {
            let _pause = node.shipping.read().await;
            is_idle |= !ship_one(&manager, &node, &session).await;
        }
        if is_idle && commits.changed().await.is_err() {
            return;
        }
    }
}

/// Ships the next events of a session, in small messages. Returns false if there is nothing more.
async fn ship_one(manager: &ProxyManager, node: &Node, session: &SessionId) -> bool {
    let Ok(next) = manager.read_unacknowledged(session, 3, 1 << 20).await else { return false };
    if next.events == 0 {
        return false;
    }
    node.dirty.lock().expect("not poisoned").insert(session.clone());
    match node.fleet.publish(session, next.epoch, next.first, next.last, &next.lines) {
        Ok(()) => manager.acknowledge(session, next.last).await.is_ok(),
        Err(()) => {
            node.dirty.lock().expect("not poisoned").remove(session);
            let (manager, session) = (manager.clone(), session.clone());
            tokio::spawn(async move { manager.fence(&session).await });
            false
        }
    }
}

/// What a subscription has now, without a wait.
async fn now(events: &mut Subscription) -> Option<Arc<Envelope>> {
    tokio::time::timeout(Duration::ZERO, events.next()).await.ok().flatten()
}

/// Waits until a process sleeps for so many seconds, or none does.
async fn sleeping(seconds: &str, is_there: bool) {
    soon("a process begins or ends", async {
        while system::sleeping(seconds).is_empty() == is_there {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// The fleet's log of a session has each offset once, and its epochs do not go back.
fn is_whole(fleet: &Fleet, session: &SessionId) -> Vec<Value> {
    let stream = fleet.stream(session);
    let offset =
        |line: &Value| line["offset"].as_str().and_then(|offset| offset.parse::<u64>().ok()).expect("an offset");
    let offsets: Vec<u64> = stream.lines.iter().map(|(_, line)| offset(line)).collect();
    assert_eq!(offsets, (1..=stream.tail).collect::<Vec<_>>());
    assert!(stream.lines.is_sorted_by_key(|(epoch, _)| *epoch), "{:?}", stream.lines);
    stream.lines.into_iter().map(|(_, line)| line).collect()
}

#[tokio::test]
async fn nothing_is_seen_or_answered_before_the_fleet_has_it() {
    let fleet = Arc::new(Fleet::default());
    let place = Place::new("a", &fleet).await;
    let session = place.start().await;
    let id = session.id().clone();
    place.shipped(&id).await;
    let pause = place.pause().await;
    let shown = place.shown(&id);
    let mut feed = place.manager.follow_all(FeedStart::Latest).await.expect("a feed");
    let mut events = place.manager.subscribe_from(&id, shown).expect("known");
    let prompt = tokio::spawn({
        let session = session.clone();
        async move { session.prompt("say hello", PromptMode::Refuse).await }
    });
    place.committed(&id, "turn:started").await;
    assert!(!prompt.is_finished(), "its prompt is not in the fleet's log");
    assert_eq!(now(&mut events).await, None, "after {shown}");
    let beyond = place.manager.read_all(feed.position(), 100).await.expect("read");
    assert!(beyond.is_empty(), "{beyond:?}");
    assert_eq!((session.info().last_offset, place.manager.record(&id).expect("known").last_offset), (shown, shown));
    // Not even once the agent has answered.
    place.committed(&id, "stream:complete").await;
    assert!(!prompt.is_finished() && now(&mut events).await.is_none());
    drop(pause);
    let turn = soon("the answer", prompt).await.expect("no panic").expect("prompted");
    assert_eq!(said(&mut events, "").await.trim(), "hello");
    soon("the turn's end", turn.wait()).await.expect("ended");
    // The fleet's log is what readers here have seen; the feed has it too.
    let in_fleet = is_whole(&fleet, &id);
    let started = in_fleet.iter().filter(|line| line["type"] == "turn:started").count();
    assert_eq!(started, 1);
    let next = soon("the feed", feed.next_page(100)).await.expect("read");
    assert_eq!(next.first().map(|(_, envelope)| envelope.offset), Some(shown + 1));
    assert!(place.node.turns.lock().expect("not poisoned").contains(&id));
    place.manager.kill_session(&id, KillOptions::NOW).await.expect("killed");
    place.shipped(&id).await;
    assert_eq!(is_whole(&fleet, &id).last().expect("some")["type"], "session:ended");
    place.manager.delete_session(&id).await.expect("deleted");
    assert_eq!(*place.node.forgotten.lock().expect("not poisoned"), [id]);
    place.end().await;
}

#[tokio::test]
async fn what_was_not_acknowledged_is_shipped_after_a_restart_and_not_seen_before() {
    let fleet = Arc::new(Fleet::default());
    let mut place = Place::new("a", &fleet).await;
    let session = place.start().await;
    let id = session.id().clone();
    place.shipped(&id).await;
    let pause = place.pause().await;
    let shown = place.shown(&id);
    let append = place.manager.append_event(&id, "test:x", 1, Json::null());
    let suspend = async {
        place.committed(&id, "test:x").await;
        place.manager.suspend_session(&id, KillOptions::NOW).await
    };
    let (appended, suspended) = tokio::join!(append, suspend);
    // Nobody has the event: who waits for it is told that this takes too long, and the session is suspended all the same.
    assert!(appended.is_err(), "{appended:?}");
    assert!(matches!(suspended, Err(Error::Deadline { .. })), "{suspended:?}");
    assert!(matches!(session.info().state, SessionState::Suspended { .. }));
    place.manager.shutdown().await;
    place.shipper.abort();
    drop(session);
    place.manager = build(&place.scratch, Replication::new(place.node.clone())).await;
    let stream = place.manager.replicated_stream(&id).expect("replicated");
    assert!(stream.epoch == Epoch(1) && stream.acknowledged == shown && stream.last > shown, "{stream:?}");
    let mut events = place.manager.subscribe_from(&id, shown).expect("known");
    assert!(now(&mut events).await.is_none());
    place.shipper = tokio::spawn(ship(place.manager.clone(), place.node.clone()));
    drop(pause);
    event(&mut events, "a suspension", |envelope| {
        matches!(envelope.event, Event::SessionSuspended { .. }).then_some(())
    })
    .await;
    let resumed = place.manager.resume_session(&id).await.expect("resumed");
    assert_eq!(place.ask(resumed.id(), "say again").await, "again");
    place.shipped(&id).await;
    let kinds: Vec<_> =
        is_whole(&fleet, &id).iter().map(|line| line["type"].as_str().expect("a type").to_owned()).collect();
    assert!(
        kinds.iter().any(|kind| kind == "test:x") && kinds.iter().any(|kind| kind == "session:resumed"),
        "{kinds:?}"
    );
    place.end().await;
}

#[tokio::test]
async fn events_that_cannot_be_read_any_more_are_a_gap_in_the_fleets_log_and_hold_nothing_up() {
    let fleet = Arc::new(Fleet::default());
    let mut place = Place::new("a", &fleet).await;
    let session = place.start().await;
    let id = session.id().clone();
    place.shipped(&id).await;
    let pause = place.pause().await;
    let append = place.manager.append_event(&id, "test:damaged", 1, Json::from(&serde_json::json!("whole")));
    let suspend = async {
        place.committed(&id, "test:damaged").await;
        place.manager.suspend_session(&id, KillOptions::NOW).await
    };
    let _ = tokio::join!(append, suspend);
    place.manager.shutdown().await;
    place.shipper.abort();
    drop(session);
    let file = place.scratch.path().join("state/log.sqlite");
    let mut bytes = std::fs::read(&file).expect("the log");
    let at: Vec<usize> = memmem(&bytes, b"test:damaged");
    assert!(!at.is_empty(), "it is in the log");
    at.into_iter().for_each(|at| bytes[at] = b'T');
    std::fs::write(&file, bytes).expect("written");
    place.manager = build(&place.scratch, Replication::new(place.node.clone())).await;
    place.shipper = tokio::spawn(ship(place.manager.clone(), place.node.clone()));
    drop(pause);
    place.manager.resume_session(&id).await.expect("resumed");
    assert_eq!(place.ask(&id, "say again").await, "again");
    place.shipped(&id).await;
    let lines: Vec<Value> = fleet.stream(&id).lines.into_iter().map(|(_, line)| line).collect();
    assert!(lines.iter().any(|line| line["type"] == "session:gap"), "{lines:?}");
    assert!(lines.iter().all(|line| line["type"] != "test:damaged"), "{lines:?}");
    place.end().await;
}

/// Positions of a text in bytes.
fn memmem(bytes: &[u8], text: &[u8]) -> Vec<usize> {
    bytes.windows(text.len()).enumerate().filter(|(_, window)| *window == text).map(|(at, _)| at).collect()
}

#[tokio::test]
async fn a_session_says_that_its_fleet_is_unavailable_and_that_it_has_come_back() {
    let fleet = Arc::new(Fleet::default());
    for policy in [UnavailablePolicy::Hold, UnavailablePolicy::End] {
        let adapt = |replication| Replication { degrade_after: Duration::ZERO, on_unavailable: policy, ..replication };
        let place = Place::with("a", &fleet, adapt).await;
        let session = place.start().await;
        let id = session.id().clone();
        place.shipped(&id).await;
        let pause = place.pause().await;
        let mut events = place.manager.subscribe_from(&id, place.shown(&id)).expect("known");
        place.manager.set_fleet_available(Err("nobody answers".to_owned())).expect("in a fleet");
        place.committed(&id, "session:degraded").await;
        if policy == UnavailablePolicy::End {
            soon("its end", async {
                while !matches!(session.info().state, SessionState::Ended { .. }) {
                    tokio::task::yield_now().await;
                }
            })
            .await;
            place.committed(&id, "session:ended").await;
        } else {
            let degraded = session.info().degraded.expect("it is visible here, though no event is");
            assert!(degraded.contains("nobody answers"), "{degraded}");
        }
        assert!(now(&mut events).await.is_none());
        place.manager.set_fleet_available(Ok(())).expect("in a fleet");
        assert_eq!(session.info().degraded, None);
        drop(pause);
        let is_degraded = |envelope: &Envelope| matches!(envelope.event, Event::SessionDegraded { .. }).then_some(());
        event(&mut events, "that it was degraded", is_degraded).await;
        if policy == UnavailablePolicy::Hold {
            event(&mut events, "that it has recovered", |envelope| match &envelope.event {
                Event::SessionStatus { status, .. } => (status == "recovered").then_some(()),
                _ => None,
            })
            .await;
            assert_eq!(place.ask(&id, "say on").await, "on");
        }
        place.end().await;
    }
}

#[tokio::test]
async fn a_session_moves_with_its_conversation_and_its_offsets_go_on() {
    let fleet = Arc::new(Fleet::default());
    let (from, to) = (Place::new("a", &fleet).await, Place::new("b", &fleet).await);
    let session = from.start().await;
    let id = session.id().clone();
    assert_eq!(from.ask(&id, "say one").await, "one");
    from.manager.suspend_session(&id, KillOptions::default()).await.expect("suspended");
    from.shipped(&id).await;
    let export = from.manager.export_session(&id).await.expect("exported");
    assert!(!export.conversation.is_empty() && export.incomplete.is_none(), "{export:?}");
    let bytes = export.to_bytes().expect("bytes");
    let export = SessionExport::from_bytes(&bytes).expect("an export");
    assert!(SessionExport::from_bytes(&bytes[..bytes.len() - 1]).is_err(), "it was cut");
    let fenced = from.manager.fence(&id).await.expect("given up");
    assert!(fenced.put_aside == 0 && fenced.receipt.is_none(), "{fenced:?}");
    assert!(matches!(from.manager.session(&id), Err(Error::UnknownSession { .. })));
    let (epoch, tail) = fleet.give(&id, "b");
    let taken = TakeOver { export, epoch, tail, keeps_local_tail: false, recent_events: Vec::new() };
    to.manager.take_over(taken.clone()).await.expect("taken over");
    let again = to.manager.take_over(taken).await;
    assert!(matches!(again, Err(Error::DuplicateSession { .. })), "{again:?}");
    to.manager.resume_session(&id).await.expect("resumed");
    assert_eq!(to.ask(&id, "history").await, "1 before");
    to.shipped(&id).await;
    let first = to.manager.replicated_stream(&id).expect("replicated").first;
    assert_eq!(first, tail + 1, "what was before is in the fleet's log");
    let kinds: Vec<Value> = is_whole(&fleet, &id).iter().map(|line| line["type"].clone()).collect();
    assert_eq!(kinds[usize::try_from(tail).expect("few")], "session:suspended", "{kinds:?}");
    // The other one starts nothing of that name, and says who has it.
    let stolen = AgentSessionConfig { session_id: id.clone(), ..sessions::fake() };
    let refused = from.manager.start_session(stolen).await;
    assert!(matches!(&refused, Err(Error::DuplicateSession { .. } | Error::NotOwner { .. })), "{refused:?}");
    let turns = to.manager.record(&id).expect("known").turns;
    assert_eq!(turns, 2);
    from.end().await;
    to.end().await;
}

#[tokio::test]
async fn who_has_lost_a_session_shows_nothing_more_of_it_and_leaves_nothing_at_work() {
    let fleet = Arc::new(Fleet::default());
    let (cut_off, other) = (Place::new("a", &fleet).await, Place::new("b", &fleet).await);
    let session = cut_off.start().await;
    let id = session.id().clone();
    assert_eq!(cut_off.ask(&id, "say one").await, "one");
    cut_off.shipped(&id).await;
    let export = cut_off.manager.export_session(&id).await.expect("exported");
    // It is cut off, and goes on.
    let seconds = system::unique_seconds();
    let turn =
        session.prompt(format!("setsid exec sleep {seconds}\nwait"), PromptMode::Refuse).await.expect("prompted");
    sleeping(&seconds, true).await;
    let pause = cut_off.pause().await;
    let shown = cut_off.shown(&id);
    let mut events = cut_off.manager.subscribe_from(&id, 0).expect("known");
    let append = tokio::spawn({
        let (manager, id) = (cut_off.manager.clone(), id.clone());
        async move { manager.append_event(&id, "test:late", 1, Json::null()).await }
    });
    cut_off.committed(&id, "test:late").await;
    let (epoch, tail) = fleet.give(&id, "b");
    let taken = TakeOver { export, epoch, tail, keeps_local_tail: false, recent_events: Vec::new() };
    other.manager.take_over(taken).await.expect("taken over");
    other.manager.resume_session(&id).await.expect("resumed");
    // It comes back, ships, and is refused.
    drop(pause);
    sleeping(&seconds, false).await;
    soon("the session is forgotten", async {
        while cut_off.manager.session(&id).is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(soon("the append", append).await.expect("no panic").is_err(), "it was never in the fleet's log");
    assert!(matches!(soon("the turn", turn.wait()).await, Err(Error::Fenced { .. })));
    let mut seen = Vec::new();
    while let Some(envelope) = soon("the end of the stream", events.next()).await {
        seen.push(envelope.offset);
    }
    assert_eq!(seen.last(), Some(&shown), "{seen:?}");
    let stream = cut_off.manager.replicated_stream(&id).expect("replicated");
    assert_eq!(stream.acknowledged, stream.last, "the tail is put aside: {stream:?}");
    assert_eq!(other.ask(&id, "say two").await, "two");
    other.shipped(&id).await;
    let all = is_whole(&fleet, &id);
    assert!(all.iter().all(|line| line["type"] != "test:late"), "{all:?}");
    // And back again, where the session was before.
    other.manager.suspend_session(&id, KillOptions::default()).await.expect("suspended");
    other.shipped(&id).await;
    let export = other.manager.export_session(&id).await.expect("exported");
    other.manager.fence(&id).await.expect("given up");
    let (epoch, tail) = fleet.give(&id, "a");
    let taken = TakeOver { export, epoch, tail, keeps_local_tail: false, recent_events: Vec::new() };
    cut_off.manager.take_over(taken).await.expect("taken back");
    cut_off.manager.resume_session(&id).await.expect("resumed");
    // The turn that was cut off has ended nowhere: the conversation has the two that did.
    assert_eq!(cut_off.ask(&id, "history").await, "2 before");
    cut_off.shipped(&id).await;
    is_whole(&fleet, &id);
    cut_off.end().await;
    other.end().await;
}

#[tokio::test]
async fn all_sessions_are_fenced_at_once_each_with_its_receipt() {
    let fleet = Arc::new(Fleet::default());
    let place = Place::new("a", &fleet).await;
    let mut seconds = Vec::new();
    for _ in 0..4 {
        let session = place.start().await;
        let sleep = system::unique_seconds();
        session.prompt(format!("ignore-term sleep {sleep}\nwait"), PromptMode::Refuse).await.expect("prompted");
        sleeping(&sleep, true).await;
        seconds.push(sleep);
    }
    let fenced = soon("all are fenced", place.manager.fence_all()).await;
    assert_eq!(fenced.len(), 4);
    for fenced in fenced {
        let receipt = fenced.expect("fenced").receipt.expect("it had processes");
        assert!(receipt.is_empty() && !receipt.processes.is_empty(), "{receipt}");
    }
    assert!(seconds.iter().all(|seconds| system::sleeping(seconds).is_empty()));
    assert!(place.manager.list_sessions().is_empty());
    place.end().await;
}

#[tokio::test]
async fn the_command_after_the_end_runs_where_a_session_ends_and_not_where_it_was_fenced() {
    let fleet = Arc::new(Fleet::default());
    let (from, to) = (Place::new("a", &fleet).await, Place::new("b", &fleet).await);
    let notes = from.scratch.path().join("notes");
    let command = |of: &str| Some(format!("echo {of} >>{}", notes.display()));
    let lines = || std::fs::read_to_string(&notes).unwrap_or_default();
    // One is fenced while it runs, one while it rests.
    let fenced = from.start_with(Lifecycle { after_end: command("fenced"), ..Lifecycle::default() }).await;
    from.manager.fence(fenced.id()).await.expect("given up");
    let session = from.start_with(Lifecycle { after_end: command("moved"), ..Lifecycle::default() }).await;
    let id = session.id().clone();
    assert_eq!(from.ask(&id, "say one").await, "one");
    from.manager.suspend_session(&id, KillOptions::default()).await.expect("suspended");
    from.shipped(&id).await;
    let export = from.manager.export_session(&id).await.expect("exported");
    from.manager.fence(&id).await.expect("given up");
    let (epoch, tail) = fleet.give(&id, "b");
    to.manager
        .take_over(TakeOver { export, epoch, tail, keeps_local_tail: false, recent_events: Vec::new() })
        .await
        .expect("taken over");
    let mut events = to.manager.subscribe_all();
    // No process of it was ever here.
    let ended = to.manager.kill_session(&id, KillOptions::NOW).await;
    assert!(matches!(ended, Err(Error::Ended { .. })), "{ended:?}");
    soon("the command", async {
        while lines().is_empty() {
            events.next().await.expect("events");
        }
    })
    .await;
    from.manager.shutdown().await;
    to.manager.shutdown().await;
    assert_eq!(lines(), "moved\n");
    from.end().await;
    to.end().await;
}
