//! Arguments of `orphans`.

use std::{str::FromStr, time::Duration};

use clap::{Args, Subcommand};

use crate::args::ListingFormat;

/// Arguments of `orphans`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "Examples:\n  \
    agent-proxy orphans                  # what is left, how old, how much memory\n  \
    agent-proxy orphans kill 4711 4802     # ends these, with all below them\n  \
    agent-proxy orphans kill --all         # lists what it would end, and asks\n  \
    agent-proxy orphans -q | xargs -r agent-proxy orphans kill\n\n\
    An orphan has lost its parent (init, a user manager or another reaper has it),\n\
    and is an agent, an MCP server, or was started by an agent. Never listed: what has a\n\
    terminal, what a terminal, tmux, ssh or an editor runs, services, agents' own\n\
    daemons, what a living agent says it has started, and living sessions of\n\
    agent-proxy. One with a ? may be in use all the same: the line below the table\n\
    says why, and --all leaves it alone.\n")]
pub(crate) struct OrphansArgs {
    /// Command [default: list]
    #[command(subcommand)]
    pub(crate) command: Option<OrphansCommand>,
    /// What to list.
    #[command(flatten)]
    pub(crate) list: OrphansListArgs,
}

/// Commands on orphans.
#[derive(Debug, Subcommand)]
pub(crate) enum OrphansCommand {
    /// List them
    List(OrphansListArgs),
    /// End orphans with all that is below them; print the receipts
    ///
    /// Each is looked at again first: nothing is signalled if one of them is no orphan (any more). SIGTERM, then SIGKILL after
    /// the grace, until they are proven gone.
    Kill(OrphansKillArgs),
}

/// What to list.
#[derive(Debug, Default, Args)]
pub(crate) struct OrphansListArgs {
    /// Print the orphans as PID@START only, one a line, as `orphans kill` takes them; those with a ? are left out
    #[arg(short, long, conflicts_with = "format")]
    pub(crate) quiet: bool,
    /// Form of the list: table (the trees), json, jsonl, or a template such as '{pid}\t{command}'; see `help output`
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: Option<ListingFormat>,
    /// List those of all users; takes root
    #[arg(long)]
    pub(crate) all_users: bool,
}

/// Arguments of `orphans kill`.
#[derive(Debug, Args)]
pub(crate) struct OrphansKillArgs {
    /// Orphans to end: PID, or PID@START, which can mean no other process
    #[arg(value_name = "PID", required_unless_present = "all", conflicts_with = "all")]
    pub(crate) pids: Vec<NamedOrphan>,
    /// End all that are listed without a ?; asks on a terminal
    #[arg(long)]
    pub(crate) all: bool,
    /// With --all: do not ask
    #[arg(long, short, requires = "all")]
    pub(crate) yes: bool,
    /// Time between SIGTERM and SIGKILL, as in 300ms or 5s
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "2s")]
    pub(crate) grace: Duration,
    /// Processes of other users too; takes root
    #[arg(long)]
    pub(crate) all_users: bool,
}

/// Process that a user names: `PID` or `PID@START`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NamedOrphan {
    /// Its pid.
    pub(crate) pid: u32,
    /// Its start time, in clock ticks since boot.
    pub(crate) start_time: Option<u64>,
}

impl FromStr for NamedOrphan {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (pid, start) = text.split_once('@').map_or((text, None), |(pid, start)| (pid, Some(start)));
        let pid = pid.parse().ok().filter(|pid| *pid > 0).ok_or("not a PID or PID@START")?;
        let start_time = start.map(|start| start.parse().map_err(|_| "not a PID or PID@START")).transpose()?;
        Ok(Self { pid, start_time })
    }
}
