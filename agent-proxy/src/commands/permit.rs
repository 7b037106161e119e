//! Command `permit`.

use proxy_manager::{Json, PermissionAnswer};
use serde_json::json;

use crate::{
    api::{PermissionReply, path_segment},
    args::PermitArgs,
    client::DaemonClient,
    problem::{CommandFailure, ProblemDetails},
    term,
};

/// Answers a permission request.
pub(super) async fn run(client: &DaemonClient, args: PermitArgs, as_json: bool) -> Result<(), CommandFailure> {
    let input = args.input.map(Json::new).transpose();
    let input = input.map_err(|error| ProblemDetails::usage(format!("--input is no JSON: {error}")))?;
    let answer = match (args.answer.as_str(), input, args.reason) {
        ("allow", None, None) => PermissionAnswer::Allow,
        ("allow", Some(input), None) => PermissionAnswer::AllowWith { input },
        ("deny", None, None) => PermissionAnswer::Deny,
        ("deny", None, Some(message)) => PermissionAnswer::DenyWith { message },
        (option, None, None) => PermissionAnswer::Option(option.to_owned()),
        _ => return Err(ProblemDetails::usage("--input goes with allow, and --reason with deny").into()),
    };
    let path = format!("/v1/sessions/{}/permissions/{}", args.id, path_segment(&args.request));
    let () = client.post(&path, &PermissionReply { answer, by: args.by }).await?;
    if as_json { term::json(&json!({ "sessionId": args.id, "request": args.request })) } else { Ok(()) }
}
