//! Route `hold`: a session that lasts no longer than its clients' connections.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use axum::{
    extract::{Path, State},
    http::Method,
    response::{IntoResponse as _, Response},
};
use ipc_protocol::ErrorChain;
use proxy_manager::{Error, KillOptions, ProxyManager, SessionId, SessionStatus, Subscription};
use tokio::time::{Instant, interval_at};

use crate::{
    ApiState,
    access::Caller,
    api::{HoldLine, NDJSON},
    requests::RouteResult,
    route_table::api_routes,
    stream::{self, BodySender, HEARTBEAT},
};

api_routes! { "Lifecycle", ApiState;
    /// Holds a session for as long as the connection lasts.
    ///
    /// When the connection breaks, and no other one holds the session, that is suspended, or killed if its conversation cannot go on later. The
    /// answer lasts as long as the session, also while that is suspended. Its first line says that the session is held, its last one that it has ended. Every 15 s an empty
    /// line comes. An answer that ends without that last line broke off on the server's side, and ends nothing.
    get "/v1/sessions/{id}/hold" hold: lines::<HoldLine>(200, "The session is held, and at last ended.") problems(SESSION);
}

/// Sessions that are held.
#[derive(Debug, Default)]
pub(crate) struct HeldSessions(Mutex<BTreeMap<SessionId, Weak<HoldShare>>>);

/// What the holders of a session share: the last one that leaves is who had it alone.
#[derive(Debug)]
struct HoldShare;

impl HeldSessions {
    /// Returns the share of another holder.
    fn share(&self, id: &SessionId) -> Arc<HoldShare> {
        let mut sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.retain(|_, share| share.strong_count() > 0);
        if let Some(share) = sessions.get(id).and_then(Weak::upgrade) {
            return share;
        }
        let share = Arc::new(HoldShare);
        sessions.insert(id.clone(), Arc::downgrade(&share));
        share
    }
}

/// Holds a session until it ends, or until the client leaves.
async fn hold(
    caller: Caller,
    State(state): State<ApiState>,
    method: Method,
    Path(id): Path<String>,
) -> RouteResult<Response> {
    let id = caller.unended_id(&id)?;
    let session = caller.manager.session(&id)?;
    let events = session.subscribe_from(session.info().last_offset);
    let (sender, response) = stream::response(NDJSON);
    // An answer without a body holds nothing.
    if method != Method::HEAD {
        let share = state.holds.share(&id);
        tokio::spawn(keep(caller.manager, id, share, events, sender));
    }
    Ok(response.into_response())
}

async fn keep(
    manager: ProxyManager,
    id: SessionId,
    share: Arc<HoldShare>,
    mut events: Subscription,
    client: BodySender,
) {
    // A client that has left is seen below.
    let _ = client.send(line(true)).await;
    let mut batch = Vec::new();
    let mut heartbeat = interval_at(Instant::now() + HEARTBEAT, HEARTBEAT);
    loop {
        tokio::select! {
            goes_on = events.next_batch(&mut batch) => {
                batch.clear();
                if !goes_on {
                    // At the manager's end sessions may run on, or rest.
                    if has_status(&manager, &id, SessionStatus::Ended) {
                        let _ = client.send(line(false)).await;
                    }
                    return;
                }
            }
            () = client.closed() => break,
            _ = heartbeat.tick() => drop(client.send("\n".into()).await),
        }
    }
    if Arc::into_inner(share).is_some() {
        release(&manager, &id).await;
    }
}

/// Suspends a session that nobody holds any more, or kills one that cannot go on later. One that is suspended stays so: a resume or
/// a restart that is under way is cancelled.
async fn release(manager: &ProxyManager, id: &SessionId) {
    tracing::info!(session = %id, "ending a session whose holder has left");
    let suspended = manager.suspend_session(id, KillOptions::default()).await;
    let ended = match (suspended, manager.session(id)) {
        (Err(Error::Unsupported { .. }), Ok(session)) => session.kill(KillOptions::default()).await.map(drop),
        (Ok(_) | Err(Error::Ended { .. }), _) => Ok(()),
        (Err(error), _) => Err(error),
    };
    if let Err(error) = ended {
        tracing::warn!(session = %id, error = %ErrorChain(&error), "failed to end a session whose holder has left");
    }
}

fn has_status(manager: &ProxyManager, id: &SessionId, status: SessionStatus) -> bool {
    manager.record(id).is_ok_and(|record| record.status() == status)
}

fn line(held: bool) -> axum::body::Bytes {
    let mut text = serde_json::to_vec(&HoldLine { held }).unwrap_or_default();
    text.push(b'\n');
    text.into()
}
