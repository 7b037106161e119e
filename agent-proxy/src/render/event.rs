//! Formatting of events, one a line.

use std::time::{Duration, UNIX_EPOCH};

use ipc_protocol::{
    BypassAction, ContainmentStatus, Envelope, Event, FileRefusal, LimitForm, LimitKind, NetworkConnection,
    NetworkRefusal, ObserverKind, PermissionBypassed, ProcessId, ResolvedBy, SettingSource, StopReason, ToolStatus,
    Usage, WorkspaceStep,
};

use super::{bytes, count, duration, receipt::layers};
use crate::term::{TermStyle, printable};

/// Formats an event as one line: offset, time (UTC), turn, type, and the relevant part of its payload.
pub(crate) fn line(envelope: &Envelope, style: TermStyle) -> String {
    let json = envelope.to_json().unwrap_or_default();
    // A caller may have appended it.
    let kind = printable(json.get("type").and_then(|kind| kind.as_str()).unwrap_or("?"), false);
    let time = humantime::format_rfc3339_millis(envelope.created_at).to_string();
    let time = time.get(11..23).unwrap_or_default().to_owned();
    let turn = envelope.turn.map_or_else(|| "-".into(), |turn| turn.to_string());
    let text = printable(&detail(&envelope.event), false);
    format!("{:>6}  {}  {turn:>3}  {kind:<21} {text}", envelope.offset, style.dim(time)).trim_end().to_owned()
}

fn files_of(files: u64) -> String {
    count(usize::try_from(files).unwrap_or(usize::MAX), "file", "files")
}

