//! Streams as they are read: a free stream, or that of a session, whose events are JSON messages.

use std::sync::Arc;

use futures_util::FutureExt as _;
use proxy_manager::{ByteStreamWatch, ProxyManager, SessionId, SessionState, SessionStatus, Subscription};

use super::{check_path, deleted, free_path, log_problem, unknown};
use crate::{ProblemDetails, access::Caller, requests::RouteResult, stream::event_json};

/// Bytes of content in an answer, or in an event of an answer. The last row or batch may go beyond.
pub(super) const PAGE_BYTES: usize = 512 * 1024;

/// State of a stream when it was asked for.
#[derive(Clone, Debug)]
pub(super) struct StreamState {
    pub(super) content_type: Arc<str>,
    pub(super) tail: u64,
    pub(super) is_closed: bool,
    /// Header that tells its life.
    pub(super) life: Option<(&'static str, String)>,
    /// Name that no other stream has, now or later.
    pub(super) tag: String,
}

/// Stream of a session.
#[derive(Clone, Debug)]
pub(super) struct SessionSource {
    manager: ProxyManager,
    id: SessionId,
}

/// Stream that a caller may read.
#[derive(Clone, Debug)]
pub(super) enum StreamSource {
    Free { manager: ProxyManager, path: String },
    Session(SessionSource),
}

/// Content in the order of the stream, as it comes.
pub(super) enum StreamReader {
    Free { manager: ProxyManager, path: String, watch: ByteStreamWatch },
    Session(SessionEvents),
}

/// Events of a session, as they come.
pub(super) struct SessionEvents {
    subscription: Subscription,
}

/// Finds the stream of a session that the caller sees.
///
/// # Errors
/// None now: an id that the caller does not see has no stream.
pub(super) fn session(caller: &Caller, path: &str) -> RouteResult<Option<SessionSource>> {
    let Ok(id) = path.parse::<SessionId>() else { return Ok(None) };
    let manager = &caller.manager;
    let is_seen = match manager.session(&id).is_ok() || manager.record(&id).is_ok() {
        true => caller.session_id(path).is_ok_and(|seen| seen == id),
        false => manager.last_offset(&id).is_ok_and(|last| last > 0) && caller.identity.user.is_none(),
    };
    Ok(is_seen.then(|| SessionSource { manager: manager.clone(), id }))
}

/// Finds the stream of a name.
///
/// # Errors
/// `unknown-stream`, `stream-deleted`; `refused`, `usage`.
pub(super) fn find(caller: &Caller, path: &str) -> RouteResult<StreamSource> {
    match caller.manager.byte_stream(path) {
        Some(info) => {
            free_path(caller, path)?;
            if info.is_deleted {
                return Err(deleted(path));
            }
            Ok(StreamSource::Free { manager: caller.manager.clone(), path: path.to_owned() })
        }
        None => match session(caller, path)? {
            Some(session) => Ok(StreamSource::Session(session)),
            None => {
                check_path(path)?;
                Err(unknown(path))
            }
        },
    }
}

impl SessionSource {
    /// Offset of the last event.
    pub(super) fn tail(&self) -> u64 {
        let recorded = || self.manager.record(&self.id).map_or(0, |record| record.last_offset);
        self.manager.last_offset(&self.id).unwrap_or_else(|_| recorded())
    }

    /// Returns true if nothing comes after `tail`. The state of a session says that it has ended before its last event is there.
    fn is_closed(&self, tail: u64) -> bool {
        match self.manager.session(&self.id) {
            Ok(session) => {
                let has_ended = matches!(session.info().state, SessionState::Ended { .. });
                has_ended
                    && self
                        .manager
                        .subscribe_to_stream(&self.id, tail)
                        .is_ok_and(|mut events| events.next_batch(&mut Vec::new()).now_or_never() == Some(false))
            }
            Err(_) => self.manager.record(&self.id).is_ok_and(|record| record.status() == SessionStatus::Ended),
        }
    }

