//! `log`: the file that sessions and events are kept in, looked at without a daemon.

use std::path::{Path, PathBuf};

use ipc_protocol::ErrorChain;
use proxy_manager::{Inspection, LogError, SessionRecord, check_log, salvage_log};

use crate::{
    args::{LogArgs, LogCommand},
    exit::Exit,
    problem::{Failure, Problem},
    term,
};

/// Name of the log in a state directory.
const FILE: &str = "log.sqlite";

/// Looks at the file, or salvages what is whole in it.
pub(super) fn run(args: &LogArgs, as_json: bool) -> Result<(), Failure> {
    match &args.command {
        LogCommand::Check { path } => {
            let found = check_log(&file(path), &is_record).map_err(|error| failed(path, &error))?;
            tell(&found, "damaged", as_json)?;
            if found.damage.is_empty() { Ok(()) } else { Err(Failure::Exit(Exit::Failed)) }
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

fn failed(path: &Path, error: &LogError) -> Problem {
    match error {
        LogError::Missing { .. } => Problem::new("unknown-log", format!("there is no event log at {}", path.display())),
        error => Problem::new("log", ErrorChain(error).to_string()),
    }
}

/// Returns whether the daemon would understand a record.
fn is_record(text: &str) -> Result<(), String> {
    serde_json::from_str::<SessionRecord>(text).map(drop).map_err(|error| format!("it is not understood: {error}"))
}

fn tell(found: &Inspection, what: &str, as_json: bool) -> Result<(), Failure> {
    if as_json {
        return term::json(found);
    }
    let Inspection { streams, rows, events, records, damage } = found;
    term::line(format_args!("whole: {records} records, {streams} streams with {events} events in {rows} rows"))?;
    for damage in damage {
        term::line(format_args!("{what}: {}", term::for_stdout(&damage.to_string())))?;
    }
    Ok(())
}
