//! How long an agent takes to be ready: by itself, behind a relay, and through us.
//!
//! By itself is the same program with the same arguments, environment and files in a fresh home, and the same handshake by a
//! few lines of their own. Behind a relay is the same with the least that can be in between: a process that passes on bytes, which
//! is the floor for whoever has agents in processes apart. They take turns, so that what else the machine does hits all.

use std::{
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use agents::provision::Provision;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use proxy_manager::{KillOptions, SessionId, Signal};
use registry::PidFd;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines},
    net::{
        TcpStream,
        unix::pipe::{Receiver, Sender},
    },
};

use super::{
    Agent, Failure, Stage,
    session::within,
    stage::{Programs, remove},
};
use crate::system::{DEADLINE, with_marker};

/// What is in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Nothing.
    Itself,
    /// A process that passes on bytes.
    Relay,
    /// A manager, a proxy, a log.
    Us,
}

const WAYS: [Way; 3] = [Way::Itself, Way::Relay, Way::Us];

/// Times of one agent's starts.
#[derive(Clone, Debug)]
pub struct Starts {
    /// Catalog id.
    pub agent: &'static str,
    /// Files that they made. They can be removed once all agents are measured: ext4 takes longer to make files while many were
    /// removed within the last five minutes.
    pub folder: PathBuf,
    /// One each way, in turns.
    turns: Vec<[Duration; WAYS.len()]>,
}

impl Starts {
    /// The median of the times one way, in seconds.
    pub fn time(&self, way: Way) -> f64 {
        median(self.turns.iter().map(|turn| turn[way as usize].as_secs_f64()))
    }

