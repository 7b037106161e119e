//! Arguments of `ask`.

use clap::{ArgMatches, Args, Command, parser::ValueSource};
use serde_json::Value;

use super::{AttachmentArgs, session::AgentArgs};

/// Arguments of `ask`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    agent-proxy ask 'what does this project do?'\n  \
    agent-proxy ask --json 'list the public types' | jq -r .reply\n  \
    agent-proxy ask --handler 'jq -r --unbuffered .text' 'explain main.rs'\n  \
    agent-proxy ask s-1 'and in French?'     # a session of the daemon\n  \
    agent-proxy ask s-1 'fix it' --callback https://ci.example/done\n\n\
    With one word more than the prompt, the first is the id of a session of the daemon; it goes on afterwards, as it was \
    started: options of a start are refused with it. Else a session is started for the question, and ended with all that \
    it left running. Permission requests that no rule and no mode answers are rejected, and that is told.")]
pub(crate) struct AskArgs {
    /// The agent [default: that of --profile, else the first of `agent-proxy agents` that is found]
    #[arg(long, value_name = "NAME")]
    pub(crate) agent: Option<String>,
    /// The question; `-` reads it from standard input. To ask a session of the daemon, give its id first
    #[arg(required = true, num_args = 1..=2, value_name = "[ID] PROMPT")]
    pub(crate) question: Vec<String>,
    /// Pass the answer to this command as it grows
    ///
    /// The command is one for a shell. It gets one line of JSON for each call on its standard input, then the end of it:
    /// {"call":"start",…}, {"call":"chunk","text":…,"toolCalls":[…],"isFinal":…} with all there is by then, and
    /// {"call":"complete","answer":{…}} or {"call":"failed","error":…}. What it prints goes to standard error. It runs in a session
    /// of its own: when it exits, what it has started is ended. If it exits with anything but 0, so fails `ask` (1), after the
    /// reply.
    #[arg(long, visible_alias = "stream-to", value_name = "CMD")]
    pub(crate) handler: Option<String>,
    /// Have the daemon call this address when the turn has ended
    ///
    /// For a session of the daemon. It is a webhook, signed and retried, also if this command or the daemon ends before. The daemon's
    /// webhooks.toml names the hosts that it calls, in its table `callbacks`.
    #[arg(long, value_name = "URL")]
    pub(crate) callback: Option<String>,
    /// Fields of your own, as JSON, for the callback and each call of the handler
    #[arg(long, value_name = "JSON", value_parser = parse_json)]
    pub(crate) context: Option<Value>,
    /// Files beside the question.
    #[command(flatten)]
    pub(crate) attachments: AttachmentArgs,
    /// Options of the start.
    #[command(flatten)]
    pub(crate) start: AgentArgs,
}

impl AskArgs {
    /// Returns the daemon's session that is asked, if one is named.
    pub(crate) fn session(&self) -> Option<&str> {
        match self.question.as_slice() {
            [session, _] => Some(session),
            _ => None,
        }
    }

    /// Returns the text of the question.
    pub(crate) fn text(&self) -> &str {
        self.question.last().map_or("", String::as_str)
    }
}

fn parse_json(text: &str) -> Result<Value, serde_json::Error> {
    serde_json::from_str(text)
}

/// Refuses options for starting a session if a running one is asked, and those of a running one for a start.
///
/// # Errors
/// The given option, and advice.
pub(super) fn check(given: &ArgMatches) -> Result<(), String> {
    let question: Vec<&String> = given.get_many("question").into_iter().flatten().collect();
    let has = |id: &str| given.value_source(id) == Some(ValueSource::CommandLine);
    if has("context") && !has("callback") && !has("handler") {
        return Err("--context is for whoever is called: give --callback or --handler as well".to_owned());
    }
    let [session, _] = question.as_slice() else {
        return match has("callback") {
            true => Err("--callback is made by the daemon, when a turn of one of its sessions ends: give the session's id first; \
                         or use --handler"
                .to_owned()),
            false => Ok(()),
        };
    };
    let start = AgentArgs::augment_args(Command::new("start"));
    let flags = start.get_arguments().map(|arg| (arg.get_id().as_str(), arg.get_long()));
    let is_given = |id: &str| given.value_source(id) == Some(ValueSource::CommandLine);
    let flags = flags.chain([("agent", Some("agent"))]).filter(|(id, _)| is_given(id));
    let names: Vec<String> =
        flags.map(|(_, long)| long.map_or_else(|| "-- ARGV".to_owned(), |long| format!("--{long}"))).collect();
    if names.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{} would be for a session that is started for the question, and {session:?} is taken for the id of one that the \
         daemon has started: leave that out; or give the prompt alone, in quotes, to start one",
        names.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;

    use crate::args::{CliCommand, parse};

    #[test]
    fn a_session_that_runs_is_asked_as_it_was_started() {
        let parsed = |line: &str| parse(["agent-proxy", "ask"].into_iter().chain(line.split(' ')));
        for line in ["s-1 hi", "s-1 hi --handler cat --file a --json -v", "--socket /x s-1 hi"] {
            assert!(
                matches!(parsed(line).expect(line).command, CliCommand::Ask(args) if args.session() == Some("s-1"))
            );
        }
        for (flags, named) in [
            ("--agent pi", "--agent"),
            ("--permission ask", "--permission"),
            ("--profile p --model m", "--profile, --model"),
            ("--env A=b", "--env"),
            ("--allow bash", "--allow"),
            ("--resume n-1", "--resume"),
            ("--ephemeral", "--ephemeral"),
            ("--timeout turn=1s", "--timeout"),
            ("--limit pids=2", "--limit"),
            ("--max-tokens 9", "--max-tokens"),
            ("--containment strict", "--containment"),
            ("--key k", "--key"),
        ] {
            let error = parsed(&format!("{flags} s-1 hi")).expect_err(flags);
            let text = error.to_string();
            assert_eq!((error.kind(), error.exit_code()), (ErrorKind::ArgumentConflict, 2), "{text}");
            assert!(text.contains(&format!("{named} would be")) && text.contains("\"s-1\""), "{text}");
            assert!(parsed(&format!("{flags} hi")).is_ok(), "{flags}");
        }
        for (line, said) in [
            ("hi --callback http://h/", "the session's id first"),
            ("hi --context 7", "give --callback or --handler"),
            ("s-1 hi --context 7", "give --callback or --handler"),
        ] {
            let text = parsed(line).expect_err(line).to_string();
            assert!(text.contains(said), "{text}");
        }
        for line in
            ["s-1 hi --callback http://h/ --context 7", "s-1 hi --callback http://h/", "hi --handler cat --context 7"]
        {
            assert!(parsed(line).is_ok(), "{line}");
        }
        assert!(parsed("hi --handler cat --context {").expect_err("no JSON").to_string().contains("--context"));
        let text = parsed("s-1 hi -- --more").expect_err("arguments").to_string();
        assert!(text.contains("-- ARGV would be") && text.contains("in quotes"), "{text}");
    }
}
