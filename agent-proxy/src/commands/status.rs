//! Command `status`: the daemon, or one session as a service manager shows a unit.

use std::{fmt::Write as _, time::SystemTime};

use api_types::{ProcessDetails, SessionInfo, SessionState, api::HealthResponse};
use ipc_protocol::{Envelope, ProcessStatus};
use serde_json::{Value, json};

use super::sessions::parse;
use crate::{
    args::StatusArgs,
    client::DaemonClient,
    command_failure::CommandFailure,
    render::{self, count, moment},
    term::{self, TermStyle, printable},
};

/// Shows the daemon's state, or a session's.
pub(super) async fn run(client: &DaemonClient, args: &StatusArgs, as_json: bool) -> Result<(), CommandFailure> {
    match &args.id {
        None => daemon(client, as_json).await,
        Some(id) => session(client, id.as_str(), args.lines, as_json).await,
    }
}

async fn daemon(client: &DaemonClient, as_json: bool) -> Result<(), CommandFailure> {
    let mut json: Value = client.get("/v1/health").await?;
    let health: HealthResponse = parse(json.clone())?;
    let sessions: Vec<SessionInfo> = client.get("/v1/sessions?archived=true").await?;
    let uptime = health.daemon.as_ref().and_then(|daemon| SystemTime::now().duration_since(daemon.started_at).ok());
    if as_json {
        json["uptimeMs"] = json!(uptime.map(|uptime| u64::try_from(uptime.as_millis()).unwrap_or(u64::MAX)));
        return term::json(&json);
    }
    term::out(daemon_text(&health, &sessions, uptime, TermStyle::stdout()))
}

fn daemon_text(
    health: &HealthResponse,
    sessions: &[SessionInfo],
    uptime: Option<std::time::Duration>,
    style: TermStyle,
) -> String {
    let HealthResponse { version, pid, fork_server, sessions: live, waiting, damaged, degraded, daemon } = health;
    let is_well = degraded.is_empty() && damaged.is_empty();
    let mark = if is_well { style.green("●") } else { style.yellow("●") };
    let mut text = format!("{mark} {} {version}\n", style.bold("agent-proxy"));
    let mut row = |name: &str, value: String| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {name:<11}{}", printable(&value, false));
    };
    if let (Some(daemon), Some(uptime)) = (daemon, uptime) {
        row("running", format!("since {} UTC ({})", moment(daemon.started_at), age(uptime)));
    }
    row("process", format!("{pid}, fork server {}", fork_server.pid));
    if let Some(daemon) = daemon {
        row("socket", daemon.socket.display().to_string());
        if !daemon.addresses.is_empty() {
            row("addresses", daemon.addresses.join(", "));
        }
        let path = |path: &Option<std::path::PathBuf>, none: &str| {
            path.as_ref().map_or_else(|| none.to_owned(), |path| path.display().to_string())
        };
        row("state", path(&daemon.state_dir, "none: sessions end with the daemon"));
        row("log", path(&daemon.log_file, "standard error"));
    }
    let states = |wanted: fn(&SessionState) -> bool| sessions.iter().filter(|session| wanted(&session.state)).count();
    let busy = states(|state| matches!(state, SessionState::Busy { .. }));
    let suspended = states(SessionState::is_suspended);
    let asking = sessions.iter().filter(|session| !session.open_permissions.is_empty()).count();
    let mut parts = vec![format!("{live} living"), format!("{busy} busy")];
    for (number, what) in [(suspended, "suspended"), (asking, "waiting for a permission"), (*waiting, "starts waiting")]
    {
        if number > 0 {
            parts.push(format!("{number} {what}"));
        }
    }
    row("sessions", parts.join(", "));
    for (at, line) in degraded.iter().enumerate() {
        row(if at == 0 { "degraded" } else { "" }, line.clone());
    }
    for (at, line) in damaged.iter().enumerate() {
        row(if at == 0 { "damaged" } else { "" }, line.clone());
    }
    text
}

async fn session(client: &DaemonClient, id: &str, lines: u32, as_json: bool) -> Result<(), CommandFailure> {
    let json: Value = client.get(&format!("/v1/sessions/{id}")).await?;
    let session: SessionInfo = parse(json.clone())?;
    let id = session.metadata.session_id.clone();
    let processes: Value = client.get(&format!("/v1/sessions/{id}/processes")).await?;
    let mut events = Vec::new();
    if lines > 0 {
        let most = lines.min(api_types::api::MAX_TAIL);
        let path = format!("/v1/sessions/{id}/events?from=0&follow=false&raw=false&tail={most}");
        let mut stream = client.get_lines(&path).await?;
        while let Some(batch) = stream.next_batch().await? {
            events.extend(batch);
        }
    }
    if as_json {
        return term::json(&json!({ "session": json, "processes": processes, "events": events }));
    }
    let processes: Vec<ProcessDetails> = parse(processes)?;
    let events: Vec<Envelope> = events.into_iter().filter_map(|value| Envelope::from_json(value).ok()).collect();
    term::out(session_text(&session, &processes, &events, TermStyle::stdout(), term::columns()))
}

