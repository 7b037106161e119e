//! Commands `suspend`, `resume`, `attach-command`, `take-back` and `append`.

use std::{path::Path, time::Duration};

use api_types::{
    ProblemDetails, ResumeOptions, SessionSnapshot,
    api::{AppendRequest, AppendResponse, AttachCommandResponse, ResumeRequest, SuspendRequest},
};
use ipc_protocol::{Json, SessionId};
use serde_json::Value;

use super::{
    sessions::parse,
    several::{SelectedSessions, is_running},
};
use crate::{
    args::{
        mcp,
        persistence::{AppendArgs, AttachCommandArgs, ResumeArgs, SuspendArgs, TakeBackArgs, UnrecordedArgs},
    },
    client::DaemonClient,
    command_failure::CommandFailure,
    environment, prompting, render,
    term::{self, TermStyle, printable},
};

fn grace(grace: Duration) -> SuspendRequest {
    SuspendRequest { grace_ms: Some(u64::try_from(grace.as_millis()).unwrap_or(u64::MAX)) }
}

/// Ends sessions' processes, and prints snapshots for their resume.
pub(super) async fn suspend(client: &DaemonClient, args: &SuspendArgs, as_json: bool) -> Result<(), CommandFailure> {
    let grace_ms = grace(args.grace).grace_ms;
    let wanted = |session: &Value| is_running(session) && session["resumable"] == true;
    let sessions = SelectedSessions::find(client, &args.sessions, "/v1/sessions?archived=true", wanted).await?;
    let several = sessions.several;
    let suspend = move |client: DaemonClient, id: SessionId| async move {
        client.post::<Value>(&format!("/v1/sessions/{id}/suspend"), &SuspendRequest { grace_ms }).await
    };
    let report = |id: &SessionId, snapshot: Result<Value, ProblemDetails>| {
        let snapshot = snapshot?;
        if as_json {
            return term::json(&snapshot);
        }
        term::out(summary(id, &parse(snapshot)?, TermStyle::stdout()))?;
        if !several {
            term::tip(&[
                (format!("agent-proxy prompt {id} 'go on'"), "resume it with a prompt"),
                (format!("agent-proxy resume {id}"), "resume it"),
            ]);
        }
        Ok(())
    };
    sessions.each(client, as_json, suspend, report).await
}

fn summary(id: &SessionId, snapshot: &SessionSnapshot, style: TermStyle) -> String {
    let SessionSnapshot { config, native_session_id, home, turns, last_offset, receipt, secrets: _ } = snapshot;
    let turns = render::count(usize::try_from(*turns).unwrap_or(usize::MAX), "turn", "turns");
    let mut text = format!("{} suspended after {turns}, last event {last_offset}\n", style.bold(id));
    let mut line = |name: &str, value: &str| {
        text.push_str(&format!("  {name:<13} {}\n", printable(value, false)));
    };
    line("conversation", &format!("{native_session_id} of {}", config.agent));
    line("directory", config.cwd.as_deref().unwrap_or_default());
    if let Some(home) = home {
        line("home", home);
    }
    if let Some(receipt) = receipt {
        text.push_str(&format!("  {:<13} {}\n", "ended", render::receipt::summary(receipt, style)));
    }
    text
}

/// Resumes a suspended session, of this daemon or of another one; prints its id.
pub(super) async fn resume(client: &DaemonClient, args: ResumeArgs, as_json: bool) -> Result<(), CommandFailure> {
    let ResumeArgs { id, snapshot, given, on_missing } = args;
    let options = ResumeOptions { on_missing: on_missing.into(), ..options(given)? };
    let session: Value = match (id, snapshot) {
        (Some(id), _) => client.post(&format!("/v1/sessions/{id}/resume"), &options).await?,
        (None, Some(path)) => {
            client.post("/v1/resume", &ResumeRequest { snapshot: self::snapshot(&path)?, options }).await?
        }
        (None, None) => return Err(ProblemDetails::usage("name a session, or a snapshot of one".to_owned()).into()),
    };
    print_resumed(&session, as_json)
}

/// Resumes a session that was handed over; prints its id.
pub(super) async fn take_back(client: &DaemonClient, args: TakeBackArgs, as_json: bool) -> Result<(), CommandFailure> {
    let TakeBackArgs { id, given } = args;
    let session: Value = client.post(&format!("/v1/sessions/{id}/take-back"), &options(given)?).await?;
    print_resumed(&session, as_json)
}

fn options(UnrecordedArgs { env, not_secret, mcp, endpoint }: UnrecordedArgs) -> Result<ResumeOptions, ProblemDetails> {
    let mcp_servers = mcp.as_deref().map(mcp::read).transpose()?.unwrap_or_default();
    let not_secret = not_secret.into_iter().collect();
    Ok(ResumeOptions { env: environment::parse(&env)?, mcp_servers, endpoint, not_secret, ..ResumeOptions::default() })
}

