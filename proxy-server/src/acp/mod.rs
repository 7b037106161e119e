//! Agent Client Protocol: any agent of the catalog for an editor, through our sessions.
//!
//! The editor's requests become calls of the API, and a session's events become the updates that the protocol has. Each of the editor's
//! sessions is one of ours, with its containment, permissions, limits and log.

mod connection;
mod hold;
mod prompt_table;
mod prompts;
mod requests;
mod settings;
mod tool_contents;
mod turn;
mod updates;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serde_json::{Map, Value, json};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{RwLock, mpsc, oneshot, watch},
    task::{AbortHandle, JoinHandle, JoinSet},
    time::timeout,
};

use self::{
    connection::{AcpConnection, AcpError, IncomingMessage},
    prompt_table::PromptTable,
    requests::AcpAnswer,
};
use crate::{
    ProblemDetails,
    api_client::{ApiClient, ApiService, session_path},
    requests::RouteResult,
};

/// Messages that wait to be handled: the editor's next ones wait in the pipe.
const INCOMING: usize = 64;

/// Sessions that an editor may have open at once.
const MOST_SESSIONS: usize = 256;

/// Longest wait for prompts that are on their way to a session, before it ends without them.
const ARRIVAL_TIME: Duration = Duration::from_secs(5);

/// Server for one editor.
#[derive(Clone, derive_more::Debug)]
pub struct AcpServer {
    api: ApiClient,
    /// Configuration of each session that the editor opens, as `POST /v1/sessions` takes it.
    #[debug(skip)]
    template: Map<String, Value>,
    #[debug(skip)]
    sessions: Arc<Mutex<HashMap<String, EditorSession>>>,
    /// Starts and resumes that are under way.
    #[debug(skip)]
    starts: Arc<Mutex<JoinSet<()>>>,
}

/// Session that the editor has open.
#[derive(Clone)]
struct EditorSession {
    /// Number of the editor's cancels.
    cancels: watch::Sender<u64>,
    prompts: watch::Sender<PromptTable>,
    /// Passes on its events.
    follower: SessionTask,
    /// Holds it at the daemon.
    holder: SessionTask,
    /// False while the daemon has ended, or the next one has not been asked yet.
    is_held: watch::Sender<bool>,
    /// True once the editor leaves it.
    is_left: Arc<AtomicBool>,
    /// Read-locked while a prompt is on its way: it would resume a session that is suspended meanwhile.
    sending: Arc<RwLock<()>>,
}

impl EditorSession {
    fn new() -> Self {
        Self {
            cancels: watch::Sender::default(),
            prompts: watch::Sender::default(),
            follower: SessionTask::default(),
            holder: SessionTask::default(),
            is_held: watch::Sender::new(true),
            is_left: Arc::default(),
            sending: Arc::default(),
        }
    }

    fn is_left(&self) -> bool {
        self.is_left.load(Ordering::Acquire)
    }

    /// Lets no more prompts be sent, and waits until those on their way have arrived. Returns the offsets of those that wait.
    async fn leave(&self) -> Vec<u64> {
        self.is_left.store(true, Ordering::Release);
        let _ = timeout(ARRIVAL_TIME, self.sending.write()).await;
        // Its events tell of all that were sent.
        let mut prompts = self.prompts.subscribe();
        let _ = timeout(ARRIVAL_TIME, prompts.wait_for(|prompts| !prompts.has_sent())).await;
        prompts.borrow().queued()
    }
}

/// Task that ends with its session, and whose place another may take.
#[derive(Clone, Default)]
struct SessionTask(Arc<Mutex<Option<AbortOnDropHandle>>>);

impl SessionTask {
    /// Keeps the task, in place of the one before.
    fn set(&self, task: &JoinHandle<()>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(AbortOnDropHandle(task.abort_handle()));
    }

    fn is_running(&self) -> bool {
        let task = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        task.as_ref().is_some_and(|AbortOnDropHandle(task)| !task.is_finished())
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
        Self { api: ApiClient::new(service, depth), template, sessions: Arc::default(), starts: Arc::default() }
    }

