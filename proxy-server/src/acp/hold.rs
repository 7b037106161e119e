//! Hold on the editor's sessions: the daemon ends them when this process dies.

use std::time::Duration;

use serde_json::Value;
use tokio::{sync::watch, time::timeout};

use super::{
    AcpServer, EditorSession,
    turn::{RECONNECT_PAUSE, is_final},
};
use crate::{
    ProblemDetails,
    api_client::{ApiClient, LineStream, session_path},
    requests::RouteResult,
};

/// Longest wait for a hold, before a session works without one.
const HOLD_TIME: Duration = Duration::from_secs(5);

impl EditorSession {
    /// Waits until a daemon that has just come back knows whose the session is.
    pub(super) async fn wait_held(&self) {
        let mut is_held = self.is_held.subscribe();
        if timeout(HOLD_TIME, is_held.wait_for(|is_held| *is_held)).await.is_err() {
            tracing::warn!("a session is not held: the daemon does not answer");
        }
    }
}

impl AcpServer {
    /// Notes a session that lives as the editor's own, and holds it.
    pub(super) async fn hold(&self, session: &Value) -> RouteResult<()> {
        let id = session["sessionId"].as_str().unwrap_or_default().to_owned();
        let EditorSession { holder, is_held, .. } = self.open(&id);
        if holder.is_running() {
            return Ok(());
        }
        match take_hold(&self.api, &id).await {
            Ok(lines) => holder.set(&tokio::spawn(keep(self.api.clone(), id, lines, is_held))),
            Err(problem) if problem.kind == "unknown-route" => {
                tracing::warn!(
                    session = id,
                    "the daemon is of an older version: a session outlives the death of this process"
                );
            }
            Err(problem) => {
                self.open_sessions().remove(&id);
                return Err(problem);
            }
        }
        Ok(())
    }
}

/// Begins to hold a session.
async fn take_hold(api: &ApiClient, id: &str) -> RouteResult<LineStream> {
    let mut lines = api.lines(&session_path(id, "/hold")).await?;
    match lines.next().await? {
        Some(line) if line["held"] == true => Ok(lines),
        line => Err(ProblemDetails::failed(format!("the daemon does not hold the session {id}: it says {line:?}"))),
    }
}

/// Holds a session to its end, over restarts of the daemon.
async fn keep(api: ApiClient, id: String, mut lines: LineStream, is_held: watch::Sender<bool>) {
    loop {
        while let Ok(Some(line)) = lines.next().await {
            if line["held"] == false {
                return;
            }
        }
        // The next daemon does not know who has held it.
        is_held.send_replace(false);
        lines = loop {
            tokio::time::sleep(RECONNECT_PAUSE).await;
            match take_hold(&api, &id).await {
                Ok(lines) => break lines,
                Err(problem) if is_final(&problem) => {
                    is_held.send_replace(true);
                    return;
                }
                Err(problem) => tracing::debug!(session = id, why = problem.detail, "failed to hold a session again"),
            }
        };
        is_held.send_replace(true);
    }
}
