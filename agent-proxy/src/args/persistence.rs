//! Arguments of commands for sessions that outlive their processes.

use std::{path::PathBuf, str::FromStr, time::Duration};

use api_types::{SessionFilter, SessionStatus};
use clap::Args;
use ipc_protocol::SessionId;

use super::{FormatArgs, SeveralArgs, session::OnMissingArg};

/// Arguments of `suspend`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    agent-proxy suspend s-1\n  \
    agent-proxy prompt s-1 'go on'          # resumes it")]
pub(crate) struct SuspendArgs {
    /// Sessions to suspend.
    #[command(flatten)]
    pub(crate) sessions: SeveralArgs,
    /// Time between SIGTERM and SIGKILL for what it runs, as in 300ms or 5s
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "2s")]
    pub(crate) grace: Duration,
}

/// Arguments of `resume`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    agent-proxy resume s-1\n  \
    agent-proxy resume s-1 --on-missing history  # its conversation is gone\n  \
    agent-proxy resume s-1 --env API_KEY     # what no record keeps\n  \
    agent-proxy suspend s-1 --json > s-1.json    # and with another daemon:\n  \
    agent-proxy resume --snapshot s-1.json\n\n\
    No record keeps the values of variables, the arguments and headers of MCP servers, and the login and query of an \
    address, unless `start --not-secret NAME` named them. Where a session of an earlier daemon had some, a resume without \
    them is refused, and says which. `--env NAME=` does without one.")]
pub(crate) struct ResumeArgs {
    /// The session's id
    #[arg(required_unless_present = "snapshot", conflicts_with = "snapshot")]
    pub(crate) id: Option<SessionId>,
    /// A session that another daemon has suspended: what `suspend --json` printed there; `-` reads it from standard input.
    /// Its events begin anew here, and the other daemon must not go on with it too
    #[arg(long, value_name = "FILE")]
    pub(crate) snapshot: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) given: UnrecordedArgs,
    /// If the agent has its conversation no more: fail, or go on with a new one
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = OnMissingArg::Fail)]
    pub(crate) on_missing: OnMissingArg,
}

/// Arguments of `take-back`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    agent-proxy take-back s-1\n\n\
    What has to be given again to one of an earlier daemon: see `resume --help`.")]
pub(crate) struct TakeBackArgs {
    /// The session's id
    pub(crate) id: SessionId,
    #[command(flatten)]
    pub(crate) given: UnrecordedArgs,
}

/// Values that no record keeps, given again.
#[derive(Debug, Args)]
pub(crate) struct UnrecordedArgs {
    /// Environment variable of the agent; K alone takes the caller's value. Repeatable
    #[arg(long = "env", value_name = "K=V")]
    pub(crate) env: Vec<String>,
    /// What of the session is no secret from now on, as in `start --not-secret`. Repeatable
    #[arg(long = "not-secret", value_name = "NAME")]
    pub(crate) not_secret: Vec<String>,
    /// MCP servers, each in the place of the one of its name: a JSON file with `mcpServers`
    #[arg(long, value_name = "FILE")]
    pub(crate) mcp: Option<PathBuf>,
    /// The running server to connect to, where the session has one
    #[arg(long, value_name = "URL")]
    pub(crate) endpoint: Option<String>,
}

/// Arguments of `attach-command`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    agent-proxy attach-command s-1\n  \
    eval \"$(agent-proxy attach-command s-1 --hand-over)\"\n  \
    agent-proxy take-back s-1\n\n\
    A conversation has one living process: use the command without --hand-over only when the session is suspended or over. \
    A session with a home of its own has none: it would go on without the session's model.")]
pub(crate) struct AttachCommandArgs {
    /// The session's id
    pub(crate) id: SessionId,
    /// Suspend the session first; it refuses prompts until `take-back`
    #[arg(long)]
    pub(crate) hand_over: bool,
    /// With --hand-over: time between SIGTERM and SIGKILL for what it runs
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = humantime::parse_duration,
        default_value = "2s",
        requires = "hand_over"
    )]
    pub(crate) grace: Duration,
}

/// Arguments of `append`.
#[derive(Debug, Args)]
#[command(
    disable_version_flag = true,
    after_help = "Examples:\n  \
    agent-proxy append s-1 slack:webhook-received '{\"user\":\"ada\",\"text\":\"hello\"}'\n  \
    agent-proxy append s-1 agent:action:prompt:called '{\"content\":\"go on\"}'\n  \
    agent-proxy append s-1 agent:action:abort:called\n\n\
    What an event of type …:action:VERB:called asks for is done after it, at most once; what fails is an action:failed \
    event. VERB is prompt, send-user-message, abort, steer, permission-respond, session-create or session-destroy. `serve \
    --rules` makes actions of other events."
)]
pub(crate) struct AppendArgs {
    /// The session's id
    pub(crate) id: SessionId,
    /// The event's type; not one of the manager's own
    #[arg(value_name = "TYPE")]
    pub(crate) kind: String,
    /// Payload of the event; `-` reads it from standard input [default: null]
    #[arg(value_name = "JSON")]
    pub(crate) payload: Option<String>,
    /// Version of the payload's shape
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) version: u32,
    /// Metadata that comes back with the event, such as correlation ids: a JSON object
    #[arg(long, value_name = "JSON")]
    pub(crate) metadata: Option<String>,
}

/// Arguments of `export`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    agent-proxy export s-1 s-1.jsonl\n  \
    agent-proxy export s-1 | gzip > s-1.jsonl.gz\n\n\
    One envelope a line, all that is kept up to now: what `events --json` prints.")]
pub(crate) struct ExportArgs {
    /// The session's id
    pub(crate) id: SessionId,
    /// Output file; an existing one is replaced [default: standard output]
    pub(crate) file: Option<PathBuf>,
}

