//! Command `kill`.

use proxy_manager::Receipt;

use crate::{
    api::KillRequest,
    args::KillArgs,
    client::DaemonClient,
    problem::{CommandFailure, ProblemDetails},
    render,
    term::{self, TermStyle},
};

/// Ends a session, or one process of it, with or without its descendants, and prints the receipt.
pub(super) async fn run(client: &DaemonClient, args: &KillArgs, as_json: bool) -> Result<(), CommandFailure> {
    let grace = args.options().grace;
    let request = KillRequest {
        pid: args.pid,
        tree: args.tree,
        keep_agent: false,
        grace_ms: Some(u64::try_from(grace.as_millis()).unwrap_or(u64::MAX)),
    };
    let path = format!("/v1/sessions/{}/kill", args.id);
    let killed: Result<Receipt, ProblemDetails> = client.post(&path, &request).await;
    report_kill(killed, as_json)
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
            print(&receipt, as_json)?;
            Err(proxy_manager::Error::Survivors(Box::new(receipt)).into())
        }
        Err(problem) => {
            if let Some(receipt) = &problem.receipt {
                // The problem matters more than a failure to print the receipt.
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
