//! Records what an agent writes, on its way to the proxy: its standard output by `tee`, its server's streams by a server
//! between the two.

use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use http_body_util::BodyExt;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use proxy_manager::AgentSpec;
use tokio::net::{TcpListener, TcpStream};

/// What came out of the agent's program, and what of that the proxy was given.
const WROTE: &str = "wrote";
const PASSED: &str = "passed";
/// The address of the server between.
const BETWEEN: &str = "between";

/// Changes the row so that what the agent writes is recorded where it works in `folder`.
pub(super) fn record(row: &mut AgentSpec, folder: &Path) {
    // Of an agent that is a server the line with its address is changed, to the address between.
    let script = if row.is_server() {
        r#"cd "$1"; between=$(cat between); shift
           "$@" | tee wrote | sed -u "s,http://127\.0\.0\.1:[0-9]*,$between," | tee passed"#
    } else {
        r#"out=$1/passed; shift; "$@" | tee "$out""#
    };
    let folder = folder.join("work").to_string_lossy().into_owned();
    let mut cmd = ["/bin/sh", "-c", script, "sh", &folder].map(str::to_owned).to_vec();
    cmd.append(&mut row.cmd);
    row.cmd = cmd;
}

/// Records one agent.
#[derive(Clone, Debug)]
pub(super) struct Recorder {
    folder: PathBuf,
    streams: Arc<Mutex<Vec<u8>>>,
    answers: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Recorder {
    /// Starts the server between, in the tokio runtime of the caller. The agent's row was changed by [`record`].
    ///
    /// # Errors
    /// The system's.
    pub(super) async fn start(folder: &Path) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        fs::write(folder.join(BETWEEN), format!("http://{}", listener.local_addr()?))?;
        let recorder = Self { folder: folder.to_owned(), streams: Arc::default(), answers: Arc::default() };
        let router = Router::new().fallback(pass_on).with_state(recorder.clone());
        // It ends with the runtime, which is the cell's own.
        tokio::spawn(axum::serve(listener, router).into_future());
        Ok(recorder)
    }

    /// What the proxy was given of the standard output.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn stdout(&self) -> io::Result<Vec<u8>> {
        fs::read(self.folder.join(PASSED))
    }

    /// The bodies of the streams of events so far.
    pub(super) fn streams(&self) -> Vec<u8> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The bodies of the answers so far that have any, but for those in which keys are.
    pub(super) fn answers(&self) -> Vec<Vec<u8>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Where the agent's own server listens: its first line says it.
    fn server(&self) -> Option<SocketAddr> {
        let wrote = fs::read_to_string(self.folder.join(WROTE)).ok()?;
        wrote.split("http://").nth(1)?.split_whitespace().next()?.parse().ok()
    }

    async fn ask(&self, request: Request) -> Result<Response, String> {
        let server = self.server().ok_or("the agent's server has no address")?;
        let stream = TcpStream::connect(server).await.map_err(|error| error.to_string())?;
        let connection = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = connection.map_err(|error| error.to_string())?;
        tokio::spawn(connection);
        let has_keys = request.uri().path().starts_with("/config");
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        let (head, body) = response.into_parts();
        let kind = head.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if !kind.starts_with("text/event-stream") {
            let body = body.collect().await.map_err(|error| error.to_string())?.to_bytes();
            if !body.is_empty() && !has_keys {
                self.answers.lock().unwrap_or_else(PoisonError::into_inner).push(body.to_vec());
            }
            return Ok(Response::from_parts(head, Body::from(body)));
        }
        let streams = self.streams.clone();
        let recorded = body.map_frame(move |frame| {
            if let Some(bytes) = frame.data_ref() {
                streams.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
            }
            frame
        });
        Ok(Response::from_parts(head, Body::new(recorded)))
    }
}

async fn pass_on(State(recorder): State<Recorder>, request: Request) -> Response {
    match recorder.ask(request).await {
        Ok(response) => response,
        // Words of ours would be taken for the agent's.
        Err(_) => StatusCode::BAD_GATEWAY.into_response(),
    }
}
