//! Arguments of `serve` for a fleet.

use std::{path::PathBuf, time::Duration};

use clap::Args;

use crate::args::fleet::label;

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