/// Formats the relevant part of an event's payload.
pub(crate) fn detail(event: &Event) -> String {
    match event {
        Event::SessionStarted { agent, process, proxy, measures, .. } => {
            format!("{agent}, pid {}, proxy {}; {}", process.pid, proxy.pid, self::measures(measures))
        }
        Event::SessionIdle {} | Event::SessionBusy {} => String::new(),
        Event::SessionStatus { status, detail } => format!("{status}: {detail}"),
        Event::SessionEnded { reason, receipt } | Event::SessionSuspended { reason, receipt } => match receipt {
            Some(receipt) => format!("{reason}; {receipt}"),
            None => reason.to_string(),
        },
        Event::SessionGap(gap) => format!("events {} to {} are lost", gap.from, gap.to),
        Event::SessionLossy { reason } | Event::SessionDegraded { reason } => reason.clone(),
        Event::SessionResumed { by, detail } => format!("{by}: {detail}"),
        Event::TurnStarted { prompt, .. } => format!("{prompt:?}"),
        Event::Text { text } | Event::Thinking { text } => format!("{text:?}"),
        Event::ToolStart(tool) => format!("{} ({})", tool.title, tool.kind),
        Event::ToolUpdate(tool) => {
            let status = tool.status.map_or("", tool_status);
            format!("{} {status} {}", tool.id, tool.title.as_deref().unwrap_or_default())
        }
        Event::ToolEnd(tool) => format!("{} {} {:?}", tool.id, tool_status(tool.status), tool.output),
        Event::Plan { entries } => {
            let step = |entry: &ipc_protocol::PlanEntry| format!("{} [{}]", entry.content, entry.status);
            entries.iter().map(step).collect::<Vec<_>>().join("; ")
        }
        Event::Diff(diff) => {
            let lines = |text: &Option<String>| text.as_ref().map_or(0, |text| text.lines().count());
            let (old, new) = diff
                .hunks
                .iter()
                .fold((0, 0), |(old, new), hunk| (old + lines(&hunk.old_text), new + lines(&hunk.new_text)));
            format!("{} {}: {old} lines become {new}", diff.tool_call_id, diff.path)
        }
        Event::SubagentText { parent, text } | Event::SubagentThinking { parent, text } => format!("{parent} {text:?}"),
        Event::Image(image) => format!("{}, {}", image.mime_type, bytes(image.bytes)),
        Event::SessionCommands { commands } => {
            commands.iter().map(|command| format!("/{}", command.name)).collect::<Vec<_>>().join(" ")
        }
        Event::SessionTitle { title: value, by }
        | Event::SessionModel { model: value, by }
        | Event::SessionMode { mode: value, by }
        | Event::SessionThinking { level: value, by } => format!("{value}, by {}", setting_source(*by)),
        Event::SessionWorkspace { step, kind, source, path, files } => match step {
            WorkspaceStep::Made => format!("{kind} of {source} made: {path}"),
            WorkspaceStep::Applied => format!("{} applied to {source}", files_of(*files)),
            WorkspaceStep::Dropped => format!("{kind} of {source} dropped, {} changed", files_of(*files)),
        },
        Event::SessionClaimed { warm_ms, user_id, .. } => {
            let user = user_id.as_ref().map_or_else(String::new, |user| format!(", for {user}"));
            format!("warm for {}{user}", duration(Duration::from_millis(*warm_ms)))
        }
        Event::Usage(usage) => tokens(usage),
        Event::ContextWindow { used, size, .. } => format!("{used} of {size} tokens"),
        Event::Complete { stop_reason, usage } => {
            let usage = usage.as_ref().map_or_else(String::new, |usage| format!(" ({})", tokens(usage)));
            format!("{}{usage}", stop(stop_reason))
        }
        Event::Error { code, message, attempt: Some(attempt), .. } => format!("{code}: {message} (attempt {attempt})"),
        Event::Error { code, message, attempt: None, .. } => format!("{code}: {message}"),
        Event::TimeoutFired { clock, after_ms, action, last_words } => {
            let words = last_words.as_ref().map_or_else(String::new, |words| format!("; last: {words}"));
            format!("{clock} after {}: {action:?}{words}", duration(Duration::from_millis(*after_ms)))
        }
        Event::Voided { text_bytes, thinking_bytes } => {
            format!(
                "the answer broke off, and is asked for again: {text_bytes} bytes of text, {thinking_bytes} of thinking"
            )
        }
        Event::UsageLimited { limit, message, resets_at, waits } => {
            let reset = resets_at.map_or_else(String::new, |ms| {
                let moment = UNIX_EPOCH + Duration::from_millis(ms);
                format!("; reset at {}", humantime::format_rfc3339_seconds(moment))
            });
            format!("{message} ({limit}){reset}{}", if *waits { "; waiting" } else { "" })
        }
        Event::TerminalAttached { viewer, rows, columns } => format!("viewer {viewer}, {columns}x{rows}"),
        Event::TerminalPrompted { text } => format!("{text:?}"),
        Event::TerminalDetached { viewer } => format!("viewer {viewer}"),
        Event::TerminalStatus { status, detail: None } => status.clone(),
        Event::TerminalStatus { status, detail: Some(detail) } => format!("{status}: {detail}"),
        Event::SessionSilent { for_ms } => duration(Duration::from_millis(*for_ms)),
        Event::Harness { payload, .. } => String::from_utf8_lossy(payload.as_bytes()).trim_end().to_owned(),
        Event::PermissionRequested(request) => {
            let options: Vec<_> = request.options.iter().map(|option| option.id.as_str()).collect();
            format!("{}: {} ({})", request.id, request.title, options.join(", "))
        }
        Event::PermissionResolved { id, option, by } => {
            format!("{id}: {}, by {}", option.as_deref().unwrap_or("no answer"), resolved_by(by))
        }
        Event::ProcessSpawned(process) => format!("{} {}", process.id.pid, process.command_line()),
        Event::BudgetExceeded(passed) => format!("{passed}; {:?}", passed.action),
        Event::PermissionBypassed(bypassed) => bypass(bypassed),
        Event::NetworkConnection(connection) => {
            let NetworkConnection { host, port, sent, received, duration_ms, process } = &**connection;
            format!("{host}:{port}{}: {sent} bytes sent, {received} received in {duration_ms} ms", by(*process))
        }
        Event::NetworkRefused(refusal) => {
            let NetworkRefusal { host, port, reason, process } = &**refusal;
            let port = if *port == 0 { String::new() } else { format!(":{port}") };
            format!("{host}{port}{}: {reason}", by(*process))
        }
        Event::FileRefused(refusal) => {
            let FileRefusal { path, access, process, command } = &**refusal;
            let command = command.as_ref().map_or_else(String::new, |command| format!(" ({command})"));
            format!("{path}{}{command}: {}", by(*process), access.join(", "))
        }
        Event::LimitExceeded(passed) => {
            let by = passed.process.map_or_else(String::new, |process| format!(", most of it by {}", process.pid));
            format!(
                "{}: {} of {}{by}; noticed by {}; {}",
                passed.limit,
                amount(passed.limit, passed.measured),
                amount(passed.limit, passed.value),
                form(passed.form),
                passed.action
            )
        }
        Event::ProcessExited { process, command, exit } => {
            let command = command.as_deref().unwrap_or("[unreadable]");
            format!("{} {command}: {}", process.pid, exit.map_or_else(|| "ended".to_owned(), |exit| exit.to_string()))
        }
        Event::ActionFailed { action, error } => format!("{action}: {error}"),
        Event::Log { stream, text } => format!("{stream}: {}", text.trim_end()),
        Event::External { payload, .. } => payload.as_str().to_owned(),
        other => serde_json::to_string(other).unwrap_or_default(),
    }
}

