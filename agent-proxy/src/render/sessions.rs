//! Table of sessions, one a line.

use proxy_manager::ProcessId;

use super::table;
use crate::{
    api::{SessionView, StateView},
    term::{Style, clip, printable},
};

/// Longest state, if there is no terminal width: the reason of a failed start can fill a page.
const LONGEST_STATE: usize = 60;

/// Formats the sessions, clipped to `width` columns.
pub(crate) fn render(sessions: &[SessionView], style: Style, width: Option<usize>) -> String {
    let room = width.map_or(usize::MAX, |width| width / 3);
    let rows = sessions
        .iter()
        .map(|session| {
            vec![
                session.session_id.to_string(),
                session.agent.clone(),
                clip(&printable(&state(session), false), room.min(LONGEST_STATE)),
                session.turns.to_string(),
                // Seconds are precise enough, and the rest is the same for all.
                session.started_at.split('.').next().unwrap_or_default().replace('T', " "),
                clip(&printable(&session.cwd, false), room),
            ]
        })
        .collect();
    table(style, &["SESSION", "AGENT", "STATE", "TURNS", "STARTED (UTC)", "CWD"], &[3], rows)
}

/// Describes the session's state, and if its agent is gone: a session that keeps the processes its agent leaves
/// continues without it.
fn state(session: &SessionView) -> String {
    let goes_on = matches!(session.state, StateView::Idle | StateView::Busy { .. });
    // If the proxy is visible, its agent would be too.
    let agent_is_gone =
        goes_on && is_there(session.proxy) && session.agent_process.is_some() && !is_there(session.agent_process);
    format!("{}{}", session.state, if agent_is_gone { " (agent exited)" } else { "" })
}

fn is_there(process: Option<ProcessId>) -> bool {
    process.is_some_and(|id| registry::identify(id.pid).is_ok_and(|now| now == id))
}

/// Formats a session as a heading above its processes.
pub(crate) fn heading(session: &SessionView, style: Style) -> String {
    let mut text =
        format!("{}  {}  {}", style.bold(&session.session_id), session.agent, printable(&state(session), false));
    if let Some(proxy) = session.proxy {
        text.push_str(&style.dim(format_args!("  proxy {}", proxy.pid)));
    }
    text
}

#[cfg(test)]
mod tests {
    use proxy_manager::EndReason;

    use super::*;

    #[test]
    fn a_listing() {
        let json = r#"[{"sessionId":"s-1","agent":"command","agentType":null,"userId":null,"workspaceId":null,"cwd":"/x",
            "state":{"busy":{"turn":2}},"proxy":{"pid":7,"startTime":1},"agentProcess":null,"turns":2,
            "startedAt":"2026-01-02T03:04:05.678Z","lastOffset":"00000000000000000007"}]"#;
        let sessions: Vec<SessionView> = serde_json::from_str(json).expect("parses");
        let expected = "\
SESSION  AGENT    STATE         TURNS  STARTED (UTC)        CWD
s-1      command  busy, turn 2      2  2026-01-02 03:04:05  /x
";
        assert_eq!(render(&sessions, Style::PLAIN, None), expected);
        assert_eq!(heading(&sessions[0], Style::PLAIN), "s-1  command  busy, turn 2  proxy 7");
    }

    fn session(state: StateView) -> SessionView {
        SessionView {
            session_id: "s-1".parse().expect("a valid id"),
            agent: "command".into(),
            cwd: "/x".into(),
            state,
            proxy: None,
            agent_process: None,
            turns: 0,
            started_at: "2026-01-02T03:04:05.678Z".into(),
            queued: Vec::new(),
        }
    }

    #[test]
    fn a_long_story_is_cut() {
        let reason = EndReason::Failed("why ".repeat(500));
        let text = render(&[session(StateView::Ended { reason, receipt: None })], Style::PLAIN, None);
        assert!(text.lines().all(|line| line.chars().count() < 130), "{text}");
        assert!(text.contains("failed: why why") && text.contains('…'), "{text}");
    }

    #[test]
    fn a_session_without_its_agent_says_so() {
        let here = registry::identify(std::process::id()).expect("alive");
        let gone = ProcessId { start_time: here.start_time + 1, ..here };
        let state = |proxy, agent| state(&SessionView { proxy, agent_process: agent, ..session(StateView::Idle) });
        assert_eq!(state(Some(here), Some(gone)), "idle (agent exited)");
        assert_eq!(state(Some(here), Some(here)), "idle");
        assert_eq!(state(Some(gone), Some(gone)), "idle", "whoever does not see the proxy cannot tell");
    }
}
