//! The command of the hooks: records one report.
//!
//! It must not disturb the agent, which waits for it: it prints nothing, exits with 0, and takes a second at most.

use std::{
    io::{self, Read},
    process::ExitCode,
    sync::mpsc,
    thread,
    time::Duration,
};

use agents::events_of_report;
use ipc_protocol::MARKER;
use proxy_manager::SESSION_MARKER;
use serde::Deserialize;

use super::outside_log::OutsideLog;

/// First arguments of the command. They are not in the help: only hooks use them.
const WORDS: [&str; 2] = ["hooks", "record"];
/// Longest time that it takes.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Most bytes of a report.
const MAX_REPORT: u64 = 32 << 20;

/// Runs the command, if the arguments are its.
pub(crate) fn record_report(args: &[std::ffi::OsString]) -> Option<ExitCode> {
    let is_one = args.len() > WORDS.len() && WORDS.iter().zip(&args[1..]).all(|(word, arg)| arg == word);
    if !is_one {
        return None;
    }
    let agent = args.get(3).and_then(|agent| agent.to_str()).map(str::to_owned);
    std::panic::set_hook(Box::new(|_| {}));
    let (done, waits) = mpsc::channel();
    thread::spawn(move || {
        // There is nobody to be told: the agent would show it to its user at each report.
        let _ = record(agent.as_deref());
        let _ = done.send(());
    });
    let _ = waits.recv_timeout(TIMEOUT);
    Some(ExitCode::SUCCESS)
}

/// What each report has.
#[derive(Deserialize)]
struct ReportHead {
    session_id: String,
    cwd: Option<String>,
}

fn record(agent: Option<&str>) -> io::Result<()> {
    // What our sessions do is in their own events.
    let is_ours = [MARKER, SESSION_MARKER].iter().any(|name| std::env::var_os(name).is_some());
    if is_ours || agent != Some("claude-code") {
        return Ok(());
    }
    let mut report = Vec::new();
    io::stdin().lock().take(MAX_REPORT).read_to_end(&mut report)?;
    let ReportHead { session_id, cwd } = serde_json::from_slice(&report)?;
    let id = session_id.parse().map_err(io::Error::other)?;
    let log = OutsideLog::of_user("claude-code").ok_or(io::ErrorKind::NotFound)?;
    log.append(&id, cwd.as_deref(), events_of_report(&report))
}