fn session_text(
    session: &SessionInfo,
    processes: &[ProcessDetails],
    events: &[Envelope],
    style: TermStyle,
    width: Option<usize>,
) -> String {
    let SessionInfo { metadata, settings, metrics, .. } = session;
    let mark = match &session.state {
        SessionState::Ended { .. } => style.dim("○"),
        SessionState::Suspended { .. } => style.yellow("○"),
        _ if !session.open_permissions.is_empty() => style.yellow("●"),
        _ => style.green("●"),
    };
    let title = session.title.as_deref().map_or_else(String::new, |title| format!(" - {}", printable(title, false)));
    let mut text = format!("{mark} {}{title}\n", style.bold(&metadata.session_id));
    let mut row = |name: &str, value: String| {
        let _ = writeln!(text, "  {name:<11}{}", printable(&value, false));
    };
    row("state", render::sessions::state(session));
    let settings = [("model", &settings.model), ("mode", &settings.mode), ("thinking", &settings.thinking)];
    let settings: String =
        settings.iter().filter_map(|(name, value)| value.as_ref().map(|value| format!(", {name} {value}"))).collect();
    row("agent", format!("{}{settings}", metadata.agent));
    row("started", format!("{} UTC", moment(metadata.started_at)));
    row("directory", metadata.cwd.clone());
    let labels = [("user", &metadata.user_id), ("workspace", &metadata.workspace_id), ("profile", &metadata.profile)];
    for (name, label) in labels {
        if let Some(label) = label {
            row(name, label.clone());
        }
    }
    row("turns", format!("{}, {} queued", count_text(session.turns, "turn", "turns"), session.queued.len()));
    let tokens = |tokens: Option<u64>| tokens.map_or_else(|| "?".to_owned(), |tokens| tokens.to_string());
    let cost = metrics.usage.cost_usd.map_or_else(String::new, |cost| format!(", ${cost:.4}"));
    row(
        "tokens",
        format!("{} in, {} out{cost}", tokens(metrics.usage.input_tokens), tokens(metrics.usage.output_tokens)),
    );
    if let Some(measures) = &session.measures {
        row("measures", render::event::measures(measures));
    }
    for request in &session.open_permissions {
        row(
            "permission",
            format!(
                "{}: {} (agent-proxy permit {} {} allow|deny)",
                request.id, request.title, metadata.session_id, request.id
            ),
        );
    }
    let running = processes.iter().filter(|listed| listed.process.status == ProcessStatus::Running);
    let running: Vec<ProcessDetails> = running.cloned().collect();
    if let SessionState::Ended { receipt: Some(receipt), .. } | SessionState::Suspended { receipt: Some(receipt), .. } =
        &session.state
    {
        text.push_str(&format!("\n{}", term::filled(&render::receipt::verdict(receipt, style), width)));
    }
    if !running.is_empty() {
        text.push_str(&format!("\n{}", render::tree::render_details(&running, style, width)));
    }
    if !events.is_empty() {
        text.push('\n');
        for envelope in events {
            let line = render::event::line(envelope, TermStyle::stdout());
            let line = width.map_or(line.clone(), |width| term::clip(&line, width));
            text.push_str(&format!("{line}\n"));
        }
    }
    text
}

fn count_text(number: u64, one: &str, many: &str) -> String {
    count(usize::try_from(number).unwrap_or(usize::MAX), one, many)
}

/// Formats an age in two units at most: `3h 12m`.
pub(super) fn age(age: std::time::Duration) -> String {
    let seconds = age.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, minutes) => format!("{minutes}m {}s", seconds % 60),
        (0, hours, minutes) => format!("{hours}h {minutes}m"),
        (days, hours, _) => format!("{days}d {hours}h"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn ages_have_two_units() {
        for (seconds, expected) in [(9, "9s"), (61, "1m 1s"), (11_520, "3h 12m"), (200_000, "2d 7h")] {
            assert_eq!(age(Duration::from_secs(seconds)), expected);
        }
    }

    #[test]
    fn a_daemon_in_lines() {
        let health: HealthResponse = serde_json::from_value(json!({
            "version": "1.2.3", "pid": 7, "forkServer": {"pid": 8, "startTime": 1}, "sessions": 2, "waiting": 1,
            "degraded": ["the event log: disk full"],
            "daemon": {"startedAt": "2026-01-02T03:04:05.000Z", "socket": "/run/d.sock", "addresses": ["http://127.0.0.1:1"],
                "stateDir": "/var/state", "logFile": null}
        }))
        .expect("parses");
        let expected = "\
● agent-proxy 1.2.3
  running    since 2026-01-02 03:04:05 UTC (1m 1s)
  process    7, fork server 8
  socket     /run/d.sock
  addresses  http://127.0.0.1:1
  state      /var/state
  log        standard error
  sessions   2 living, 0 busy, 1 starts waiting
  degraded   the event log: disk full
";
        assert_eq!(daemon_text(&health, &[], Some(Duration::from_secs(61)), TermStyle::PLAIN), expected);
    }
}
