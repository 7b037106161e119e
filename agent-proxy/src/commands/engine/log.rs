//! `log`: the file that sessions and events are kept in, looked at without a daemon.

use std::path::{Path, PathBuf};

use ipc_protocol::ErrorChain;
use proxy_manager::{LogError, LogInspection, SessionRecord, check_log, salvage_log};
use proxy_server::{ProblemDetails, ProgramExit};

use crate::{
    args::{LogArgs, LogCommand},
    command_failure::CommandFailure,
    term,
};

/// Name of the log in a state directory.
const FILE: &str = "log.sqlite";

/// Looks at the file, or salvages what is whole in it.
pub(super) fn run(args: &LogArgs, as_json: bool) -> Result<(), CommandFailure> {
    match &args.command {
        LogCommand::Check { path } => {
            let found = check_log(&file(path), &is_record).map_err(|error| failed(path, &error))?;
            tell(&found, "damaged", as_json)?;
            if found.damage.is_empty() { Ok(()) } else { Err(CommandFailure::Exit(ProgramExit::Failed)) }
        }
        LogCommand::Salvage { path, to } => {
            let found = salvage_log(&file(path), to, &is_record).map_err(|error| failed(path, &error))?;
            tell(&found, "not salvaged", as_json)
        }
    }
}

fn file(path: &Path) -> PathBuf {
    if path.is_dir() { path.join(FILE) } else { path.to_owned() }
}

fn failed(path: &Path, error: &LogError) -> ProblemDetails {
    match error {
        LogError::Missing { .. } => {
            ProblemDetails::new("unknown-log", format!("there is no event log at {}", path.display()))
        }
        error => ProblemDetails::new("log", ErrorChain(error).to_string()),
    }
}

/// Returns whether the daemon would understand a record.
fn is_record(text: &str) -> Result<(), String> {
    serde_json::from_str::<SessionRecord>(text).map(drop).map_err(|error| format!("it is not understood: {error}"))
}

fn tell(found: &LogInspection, what: &str, as_json: bool) -> Result<(), CommandFailure> {
    if as_json {
        return term::json(found);
    }
    let LogInspection { streams, rows, events, records, damage } = found;
    term::line(format_args!("whole: {records} records, {streams} streams with {events} events in {rows} rows"))?;
    for damage in damage {
        term::line(format_args!("{what}: {}", term::for_stdout(&damage.to_string())))?;
    }
    Ok(())
}
