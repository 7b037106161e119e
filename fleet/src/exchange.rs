//! Requests from one node to another, with answers of any length.
//!
//! A request is one message on the subject of the node. Its answer is a sequence of parts on the inbox of the one that asked:
//!
//! | part | when | acknowledged |
//! |---|---|---|
//! | `working` | every second until the answer begins | no |
//! | `refused` | in place of the answer: there are as many requests or streams as there may be, and nothing was changed | no |
//! | `head` | the answer begins: its head, and what there is of its body; most answers are this one part, which is also the last | if another follows |
//! | `data` | more of the body; an empty one every 5 s while there is nothing, so that each side notes the other's end | yes |
//!
//! One part is on its way at a time: whoever reads slowly slows down whoever writes. An answer whose reader has gone is broken off, as is one
//! that is not read for [`PART_TIME`]. What a request changes is changed even if nobody waits for the answer.

use std::{sync::Arc, time::Duration};

use async_nats::{Client, HeaderMap, Message, StatusCode, Subscriber};
use futures_util::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::BoxStream};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::{Instant, interval_at, timeout},
};

use crate::{
    error::{EngineError, ExchangeError},
    names::{NodeName, request_subject},
};

/// Time for the first sign of an answer.
pub const FIRST_ANSWER: Duration = Duration::from_secs(4);
/// Time between two parts, after the first.
const NEXT_PART: Duration = Duration::from_secs(15);
/// Time between notes that an answer is being worked on.
const WORKING: Duration = Duration::from_secs(1);
/// Time between empty parts of a body that has nothing new.
const IDLE: Duration = Duration::from_secs(5);
/// Time for which a part may wait to be read.
pub const PART_TIME: Duration = Duration::from_secs(60);
/// Requests that a node works on at once. One whose answer is a stream counts until that begins.
pub const MAX_REQUESTS: usize = 1024;
/// Streams that a node has open at once as answers to other nodes: followers of its sessions. They leave room for requests.
pub const MAX_STREAMS: usize = 1024;
/// Room for headers in a message.
const HEADER_ROOM: usize = 4096;
/// Bytes of a body in one part.
const PART_BYTES: usize = 256 * 1024;

/// Header with the kind of a part.
const KIND: &str = "Part";
/// Header of the last part.
const LAST: &str = "Last";

/// Head and body of a request or of the beginning of an answer. The head is whatever both sides agree on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExchangeRequest {
    /// Head.
    pub head: Vec<u8>,
    /// Body.
    pub body: Vec<u8>,
}

/// Body of an answer, in pieces. An error breaks it off.
pub type AnswerPieces = BoxStream<'static, Result<Vec<u8>, String>>;

/// Body of an answer that has come in.
pub enum AnswerBody {
    /// It came whole.
    Whole(Vec<u8>),
    /// It comes in pieces.
    Pieces(AnswerPieces),
}

/// Answer of this node to another one's request.
#[derive(derive_more::Debug)]
pub struct ExchangeAnswer {
    /// Head.
    pub head: Vec<u8>,
    /// True for a body that may stay open for as long as its reader does.
    pub is_stream: bool,
    /// Body.
    #[debug(skip)]
    pub body: AnswerPieces,
}

/// Answer of another node.
#[derive(derive_more::Debug)]
pub struct ReceivedAnswer {
    /// Head.
    pub head: Vec<u8>,
    /// Body.
    #[debug(skip)]
    pub body: AnswerBody,
}

/// What answers the requests to this node.
pub type ExchangeHandler = Arc<dyn Fn(ExchangeRequest) -> BoxFuture<'static, ExchangeAnswer> + Send + Sync>;

