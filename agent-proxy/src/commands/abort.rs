//! Command `abort`.

use proxy_manager::{AbortPolicy, Receipt};
use serde_json::json;

use super::kill;
use crate::{
    api::AbortRequest,
    args::AbortArgs,
    client::Client,
    problem::{Failure, Problem},
    term,
};

/// Cancels the running turn. With `--kill-turn` also ends the processes it started, and prints the receipt.
pub(super) async fn run(client: &Client, args: &AbortArgs, as_json: bool) -> Result<(), Failure> {
    let path = format!("/v1/sessions/{}/abort", args.id);
    if args.kill_turn {
        let request = AbortRequest { policy: AbortPolicy::KillTurnProcesses };
        let killed: Result<Receipt, Problem> = client.post(&path, &request).await;
        return kill::tell(killed, as_json);
    }
    let request = AbortRequest { policy: AbortPolicy::LeaveProcesses };
    let () = client.post(&path, &request).await?;
    if as_json { term::json(&json!({ "sessionId": args.id })) } else { Ok(()) }
}
