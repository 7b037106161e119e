//! Members of a fleet, at nats-servers of their own.

mod engine;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use fleet::{
    ClaimError, EngineAddress, EventBatch, ExchangeError, FeedBatch, FleetConfig, FleetMember, JoinError, LogTail,
    NodeKey, NodeName, NodePresence, SessionClaim, SessionFacts, SessionPhase, ShippingStep, StartKeyRecord,
    account_configuration,
    exchange::{AnswerBody, ExchangeAnswer, ExchangeRequest},
};
use futures_util::{FutureExt as _, StreamExt as _, future::BoxFuture};
use ipc_protocol::SessionId;
use rustix::process::{Pid, Signal};
use tokio::{sync::mpsc, time::Instant};

use self::engine::{DEADLINE, Engine};

fn config(engine: &Engine, name: &str) -> FleetConfig {
    let servers = engine.address().split(',').map(str::to_owned).collect();
    let labels = BTreeMap::from([("name".to_owned(), name.to_owned())]);
    let engine = EngineAddress { servers, ..EngineAddress::default() };
    FleetConfig { engine, node: node(name), labels, ..unconnected() }
}

async fn join(engine: &Engine, name: &str) -> FleetMember {
    FleetMember::join(config(engine, name)).await.expect("joined")
}

fn node(name: &str) -> NodeName {
    name.parse().expect("a name")
}

fn session(id: &str) -> SessionId {
    id.parse().expect("an id")
}

/// Looks again and again until it is so.
async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    // The servers share the processors with the tests.
    let mut looks = tokio::time::interval(Duration::from_millis(10));
    while !is_so().await {
        assert!(Instant::now() < deadline, "not within {DEADLINE:?}: {what}");
        looks.tick().await;
    }
}

fn presence(member: &FleetMember, name: &str) -> Option<NodePresence> {
    member.node(&node(name)).map(|node| node.presence)
}

/// Answers each request by its body, in pieces.
fn answer_with<F>(answer: F) -> Arc<dyn Fn(ExchangeRequest) -> BoxFuture<'static, ExchangeAnswer> + Send + Sync>
where
    F: Fn(Vec<u8>) -> ExchangeAnswer + Send + Sync + 'static,
{
    Arc::new(move |request: ExchangeRequest| {
        let answer = answer(request.body);
        async move { answer }.boxed()
    })
}

fn request(body: &str) -> ExchangeRequest {
    ExchangeRequest { head: b"head".to_vec(), body: body.into() }
}

async fn read(body: AnswerBody) -> Result<Vec<u8>, String> {
    let mut pieces = match body {
        AnswerBody::Whole(whole) => return Ok(whole),
        AnswerBody::Pieces(pieces) => pieces,
    };
    let mut read = Vec::new();
    while let Some(piece) = pieces.next().await {
        read.extend(piece?);
    }
    Ok(read)
}

#[tokio::test]
async fn nodes_see_each_other_and_know_who_has_left() {
    let Some(engine) = Engine::start() else { return };
    let (a, b) = (join(&engine, "a").await, join(&engine, "b").await);
    for member in [&a, &b] {
        until("both are seen", async || {
            ["a", "b"].iter().all(|name| presence(member, name) == Some(NodePresence::Alive))
        })
        .await;
    }
    assert!(a.node(&node("a")).expect("itself").is_self && !a.node(&node("b")).expect("the other").is_self);
    assert_eq!(a.node(&node("b")).expect("the other").record.labels["name"], "b");
    b.set_load(7, 9);
    until("the load is seen", async || {
        a.node(&node("b")).is_some_and(|node| node.record.sessions == 7 && node.record.backlog == 9)
    })
    .await;
    b.leave().await;
    until("it is seen to leave", async || presence(&a, "b") == Some(NodePresence::Left)).await;
    a.leave().await;
}

#[tokio::test]
async fn a_name_is_one_node_s_and_comes_back_with_its_identity() {
    let Some(engine) = Engine::start() else { return };
    let a =
        FleetMember::join(FleetConfig { identity: Some("1".into()), ..config(&engine, "a") }).await.expect("joined");
    let other = FleetMember::join(FleetConfig { identity: Some("2".into()), ..config(&engine, "a") }).await;
    assert!(matches!(other, Err(JoinError::NameTaken { .. })), "{other:?}");
    let again = FleetMember::join(FleetConfig { identity: Some("1".into()), ..config(&engine, "a") });
    let again = again.await.expect("the same place: the one before it is over");
    until("the one before it is out", async || !a.is_lease_held()).await;
    let answers = |text: &'static str| {
        answer_with(move |_| ExchangeAnswer {
            head: text.into(),
            is_stream: false,
            body: futures_util::stream::empty().boxed(),
        })
    };
    a.serve(answers("old")).await.expect("served");
    again.serve(answers("new")).await.expect("served");
    let b = join(&engine, "b").await;
    for _ in 0..20 {
        let answer = b.send(&node("a"), &request("")).await.expect("answered");
        assert_eq!(answer.head, b"new", "the one before it answers no more");
    }
    b.leave().await;
    assert!(again.is_lease_held());
    again.leave().await;
}