/// Sends a request to a node, and returns the beginning of its answer.
pub(crate) async fn send(
    client: &Client,
    node: &NodeName,
    request: &ExchangeRequest,
) -> Result<ReceivedAnswer, ExchangeError> {
    let payload = pack(&request.head, &request.body);
    let most = client.max_payload().saturating_sub(HEADER_ROOM);
    if payload.len() > most {
        return Err(ExchangeError::TooLong { bytes: payload.len(), most });
    }
    let failed = |error: async_nats::Error| EngineError::new("pass a request on to", format!("node {node}"), error);
    let inbox = client.new_inbox();
    let mut parts = client.subscribe(inbox.clone()).await.map_err(|error| failed(error.into()))?;
    let sent = client.publish_with_reply(request_subject(node), inbox, payload.into()).await;
    sent.map_err(|error| failed(error.into()))?;
    loop {
        let part = next_part(&mut parts, node, FIRST_ANSWER).await?;
        match kind_of(&part) {
            "working" => continue,
            "refused" => {
                let reason = String::from_utf8_lossy(&part.payload).into_owned();
                return Err(ExchangeError::Refused { node: node.clone(), reason });
            }
            "error" => return Err(broken_off(node, &part)),
            _ => {}
        }
        let (head, data) = unpack(&part.payload).ok_or_else(|| garbled(node))?;
        let (head, data) = (head.to_vec(), data.to_vec());
        let body = if is_last(&part) {
            AnswerBody::Whole(data)
        } else {
            acknowledge(client, &part).await;
            AnswerBody::Pieces(rest_of_body(client.clone(), node.clone(), parts, data))
        };
        return Ok(ReceivedAnswer { head, body });
    }
}

/// Body of an answer: what came with its head, then the parts that follow.
fn rest_of_body(client: Client, node: NodeName, parts: Subscriber, first: Vec<u8>) -> AnswerPieces {
    let state = Some((client, node, parts));
    let rest = futures_util::stream::unfold(state, |state| async move {
        let (client, node, mut parts) = state?;
        loop {
            let part = match next_part(&mut parts, &node, NEXT_PART).await {
                Ok(part) => part,
                Err(error) => return Some((Err(error.to_string()), None)),
            };
            acknowledge(&client, &part).await;
            if kind_of(&part) == "error" {
                return Some((Err(broken_off(&node, &part).to_string()), None));
            }
            match (is_last(&part), part.payload.is_empty()) {
                (true, _) => return Some((Ok(part.payload.to_vec()), None)),
                (false, true) => {}
                (false, false) => return Some((Ok(part.payload.to_vec()), Some((client, node, parts)))),
            }
        }
    });
    futures_util::stream::once(async move { Ok(first) }).chain(rest).boxed()
}

async fn next_part(parts: &mut Subscriber, node: &NodeName, within: Duration) -> Result<Message, ExchangeError> {
    match timeout(within, parts.next()).await {
        Ok(Some(part)) if part.status == Some(StatusCode::NO_RESPONDERS) => {
            Err(ExchangeError::NobodyListens { node: node.clone() })
        }
        Ok(Some(part)) => Ok(part),
        Ok(None) => Err(ExchangeError::BrokenOff { node: node.clone(), reason: "the connection is gone".into() }),
        Err(_) => Err(ExchangeError::NoAnswer { node: node.clone(), within }),
    }
}

/// Acknowledges a part, so that the next one is sent. Where that does not arrive, the other side gives up by itself.
async fn acknowledge(client: &Client, part: &Message) {
    if let Some(reply) = part.reply.clone() {
        let _ = client.publish(reply, "".into()).await;
    }
}

fn kind_of(part: &Message) -> &str {
    part.headers.as_ref().and_then(|headers| headers.get(KIND)).map_or("", |kind| kind.as_str())
}

fn is_last(part: &Message) -> bool {
    part.headers.as_ref().is_some_and(|headers| headers.get(LAST).is_some())
}

fn broken_off(node: &NodeName, part: &Message) -> ExchangeError {
    ExchangeError::BrokenOff { node: node.clone(), reason: String::from_utf8_lossy(&part.payload).into_owned() }
}

fn garbled(node: &NodeName) -> ExchangeError {
    ExchangeError::BrokenOff { node: node.clone(), reason: "its answer is none: is it of another version?".into() }
}

/// Packs head and body: the length of the head in four bytes, the head, the body.
fn pack(head: &[u8], body: &[u8]) -> Vec<u8> {
    let mut packed = Vec::with_capacity(4 + head.len() + body.len());
    packed.extend_from_slice(&u32::try_from(head.len()).unwrap_or(u32::MAX).to_be_bytes());
    packed.extend_from_slice(head);
    packed.extend_from_slice(body);
    packed
}

/// Unpacks head and body.
fn unpack(packed: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = packed.split_first_chunk::<4>()?;
    rest.split_at_checked(u32::from_be_bytes(*length) as usize)
}

