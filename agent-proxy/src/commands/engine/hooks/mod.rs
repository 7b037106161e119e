//! Command `hooks`: records what agents do outside our sessions, by hooks in their user's own settings.

mod hook_settings;
mod outside_log;
mod record;
mod settings_file;

use std::{fmt::Write as _, path::PathBuf, time::Duration};

use proxy_manager::Envelope;
use proxy_server::{ProblemDetails, ProgramExit};
use serde_json::json;

pub(crate) use self::record::record_report;
use self::{
    hook_settings::{HookState, hook_command},
    outside_log::{OutsideLog, StreamSummary},
    settings_file::{SettingsChange, SettingsFile},
};
use crate::{
    args::{HooksAgent, HooksAgentArgs, HooksArgs, HooksCommand, HooksEventsArgs},
    command_failure::CommandFailure,
    render::{self, listing::short_ids},
    term::{self, TermStyle, clip_start},
};

/// Time between two looks for new events.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(100);
/// Columns of a listing beside a conversation's directory.
const OTHER_COLUMNS: usize = 54;

/// Installs or removes hooks, or shows what they have recorded.
pub(super) async fn run(args: HooksArgs, as_json: bool) -> Result<(), CommandFailure> {
    match args.command {
        None | Some(HooksCommand::List) => list(as_json),
        Some(HooksCommand::Install(args)) => install(args, as_json),
        Some(HooksCommand::Uninstall(args)) => uninstall(args, as_json),
        Some(HooksCommand::Events(args)) => events(&args, as_json).await,
    }
}

/// Returns the file with the user's own settings of an agent.
fn settings_path(agent: HooksAgent, given: Option<PathBuf>) -> Result<PathBuf, ProblemDetails> {
    let HooksAgent::ClaudeCode = agent;
    if let Some(path) = given {
        return std::path::absolute(&path)
            .map_err(|error| ProblemDetails::usage(format!("{}: {error}", path.display())));
    }
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = variable("CLAUDE_CONFIG_DIR").or_else(|| Some(variable("HOME")?.join(".claude")));
    let folder = folder.ok_or_else(|| ProblemDetails::usage("HOME is not set: name the file with --settings"))?;
    Ok(folder.join("settings.json"))
}

fn own_command() -> Result<String, ProblemDetails> {
    let program = std::env::current_exe()
        .map_err(|error| ProblemDetails::failed(format!("finding this program's own path failed: {error}")))?;
    let program = program.to_str().ok_or_else(|| ProblemDetails::failed("this program's own path is not UTF-8"))?;
    Ok(hook_command(program))
}

fn install(args: HooksAgentArgs, as_json: bool) -> Result<(), CommandFailure> {
    let path = settings_path(args.agent, args.settings)?;
    let file = SettingsFile::read(&path)?;
    let change = file.install(&own_command()?)?;
    let is_off = file.disables_hooks();
    if as_json {
        let backup = match &change {
            SettingsChange::Written { backup } => backup.as_deref(),
            _ => None,
        };
        return term::json(&json!({
            "agent": args.agent.id(), "settings": path, "changed": change != SettingsChange::Unchanged,
            "backup": backup, "disabled": is_off,
        }));
    }
    let shown = path.display();
    match change {
        SettingsChange::Written { backup: Some(backup) } => {
            term::line(format_args!("hooks added to {shown}\nas it was: {}", backup.display()))?;
        }
        SettingsChange::Written { backup: None } => term::line(format_args!("hooks written to {shown}, a new file"))?,
        _ => term::line(format_args!("the hooks are in {shown} already"))?,
    }
    if is_off {
        term::error_line("they do nothing: \"disableAllHooks\" is true there");
    }
    Ok(())
}

fn uninstall(args: HooksAgentArgs, as_json: bool) -> Result<(), CommandFailure> {
    let path = settings_path(args.agent, args.settings)?;
    let change = SettingsFile::read(&path)?.uninstall()?;
    if as_json {
        let backup = match &change {
            SettingsChange::Removed { backup } => backup.as_deref(),
            _ => None,
        };
        return term::json(&json!({
            "agent": args.agent.id(), "settings": path, "changed": change != SettingsChange::Unchanged,
            "restored": change == SettingsChange::Restored, "backup": backup,
        }));
    }
    let shown = path.display();
    match change {
        SettingsChange::Restored => term::line(format_args!("{shown} is as before the installation")),
        SettingsChange::Removed { backup } => {
            term::line(format_args!("hooks removed from {shown}"))?;
            match backup {
                Some(backup) => term::line(format_args!(
                    "it was changed since; as it was before the installation: {}",
                    backup.display()
                )),
                None => Ok(()),
            }
        }
        _ => term::line(format_args!("no hooks of agent-proxy in {shown}")),
    }
}