    /// Serves an editor over a pair of streams, one JSON message a line, until it closes its end. Then its sessions end: those whose
    /// conversation can go on are suspended, so that the editor can load them again; the others are killed.
    ///
    /// # Errors
    /// Why the editor could not be written to any more. One that cannot be read any more has closed its end.
    pub async fn serve_client(
        self,
        input: impl AsyncRead + Send + Unpin + 'static,
        output: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Result<(), ProblemDetails> {
        let (received, mut messages) = mpsc::channel(INCOMING);
        let (connection, mut ends) = AcpConnection::start(input, output, received);
        let mut work = JoinSet::new();
        let end = loop {
            tokio::select! {
                message = messages.recv() => match message {
                    None => break None,
                    Some(IncomingMessage::Notification { method, params }) => self.receive(&method, &params),
                    Some(IncomingMessage::Request { id, method, params }) => {
                        let (server, connection) = (self.clone(), connection.clone());
                        // A cancel that comes after a prompt is for it, however far that is.
                        let cancels = self.cancels_of(&method, &params);
                        work.spawn(async move {
                            match server.answer(&connection, &method, params, cancels).await {
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
                // It reads no more: it is gone, whoever else has the other stream.
                end @ Some(_) = ends.join_next() => break end,
            }
        };
        let open = self.open_sessions().clone();
        let mut left: JoinSet<()> =
            open.into_iter().map(|(id, session)| self.clone().leave_session(id, session)).collect();
        while left.join_next().await.is_some() {}
        work.shutdown().await;
        self.end_sessions().await;
        drop(connection);
        let end = if end.is_some() { end } else { ends.join_next().await };
        end.map_or(Ok(()), |end| end.unwrap_or(Ok(())))
    }

    /// Begins to count the cancels of the session that a prompt is for.
    fn cancels_of(&self, method: &str, params: &Value) -> Option<watch::Receiver<u64>> {
        let id = params["sessionId"].as_str().filter(|_| method == "session/prompt")?;
        self.open_sessions().get(id).map(|session| session.cancels.subscribe())
    }

    /// Has a session begin by a request, and opens it. If the editor leaves meanwhile, it ends as the others do.
    async fn begin_session(&self, path: &str, body: Value) -> RouteResult<Value> {
        let (answer, answered) = oneshot::channel();
        let (server, path) = (self.clone(), path.to_owned());
        let start = async move {
            let begun = match server.api.post(&path, &body).await {
                Ok(session) => match server.hold(&session).await {
                    Ok(()) => Ok(session),
                    Err(problem) => {
                        server.end_session(session["sessionId"].as_str().unwrap_or_default()).await;
                        Err(problem)
                    }
                },
                Err(problem) => Err(problem),
            };
            // An editor that has left wants no answer.
            let _ = answer.send(begun);
        };
        {
            let mut starts = self.starts.lock().unwrap_or_else(PoisonError::into_inner);
            while starts.try_join_next().is_some() {}
            starts.spawn(start);
        }
        answered.await.unwrap_or_else(|_| Err(ProblemDetails::failed("the start broke off")))
    }

    /// Drops the editor's prompts that wait for their turns in a session, and lets it send no more.
    async fn leave_session(self, id: String, session: EditorSession) {
        // Else they would run once the session goes on.
        for offset in session.leave().await {
            if let Err(problem) = self.api.delete(&session_path(&id, &format!("/queue/{offset}"))).await {
                tracing::debug!(why = problem.detail, "a prompt of a session that is left did not wait");
            }
        }
    }

    /// Ends what the editor leaves behind.
    async fn end_sessions(&self) {
        let mut starts = std::mem::take(&mut *self.starts.lock().unwrap_or_else(PoisonError::into_inner));
        while starts.join_next().await.is_some() {}
        let open: Vec<_> = self.open_sessions().drain().collect();
        let mut ends = JoinSet::new();
        for (id, session) in open {
            let server = self.clone();
            ends.spawn(async move {
                server.end_session(&id).await;
                // It is held until then.
                drop(session);
            });
        }
        while ends.join_next().await.is_some() {}
    }

    /// Suspends a session, or kills one that cannot go on later.
    async fn end_session(&self, id: &str) {
        let ended = match self.api.post(&session_path(id, "/suspend"), &json!({})).await {
            // After anything else it may be suspended nonetheless, and can go on.
            Err(problem) if problem.kind == "unsupported" => {
                self.api.post(&session_path(id, "/kill"), &json!({})).await
            }
            suspended => suspended,
        };
        if let Err(problem) = ended {
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
