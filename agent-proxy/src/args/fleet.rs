//! Arguments for a fleet: of `serve`, of `start`, and the command itself.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use clap::{Args, Subcommand};
use proxy_manager::SessionId;
use proxy_server::api::PlacementQuery;

use super::FormatArgs;

/// Arguments of `serve` for a fleet.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Fleet")]
pub(crate) struct FleetArgs {
    /// Be a node of the fleet whose NATS servers are here, as in nats://10.0.0.1:4222; may be given again
    ///
    /// nats-server 2.12 or later, with JetStream (-js): one to try it out, three for a fleet that outlives one. Requests about sessions of
    /// other nodes go to these, and a start goes to the node that suits it. With --state-dir events are in a log of the fleet too.
    #[arg(long, value_name = "URL", value_delimiter = ',', requires = "node", conflicts_with = "run_as_user")]
    pub(crate) fleet: Vec<String>,
    /// Name of this node: 1 to 64 characters of A-Z a-z 0-9 _ -, and no other node's
    #[arg(long, value_name = "NAME", requires = "fleet")]
    pub(crate) node: Option<String>,
    /// Label of this node, for `start --label`; may be given again
    #[arg(long, value_name = "KEY=VALUE", value_parser = label, requires = "fleet")]
    pub(crate) label: Vec<(String, String)>,
    /// Sessions that this node may have at once: --max-sessions, where that is not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), requires = "fleet")]
    pub(crate) capacity: Option<u32>,
    /// Time after which a node without a sign of life counts as silent; the same for all nodes of a fleet
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "30s")]
    pub(crate) lease: Duration,
    /// Go on with sessions of nodes that died, and let others go on with this one's; with --state-dir
    ///
    /// This node's sessions end by themselves when its lease is over, as when all NATS servers are gone for so long. Sessions with a home of
    /// their own go on, with the conversation of the last turn that ended.
    #[arg(long, requires_all = ["fleet", "state_dir"])]
    pub(crate) take_over: bool,
    /// Shell command that brings the workspace of a session to this node before it goes on here
    ///
    /// It has the session's id, its directory, and both nodes in AGENT_PROXY_OF_SESSION, AGENT_PROXY_OF_CWD, AGENT_PROXY_FROM_NODE (empty for
    /// one that is not known) and AGENT_PROXY_TO_NODE, and runs like --before-start: seen, bounded and proven gone. Where it fails, the session
    /// stays suspended here.
    #[arg(long, value_name = "COMMAND", requires_all = ["fleet", "state_dir"])]
    pub(crate) workspace_hook: Option<String>,
    /// Remove events of this node's sessions from the fleet's log when they are this old, but for each session's last ones; without it they stay
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, requires_all = ["fleet", "state_dir"])]
    pub(crate) fleet_log_max_age: Option<Duration>,
    /// File with this node's NATS credentials (a JWT and its key)
    #[arg(long, value_name = "FILE", requires = "fleet", conflicts_with = "fleet_nkey")]
    pub(crate) fleet_credentials: Option<PathBuf>,
    /// File with the seed of this node's NATS nkey
    #[arg(long, value_name = "FILE", requires = "fleet")]
    pub(crate) fleet_nkey: Option<PathBuf>,
    /// Encrypt, and trust NATS servers whose certificate this authority signed, in PEM
    #[arg(long, value_name = "FILE", requires = "fleet")]
    pub(crate) fleet_ca: Option<PathBuf>,
    /// Certificate of this node, for NATS servers that ask for one, in PEM
    #[arg(long, value_name = "FILE", requires_all = ["fleet_key", "fleet"])]
    pub(crate) fleet_cert: Option<PathBuf>,
    /// Private key of --fleet-cert, in PEM
    #[arg(long, value_name = "FILE", requires = "fleet_cert")]
    pub(crate) fleet_key: Option<PathBuf>,
}

/// Arguments of `start` for a fleet.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Fleet")]
pub(crate) struct PlacementArgs {
    /// Node of the session [default: one that has the agent, the labels and room, the least loaded]
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Label that the node has to have; may be given again
    #[arg(long, value_name = "KEY=VALUE", value_parser = label)]
    label: Vec<(String, String)>,
}

impl PlacementArgs {
    /// Returns the query of the start.
    pub(crate) fn query(&self) -> PlacementQuery {
        let labels: BTreeMap<_, _> = self.label.iter().cloned().collect();
        let labels: Vec<String> = labels.into_iter().map(|(key, value)| format!("{key}={value}")).collect();
        PlacementQuery { node: self.node.clone(), label: labels.join(",") }
    }
}

/// Arguments of `fleet`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    agent-proxy fleet nodes\n  \
    agent-proxy fleet sessions --format '{id} {node}'\n\n\
    The daemon has to be a node of a fleet (`serve --fleet`).")]
pub(crate) struct FleetCommandArgs {
    /// Command [default: nodes]
    #[command(subcommand)]
    pub(crate) command: Option<FleetCommand>,
}

/// Commands on a fleet.
#[derive(Debug, Subcommand)]
pub(crate) enum FleetCommand {
    /// List the nodes: load, labels, and how long one has been silent
    Nodes(FormatArgs),
    /// List the sessions with the nodes that have them, those of silent nodes too
    Sessions(FormatArgs),
    /// Move a session to another node, with its conversation
    ///
    /// It is suspended and resumed there; a turn that runs is ended. It needs a home of its own (`start --home own`).
    Move(MoveArgs),
    /// Move all sessions away from a node, which takes no new ones until it is started again
    Drain(DrainArgs),
    /// Give up what the fleet has of a node that is gone for good: its sessions, their events and conversations
    Forget(ForgetArgs),
    /// Print a configuration for nats-server in which each node has its own rights; needs no daemon
    Accounts(AccountsArgs),
}

/// Arguments of `fleet move`.
#[derive(Debug, Args)]
pub(crate) struct MoveArgs {
    /// The session's id
    pub(crate) id: SessionId,
    /// Node that it goes to [default: the least loaded that has its agent]
    #[arg(long, value_name = "NODE")]
    pub(crate) to: Option<String>,
}

/// Arguments of `fleet drain`.
#[derive(Debug, Args)]
pub(crate) struct DrainArgs {
    /// Name of the node
    pub(crate) node: String,
}

/// Arguments of `fleet forget`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    agent-proxy fleet forget b\n\n\
    Where node b comes back after all, it has its sessions again, and their events begin where its own log has them.")]
pub(crate) struct ForgetArgs {
    /// Name of the node, whose lease has to be over
    pub(crate) node: String,
}

/// Arguments of `fleet accounts`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  \
    agent-proxy fleet accounts --directory keys a b c > nodes.conf

\
    nodes.conf is for an `include` in the configuration of nats-server; keys/a.nk is for `serve --node a --fleet-nkey keys/a.nk`. \
    Keys that are there already stay.")]
pub(crate) struct AccountsArgs {
    /// Directory of the nodes' keys
    #[arg(long, value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// Names of all nodes
    #[arg(required = true, value_name = "NODE")]
    pub(crate) nodes: Vec<String>,
}

/// Parses a label.
fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() && !text.contains(',') => Ok((key.to_owned(), value.to_owned())),
        _ => Err("a label is KEY=VALUE, without a comma".to_owned()),
    }
}
