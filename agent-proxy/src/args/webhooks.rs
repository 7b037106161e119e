//! Arguments of `webhooks`.

use clap::Args;

use super::FormatArgs;

/// Arguments of `webhooks`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    agent-proxy webhooks\n  \
    agent-proxy webhooks --json | jq '.[] | select(.lastError)'\n\n\
    They are set in webhooks.toml, in the daemon's configuration directory.")]
pub(crate) struct WebhooksArgs {
    /// Form of the list.
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}
