//! Completion of the command line: a shell's script asks the program, which knows ids, agents, profiles and models.

use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use api_types::{InstalledAgent, ProblemDetails, SessionInfo, SessionState, WorkspaceInfo};
use clap::{Arg, Command, ValueHint};
use clap_complete::{
    CompleteEnv,
    engine::{ArgValueCandidates, ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter as _},
};
use ipc_protocol::{Event, LimitKind, SessionId};
use serde_json::Value;

use crate::{
    args,
    client::DaemonClient,
    daemon_address::{AddressFlags, DaemonAddress},
    engine,
    term::{clip, printable},
};

/// Environment variable by which the shell's script asks. Its value is the shell.
pub(crate) const VARIABLE: &str = "AGENT_PROXY_COMPLETE";

/// Longest wait for the daemon. Without an answer the shell gets no ids, and no message.
const DEADLINE: Duration = Duration::from_secs(2);

/// Longest help beside a value, in characters.
const WIDTH: usize = 60;

/// Answers the shell that asks for completions, and exits. Returns if none does.
pub(crate) fn answer() {
    CompleteEnv::with_factory(command).var(VARIABLE).bin("agent-proxy").complete();
}

/// Builds the command line with a source for each value that can be completed. Flags are offered for a word that
/// begins with `-`, or where there is nothing else.
fn command() -> Command {
    let is_flag = current_word().is_some_and(|word| word.as_encoded_bytes().starts_with(b"-"));
    let command = with_sources(args::command(), "", !is_flag);
    match ProgramWord::current() {
        Some(word) => with_program(command, word),
        None => command,
    }
}

/// Word behind `--`, of a program and its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProgramWord {
    /// The program itself.
    Command,
    Argument,
}

impl ProgramWord {
    /// Finds out which one is completed; `None` before `--`.
    fn current() -> Option<Self> {
        let words = words();
        let at = current_index(&words)?;
        Self::at(&words, at)
    }

    fn at(words: &[OsString], at: usize) -> Option<Self> {
        let dashes = words.iter().take(at).position(|word| word == "--")?;
        let named = flag(words, "--agent");
        let is_command = named.is_none_or(|agent| ANY_PROGRAM.iter().any(|any| agent == *any));
        Some(if at == dashes + 1 && is_command { Self::Command } else { Self::Argument })
    }

    fn candidates(self, word: &OsStr) -> Vec<CompletionCandidate> {
        let is_path = word.as_encoded_bytes().contains(&b'/');
        match self {
            Self::Command if is_path => {
                PathCompleter::any().filter(|path| path.is_dir() || is_executable(path)).complete(word)
            }
            Self::Command => programs(word),
            Self::Argument => PathCompleter::any().complete(word),
        }
    }
}

/// Agents that are any program: behind `--` it stands with its arguments. To those of another agent they are added.
const ANY_PROGRAM: [&str; 2] = ["acp", "command"];
/// Arguments that are a program with its own.
const PROGRAM_ARGUMENTS: [&str; 2] = ["argv", "command"];

/// Completes each positional argument of the commands that start a program as a word of that. The engine does not skip those before `--`.
fn with_program(command: Command, word: ProgramWord) -> Command {
    let is_program = |arg: &Arg| {
        arg.is_positional()
            && PROGRAM_ARGUMENTS.contains(&arg.get_id().as_str())
            && (arg.is_last_set() || arg.is_trailing_var_arg_set())
    };
    let starts_one = command.get_arguments().any(is_program);
    let completer = ArgValueCompleter::new(move |current: &OsStr| word.candidates(current));
    let command =
        command.mut_args(|arg| if starts_one && arg.is_positional() { arg.add(completer.clone()) } else { arg });
    command.mut_subcommands(|below| with_program(below, word))
}

/// Programs in the caller's `PATH` that begin with these letters.
fn programs(start: &OsStr) -> Vec<CompletionCandidate> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let entries = std::env::split_paths(&path).filter_map(|directory| directory.read_dir().ok()).flatten().flatten();
    let begins = |name: &OsString| name.as_encoded_bytes().starts_with(start.as_encoded_bytes());
    let named: BTreeSet<OsString> = entries
        .filter(|entry| begins(&entry.file_name()) && is_executable(&entry.path()))
        .map(|entry| entry.file_name())
        .collect();
    named.into_iter().map(CompletionCandidate::new).collect()
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

fn with_sources(command: Command, parent: &str, hide_flags: bool) -> Command {
    let name = command.get_name().to_owned();
    let command = command.mut_args(|arg| with_source(arg, &name, parent, hide_flags));
    let command = command.mut_subcommands(|below| with_sources(below, &name, hide_flags));
    if hide_flags { command.disable_help_flag(true).disable_version_flag(true) } else { command }
}

