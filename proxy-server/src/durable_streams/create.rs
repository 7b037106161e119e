//! Creation of streams, and of forks.

use axum::{
    extract::OriginalUri,
    http::{HeaderMap, StatusCode, header},
    response::Response,
};
use proxy_manager::{
    ByteStreamChange, ByteStreamOutcome, ByteStreamRefusal, NewByteStream, StreamFork, StreamLifetime, is_json,
};

use super::{
    ROOT, StreamPath, append, free_path,
    headers::{self, FORK_OFFSET, FORK_SUB_OFFSET, FORKED_FROM},
    log_problem, messages, source,
};
use crate::{
    ProblemDetails,
    access::Caller,
    requests::{Body, RouteResult},
};

/// Most bytes of a session's events that a fork copies.
const MAX_COPY: usize = 64 * 1024 * 1024;
/// Media type of a stream that is created without.
const NO_TYPE: &str = "application/octet-stream";

pub(super) async fn create(
    caller: Caller,
    StreamPath(path): StreamPath,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
    body: Body,
) -> RouteResult<Response> {
    free_path(&caller, &path)?;
    if source::session(&caller, &path)?.is_some() && caller.manager.byte_stream(&path).is_none() {
        let detail = format!("{path:?} is the stream of a session: give a free stream another name");
        return Err(ProblemDetails::new("stream-conflict", detail));
    }
    let body = append::bytes(body)?;
    let lifetime = headers::lifetime(&headers)?;
    let given = headers::text(&headers, header::CONTENT_TYPE.as_str()).filter(|text| is_media_type(text));
    let mut new = NewByteStream {
        path: path.clone(),
        content_type: given.map(str::to_owned),
        lifetime,
        is_closed: headers::closes(&headers),
        content: proxy_manager::StreamContent::default(),
        fork: fork(&headers)?,
        has_rules: false,
    };
    let mut kind = given.map(str::to_owned);
    if let Some(fork) = &mut new.fork {
        match copy(&caller, fork).await? {
            Some(of_session) => {
                if let Some(given) = given.filter(|given| !is_json(given)) {
                    let detail = format!("the stream of a session is application/json, and the fork is to be {given}");
                    return Err(ProblemDetails::new("stream-conflict", detail));
                }
                new.content_type.get_or_insert_with(|| of_session.to_owned());
                kind = new.content_type.clone();
            }
            None if kind.is_none() => {
                kind = caller.manager.byte_stream(&fork.source).map(|info| info.content_type.to_string());
            }
            None => {}
        }
    }
    new.content = messages::content(kind.as_deref().unwrap_or(NO_TYPE), &body)?;
    match caller.manager.change_byte_stream(ByteStreamChange::Create(Box::new(new))).await.map_err(log_problem)? {
        ByteStreamOutcome::Created(info) => {
            let mut response = append::described(StatusCode::CREATED, &info);
            // Where it is mounted, as it was asked for.
            let host = headers::text(&headers, header::HOST.as_str()).unwrap_or("localhost");
            headers::insert(&mut response, [("location", format!("{}://{host}{}", caller.scheme, uri.path()))]);
            Ok(response)
        }
        ByteStreamOutcome::Exists(info) => Ok(append::described(StatusCode::OK, &info)),
        ByteStreamOutcome::Refused(refusal) => Err(refused(&path, &refusal)),
        _ => Err(ProblemDetails::failed("the event log gave no answer to a creation")),
    }
}

/// Returns true for text that is a media type.
fn is_media_type(text: &str) -> bool {
    let is_word = |word: &str| {
        !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$&^_.+-".contains(&byte))
    };
    let kind = text.split(';').next().unwrap_or_default().trim();
    kind.split_once('/').is_some_and(|(kind, of)| is_word(kind) && is_word(of))
}

/// Returns the fork that is asked for.
fn fork(headers: &HeaderMap) -> RouteResult<Option<StreamFork>> {
    let usage = |detail: String| Err(ProblemDetails::usage(detail));
    let Some(source) = headers.get(FORKED_FROM) else {
        let lonely = [FORK_OFFSET, FORK_SUB_OFFSET].into_iter().find(|name| headers.contains_key(*name));
        return match lonely {
            Some(name) => usage(format!("{name} needs {FORKED_FROM}: name the stream to fork")),
            None => Ok(None),
        };
    };
    let Some(source) = source.to_str().ok().filter(|source| !source.is_empty()) else {
        return usage(format!("{FORKED_FROM} has to be the path of a stream"));
    };
    let beyond = match headers.get(FORK_SUB_OFFSET) {
        None => 0,
        Some(beyond) => match beyond.to_str().ok().and_then(headers::number) {
            Some(beyond) => beyond,
            None => return usage(format!("{FORK_SUB_OFFSET} is {beyond:?}: it has to be a number, in plain digits")),
        },
    };
    let at = match headers.get(FORK_OFFSET) {
        None => None,
        Some(at) => Some(headers::parse_offset(at.to_str().unwrap_or_default())?),
    };
    Ok(Some(StreamFork { source: source_path(source), at, beyond, copied: None }))
}

/// Name of the stream at a path, which may be that of the whole URL, or begin at the root of the streams.
fn source_path(text: &str) -> String {
    let path = text.find(ROOT).map_or(text.trim_start_matches('/'), |at| &text[at + ROOT.len()..]);
    percent_encoding::percent_decode_str(path).decode_utf8_lossy().into_owned()
}

/// Takes the events of a session that is to be forked, and returns their media type; `None` where the source is no session's.
async fn copy(caller: &Caller, fork: &mut StreamFork) -> RouteResult<Option<&'static str>> {
    if caller.manager.byte_stream(&fork.source).is_some() {
        return Ok(None);
    }
    let Some(session) = source::session(caller, &fork.source)? else { return Ok(None) };
    let tail = session.tail();
    let Some(end) = fork.at.unwrap_or(tail).checked_add(fork.beyond).filter(|end| *end <= tail) else {
        return Err(ProblemDetails::usage(format!("the session's stream ends at {}", headers::offset(tail))));
    };
    (fork.at, fork.beyond) = (Some(end), 0);
    let (mut copied, mut bytes) = (Vec::new(), 0);
    let mut events = session.events(0)?;
    while copied.last().map_or(0, |(position, _)| *position) < end
        && let Some(batch) = events.next().await?
    {
        for (position, event) in batch.into_iter().filter(|(position, _)| *position <= end) {
            bytes += event.len();
            copied.push((position, event));
        }
        if bytes > MAX_COPY {
            let detail = "a fork copies 64 MiB of a session's events at most: fork it at a smaller offset";
            return Err(ProblemDetails::new("body-too-large", detail));
        }
    }
    fork.copied = Some(copied);
    Ok(Some("application/json"))
}

fn refused(path: &str, refusal: &ByteStreamRefusal) -> ProblemDetails {
    let kind = match refusal {
        ByteStreamRefusal::ForkPosition => "usage",
        ByteStreamRefusal::UnknownSource => "unknown-stream",
        ByteStreamRefusal::TooMany => "overloaded",
        _ => "stream-conflict",
    };
    ProblemDetails::new(kind, format!("create the stream {path:?}: {refusal}"))
}

/// Headers that tell the life of a stream.
pub(super) fn life(lifetime: StreamLifetime) -> Option<(&'static str, String)> {
    match lifetime {
        StreamLifetime::Unbounded => None,
        StreamLifetime::Idle(idle) => Some((headers::TTL, idle.as_secs().to_string())),
        StreamLifetime::Until(until) => {
            Some((headers::EXPIRES_AT, humantime::format_rfc3339_millis(until).to_string()))
        }
    }
}
