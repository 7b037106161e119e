//! `permit`.

use proxy_manager::PermissionAnswer;
use serde_json::json;

use crate::{
    api::{PermissionReply, path_segment},
    args::PermitArgs,
    client::Client,
    problem::Failure,
    term,
};

/// Answers a permission request.
pub(super) async fn run(client: &Client, args: PermitArgs, as_json: bool) -> Result<(), Failure> {
    let answer = match args.answer.as_str() {
        "allow" => PermissionAnswer::Allow,
        "deny" => PermissionAnswer::Deny,
        option => PermissionAnswer::Option(option.to_owned()),
    };
    let path = format!("/v1/sessions/{}/permissions/{}", args.id, path_segment(&args.request));
    let () = client.post(&path, &PermissionReply { answer }).await?;
    if as_json { term::json(&json!({ "sessionId": args.id, "request": args.request })) } else { Ok(()) }
}
