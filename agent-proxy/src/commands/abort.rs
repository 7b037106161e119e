//! `abort`.

use serde_json::json;

use crate::{args::IdArgs, client::Client, problem::Failure, term};

/// Cancels the running turn.
pub(super) async fn run(client: &Client, args: &IdArgs, as_json: bool) -> Result<(), Failure> {
    let () = client.post(&format!("/v1/sessions/{}/abort", args.id), &json!({})).await?;
    if as_json { term::json(&json!({ "sessionId": args.id })) } else { Ok(()) }
}
