//! Texts of the library's errors for people who use the command line: they name commands and flags, where the
//! library names its fields.

use ipc_protocol::ErrorChain;

use crate::{error::Error, session_store::SessionStatus};

/// Fields of the library's configuration, and the flags that set them.
const FLAGS: &[(&str, &str)] = &[
    ("command", "command after `--`"),
    ("cwd", "--cwd"),
    ("env", "--env"),
    ("agent", "--agent"),
    ("profile", "--profile"),
    ("home", "--home"),
    ("permissions", "rule of --allow, --deny or --ask"),
    ("agentSandbox", "--agent-sandbox"),
    ("sandbox", "--sandbox, --read or --write"),
    ("workspace", "--workspace"),
    ("container", "--mount or --engine"),
    ("container.image", "--container"),
    ("container.mounts", "--mount"),
    ("container.engine", "--container"),
    ("containment", "--containment"),
    ("network", "--network"),
    ("resume.from", "--resume"),
    ("resume.onMissing", "--on-missing or --history"),
    ("onHostDeath", "--on-host-death"),
    ("state directory", "--state-dir"),
    ("sessionId", "--id"),
    ("key", "--key"),
    ("title", "--title"),
    ("tag", "--tag"),
    ("tags", "--tag"),
    ("userId", "--user"),
    ("workspaceId", "--workspace-label"),
    ("agentType", "--type"),
    ("endpoint", "--endpoint"),
    ("homeCopy", "--home-copy"),
    ("hardening.landlock", "--landlock"),
    ("maxPrompts", "--max-prompts"),
    ("modelConfig", "--model-config"),
    ("surface", "--surface"),
    ("terminal.record", "--record"),
    ("budget.inputTokens", "--max-input-tokens"),
    ("budget.outputTokens", "--max-output-tokens"),
    ("budget.totalTokens", "--max-tokens"),
    ("budget.costUsd", "--max-cost"),
    ("lifecycle.afterEnd", "--after-end"),
    ("lifecycle.beforeStart", "--before-start"),
    ("lifecycle.replace", "--replace"),
    ("lifecycle.restart", "--restart"),
    ("limits", "--limit"),
    ("limits.memoryBytes", "--limit memory="),
    ("limits.processes", "--limit pids="),
    ("limits.cpuTimeMs", "--limit cpu-time="),
    ("limits.cpuPercent", "--limit cpu="),
    ("limits.openFiles", "--limit open-files="),
    ("limits.fileSizeBytes", "--limit file-size="),
    ("limits.wallClockMs", "--limit wall-clock="),
    ("timeouts.firstResponseMs", "--timeout first="),
    ("timeouts.inactivityMs", "--timeout inactivity="),
    ("timeouts.turnMs", "--timeout turn="),
    ("timeouts.toolMs", "--timeout tool="),
    ("timeouts.silenceMs", "--timeout silence="),
    ("timeouts.silenceRepeatMs", "--timeout repeat="),
];

/// Words of the library's reasons, and those of the command line.
const WORDS: &[(&str, &str)] = &[
    (
        "set PATH in the `env` of the session, or for all in `ManagerBuilder::base_env`",
        "set it with --env PATH=…, or for all in the daemon's environment",
    ),
    ("null stops a clock", "`off` stops a clock"),
    ("give a max_turns of 1 or more", "give --max-turns of 1 or more"),
    (
        "a session can only outlive its host where the manager has a state directory: give it one",
        "a session can only outlive a daemon with a state directory: start it with `serve --state-dir DIR`",
    ),
    ("name a state directory", "start the daemon with `serve --state-dir DIR`"),
    ("name another state directory", "name another --state-dir"),
    ("on_missing", "--on-missing"),
    ("modelConfig.key", "the key of its --model-config"),
    ("ask for full access by name (`none`)", "ask for full access with --agent-sandbox none"),
    ("(`agentSandbox`: `none`)", "(`--agent-sandbox none`)"),
    ("name a model configuration", "name a model configuration with --model-config"),
    ("leave this out", "leave --home out"),
    ("choose another id, or leave it out for a fresh one", "choose another --id, or leave --id out for a fresh one"),
    ("or choose another id", "or choose another --id"),
    ("the managers", "the daemons"),
    ("the manager", "the daemon"),
    ("another manager", "another daemon"),
    ("that a manager", "that a daemon"),
    ("give it a home of its own", "give it --home own"),
];