/// Formats a session's containment, observation, limits and hardening.
pub(crate) fn measures(measures: &ContainmentStatus) -> String {
    let mut text = format!("{}, seen by {}", layers(&measures.layers), observer(measures.observer));
    for limit in &measures.limits {
        text.push_str(&format!(", {} {} ({})", limit.limit, amount(limit.limit, limit.value), form(limit.form)));
    }
    let own_cgroups = (measures.own_cgroups_only, "own cgroup files only");
    for (on, name) in [(measures.undumpable, "undumpable"), (measures.landlock, "landlock"), own_cgroups] {
        if on {
            text.push_str(", ");
            text.push_str(name);
        }
    }
    if let Some(sandbox) = &measures.sandbox {
        text.push_str(&format!(", sandbox {} by {}, network {}", sandbox.mode, sandbox.layer, sandbox.network));
    }
    if let Some(container) = &measures.container {
        let network = if container.network_off { ", network off" } else { "" };
        text.push_str(&format!(", in a container of {} by {}{network}", container.image, container.engine));
    }
    if let Some(sandbox) = &measures.agent_sandbox {
        text.push_str(&format!(", the agent's own sandbox: {sandbox}"));
    }
    text
}

/// Names the process behind a connection.
fn by(process: Option<ProcessId>) -> String {
    process.map_or_else(String::new, |process| format!(" by {}", process.pid))
}

/// A tool call that nobody decided on.
fn bypass(bypassed: &PermissionBypassed) -> String {
    let PermissionBypassed { kind, title, denied_by, action, .. } = bypassed;
    let why = match denied_by {
        Some(by) => format!("{} denies it", resolved_by(by)),
        None => "the agent should have asked".to_owned(),
    };
    let action = match action {
        BypassAction::Warn => "",
        BypassAction::AbortTurn => "; the turn is aborted",
    };
    format!("{kind} ran without a decision: {title} ({why}{action})")
}

/// Names the person or rule that answered a permission request.
pub(super) fn resolved_by(by: &ResolvedBy) -> String {
    match by {
        ResolvedBy::User { name: Some(name) } => name.clone(),
        ResolvedBy::User { name: None } => "the user".to_owned(),
        ResolvedBy::Mode(_) => "the session's mode".to_owned(),
        ResolvedBy::Rule { index } => format!("rule {index}"),
        ResolvedBy::Deadline => "the deadline".to_owned(),
        ResolvedBy::Abort => "the end of the turn".to_owned(),
        ResolvedBy::Agent => "the agent".to_owned(),
        ResolvedBy::Terminal => "somebody at its screen".to_owned(),
        other => format!("{other:?}"),
    }
}

/// Names the source of a setting.
fn setting_source(by: SettingSource) -> &'static str {
    match by {
        SettingSource::Caller => "a caller",
        SettingSource::Agent => "the agent",
        SettingSource::Terminal => "somebody at its screen",
    }
}

/// Names the observer of processes.
pub(crate) fn observer(observer: ObserverKind) -> &'static str {
    match observer {
        ObserverKind::Connector => "the proc connector",
        ObserverKind::Polling => "polling",
    }
}

/// Formats a limit's value, or a measured one, in its unit.
pub(crate) fn amount(limit: LimitKind, value: u64) -> String {
    match limit {
        LimitKind::Memory | LimitKind::FileSize => bytes(value),
        LimitKind::Processes | LimitKind::OpenFiles => value.to_string(),
        LimitKind::CpuPercent => format!("{value}%"),
        LimitKind::CpuTime | LimitKind::WallClock => duration(Duration::from_millis(value)),
    }
}

