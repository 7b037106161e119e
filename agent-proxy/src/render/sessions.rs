//! Sessions, one a line.

use super::table;
use crate::{
    api::SessionView,
    term::{Style, clip, printable},
};

/// The sessions, clipped to `width` columns.
pub(crate) fn render(sessions: &[SessionView], style: Style, width: Option<usize>) -> String {
    let room = width.map_or(usize::MAX, |width| width / 3);
    let rows = sessions
        .iter()
        .map(|session| {
            vec![
                session.session_id.to_string(),
                session.agent.clone(),
                clip(&printable(&session.state.to_string(), false), room),
                session.turns.to_string(),
                // Seconds are precise enough, and the rest is the same for all.
                session.started_at.split('.').next().unwrap_or_default().replace('T', " "),
                clip(&printable(&session.cwd, false), room),
            ]
        })
        .collect();
    table(style, &["SESSION", "AGENT", "STATE", "TURNS", "STARTED (UTC)", "CWD"], &[3], rows)
}

/// One session as a heading over its processes.
pub(crate) fn heading(session: &SessionView, style: Style) -> String {
    let mut text = format!(
        "{}  {}  {}",
        style.bold(&session.session_id),
        session.agent,
        printable(&session.state.to_string(), false)
    );
    if let Some(proxy) = session.proxy {
        text.push_str(&style.dim(format_args!("  proxy {}", proxy.pid)));
    }
    text
}

#[cfg(test)]
mod tests {
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
}
