//! Command `permit`.

use api_types::{
    OpenPermission, ProblemDetails, SessionInfo,
    api::{PermissionReply, path_segment},
};
use ipc_protocol::{Json, PermissionAnswer, SessionId};
use serde_json::{Value, json};

use super::sessions::parse;
use crate::{args::PermitArgs, client::DaemonClient, command_failure::CommandFailure, term};

/// Answers a permission request; without one, lists those that are open.
pub(super) async fn run(client: &DaemonClient, args: PermitArgs, as_json: bool) -> Result<(), CommandFailure> {
    let PermitArgs { id, request: Some(request), answer: Some(answer), by, reason, input } = args else {
        return list(client, &args.id, as_json).await;
    };
    let input = input.map(Json::new).transpose();
    let input = input.map_err(|error| ProblemDetails::usage(format!("--input is no JSON: {error}")))?;
    let answer = match (answer.as_str(), input, reason) {
        ("allow", None, None) => PermissionAnswer::Allow,
        ("allow", Some(input), None) => PermissionAnswer::AllowWith { input },
        ("deny", None, None) => PermissionAnswer::Deny,
        ("deny", None, Some(message)) => PermissionAnswer::DenyWith { message },
        (option, None, None) => PermissionAnswer::Option(option.to_owned()),
        _ => return Err(ProblemDetails::usage("--input goes with allow, and --reason with deny").into()),
    };
    let path = format!("/v1/sessions/{id}/permissions/{}", path_segment(&request));
    let () = client.post(&path, &PermissionReply { answer, by }).await?;
    if as_json { term::json(&json!({ "sessionId": client.whole_id(&id).await?, "request": request })) } else { Ok(()) }
}

/// Lists the open requests of a session, each with the line that answers it.
async fn list(client: &DaemonClient, id: &SessionId, as_json: bool) -> Result<(), CommandFailure> {
    let mut session: Value = client.get(&format!("/v1/sessions/{id}")).await?;
    if as_json {
        return term::json(&session["openPermissions"].take());
    }
    let SessionInfo { open_permissions, .. } = parse(session)?;
    if open_permissions.is_empty() {
        term::error_line(format_args!("{id} waits for no permission"));
        return Ok(());
    }
    let lines: Result<Vec<_>, _> = open_permissions.iter().map(|request| text(id, request, term::columns())).collect();
    term::out(lines?.join("\n"))
}

fn text(id: &SessionId, request: &OpenPermission, width: Option<usize>) -> Result<String, ProblemDetails> {
    let OpenPermission { id: name, title, tool, options, .. } = request;
    let quoted = shlex::try_quote(name)
        .map_err(|_| ProblemDetails::failed(format!("permission request {name:?} has a NUL in it")))?;
    let printable = |text: &str| term::printable(text, false);
    let mut text = format!("{}  {}: {}\n", printable(name), printable(tool), printable(title));
    for line in term::folded_details(&request.details(), width) {
        text.push_str(&line);
        text.push('\n');
    }
    let options = options.iter().map(|option| format!("{} ({})", printable(&option.id), printable(&option.name)));
    let options = options.collect::<Vec<_>>().join(", ");
    if !options.is_empty() {
        text.push_str(&format!("  options  {options}\n"));
    }
    let style = term::TermStyle::stdout();
    text.push_str(&format!(
        "  {}\n",
        style.bold(format_args!("agent-proxy permit {id} {} allow|deny", printable(&quoted)))
    ));
    Ok(text)
}

#[cfg(test)]
mod tests {
    use ipc_protocol::{PermissionOption, PermissionOptionKind};

    use super::*;

    #[test]
    fn an_open_request_is_listed_with_the_line_that_answers_it() {
        let option = |id: &str, name: &str, kind| PermissionOption { id: id.into(), name: name.into(), kind };
        let request = OpenPermission {
            id: "permission-1".into(),
            title: "Run \u{1b}make".into(),
            tool: "shell".into(),
            kind: "execute".into(),
            command: Some("make -j2\nrm \u{1b}[2Kx".into()),
            paths: Vec::new(),
            input: Json::new(r#"{"content":"all\nof it"}"#).expect("JSON"),
            options: vec![
                option("once", "Allow once", PermissionOptionKind::AllowOnce),
                option("no", "Reject", PermissionOptionKind::RejectOnce),
            ],
        };
        let expected = "\
permission-1  shell: Run \\u{1b}make
  command  make -j2
           rm \\u{1b}[2Kx
  content  all
           of it
  options  once (Allow once), no (Reject)
  agent-proxy permit s-1 permission-1 allow|deny
";
        assert_eq!(text(&"s-1".parse().expect("valid"), &request, None).expect("a text"), expected);
    }
}
