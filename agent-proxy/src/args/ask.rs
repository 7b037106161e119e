//! `ask`, on the command line.

use clap::Args;

use super::{AttachmentArgs, session::AgentArgs};

/// `ask`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    agent-proxy ask 'what does this project do?'\n  \
    agent-proxy ask --json --permission read-only 'list the public types' | jq -r .reply\n  \
    agent-proxy ask --handler 'jq -r --unbuffered .text' 'explain main.rs'\n  \
    agent-proxy ask s-1 'and in French?'            a session of the daemon; --handler goes with it too\n\n\
    With one word more than the prompt, the first is the id of a session of the daemon; it goes on\n\
    afterwards. Else a session is started for the question, and ended with all that it left running.\n\
    Permission requests that no rule and no mode answers are rejected, and that is told.\n\n\
    A handler is a shell command. It gets one line of JSON for each call on its standard input, then the\n\
    end of it: {\"call\":\"start\",…}, {\"call\":\"chunk\",\"text\":…,\"toolCalls\":[…],\"isFinal\":…} with all there is by then,\n\
    and {\"call\":\"complete\",\"answer\":{…}} or {\"call\":\"failed\",\"error\":…}. What it prints goes to standard error.\n\
    It runs in a session of its own: when it exits, what it has started is ended. If it exits with anything\n\
    but 0, so fails `ask` (1), after the reply.\n")]
pub(crate) struct AskArgs {
    /// The agent [default: that of --profile, else the first of `agent-proxy agents` that is found]
    #[arg(long, value_name = "NAME")]
    pub(crate) agent: Option<String>,
    /// What to ask; `-` reads it from standard input. Before it, for a session of the daemon, the session's id
    #[arg(required = true, num_args = 1..=2, value_name = "[ID] PROMPT")]
    pub(crate) question: Vec<String>,
    /// A command that is told of the answer as it grows
    #[arg(long, visible_alias = "stream-to", value_name = "CMD")]
    pub(crate) handler: Option<String>,
    /// What is said beside it.
    #[command(flatten)]
    pub(crate) attachments: AttachmentArgs,
    /// How to start it.
    #[command(flatten)]
    pub(crate) start: AgentArgs,
}

impl AskArgs {
    /// The session of the daemon that is asked, if it is one of its.
    pub(crate) fn session(&self) -> Option<&str> {
        match self.question.as_slice() {
            [session, _] => Some(session),
            _ => None,
        }
    }

    /// What is asked.
    pub(crate) fn prompt(&self) -> &str {
        self.question.last().map_or("", String::as_str)
    }
}
