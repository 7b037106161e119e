//! Arguments for a fleet: of `start`, and the command itself.

use std::collections::BTreeMap;
#[cfg(feature = "engine")]
use std::path::PathBuf;

use api_types::api::PlacementQuery;
use clap::{Args, Subcommand};
use ipc_protocol::SessionId;

use super::FormatArgs;

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
    #[cfg(feature = "engine")]
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
#[cfg(feature = "engine")]
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
pub(super) fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() && !text.contains(',') => Ok((key.to_owned(), value.to_owned())),
        _ => Err("a label is KEY=VALUE, without a comma".to_owned()),
    }
}
