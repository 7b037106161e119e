//! Arguments of commands that look on: `top`, `logs`, `wait`; and of `prune`.

use std::time::{Duration, SystemTime};

use clap::{Args, ValueEnum};
use ipc_protocol::SessionId;

/// Arguments of `top`.
#[derive(Debug, Args)]
#[command(
    after_help = "Keys: arrows move, Enter opens a session, / filters, s sorts, k kills, ? lists all keys, q leaves."
)]
pub(crate) struct TopArgs {
    /// Time between two looks at processes
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "2s")]
    pub(crate) interval: Duration,
    /// Show only sessions with this text in id, title, agent, state, user, model or directory
    #[arg(long, value_name = "TEXT")]
    pub(crate) filter: Option<String>,
    /// Column to sort by
    #[arg(long, value_name = "COLUMN", value_enum, default_value_t = TopSort::Cpu)]
    pub(crate) sort: TopSort,
    /// Name of the person who answers permission requests, for the event permission:resolved
    #[arg(long = "as", value_name = "NAME")]
    pub(crate) by: Option<String>,
}

/// Order of the sessions in `top`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum TopSort {
    /// CPU time that their processes use now, the most first
    #[default]
    Cpu,
    /// Memory of their processes, the most first
    Memory,
    /// Number of processes, the most first
    Processes,
    /// Id
    Id,
    /// State: what waits for you first, then busy ones
    State,
    /// Age, the latest first
    Age,
    /// Tokens, the most first
    Tokens,
}

/// Arguments of `logs`.
#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// The session's id
    pub(crate) id: SessionId,
    /// Follow until the session ends
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Only the last lines of the text, so many; with --json the last events
    #[arg(long, short = 'n', visible_alias = "tail", value_name = "N", value_parser = clap::value_parser!(u32).range(0..=i64::from(api_types::api::MAX_TAIL)))]
    pub(crate) lines: Option<u32>,
    /// Only since then: a time ago, as in 10m, or a moment in UTC, as in 2026-01-31 or '2026-01-31 14:00'
    ///
    /// RFC 3339 may name another zone: 2026-01-31T14:00:00+01:00.
    #[arg(long, value_name = "WHEN", value_parser = super::since::parse)]
    pub(crate) since: Option<SystemTime>,
}

/// Arguments of `wait`.
#[derive(Debug, Args)]
#[command(
    after_help = "Exits 0 when each has ended well: its agent exited with 0, or it was killed or suspended as somebody asked; 1 \
    when an agent failed; 5 when something survived; 7 when the time is over, or a clock ended a session; 8 when a limit or a \
    budget did. With --state idle, 0 when each is idle. The worst counts."
)]
pub(crate) struct WaitArgs {
    /// The sessions' ids, or unique beginnings of them
    #[arg(value_name = "ID", required = true)]
    pub(crate) ids: Vec<SessionId>,
    /// State to wait for
    #[arg(long, value_name = "STATE", value_enum, default_value_t = WaitState::Ended)]
    pub(crate) state: WaitState,
    /// Longest time to wait [default: for good]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(crate) timeout: Option<Duration>,
}

/// State that `wait` waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WaitState {
    /// No turn runs, or the session has ended
    Idle,
    /// The session has ended or is suspended
    Ended,
}

/// Arguments of `prune`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    agent-proxy prune --dry-run\n  \
    agent-proxy prune --older-than 30days\n\n\
    Suspended and archived sessions stay, and those whose workspace has changes that are not applied. A home of the session's own is removed too, with the agent's conversation in it.")]
pub(crate) struct PruneArgs {
    /// Only sessions that ended so long ago [default: all that have ended]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(crate) older_than: Option<Duration>,
    /// Print the ids, and forget nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Delete changes of their workspaces that are not applied, too
    #[arg(long)]
    pub(crate) force: bool,
}

/// Arguments of `status`.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// A session's id [default: the daemon's own state]
    pub(crate) id: Option<SessionId>,
    /// Events of the session to show, the last ones
    #[arg(long, short = 'n', value_name = "N", default_value_t = 10, requires = "id")]
    pub(crate) lines: u32,
}
