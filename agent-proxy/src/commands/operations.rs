//! Commands `set`, `compact`, `state`, `messages`, `conversations`, `native`, `steer`, `transcript` and `delete`.

use api_types::{
    ProblemDetails,
    api::{SteerRequest, TranscriptResponse},
};
use ipc_protocol::{Json, Operation, SessionId};
use serde_json::{Value, json};

use super::several::{SelectedSessions, has_ended};
use crate::{
    args::operations::{CompactArgs, DeleteArgs, NativeArgs, SessionArgs, SetArgs, SteerArgs},
    client::DaemonClient,
    command_failure::CommandFailure,
    prompting, term,
};

/// Changes the agent's model, mode, or thinking level.
pub(super) async fn set(client: &DaemonClient, args: SetArgs, as_json: bool) -> Result<(), CommandFailure> {
    let id = args.id.clone();
    for operation in args.operations() {
        operate(client, &id, &operation).await?;
    }
    if as_json { report_id(client.whole_id(&id).await?, false, true) } else { Ok(()) }
}

/// Performs one operation of the agent, and prints its answer.
pub(super) async fn ask(
    client: &DaemonClient,
    args: SessionArgs,
    operation: Operation,
    as_json: bool,
) -> Result<(), CommandFailure> {
    let reply = operate(client, &args.id, &operation).await?;
    print(&reply, as_json)
}

/// Compacts the conversation, and prints the agent's answer.
pub(super) async fn compact(client: &DaemonClient, args: CompactArgs, as_json: bool) -> Result<(), CommandFailure> {
    let id = args.id.clone();
    let reply = operate(client, &id, &args.operation()).await?;
    print(&reply, as_json)
}

/// Sends a command of the agent's own protocol.
pub(super) async fn native(client: &DaemonClient, args: NativeArgs, as_json: bool) -> Result<(), CommandFailure> {
    let text = if args.message == "-" { prompting::from_stdin("the command")? } else { args.message };
    let message = Json::new(text).map_err(|error| ProblemDetails::usage(format!("the command is no JSON: {error}")))?;
    let reply = operate(client, &args.id, &Operation::Native { message }).await?;
    print(&reply, as_json)
}

/// Steers the running turn.
pub(super) async fn steer(client: &DaemonClient, args: SteerArgs, as_json: bool) -> Result<(), CommandFailure> {
    let parts = prompting::parts(&args.text, &args.attachments)?;
    let request = SteerRequest { text: String::new(), parts };
    let () = client.post(&format!("/v1/sessions/{}/steer", args.id), &request).await?;
    if as_json { report_id(client.whole_id(&args.id).await?, false, true) } else { Ok(()) }
}

/// Prints the conversation as text.
pub(super) async fn transcript(client: &DaemonClient, args: SessionArgs, as_json: bool) -> Result<(), CommandFailure> {
    let transcript: TranscriptResponse = client.get(&format!("/v1/sessions/{}/transcript", args.id)).await?;
    if as_json { term::json(&transcript) } else { term::line(term::for_stdout(&transcript.transcript)) }
}

/// Deletes sessions that have ended, and their homes.
pub(super) async fn delete(client: &DaemonClient, args: DeleteArgs, as_json: bool) -> Result<(), CommandFailure> {
    let sessions = SelectedSessions::find(client, &args.sessions, "/v1/records", has_ended).await?;
    let (several, force) = (sessions.several, if args.force { "?force=true" } else { "" });
    let delete = move |client: DaemonClient, id: SessionId| async move {
        // Afterwards nobody knows it any more.
        let whole = if as_json || several { client.whole_id(&id).await? } else { id.to_string() };
        client.delete(&format!("/v1/sessions/{whole}{force}")).await?;
        Ok(whole)
    };
    sessions.each(client, as_json, delete, |_, deleted| report_id(deleted?, several, as_json)).await
}

/// Reports a session that a command is done with: as JSON, and where there are several by its id.
pub(super) fn report_id(id: String, several: bool, as_json: bool) -> Result<(), CommandFailure> {
    match (as_json, several) {
        (true, _) => term::json(&json!({ "sessionId": id })),
        (false, true) => term::line(id),
        (false, false) => Ok(()),
    }
}

async fn operate(client: &DaemonClient, id: &SessionId, operation: &Operation) -> Result<Value, ProblemDetails> {
    client.post(&format!("/v1/sessions/{id}/operations"), operation).await
}

/// Prints a reply as JSON: indented for people.
fn print(reply: &Value, as_json: bool) -> Result<(), CommandFailure> {
    if as_json {
        return term::json(reply);
    }
    match reply {
        Value::Null => Ok(()),
        reply => term::line(term::json_for_stdout(&format!("{reply:#}"))),
    }
}