    /// Reads the events after `from`.
    ///
    /// # Errors
    /// Those of the manager.
    pub(super) fn events(&self, from: u64) -> RouteResult<SessionEvents> {
        Ok(SessionEvents { subscription: self.manager.subscribe_to_stream(&self.id, from)? })
    }
}

impl SessionEvents {
    /// Waits for events; each with its offset. `None` at the end.
    pub(super) async fn next(&mut self) -> RouteResult<Option<Vec<(u64, Vec<u8>)>>> {
        let mut batch = Vec::new();
        if !self.subscription.next_batch(&mut batch).await {
            return Ok(None);
        }
        let json = |envelope: &proxy_manager::Envelope| {
            event_json(envelope, None).and_then(|json| serde_json::to_vec(&json)).map(|json| (envelope.offset, json))
        };
        let events: serde_json::Result<Vec<_>> = batch.iter().map(|envelope| json(envelope)).collect();
        events.map(Some).map_err(|error| ProblemDetails::failed(format!("an event is no JSON: {error}")))
    }
}

impl StreamSource {
    /// Returns the state; `None` for a stream that is gone by now.
    pub(super) fn state(&self) -> Option<StreamState> {
        match self {
            Self::Free { manager, path } => {
                let info = manager.byte_stream(path).filter(|info| !info.is_deleted)?;
                Some(StreamState {
                    content_type: info.content_type,
                    tail: info.tail,
                    is_closed: info.is_closed,
                    life: super::create::life(info.lifetime),
                    tag: info.id.to_string(),
                })
            }
            Self::Session(session) => {
                let tail = session.tail();
                Some(StreamState {
                    content_type: "application/json".into(),
                    is_closed: session.is_closed(tail),
                    tail,
                    life: None,
                    tag: session.id.to_string(),
                })
            }
        }
    }

    /// Returns true where a reader that has no more may be followed by another: a session of an earlier server that can be resumed.
    pub(super) fn may_go_on(&self) -> bool {
        matches!(self, Self::Session(session) if session.manager.last_offset(&session.id).is_err() && !session.is_closed(session.tail()))
    }

    /// Notes that the stream is read.
    pub(super) fn touch(&self) {
        if let Self::Free { manager, path } = self {
            manager.touch_byte_stream(path);
        }
    }

    /// Reads from position `from`.
    ///
    /// # Errors
    /// Those of the manager.
    pub(super) fn reader(&self, from: u64) -> RouteResult<StreamReader> {
        Ok(match self {
            Self::Free { manager, path } => StreamReader::Free {
                manager: manager.clone(),
                path: path.clone(),
                watch: manager.watch_byte_stream(path),
            },
            Self::Session(session) => StreamReader::Session(session.events(from)?),
        })
    }
}

impl StreamReader {
    /// Returns what comes after `from`, the end of what was read before, up to `tail` at least, where that is more; else waits for what
    /// comes. Returns with nothing when the stream may have changed in another way; `None` when this reader has no more.
    ///
    /// # Errors
    /// Those of the manager.
    pub(super) async fn next(&mut self, from: u64, tail: u64) -> RouteResult<Option<(Vec<u8>, u64)>> {
        match self {
            Self::Free { manager, path, watch } => {
                if from >= tail {
                    watch.changed().await;
                    return Ok(Some((Vec::new(), from)));
                }
                let page = manager.read_byte_stream(path, from, PAGE_BYTES).await.map_err(log_problem)?;
                Ok(Some((page.bytes, page.next)))
            }
            Self::Session(events) => {
                let (mut lines, mut next) = (Vec::new(), from);
                loop {
                    let Some(batch) = events.next().await? else { return Ok((next > from).then_some((lines, next))) };
                    for (position, event) in batch {
                        lines.extend_from_slice(&event);
                        lines.push(b'\n');
                        next = position;
                    }
                    if next >= tail || lines.len() >= PAGE_BYTES {
                        return Ok(Some((lines, next)));
                    }
                }
            }
        }
    }
}
