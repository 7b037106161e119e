//! Commands `set`, `compact`, `state`, `messages`, `conversations`, `native`, `steer`, `transcript` and `delete`.

use proxy_manager::{Json, Operation, SessionId};
use serde_json::{Value, json};

use crate::{
    api::{SteerRequest, TranscriptResponse},
    args::operations::{CompactArgs, NativeArgs, SessionArgs, SetArgs, SteerArgs},
    client::DaemonClient,
    problem::{CommandFailure, ProblemDetails},
    prompting, term,
};

/// Changes the agent's model, mode, or thinking level.
pub(super) async fn set(client: &DaemonClient, args: SetArgs, as_json: bool) -> Result<(), CommandFailure> {
    let id = args.id.clone();
    for operation in args.operations() {
        operate(client, &id, &operation).await?;
    }
    if as_json { term::json(&json!({ "sessionId": id })) } else { Ok(()) }
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
    if as_json { term::json(&json!({ "sessionId": args.id })) } else { Ok(()) }
}

/// Prints the conversation as text.
pub(super) async fn transcript(client: &DaemonClient, args: SessionArgs, as_json: bool) -> Result<(), CommandFailure> {
    let transcript: TranscriptResponse = client.get(&format!("/v1/sessions/{}/transcript", args.id)).await?;
    if as_json { term::json(&transcript) } else { term::line(term::printable(&transcript.transcript, true)) }
}

/// Deletes a session that has ended, and its home.
pub(super) async fn delete(client: &DaemonClient, args: SessionArgs, as_json: bool) -> Result<(), CommandFailure> {
    client.delete(&format!("/v1/sessions/{}", args.id)).await?;
    if as_json { term::json(&json!({ "sessionId": args.id })) } else { Ok(()) }
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
        reply => term::line(format!("{reply:#}")),
    }
}