fn list(as_json: bool) -> Result<(), CommandFailure> {
    let agent = HooksAgent::ClaudeCode;
    let path = settings_path(agent, None)?;
    let state = SettingsFile::read(&path)?.state(&own_command()?)?;
    let streams = read_streams(agent)?;
    let word = match state {
        HookState::Absent => "no",
        HookState::Partial => "partly",
        HookState::Installed => "yes",
    };
    let at = |time: Option<std::time::SystemTime>| time.map(|time| humantime::format_rfc3339_millis(time).to_string());
    if as_json {
        let streams: Vec<_> = streams
            .iter()
            .map(|stream| {
                json!({
                    "agent": agent.id(), "conversation": stream.id, "directory": stream.directory,
                    "beganAt": at(stream.began), "lastAt": at(stream.last), "events": stream.events,
                })
            })
            .collect();
        let agents = [json!({ "agent": agent.id(), "installed": word, "settings": path })];
        return term::json(&json!({ "agents": agents, "streams": streams }));
    }
    let (style, width) = (TermStyle::stdout(), term::columns());
    let shown = path.display().to_string();
    let shown = width.map_or_else(|| shown.clone(), |width| clip_start(&shown, width.saturating_sub(26)));
    let mut text = render::table(
        style,
        &["AGENT", "INSTALLED", "SETTINGS"],
        &[],
        vec![vec![agent.id().into(), word.into(), shown]],
    );
    if !streams.is_empty() {
        let ids: Vec<&str> = streams.iter().map(|stream| stream.id.as_str()).collect();
        let ids: Vec<String> = match width {
            Some(_) => short_ids(&ids),
            None => ids.into_iter().map(str::to_owned).collect(),
        };
        let rows = ids.into_iter().zip(&streams).map(|(id, stream)| {
            let directory = term::printable(stream.directory.as_deref().unwrap_or("-"), false);
            let directory = match width {
                Some(width) => clip_start(&directory, width.saturating_sub(OTHER_COLUMNS).max(8)),
                None => directory,
            };
            let last = stream.last.map_or_else(|| "-".to_owned(), render::moment);
            vec![id, last, stream.events.to_string(), directory]
        });
        let _ = write!(
            text,
            "\n{}",
            render::table(style, &["CONVERSATION", "LAST", "EVENTS", "DIRECTORY"], &[2], rows.collect())
        );
    }
    term::out(text)
}

fn read_streams(agent: HooksAgent) -> Result<Vec<StreamSummary>, ProblemDetails> {
    let log = log_of(agent)?;
    log.list().map_err(|error| ProblemDetails::failed(format!("reading what was recorded failed: {error}")))
}

fn log_of(agent: HooksAgent) -> Result<OutsideLog, ProblemDetails> {
    OutsideLog::of_user(agent.id()).ok_or_else(|| {
        ProblemDetails::usage("neither XDG_STATE_HOME nor HOME is an absolute path: there is no state directory")
    })
}

async fn events(args: &HooksEventsArgs, as_json: bool) -> Result<(), CommandFailure> {
    let agent = HooksAgent::ClaudeCode;
    let log = log_of(agent)?;
    let streams = read_streams(agent)?;
    let found: Vec<&StreamSummary> = streams.iter().filter(|stream| stream.id.starts_with(&args.id)).collect();
    let id = match (found.iter().find(|stream| stream.id == args.id), &found[..]) {
        (Some(stream), _) | (None, [stream]) => stream.id.clone(),
        (None, []) => {
            let detail = format!("nothing was recorded of a conversation {:?}: agent-proxy hooks list", args.id);
            return Err(ProblemDetails::new("unknown-session", detail).into());
        }
        (None, several) => {
            let detail =
                format!("{} conversations begin with {:?}: write more of the one you mean", several.len(), args.id);
            return Err(ProblemDetails::new("ambiguous-id", detail).into());
        }
    };
    let mut reader = log.reader(&id);
    let style = TermStyle::stdout();
    loop {
        let values =
            reader.read().map_err(|error| ProblemDetails::failed(format!("reading the stream failed: {error}")))?;
        let mut text = String::new();
        for value in values {
            // Writing to a String cannot fail.
            let _ = match Envelope::from_json(value.clone()) {
                Ok(envelope) if !as_json => writeln!(text, "{}", render::event::line(&envelope, style)),
                _ => writeln!(text, "{}", term::json_for_stdout(&value.to_string())),
            };
        }
        term::out(text)?;
        if !args.follow {
            return Ok(());
        }
        tokio::select! {
            () = tokio::time::sleep(FOLLOW_INTERVAL) => {}
            () = term::closed() => return Err(CommandFailure::Closed),
            _ = tokio::signal::ctrl_c() => return Err(CommandFailure::Exit(ProgramExit::Interrupted)),
        }
    }
}