#[tokio::test]
async fn a_session_has_one_owner_however_many_claim_it() {
    let Some(engine) = Engine::start() else { return };
    let (a, b) = (join(&engine, "a").await, join(&engine, "b").await);
    for number in 0..50 {
        let id = session(&format!("s-{number}"));
        let (nobody, labels) = (SessionFacts::default(), BTreeMap::new());
        let ada = SessionFacts { user: Some("ada".into()), ..nobody.clone() };
        let (of_a, of_b) = tokio::join!(a.claim(&id, &nobody, &labels), b.claim(&id, &ada, &labels));
        assert!(of_a.is_ok() != of_b.is_ok(), "{of_a:?} {of_b:?}");
        let (winner, loser) = if of_a.is_ok() { (&a, &b) } else { (&b, &a) };
        let again = winner.claim(&id, &SessionFacts::default(), &BTreeMap::new()).await.expect("its own");
        assert!(matches!(again, SessionClaim { epoch: 1, is_new: false, .. }), "claimed again: {again:?}");
        assert!(
            matches!(loser.claim(&id, &SessionFacts::default(), &BTreeMap::new()).await, Err(ClaimError::Owned { node }) if node == *winner.name())
        );
        // Known at once to the one that lost, and not given up by it.
        assert_eq!(loser.owner(&id).map(|owned| owned.record.node), Some(winner.name().clone()));
        loser.release(&id).await.expect("left alone");
        assert!(winner.owner_now(&id).await.expect("read").is_some());
    }
    let id = session("s.with.dots");
    a.claim(&id, &SessionFacts::default(), &BTreeMap::new()).await.expect("claimed");
    until("it is seen", async || b.owner(&id).is_some()).await;
    assert!(b.sessions_beginning_with("s.w", 9).is_empty(), "an id that was chosen is meant whole");
    // One that joins later knows all of them at once.
    let c = join(&engine, "c").await;
    assert_eq!(c.sessions().len(), 51);
    c.leave().await;
    a.release(&id).await.expect("released");
    until("its end is seen", async || b.owner(&id).is_none()).await;
    let claim = b.claim(&id, &SessionFacts::default(), &BTreeMap::new()).await.expect("free again");
    assert!(matches!(claim, SessionClaim { epoch: 1, is_new: true, .. }), "{claim:?}");
    a.leave().await;
    b.leave().await;
}

#[tokio::test]
async fn rows_follow_the_sessions_that_a_node_has() {
    let Some(engine) = Engine::start() else { return };
    let a = join(&engine, "a").await;
    for id in ["old", "starting", "kept"] {
        a.claim(&session(id), &SessionFacts::default(), &BTreeMap::new()).await.expect("claimed");
    }
    let starting = a.begin_start(&session("starting"));
    let of = |user: &str| SessionFacts { user: Some(user.to_owned()), ..SessionFacts::default() };
    let local = || vec![(session("kept"), SessionFacts::default()), (session("new"), of("ada"))];
    a.reconcile(local).await.expect("reconciled");
    let ids = || a.sessions().iter().map(|owned| owned.session.to_string()).collect::<Vec<_>>();
    assert_eq!(ids(), ["kept", "new", "starting"]);
    assert_eq!(a.owner(&session("new")).expect("there").record.facts.user.as_deref(), Some("ada"));
    let later = || {
        let ended = SessionFacts { phase: SessionPhase::Ended, ..SessionFacts::default() };
        vec![(session("kept"), of("bob")), (session("new"), ended)]
    };
    a.reconcile(later).await.expect("reconciled");
    assert_eq!(a.owner(&session("kept")).expect("there").record.facts, of("bob"), "its user is noted");
    let new = a.owner(&session("new")).expect("there").record.facts;
    assert_eq!(new, SessionFacts { phase: SessionPhase::Ended, ..of("ada") }, "its end is noted, and the rest stays");
    drop(starting);
    a.reconcile(local).await.expect("reconciled");
    assert_eq!(ids(), ["kept", "new"], "its start has come to nothing");
    a.leave().await;
}

