//! Arguments of the daemon's listeners on the network, and of tokens.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use clap::{Args, Subcommand};
use proxy_server::Role;

use crate::args::FormatArgs;

/// Arguments of `serve` for the network.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Network")]
pub(crate) struct NetworkArgs {
    /// Listen on this address too, as in 127.0.0.1:8480; may be given again
    ///
    /// Each request there needs a token: `Authorization: Bearer TOKEN`. At the first start one is made, in the file `token` of the
    /// configuration directory; `agent-proxy tokens create` makes more.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) listen: Vec<SocketAddr>,
    /// Answer requests that name this host, besides addresses and localhost; may be given again
    #[arg(long, value_name = "NAME", requires = "listen", value_parser = host_name)]
    pub(crate) host: Vec<String>,
    /// Answer requests of pages of this origin, as in `https://ui.example`; may be given again
    #[arg(long, value_name = "ORIGIN", requires = "listen", value_parser = origin)]
    pub(crate) origin: Vec<String>,
    /// Listen where other machines can connect, without encryption; and where agents can read the daemon's tokens
    #[arg(long, requires = "listen")]
    pub(crate) insecure: bool,
    /// Encrypt with this certificate and its chain, in PEM
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "listen"])]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Private key of --tls-cert, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Requests that one caller may send in a second; kills do not count
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_request_rate: u32,
    /// Take the user from this header of a proxy in front, as in X-Forwarded-User
    #[arg(long, value_name = "HEADER", requires_all = ["trust_from", "listen"])]
    pub(crate) trust_header: Option<String>,
    /// Address of that proxy; may be given again
    #[arg(long, value_name = "ADDRESS", requires = "trust_header")]
    pub(crate) trust_from: Vec<IpAddr>,
    /// Role of its users, each of whom sees sessions of their own
    #[arg(long, value_name = "ROLE", default_value = "operate")]
    pub(crate) trust_role: Role,
    /// Take users from tokens (JWT) of this OpenID Connect issuer
    #[arg(long, value_name = "URL", requires_all = ["oidc_audience", "oidc_keys", "listen"])]
    pub(crate) oidc_issuer: Option<String>,
    /// Audience that those tokens have to name
    #[arg(long, value_name = "NAME", requires = "oidc_issuer")]
    pub(crate) oidc_audience: Option<String>,
    /// Keys of the issuer: a JWKS file, read again when it has changed; or its address, https://…
    #[arg(long, value_name = "FILE|URL", requires = "oidc_issuer")]
    pub(crate) oidc_keys: Option<PathBuf>,
    /// Claim with the user
    #[arg(long, value_name = "CLAIM", default_value = "sub")]
    pub(crate) oidc_user_claim: String,
    /// Claim with the role, or with several
    #[arg(long, value_name = "CLAIM", default_value = "role")]
    pub(crate) oidc_role_claim: String,
    /// Record there who changes what, as lines of JSON
    ///
    /// By default a daemon that listens on the network does, in the file audit.jsonl of the state directory, else of the configuration
    /// directory.
    #[arg(long, value_name = "FILE")]
    pub(crate) audit_file: Option<PathBuf>,
    /// Restrict what callers may ask for, as this TOML file says
    #[arg(long, value_name = "FILE")]
    pub(crate) policy: Option<PathBuf>,
    /// Run each user's sessions as that user of this machine; takes root
    ///
    /// Each user of a token, a login or an issuer is the account of that name, and has a daemon of its own there, which is started when
    /// it is asked for. Its socket and its state are below this directory.
    #[arg(long, value_name = "DIR", requires = "listen")]
    pub(crate) run_as_user: Option<PathBuf>,
    /// Be the daemon of one user, behind one of root's that names the caller of each request
    #[arg(long, hide = true, conflicts_with_all = ["listen", "run_as_user"])]
    pub(crate) behind_root: bool,
}

/// Host without a scheme and a port: what a request names is compared without them.
fn host_name(text: &str) -> Result<String, &'static str> {
    let is_name = !text.is_empty() && !text.contains(['/', ':', '@']) && !text.contains(char::is_whitespace);
    is_name.then(|| text.to_owned()).ok_or("give a name alone, as in agents.example: any port is meant")
}

/// Origin as browsers write it.
fn origin(text: &str) -> Result<String, &'static str> {
    let host = text.split_once("://").filter(|(scheme, _)| !scheme.is_empty()).map(|(_, host)| host);
    let is_origin = host.is_some_and(|host| !host.is_empty() && !host.contains(['/', '?', '#', '@']));
    is_origin
        .then(|| text.to_owned())
        .ok_or("give a scheme and a host, as in https://ui.example, and nothing behind it")
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
