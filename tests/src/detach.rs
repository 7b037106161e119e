//! Hosts that can be killed while their sessions go on, and what others say to these.

use std::{
    fs::File,
    io::{BufRead, BufReader, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use event_log::{EventBatch, EventLog};
use ipc_protocol::{
    AgentSessionConfig, Envelope, Event, Json, Pid, SessionId,
    packet::{packet_pair, send_packet},
    reattach::{AdoptRequest, AdoptResponse},
};
use proxy_manager::AgentSpec;
use registry::{SpawnInput, SpawnOutput, SpawnRequest, SpawnedProcess};
use serde_json::{Value, json};

use crate::system::{self, until};

/// The program `detach-host`, running.
pub struct Host {
    process: SpawnedProcess,
    stdin: File,
    lines: Arc<Mutex<Vec<Value>>>,
    reader: Option<std::thread::JoinHandle<()>>,
    /// Its fork server.
    pub fork_server: Pid,
}

impl Host {
    /// Starts it: `host`, `child` and `fake` are the test package's binaries.
    pub fn start(host: &str, child: &str, fake: &str, state: &Path) -> Self {
        let state = state.to_str().expect("UTF-8");
        let mut process = registry::spawn(SpawnRequest {
            argv: [host, child, fake, state].map(Into::into).to_vec(),
            stdin: SpawnInput::Pipe,
            stdout: SpawnOutput::Pipe,
            stderr: SpawnOutput::Inherit,
            ..SpawnRequest::new(host)
        })
        .expect("started");
        let (stdin, stdout) = (process.stdin.take().expect("a pipe"), process.stdout.take().expect("a pipe"));
        for pipe in [&stdin, &stdout] {
            rustix::io::ioctl_fionbio(pipe, false).expect("blocking");
        }
        let lines = Arc::new(Mutex::new(Vec::new()));
        let reader = std::thread::spawn({
            let lines = lines.clone();
            move || {
                for line in BufReader::new(File::from(stdout)).lines().map_while(Result::ok) {
                    // The last one may be cut off by its death.
                    if let Ok(line) = serde_json::from_str(&line) {
                        lines.lock().expect("not poisoned").push(line);
                    }
                }
            }
        });
        let mut host = Self { process, stdin: stdin.into(), lines, reader: Some(reader), fork_server: 0 };
        let pid = host.line("its first line", |line| line["forkServer"].as_u64());
        host.fork_server = pid.try_into().expect("a pid");
        host
    }

    fn say(&mut self, todo: &Value) {
        writeln!(self.stdin, "{todo}").expect("it reads");
    }

    /// Has it begin to start a session.
    pub fn begin(&mut self, config: &AgentSessionConfig) {
        self.say(&json!({ "start": config }));
    }

    /// Has it start a session; its proxy's pid.
    pub fn session(&mut self, config: &AgentSessionConfig) -> Pid {
        self.begin(config);
        let id = config.session_id.as_str();
        let proxy = self.line("a session", |line| (line["started"] == id).then(|| line["proxy"].as_u64()).flatten());
        proxy.try_into().expect("a pid")
    }

    /// Which process it is.
    pub fn pid(&self) -> Pid {
        self.process.id().pid
    }

    /// Has it prompt a session.
    pub fn prompt(&mut self, id: &str, text: &str) {
        self.say(&json!({ "prompt": [id, text] }));
        self.line("its prompt", |line| (line["prompted"] == id).then_some(()));
    }

    /// Has it set a lease on its sessions that lasts so long.
    pub fn lease(&mut self, lasts: std::time::Duration) {
        let (lasts_ms, before) = (lasts.as_millis(), self.count(|line| line["leased"].is_u64()));
        self.say(&json!({ "lease": u64::try_from(lasts_ms).expect("short") }));
        until("a lease", || (self.count(|line| line["leased"].is_u64()) > before).then_some(()));
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: ipc_protocol::Signal) {
        self.process.process.signal(signal).expect("it lives");
    }

    /// Has it suspend a session.
    pub fn suspend(&mut self, id: &SessionId) {
        self.say(&json!({ "suspend": id }));
        self.line("a suspension", |line| (line["suspended"] == id.as_str()).then_some(()));
    }

    /// Has it append an event; its offset.
    pub fn append(&mut self, id: &SessionId, kind: &str, payload: &Value) -> u64 {
        let before = self.count(|line| line["appended"].is_u64());
        self.say(&json!({ "append": [id, kind, payload] }));
        until("an append", || (self.count(|line| line["appended"].is_u64()) > before).then_some(()));
        let lines = self.lines.lock().expect("not poisoned");
        lines.iter().rev().find_map(|line| line["appended"].as_u64()).expect("just said")
    }

    fn count(&self, wanted: impl Fn(&Value) -> bool) -> usize {
        self.lines.lock().expect("not poisoned").iter().filter(|line| wanted(line)).count()
    }

    /// Waits for a line that `wanted` wants, among all that it printed.
    pub fn line<T>(&self, what: &str, wanted: impl Fn(&Value) -> Option<T>) -> T {
        let mut seen = 0;
        until(what, || {
            let lines = self.lines.lock().expect("not poisoned");
            let found = lines[seen..].iter().find_map(&wanted);
            seen = lines.len();
            found
        })
    }

    /// Kills it; all that it printed.
    pub fn kill(mut self) -> Vec<Value> {
        self.process.process.signal(ipc_protocol::Signal::Kill).expect("it lives");
        until("its status", || self.process.process.try_reap().expect("our child"));
        self.reader.take().expect("there").join().expect("it read");
        std::mem::take(&mut *self.lines.lock().expect("not poisoned"))
    }
}

impl Drop for Host {
    /// A test that fails leaves none, stopped or not.
    fn drop(&mut self) {
        if self.process.process.signal(ipc_protocol::Signal::Kill).is_ok() {
            until("its status", || self.process.process.try_reap().ok().flatten());
        }
    }
}

/// The fake agent, with conversations that last, beside the state directory. It does not get ready as long as [`hold`] is there.
pub fn kept(fake: &str, state: &str) -> AgentSpec {
    let script = r#"test ! -e "$HOME/hold" || exec sleep 1000; exec "$0" --store chats"#;
    let home = Path::new(state).parent().expect("it is somewhere").to_str().expect("UTF-8");
    AgentSpec {
        env: [("HOME", home)].into_iter().collect(),
        ..AgentSpec::new("kept", "acp", &["/bin/sh", "-c", script, fake])
    }
}

/// What keeps [`kept`] from getting ready.
pub fn hold(state: &Path) -> PathBuf {
    state.with_file_name("hold")
}

/// A state directory, and what is in it of sessions that outlive their hosts.
pub struct State(tempfile::TempDir);

impl State {
    /// A fresh one.
    #[expect(clippy::new_without_default, reason = "it makes a directory")]
    pub fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    /// Where it is.
    pub fn path(&self) -> PathBuf {
        self.0.path().to_owned()
    }

    /// Where the sockets are.
    pub fn detached(&self) -> PathBuf {
        self.path().join("detached")
    }

    /// The names of the files of detached sessions, and of journals.
    pub fn files(&self) -> Vec<String> {
        let names = |directory: &str| {
            let entries = std::fs::read_dir(self.path().join(directory)).into_iter().flatten().flatten();
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>()
        };
        [names("detached"), names("sessions")].concat()
    }

    /// Waits until neither file nor process is left of `session`, nor these processes.
    pub fn nothing_left(&self, session: &str, pids: &[Pid]) {
        until("no process is left", || {
            let alive = pids.iter().any(|pid| system::is_alive(*pid));
            (!alive && system::with_marker(session).is_empty()).then_some(())
        });
        let began = std::time::Instant::now();
        until("no file is left", || {
            let files = self.files();
            assert!(began.elapsed() < system::DEADLINE / 2, "{files:?}");
            files.is_empty().then_some(())
        });
    }
}

/// A prompt is asked for in a session's stream while no manager has the state directory: it is durable, and not done.
pub fn asked_of_nobody(state: &Path, session: &SessionId, prompt: &str) {
    let log = EventLog::open(state.join("log.sqlite"), event_log::LogOptions::default()).expect("a log");
    // One that was only begun has said nothing yet.
    let last = log.head(session).map_or(0, |head| head.last);
    let session = Arc::new(session.clone());
    let payload = Json::from(&json!({ "content": prompt }));
    let event = Event::External { kind: "agent:action:prompt:called".into(), version: 1, payload };
    let (offset, created_at) = (last + 1, std::time::SystemTime::now());
    let asked = Arc::new(Envelope { offset, created_at, session: session.clone(), turn: None, metadata: None, event });
    let batch = EventBatch { session, created_at, first: offset, events: vec![asked], source: 0, cursor: None };
    let (done, stored) = std::sync::mpsc::channel();
    log.append(batch, Box::new(move |result| _ = done.send(result))).expect("room");
    stored.recv().expect("told").expect("stored");
}

/// Says at each socket in `directory` that this process, of that release, wants to be the host. With each answer comes our end of
/// the connection.
pub fn claim_all(directory: &Path, version: u32) -> Vec<(AdoptResponse, OwnedFd)> {
    let entries = std::fs::read_dir(directory).expect("readable").flatten();
    let sockets =
        entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|ending| ending == "sock"));
    sockets.map(|socket| claim(&socket, version)).collect()
}

fn claim(socket: &Path, version: u32) -> (AdoptResponse, OwnedFd) {
    let stream = UnixStream::connect(socket).expect("somebody listens");
    let (ours, theirs) = packet_pair().expect("a pair");
    let process = registry::identify(std::process::id()).expect("alive");
    let claim =
        AdoptRequest { version, understood: vec![version.saturating_sub(1), version], ..AdoptRequest::new(process) };
    let line = serde_json::to_string(&claim).expect("JSON") + "\n";
    // Who is refused for what it is gets its answer without being heard.
    if let Err(error) = send_packet(&stream, line.as_bytes(), Some(theirs.as_fd())) {
        assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
    }
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).expect("an answer");
    (serde_json::from_str(&answer).expect("a verdict"), ours)
}