/// Formats an error and its causes for the command line.
pub fn error_text(error: &Error) -> String {
    match error {
        Error::UnknownSession { session } => {
            format!("no session {session}: `agent-proxy sessions --all` lists those there are")
        }
        Error::DuplicateSession { session, status: SessionStatus::Ended } => format!(
            "session {session} has ended and keeps its id: `agent-proxy delete {session}`, `start --replace`, or choose \
             another --id"
        ),
        Error::DuplicateSession { session, status } if status.is_live() => format!(
            "session {session} exists already and runs: `agent-proxy kill {session}` ends it, or choose another --id"
        ),
        Error::DuplicateSession { session, status: SessionStatus::Suspended } => format!(
            "session {session} exists already and is suspended: `agent-proxy resume {session}`, or choose another --id"
        ),
        Error::NotEnded { session } => {
            format!("session {session} has not ended: `agent-proxy kill {session}` ends it")
        }
        Error::UnknownWorkspace { session } => {
            format!("session {session} has no workspace: `agent-proxy workspaces` lists those there are")
        }
        Error::WorkspaceUnapplied { session, files } => {
            let files = if *files == 1 { "1 file that is".to_owned() } else { format!("{files} files that are") };
            format!(
                "the workspace of session {session} has {files} not applied: `agent-proxy diff {session}` shows it, `apply` or `drop` \
                 settles it, --force deletes it too"
            )
        }
        Error::WorkspaceConflict { session, source_tree, paths, message } => format!(
            "the changes of session {session} do not fit {source_tree}, which has changed since at {}, and nothing was applied: undo or \
             move these there, or apply the output of `agent-proxy diff {session}` by hand",
            words(&if paths.is_empty() { message.trim().to_owned() } else { paths.join(", ") })
        ),
        Error::Suspended { session } => {
            format!("session {session} is suspended: `agent-proxy resume {session}` goes on with it")
        }
        Error::SecretsMissing { session, names } => format!(
            "session {session} was started with {}, which is kept nowhere: give the same again to `agent-proxy resume \
             {session}` (--env K=V, --mcp FILE, --endpoint URL), or `--env K=` to do without; `start --not-secret NAME` \
             has a value kept; the key of a model configuration comes from `agent-proxy models`",
            words(&names.join(", "))
        ),
        Error::HandedOver { session } => format!(
            "session {session} was handed over: whoever has it uses the agent itself; `agent-proxy take-back {session}` \
             goes on with it here"
        ),
        Error::UnknownProcess { session, pid } => {
            format!("session {session} has no process {pid}: `agent-proxy ps {session}` lists those it has")
        }
        Error::UnknownPrompt { session, offset } => {
            format!(
                "session {session} has no prompt {offset} that waits: `agent-proxy queue {session}` lists those that do"
            )
        }
        Error::InvalidConfig { field: "state_dir", reason } => words(reason),
        Error::InvalidConfig { field, reason } => format!("invalid {}: {}", flag(field), words(reason)),
        Error::StateDirInUse { directory, owner } => {
            format!("state directory {directory:?} is in use by {owner}: stop that daemon, or name another --state-dir")
        }
        Error::CwdMissing { cwd, reason } => {
            format!("working directory {cwd:?} cannot be used ({reason}): create it, or name another with --cwd")
        }
        Error::ChildUnusable { child, reason } => {
            format!(
                "{child:?} cannot be started again as its own fork server: {reason}; was it replaced or moved while it ran?"
            )
        }
        Error::Busy { session, permission: Some(request) } => format!(
            "session {session} is waiting for {request}: `agent-proxy permit {session} {request}` answers it, or `prompt \
             --queue` or `prompt --steer`"
        ),
        Error::Busy { session, permission: None } => format!(
            "session {session} is busy: wait for the end of its turn, `prompt --queue` or `prompt --steer`, or `agent-proxy \
             abort {session}`"
        ),
        Error::MaxPrompts { session, max_prompts } => {
            format!("session {session} has taken its {max_prompts} prompts (`start --max-prompts`): start another one")
        }
        Error::TooManySessions { .. } => {
            format!("{}; `serve --max-sessions`, --max-per-user and --max-per-agent set the limits", ErrorChain(error))
        }
        Error::BudgetExceeded { session, exceeded } => format!(
            "session {session} has used up its budget, {exceeded}: start another one, with another --max-tokens or --max-cost"
        ),
        Error::Draining => {
            "the daemon is about to end: what runs may finish, nothing new begins; ask the next daemon".to_owned()
        }
        Error::Unsupported { agent, operation } => format!("agent {agent:?} cannot {}", words(operation)),
        Error::NativeSessionMissing { agent, id, reason } => format!(
            "agent {agent:?} cannot go on with conversation {id:?}: {}; begin a new one with --on-missing new, or with \
             --history FILE",
            words(reason)
        ),
        Error::NativeSessionBusy { agent, id, session, manager } => {
            let owner = manager.map_or_else(String::new, |pid| format!(" of another agent-proxy (process {pid})"));
            format!(
                "conversation {id:?} of agent {agent:?} is open in session {session}{owner}: end that first, or go on with a \
                 copy (--fork)"
            )
        }
        Error::HomeBusy { session } => format!(
            "session {session} runs in a home of its own, in which a second agent would get in its way: `agent-proxy suspend \
             {session}` or let it end, then use --fork"
        ),
        Error::TooDeep { .. } => format!("{}; `serve --max-depth` sets the bound", ErrorChain(error)),
        Error::ContainmentUnavailable { containment, reason } => format!(
            "--containment {containment} cannot be had here: {}; `agent-proxy doctor` says what can",
            words(reason)
        ),
        Error::ForkServerDied => {
            "the fork server has died, and its sessions were ended: try again, another one is being started".to_owned()
        }
        Error::VersionMismatch { ours, theirs } => format!(
            "this program speaks protocol version {ours} and the one on disk {theirs}: it was replaced while it ran; start \
             the daemon again"
        ),
        Error::ShutDown | Error::RuntimeEnded { .. } => "agent-proxy is ending, and its sessions with it".to_owned(),
        other => words(&ErrorChain(other).to_string()),
    }
}

