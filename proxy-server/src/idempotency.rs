//! Requests that are sent again, as after a connection that broke off: with the same `Idempotency-Key` they are done once.

use axum::{
    http::{HeaderMap, HeaderValue, StatusCode},
    response::{IntoResponse, Response},
};
use proxy_manager::{RequestGuard, RequestStart, SessionId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::{
    ProblemDetails,
    access::Caller,
    requests::{JsonBody, RouteResult},
};

/// Header with the caller's name for a request.
pub(crate) const KEY: &str = "idempotency-key";

/// Header of an answer that is given again.
const REPLAYED: &str = "idempotent-replayed";

/// Longest key, in bytes.
const LONGEST: usize = 255;

/// Answer of a request that was done: its status and its JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RequestAnswer {
    status: u16,
    body: Value,
}

impl RequestAnswer {
    /// Creates an answer.
    ///
    /// # Errors
    /// `failed` for what is no JSON.
    pub(crate) fn new(status: StatusCode, body: &impl Serialize) -> RouteResult<Self> {
        let failed = |error: serde_json::Error| ProblemDetails::failed(format!("the answer is no JSON: {error}"));
        Ok(Self { status: status.as_u16(), body: serde_json::to_value(body).map_err(failed)? })
    }
}

impl IntoResponse for RequestAnswer {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, JsonBody(self.body)).into_response()
    }
}

/// Name and content of a request that may be sent again.
#[derive(Clone, Debug)]
pub(crate) struct NamedRequest {
    name: String,
    fingerprint: String,
}

impl NamedRequest {
    /// Takes the key of a request, if it has one. A key is its caller's: those of others are other keys.
    ///
    /// # Errors
    /// `usage` for a key that is none.
    pub(crate) fn of(caller: &Caller, headers: &HeaderMap, route: &str, body: &[u8]) -> RouteResult<Option<Self>> {
        let Some(key) = headers.get(KEY) else { return Ok(None) };
        let key = key.to_str().ok().filter(|key| (1..=LONGEST).contains(&key.len()));
        let key = key.ok_or_else(|| {
            ProblemDetails::usage(format!("Idempotency-Key is 1 to {LONGEST} characters of ASCII, such as a UUID"))
        })?;
        let hash = |parts: &[&[u8]]| {
            let mut hash = Sha256::new();
            for part in parts {
                hash.update(part.len().to_le_bytes());
                hash.update(part);
            }
            hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect::<String>()
        };
        let name = hash(&[caller.identity.name.as_bytes(), key.as_bytes()]);
        Ok(Some(Self { name, fingerprint: hash(&[route.as_bytes(), body]) }))
    }
}

/// Does `work` once for each name, also if its client leaves. Without a name it is just done. `session` is the one that the request is
/// about, and `found` the answer where that session is all that is known of a request during which the server ended.
///
/// # Errors
/// Those of `work`; `idempotency-key-reused`; `interrupted` if the server ended while it did this, and nobody knows how far it came.
pub(crate) async fn once(
    caller: &Caller,
    request: Option<NamedRequest>,
    session: Option<&SessionId>,
    found: impl FnOnce(&SessionId) -> Option<RouteResult<RequestAnswer>> + Send + 'static,
    work: impl Future<Output = RouteResult<RequestAnswer>> + Send + 'static,
) -> RouteResult<Response> {
    let Some(NamedRequest { name, fingerprint }) = request else { return Ok(work.await?.into_response()) };
    let (manager, session) = (caller.manager.clone(), session.cloned());
    let done = tokio::spawn(async move {
        match manager.begin_request(&name, &fingerprint, session.as_ref()).await? {
            RequestStart::New(guard) => finish(guard, work.await).await.map(IntoResponse::into_response),
            RequestStart::Answered(answer) => replay(&answer),
            RequestStart::Interrupted(Some(session), guard) => match found(&session) {
                Some(answer) => finish(guard, answer).await.map(IntoResponse::into_response),
                // A start that was interrupted has left nothing.
                None => finish(guard, work.await).await.map(IntoResponse::into_response),
            },
            RequestStart::Interrupted(None, _) => {
                let detail = "the server ended while it did this, and nobody knows how far it came: see the session's events, \
                              and use another Idempotency-Key to do it again";
                Err(ProblemDetails::new("interrupted", detail))
            }
            RequestStart::Reused => {
                let detail = "this Idempotency-Key was used for another request: use a fresh one for each request";
                Err(ProblemDetails::new("idempotency-key-reused", detail))
            }
        }
    });
    done.await.map_err(|error| ProblemDetails::failed(format!("the work broke off: {error}")))?
}

/// Notes the answer of a request. One that was refused has done nothing, and may be tried again.
async fn finish(guard: RequestGuard, done: RouteResult<RequestAnswer>) -> RouteResult<RequestAnswer> {
    let noted = match &done {
        Ok(answer) => guard.answer(serde_json::to_string(answer).unwrap_or_default()).await,
        Err(problem) if problem.status < 500 || problem.status == 501 || problem.status == 503 => guard.forget().await,
        Err(problem) => match RequestAnswer::new(StatusCode::INTERNAL_SERVER_ERROR, problem) {
            Ok(answer) => {
                let answer = RequestAnswer { status: problem.status, ..answer };
                guard.answer(serde_json::to_string(&answer).unwrap_or_default()).await
            }
            Err(_) => Ok(()),
        },
    };
    if let Err(error) = noted {
        tracing::warn!(%error, "failed to note the answer of a request");
    }
    done
}

/// Gives an answer again.
fn replay(answer: &str) -> RouteResult<Response> {
    let answer: RequestAnswer = serde_json::from_str(answer)
        .map_err(|error| ProblemDetails::failed(format!("the noted answer does not parse: {error}")))?;
    if answer.status >= 400 {
        let problem: Result<ProblemDetails, _> = serde_json::from_value(answer.body);
        return Err(problem.unwrap_or_else(|_| ProblemDetails::failed("the request failed")));
    }
    let mut response = answer.into_response();
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    Ok(response)
}