fn with_source(arg: Arg, command: &str, parent: &str, hide_flags: bool) -> Arg {
    let arg = if hide_flags && !arg.is_positional() { arg.hide(true) } else { arg };
    let is_directory = arg.get_value_names().is_some_and(|names| names.iter().any(|name| *name == "DIR"));
    match ValueSource::of(&arg, command, parent) {
        Some(source) => arg.add(ArgValueCandidates::new(move || source.candidates())),
        None if is_directory => arg.value_hint(ValueHint::DirPath),
        None => arg,
    }
}

/// Source of an argument's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValueSource {
    /// Ids of the daemon's sessions in one of some states.
    Sessions(SessionChoice),
    /// Ids of sessions with a workspace, of the daemon's and of those that ran in a terminal.
    Workspaces,
    /// Open permission requests of the session that the line names.
    PermissionRequests,
    Agents,
    Profiles,
    ModelConfigs,
    /// Models that profiles, model configurations and running sessions name.
    Models,
    /// Variables of the caller's environment.
    Variables,
    /// Kinds of limits, each up to its value.
    Limits,
    EventTypes,
    /// Commands of this program.
    Commands,
    /// Fixed words.
    Words(&'static [&'static str]),
}

/// Sessions that a command can be for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SessionChoice {
    Any,
    Live,
    Suspended,
    /// Not running: suspended or ended.
    Stopped,
}

impl SessionChoice {
    fn of(command: &str) -> Self {
        match command {
            "resume" | "take-back" => Self::Suspended,
            "delete" => Self::Stopped,
            "ps" | "wait" | "prompt" | "attach" | "abort" | "kill" | "permit" | "steer" | "set" | "compact"
            | "state" | "suspend" | "native" | "queue" | "ask" => Self::Live,
            _ => Self::Any,
        }
    }

    fn includes(self, state: &SessionState) -> bool {
        let is_suspended = matches!(state, SessionState::Suspended { .. });
        let is_stopped = is_suspended || matches!(state, SessionState::Ended { .. });
        match self {
            Self::Any => true,
            // A prompt resumes a suspended session, and a kill ends it.
            Self::Live => is_suspended || !is_stopped,
            Self::Suspended => is_suspended,
            Self::Stopped => is_stopped,
        }
    }
}

impl ValueSource {
    /// Finds the source by the argument's name and place; `None` for free text, and for what clap completes itself.
    fn of(arg: &Arg, command: &str, parent: &str) -> Option<Self> {
        let id = arg.get_id().as_str();
        if arg.is_positional() {
            return match (parent, command, id) {
                (_, "diff" | "apply" | "drop", "id") => Some(Self::Workspaces),
                (_, _, "id" | "ids") => Some(Self::Sessions(SessionChoice::of(command))),
                (_, "ask", "question") => Some(Self::Sessions(SessionChoice::Live)),
                (_, "permit", "request") => Some(Self::PermissionRequests),
                (_, "permit", "answer") => Some(Self::Words(&["allow", "deny"])),
                ("profiles", "show" | "change" | "delete", "name") => Some(Self::Profiles),
                ("models", "show" | "delete", "name") => Some(Self::ModelConfigs),
                (_, "append", "kind") => Some(Self::Words(&ACTIONS)),
                (_, "help", _) => Some(Self::Commands),
                _ => None,
            };
        }
        match (command, arg.get_long()?) {
            (_, "agent") => Some(Self::Agents),
            (_, "profile") => Some(Self::Profiles),
            (_, "model-config") => Some(Self::ModelConfigs),
            (_, "model") => Some(Self::Models),
            (_, "env" | "key-env") => Some(Self::Variables),
            (_, "format") => Some(Self::Words(&["table", "json", "jsonl"])),
            (_, "mode") => Some(Self::Words(&["build", "plan"])),
            (_, "thinking") => Some(Self::Words(&["off", "low", "medium", "high"])),
            (_, "limit") => Some(Self::Limits),
            ("events", "type") => Some(Self::EventTypes),
            ("sessions", "status") => Some(Self::Words(&["starting", "idle", "busy", "suspended", "ended"])),
            ("kill", "signal") => Some(Self::Words(&["TERM", "KILL"])),
            _ => None,
        }
    }