#[tokio::test]
async fn starts_and_kills_are_remembered() {
    let Some(engine) = Engine::start() else { return };
    let (a, b) = (join(&engine, "a").await, join(&engine, "b").await);
    let start = |name: &str, id: &str| StartKeyRecord { node: node(name), session: session(id) };
    let (first, second) =
        tokio::join!(async { a.remember_start("k", &start("a", "s-1")).await.expect("remembered") }, async {
            b.remember_start("k", &start("b", "s-2")).await.expect("remembered")
        },);
    assert_eq!(first, second, "one of them, at both");

    let id = session("s-1");
    b.claim(&id, &SessionFacts::default(), &BTreeMap::new()).await.expect("claimed");
    assert!(a.remember_kill(&id, "ada").await.expect("remembered"));
    until("the owner sees it", async || !b.remembered_kills().is_empty()).await;
    assert_eq!(b.remembered_kills()[0].1.by, "ada");
    assert!(b.forget_kill(&id).await.expect("forgotten"));
    assert!(b.remembered_kills().is_empty());
    assert!(!a.remember_kill(&session("none"), "ada").await.expect("asked"), "there is no such session");
    a.leave().await;
    b.leave().await;
}

#[tokio::test]
async fn answers_come_whole_whatever_their_length() {
    let Some(engine) = Engine::start() else { return };
    let (a, b) = (join(&engine, "a").await, join(&engine, "b").await);
    // The body says how long the answer is, and in which pieces.
    let handler = answer_with(|body| {
        let text = String::from_utf8(body).expect("text");
        let (length, size) = text.split_once('/').expect("two numbers");
        let (length, size): (usize, usize) = (length.parse().expect("a number"), size.parse().expect("a number"));
        let data: Vec<u8> = (0..length).map(|at| u8::try_from(at % 251).expect("small")).collect();
        let pieces: Vec<Result<Vec<u8>, String>> = data.chunks(size).map(|piece| Ok(piece.to_vec())).collect();
        ExchangeAnswer {
            head: b"answered".to_vec(),
            is_stream: false,
            body: futures_util::stream::iter(pieces).boxed(),
        }
    });
    b.serve(handler).await.expect("served");
    for (length, size) in [(0, 1), (1, 1), (300_000, 7_000), (3_000_000, 3_000_000), (262_144, 262_144)] {
        let answer = a.send(&node("b"), &request(&format!("{length}/{size}"))).await.expect("answered");
        assert_eq!(answer.head, b"answered");
        let body = read(answer.body).await.expect("whole");
        assert_eq!(body.len(), length);
        assert!(body.iter().enumerate().all(|(at, byte)| usize::from(*byte) == at % 251), "{length} in {size}");
    }
    a.leave().await;
    b.leave().await;
}

#[tokio::test]
async fn a_stream_comes_as_it_grows_and_ends_with_either_side() {
    let Some(engine) = Engine::start() else { return };
    let (a, b) = (join(&engine, "a").await, join(&engine, "b").await);
    let (lines, streams) = mpsc::channel::<mpsc::Sender<Result<Vec<u8>, String>>>(8);
    let handler = answer_with(move |_| {
        let (line, stream) = mpsc::channel(1);
        lines.try_send(line).expect("room");
        let body = futures_util::stream::unfold(stream, async |mut stream| Some((stream.recv().await?, stream)));
        ExchangeAnswer { head: Vec::new(), is_stream: true, body: body.boxed() }
    });
    b.serve(handler).await.expect("served");
    let mut streams = streams;

    let answer = a.send(&node("b"), &request("")).await.expect("begun");
    let AnswerBody::Pieces(mut pieces) = answer.body else { panic!("it is not over") };
    let line = streams.recv().await.expect("a stream");
    for text in ["one", "two"] {
        line.send(Ok(text.into())).await.expect("read");
        loop {
            let piece = pieces.next().await.expect("more").expect("a piece");
            if !piece.is_empty() {
                assert_eq!(piece, text.as_bytes());
                break;
            }
        }
    }
    line.send(Err("the disk is full".into())).await.expect("read");
    let error = pieces.next().await.expect("an end").expect_err("broken off");
    assert!(error.contains("the disk is full"), "{error}");

    // Whoever reads leaves: whoever writes notes it by the next piece.
    let answer = a.send(&node("b"), &request("")).await.expect("begun");
    let line = streams.recv().await.expect("a stream");
    drop(answer);
    until("its writer notes it", async || line.send(Ok(vec![1])).await.is_err()).await;
    a.leave().await;
    b.leave().await;
}