/// Answers the requests to a node until the subscription ends, or another program has the node's name: what is being answered breaks off then.
pub(crate) async fn serve(
    client: Client,
    mut requests: Subscriber,
    handler: ExchangeHandler,
    replaced: watch::Receiver<bool>,
) {
    let places = Arc::new(Semaphore::new(MAX_REQUESTS));
    let streams = Arc::new(Semaphore::new(MAX_STREAMS));
    loop {
        let message = tokio::select! {
            () = until_replaced(replaced.clone()) => return,
            message = requests.next() => message,
        };
        let Some(message) = message else { return };
        let Some(inbox) = message.reply.clone().map(|subject| subject.to_string()) else { continue };
        let Some((head, body)) = unpack(&message.payload) else {
            tracing::warn!("a request of another node was dropped: it is none");
            continue;
        };
        let request = ExchangeRequest { head: head.to_vec(), body: body.to_vec() };
        let Ok(place) = places.clone().try_acquire_owned() else {
            let reason = format!("it works on {MAX_REQUESTS} requests of other nodes already");
            let _ = client.publish_with_headers(inbox, headers("refused", true), reason.into()).await;
            continue;
        };
        let (client, handler, replaced) = (client.clone(), handler.clone(), replaced.clone());
        let places = AnswerPlaces { request: place, streams: streams.clone() };
        tokio::spawn(async move {
            tokio::select! {
                () = until_replaced(replaced) => {}
                () = answer(&client, inbox, handler(request), places) => {}
            }
        });
    }
}

