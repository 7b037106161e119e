//! `suspend`, `resume`, `attach-command`, `take-back`, `append`.

use std::time::Duration;

use proxy_manager::{Json, ResumeOptions, SessionId, Snapshot};
use serde_json::Value;

use super::sessions::parse;
use crate::{
    api::{AppendRequest, Appended, Attach, SuspendRequest},
    args::{
        lasting::{AppendArgs, AttachArgs, GoOnArgs, SuspendArgs},
        mcp,
    },
    client::Client,
    environment,
    problem::{Failure, Problem},
    render, saying,
    term::{self, Style, printable},
};

fn grace(grace: Duration) -> SuspendRequest {
    SuspendRequest { grace_ms: Some(u64::try_from(grace.as_millis()).unwrap_or(u64::MAX)) }
}

/// Ends a session's processes, and prints what is needed to go on with it.
pub(super) async fn suspend(client: &Client, args: &SuspendArgs, as_json: bool) -> Result<(), Failure> {
    let path = format!("/v1/sessions/{}/suspend", args.id);
    let snapshot: Value = client.post(&path, &grace(args.grace)).await?;
    if as_json {
        return term::json(&snapshot);
    }
    term::out(summary(&args.id, &parse(snapshot)?, Style::stdout()))
}

fn summary(id: &SessionId, snapshot: &Snapshot, style: Style) -> String {
    let Snapshot { config, native_session_id, home, turns, last_offset, receipt, secrets: _ } = snapshot;
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

/// Goes on with a suspended session, or with one that was handed over; prints its id.
pub(super) async fn resume(client: &Client, args: GoOnArgs, how: &str, as_json: bool) -> Result<(), Failure> {
    let GoOnArgs { id, env, mcp, endpoint } = args;
    let mcp_servers = mcp.as_deref().map(mcp::read).transpose()?.unwrap_or_default();
    let options = ResumeOptions { env: environment::parse(&env)?, mcp_servers, endpoint };
    let session: Value = client.post(&format!("/v1/sessions/{id}/{how}"), &options).await?;
    if as_json { term::json(&session) } else { term::line(&id) }
}

/// Prints the agent's own command for the session's conversation.
pub(super) async fn attach_command(client: &Client, args: &AttachArgs, as_json: bool) -> Result<(), Failure> {
    let attach: Attach = if args.hand_over {
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

/// One line for a shell: directory, home, command.
fn shell_line(Attach { command, cwd, home }: &Attach) -> Result<String, Problem> {
    let quote = |text: &str| {
        // What a shell has no way to say is no file's name either.
        let quoted = shlex::try_quote(text).map_err(|_| Problem::failed(format!("{text:?} has a NUL in it")))?;
        Ok::<_, Problem>(quoted.into_owned())
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
pub(super) async fn append(client: &Client, args: AppendArgs, as_json: bool) -> Result<(), Failure> {
    let payload = match args.payload.as_deref() {
        None => Json::null(),
        Some("-") => document(saying::from_stdin("the payload")?)?,
        Some(text) => document(text.to_owned())?,
    };
    let request = AppendRequest { kind: args.kind, version: args.version, payload };
    let appended: Appended = client.post(&format!("/v1/sessions/{}/events", args.id), &request).await?;
    if as_json {
        return term::json(&appended);
    }
    // As `events` shows it, and as --from takes it.
    term::line(appended.offset.trim_start_matches('0'))
}

fn document(text: String) -> Result<Json, Problem> {
    Json::new(text).map_err(|error| Problem::usage(format!("the payload is no JSON: {error}")))
}

#[cfg(test)]
mod tests {
    use proxy_manager::AgentSessionConfig;

    use super::*;

    #[test]
    fn a_command_that_a_shell_can_run() {
        let attach = |home: Option<&str>| Attach {
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
        assert!(shell_line(&Attach { command: vec!["a\0b".into()], ..attach(None) }).is_err());
    }

    #[test]
    fn what_is_kept_of_a_suspended_session() {
        let snapshot = Snapshot {
            config: Box::new(AgentSessionConfig { cwd: Some("/x".into()), ..AgentSessionConfig::new("pi") }),
            native_session_id: "n-1".into(),
            home: Some("/state/homes/s-1".into()),
            turns: 1,
            last_offset: 12,
            secrets: Vec::new(),
            receipt: None,
        };
        let text = summary(&"s-1".parse().expect("valid"), &snapshot, Style::PLAIN);
        let expected = "\
s-1 suspended after 1 turn, last event 12
  conversation  n-1 of pi
  directory     /x
  home          /state/homes/s-1
";
        assert_eq!(text, expected);
    }
}