#[tokio::test]
async fn a_request_to_nobody_fails_at_once_and_one_that_takes_long_does_not() {
    let Some(engine) = Engine::start() else { return };
    let (a, b) = (join(&engine, "a").await, join(&engine, "b").await);
    let nobody = a.send(&node("b"), &request("")).await;
    assert!(matches!(nobody, Err(ExchangeError::NobodyListens { .. })), "{nobody:?}");
    let long = a.send(&node("b"), &ExchangeRequest { head: Vec::new(), body: vec![0; 2_000_000] }).await;
    assert!(matches!(long, Err(ExchangeError::TooLong { .. })), "{long:?}");

    // Longer than the time for the first sign of an answer.
    let handler: fleet::exchange::ExchangeHandler = Arc::new(|_| {
        async {
            tokio::time::sleep(fleet::exchange::FIRST_ANSWER + Duration::from_millis(500)).await;
            ExchangeAnswer { head: b"late".to_vec(), is_stream: false, body: futures_util::stream::empty().boxed() }
        }
        .boxed()
    });
    b.serve(handler).await.expect("served");
    assert_eq!(a.send(&node("b"), &request("")).await.expect("answered").head, b"late");
    a.leave().await;
    b.leave().await;
}

#[tokio::test]
async fn a_node_that_the_engine_does_not_hear_gives_its_lease_up_and_has_it_again() {
    let Some(engine) = Engine::start() else { return };
    let a =
        FleetMember::join(FleetConfig { lease: Duration::from_secs(2), ..config(&engine, "a") }).await.expect("joined");
    until("it has its lease", async || a.is_lease_held()).await;
    signal(engine.pid(0), Signal::STOP);
    until("it counts itself out", async || !a.is_lease_held()).await;
    assert!(matches!(
        a.claim(&session("s-1"), &SessionFacts::default(), &BTreeMap::new()).await,
        Err(ClaimError::LeaseOver { .. })
    ));
    signal(engine.pid(0), Signal::CONT);
    until("it has its lease again", async || a.is_lease_held()).await;
    a.claim(&session("s-1"), &SessionFacts::default(), &BTreeMap::new()).await.expect("claimed");
    a.leave().await;
}

#[tokio::test]
async fn a_cluster_goes_on_without_one_of_its_servers() {
    let Some(mut engine) = Engine::start_cluster() else { return };
    let (a, b) = (join(&engine, "a").await, join(&engine, "b").await);
    a.claim(&session("s-1"), &SessionFacts::default(), &BTreeMap::new()).await.expect("claimed");
    engine.kill(0);
    until("a claim is possible again", async || {
        a.claim(&session("s-2"), &SessionFacts::default(), &BTreeMap::new()).await.is_ok()
    })
    .await;
    until("both are seen", async || ["s-1", "s-2"].iter().all(|id| b.owner(&session(id)).is_some())).await;
    // An election may take longer than its lease: then it is told so first.
    until("a claim of the other one is refused", async || {
        match b.claim(&session("s-1"), &SessionFacts::default(), &BTreeMap::new()).await {
            Ok(claim) => panic!("it has an owner, and {claim:?} is made"),
            Err(error) => matches!(error, ClaimError::Owned { .. }),
        }
    })
    .await;
    a.leave().await;
    b.leave().await;
}

/// Lines of events with these offsets.
fn lines(first: u64, last: u64) -> Vec<u8> {
    (first..=last).flat_map(|offset| format!("{{\"offset\":{offset}}}\n").into_bytes()).collect()
}

/// Ships events as the one who knows the tail.
async fn ship(member: &FleetMember, id: &SessionId, epoch: u64, first: u64, last: u64) -> ShippingStep {
    let tail = member.log().tail(id).await.expect("read");
    let batch = EventBatch { epoch, first, last };
    let (outcome, error) = member.log().publish(id, batch, lines(first, last), tail.sequence).await;
    assert!(error.is_none(), "{error:?}");
    batch.decide(tail.sequence, outcome)
}

