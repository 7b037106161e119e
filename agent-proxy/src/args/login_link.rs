//! Arguments of `login-link`.

use api_types::Role;
use clap::Args;

/// Arguments of `login-link`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    agent-proxy login-link\n  \
    agent-proxy login-link --role read\n  \
    agent-proxy login-link --role operate --user ada\n\n\
    The link works once, within 15 minutes; the page stays logged in for 12 hours. The daemon has to listen on the network \
    (`serve --listen`).")]
pub(crate) struct LoginLinkArgs {
    /// What the page may do: read, operate or admin
    #[arg(long, value_name = "ROLE", default_value = "admin")]
    pub(crate) role: Role,
    /// Show the sessions of this user alone
    #[arg(long, value_name = "USER")]
    pub(crate) user: Option<String>,
}