/// Returns the flag that sets a field.
fn flag(field: &str) -> &str {
    FLAGS.iter().find(|(known, _)| *known == field).map_or(field, |(_, flag)| flag)
}

/// Replaces the library's words in a reason, and the fields that it quotes.
fn words(reason: &str) -> String {
    let text = WORDS.iter().fold(reason.to_owned(), |text, (library, here)| text.replace(library, here));
    // A single word may be quoted for something else.
    let is_field = |name: &str| name.contains(|c: char| c == '.' || c.is_ascii_uppercase());
    let fields = FLAGS.iter().filter(|(field, _)| is_field(field));
    fields.fold(text, |text, (field, flag)| text.replace(&format!("`{field}`"), &format!("`{flag}`")))
}

#[cfg(test)]
mod tests {
    use std::{
        path::{Path, PathBuf},
        time::Duration,
    };

    use ipc_protocol::{
        BudgetAction, BudgetExceeded, BudgetKind, Containment, ErrorCause, KillCause, Receipt, SessionId,
    };

    use super::*;
    use crate::error::SessionBound;

    /// One of each kind that a command can end with.
    fn errors() -> Vec<Error> {
        let session: SessionId = "s-1".parse().expect("a valid id");
        let (agent, text) = (|| "pi".to_owned(), |text: &str| text.to_owned());
        let s = || session.clone();
        let invalid = |field, reason: &str| Error::InvalidConfig { field, reason: reason.to_owned() };
        let exceeded =
            BudgetExceeded { budget: BudgetKind::Cost, value: 1, measured: 2, action: BudgetAction::RefusePrompts };
        vec![
            Error::DuplicateSession { session: s(), status: SessionStatus::Ended },
            Error::DuplicateSession { session: s(), status: SessionStatus::Suspended },
            Error::DuplicateSession { session: s(), status: SessionStatus::Idle },
            Error::UnknownSession { session: s() },
            Error::NotEnded { session: s() },
            Error::UnknownWorkspace { session: s() },
            Error::WorkspaceBusy { session: s() },
            Error::CommandFailed { session: s(), outcome: "exit code 1".into(), output: String::new(), exited: true },
            Error::WorkspaceUnapplied { session: s(), files: 2 },
            Error::WorkspaceConflict {
                session: s(),
                source_tree: "/work".into(),
                paths: vec!["a".into()],
                message: String::new(),
            },
            Error::Suspended { session: s() },
            Error::NotSuspended { session: s() },
            Error::SecretsMissing { session: s(), names: vec![text("API_KEY"), text("modelConfig.key")] },
            Error::HandedOver { session: s() },
            Error::UnknownProcess { session: s(), pid: 7 },
            Error::UnknownAgent { agent: agent(), known: vec![text("codex")] },
            Error::UnknownProfile { profile: text("p"), known: Vec::new() },
            Error::UnknownModel { model: text("m"), known: Vec::new() },
            Error::UnknownPermission { session: s(), id: text("r"), reason: text("it is not open") },
            invalid("cwd", "\"x\" is no absolute path"),
            invalid("command", "an argument holds a NUL byte"),
            invalid("env", "agent \"pi\" needs KEY: set it, or name a model configuration"),
            invalid("agentSandbox", "install it, or ask for full access by name (`none`)"),
            invalid("resume.onMissing", "a history is too long"),
            invalid("resume.from", "a conversation has an id"),
            invalid("home", "the conversation of session s-1 is in the shared home: leave this out"),
            invalid("state_dir", "events of all sessions have one order where they are kept: name a state directory"),
            invalid(
                "onHostDeath",
                "a session can only outlive its host where the manager has a state directory: give it one",
            ),
            invalid("permissions", "rule 1 matches nothing"),
            invalid("type", "only the manager appends events of type \"log\": choose a type of your own"),
            invalid("prompt", "it has no part: say something"),
            Error::StateDirInUse { directory: "/x".into(), owner: text("process 7") },
            Error::ProgramNotFound { program: text("pi"), searched: text("/bin"), install: None },
            Error::ProgramNotFound { program: text("pi"), searched: text(ipc_protocol::EMPTY_PATH), install: None },
            Error::ProgramNotFound {
                program: text("pi"),
                searched: text("/bin"),
                install: Some(text("npm install pi")),
            },
            Error::CwdMissing { cwd: text("/x"), reason: text("no such file") },
            Error::ChildUnusable { child: text("/x"), reason: text("it closed its connection") },
            Error::FdsExhausted { operation: text("starting") },
            Error::Busy { session: s(), permission: None },
            Error::Busy { session: s(), permission: Some(text("permission-1")) },
            Error::MaxPrompts { session: s(), max_prompts: 2 },
            Error::TooManySessions { bound: SessionBound::Total, limit: 2, waiting: 0, waited: None },
            Error::BudgetExceeded { session: s(), exceeded },
            Error::Draining,
            Error::Unsupported {
                agent: agent(),
                operation: text("answer a prompt without a turn: give a max_turns of 1 or more"),
            },
            Error::NativeSessionMissing { agent: agent(), id: text("n"), reason: text("it is not there") },
            Error::NativeSessionBusy { agent: agent(), id: text("n"), session: s(), manager: Some(7) },
            Error::HomeBusy { session: s() },
            Error::AgentRefused { agent: agent(), reason: text("no login") },
            Error::TooDeep { depth: 4, max: 3 },
            Error::ContainmentUnavailable { containment: Containment::Strict, reason: text("no user namespaces") },
            Error::Deadline { operation: text("starting the agent"), after: Duration::from_secs(30) },
            Error::AgentDied { session: s(), reason: text("exit code 1") },
            Error::ProxyDied { session: s(), reason: text("SIGKILL") },
            Error::ForkServerDied,
            Error::Ended { session: s(), reason: text("killed") },
            Error::VersionMismatch { ours: 1, theirs: 2 },
            Error::Protocol { source: ErrorCause::new("a line that is no JSON") },
            Error::Survivors(Box::new(Receipt::begin(s(), KillCause::KillSession))),
            Error::ShutDown,
            Error::RuntimeEnded { operation: text("starting a session") },
            Error::System { operation: text("forking"), source: ErrorCause::new("out of memory") },
        ]
    }