#[tokio::test]
async fn events_are_read_from_any_offset_and_as_they_come() {
    let Some(engine) = Engine::start() else { return };
    let (a, b) = (join(&engine, "a").await, join(&engine, "b").await);
    let (id, other) = (session("s-1"), session("s-2"));
    for batch in 0..40 {
        let (first, last) = (batch * 25 + 1, batch * 25 + 25);
        for id in [&id, &other] {
            let step = ship(&a, id, 1, first, last).await;
            assert!(matches!(step, ShippingStep::Acknowledged { through, .. } if through == last), "{step:?}");
        }
    }
    for from in [0, 1, 24, 25, 500, 999] {
        let mut reader = b.log().read(&id, from).await.expect("begun");
        assert_eq!(reader.last(), 1000);
        let mut read = Vec::new();
        while read.last() != Some(&1000) {
            let batch = reader.next().await.expect("a batch");
            let text = String::from_utf8(batch).expect("text");
            read.extend(text.lines().map(|line| {
                line.trim_start_matches("{\"offset\":").trim_end_matches('}').parse::<u64>().expect("a number")
            }));
        }
        let first = *read.first().expect("some");
        assert!(first <= from + 1 && from < first + 25, "from {from} it begins with {first}");
        assert_eq!(read, (first..=1000).collect::<Vec<_>>());
    }
    // At the end of the log it waits for what comes.
    let mut reader = b.log().read(&id, 1000).await.expect("begun");
    let (batch, step) = tokio::join!(reader.next(), ship(&a, &id, 1, 1001, 1002));
    assert_eq!(batch.expect("a batch"), lines(1001, 1002));
    assert!(matches!(step, ShippingStep::Acknowledged { .. }), "{step:?}");
    a.leave().await;
    b.leave().await;
}

#[tokio::test]
async fn events_of_all_sessions_are_read_in_the_order_of_the_log() {
    let Some(engine) = Engine::start() else { return };
    let (a, b) = (join(&engine, "a").await, join(&engine, "b").await);
    assert!(!b.log().has_from(0).await.expect("asked") && b.log().last_sequence().await.expect("asked") == 0);
    let (id, other) = (session("s-1"), session("s-2"));
    for (member, id, first) in [(&a, &id, 1), (&b, &other, 1), (&a, &id, 3), (&b, &other, 3)] {
        assert!(matches!(ship(member, id, 1, first, first + 1).await, ShippingStep::Acknowledged { .. }));
    }
    assert_eq!(a.log().last_sequence().await.expect("asked"), 4);
    let mut feed = a.log().read_all(0).await.expect("begun");
    for (sequence, first) in [(1, 1), (2, 1), (3, 3), (4, 3)] {
        let batch = feed.next().await.expect("a batch");
        let expected = FeedBatch { sequence, lines: lines(first, first + 1), is_last: sequence == 4 };
        assert_eq!(batch, expected);
    }
    // With those that come, and from a place in the middle.
    let (batch, _) = tokio::join!(feed.next(), ship(&a, &id, 1, 5, 5));
    assert_eq!(batch.expect("a batch").lines, lines(5, 5));
    let mut feed = b.log().read_all(4).await.expect("begun");
    assert_eq!(feed.next().await.expect("a batch").sequence, 4);
    assert!(b.log().has_from(5).await.expect("asked") && !b.log().has_from(6).await.expect("asked"));
    a.leave().await;
    b.leave().await;
}

#[tokio::test]
async fn old_events_go_and_the_last_ones_stay() {
    let Some(engine) = Engine::start() else { return };
    let a = join(&engine, "a").await;
    let (id, other) = (session("s-1"), session("s-2"));
    let both = async |first: u64| {
        for id in [&id, &other] {
            assert!(matches!(ship(&a, id, 1, first, first).await, ShippingStep::Acknowledged { .. }));
        }
    };
    for first in 1..=5 {
        both(first).await;
    }
    let then = std::time::SystemTime::now();
    for first in 6..=9 {
        both(first).await;
    }
    assert!(a.log().remove_before(&id, then).await.expect("removed"));
    assert!(!a.log().remove_before(&id, then).await.expect("removed"), "once");
    let first_of = async |id: &SessionId| {
        let mut reader = a.log().read(id, 0).await.expect("begun");
        reader.next().await.expect("a batch")
    };
    assert_eq!((first_of(&id).await, first_of(&other).await), (lines(6, 6), lines(1, 1)), "of this session alone");
    // Whatever its age: by the last message the stream goes on.
    assert!(a.log().remove_before(&id, std::time::SystemTime::now()).await.expect("removed"));
    assert_eq!(first_of(&id).await, lines(9, 9));
    assert!(matches!(ship(&a, &id, 1, 10, 10).await, ShippingStep::Acknowledged { through: 10, .. }));
    assert!(!a.log().remove_before(&session("none"), then).await.expect("asked"));
    a.leave().await;
}

