//! Command `abort`.

use api_types::{ProblemDetails, api::AbortRequest};
use ipc_protocol::{AbortPolicy, Receipt};

use super::{kill, operations::report_id};
use crate::{args::AbortArgs, client::DaemonClient, command_failure::CommandFailure};

/// Cancels the running turn. With `--kill-turn` also ends the processes it started, and prints the receipt.
pub(super) async fn run(client: &DaemonClient, args: &AbortArgs, as_json: bool) -> Result<(), CommandFailure> {
    let path = format!("/v1/sessions/{}/abort", args.id);
    if args.kill_turn {
        let request = AbortRequest { policy: AbortPolicy::KillTurnProcesses };
        let killed: Result<Receipt, ProblemDetails> = client.post(&path, &request).await;
        return kill::report_kill(killed, as_json);
    }
    let request = AbortRequest { policy: AbortPolicy::LeaveProcesses };
    let () = client.post(&path, &request).await?;
    if as_json { report_id(client.whole_id(&args.id).await?, false, true) } else { Ok(()) }
}
