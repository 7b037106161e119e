//! A model server for real agents: HTTP on loopback, streaming, and scripted by the prompt.
//!
//! It speaks the dialects that agents ask for: OpenAI's Responses (`POST /v1/responses`: codex) and Chat Completions
//! (`POST /v1/chat/completions`: opencode, pi), Anthropic's Messages (`POST /v1/messages`: Claude Code) and Gemini's
//! (`POST /v1beta/models/MODEL:streamGenerateContent`). A request that does not ask for a stream is answered in one piece.
//! What is answered depends on the last user message of the request:
//!
//! * `think: TEXT`: the thought `thinking of TEXT`, then the text of an echo.
//! * `shell: COMMAND`: a call of the agent's own shell tool; once the request carries that call's output, the text
//!   `done: ` and the first 100 characters of it.
//! * `parallel: COMMAND || COMMAND`: a call of that tool for each, in one answer; then `done: ` and their outputs,
//!   separated by ` | `.
//! * `call: TOOL JSON`: a call of the tool whose name ends with the words TOOL, with those of the members that it takes; then
//!   `done: ` as above.
//! * `slow: N`: the numbers from 1 to N, each a delta, 50 ms apart. It ends when the client hangs up.
//! * `big: N`: a text of N bytes, in numbered lines.
//! * `status: CODE`: that HTTP error. `status: CODE once`: only the first time; the same request made again is echoed.
//! * `cut`: a text whose connection breaks before its end. `cut once`: as above.
//! * anything else: an echo, the text `you said: ` and the message, in several deltas. Messages before it that were not
//!   answered, or by `slow` alone, are mentioned as ` (after MESSAGE)`: so it is with a turn that was steered.
//!
//! What agents add to the person's words does not count: blocks like `<system-reminder>…</system-reminder>`. A request
//! without tools is the agent's own, for a title or the like: it follows no directive and is echoed, or answered with JSON
//! that fits the schema it asks for. Every answer claims the tokens of [`USAGE`].

mod anthropic;
mod chat;
mod conversation;
mod delivery;
mod dialect;
mod gemini;
mod responses;
mod script;

use std::{
    collections::HashSet,
    hash::{DefaultHasher, Hash, Hasher},
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
};

use axum::{
    Json, Router,
    body::Bytes,
    extract::{DefaultBodyLimit, State},
    http::{HeaderMap, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use serde_json::Value;
use tokio::{
    net::TcpListener,
    sync::{oneshot, watch},
};

pub use self::dialect::{USAGE, Usage};
use self::{
    dialect::{Dialect, Head},
    script::Reply,
};

/// Requests after which an agent counts as run away: it gets errors from then on.
const MAX_REQUESTS: usize = 1000;
/// The most bytes of a request. Requests carry the whole conversation, and so every big answer.
const MAX_BODY: usize = 128 * 1024 * 1024;

/// Goes with each error of the script. Agents that heed it try again at once, and not after ever longer pauses.
const RETRY_SOON: (&str, &str) = ("retry-after-ms", "50");

/// A request that an agent made.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Path, such as `/v1/responses`.
    pub path: String,
    /// The header `authorization`, `x-api-key` or `x-goog-api-key`, whichever there was.
    pub authorization: Option<String>,
    /// The body; `null` if it is not JSON.
    pub body: Value,
    /// What became of it.
    pub outcome: Outcome,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is being answered.
    Open,
    /// It was answered wholly.
    Answered,
    /// It was answered with this HTTP status.
    Refused(u16),
    /// The script cut the connection.
    Cut,
    /// The client hung up before the end of the answer.
    Dropped,
}

/// The running server. Dropping it closes its port and its connections.
#[derive(Debug)]
pub struct MockModel {
    address: SocketAddr,
    requests: watch::Receiver<Vec<Request>>,
    /// The server runs until this is dropped.
    _stop: oneshot::Sender<()>,
}

impl MockModel {
    /// Starts a server on a free port of 127.0.0.1, in the tokio runtime of the caller.
    ///
    /// # Errors
    /// The system's, if no port can be had.
    pub async fn start() -> io::Result<Self> {
        Self::start_on(0).await
    }

    /// Starts a server on this port of 127.0.0.1; 0 is any that is free.
    ///
    /// # Errors
    /// The system's, if the port cannot be had.
    pub async fn start_on(port: u16) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        let address = listener.local_addr()?;
        let (log, requests) = watch::channel(Vec::new());
        let (stop, stopped) = oneshot::channel::<()>();
        let (ending, ended) = watch::channel(());
        let server = Arc::new(Server { log, seen: Mutex::default(), ended });
        let router = Router::new().fallback(answer).layer(DefaultBodyLimit::max(MAX_BODY)).with_state(server);
        let serving = axum::serve(listener, router).with_graceful_shutdown(async {
            // Never sent: an error says that the handle was dropped.
            let _ = stopped.await;
            drop(ending);
        });
        tokio::spawn(serving.into_future());
        Ok(Self { address, requests, _stop: stop })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What an agent wants as the base URL of an OpenAI-like provider: `http://127.0.0.1:PORT/v1`.
    pub fn base_url(&self) -> String {
        format!("{}/v1", self.root_url())
    }

    /// What Claude Code and gemini want as the base URL: `http://127.0.0.1:PORT`.
    pub fn root_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Every request so far, oldest first.
    pub fn requests(&self) -> Vec<Request> {
        self.requests.borrow().clone()
    }

    /// The requests, once they are as `wanted`. It waits for as long as that takes: give it a deadline.
    pub async fn until(&self, wanted: impl Fn(&[Request]) -> bool) -> Vec<Request> {
        let mut requests = self.requests.clone();
        let found = requests.wait_for(|requests| wanted(requests)).await.map(|requests| requests.clone());
        match found {
            Ok(requests) => requests,
            // The server has ended, by a panic: nothing more will come.
            Err(_) => std::future::pending().await,
        }
    }
}

/// What the answers share.
struct Server {
    log: watch::Sender<Vec<Request>>,
    /// The hashes of the bodies of the requests so far.
    seen: Mutex<HashSet<u64>>,
    /// Closed when the server is to end.
    ended: watch::Receiver<()>,
}

impl Server {
    /// Notes a request, and gives its number, from 1; none if there were too many.
    fn note(&self, path: &str, headers: &HeaderMap, body: &Value) -> Option<usize> {
        let authorization = [header::AUTHORIZATION.as_str(), "x-api-key", "x-goog-api-key"]
            .iter()
            .find_map(|name| headers.get(*name)?.to_str().ok())
            .map(str::to_owned);
        let request = Request { path: path.to_owned(), authorization, body: body.clone(), outcome: Outcome::Open };
        let mut number = None;
        self.log.send_if_modified(|requests| {
            if requests.len() >= MAX_REQUESTS {
                return false;
            }
            requests.push(request);
            number = Some(requests.len());
            true
        });
        number
    }

    /// Notes what became of a request.
    fn end(&self, number: usize, outcome: Outcome) {
        self.log.send_modify(|requests| {
            if let Some(request) = requests.get_mut(number - 1) {
                request.outcome = outcome;
            }
        });
    }

    /// Whether this request was not made before. Agents try again with the very same request, and no two sessions' are alike.
    fn is_first(&self, body: &Value) -> bool {
        // The order of members may differ.
        let mut body = body.clone();
        body.sort_all_objects();
        let mut hasher = DefaultHasher::new();
        body.to_string().hash(&mut hasher);
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).insert(hasher.finish())
    }
}

