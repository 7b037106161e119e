//! Arguments of the daemon's listeners on the network, and of tokens.

use std::net::SocketAddr;

use clap::{Args, Subcommand};
use proxy_server::Role;

use super::FormatArgs;

/// Arguments of `serve` for the network.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Network")]
pub(crate) struct NetworkArgs {
    /// Listen on this address too, as in 127.0.0.1:8480; may be given again
    ///
    /// Each request there needs a token: `Authorization: Bearer TOKEN`. At the first start one is made, in the file `token` of the
    /// configuration directory; `agent-proxy tokens create` makes more.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) listen: Vec<SocketAddr>,
    /// Answer requests that name this host, besides addresses and localhost; may be given again
    #[arg(long, value_name = "NAME", requires = "listen")]
    pub(crate) host: Vec<String>,
    /// Answer requests of pages of this origin, as in https://ui.example; may be given again
    #[arg(long, value_name = "ORIGIN", requires = "listen")]
    pub(crate) origin: Vec<String>,
    /// Listen where other machines can connect, without encryption
    #[arg(long, requires = "listen")]
    pub(crate) insecure: bool,
}

/// Arguments of `tokens`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    agent-proxy tokens create ci --role operate\n  \
    agent-proxy tokens create ada --role operate --user ada  # only ada's\n  \
    agent-proxy tokens list\n  \
    agent-proxy tokens revoke ci\n\n\
    For callers of `serve --listen`. Their hashes are in tokens.json (mode 0600) in the configuration directory. A daemon knows \
    of a change at once.")]
pub(crate) struct TokensArgs {
    /// Command [default: list]
    #[command(subcommand)]
    pub(crate) command: Option<TokensCommand>,
}

/// Commands on tokens.
#[derive(Debug, Subcommand)]
pub(crate) enum TokensCommand {
    /// List all, without the tokens themselves
    List(FormatArgs),
    /// Create a token, and print it: it is shown this once
    Create(CreateTokenArgs),
    /// Revoke a token: it is refused from now on
    Revoke(TokenNameArgs),
}

/// `tokens create`.
#[derive(Debug, Args)]
pub(crate) struct CreateTokenArgs {
    /// Name, for `tokens list`
    pub(crate) name: String,
    /// What its holder may do: read, operate (start, prompt, answer, kill) or admin
    #[arg(long, value_name = "ROLE", default_value = "operate")]
    pub(crate) role: Role,
    /// Show its holder the sessions of this user alone (`start --user`)
    #[arg(long, value_name = "USER")]
    pub(crate) user: Option<String>,
}

/// Name of a token.
#[derive(Debug, Args)]
pub(crate) struct TokenNameArgs {
    /// Name of the token
    pub(crate) name: String,
}