/// Waits until another program has the node's name: for ever where that does not happen.
async fn until_replaced(mut replaced: watch::Receiver<bool>) {
    if replaced.wait_for(|replaced| *replaced).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Places that an answer takes.
struct AnswerPlaces {
    request: OwnedSemaphorePermit,
    streams: Arc<Semaphore>,
}

impl AnswerPlaces {
    /// Takes the place of an answer whose body is this. `None` where there are as many streams as there may be.
    fn of_body(self, is_stream: bool) -> Option<OwnedSemaphorePermit> {
        match is_stream {
            true => self.streams.try_acquire_owned().ok(),
            false => Some(self.request),
        }
    }
}

async fn answer(client: &Client, inbox: String, work: BoxFuture<'static, ExchangeAnswer>, places: AnswerPlaces) {
    // A task of its own: what it changes is changed even if nobody waits.
    let mut work = tokio::spawn(work);
    let mut working = interval_at(Instant::now() + WORKING, WORKING);
    let done = loop {
        tokio::select! {
            done = &mut work => break done,
            _ = working.tick() => {
                let _ = client.publish_with_headers(inbox.clone(), headers("working", false), "".into()).await;
            }
        }
    };
    // A handler that panicked has been reported; the one that asks is told by its deadline.
    let Ok(ExchangeAnswer { head, is_stream, mut body }) = done else { return };
    let Some(_place) = places.of_body(is_stream) else {
        let reason = format!("{MAX_STREAMS} streams of it are open at other nodes already");
        let _ = client.publish_with_headers(inbox, headers("refused", true), reason.into()).await;
        return;
    };
    let Gathered { mut data, mut end } = gather(&mut body, Vec::new()).await;
    let first = pack(&head, &take_part(&mut data));
    if data.is_empty() && end == BodyEnd::Whole {
        let _ = client.publish_with_headers(inbox, headers("head", true), first.into()).await;
        return;
    }
    let mut sent = send_part(client, &inbox, "head", false, first).await;
    while sent.is_some() {
        if !data.is_empty() {
            let part = take_part(&mut data);
            sent = send_part(client, &inbox, "data", false, part).await;
            continue;
        }
        match end {
            BodyEnd::Whole => {
                let _ = send_part(client, &inbox, "data", true, Vec::new()).await;
                return;
            }
            BodyEnd::Broken(reason) => {
                let _ = send_part(client, &inbox, "error", true, reason.into_bytes()).await;
                return;
            }
            BodyEnd::Open => {}
        }
        end = match timeout(IDLE, body.next()).await {
            Err(_) => {
                sent = send_part(client, &inbox, "data", false, Vec::new()).await;
                BodyEnd::Open
            }
            Ok(None) => BodyEnd::Whole,
            Ok(Some(Err(error))) => BodyEnd::Broken(error),
            Ok(Some(Ok(piece))) => {
                let gathered = gather(&mut body, piece).await;
                data = gathered.data;
                gathered.end
            }
        };
    }
}

/// Takes what one part has room for from the beginning of the data.
fn take_part(data: &mut Vec<u8>) -> Vec<u8> {
    let rest = data.split_off(data.len().min(PART_BYTES));
    std::mem::replace(data, rest)
}

/// What is there of a body.
#[derive(Debug, PartialEq, Eq)]
struct Gathered {
    data: Vec<u8>,
    end: BodyEnd,
}

/// Whether more of a body comes.
#[derive(Debug, PartialEq, Eq)]
enum BodyEnd {
    Open,
    Whole,
    Broken(String),
}

/// Adds what is there of a body already, as far as a part has room.
async fn gather(body: &mut AnswerPieces, mut data: Vec<u8>) -> Gathered {
    while data.len() < PART_BYTES {
        match body.next().now_or_never() {
            Some(Some(Ok(piece))) => data.extend(piece),
            Some(None) => return Gathered { data, end: BodyEnd::Whole },
            Some(Some(Err(error))) => return Gathered { data, end: BodyEnd::Broken(error) },
            None => break,
        }
    }
    Gathered { data, end: BodyEnd::Open }
}

/// Sends a part, and waits until it is read. `None` where nobody reads it.
async fn send_part(client: &Client, inbox: &str, kind: &str, is_last: bool, payload: Vec<u8>) -> Option<()> {
    let request =
        async_nats::Request::new().headers(headers(kind, is_last)).payload(payload.into()).timeout(Some(PART_TIME));
    match client.send_request(inbox.to_owned(), request).await {
        Ok(acknowledged) if acknowledged.status != Some(StatusCode::NO_RESPONDERS) => Some(()),
        Ok(_) => None,
        Err(error) => {
            tracing::debug!(%error, "the rest of an answer is not sent: nobody reads it");
            None
        }
    }
}

fn headers(kind: &str, is_last: bool) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(KIND, kind);
    if is_last {
        headers.insert(LAST, "1");
    }
    headers
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_packed_comes_back(head in proptest::collection::vec(any::<u8>(), 0..100), body in proptest::collection::vec(any::<u8>(), 0..100)) {
            let packed = pack(&head, &body);
            prop_assert_eq!(unpack(&packed), Some((&head[..], &body[..])));
        }

        #[test]
        fn garbage_is_refused_and_no_panic(packed in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Some((head, body)) = unpack(&packed) {
                prop_assert_eq!(head.len() + body.len() + 4, packed.len());
            }
        }
    }

    #[test]
    fn a_stream_leaves_the_place_of_its_request() {
        let (requests, streams) = (Arc::new(Semaphore::new(2)), Arc::new(Semaphore::new(1)));
        let places = || {
            let request = requests.clone().try_acquire_owned().expect("room for a request");
            AnswerPlaces { request, streams: streams.clone() }
        };
        let follower = places().of_body(true).expect("room for a stream");
        assert_eq!(requests.available_permits(), 2, "the request is over");
        assert!(places().of_body(true).is_none(), "no second stream");
        let prompts = [places(), places()].map(|places| places.of_body(false).expect("its own place"));
        assert_eq!(requests.available_permits(), 0);
        drop((prompts, follower));
        assert_eq!((requests.available_permits(), streams.available_permits()), (2, 1));
    }

    #[test]
    fn long_data_is_cut() {
        let mut data = vec![7; PART_BYTES + 1];
        assert_eq!(take_part(&mut data).len(), PART_BYTES);
        assert_eq!(take_part(&mut data), [7]);
        assert_eq!(take_part(&mut data), [0; 0]);
    }

    #[tokio::test]
    async fn what_is_there_goes_into_one_part() {
        let pieces = || futures_util::stream::iter(["a", "b"].map(|text| Ok(text.as_bytes().to_vec())));
        let gathered = |text: &str, end| Gathered { data: text.as_bytes().to_vec(), end };
        assert_eq!(gather(&mut pieces().boxed(), Vec::new()).await, gathered("ab", BodyEnd::Whole));
        let mut open = pieces().chain(futures_util::stream::pending()).boxed();
        assert_eq!(gather(&mut open, b"0".to_vec()).await, gathered("0ab", BodyEnd::Open));
        let mut broken = pieces().chain(futures_util::stream::iter([Err("gone".to_owned())])).boxed();
        assert_eq!(gather(&mut broken, Vec::new()).await, gathered("ab", BodyEnd::Broken("gone".into())));
    }
}
