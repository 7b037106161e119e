//! Start, stream and kill of the fake agent's session, beside sandbox-agent with the same agent.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use ipc_protocol::ProcessId;
use memchr::memmem;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::{
    Measured,
    http::{ApiConnection, ServerSentEvents},
    served::{self, MeasuredServer, write_script},
};
use crate::{
    error::{Error, Result},
    stats::mean_pss_kib,
};

/// Texts of a prompt.
const TEXTS: u64 = 50_000;
/// Bytes of each.
const LENGTH: u64 = 64;
/// Time without an event after which a stream is over whose last event was lost.
const SILENCE: Duration = Duration::from_secs(5);
/// Longest time for a kill. One that takes longer counts as never.
const KILL_TIME: Duration = Duration::from_secs(15);
/// Time for processes that were signalled to be gone.
const SETTLE: Duration = Duration::from_millis(300);

/// What a session runs that leaves its agent.
const ESCAPEE: &str = "sleep 6173";

/// Server beside which the other is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ApiKind {
    AgentProxy,
    SandboxAgent,
}

/// One session, from its start to its kill.
struct SessionRun<'a> {
    kind: ApiKind,
    server: &'a MeasuredServer,
    api: ApiConnection,
    id: String,
    agent: &'a str,
}

/// Measures both in turn; figures of the peer have the suffix `_peer`.
///
/// # Errors
/// A server does not start, or refuses what it should do.
pub(super) async fn measure(program: &Path, peer: Option<&Path>, round: u32) -> Result<Measured> {
    let agent = format!("exec '{}' fake-agent \"$@\"", program.display());
    let mut figures = Measured::new();
    // Who begins alternates.
    let mut kinds = vec![ApiKind::AgentProxy];
    kinds.extend(peer.map(|_| ApiKind::SandboxAgent));
    if round % 2 == 1 {
        kinds.reverse();
    }
    for kind in kinds {
        let server = match (kind, peer) {
            (ApiKind::SandboxAgent, Some(peer)) => MeasuredServer::sandbox_agent(peer, &agent).await?,
            _ => MeasuredServer::agent_proxy(program)?,
        };
        let script = server.directory.path().join("fake-acp");
        write_script(&script, &agent)?;
        let script = script.display().to_string();
        // The first warms up.
        for id in ["first", "second"] {
            let api = ApiConnection::open(&server.api).await?;
            let run = SessionRun { kind, server: &server, api, id: id.to_owned(), agent: &script };
            let found = run.measure(id == "second").await?;
            let suffix = if kind == ApiKind::SandboxAgent { "_peer" } else { "" };
            if id == "second" {
                figures.extend(found.into_iter().map(|(name, figure)| (format!("{name}{suffix}"), figure)));
            }
        }
    }
    Ok(figures)
}

