//! Command `login-link`.

use api_types::api::{LoginLinkRequest, LoginLinkResponse};

use crate::{args::LoginLinkArgs, client::DaemonClient, command_failure::CommandFailure, term};

/// Prints a link that logs a browser in.
pub(super) async fn run(client: &DaemonClient, args: LoginLinkArgs, as_json: bool) -> Result<(), CommandFailure> {
    let LoginLinkArgs { role, user } = args;
    let made: LoginLinkResponse = client.post("/v1/login-links", &LoginLinkRequest { role, user }).await?;
    if as_json {
        return term::json(&made);
    }
    made.urls.into_iter().try_for_each(term::line)
}
