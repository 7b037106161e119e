//! Table of sessions, one a line.

use api_types::{SessionInfo, SessionState, SupervisedProcesses};
use ipc_protocol::{EndReason, ProcessId, terminal::Surface};

use serde_json::Value;

use super::{
    listing::{Column, ColumnFit, Listing, ListingRow},
    moment,
};
use crate::{
    engine,
    term::{TermStyle, clip, printable},
};

/// Longest state: the reason of a failed start can fill a page.
const LONGEST_STATE: usize = 60;
/// Longest title: an agent may make a whole prompt one.
const LONGEST_TITLE: usize = 40;

const COLUMNS: &[Column] = &[
    Column { key: "id", heading: "SESSION", fit: ColumnFit::Id, from: 0 },
    Column { key: "agent", heading: "AGENT", fit: ColumnFit::Whole, from: 0 },
    Column { key: "state", heading: "STATE", fit: ColumnFit::End, from: 0 },
    Column { key: "turns", heading: "TURNS", fit: ColumnFit::Number, from: 0 },
    Column { key: "started", heading: "STARTED (UTC)", fit: ColumnFit::Whole, from: 100 },
    Column { key: "title", heading: "TITLE", fit: ColumnFit::End, from: 0 },
    Column { key: "cwd", heading: "CWD", fit: ColumnFit::Start, from: 0 },
];

/// Lists the sessions. `json` has each as the daemon sent it.
pub(crate) fn listing(sessions: &[SessionInfo], json: Vec<Value>) -> Listing {
    let cells = |session: &SessionInfo| {
        vec![
            session.metadata.session_id.to_string(),
            session.metadata.agent.clone(),
            clip(&printable(&state(session), false), LONGEST_STATE),
            session.turns.to_string(),
            moment(session.metadata.started_at),
            clip(&printable(session.title.as_deref().unwrap_or_default(), false), LONGEST_TITLE),
            printable(&session.metadata.cwd, false),
        ]
    };
    let rows = sessions.iter().map(cells).zip(json).map(|(cells, json)| ListingRow { cells, json });
    Listing { columns: COLUMNS, rows: rows.collect() }
}

/// Describes the session's state, and if its agent is gone: a session that keeps the processes its agent leaves
/// continues without it.
pub(crate) fn state(session: &SessionInfo) -> String {
    let goes_on = matches!(session.state, SessionState::Idle | SessionState::Busy { .. });
    // If the proxy is visible, its agent would be too.
    let SupervisedProcesses { proxy, agent_process } = session.processes;
    let agent_is_gone = goes_on && is_there(proxy) && agent_process.is_some() && !is_there(agent_process);
    let text = match session.open_permissions.first() {
        Some(request) if goes_on => format!("waiting for {}", request.id),
        // Of turns on the screen the protocol knows nothing.
        _ if session.state == SessionState::Idle && session.metadata.surface != Surface::Machine => {
            screen_text(session)
        }
        _ if session.warm => "warm".to_owned(),
        _ => state_text(&session.state),
    };
    let note = match (session.ending, agent_is_gone) {
        (true, _) => " (ending)",
        (false, true) => " (agent exited)",
        (false, false) => "",
    };
    format!("{text}{note}")
}

/// Formats the status of the agent's own screen. An unknown one stays unknown.
fn screen_text(session: &SessionInfo) -> String {
    match (&session.screen_status, session.metadata.surface) {
        (Some(status), _) => status.clone(),
        (None, Surface::Both) => state_text(&session.state),
        (None, _) => "on its screen".to_owned(),
    }
}

/// Formats a state, with the reason of an end and the doubts of its receipt.
fn state_text(state: &SessionState) -> String {
    match state {
        SessionState::Starting => "starting".to_owned(),
        SessionState::Idle => "idle".to_owned(),
        SessionState::Busy { turn } => format!("busy, turn {turn}"),
        state @ SessionState::Suspended { .. } if state.is_handed_over() => "handed over".to_owned(),
        SessionState::Suspended { reason: EndReason::Suspended, .. } => "suspended".to_owned(),
        SessionState::Suspended { reason, .. } => format!("suspended: {reason}"),
        SessionState::Ended { reason, receipt, .. } => {
            let receipt = match receipt {
                None => " (no receipt)".to_owned(),
                Some(receipt) if receipt.is_empty() => String::new(),
                Some(receipt) => match receipt.doubt() {
                    None => format!(" ({} survivors)", receipt.survivors.len()),
                    Some(doubt) => format!(" (survivors not provable: {doubt})"),
                },
            };
            format!("ended: {reason}{receipt}")
        }
    }
}

fn is_there(process: Option<ProcessId>) -> bool {
    process.is_some_and(engine::is_alive)
}

/// Formats a session as a heading above its processes, in a terminal of `width` columns with the short form of its id.
pub(crate) fn heading(session: &SessionInfo, short: &str, style: TermStyle, width: Option<usize>) -> String {
    let id = if width.is_some() { short } else { session.metadata.session_id.as_str() };
    let agent = &session.metadata.agent;
    let proxy = session.processes.proxy.map_or_else(String::new, |proxy| format!("  proxy {}", proxy.pid));
    let taken = id.len() + agent.chars().count() + proxy.len() + 4;
    let state = printable(&state(session), false);
    let state = width.map_or(state.clone(), |width| clip(&state, width.saturating_sub(taken).max(12)));
    format!("{}  {agent}  {state}{}", style.bold(id), style.dim(proxy))
}