    /// The median of what each turn's time this way is of the agent's own.
    pub fn ratio(&self, way: Way) -> f64 {
        let of_own =
            |turn: &[Duration; WAYS.len()]| turn[way as usize].as_secs_f64() / turn[Way::Itself as usize].as_secs_f64();
        median(self.turns.iter().map(of_own))
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Starts the agent so many times, each way.
///
/// # Errors
/// What went wrong.
pub async fn measure(agent: &'static Agent, programs: &Programs, runs: usize) -> Result<Starts, Failure> {
    let stage = Stage::set(agent, programs, |_, _| {}).await?;
    let mut starts = Starts { agent: agent.id, folder: stage.folder().to_owned(), turns: Vec::new() };
    let result = async {
        // The first one of each fills the caches.
        for run in 0..=runs {
            let mut turn = [Duration::ZERO; WAYS.len()];
            for step in 0..WAYS.len() {
                // Each comes behind each of the others as often.
                let way = WAYS[(run + step * (1 + run % 2)) % WAYS.len()];
                turn[way as usize] = match way {
                    Way::Itself => by_itself(&stage, None).await?,
                    Way::Relay => by_itself(&stage, Some(&programs.relay)).await?,
                    Way::Us => through_us(&stage).await?,
                };
            }
            if run > 0 {
                starts.turns.push(turn);
            }
        }
        Ok(())
    };
    let result: Result<(), Failure> = result.await;
    let ended = stage.end().await;
    match result.and(ended.map_err(Failure::from)) {
        Ok(()) => Ok(starts),
        Err(failure) => {
            remove(stage.folder())?;
            Err(failure)
        }
    }
}

/// Starts of sessions that are warm: the median of their times, in seconds.
///
/// # Errors
/// What went wrong.
pub async fn measure_warm(agent: &'static Agent, programs: &Programs, runs: usize) -> Result<f64, Failure> {
    let stage = Stage::set_warm(agent, programs, 1, |_, _| {}).await?;
    let mut times = Vec::new();
    let result = async {
        for _ in 0..runs {
            let is_warm = async {
                while stage.manager.warm_sessions() == 0 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            within("a session is warm", is_warm).await?;
            let config = stage.config();
            let id = config.session_id.clone();
            let begin = Instant::now();
            let session = within("a start", stage.manager.start_or_claim(config)).await??;
            times.push(begin.elapsed().as_secs_f64());
            if *session.id() == id {
                return Err(Failure::Wrong("the session was not warm".to_owned()));
            }
            within("the kill", session.kill(KillOptions::NOW)).await??;
        }
        Ok(())
    };
    let result: Result<(), Failure> = result.await;
    let ended = stage.strike().await;
    result.and(ended.map_err(Failure::from)).map(|()| median(times.into_iter()))
}

async fn through_us(stage: &Stage) -> Result<Duration, Failure> {
    let begin = Instant::now();
    let session = stage.session().await?;
    let took = begin.elapsed();
    within("the kill", session.handle.kill(KillOptions::NOW)).await??;
    Ok(took)
}

async fn by_itself(stage: &Stage, relay: Option<&Path>) -> Result<Duration, Failure> {
    let how = if relay.is_some() { "behind a relay" } else { "by itself" };
    let id = SessionId::mint();
    // As deep as the home of a session: a file system may have all of a directory in one place.
    let home = stage.folder().join("without-us").join("homes").join(format!("s-{id}"));
    let wrong = |error: io::Error| Failure::Wrong(format!("starting {} {how}: {error}", stage.agent.id));
    let prepared = stage.provision(&home).map_err(wrong)?;
    let begin = Instant::now();
    let mut raw = Raw::spawn(stage, &prepared, &home, id.as_str(), relay).map_err(wrong)?;
    let ready = within(&format!("it is ready {how}"), raw.handshake(stage, &prepared)).await;
    let took = begin.elapsed();
    raw.end(id.as_str()).map_err(wrong)?;
    ready?.map_err(wrong)?;
    Ok(took)
}

/// The agent as a child of ours.
struct Raw {
    child: Child,
    stdin: Sender,
    lines: Lines<BufReader<Receiver>>,
}

impl Raw {
    #[expect(clippy::disallowed_methods, reason = "this is the agent without us")]
    fn spawn(
        stage: &Stage,
        provision: &Provision,
        home: &Path,
        marker: &str,
        relay: Option<&Path>,
    ) -> io::Result<Self> {
        let program = stage.programs.agents.join(provision.argv.first().map_or("", String::as_str));
        let mut command = match relay {
            Some(relay) => Command::new(relay),
            None => Command::new(&program),
        };
        command.args(relay.map(|_| &program));
        command.args(&provision.argv[1..]).current_dir(stage.work()).env_clear().envs(&stage.base_env.0);
        let places = [
            ("HOME", ""),
            ("XDG_CONFIG_HOME", ".config"),
            ("XDG_DATA_HOME", ".local/share"),
            ("XDG_STATE_HOME", ".local/state"),
            ("XDG_CACHE_HOME", ".cache"),
        ];
        command.envs(places.map(|(name, place)| (name, home.join(place))));
        command.envs(&provision.env.0).envs(stage.agent.env.iter().copied()).env("AGENT_PROXY_SESSION", marker);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let missing = || io::Error::other("a stream of the child is missing");
        let stdin = OwnedFd::from(child.stdin.take().ok_or_else(missing)?);
        let stdout = OwnedFd::from(child.stdout.take().ok_or_else(missing)?);
        let lines = BufReader::new(Receiver::from_owned_fd(stdout)?).lines();
        Ok(Self { child, stdin: Sender::from_owned_fd(stdin)?, lines })
    }

    async fn say(&mut self, message: &Value) -> io::Result<()> {
        self.stdin.write_all(format!("{message}\n").as_bytes()).await
    }

    async fn line(&mut self) -> io::Result<String> {
        self.lines.next_line().await?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// The line that has this member.
    async fn answer(&mut self, pointer: &str, value: &Value) -> io::Result<()> {
        loop {
            let message: Value = serde_json::from_str(&self.line().await?).unwrap_or_default();
            if message.pointer(pointer) == Some(value) && message.get("method").is_none() {
                let refused = message.get("error").is_some() || message.get("result").is_some_and(Value::is_null);
                return if refused { Err(io::Error::other(message.to_string())) } else { Ok(()) };
            }
        }
    }

    async fn handshake(&mut self, stage: &Stage, provision: &Provision) -> io::Result<()> {
        let cwd = stage.work();
        match stage.row.protocol.as_str() {
            "claude-code" => {
                let request = json!({ "subtype": "initialize" });
                self.say(&json!({ "type": "control_request", "request_id": "1", "request": request })).await?;
                self.answer("/response/request_id", &json!("1")).await
            }
            "codex" => {
                let client = json!({ "name": "raw", "title": "raw", "version": "0" });
                let params = json!({ "clientInfo": client, "capabilities": { "experimentalApi": true } });
                self.say(&json!({ "id": 1, "method": "initialize", "params": params })).await?;
                self.answer("/id", &json!(1)).await?;
                self.say(&json!({ "method": "initialized" })).await?;
                let params = json!({ "cwd": cwd, "approvalPolicy": "never", "sandbox": "danger-full-access" });
                self.say(&json!({ "id": 2, "method": "thread/start", "params": params })).await?;
                self.answer("/id", &json!(2)).await
            }
            "pi" => {
                self.say(&json!({ "id": "1", "type": "get_state" })).await?;
                self.answer("/id", &json!("1")).await
            }
            "opencode" => self.serve(&cwd, provision).await,
            _ => {
                let files = json!({ "readTextFile": false, "writeTextFile": false });
                let capabilities = json!({ "fs": files, "terminal": false, "auth": { "terminal": false } });
                let client = json!({ "name": "raw", "version": "0" });
                let params = json!({ "protocolVersion": 1, "clientCapabilities": capabilities, "clientInfo": client });
                self.say(&json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params })).await?;
                self.answer("/id", &json!(1)).await?;
                let params = json!({ "cwd": cwd, "mcpServers": [] });
                self.say(&json!({ "jsonrpc": "2.0", "id": 2, "method": "session/new", "params": params })).await?;
                self.answer("/id", &json!(2)).await
            }
        }
    }

    /// A server: its address, its stream of events, a session.
    async fn serve(&mut self, cwd: &Path, provision: &Provision) -> io::Result<()> {
        let address = loop {
            let line = self.line().await?;
            if let Some((_, address)) = line.split_once("listening on http://") {
                break address.trim().to_owned();
            }
        };
        let endpoint = provision.endpoint.as_ref();
        let password = endpoint.and_then(|endpoint| endpoint.password.as_deref()).unwrap_or_default();
        let login = STANDARD.encode(format!("{}:{password}", endpoint.map_or("", |endpoint| &endpoint.user)));
        let directory = cwd.display();
        let head = |method: &str, path: &str, length: usize| {
            format!(
                "{method} {path}?directory={directory} HTTP/1.1\r\nhost: {address}\r\nauthorization: Basic {login}\r\n\
                 content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
            )
        };
        let mut events = TcpStream::connect(&address).await?;
        events.write_all(head("GET", "/event", 0).as_bytes()).await?;
        read_until(&mut events, "server.connected").await?;
        let mut session = TcpStream::connect(&address).await?;
        session.write_all(format!("{}{{}}", head("POST", "/session", 2)).as_bytes()).await?;
        read_until(&mut session, "\"id\":\"ses_").await
    }

    /// Ends it, and whatever carries its marker.
    fn end(mut self, marker: &str) -> io::Result<()> {
        drop(self.stdin);
        let begin = Instant::now();
        loop {
            self.child.try_wait()?;
            let left = with_marker(marker);
            if left.is_empty() {
                break;
            }
            for pid in left {
                // An error is that it is gone.
                let _ = registry::identify(pid).and_then(|id| PidFd::open(id)?.signal(Signal::Kill));
            }
            if begin.elapsed() > DEADLINE {
                return Err(io::Error::other("it cannot be ended"));
            }
            std::thread::yield_now();
        }
        self.child.wait().map(drop)
    }
}

/// Reads until this text has come.
async fn read_until(stream: &mut TcpStream, text: &str) -> io::Result<()> {
    let mut read = Vec::new();
    while !read.windows(text.len()).any(|window| window == text.as_bytes()) {
        if stream.read_buf(&mut read).await? == 0 {
            return Err(io::Error::other(String::from_utf8_lossy(&read).into_owned()));
        }
    }
    Ok(())
}
