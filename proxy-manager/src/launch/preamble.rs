//! Text that precedes an agent's first prompt.

use ipc_protocol::SessionId;

/// Runtime context for agents that could start themselves again. `{session}`, `{agent}` and `{depth}` are filled in.
const RUNTIME_CONTEXT: &str = "[Runtime context: this conversation runs in session {session} of agent-proxy, as agent \
    \"{agent}\", {depth} deep. Do not start that session, this agent or another copy of yourself again, neither by \
    agent-proxy nor by a command of your own: that would never end. The user's request follows.]";

/// Heading of a history that is not the agent's own.
const HISTORY: &str = "[The conversation so far, which was lost and is given here as text:]";
const HISTORY_ENDS: &str = "[End of the conversation so far.]";

/// Builds the text before the first prompt, if there is any.
pub(crate) fn preamble(context: Option<(&SessionId, &str, u32)>, history: Option<&str>) -> Option<String> {
    let context = context.map(|(session, agent, depth)| {
        let text = RUNTIME_CONTEXT.replace("{session}", session.as_str());
        text.replace("{agent}", agent).replace("{depth}", &depth.to_string())
    });
    let history = history.filter(|history| !history.is_empty());
    let history = history.map(|history| format!("{HISTORY}\n{history}\n{HISTORY_ENDS}"));
    let parts: Vec<String> = context.into_iter().chain(history).collect();
    (!parts.is_empty()).then(|| parts.join("\n\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_where_the_agent_is_and_what_was_before() {
        let session: SessionId = "s-1".parse().expect("a valid id");
        let text = preamble(Some((&session, "claude-code", 2)), Some("User: hi")).expect("something");
        assert!(text.contains("session s-1") && text.contains("\"claude-code\", 2 deep"), "{text}");
        assert!(text.contains("Do not start") && !text.contains('{'), "{text}");
        assert!(text.contains("text:]\nUser: hi\n[End"), "{text}");
        assert_eq!(preamble(None, Some("")), None);
        assert_eq!(preamble(None, None), None);
    }
}
