//! An ACP agent that does what the prompt says, for tests and the demo.
//!
//! It speaks the Agent Client Protocol on standard input and output. A prompt is a script, one command a line; a line
//! that is no command is said as it stands. A turn ends when its script does, or when it is cancelled.
//!
//! | command | what it does |
//! |---|---|
//! | `say TEXT`, `think TEXT` | the text and a newline, as text or as thinking |
//! | `sleep 300ms`, `sleep 2s` | waits, unless cancelled |
//! | `wait` | waits until cancelled |
//! | `hang` | never does anything again, not even on a cancel or at the end of its input |
//! | `run COMMAND` | a tool call that runs it in `/bin/sh`, output and exit code in its end; a cancel kills the shell only |
//! | `spawn COMMAND` | a plain background child, left behind; says `spawn PID` |
//! | `setsid COMMAND` | the same in a session of its own; says `setsid PID` |
//! | `daemon COMMAND` | the same by a double fork: re-parented; says `daemon PID` |
//! | `ignore-term COMMAND` | the same under a shell that ignores SIGTERM; says `ignore-term PID` |
//! | `ignore-sigterm` | the agent itself ignores SIGTERM from here on |
//! | `ask TITLE` | a permission request (`allow-once`, `allow-always`, `reject-once`); says `permission: ID` or `permission: cancelled`. A cancel alone does not wake it |
//! | `ask-call JSON` | the same about the tool call with these fields of the protocol: `{"title":…,"kind":…,"rawInput":…,"content":[…]}` |
//! | `flood N SIZE` | N text chunks of SIZE bytes, numbered in their first ten digits |
//! | `tool NAME`, `plan`, `usage` | a tool call with all its updates; a plan; a usage update |
//! | `edit PATH`, `create PATH`, `delete PATH` | a tool call with its diff; no file is touched |
//! | `plan DONE/ALL` | a plan of ALL steps, of which DONE are completed and the next is in progress |
//! | `commands`, `commands NAME…` | offers slash commands: three with hints, or those that are named |
//! | `title TEXT`, `switch-mode MODE`, `switch-model MODEL` | the agent gives the conversation a title, goes over to a mode or a model |
//! | `subagent TEXT` | a tool call whose sub-agent thinks, reads a file and says the text |
//! | `live N 50ms` | a tool call whose output grows by N lines, with a pause after each |
//! | `image`, `markdown` | a picture; a long text with all of Markdown, in pieces |
//! | `hostile`, `long-line` | texts that do harm where they are taken for anything but text, wherever text is shown; a line of 5 MiB |
//! | `tokens IN OUT`, `cost CENTS` | so many tokens are told at the end of the turn; so much more the conversation has cost, told at once |
//! | `tokens IN OUT CACHED WRITTEN` | the same, with the part of the input that came from a cache, and that was put into one |
//! | `stderr TEXT`, `raw LINE` | a line on standard error; a line on standard output that need not be the protocol's |
//! | `mcp`, `model`, `system`, `env`, `cwd` | says how many MCP servers it was given, its model, what came before the script in the first prompt, the names of its environment variables, its working directory |
//! | `mode`, `thinking`, `history`, `blocks` | says its mode, how hard it thinks, how much was said before, and what the prompt is made of |
//! | `crash`, `exit CODE` | dies of SIGABRT; exits |
//!
//! COMMAND is a line for `/bin/sh -c`; `exec` in front of a single program saves the shell.
//!
//! A second prompt during a turn is said as `steered: TEXT`, and answered at the end of the turn.
//!
//! Arguments: `--no-handshake` (never answers `initialize`), `--bad-handshake` (answers with an error),
//! `--exit-at-start CODE`, `--protocol-version N`, `--banner LINE` (on standard output, before anything else),
//! `--set-model` and `--no-model` (how the model can be set; a configuration option by default), `--modes` (it has the modes
//! `build` and `plan`, and can think `low` or `high`), `--store DIR` (it keeps its conversations there, below the home directory
//! if that is relative: they can be loaded and listed), `--destructive-load` (what is to be loaded is destroyed, and cannot be).

mod agent;
mod children;
mod looks;
mod options;
mod rpc;
mod samples;
mod script;
mod setup;
mod store;

use std::io::{self, Read, Write};

/// The id of the one session, where none is kept.
pub(crate) const SESSION: &str = "fake-session";

/// How the agent is embedded.
#[derive(Clone, Debug)]
pub struct Config {
    /// Program and leading arguments that lead back into [`run`]: what `setsid` and `daemon` start.
    pub reexec: Vec<String>,
}

/// Runs the agent on the process's standard streams until its input ends or its script says so, and returns the exit
/// code. `args` are without the program's name.
pub fn run(config: Config, args: impl IntoIterator<Item = String>) -> i32 {
    let args: Vec<String> = args.into_iter().collect();
    if let Some((first, rest)) = args.split_first()
        && first == children::CHILD
    {
        return children::run_child(rest);
    }
    // Unlocked: the lock would be held by the reader's thread for good.
    run_on(config, args, io::stdin(), io::stdout())
}

/// As [`run`], on other streams.
pub fn run_on(
    config: Config,
    args: impl IntoIterator<Item = String>,
    input: impl Read + Send + 'static,
    output: impl Write,
) -> i32 {
    let options = match options::Options::parse(args) {
        Ok(options) => options,
        Err(error) => return fail(2, &error),
    };
    if let Some(code) = options.exit_at_start {
        return code;
    }
    let wire = rpc::Wire::new(output, SESSION.into());
    match agent::Agent::new(options, config.reexec, rpc::read(input), wire).serve() {
        agent::Stop::Exit(code) => code,
        agent::Stop::Io(error) => fail(1, &error),
    }
}

fn fail(code: i32, error: &dyn std::fmt::Display) -> i32 {
    // There is nobody to tell if this fails too.
    let _ = writeln!(io::stderr(), "fake-agent: {error}");
    code
}
