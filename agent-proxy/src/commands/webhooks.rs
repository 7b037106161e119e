//! Command `webhooks`: who sends to the daemon, and who gets what from it.

use api_types::api::WebhookStatus;

use super::client;
use crate::{
    args::{GlobalArgs, ListingFormat},
    command_failure::CommandFailure,
    render,
};

/// Lists senders and receivers with their counts since the daemon's start.
pub(super) async fn list(global: &GlobalArgs, form: &ListingFormat) -> Result<(), CommandFailure> {
    let webhooks = client(global)?.get::<Vec<WebhookStatus>>("/v1/webhooks").await?;
    render::webhooks::listing(&webhooks)?
        .print(form, "no webhooks: webhooks.toml in the configuration directory sets them")
}