    #[test]
    fn no_error_speaks_of_the_library() {
        for error in errors() {
            let text = error_text(&error);
            for word in ["manager", "builder", "run_if_child", "::", "notSecret", "mcpServers", "this out"] {
                assert!(!text.contains(word), "{word}: {text}");
            }
            let is_field = |word: &str| {
                let snake = word.contains('_') && !word.contains(|c: char| c.is_ascii_uppercase());
                let camel = word.starts_with(|c: char| c.is_ascii_lowercase())
                    && word.contains(|c: char| c.is_ascii_uppercase());
                snake || camel
            };
            let mut words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            assert_eq!(words.find(|word| is_field(word)), None, "a name of the library: {text}");
        }
    }

    /// Sources of the library without their tests, each with its path: not what makes texts for the command line.
    fn sources() -> Vec<(PathBuf, String)> {
        let mut directories = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
        let mut sources = Vec::new();
        while let Some(directory) = directories.pop() {
            for entry in std::fs::read_dir(directory).expect("a directory of sources") {
                let path = entry.expect("an entry").path();
                let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                if path.is_dir() && name != "tests" {
                    directories.push(path);
                } else if name.ends_with(".rs") && !["error_text.rs", "problem.rs", "tests.rs"].contains(&name) {
                    let text = std::fs::read_to_string(&path).expect("text");
                    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
                    let code = code.lines().filter(|line| !line.trim_start().starts_with("//"));
                    sources.push((path, code.collect::<Vec<_>>().join("\n")));
                }
            }
        }
        assert!(sources.len() > 50, "{sources:?}");
        sources
    }

