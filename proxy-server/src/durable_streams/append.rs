//! Appends to streams, their end, and their deletion.

use axum::{
    body::Bytes,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use proxy_manager::{
    ByteStreamAppend, ByteStreamChange, ByteStreamInfo, ByteStreamOutcome, ByteStreamRefusal, ProducerSequence,
};

use super::{
    StreamPath, free_path,
    headers::{self, CLOSED, EXPECTED_SEQ, NEXT_OFFSET, PRODUCER_EPOCH, PRODUCER_SEQ, RECEIVED_SEQ, SEQ},
    log_problem, messages, source, unknown, with_headers,
};
use crate::{
    ProblemDetails,
    access::Caller,
    requests::{Body, MAX_BODY, RouteResult},
};

/// Takes the body of a request.
pub(super) fn bytes(body: Body) -> RouteResult<Bytes> {
    body.map_err(|error| {
        let kind = if error.status() == StatusCode::PAYLOAD_TOO_LARGE { "body-too-large" } else { "usage" };
        ProblemDetails::new(kind, format!("reading the request failed: {error} (at most {MAX_BODY} bytes)"))
    })
}

/// Answer with a stream's state.
pub(super) fn described(status: StatusCode, info: &ByteStreamInfo) -> Response {
    let mut response = status.into_response();
    headers::insert(&mut response, [(NEXT_OFFSET, headers::offset(info.tail))]);
    if status != StatusCode::NO_CONTENT {
        headers::insert(&mut response, [("content-type", info.content_type.to_string())]);
    }
    if info.is_closed {
        headers::insert(&mut response, [(CLOSED, "true".to_owned())]);
    }
    response
}

pub(super) async fn append(
    caller: Caller,
    StreamPath(path): StreamPath,
    headers: HeaderMap,
    body: Body,
) -> RouteResult<Response> {
    let info = match caller.manager.byte_stream(&path) {
        Some(info) => info,
        None => return Err(no_free_stream(&caller, &path)?),
    };
    free_path(&caller, &path)?;
    let body = bytes(body)?;
    let producer = headers::producer(&headers)?;
    let closes = headers::closes(&headers);
    let usage = |detail: &str| Err(ProblemDetails::usage(detail.to_owned()));
    if body.is_empty() && !closes {
        return usage("the body is empty: send what is to be appended, or `Stream-Closed: true`");
    }
    let given = headers::text(&headers, header::CONTENT_TYPE.as_str()).filter(|text| !text.is_empty());
    if given.is_none() && !body.is_empty() {
        return usage("the request has no Content-Type: send that of the stream");
    }
    let content_type = given.unwrap_or_default();
    // A stream that takes nothing says so first, whatever the body.
    let content = match messages::content(content_type, &body) {
        Err(_) if info.is_closed || info.is_deleted => proxy_manager::StreamContent::bytes(body.to_vec()),
        content => content?,
    };
    if content.is_empty() && !body.is_empty() && !info.is_closed && !info.is_deleted {
        return usage("the array is empty: send at least one message");
    }
    let append = ByteStreamAppend {
        path: path.clone(),
        content_type: content_type.to_owned(),
        content,
        closes,
        seq: headers::text(&headers, SEQ).map(str::to_owned),
        producer: producer.clone(),
    };
    let change = ByteStreamChange::Append(Box::new(append));
    Ok(match caller.manager.change_byte_stream(change).await.map_err(log_problem)? {
        ByteStreamOutcome::Appended(info) => {
            let status = if producer.is_some() && !body.is_empty() { StatusCode::OK } else { StatusCode::NO_CONTENT };
            let mut response = described(status, &info);
            if let Some(producer) = &producer {
                numbers(&mut response, producer.epoch, producer.seq);
            }
            response
        }
        ByteStreamOutcome::Duplicate(info, seq) => {
            let mut response = described(StatusCode::NO_CONTENT, &info);
            if let Some(producer) = &producer {
                numbers(&mut response, producer.epoch, seq);
            }
            response
        }
        ByteStreamOutcome::Refused(refusal) => refused(&path, &refusal, producer.as_ref()),
        _ => ProblemDetails::failed("the event log gave no answer to an append").into_response(),
    })
}

fn numbers(response: &mut Response, epoch: u64, seq: u64) {
    headers::insert(response, [(PRODUCER_EPOCH, epoch.to_string()), (PRODUCER_SEQ, seq.to_string())]);
}

pub(super) async fn delete(caller: Caller, StreamPath(path): StreamPath) -> RouteResult<Response> {
    if caller.manager.byte_stream(&path).is_none() {
        return Err(no_free_stream(&caller, &path)?);
    }
    free_path(&caller, &path)?;
    match caller.manager.change_byte_stream(ByteStreamChange::Delete(path.clone())).await.map_err(log_problem)? {
        ByteStreamOutcome::Deleted => Ok(StatusCode::NO_CONTENT.into_response()),
        ByteStreamOutcome::Refused(refusal) => Ok(refused(&path, &refusal, None)),
        _ => Err(ProblemDetails::failed("the event log gave no answer to a deletion")),
    }
}

/// Problem of a change to a stream that is a session's, or that there is not.
///
/// # Errors
/// Those of the name.
fn no_free_stream(caller: &Caller, path: &str) -> RouteResult<ProblemDetails> {
    if source::session(caller, path)?.is_some() {
        let detail = format!(
            "{path:?} is the stream of a session, to read and to fork here: append with POST /v1/streams/{path}/events, and remove it \
             with DELETE /v1/sessions/{path}"
        );
        return Ok(ProblemDetails::new("method-not-allowed", detail));
    }
    free_path(caller, path)?;
    Ok(unknown(path))
}

fn refused(path: &str, refusal: &ByteStreamRefusal, producer: Option<&ProducerSequence>) -> Response {
    let problem = |kind| ProblemDetails::new(kind, format!("append to the stream {path:?}: {refusal}"));
    match refusal {
        ByteStreamRefusal::Unknown => unknown(path).into_response(),
        ByteStreamRefusal::Deleted => super::deleted(path).into_response(),
        ByteStreamRefusal::Closed(tail) => with_headers(
            problem("stream-conflict"),
            [(CLOSED, "true".to_owned()), (NEXT_OFFSET, headers::offset(*tail))],
        ),
        ByteStreamRefusal::StaleEpoch(epoch) => with_headers(problem("refused"), [(PRODUCER_EPOCH, epoch.to_string())]),
        ByteStreamRefusal::SequenceGap(expected) => {
            let received = producer.map_or(0, |producer| producer.seq);
            with_headers(
                problem("stream-conflict"),
                [(EXPECTED_SEQ, expected.to_string()), (RECEIVED_SEQ, received.to_string())],
            )
        }
        ByteStreamRefusal::EpochStart => problem("usage").into_response(),
        _ => problem("stream-conflict").into_response(),
    }
}
