//! Arguments of commands for operations of an agent other than prompts.

use clap::{ArgGroup, Args};
use ipc_protocol::{Operation, SessionId};

use super::{AttachmentArgs, SeveralArgs};

/// A command that only names a session.
#[derive(Debug, Args)]
pub(crate) struct SessionArgs {
    /// The session's id
    pub(crate) id: SessionId,
}

/// Arguments of `compact`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    agent-proxy compact s-1\n  \
    agent-proxy compact s-1 --instructions 'retain what the tests showed'\n")]
pub(crate) struct CompactArgs {
    /// The session's id
    pub(crate) id: SessionId,
    /// What the summary is to retain or to leave out, for agents that take instructions (claude-code, claude-agent-acp, pi)
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) instructions: Option<String>,
}

impl CompactArgs {
    /// Returns the operation.
    pub(crate) fn operation(self) -> Operation {
        self.instructions.map_or(Operation::Compact, |instructions| Operation::CompactWith { instructions })
    }
}

/// Arguments of `delete`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    agent-proxy delete s-1 s-2\n  \
    agent-proxy delete --all                 # what has ended and is not archived")]
pub(crate) struct DeleteArgs {
    /// Sessions to forget.
    #[command(flatten)]
    pub(crate) sessions: SeveralArgs,
    /// Delete changes of their workspaces that are not applied, too
    #[arg(long)]
    pub(crate) force: bool,
}

/// Arguments of `set`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    agent-proxy set s-1 --model claude-opus-4-5\n  \
    agent-proxy set s-1 --mode plan --thinking high")]
#[command(override_usage = "agent-proxy set [OPTIONS] <ID>")]
#[group(skip)]
#[command(group(ArgGroup::new("change").required(true).multiple(true).args(["model", "mode", "thinking"])))]
pub(crate) struct SetArgs {
    /// The session's id
    pub(crate) id: SessionId,
    /// The model to use from now on, in the agent's own spelling
    #[arg(long)]
    pub(crate) model: Option<String>,
    /// The mode to work in from now on: build, plan, or one of the agent's own
    #[arg(long)]
    pub(crate) mode: Option<String>,
    /// The thinking level from now on: off, low, medium, high, or one of the agent's own
    #[arg(long, value_name = "LEVEL")]
    pub(crate) thinking: Option<String>,
}

impl SetArgs {
    /// Returns the operations, in this order.
    pub(crate) fn operations(self) -> Vec<Operation> {
        let model = self.model.map(|model| Operation::SetModel { model });
        let mode = self.mode.map(|mode| Operation::SetMode { mode });
        let thinking = self.thinking.map(|level| Operation::SetThinking { level });
        model.into_iter().chain(mode).chain(thinking).collect()
    }
}

/// Arguments of `steer`.
#[derive(Debug, Args)]
pub(crate) struct SteerArgs {
    /// The session's id
    pub(crate) id: SessionId,
    /// Message; `-` reads it from standard input
    pub(crate) text: String,
    /// Files beside the message.
    #[command(flatten)]
    pub(crate) attachments: AttachmentArgs,
}

/// Arguments of `native`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    agent-proxy native s-1 '{\"subtype\":\"mcp_status\"}'              # claude-code\n  \
    agent-proxy native s-1 '{\"method\":\"model/list\",\"params\":{}}'   # codex\n  \
    agent-proxy native s-1 '{\"method\":\"GET\",\"path\":\"/config\"}'   # opencode\n  \
    agent-proxy native s-1 '{\"type\":\"get_session_stats\"}'          # pi\n\n\
    The message goes to the agent as it stands, but for an id where its protocol has ids.")]
pub(crate) struct NativeArgs {
    /// The session's id
    pub(crate) id: SessionId,
    /// The command, as JSON in the agent's own protocol; `-` reads it from standard input
    #[arg(value_name = "JSON")]
    pub(crate) message: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{CliCommand, parse};

    fn set(line: &str) -> Option<Vec<Operation>> {
        match parse(format!("agent-proxy {line}").split_whitespace()).ok()?.command {
            CliCommand::Set(args) => Some(args.operations()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_compaction_may_have_instructions() {
        let compact =
            |words: &[&str]| match parse(["agent-proxy", "compact", "s"].iter().chain(words).copied()).ok()?.command {
                CliCommand::Compact(args) => Some(args.operation()),
                other => panic!("{other:?}"),
            };
        assert_eq!(compact(&[]), Some(Operation::Compact));
        let instructions = "retain the plum".to_owned();
        assert_eq!(
            compact(&["--instructions", &instructions]),
            Some(Operation::CompactWith { instructions: instructions.clone() })
        );
        assert_eq!(compact(&["--instructions", ""]), None);
    }

    #[test]
    fn what_is_set_and_in_which_order() {
        let all = set("set s --thinking high --mode plan --model m").expect("parses");
        let expected = [
            Operation::SetModel { model: "m".into() },
            Operation::SetMode { mode: "plan".into() },
            Operation::SetThinking { level: "high".into() },
        ];
        assert_eq!(all, expected);
        assert_eq!(set("set s"), None, "nothing to set");
    }
}