#[tokio::test]
async fn followers_leave_room_for_prompts_and_kills() {
    let Some(engine) = Engine::start() else { return };
    let (a, b) = (join(&engine, "a").await, join(&engine, "b").await);
    let handler = answer_with(|body| match &body[..] {
        b"follow" => {
            let begun = futures_util::stream::iter([Ok(b"begun".to_vec())]);
            ExchangeAnswer { head: body, is_stream: true, body: begun.chain(futures_util::stream::pending()).boxed() }
        }
        _ => ExchangeAnswer { head: body, is_stream: false, body: futures_util::stream::empty().boxed() },
    });
    b.serve(handler).await.expect("served");
    let mut followers = Vec::new();
    for _ in 0..fleet::exchange::MAX_STREAMS {
        followers.push(a.send(&node("b"), &request("follow")).await.expect("begun"));
    }
    let refused = a.send(&node("b"), &request("follow")).await.expect_err("one too many");
    assert!(matches!(&refused, ExchangeError::Refused { reason, .. } if reason.contains("1024 streams")), "{refused}");
    for _ in 0..10 {
        assert_eq!(a.send(&node("b"), &request("kill")).await.expect("answered").head, b"kill");
    }
    // Whoever leaves makes room: noted with the next part, which is empty where nothing comes.
    followers.truncate(fleet::exchange::MAX_STREAMS - 1);
    until("there is room again", async || a.send(&node("b"), &request("follow")).await.is_ok()).await;
    a.leave().await;
    b.leave().await;
}

#[tokio::test]
async fn an_id_that_was_deleted_begins_anew() {
    let Some(engine) = Engine::start() else { return };
    let (a, b) = (join(&engine, "a").await, join(&engine, "b").await);
    let (id, other) = (session("s-1"), session("s-2"));
    for id in [&id, &other] {
        let claim = a.claim_start(id, &SessionFacts::default(), &BTreeMap::new()).await.expect("claimed");
        assert!(matches!(claim, SessionClaim { epoch: 1, is_new: true, .. }), "{claim:?}");
        assert!(matches!(ship(&a, id, 1, 1, 9).await, ShippingStep::Acknowledged { through: 9, .. }));
    }
    a.store_snapshot("s-1/1/9", vec![7; 9]).await.expect("stored");
    a.note_snapshot(&id, 1, "s-1/1/9").await.expect("noted");
    assert!(!a.delete(&id, || true).await.expect("asked"), "it is here");
    let starting = a.begin_start(&id);
    assert!(!a.delete(&id, || false).await.expect("asked"), "it starts");
    drop(starting);
    b.delete(&id, || false).await.expect("left alone: it is another node's");
    assert_eq!(b.log().tail(&id).await.expect("read").last, 9, "nothing is gone");

    assert!(a.delete(&id, || false).await.expect("deleted"));
    assert!(a.owner_now(&id).await.expect("read").is_none());
    b.claim_start(&id, &SessionFacts::default(), &BTreeMap::new()).await.expect("free");
    assert!(matches!(ship(&b, &id, 1, 1, 2).await, ShippingStep::Acknowledged { through: 2, .. }));
    let mut reader = a.log().read(&id, 0).await.expect("begun");
    assert_eq!((reader.last(), reader.next().await.expect("a batch")), (2, lines(1, 2)), "the new events alone");
    assert_eq!(a.log().tail(&other).await.expect("read").last, 9, "another session's stay");

    // One whose row is gone without its events, as of a node that lost its disk.
    a.release(&other).await.expect("released");
    b.claim_start(&other, &SessionFacts::default(), &BTreeMap::new()).await.expect("free");
    assert_eq!(a.log().tail(&other).await.expect("read"), LogTail::EMPTY);
    // One that starts before its deletion was carried out.
    assert!(matches!(ship(&b, &other, 1, 1, 4).await, ShippingStep::Acknowledged { through: 4, .. }));
    b.begin_anew(&other).await.expect("begun");
    assert_eq!(a.log().tail(&other).await.expect("read"), LogTail::EMPTY);
    assert_eq!(b.owner(&other).expect("its row stays").record.epoch, 1);
    a.leave().await;
    b.leave().await;
}

