//! Events on their way to a fleet's log, and back: `bench/fleet` starts the servers.

use std::{
    collections::BTreeMap,
    io::{self, Write as _},
    path::Path,
    process::ExitCode,
    sync::{Arc, mpsc},
    time::{Duration, Instant, SystemTime},
};

use clap::Args;
use event_log::{EventBatch, EventLog, LogOptions, QueueFull, StreamOwnership};
use fleet::{EngineAddress, FleetConfig, FleetMember, FleetReplicator};
use ipc_protocol::{Envelope, Event, SessionId};
use proxy_child::ChildToken;
use proxy_manager::{ChildProgram, ProxyManager, replication::Replication};
use serde_json::json;
use tokio::time::{sleep, timeout};

use crate::{
    error::{Error, Result},
    facts,
};

/// Longest time of a part.
const DEADLINE: Duration = Duration::from_secs(120);
/// Events of a commit.
const BATCH: u64 = 256;
/// Text that makes an event a line of some 200 bytes.
const TEXT: &str = "thirty bytes of text, about so";

/// Settings of a run.
#[derive(Clone, Debug, Args)]
pub(crate) struct ShippingOptions {
    /// Servers of the fleet, as in nats://127.0.0.1:4222, with commas between them
    #[arg(long, value_delimiter = ',', required = true)]
    servers: Vec<String>,
    /// Sessions of the crowd
    #[arg(long, default_value_t = 64)]
    sessions: u64,
    /// Events of each part
    #[arg(long, default_value_t = 1_000_000)]
    events: u64,
}

/// One figure: its name, its value and its bar.
struct ShippingFigure {
    key: &'static str,
    title: &'static str,
    value: f64,
    is_reached: bool,
    bar: &'static str,
}