/// Names the enforcement of a limit.
pub(crate) fn form(form: LimitForm) -> &'static str {
    match form {
        LimitForm::Cgroup => "cgroup controller",
        LimitForm::Rlimit => "rlimit",
        LimitForm::Clock => "clock",
        LimitForm::Watchdog => "watchdog",
    }
}

/// Describes a stop reason.
pub(crate) fn stop(reason: &StopReason) -> String {
    match reason {
        StopReason::EndTurn => "done".into(),
        StopReason::Cancelled => "aborted".into(),
        StopReason::Refusal => "the model refused".into(),
        StopReason::MaxTokens => "token limit reached".into(),
        StopReason::MaxRequests => "limit of model requests reached".into(),
        StopReason::Other(reason) => reason.clone(),
        other => format!("{other:?}"),
    }
}

pub(crate) fn tool_status(status: ToolStatus) -> &'static str {
    match status {
        ToolStatus::Pending => "pending",
        ToolStatus::InProgress => "running",
        ToolStatus::Completed => "done",
        ToolStatus::Failed => "failed",
    }
}

fn tokens(usage: &Usage) -> String {
    let count = |tokens: Option<u64>| tokens.map_or_else(|| "?".to_owned(), |tokens| tokens.to_string());
    let mut text = format!("{} tokens in, {} out", count(usage.input_tokens), count(usage.output_tokens));
    if let Some(cost) = usage.cost_usd {
        text.push_str(&format!(", ${cost:.4}"));
    }
    text
}

/// Describes the size of a tool's output, for people.
pub(crate) fn output_size(output: &str) -> String {
    match output.lines().count() {
        0 => "no output".into(),
        1 => printable(output.trim_end(), false),
        lines => format!("{lines} lines, {}", bytes(output.len() as u64)),
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::UNIX_EPOCH};

    use ipc_protocol::{ContainmentLayer, LimitAction, LimitExceeded, LimitInForce, ProcessId};

    use super::*;

    #[test]
    fn one_line_each_whatever_is_in_it() {
        let envelope = |event| Envelope {
            offset: 7,
            created_at: UNIX_EPOCH,
            session: Arc::new("s-1".parse().expect("a valid id")),
            turn: Some(1),
            metadata: None,
            event,
        };
        let text = line(&envelope(Event::Text { text: "a\n\x1b[2Jb".into() }), TermStyle::PLAIN);
        assert_eq!(text, r#"     7  00:00:00.000    1  stream:text           "a\n\u{1b}[2Jb""#);
        let text = line(&envelope(Event::SessionIdle {}), TermStyle::PLAIN);
        assert_eq!(text, "     7  00:00:00.000    1  session:idle");
        let text = line(&envelope(Event::ActionFailed { action: "x\ny".into(), error: "z".into() }), TermStyle::PLAIN);
        assert_eq!(text.lines().count(), 1);
    }

    #[test]
    fn limits_have_their_units() {
        let passed = LimitExceeded {
            limit: LimitKind::Memory,
            value: 2 << 30,
            measured: 3 << 30,
            form: LimitForm::Watchdog,
            action: LimitAction::KillProcess,
            process: Some(ProcessId { pid: 7, start_time: 1 }),
        };
        assert_eq!(
            detail(&Event::LimitExceeded(Box::new(passed))),
            "memory: 3.0 GiB of 2.0 GiB, most of it by 7; noticed by watchdog; kill_process"
        );
        assert_eq!(amount(LimitKind::CpuPercent, 150), "150%");
        assert_eq!(amount(LimitKind::WallClock, 600_000), "600.0 s");
    }

    #[test]
    fn measures_say_what_holds() {
        let limits = vec![LimitInForce { limit: LimitKind::Processes, value: 200, form: LimitForm::Cgroup }];
        let held = ContainmentStatus {
            layers: vec![ContainmentLayer::Baseline, ContainmentLayer::Cgroup],
            observer: ObserverKind::Connector,
            limits,
            undumpable: true,
            landlock: false,
            own_cgroups_only: true,
            agent_sandbox: Some("workspace-write".into()),
            sandbox: None,
            container: None,
        };
        assert_eq!(
            measures(&held),
            "baseline + cgroup, seen by the proc connector, pids 200 (cgroup controller), undumpable, own cgroup files only, the agent's own sandbox: workspace-write"
        );
        assert_eq!(measures(&ContainmentStatus::default()), "baseline, seen by polling");
    }
}