#[tokio::test]
async fn a_deletion_that_a_node_did_not_end_is_ended_by_its_next_run_and_nobody_goes_on_with_the_session() {
    let Some(engine) = Engine::start() else { return };
    let of = |name: &str| FleetConfig { identity: Some(name.to_owned()), takes_over: true, ..config(&engine, name) };
    let (a, b) = (FleetMember::join(of("a")).await.expect("joined"), FleetMember::join(of("b")).await.expect("joined"));
    let id = session("s-1");
    a.claim_start(&id, &SessionFacts::default(), &BTreeMap::new()).await.expect("claimed");
    assert!(matches!(ship(&a, &id, 1, 1, 9).await, ShippingStep::Acknowledged { through: 9, .. }));
    a.store_snapshot("s-1/1/9", vec![7; 9]).await.expect("stored");
    a.note_snapshot(&id, 1, "s-1/1/9").await.expect("noted");
    a.announce_deletion(&id).await.expect("announced");
    assert!(a.given_sessions().is_empty());
    // It is gone, as far as anybody can tell, and has not left: its row and all of the session are there.
    let row = a.owner(&id).expect("its row");
    a.leave().await;
    assert!(!b.take(&id).await.expect("asked"), "nobody goes on with it");
    assert_eq!(b.owner_now(&id).await.expect("read").expect("its row").revision, row.revision);
    // The next run of the node has nothing of it, and ends what the one before began.
    let a = FleetMember::join(of("a")).await.expect("joined");
    assert!(a.given_sessions().is_empty());
    a.reconcile(Vec::new).await.expect("reconciled");
    assert!(a.owner_now(&id).await.expect("read").is_none());
    assert_eq!(a.log().tail(&id).await.expect("read"), LogTail::EMPTY);
    // One that begins anew with the id before that is another session.
    let of_ada = SessionFacts { user: Some("ada".into()), key: Some("k".into()), ..SessionFacts::default() };
    let labels = BTreeMap::from([("gpu".to_owned(), "1".to_owned())]);
    a.claim_start(&id, &of_ada, &labels).await.expect("claimed");
    assert!(matches!(ship(&a, &id, 1, 1, 9).await, ShippingStep::Acknowledged { through: 9, .. }));
    a.note_snapshot(&id, 1, "s-1/1/9").await.expect("noted");
    a.announce_deletion(&id).await.expect("announced");
    let claim = a.claim_start(&id, &SessionFacts::default(), &BTreeMap::new()).await.expect("its own");
    assert_eq!((claim.epoch, claim.is_new), (1, true), "another session, which has nothing of it");
    assert_eq!(a.log().tail(&id).await.expect("read"), LogTail::EMPTY, "nor its events");
    let row = a.owner(&id).expect("its row").record;
    assert!(!row.is_deleted && row.snapshot.is_none(), "{row:?}");
    assert_eq!((row.facts, row.labels), (SessionFacts::default(), BTreeMap::new()), "nor its user, key and labels");
    a.reconcile(|| vec![(session("s-1"), SessionFacts::default())]).await.expect("reconciled");
    assert!(a.owner_now(&id).await.expect("read").is_some());
    a.leave().await;
    b.leave().await;
}

#[tokio::test]
async fn an_owner_of_an_earlier_epoch_is_fenced() {
    let Some(engine) = Engine::start() else { return };
    let (a, b) = (join(&engine, "a").await, join(&engine, "b").await);
    let id = session("s-1");
    assert!(matches!(ship(&a, &id, 1, 1, 3).await, ShippingStep::Acknowledged { through: 3, .. }));
    let of_a = a.log().tail(&id).await.expect("read");
    assert!(matches!(ship(&b, &id, 2, 4, 4).await, ShippingStep::Acknowledged { through: 4, .. }));
    let late = EventBatch { epoch: 1, first: 4, last: 9 };
    let (outcome, _) = a.log().publish(&id, late, lines(4, 9), of_a.sequence).await;
    assert_eq!(late.decide(of_a.sequence, outcome), ShippingStep::Fenced { epoch: 2 });
    // The same again, as after a lost acknowledgement, is there once.
    let again = EventBatch { epoch: 2, first: 4, last: 4 };
    let (outcome, _) = b.log().publish(&id, again, lines(4, 4), of_a.sequence).await;
    assert!(matches!(again.decide(of_a.sequence, outcome), ShippingStep::Acknowledged { through: 4, .. }));
    a.leave().await;
    b.leave().await;
}

