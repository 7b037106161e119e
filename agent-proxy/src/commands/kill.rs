//! Command `kill`.

use api_types::{ProblemDetails, api::KillRequest};
use ipc_protocol::{Receipt, SessionId};

use super::several::{SelectedSessions, is_running};
use crate::{
    args::KillArgs,
    client::DaemonClient,
    command_failure::CommandFailure,
    render,
    term::{self, TermStyle},
};

/// Ends sessions, or one process of one, with or without its descendants, and prints the receipts.
pub(super) async fn run(client: &DaemonClient, args: &KillArgs, as_json: bool) -> Result<(), CommandFailure> {
    if args.pid.is_some() && args.sessions.ids.len() > 1 {
        return Err(ProblemDetails::usage("--pid is of one session: name that one alone").into());
    }
    let grace_ms = Some(u64::try_from(args.options().grace.as_millis()).unwrap_or(u64::MAX));
    let (pid, tree) = (args.pid, args.tree);
    let sessions = SelectedSessions::find(client, &args.sessions, "/v1/sessions?archived=true", is_running).await?;
    let several = sessions.several;
    let kill = move |client: DaemonClient, id: SessionId| async move {
        let request = KillRequest { pid, tree, keep_agent: false, grace_ms };
        client.post::<Receipt>(&format!("/v1/sessions/{id}/kill"), &request).await
    };
    let report = |id: &SessionId, killed: Result<Receipt, ProblemDetails>| {
        let receipt = killed.as_ref().ok().or(killed.as_ref().err().and_then(|problem| problem.receipt.as_deref()));
        let name = receipt.map(|receipt| receipt.session_id.clone());
        if several
            && !as_json
            && let Some(name) = &name
        {
            term::line(TermStyle::stdout().bold(name))?;
        }
        report_kill(killed, as_json)?;
        if !several && !as_json && pid.is_none() {
            term::tip(&[
                (format!("agent-proxy events {id}"), "what happened in it"),
                (format!("agent-proxy delete {id}"), "forget it"),
            ]);
        }
        Ok(())
    };
    sessions.each(client, as_json, kill, report).await
}

/// Prints the receipt of a kill, successful or not.
///
/// # Errors
/// The kill's; `survivors` if the receipt is not empty.
pub(super) fn report_kill(killed: Result<Receipt, ProblemDetails>, as_json: bool) -> Result<(), CommandFailure> {
    match killed {
        Ok(receipt) if receipt.is_empty() => print(&receipt, as_json),
        // The daemon reports survivors as a problem; but the receipt counts more than the status.
        Ok(receipt) => {
            // The survivors matter more than a failure to print the receipt.
            let _ = print(&receipt, as_json);
            Err(ProblemDetails::survivors(Box::new(receipt)).into())
        }
        Err(problem) => {
            if let Some(receipt) = &problem.receipt {
                // As above.
                let _ = print(receipt, as_json);
            }
            Err(problem.into())
        }
    }
}

fn print(receipt: &Receipt, as_json: bool) -> Result<(), CommandFailure> {
    if as_json {
        return term::json(receipt);
    }
    term::out(render::receipt::render(receipt, TermStyle::stdout(), term::columns()))
}