/// Runs all parts, and prints their figures.
///
/// # Errors
/// What makes the run invalid.
pub(crate) fn run(token: ChildToken, as_json: bool, check: bool, options: &ShippingOptions) -> Result<ExitCode> {
    let runtime = tokio::runtime::Runtime::new().map_err(Error::system("making a runtime"))?;
    let figures = runtime.block_on(measure(token, options))?;
    let mut out = io::stdout().lock();
    let written = if as_json {
        let members = figures.iter().map(|figure| (figure.key.to_owned(), json!(figure.value)));
        writeln!(out, "{}", json!({ "shipping": members.collect::<serde_json::Map<_, _>>() }))
    } else {
        let mut lines = figures.iter().map(|ShippingFigure { title, value, is_reached, bar, .. }| {
            let verdict = if *is_reached { "ok" } else { "NOT REACHED" };
            format!("{title:<62} {value:>12.2}  {bar:>10}  {verdict}")
        });
        lines.try_for_each(|line| writeln!(out, "{line}")).and_then(|()| writeln!(out, "{}", facts::line()))
    };
    written.map_err(Error::system("printing"))?;
    let missed = figures.iter().any(|figure| !figure.is_reached);
    Ok(if check && missed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

async fn measure(token: ChildToken, options: &ShippingOptions) -> Result<Vec<ShippingFigure>> {
    let many: Vec<SessionId> = (0..options.sessions).map(|number| id(&format!("crowd-{number}"))).collect();
    let one = [id("behind")];
    // Manager after manager: a child token is one program's, and starts as many fork servers as it likes.
    let crowd = ship(token, "crowd", &many, options).await?;
    let behind = ship(token, "behind", &one, options).await?;
    let read = read(&one[0], options).await?;
    Ok(vec![
        ShippingFigure {
            key: "shippedPerSecond",
            title: "shipping, sessions at once: events/s",
            value: crowd.0,
            is_reached: crowd.0 >= 200e3,
            bar: ">= 200000",
        },
        ShippingFigure {
            key: "bytesOfAnEvent",
            title: "the same: bytes of an event",
            value: crowd.1,
            is_reached: crowd.1 >= 195.0,
            bar: ">= 195",
        },
        ShippingFigure {
            key: "catchUpSeconds",
            title: "a node with one session that is behind, to its last event: s",
            value: options.events as f64 / behind.0,
            is_reached: options.events as f64 / behind.0 <= 20.0,
            bar: "<= 20",
        },
        ShippingFigure {
            key: "readSeconds",
            title: "a reader on another node takes all of it: s",
            value: read,
            is_reached: read <= 2.0,
            bar: "<= 2",
        },
    ])
}

fn id(text: &str) -> SessionId {
    text.parse().expect("a valid id")
}

fn config(node: &str, options: &ShippingOptions) -> FleetConfig {
    FleetConfig {
        engine: EngineAddress { servers: options.servers.clone(), ..EngineAddress::default() },
        node: node.parse().expect("a valid name"),
        identity: None,
        lease: Duration::from_secs(30),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        addresses: Vec::new(),
        labels: BTreeMap::new(),
        capacity: None,
        agents: Vec::new(),
        takes_over: false,
        layers: Vec::new(),
        log_max_age: None,
    }
}

/// Joins the fleet as a node.
async fn join(node: &str, options: &ShippingOptions) -> Result<FleetMember> {
    FleetMember::join(config(node, options)).await.map_err(|error| answer("the fleet", &error))
}

fn answer(who: &str, error: &(dyn std::error::Error + 'static)) -> Error {
    Error::Answer { who: who.to_owned(), what: ipc_protocol::ErrorChain(error).to_string() }
}

/// Has a node ship what its event log has of these sessions. Returns events a second, from its start to the last acknowledgement that its
/// log has noted, and the bytes of an event.
async fn ship(token: ChildToken, node: &str, sessions: &[SessionId], options: &ShippingOptions) -> Result<(f64, f64)> {
    let directory = tempfile::tempdir().map_err(Error::system("making a directory"))?;
    let state = directory.path().join("state");
    std::fs::create_dir(&state).map_err(Error::system("making a directory"))?;
    let each = options.events / sessions.len() as u64;
    fill(&state, sessions, each)?;
    let replicator = FleetReplicator::default();
    let builder = ProxyManager::builder(ChildProgram::Current(token)).state_dir(state);
    let manager = builder.replication(Replication::new(Arc::new(replicator.clone()))).build().await?;
    let member = join(node, options).await?;
    let begin = Instant::now();
    replicator.start(member.clone(), manager.clone());
    let shipped = async {
        while !manager.replicated_streams().iter().all(|stream| stream.acknowledged == stream.last) {
            sleep(Duration::from_millis(2)).await;
        }
    };
    let late = |_| Error::Deadline { operation: format!("shipping of {} events", options.events), after: DEADLINE };
    timeout(DEADLINE, shipped).await.map_err(late)?;
    let took = begin.elapsed().as_secs_f64();
    let mut reader = member.log().read(&sessions[0], 0).await.map_err(|error| answer("the fleet's log", &error))?;
    let first = reader.next().await.map_err(|error| answer("the fleet's log", &error))?;
    let lines = memchr::memchr_iter(b'\n', &first).count();
    member.leave().await;
    manager.shutdown().await;
    Ok(((each * sessions.len() as u64) as f64 / took, first.len() as f64 / lines as f64))
}

/// Writes an event log as a node has it that was cut off from the fleet.
fn fill(state: &Path, sessions: &[SessionId], each: u64) -> Result<()> {
    let failed = |error: event_log::LogError| answer("the event log", &error);
    let log = EventLog::open(state.join("log.sqlite"), LogOptions::default()).map_err(failed)?;
    for session in sessions {
        let (done, owned) = mpsc::channel();
        let ownership = StreamOwnership { epoch: 1, tail: 0, keeps_tail: true };
        log.continue_from(session, ownership, Box::new(move |result| _ = done.send(result)));
        owned.recv_timeout(DEADLINE).map_err(|_| late())?.map_err(failed)?;
    }
    let sessions: Vec<Arc<SessionId>> = sessions.iter().cloned().map(Arc::new).collect();
    for first in (1..=each).step_by(BATCH as usize) {
        for session in &sessions {
            let mut waiting = batch(session, first, BATCH.min(each - first + 1));
            while let Err(QueueFull { batch, .. }) = log.append(waiting, Box::new(drop)) {
                waiting = batch;
                std::thread::yield_now();
            }
        }
    }
    log.flush(DEADLINE).map_err(failed)
}

fn late() -> Error {
    Error::Deadline { operation: "writing the event log".to_owned(), after: DEADLINE }
}

fn batch(session: &Arc<SessionId>, first: u64, count: u64) -> EventBatch {
    let created_at = SystemTime::now();
    let envelope = |offset| {
        let event = Event::Text { text: TEXT.to_owned() };
        Arc::new(Envelope { offset, created_at, session: session.clone(), turn: Some(1), metadata: None, event })
    };
    let events = (first..first + count).map(envelope).collect();
    EventBatch { session: session.clone(), created_at, first, events, source: first, cursor: None }
}

/// Reads all events of a session on another node. Returns the time from the request to the last one.
async fn read(session: &SessionId, options: &ShippingOptions) -> Result<f64> {
    let failed = |error: fleet::EngineError| answer("the fleet's log", &error);
    let member = join("reader", options).await?;
    let begin = Instant::now();
    let mut reader = member.log().read(session, 0).await.map_err(failed)?;
    let mut events = 0;
    while events < options.events {
        let next = timeout(DEADLINE, reader.next()).await;
        let late = |_| Error::Deadline { operation: format!("reading event {events}"), after: DEADLINE };
        events += memchr::memchr_iter(b'\n', &next.map_err(late)?.map_err(failed)?).count() as u64;
    }
    let took = begin.elapsed().as_secs_f64();
    drop(reader);
    member.leave().await;
    Ok(took)
}