impl SessionRun<'_> {
    async fn measure(mut self, counts: bool) -> Result<Measured> {
        let begin = Instant::now();
        self.start().await?;
        let start = begin.elapsed();
        // Of the session before nothing is left that counts, or it is known.
        let before = self.agents()?;
        let supervisors = self.server.supervisors(is_agent)?;
        let memory = mean_pss_kib(&supervisors)? * supervisors.len() as f64 / 1024.0;
        let (texts, rate) = self.flood(if counts { TEXTS } else { 100 }).await?;
        let agents = self.agents()?;
        if !agents.iter().any(|agent| !before.contains(agent)) {
            return Err(Error::answer("the agent", "has started nothing that could survive"));
        }
        let begin = Instant::now();
        let killed = timeout(KILL_TIME, self.kill()).await;
        let kill = begin.elapsed();
        sleep(SETTLE).await;
        let left: Vec<&ProcessId> =
            agents.iter().filter(|agent| registry::identify(agent.pid).is_ok_and(|now| now == **agent)).collect();
        left.iter().for_each(|process| served::end(**process));
        let never = killed.is_err() || !left.is_empty();
        Ok([
            ("start_ms", start.as_secs_f64() * 1e3),
            ("events_per_s", rate),
            ("events_lost", if counts { (TEXTS - texts) as f64 } else { 0.0 }),
            ("kill_ms", if killed.is_err() { f64::INFINITY } else { kill.as_secs_f64() * 1e3 }),
            ("survivors", left.len() as f64),
            ("gone_ms", if never { f64::INFINITY } else { kill.as_secs_f64() * 1e3 }),
            ("memory_mib", memory),
        ]
        .map(|(name, figure)| (name.to_owned(), figure))
        .into())
    }

    /// Starts the session, until it takes a prompt.
    async fn start(&mut self) -> Result<()> {
        match self.kind {
            ApiKind::AgentProxy => {
                let cwd = self.server.directory.path();
                let session = json!({ "sessionId": self.id, "agent": "acp", "command": [self.agent], "cwd": cwd });
                self.api.json("POST", "/v1/sessions", Some(&session)).await?;
            }
            ApiKind::SandboxAgent => {
                let capable = json!({ "protocolVersion": 1, "clientCapabilities": {} });
                self.call("?agent=pi", "initialize", &capable).await?;
                let cwd = self.server.directory.path();
                self.call("", "session/new", &json!({ "cwd": cwd, "mcpServers": [] })).await?;
            }
        }
        Ok(())
    }

    /// Has the agent say texts, and start a process that leaves it. Returns the number of texts that came, and their rate.
    async fn flood(&mut self, texts: u64) -> Result<(u64, f64)> {
        let path = match self.kind {
            ApiKind::AgentProxy => format!("/v1/sessions/{}/events?type=stream:*&from=latest", self.id),
            ApiKind::SandboxAgent => format!("/v1/acp/{}", self.id),
        };
        let mut events = ServerSentEvents::open(&self.server.api, &path).await?;
        let script = format!("flood {texts} {LENGTH}\nsetsid {ESCAPEE}");
        let begin = Instant::now();
        let reading = async {
            let (mut next, mut seen, mut last, mut is_over) = (0, 0, begin, false);
            while !is_over {
                let take = |data: &[u8]| {
                    if let Some(number) = flooded(data) {
                        seen += u64::from(number >= next);
                        next = next.max(number + 1);
                        last = Instant::now();
                    }
                    is_over |= memmem::find(data, b"setsid ").is_some() && memmem::find(data, b"flood").is_none();
                };
                match timeout(SILENCE, events.next(take)).await {
                    Ok(more) => {
                        if !more? {
                            break;
                        }
                    }
                    Err(_) => break,
                }
            }
            Ok::<_, Error>((seen, seen as f64 / last.duration_since(begin).as_secs_f64()))
        };
        let id = self.id.clone();
        let prompting = async {
            match self.kind {
                ApiKind::AgentProxy => {
                    let path = format!("/v1/sessions/{id}/prompt");
                    self.api.json("POST", &path, Some(&json!({ "text": script }))).await?;
                }
                ApiKind::SandboxAgent => {
                    let prompt = json!({ "sessionId": "fake-session", "prompt": [{ "type": "text", "text": script }] });
                    self.call("", "session/prompt", &prompt).await?;
                }
            }
            Ok(())
        };
        let (read, ()) = tokio::try_join!(reading, prompting)?;
        Ok(read)
    }

    async fn kill(&mut self) -> Result<()> {
        match self.kind {
            ApiKind::AgentProxy => {
                let path = format!("/v1/sessions/{}/kill", self.id);
                self.api.json("POST", &path, Some(&json!({}))).await?;
            }
            ApiKind::SandboxAgent => {
                self.api.json("DELETE", &format!("/v1/acp/{}", self.id), None).await?;
            }
        }
        Ok(())
    }

    /// Sends a message of the agent's protocol.
    async fn call(&mut self, query: &str, method: &str, params: &Value) -> Result<()> {
        let message = json!({ "jsonrpc": "2.0", "id": method, "method": method, "params": params });
        let answer = self.api.json("POST", &format!("/v1/acp/{}{query}", self.id), Some(&message)).await?;
        match answer.get("error") {
            Some(error) => Err(Error::answer(format!("{method} of the peer"), format!("fails: {error}"))),
            None => Ok(()),
        }
    }

    /// The agents, and what they have started.
    fn agents(&self) -> Result<Vec<ProcessId>> {
        let below = self.server.below()?;
        Ok(below.iter().filter(|process| is_agent(process)).map(|process| process.id).collect())
    }
}

fn is_agent(process: &registry::MachineProcess) -> bool {
    let line = process.argv.join(" ");
    line.contains("fake-agent") || line.contains("pi-acp") || line.contains("fake-acp") || line.contains(ESCAPEE)
}

/// Parses the number of a text of the flood.
fn flooded(data: &[u8]) -> Option<u64> {
    const TEXT: &[u8] = br#""text":""#;
    let text = &data[memmem::find(data, TEXT)? + TEXT.len()..];
    std::str::from_utf8(text.get(..10)?).ok()?.parse().ok()
}
