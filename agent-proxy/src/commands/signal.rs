//! Command `signal`.

use api_types::api::{SignalRequest, SignalResponse};

use crate::{args::SignalArgs, client::DaemonClient, command_failure::CommandFailure, term};

/// Sends a signal to one process of a session.
pub(super) async fn run(client: &DaemonClient, args: &SignalArgs, as_json: bool) -> Result<(), CommandFailure> {
    let request = SignalRequest { signal: args.signal, start_time: None };
    let path = format!("/v1/sessions/{}/processes/{}/signal", args.id, args.pid);
    let sent: SignalResponse = client.post(&path, &request).await?;
    if as_json { term::json(&sent) } else { Ok(()) }
}