/// Arguments of `import`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    agent-proxy import s-1.jsonl && agent-proxy transcript s-1\n\n\
    The daemon needs a state directory, and has to see the file. All of it is taken, or nothing. The events can be read by \
    the session's id, and `sessions --tag imported` lists it; it is over, and cannot be resumed.")]
pub(crate) struct ImportArgs {
    /// File that `export` wrote
    pub(crate) file: PathBuf,
}

/// Arguments of `sessions`.
#[derive(Debug, Default, Args)]
#[command(after_help = "Examples:\n  \
    agent-proxy sessions                     # those of this daemon\n  \
    agent-proxy sessions --all               # those of earlier daemons too\n  \
    agent-proxy sessions --status suspended --tag review\n  \
    agent-proxy sessions --all --archived --text project --json\n\n\
    Each of the other flags implies --all. A session is listed if all of them fit.")]
pub(crate) struct SessionsArgs {
    /// List every session that is kept, sorted by id
    #[arg(long)]
    all: bool,
    /// Only sessions in this state: starting, idle, busy, suspended or ended; several with commas between them
    #[arg(long, value_name = "STATE", value_delimiter = ',')]
    status: Vec<StatusWord>,
    /// Only sessions of this agent
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// Only sessions started with this `start --user`
    #[arg(long, value_name = "LABEL")]
    user: Option<String>,
    /// Only sessions started with this `start --workspace-label`
    #[arg(long, value_name = "LABEL")]
    workspace_label: Option<String>,
    /// Only sessions with this tag
    #[arg(long)]
    tag: Option<String>,
    /// Only the session with this key
    #[arg(long)]
    key: Option<String>,
    /// Only sessions with this text in id, title or directory, in any case
    #[arg(long)]
    text: Option<String>,
    /// Include archived sessions
    #[arg(long)]
    archived: bool,
    /// Form of the list.
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

impl SessionsArgs {
    /// Returns the filter on records; `None` for the sessions that the daemon remembers.
    pub(crate) fn filter(self) -> Option<SessionFilter> {
        let filter = SessionFilter {
            status: self.status.into_iter().flat_map(|StatusWord(statuses)| statuses).collect(),
            agent: self.agent,
            user_id: self.user,
            workspace_id: self.workspace_label,
            tag: self.tag,
            key: self.key,
            text: self.text,
            archived: self.archived,
        };
        (self.all || filter != SessionFilter::default()).then_some(filter)
    }
}

/// Word for one state, or for several.
#[derive(Clone, Debug)]
struct StatusWord(Vec<SessionStatus>);

impl FromStr for StatusWord {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            // The words of earlier releases.
            "running" => Ok(Self(vec![SessionStatus::Idle, SessionStatus::Busy])),
            "terminated" => Ok(Self(vec![SessionStatus::Ended])),
            _ => {
                let known = SessionStatus::ALL.into_iter().find(|status| status.as_str() == text);
                let known = known.map(|status| Self(vec![status]));
                known.ok_or_else(|| "there are starting, idle, busy, suspended and ended".to_owned())
            }
        }
    }
}

/// Arguments of `rename`.
#[derive(Debug, Args)]
pub(crate) struct RenameArgs {
    /// The session's id
    pub(crate) id: SessionId,
    /// Title for people; '' removes it
    pub(crate) title: String,
}

/// Arguments of `tag`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    agent-proxy tag s-1 --add review --add urgent\n  \
    agent-proxy tag s-1 --remove urgent\n  \
    agent-proxy sessions --tag review")]
#[group(skip)]
#[command(group(clap::ArgGroup::new("change").required(true).multiple(true).args(["add", "remove"])))]
pub(crate) struct TagArgs {
    /// The session's id
    pub(crate) id: SessionId,
    /// Add this tag; repeatable
    #[arg(long, value_name = "TAG")]
    pub(crate) add: Vec<String>,
    /// Remove this tag; repeatable
    #[arg(long, value_name = "TAG")]
    pub(crate) remove: Vec<String>,
}

/// Arguments of `archive`.
#[derive(Debug, Args)]
pub(crate) struct ArchiveArgs {
    /// Sessions to archive.
    #[command(flatten)]
    pub(crate) sessions: SeveralArgs,
    /// Take them out of the archive again
    #[arg(long)]
    pub(crate) undo: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{CliCommand, parse};

    fn filter(flags: &str) -> Option<SessionFilter> {
        match parse(format!("agent-proxy sessions {flags}").split_whitespace()).expect("parses").command {
            CliCommand::Sessions(args) => args.filter(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_listed() {
        assert_eq!(filter(""), None);
        assert_eq!(filter("--all"), Some(SessionFilter::default()));
        let status = |status| Some(SessionFilter { status, ..SessionFilter::default() });
        for expected in SessionStatus::ALL {
            assert_eq!(filter(&format!("--status {expected}")), status(vec![expected]));
        }
        for several in ["idle,busy", "running"] {
            let expected = status(vec![SessionStatus::Idle, SessionStatus::Busy]);
            assert_eq!(filter(&format!("--status {several}")), expected, "{several}");
        }
        assert_eq!(filter("--status terminated"), status(vec![SessionStatus::Ended]));
        let all =
            filter("--agent a --user u --workspace-label w --tag t --key k --text x --archived").expect("records");
        let given = [all.agent, all.user_id, all.workspace_id, all.tag, all.key, all.text];
        assert_eq!(given.map(Option::unwrap_or_default), ["a", "u", "w", "t", "k", "x"]);
        assert!(all.archived);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for line in ["tag s", "sessions --status gone", "suspend s --grace soon", "attach-command s --grace 1s"] {
            assert!(parse(format!("agent-proxy {line}").split_whitespace()).is_err(), "{line}");
        }
    }
}
