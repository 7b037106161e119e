//! Command `kill`.

use proxy_manager::Receipt;

use crate::{
    api::KillRequest,
    args::KillArgs,
    client::Client,
    problem::{Failure, Problem},
    render,
    term::{self, Style},
};

/// Ends a session, or one process of it, with or without its descendants, and prints the receipt.
pub(super) async fn run(client: &Client, args: &KillArgs, as_json: bool) -> Result<(), Failure> {
    let grace = args.options().grace;
    let request = KillRequest {
        pid: args.pid,
        tree: args.tree,
        keep_agent: false,
        grace_ms: Some(u64::try_from(grace.as_millis()).unwrap_or(u64::MAX)),
    };
    let path = format!("/v1/sessions/{}/kill", args.id);
    let killed: Result<Receipt, Problem> = client.post(&path, &request).await;
    tell(killed, as_json)
}

/// Prints the receipt of a kill, successful or not.
///
/// # Errors
/// The kill's; `survivors` if the receipt is not empty.
pub(super) fn tell(killed: Result<Receipt, Problem>, as_json: bool) -> Result<(), Failure> {
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

fn print(receipt: &Receipt, as_json: bool) -> Result<(), Failure> {
    if as_json {
        return term::json(receipt);
    }
    term::out(render::receipt::render(receipt, Style::stdout(), term::columns()))
}