    fn candidates(self) -> Vec<CompletionCandidate> {
        match self {
            Self::Words(words) => words.iter().map(CompletionCandidate::new).collect(),
            Self::Commands => {
                let commands = args::command();
                let about = |command: &Command| command.get_about().map(ToString::to_string).unwrap_or_default();
                commands.get_subcommands().map(|command| candidate(command.get_name(), &about(command))).collect()
            }
            Self::EventTypes => Event::kinds().iter().map(CompletionCandidate::new).collect(),
            Self::Sessions(choice) => {
                let sessions = sessions().into_iter().filter(|session| choice.includes(&session.state));
                sessions.map(|session| candidate(session.metadata.session_id.as_str(), &summary(&session))).collect()
            }
            Self::Workspaces => {
                let mut workspaces = engine::workspaces::list();
                let of_daemon: Option<Vec<WorkspaceInfo>> =
                    ask_daemon(async |client| client.get("/v1/workspaces").await);
                workspaces.extend(of_daemon.unwrap_or_default());
                workspaces.iter().map(|found| candidate(found.session_id.as_str(), &found.source)).collect()
            }
            Self::PermissionRequests => permission_requests(),
            Self::Agents => named(&configured_names().agents),
            Self::Profiles => named(&configured_names().profiles),
            Self::ModelConfigs => named(&configured_names().model_configs),
            Self::Models => models(),
            Self::Limits => {
                let kinds = LimitKind::ALL.iter();
                kinds.map(|(_, name)| CompletionCandidate::new(format!("{name}="))).collect()
            }
            Self::Variables => {
                let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
                names.filter(|name| name != "_" && !name.starts_with("_CLAP")).map(CompletionCandidate::new).collect()
            }
        }
    }
}

/// Types of events that make a session act.
const ACTIONS: [&str; 5] = [
    "agent:action:abort:called",
    "agent:action:permission-respond:called",
    "agent:action:prompt:called",
    "agent:action:send-user-message:called",
    "agent:action:steer:called",
];

fn candidate(value: &str, help: &str) -> CompletionCandidate {
    let help = clip(&printable(help, false), WIDTH);
    CompletionCandidate::new(value).help((!help.is_empty()).then(|| help.into()))
}

fn summary(session: &SessionInfo) -> String {
    let state = match session.state {
        SessionState::Starting => "starting",
        SessionState::Idle => "idle",
        SessionState::Busy { .. } => "busy",
        SessionState::Suspended { .. } => "suspended",
        SessionState::Ended { .. } => "ended",
    };
    format!("{}, {state}, {}", session.metadata.agent, session.metadata.cwd)
}

fn config_dir() -> Option<PathBuf> {
    flag(&words(), "--config-dir").map(PathBuf::from)
}

/// Names in a configuration, each with what it is.
#[derive(Debug, Default)]
pub(crate) struct ConfiguredNames {
    /// Agents.
    pub(crate) agents: Vec<(String, String)>,
    /// Profiles.
    pub(crate) profiles: Vec<(String, String)>,
    /// Model configurations.
    pub(crate) model_configs: Vec<(String, String)>,
    /// Models that profiles and model configurations name.
    pub(crate) models: Vec<String>,
}

/// Returns the names in the configuration of this machine or, where a build has none, of the daemon.
fn configured_names() -> ConfiguredNames {
    engine::configured_names(config_dir().as_deref()).or_else(names_of_daemon).unwrap_or_default()
}

fn names_of_daemon() -> Option<ConfiguredNames> {
    let (agents, profiles, models) = ask_daemon(async |client| {
        let agents: Vec<InstalledAgent> = client.get("/v1/agents").await?;
        let profiles: Vec<Value> = client.get("/v1/profiles").await?;
        let models: Vec<Value> = client.get("/v1/models").await?;
        Ok((agents, profiles, models))
    })?;
    let text = |of: &Value, member: &str| of[member].as_str().map(str::to_owned);
    let named = |of: &Value, about: &str| Some((text(of, "name")?, text(of, about).unwrap_or_default()));
    Some(ConfiguredNames {
        agents: agents.into_iter().filter(|agent| agent.enabled).map(|agent| (agent.id, agent.title)).collect(),
        profiles: profiles.iter().filter_map(|profile| named(profile, "description")).collect(),
        model_configs: models.iter().filter_map(|model| named(model, "provider")).collect(),
        models: models.iter().chain(&profiles).filter_map(|one| text(one, "model")).collect(),
    })
}

fn named(rows: &[(String, String)]) -> Vec<CompletionCandidate> {
    rows.iter().map(|(name, help)| candidate(name, help)).collect()
}

fn models() -> Vec<CompletionCandidate> {
    let mut models: Vec<String> = sessions().into_iter().filter_map(|session| session.settings.model).collect();
    models.extend(configured_names().models);
    models.sort_unstable();
    models.dedup();
    models.into_iter().map(CompletionCandidate::new).collect()
}

fn sessions() -> Vec<SessionInfo> {
    ask_daemon(async |client| client.get("/v1/sessions").await).unwrap_or_default()
}

/// Finds the requests without an answer of the session that is named before.
fn permission_requests() -> Vec<CompletionCandidate> {
    let words = words();
    let id = words.iter().skip_while(|word| *word != "permit").nth(1).and_then(|word| word.to_str());
    let Some(Ok(id)) = id.map(str::parse::<SessionId>) else { return Vec::new() };
    let session: Option<SessionInfo> = ask_daemon(async |client| client.get(&format!("/v1/sessions/{id}")).await);
    let requests = session.map(|session| session.open_permissions).unwrap_or_default();
    requests.iter().map(|request| candidate(&request.id, &request.title)).collect()
}

