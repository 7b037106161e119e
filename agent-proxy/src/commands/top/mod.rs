//! Command `top`: sessions and their processes, live in the terminal.
//!
//! [`state`] decides and [`screen`] draws, both without I/O. Here are the terminal, the keys, and the daemon: one task asks for
//! lists, one reads the events of the open session, one does each thing that is asked for.

mod rows;
mod screen;
mod state;
mod text;

use std::time::{Duration, SystemTime};

use api_types::{
    ProblemDetails, ProcessDetails, SessionInfo,
    api::{KillRequest, PermissionReply, path_segment},
};
use ipc_protocol::{Envelope, PermissionAnswer, Receipt, SessionId};
use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event as TerminalEvent},
};
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep, sleep_until},
};

use self::{
    rows::SessionRow,
    screen::TopStyle,
    state::{GRACE_MS, PermissionChoice, TopAction, TopState, TopUpdate},
};
use crate::{args::TopArgs, client::DaemonClient, command_failure::CommandFailure, term, viewing::EndSignals};

/// Shortest time between two drawings: text that streams is drawn so often at most.
const FRAME: Duration = Duration::from_millis(50);
/// Shortest time between two looks at processes.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(250);
/// Pause before a stream of events that broke off is read again.
const STREAM_PAUSE: Duration = Duration::from_secs(1);
/// Updates that may wait to be drawn. Whoever sends more waits.
const UPDATES: usize = 256;
/// Events of a session that are shown when it is opened.
const TAIL: u32 = 500;

/// Shows sessions and processes until `q`.
pub(super) async fn run(client: &DaemonClient, args: TopArgs) -> Result<(), CommandFailure> {
    if term::columns().is_none() {
        return Err(ProblemDetails::usage("top needs a terminal: `agent-proxy ps` and `sessions` print lists").into());
    }
    let failed = |what: &str, error: std::io::Error| ProblemDetails::failed(format!("{what} failed: {error}"));
    // Whoever ends it leaves the terminal as it was.
    let mut ends = EndSignals::new().map_err(|error| failed("handling signals", error))?;
    let mut terminal = ratatui::try_init().map_err(|error| failed("setting the terminal up", error))?;
    let shown = tokio::select! {
        shown = show(&mut terminal, client, args) => shown,
        () = ends.recv() => Ok(()),
    };
    ratatui::try_restore().map_err(|error| failed("setting the terminal back", error))?;
    Ok(shown.map_err(|error| failed("drawing", error))?)
}

async fn show(terminal: &mut DefaultTerminal, client: &DaemonClient, args: TopArgs) -> std::io::Result<()> {
    let style = TopStyle { has_colour: term::TermStyle::stdout().is_on() };
    let mut state = TopState::new(args.filter.unwrap_or_default(), args.sort);
    let (sender, mut updates) = mpsc::channel(UPDATES);
    let (open, opened) = watch::channel(None);
    let (refresh, refreshed) = watch::channel(());
    let mut tasks = JoinSet::new();
    let pause = args.interval.max(SHORTEST_INTERVAL);
    tasks.spawn(look(client.clone(), sender.clone(), opened.clone(), refreshed, pause));
    tasks.spawn(follow(client.clone(), sender.clone(), opened));
    let mut keys = terminal_events();
    let mut drawn = Instant::now() - FRAME;
    let mut is_changed = true;
    loop {
        tokio::select! {
            biased;
            Some(event) = keys.recv() => {
                is_changed = true;
                let TerminalEvent::Key(key) = event else { continue };
                match state.key(key) {
                    None => {}
                    Some(TopAction::Quit) => break,
                    Some(TopAction::Refresh) => _ = refresh.send(()),
                    Some(TopAction::Open(session)) => {
                        _ = open.send(session);
                        _ = refresh.send(());
                    }
                    Some(action) => {
                        let (client, sender, by) = (client.clone(), sender.clone(), args.by.clone());
                        let refresh = refresh.clone();
                        tasks.spawn(async move {
                            if let Some(update) = act(&client, action, by).await {
                                _ = sender.send(update).await;
                            }
                            _ = refresh.send(());
                        });
                    }
                }
            }
            () = sleep_until(drawn + FRAME), if is_changed => {
                is_changed = false;
                terminal.draw(|frame| screen::draw(frame, &mut state, style, SystemTime::now()))?;
                drawn = Instant::now();
            }
            Some(update) = updates.recv() => {
                is_changed = true;
                state.update(update);
            }
            Some(_) = tasks.join_next() => {}
        }
    }
    Ok(())
}

/// Reads keys and changes of the window's size in a thread of its own: that blocks.
fn terminal_events() -> mpsc::Receiver<TerminalEvent> {
    let (sender, events) = mpsc::channel(64);
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            if sender.blocking_send(event).is_err() {
                break;
            }
        }
    });
    events
}