/// What a path asks for.
enum Wanted {
    /// An answer of the model, as a stream or in one piece.
    Answer { dialect: &'static dyn Dialect, stream: bool, model: String },
    /// Something that is always the same.
    Fixed(Value),
}

fn wanted(path: &str, body: &Value) -> Option<Wanted> {
    let model = body["model"].as_str().unwrap_or_default();
    let answer = |dialect, stream, model: &str| Some(Wanted::Answer { dialect, stream, model: model.to_owned() });
    let stream = body["stream"] == true;
    match path {
        "/v1/responses" => return answer(&responses::Responses, stream, model),
        "/v1/chat/completions" => return answer(&chat::Chat, stream, model),
        "/v1/messages" => return answer(&anthropic::Anthropic, stream, model),
        "/v1/messages/count_tokens" => return Some(Wanted::Fixed(anthropic::count())),
        _ => {}
    }
    let (model, method) = path.strip_prefix("/v1beta/models/")?.split_once(':')?;
    match method {
        "streamGenerateContent" => answer(&gemini::Gemini, true, model),
        "generateContent" => answer(&gemini::Gemini, false, model),
        "countTokens" => Some(Wanted::Fixed(gemini::count())),
        _ => None,
    }
}

/// Answers one request, whatever its path.
async fn answer(State(server): State<Arc<Server>>, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    let path = uri.path();
    let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let Some(number) = server.note(path, &headers, &body) else {
        return (StatusCode::TOO_MANY_REQUESTS, "the agent has asked too often").into_response();
    };
    let end = |outcome, response: Response| {
        server.end(number, outcome);
        response
    };
    match wanted(path, &body) {
        None => {
            let told = (StatusCode::NOT_FOUND, format!("the mock model has no {path}"));
            end(Outcome::Refused(StatusCode::NOT_FOUND.as_u16()), told.into_response())
        }
        Some(Wanted::Fixed(value)) => end(Outcome::Answered, Json(value).into_response()),
        Some(Wanted::Answer { dialect, stream, model }) => {
            let conversation = dialect.read(&body);
            let head = Head { number, model };
            match script::next(&conversation, server.is_first(&body)) {
                Reply::Refusal(status) => {
                    let error = dialect.error(status, "an error of the script");
                    let response = (status, [RETRY_SOON], Json(error)).into_response();
                    end(Outcome::Refused(status.as_u16()), response)
                }
                Reply::Turn(turn) if stream => {
                    let events = dialect.events(&turn, &head);
                    delivery::stream(events, turn.pause, turn.cut, Arc::clone(&server), number)
                }
                Reply::Turn(turn) => {
                    let whole = dialect.whole(&turn, &head).to_string();
                    delivery::whole(whole, turn.cut, Arc::clone(&server), number)
                }
            }
        }
    }
}

/// Whether a text of `value`, at any depth, contains `text`.
pub fn says(value: &Value, text: &str) -> bool {
    match value {
        Value::String(string) => string.contains(text),
        Value::Array(items) => items.iter().any(|item| says(item, text)),
        Value::Object(members) => members.values().any(|member| says(member, text)),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
