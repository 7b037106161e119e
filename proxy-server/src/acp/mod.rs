//! Agent Client Protocol: any agent of the catalog for an editor, through our sessions.
//!
//! The editor's requests become calls of the API, and a session's events become the updates that the protocol has. Each of the editor's
//! sessions is one of ours, with its containment, permissions, limits and log.

mod connection;
mod prompts;
mod requests;
mod turn;
mod updates;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use serde_json::{Map, Value, json};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{Notify, mpsc, watch},
    task::{AbortHandle, JoinHandle, JoinSet},
};

use self::{
    connection::{AcpConnection, AcpError, IncomingMessage},
    requests::AcpAnswer,
    turn::TurnEnds,
};
use crate::{
    ProblemDetails,
    api_client::{ApiClient, ApiService, session_path},
};

/// Messages that wait to be handled: the editor's next ones wait in the pipe.
const INCOMING: usize = 64;

/// Sessions that an editor may have open at once.
const MOST_SESSIONS: usize = 256;

/// Server for one editor.
#[derive(Clone, derive_more::Debug)]
pub struct AcpServer {
    api: ApiClient,
    /// Configuration of each session that the editor opens, as `POST /v1/sessions` takes it.
    #[debug(skip)]
    template: Map<String, Value>,
    #[debug(skip)]
    sessions: Arc<Mutex<HashMap<String, EditorSession>>>,
}

/// Session that the editor has open.
#[derive(Clone)]
struct EditorSession {
    /// Told when the editor cancels the running turn.
    cancelled: Arc<Notify>,
    ends: watch::Sender<TurnEnds>,
    /// Passes on its events.
    follower: Arc<Mutex<Option<AbortOnDropHandle>>>,
}

impl EditorSession {
    fn new() -> Self {
        Self { cancelled: Arc::default(), ends: watch::Sender::default(), follower: Arc::default() }
    }

    /// Keeps the task that passes on its events, in place of the one before.
    fn follow(&self, follower: JoinHandle<()>) {
        *self.follower.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(AbortOnDropHandle(follower.abort_handle()));
    }
}

/// Task that ends with this.
struct AbortOnDropHandle(AbortHandle);

impl Drop for AbortOnDropHandle {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl AcpServer {
    /// Creates a server whose sessions are begun with `template` and whose requests go to `service`. `depth` is the number of sessions
    /// around the editor.
    pub fn new(service: ApiService, template: Map<String, Value>, depth: u32) -> Self {
        Self { api: ApiClient::new(service, depth), template, sessions: Arc::default() }
    }

    /// Serves an editor over a pair of streams, one JSON message a line, until it closes its end. Then its sessions end: those whose
    /// conversation can go on are suspended, so that the editor can load them again; the others are killed.
    ///
    /// # Errors
    /// Why the editor could not be served any more: what it sent was too long, or its end could not be read or written.
    pub async fn serve_client(
        self,
        input: impl AsyncRead + Send + Unpin + 'static,
        output: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Result<(), ProblemDetails> {
        let (received, mut messages) = mpsc::channel(INCOMING);
        let (connection, mut ends) = AcpConnection::start(input, output, received);
        let mut work = JoinSet::new();
        loop {
            tokio::select! {
                message = messages.recv() => match message {
                    None => break,
                    Some(IncomingMessage::Notification { method, params }) => self.receive(&method, &params),
                    Some(IncomingMessage::Request { id, method, params }) => {
                        let (server, connection) = (self.clone(), connection.clone());
                        work.spawn(async move {
                            match server.answer(&connection, &method, params).await {
                                Err(error) => connection.reply(id, Err(error)).await,
                                Ok(AcpAnswer { result, begins }) => {
                                    connection.reply(id, Ok(result)).await;
                                    if let Some(opened) = begins {
                                        opened.begin().await;
                                    }
                                }
                            }
                        });
                    }
                },
                // Of what is done nothing is left to know.
                Some(_) = work.join_next() => {}
            }
        }
        work.shutdown().await;
        self.end_sessions().await;
        drop(connection);
        ends.join_next().await.map_or(Ok(()), |end| end.unwrap_or(Ok(())))
    }

    /// Ends what the editor leaves behind.
    async fn end_sessions(&self) {
        let open: Vec<String> = self.open_sessions().drain().map(|(id, _)| id).collect();
        let mut ends = JoinSet::new();
        for id in open {
            let server = self.clone();
            ends.spawn(async move { server.end_session(&id).await });
        }
        while ends.join_next().await.is_some() {}
    }

    /// Suspends a session, or kills one that cannot go on later.
    async fn end_session(&self, id: &str) {
        let is_suspended = self.api.post(&session_path(id, "/suspend"), &json!({})).await.is_ok();
        if !is_suspended && let Err(problem) = self.api.post(&session_path(id, "/kill"), &json!({})).await {
            tracing::warn!(session = id, why = problem.detail, "a session that the editor left could not be ended");
        }
    }

    fn open_sessions(&self) -> std::sync::MutexGuard<'_, HashMap<String, EditorSession>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a session as the editor's own.
    fn open(&self, id: &str) -> EditorSession {
        self.open_sessions().entry(id.to_owned()).or_insert_with(EditorSession::new).clone()
    }

    /// Checks that the editor may open one more.
    fn check_room(&self) -> Result<(), AcpError> {
        match self.open_sessions().len() < MOST_SESSIONS {
            true => Ok(()),
            false => Err(AcpError::invalid(format!("{MOST_SESSIONS} sessions are open: close one (session/close)"))),
        }
    }

    /// Returns a session that the editor has open.
    fn opened(&self, id: &str) -> Result<EditorSession, AcpError> {
        let open = self.open_sessions().get(id).cloned();
        open.ok_or_else(|| {
            AcpError::invalid(format!("sessionId: {id:?} is not open: begin one with session/new, or load it"))
        })
    }
}