    #[test]
    fn no_error_of_the_library_speaks_of_the_command_line() {
        for error in errors() {
            assert!(!error.chain().contains("--"), "{error}");
        }
        // Flags of other programs are arguments, and stand in quotes of their own.
        for (path, code) in sources() {
            for (at, _) in code.match_indices("--") {
                let (before, after) = (&code[..at], &code[at + 2..]);
                let is_flag = before.ends_with(['`', '(', ' ']) && after.starts_with(|c: char| c.is_ascii_lowercase());
                let line = before.lines().last().unwrap_or_default().to_owned()
                    + "--"
                    + after.lines().next().unwrap_or_default();
                assert!(!is_flag, "{}: {}", path.display(), line.trim());
            }
        }
    }

    /// Fields of what has no flag: of calls, of the builder, and of the daemon.
    const NO_FLAG: [&str; 14] = [
        "configuration",
        "kill",
        "links",
        "message",
        "metadata",
        "payload",
        "prompt",
        "replication",
        "rule",
        "session export",
        "state_dir",
        "type",
        "warm",
        "hidden files",
    ];

    #[test]
    fn every_field_that_an_error_can_name_has_its_flag() {
        let is_field = |name: &str| {
            name.starts_with(|c: char| c.is_ascii_lowercase())
                && name.chars().all(|c| c.is_ascii_alphabetic() || "._ ".contains(c))
                && name.split(' ').count() < 3
        };
        let mut fields = std::collections::BTreeSet::new();
        for (_, code) in sources() {
            for lead in ["field: \"", "invalid(\"", "refuse(\"", "FIELD: &str = \""] {
                let named = code.split(lead).skip(1).filter_map(|rest| rest.split('"').next());
                fields.extend(named.filter(|name| is_field(name)).map(str::to_owned));
            }
            // Parts of a configuration, wherever they are named.
            let parts = code.split('"').filter(|text| {
                text.split_once('.')
                    .is_some_and(|(part, _)| ["budget", "lifecycle", "limits", "timeouts"].contains(&part))
            });
            fields.extend(parts.filter(|name| is_field(name)).map(str::to_owned));
        }
        assert!(
            fields.len() > 30 && fields.contains("timeouts.turnMs") && fields.contains("terminal.record"),
            "{fields:?}"
        );
        let unknown: Vec<_> = fields
            .iter()
            .filter(|field| !NO_FLAG.contains(&field.as_str()) && !FLAGS.iter().any(|(known, _)| known == field))
            .collect();
        assert!(unknown.is_empty(), "neither in FLAGS nor in NO_FLAG: {unknown:?}");
        assert_eq!(words("leave `lifecycle.restart` out"), "leave `--restart` out");
    }

    #[test]
    fn errors_name_the_command_or_flag_that_helps() {
        let s = || "s-1".parse().expect("a valid id");
        for (error, part) in [
            (Error::NotEnded { session: s() }, "`agent-proxy kill s-1`"),
            (Error::Suspended { session: s() }, "`agent-proxy resume s-1`"),
            (Error::HandedOver { session: s() }, "`agent-proxy take-back s-1`"),
            (Error::UnknownProcess { session: s(), pid: 7 }, "`agent-proxy ps s-1`"),
            (Error::Busy { session: s(), permission: None }, "--queue"),
            (
                Error::Busy { session: s(), permission: Some("permission-1".into()) },
                "`agent-proxy permit s-1 permission-1`",
            ),
            (Error::InvalidConfig { field: "cwd", reason: "x".into() }, "invalid --cwd: x"),
            (Error::InvalidConfig { field: "agentSandbox", reason: "x".into() }, "--agent-sandbox"),
            (Error::SecretsMissing { session: s(), names: vec!["K".into()] }, "--not-secret"),
        ] {
            let text = error_text(&error);
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