/// Asks the daemon; `None` if none answers in time, or with something else.
fn ask_daemon<T>(question: impl AsyncFnOnce(&DaemonClient) -> Result<T, ProblemDetails>) -> Option<T> {
    let words = words();
    let [socket, url, token_file, config_dir] =
        ["--socket", "--url", "--token-file", "--config-dir"].map(|name| flag(&words, name));
    let flags = AddressFlags {
        socket: socket.as_deref().map(Path::new),
        url: url.as_deref().and_then(OsStr::to_str),
        token_file: token_file.as_deref().map(Path::new),
        config_dir: config_dir.as_deref().map(Path::new),
    };
    let client = DaemonClient::new(DaemonAddress::find(flags).ok()?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let answer = runtime.block_on(async { tokio::time::timeout(DEADLINE, question(&client)).await });
    answer.ok()?.ok()
}

/// Returns the words of the line that the shell completes.
fn words() -> Vec<OsString> {
    std::env::args_os().skip_while(|arg| arg != "--").skip(1).collect()
}

/// Returns the word that is completed. Shells say which it is; fish sends none after it.
fn current_word() -> Option<OsString> {
    let words = words();
    current_index(&words).and_then(|at| words.get(at).cloned())
}

fn current_index(words: &[OsString]) -> Option<usize> {
    let index = std::env::var("_CLAP_COMPLETE_INDEX").ok().and_then(|index| index.parse().ok());
    index.or_else(|| words.len().checked_sub(1))
}

/// Returns the value of a flag on the line.
fn flag(words: &[OsString], name: &str) -> Option<OsString> {
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let words = &words[..end];
    let joined = |word: &OsString| word.to_str()?.strip_prefix(name)?.strip_prefix('=').map(OsString::from);
    let apart = words.iter().position(|word| word == name).and_then(|at| words.get(at + 1)).cloned();
    apart.or_else(|| words.iter().find_map(joined))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent_with_and_without_flags() {
        for hide_flags in [false, true] {
            with_sources(args::command(), "", hide_flags).debug_assert();
            with_program(with_sources(args::command(), "", hide_flags), ProgramWord::Command).debug_assert();
        }
    }

    #[cfg(feature = "engine")]
    #[test]
    fn values_have_their_sources() {
        let command = with_sources(args::command(), "", false);
        let has_source = |path: &[&str], id: &str| {
            let command = path.iter().fold(&command, |command, name| command.find_subcommand(name).expect("there"));
            let arg = command.get_arguments().find(|arg| arg.get_id() == id).expect("there");
            arg.get::<ArgValueCandidates>().is_some()
        };
        for (path, id) in [
            (&["prompt"][..], "id"),
            (&["permit"], "request"),
            (&["run"], "agent"),
            (&["start"], "profile"),
            (&["profiles", "change"], "name"),
            (&["models", "delete"], "name"),
            (&["run"], "model_config"),
        ] {
            assert!(has_source(path, id), "{path:?} {id}");
        }
        assert!(!has_source(&["start"], "id"), "a new name");
        assert!(!has_source(&["models", "create"], "name"), "a new name");
    }

    #[test]
    fn words_behind_the_dashes() {
        let at = |line: &str| {
            // The word behind a blank at the end is empty.
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            ProgramWord::at(&words, words.len() - 1)
        };
        for (line, expected) in [
            ("agent-proxy leaktest ca", None),
            ("agent-proxy leaktest --", None),
            ("agent-proxy leaktest -- ", Some(ProgramWord::Command)),
            ("agent-proxy leaktest -- ca", Some(ProgramWord::Command)),
            ("agent-proxy leaktest -- cat fi", Some(ProgramWord::Argument)),
            ("agent-proxy run --agent command hello -- ca", Some(ProgramWord::Command)),
            ("agent-proxy run --agent=codex -- fi", Some(ProgramWord::Argument)),
            ("agent-proxy start --profile x -- -- fi", Some(ProgramWord::Argument)),
        ] {
            assert_eq!(at(line), expected, "{line}");
        }
    }

    #[test]
    fn flags_on_the_line() {
        let words = |line: &str| line.split_whitespace().map(OsString::from).collect::<Vec<_>>();
        for (line, expected) in [
            ("agent-proxy --socket /a kill", Some("/a")),
            ("agent-proxy kill --socket=/b", Some("/b")),
            ("agent-proxy start -- x --socket /c", None),
            ("agent-proxy kill --socket", None),
        ] {
            assert_eq!(flag(&words(line), "--socket"), expected.map(OsString::from), "{line}");
        }
    }
}
