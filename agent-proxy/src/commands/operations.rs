//! Commands `set`, `compact`, `state`, `messages`, `conversations`, `native`, `steer`, `transcript` and `delete`.

use proxy_manager::{Json, Operation, SessionId};
use serde_json::{Value, json};

use crate::{
    api::{SteerRequest, Transcript},
    args::operations::{NativeArgs, SessionArgs, SetArgs, SteerArgs},
    client::Client,
    problem::{Failure, Problem},
    saying, term,
};

/// Changes the agent's model, mode, or thinking level.
pub(super) async fn set(client: &Client, args: SetArgs, as_json: bool) -> Result<(), Failure> {
    let id = args.id.clone();
    for operation in args.operations() {
        operate(client, &id, &operation).await?;
    }
    if as_json { term::json(&json!({ "sessionId": id })) } else { Ok(()) }
}

/// Performs one operation of the agent, and prints its answer.
pub(super) async fn ask(
    client: &Client,
    args: SessionArgs,
    operation: Operation,
    as_json: bool,
) -> Result<(), Failure> {
    let reply = operate(client, &args.id, &operation).await?;
    print(&reply, as_json)
}

/// Sends a command of the agent's own protocol.
pub(super) async fn native(client: &Client, args: NativeArgs, as_json: bool) -> Result<(), Failure> {
    let text = if args.message == "-" { saying::from_stdin("the command")? } else { args.message };
    let message = Json::new(text).map_err(|error| Problem::usage(format!("the command is no JSON: {error}")))?;
    let reply = operate(client, &args.id, &Operation::Native { message }).await?;
    print(&reply, as_json)
}

/// Steers the running turn.
pub(super) async fn steer(client: &Client, args: SteerArgs, as_json: bool) -> Result<(), Failure> {
    let parts = saying::parts(&args.text, &args.attachments)?;
    let request = SteerRequest { text: String::new(), parts };
    let () = client.post(&format!("/v1/sessions/{}/steer", args.id), &request).await?;
    if as_json { term::json(&json!({ "sessionId": args.id })) } else { Ok(()) }
}

/// Prints the conversation as text.
pub(super) async fn transcript(client: &Client, args: SessionArgs, as_json: bool) -> Result<(), Failure> {
    let transcript: Transcript = client.get(&format!("/v1/sessions/{}/transcript", args.id)).await?;
    if as_json { term::json(&transcript) } else { term::line(term::printable(&transcript.transcript, true)) }
}

/// Deletes a session that has ended, and its home.
pub(super) async fn delete(client: &Client, args: SessionArgs, as_json: bool) -> Result<(), Failure> {
    client.delete(&format!("/v1/sessions/{}", args.id)).await?;
    if as_json { term::json(&json!({ "sessionId": args.id })) } else { Ok(()) }
}

async fn operate(client: &Client, id: &SessionId, operation: &Operation) -> Result<Value, Problem> {
    client.post(&format!("/v1/sessions/{id}/operations"), operation).await
}

/// Prints a reply as JSON: indented for people.
fn print(reply: &Value, as_json: bool) -> Result<(), Failure> {
    if as_json {
        return term::json(reply);
    }
    match reply {
        Value::Null => Ok(()),
        reply => term::line(format!("{reply:#}")),
    }
}