#[tokio::test]
async fn a_node_has_its_own_rights_alone() {
    let keys: Vec<NodeKey> = ["a", "b"].map(|name| NodeKey::generate(node(name)).expect("a key")).into_iter().collect();
    let Some(engine) = Engine::start_with(&account_configuration(&keys)) else { return };
    let files = tempfile::tempdir().expect("a directory");
    let admitted = |name: &str, key: &str| {
        let path = files.path().join(key);
        let seed = keys.iter().find(|of| of.node().as_str() == key).expect("its key").seed();
        std::fs::write(&path, seed).expect("written");
        let config = config(&engine, name);
        FleetConfig { engine: EngineAddress { nkey: Some(path), ..config.engine }, ..config }
    };
    // All of a node's work, with its rights.
    let a = FleetMember::join(admitted("a", "a")).await.expect("joined");
    let b = FleetMember::join(admitted("b", "b")).await.expect("joined");
    b.serve(answer_with(|body| ExchangeAnswer {
        head: body,
        is_stream: false,
        body: futures_util::stream::empty().boxed(),
    }))
    .await
    .expect("served");
    until("they see each other", async || presence(&a, "b") == Some(NodePresence::Alive)).await;
    assert_eq!(a.send(&node("b"), &request("hello")).await.expect("answered").head, b"hello");
    a.claim(&session("s-1"), &SessionFacts::default(), &BTreeMap::new()).await.expect("claimed");
    until("the claim is seen", async || b.owner(&session("s-1")).is_some()).await;
    assert!(matches!(ship(&a, &session("s-1"), 1, 1, 3).await, ShippingStep::Acknowledged { through: 3, .. }));
    let mut reader = b.log().read(&session("s-1"), 1).await.expect("begun");
    assert_eq!(reader.next().await.expect("a batch"), lines(1, 3));
    for object in ["s-1/1/3", "s-1/1/9"] {
        a.store_snapshot(object, vec![7; 300_000]).await.expect("stored");
        a.note_snapshot(&session("s-1"), 1, object).await.expect("noted");
    }
    assert_eq!(b.snapshot("s-1/1/9").await.expect("read").len(), 300_000);
    assert_eq!(a.hand_over(&session("s-1"), &node("b"), "s-1/1/9").await.expect("given"), 2);
    until("it is given", async || b.given_sessions() == [session("s-1")]).await;
    assert!(b.is_given(&session("s-1"), false) && !b.is_given(&session("s-1"), true), "until it is here");
    assert!(!a.is_given(&session("s-1"), false), "the other one gave it away");
    assert!(b.delete(&session("s-1"), || false).await.expect("deleted"));
    assert_eq!(a.log().tail(&session("s-1")).await.expect("read"), LogTail::EMPTY);
    b.leave().await;

    // With the key of a, nobody is b: neither its row is written nor its requests are heard.
    let refused = FleetMember::join(admitted("b", "a")).await;
    assert!(matches!(refused, Err(JoinError::Engine(_))), "{refused:?}");
    // Without a key nobody is admitted.
    let refused = FleetMember::join(config(&engine, "c")).await;
    assert!(matches!(refused, Err(JoinError::Unreachable { .. })), "{refused:?}");
    // Nobody removes a bucket.
    let client = async_nats::ConnectOptions::with_nkey(keys[0].seed().to_owned()).custom_inbox_prefix("_INBOX.a");
    let client = client.connect(engine.address()).await.expect("admitted");
    let context = async_nats::jetstream::new(client);
    assert!(context.delete_key_value("sessions").await.is_err());
    assert!(context.get_key_value("sessions").await.is_ok(), "it is there");
    a.leave().await;
}

#[tokio::test]
async fn without_an_engine_the_error_names_the_address() {
    let mut config = FleetConfig {
        engine: EngineAddress { servers: vec!["nats://127.0.0.1:1".into()], ..EngineAddress::default() },
        ..unconnected()
    };
    let error = FleetMember::join(config.clone()).await.expect_err("nobody listens there");
    assert!(error.to_string().contains("nats://127.0.0.1:1"), "{error}");
    config.engine.credentials = Some("/nonexistent".into());
    let error = FleetMember::join(config).await.expect_err("there is no file");
    assert!(error.to_string().contains("/nonexistent"), "{error}");
}

fn unconnected() -> FleetConfig {
    FleetConfig {
        engine: EngineAddress::default(),
        node: node("a"),
        identity: None,
        lease: Duration::from_secs(6),
        version: "0".into(),
        addresses: Vec::new(),
        labels: BTreeMap::new(),
        capacity: None,
        agents: Vec::new(),
        takes_over: false,
        layers: Vec::new(),
        log_max_age: None,
    }
}

/// Signals a server of the test's own.
fn signal(pid: i32, signal: Signal) {
    let pid = Pid::from_raw(pid).expect("a pid");
    rustix::process::kill_process(pid, signal).expect("it is there");
}
