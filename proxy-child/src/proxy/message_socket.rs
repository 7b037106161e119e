//! Agents that speak on a socket: each line of their protocol is a WebSocket message there, and others can connect too.
//!
//! A task passes the messages on between the socket and two pipes, which take the place of the agent's standard input and output. So
//! all else is as with an agent that speaks on these, and whoever does not read holds up the other.
//!
//! ```text
//! AgentProcess ⇄ pipes ⇄ run (this file) ⇄ WebSocket ⇄ agent ⇄ its screen
//! ```

use std::{
    fs::File,
    io,
    os::fd::{AsRawFd as _, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures_util::{
    SinkExt, StreamExt,
    stream::{SplitSink, SplitStream},
};
use rustix::{
    fs::{Mode, OFlags, ResolveFlags, openat2},
    pipe::{PipeFlags, pipe_with},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{UnixStream, unix::pipe},
    sync::{Notify, oneshot},
    task::AbortHandle,
    time::{Instant, sleep, timeout},
};
use tokio_tungstenite::{
    WebSocketStream, client_async_with_config,
    tungstenite::{Message, protocol::WebSocketConfig},
};

/// Address of the handshake; the socket's path says where it goes.
const URL: &str = "ws://localhost/";
/// Longest wait for the agent to listen, and to answer the handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);
const CONNECT_PAUSE: Duration = Duration::from_millis(10);
/// Time in which the exit of an agent that has closed its socket is seen.
const EXIT_PAUSE: Duration = Duration::from_secs(1);
/// Longest message of the agent, and of ours. Beyond it the connection is over: what follows could not be told from it.
const MAX_MESSAGE: usize = 4 * ipc_protocol::codec::MAX_MESSAGE;

/// Connection to an agent's socket. Dropping it closes the connection.
pub(crate) struct MessageSocket {
    run: AbortHandle,
    failure: oneshot::Receiver<String>,
}

/// Pipes in the place of the agent's standard input and output.
pub(crate) struct SocketPipes {
    pub(crate) stdin: OwnedFd,
    pub(crate) stdout: OwnedFd,
}

impl MessageSocket {
    /// Connects to the socket at `path` as soon as the agent listens there; with `root`, the agent's own root directory, to what that path is
    /// for the agent, wherever its links lead there. `wake` is notified of a connection that has ended.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub(crate) fn connect(path: &Path, root: Option<File>, wake: Arc<Notify>) -> io::Result<(Self, SocketPipes)> {
        let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK;
        let ((from_session, stdin), (stdout, to_session)) = (pipe_with(flags)?, pipe_with(flags)?);
        let from_session = pipe::Receiver::from_owned_fd(from_session)?;
        let to_session = pipe::Sender::from_owned_fd(to_session)?;
        let (failed, failure) = oneshot::channel();
        let path = path.to_owned();
        let run = tokio::spawn(async move {
            let reason = run(path, root, from_session, to_session).await;
            // The end of an agent that has exited is told by its exit.
            sleep(EXIT_PAUSE).await;
            let _ = failed.send(reason);
            wake.notify_one();
        });
        Ok((Self { run: run.abort_handle(), failure }, SocketPipes { stdin, stdout }))
    }

    /// Returns the reason why the connection has ended, once.
    pub(crate) fn take_failure(&mut self) -> Option<String> {
        self.failure.try_recv().ok()
    }
}

impl Drop for MessageSocket {
    fn drop(&mut self) {
        self.run.abort();
    }
}

/// Passes messages on until the connection ends. Returns the reason.
async fn run(path: PathBuf, root: Option<File>, from_session: pipe::Receiver, to_session: pipe::Sender) -> String {
    let socket = match timeout(CONNECT_TIMEOUT, open(&path, root.as_ref())).await {
        Ok(Ok(socket)) => socket,
        Ok(Err(reason)) => return format!("its socket {} cannot be used: {reason}", path.display()),
        Err(_) => return format!("it did not answer at its socket {} within {CONNECT_TIMEOUT:?}", path.display()),
    };
    let (sink, stream) = socket.split();
    let reason = tokio::select! {
        reason = send(from_session, sink) => reason,
        reason = receive(stream, to_session) => reason,
    };
    format!("the connection to its socket {} ended: {reason}", path.display())
}

async fn open(path: &Path, root: Option<&File>) -> Result<WebSocketStream<UnixStream>, String> {
    let until = Instant::now() + CONNECT_TIMEOUT;
    let stream = loop {
        match connect(path, root).await {
            Ok(stream) => break stream,
            Err(error) if Instant::now() < until && is_too_early(&error) => sleep(CONNECT_PAUSE).await,
            Err(error) => return Err(error.to_string()),
        }
    };
    let config = WebSocketConfig::default().max_message_size(Some(MAX_MESSAGE)).max_frame_size(Some(MAX_MESSAGE));
    let connected = client_async_with_config(URL, stream, Some(config)).await;
    connected.map(|(socket, _)| socket).map_err(|error| error.to_string())
}

async fn connect(path: &Path, root: Option<&File>) -> io::Result<UnixStream> {
    let Some(root) = root else { return UnixStream::connect(path).await };
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let socket = openat2(root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)?;
    // The path of a descriptor leads to the socket itself.
    UnixStream::connect(format!("/proc/self/fd/{}", socket.as_raw_fd())).await
}

/// Returns whether the agent does not listen yet.
fn is_too_early(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// Sends each line of ours as a message.
async fn send(from_session: pipe::Receiver, mut sink: SplitSink<WebSocketStream<UnixStream>, Message>) -> String {
    let mut lines = BufReader::new(from_session);
    loop {
        let mut line = Vec::new();
        // Ours: a prompt is bounded by the host.
        match (&mut lines).take(MAX_MESSAGE as u64).read_until(b'\n', &mut line).await {
            Ok(0) => return "the session closed it".to_owned(),
            Err(error) => return error.to_string(),
            Ok(_) => {}
        }
        if line.pop_if(|last| *last == b'\n').is_none() {
            return "a message of ours has no end".to_owned();
        }
        let sent = match String::from_utf8(line) {
            Ok(text) => sink.send(Message::text(text)).await,
            Err(error) => return error.to_string(),
        };
        if let Err(error) = sent {
            return error.to_string();
        }
    }
}

/// Passes each message of the agent on as a line.
async fn receive(mut stream: SplitStream<WebSocketStream<UnixStream>>, mut to_session: pipe::Sender) -> String {
    loop {
        let text = match stream.next().await {
            Some(Ok(Message::Text(text))) => text,
            Some(Ok(Message::Close(_))) | None => return "the agent closed it".to_owned(),
            Some(Ok(_)) => continue,
            Some(Err(error)) => return error.to_string(),
        };
        // A line break in it is white space of its JSON.
        let line = text.as_str().replace(['\n', '\r'], " ") + "\n";
        if let Err(error) = to_session.write_all(line.as_bytes()).await {
            return error.to_string();
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixListener;

    use super::*;

    /// A link to elsewhere is one within the agent's root.
    #[tokio::test]
    async fn a_socket_is_looked_for_in_the_agent_s_root() {
        let directory = tempfile::tempdir().expect("a directory");
        let inside = directory.path().join("inside");
        std::fs::create_dir_all(inside.join("run")).expect("made");
        std::os::unix::fs::symlink("/away/socket", inside.join("run/link")).expect("linked");
        let root = File::open(&inside).expect("opened");
        let link = Path::new("/run/link");
        let absent = connect(link, Some(&root)).await.expect_err("there is none");
        assert!(is_too_early(&absent), "{absent}");
        std::fs::create_dir(inside.join("away")).expect("made");
        let _listener = UnixListener::bind(inside.join("away/socket")).expect("bound");
        connect(link, Some(&root)).await.expect("connected");
    }

    fn read(output: &OwnedFd) -> String {
        let mut bytes = vec![0; 4096];
        let read = rustix::io::read(output, &mut bytes).unwrap_or(0);
        String::from_utf8_lossy(&bytes[..read]).into_owned()
    }

    #[tokio::test(flavor = "current_thread")]
    async fn lines_are_messages_and_an_end_is_reported() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("agent.sock");
        let wake = Arc::<Notify>::default();
        let (mut socket, pipes) = MessageSocket::connect(&path, None, wake.clone()).expect("connects");
        rustix::io::write(&pipes.stdin, b"{\"id\":1}\n{\"id\":2}\n").expect("written");
        // The agent listens later.
        let listener = UnixListener::bind(&path).expect("bound");
        let (stream, _) = listener.accept().await.expect("accepted");
        let mut agent = tokio_tungstenite::accept_async(stream).await.expect("a handshake");
        for expected in ["{\"id\":1}", "{\"id\":2}"] {
            let message = agent.next().await.expect("a message").expect("whole");
            assert_eq!(message.into_text().expect("text").as_str(), expected);
        }
        agent.send(Message::text("{\n\"ok\":1}")).await.expect("sent");
        let line = timeout(Duration::from_secs(20), async {
            loop {
                match read(&pipes.stdout) {
                    line if line.is_empty() => tokio::task::yield_now().await,
                    line => return line,
                }
            }
        });
        assert_eq!(line.await.expect("a line"), "{ \"ok\":1}\n");
        assert_eq!(socket.take_failure(), None);
        agent.close(None).await.expect("closed");
        timeout(Duration::from_secs(20), wake.notified()).await.expect("woken");
        let failure = socket.take_failure().expect("a reason");
        assert!(failure.contains("the agent closed it"), "{failure}");
    }
}