#[cfg(test)]
mod tests {
    use api_types::OpenPermission;

    use super::*;

    fn session(state: &str) -> SessionInfo {
        let json = format!(
            r#"{{"sessionId":"s-1","agent":"command","agentType":null,"userId":null,"workspaceId":null,"cwd":"/x",
            "profile":null,"model":null,"mode":null,"thinking":null,"home":null,"depth":1,"nativeSessionId":null,
            "nativeSessionFile":null,"resumable":false,"state":{state},"proxy":null,"agentProcess":null,"measures":null,
            "turns":2,"queued":[],"handedOver":false,"startedAt":"2026-01-02T03:04:05.678Z","heartbeat":
            "2026-01-02T03:04:05.678Z","lastOffset":"00000000000000000007","processUse":null,"metrics":{{"messages":0,
            "toolCalls":0,"failedToolCalls":0,"permissionRequests":0,"errors":0,"usage":{{}},"events":7,"eventBytes":9,
            "busyMs":0,"silentMs":0,"missedPings":0}}}}"#
        );
        serde_json::from_str(&json).expect("parses")
    }

    fn render(sessions: &[SessionInfo]) -> String {
        listing(sessions, vec![Value::Null; sessions.len()]).table(TermStyle::PLAIN, None)
    }

    #[test]
    fn a_listing() {
        let proxy = Some(ProcessId { pid: 7, start_time: 1 });
        let processes = SupervisedProcesses { proxy, agent_process: None };
        let title = Some("Fix it\n".to_owned());
        let sessions = [SessionInfo { processes, title, ..session(r#"{"busy":{"turn":2}}"#) }];
        let expected = "\
SESSION  AGENT    STATE         TURNS  STARTED (UTC)        TITLE     CWD
s-1      command  busy, turn 2      2  2026-01-02 03:04:05  Fix it\\n  /x
";
        assert_eq!(render(&sessions), expected);
        let heading = |width| heading(&sessions[0], "s", TermStyle::PLAIN, width);
        assert_eq!(heading(None), "s-1  command  busy, turn 2  proxy 7");
        assert_eq!(heading(Some(80)), "s  command  busy, turn 2  proxy 7");
    }

    #[test]
    fn states_read_well() {
        let state = |json: &str| state_text(&session(json).state);
        assert_eq!(state(r#""idle""#), "idle");
        assert_eq!(state(r#"{"busy":{"turn":3}}"#), "busy, turn 3");
        assert_eq!(state(r#"{"suspended":{"reason":"suspended","receipt":null}}"#), "suspended");
        assert_eq!(
            state(r#"{"suspended":{"reason":"shutdown","receipt":null}}"#),
            "suspended: the manager was shut down"
        );
        assert_eq!(state(r#"{"ended":{"reason":"killed","receipt":null}}"#), "ended: killed (no receipt)");
    }

    #[test]
    fn what_a_session_waits_for_and_that_it_ends_is_said() {
        let busy = session(r#"{"busy":{"turn":3}}"#);
        let request = |id: &str| OpenPermission {
            id: id.into(),
            title: "Run make".into(),
            tool: "shell".into(),
            kind: "execute".into(),
            command: None,
            paths: Vec::new(),
            input: ipc_protocol::Json::null(),
            options: Vec::new(),
        };
        let open_permissions = vec![request("permission-1"), request("permission-2")];
        assert_eq!(state(&SessionInfo { open_permissions, ..busy.clone() }), "waiting for permission-1");
        let mut on_screen = session(r#""idle""#);
        assert_eq!(state(&on_screen), "idle");
        on_screen.metadata.surface = Surface::Terminal;
        assert_eq!(state(&on_screen), "on its screen", "not known");
        on_screen.screen_status = Some("working".into());
        assert_eq!(state(&on_screen), "working");
        assert_eq!(state(&SessionInfo { ending: true, ..busy }), "busy, turn 3 (ending)");
    }

    #[test]
    fn a_long_story_is_cut() {
        let reason = serde_json::to_string(&EndReason::Failed("why ".repeat(500))).expect("JSON");
        let ended = session(&format!(r#"{{"ended":{{"reason":{reason},"receipt":null}}}}"#));
        let text = render(&[ended]);
        assert!(text.lines().all(|line| line.chars().count() < 130), "{text}");
        assert!(text.contains("failed: why why") && text.contains('…'), "{text}");
    }

    #[cfg(feature = "engine")]
    #[test]
    fn a_session_without_its_agent_says_so() {
        let here = registry::identify(std::process::id()).expect("alive");
        let gone = ProcessId { start_time: here.start_time + 1, ..here };
        let state = |proxy, agent_process| {
            let processes = SupervisedProcesses { proxy, agent_process };
            state(&SessionInfo { processes, ..session(r#""idle""#) })
        };
        assert_eq!(state(Some(here), Some(gone)), "idle (agent exited)");
        assert_eq!(state(Some(here), Some(here)), "idle");
        assert_eq!(state(Some(gone), Some(gone)), "idle", "whoever does not see the proxy cannot tell");
    }
}