fn snapshot(path: &Path) -> Result<SessionSnapshot, ProblemDetails> {
    let text = if path == Path::new("-") {
        prompting::from_stdin("the snapshot")?
    } else {
        std::fs::read_to_string(path)
            .map_err(|error| ProblemDetails::usage(format!("reading {} failed: {error}", path.display())))?
    };
    serde_json::from_str(&text).map_err(|error| {
        ProblemDetails::usage(format!("{} is not what `suspend --json` printed: {error}", path.display()))
    })
}

fn print_resumed(session: &Value, as_json: bool) -> Result<(), CommandFailure> {
    if as_json { term::json(session) } else { term::line(session["sessionId"].as_str().unwrap_or_default()) }
}

/// Prints the agent's own command for the session's conversation.
pub(super) async fn attach_command(
    client: &DaemonClient,
    args: &AttachCommandArgs,
    as_json: bool,
) -> Result<(), CommandFailure> {
    let attach: AttachCommandResponse = if args.hand_over {
        let path = format!("/v1/sessions/{}/hand-over", args.id);
        client.post(&path, &grace(args.grace)).await?
    } else {
        client.get(&format!("/v1/sessions/{}/attach-command", args.id)).await?
    };
    if as_json {
        return term::json(&attach);
    }
    term::line(shell_line(&attach)?)
}

/// Formats one line for a shell: directory, home, command.
fn shell_line(AttachCommandResponse { command, cwd, home }: &AttachCommandResponse) -> Result<String, ProblemDetails> {
    let quote = |text: &str| {
        // Text with a NUL cannot be quoted, but is no file name either.
        let quoted = shlex::try_quote(text).map_err(|_| ProblemDetails::failed(format!("{text:?} has a NUL in it")))?;
        Ok::<_, ProblemDetails>(quoted.into_owned())
    };
    let mut line = format!("cd {} &&", quote(cwd)?);
    if let Some(home) = home {
        line.push_str(&format!(" HOME={}", quote(home)?));
    }
    for word in command {
        line.push(' ');
        line.push_str(&quote(word)?);
    }
    Ok(line)
}

/// Appends an event, and prints its offset.
pub(super) async fn append(client: &DaemonClient, args: AppendArgs, as_json: bool) -> Result<(), CommandFailure> {
    let payload = match args.payload.as_deref() {
        None => Json::null(),
        Some("-") => document("payload", prompting::from_stdin("the payload")?)?,
        Some(text) => document("payload", text.to_owned())?,
    };
    let metadata = args.metadata.map(|text| document("metadata", text)).transpose()?;
    let request = AppendRequest { kind: args.kind, version: args.version, payload, metadata };
    let appended: AppendResponse = client.post(&format!("/v1/sessions/{}/events", args.id), &request).await?;
    if as_json {
        return term::json(&appended);
    }
    // Printed in the form that `events` shows and --from accepts.
    term::line(appended.offset.trim_start_matches('0'))
}

/// Parses a JSON document of the command line; `what` names it in errors.
pub(super) fn document(what: &str, text: String) -> Result<Json, ProblemDetails> {
    Json::new(text).map_err(|error| ProblemDetails::usage(format!("the {what} is no JSON: {error}")))
}

#[cfg(test)]
mod tests {
    use ipc_protocol::AgentSessionConfig;

    use super::*;

    #[test]
    fn a_command_that_a_shell_can_run() {
        let attach = |home: Option<&str>| AttachCommandResponse {
            command: ["claude", "--resume", "it's $HOME"].map(str::to_owned).to_vec(),
            cwd: "/my project".into(),
            home: home.map(str::to_owned),
        };
        let line = shell_line(&attach(None)).expect("a line");
        assert_eq!(line, "cd '/my project' && claude --resume \"it's \"'$HOME'");
        let line = shell_line(&attach(Some("/h&h"))).expect("a line");
        assert!(line.starts_with("cd '/my project' && HOME='/h&h' claude --resume "), "{line}");
        let words = shlex::split(&line).expect("words");
        assert_eq!(words.last().map(String::as_str), Some("it's $HOME"));
        assert!(shell_line(&AttachCommandResponse { command: vec!["a\0b".into()], ..attach(None) }).is_err());
    }

    #[test]
    fn what_is_kept_of_a_suspended_session() {
        let snapshot = SessionSnapshot {
            config: Box::new(AgentSessionConfig { cwd: Some("/x".into()), ..AgentSessionConfig::new("pi") }),
            native_session_id: "n-1".into(),
            home: Some("/state/homes/s-1".into()),
            turns: 1,
            last_offset: 12,
            secrets: Vec::new(),
            receipt: None,
        };
        let text = summary(&"s-1".parse().expect("valid"), &snapshot, TermStyle::PLAIN);
        let expected = "\
s-1 suspended after 1 turn, last event 12
  conversation  n-1 of pi
  directory     /x
  home          /state/homes/s-1
";
        assert_eq!(text, expected);
    }
}