/// Asks for the sessions, and for the processes of the open one, again and again.
async fn look(
    client: DaemonClient,
    updates: mpsc::Sender<TopUpdate>,
    mut opened: watch::Receiver<Option<SessionId>>,
    mut refreshed: watch::Receiver<()>,
    pause: Duration,
) {
    let mut looks = interval(pause);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = looks.tick() => {}
            changed = refreshed.changed() => if changed.is_err() { return },
        }
        let listed: Result<Vec<SessionInfo>, _> = client.get("/v1/sessions?processUse=true&archived=true").await;
        let rows = listed.map(|sessions| sessions.into_iter().map(SessionRow::of).collect());
        if updates.send(TopUpdate::Sessions(rows.map_err(|problem| problem.detail))).await.is_err() {
            return;
        }
        let open = opened.borrow_and_update().clone();
        if let Some(id) = open {
            let listed: Result<Vec<ProcessDetails>, _> = client.get(&format!("/v1/sessions/{id}/processes")).await;
            // Whether the session is gone, the list of sessions says.
            if updates.send(TopUpdate::Processes(id, listed.unwrap_or_default())).await.is_err() {
                return;
            }
        }
    }
}

/// Reads the events of the open session.
async fn follow(
    client: DaemonClient,
    updates: mpsc::Sender<TopUpdate>,
    mut opened: watch::Receiver<Option<SessionId>>,
) {
    loop {
        let open = opened.borrow_and_update().clone();
        let reading = async {
            let Some(id) = open else { return std::future::pending().await };
            let mut from = None;
            loop {
                read_events(&client, &updates, &id, &mut from).await;
                sleep(STREAM_PAUSE).await;
            }
        };
        tokio::select! {
            () = reading => {}
            changed = opened.changed() => if changed.is_err() { return },
        }
    }
}

/// Reads to the end of the stream; the next time from there.
async fn read_events(client: &DaemonClient, updates: &mpsc::Sender<TopUpdate>, id: &SessionId, from: &mut Option<u64>) {
    let start = match from {
        None => format!("from=0&tail={TAIL}"),
        Some(from) => format!("from={from}"),
    };
    let path = format!("/v1/sessions/{id}/events?follow=true&raw=false&{start}");
    let Ok(mut lines) = client.get_lines(&path).await else { return };
    while let Ok(Some(batch)) = lines.next_batch().await {
        for envelope in batch.into_iter().filter_map(|value| Envelope::from_json(value).ok()) {
            *from = Some(envelope.offset);
            if updates.send(TopUpdate::Event(id.clone(), Box::new(envelope))).await.is_err() {
                return;
            }
        }
    }
}

/// Does what was asked for.
async fn act(client: &DaemonClient, action: TopAction, by: Option<String>) -> Option<TopUpdate> {
    let failed = |problem: ProblemDetails| TopUpdate::Said(format!("error: {}", problem.detail));
    match action {
        TopAction::Kill { session, pid, tree } => {
            let request = KillRequest { pid, tree, keep_agent: false, grace_ms: Some(GRACE_MS) };
            let killed = client.post::<Receipt>(&format!("/v1/sessions/{session}/kill"), &request).await;
            let result = match killed {
                Ok(receipt) => Ok(Box::new(receipt)),
                // Survivors are a problem with a receipt.
                Err(ProblemDetails { receipt: Some(receipt), .. }) => Ok(receipt),
                Err(problem) => Err(problem.detail),
            };
            Some(TopUpdate::Killed(session, result))
        }
        TopAction::Signal { session, process, signal } => {
            let path = format!("/v1/sessions/{session}/processes/{}/signal", process.pid);
            let body = json!({ "signal": format!("SIG{signal}"), "startTime": process.start_time });
            Some(match client.post::<Value>(&path, &body).await {
                Ok(_) => TopUpdate::Said(format!("sent SIG{signal} to process {}", process.pid)),
                Err(problem) => failed(problem),
            })
        }
        TopAction::Answer { session, request, answer } => {
            let answer = match answer {
                PermissionChoice::Allow => PermissionAnswer::Allow,
                PermissionChoice::Deny => PermissionAnswer::Deny,
                PermissionChoice::Option(id) => PermissionAnswer::Option(id),
            };
            let path = format!("/v1/sessions/{session}/permissions/{}", path_segment(&request));
            Some(match client.post::<Value>(&path, &PermissionReply { answer, by }).await {
                Ok(_) => TopUpdate::Said(format!("answered {request} of {session}")),
                Err(problem) => failed(problem),
            })
        }
        TopAction::Quit | TopAction::Refresh | TopAction::Open(_) => None,
    }
}
