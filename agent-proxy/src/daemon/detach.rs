//! Start of a daemon in the background: in a session of its own, with a log file, off every terminal.

use std::{
    ffi::OsString,
    io::{self, Read, Seek, SeekFrom},
    path::PathBuf,
    time::Duration,
};

use ipc_protocol::{ExitStatus, Signal};
use proxy_server::{ProblemDetails, ProgramExit, api::HealthResponse};
use registry::{PidFd, SpawnOutput, SpawnRequest};
use serde_json::json;
use tokio::time::{Instant, interval, sleep_until};

use super::{log_file::LogFile, socket::prepare_directory};
use crate::{
    args::ServeArgs, client::DaemonClient, command_failure::CommandFailure, process_exit::ProcessExit,
    socket_path::SocketPath, term,
};

/// Flag that starts a daemon in the background. The daemon itself is started without it.
const DETACH_FLAG: &str = "--detach";
/// Flag that has a daemon stay in the foreground.
const FOREGROUND_FLAG: &str = "--detach=false";
/// Flag with the log file.
const LOG_FLAG: &str = "--log-file";
/// Longest time for the daemon to answer: it first ends what a crash of another one left.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Time after which the wait is explained.
const PATIENCE: Duration = Duration::from_secs(2);
/// Interval between two attempts to reach the daemon.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Longest part of the log that a failure is explained from, in bytes.
const MAX_REASON: u64 = 4096;

/// What a daemon in the background is started with.
#[derive(Debug)]
pub(crate) struct DaemonProgram {
    /// Program and arguments that become this program; none for this program itself.
    pub(crate) wrapper: Vec<OsString>,
    /// Arguments, the program's name included.
    pub(crate) argv: Vec<OsString>,
    /// The whole environment.
    pub(crate) env: Vec<(OsString, OsString)>,
    /// Working directory; this process's own by default.
    pub(crate) cwd: Option<PathBuf>,
    /// Log file, where arguments or configuration name one; else one is made beside the socket.
    pub(crate) log: Option<PathBuf>,
}

/// Daemon that answers.
#[derive(Debug)]
pub(crate) struct StartedDaemon {
    pub(crate) pid: u32,
    pub(crate) log: PathBuf,
    /// Addresses of the network that it answers on, as URLs.
    addresses: Vec<String>,
    pub(crate) process: PidFd,
}

/// Reason why a daemon does not run.
#[derive(Debug)]
pub(crate) struct StartFailure {
    pub(crate) problem: ProblemDetails,
    /// Exit code for it.
    pub(crate) exit: ProgramExit,
}

impl From<ProblemDetails> for StartFailure {
    fn from(problem: ProblemDetails) -> Self {
        Self { exit: problem.exit(), problem }
    }
}

/// Starts the daemon in the background, and returns once it answers. Prints its pid.
///
/// # Errors
/// Same as [`start`].
pub(super) async fn serve(args: &ServeArgs, socket: &SocketPath, as_json: bool) -> Result<(), CommandFailure> {
    let (argv, env) = (std::env::args_os().collect(), std::env::vars_os().collect());
    let program = DaemonProgram { wrapper: Vec::new(), argv, env, cwd: None, log: args.log_file.clone() };
    let StartedDaemon { pid, log, addresses, .. } = start(program, socket, as_json).await?;
    if as_json {
        return term::json(&json!({ "pid": pid, "socket": socket.path, "log": log, "addresses": addresses }));
    }
    for address in addresses {
        term::error_line(format_args!("listening on {address}"));
    }
    term::error_line(format_args!(
        "listening on {}, log in {}; `agent-proxy stop` ends it",
        socket.path.display(),
        log.display()
    ));
    term::line(pid)
}

/// Starts a daemon in the background, and returns once it answers. Reports a failure.
///
/// # Errors
/// Same as [`try_start`].
pub(crate) async fn start(
    program: DaemonProgram,
    socket: &SocketPath,
    as_json: bool,
) -> Result<StartedDaemon, CommandFailure> {
    let started = tokio::select! {
        started = try_start(program, socket, as_json) => started,
        _ = tokio::signal::ctrl_c() => return Err(CommandFailure::Exit(ProgramExit::Interrupted)),
    };
    started.map_err(|StartFailure { problem, exit }| {
        term::problem(&problem, as_json);
        CommandFailure::Exit(exit)
    })
}

/// Starts a daemon in the background, and returns once it answers. Explains a long wait unless `is_quiet`.
///
/// # Errors
/// The daemon's own, from its log; `deadline` when it does not answer in time. No daemon is left then.
pub(crate) async fn try_start(
    program: DaemonProgram,
    socket: &SocketPath,
    is_quiet: bool,
) -> Result<StartedDaemon, StartFailure> {
    if let Some(why) = socket.unusable() {
        return Err(ProblemDetails::new("unusable-socket", why).into());
    }
    let log = log_file(&program, socket)?;
    let file = log.open()?;
    let begin = file.metadata().map_or(0, |found| found.len());
    // Whatever ends this function early ends the daemon too.
    let daemon = StartingDaemon(Some(spawn(program, &log, &file)?));
    let Some(process) = &daemon.0 else { return Err(ProblemDetails::failed("starting the daemon failed").into()) };
    let pid = process.id().pid;
    match wait(process, socket, is_quiet).await? {
        StartResult::Answers(health) => {
            let addresses = health.daemon.map(|daemon| daemon.addresses).unwrap_or_default();
            Ok(StartedDaemon { pid, log: log.path().to_owned(), addresses, process: daemon.keep()? })
        }
        StartResult::Exited(exit) => {
            daemon.keep()?;
            Err(start_failure(exit, &log, begin))
        }
        StartResult::Late => {
            let detail = format!(
                "the daemon (process {pid}) did not answer on {} within {START_TIMEOUT:?}, and was ended: see {}",
                socket.path.display(),
                log.path().display()
            );
            Err(ProblemDetails::new("deadline", detail).into())
        }
    }
}

/// Returns the log: as named, else beside the socket.
fn log_file(program: &DaemonProgram, socket: &SocketPath) -> Result<LogFile, ProblemDetails> {
    if let Some(path) = &program.log {
        return LogFile::new(path);
    }
    prepare_directory(socket)?;
    LogFile::new(&socket.path.with_extension("log"))
}

/// Starts this program with the arguments of a daemon, but in the foreground of a session of its own.
fn spawn(program: DaemonProgram, log: &LogFile, file: &std::fs::File) -> Result<PidFd, ProblemDetails> {
    let failed = |error: io::Error| ProblemDetails::failed(format!("starting the daemon failed: {error}"));
    let DaemonProgram { wrapper, argv, env, cwd, log: named } = program;
    let is_detach_flag = |arg: &OsString| {
        let bytes = arg.as_encoded_bytes();
        bytes.strip_prefix(DETACH_FLAG.as_bytes()).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"="))
    };
    let mut argv: Vec<OsString> = argv.into_iter().filter(|arg| !is_detach_flag(arg)).collect();
    // Whatever variables and file say.
    argv.push(FOREGROUND_FLAG.into());
    if named.is_none() {
        argv.extend([LOG_FLAG.into(), log.path().into()]);
    }
    let own = std::env::current_exe().map_err(failed)?;
    let (program, argv) = match wrapper.first() {
        Some(first) => {
            let own = std::iter::once(own.into_os_string());
            (first.clone(), wrapper.iter().cloned().chain(own).chain(argv.into_iter().skip(1)).collect())
        }
        None => (own.into_os_string(), argv),
    };
    let output = || file.try_clone().map(|file| SpawnOutput::Fd(file.into())).map_err(failed);
    let request = SpawnRequest { argv, env, cwd, stdout: output()?, stderr: output()?, ..SpawnRequest::new(program) };
    let spawned = registry::spawn(request);
    Ok(spawned.map_err(|error| failed(io::Error::other(error)))?.process)
}

/// Result of a daemon's start.
#[derive(Debug)]
enum StartResult {
    Answers(Box<HealthResponse>),
    Exited(ExitStatus),
    Late,
}

async fn wait(process: &PidFd, socket: &SocketPath, is_quiet: bool) -> Result<StartResult, ProblemDetails> {
    let failed = |error: io::Error| ProblemDetails::failed(format!("waiting for the daemon failed: {error}"));
    let pid = process.id().pid;
    let exited = ProcessExit::of(process).map_err(failed)?;
    let client = DaemonClient::new(socket.clone());
    let begin = Instant::now();
    let (explain, late) = (sleep_until(begin + PATIENCE), sleep_until(begin + START_TIMEOUT));
    let (mut explain, mut late) = (std::pin::pin!(explain), std::pin::pin!(late));
    let (mut poll, mut is_explained) = (interval(POLL_INTERVAL), is_quiet);
    loop {
        tokio::select! {
            biased;
            ended = exited.wait() => {
                ended.map_err(failed)?;
                let exit = process.try_reap().map_err(failed)?;
                return Ok(StartResult::Exited(exit.unwrap_or(ExitStatus::Code(1))));
            }
            () = &mut late => return Ok(StartResult::Late),
            () = &mut explain, if !is_explained => {
                is_explained = true;
                term::error_line(format_args!("waiting for the daemon (process {pid}) to answer"));
            }
            _ = poll.tick() => {
                // Another daemon may have the socket: then ours exits, and says so.
                let health: Result<HealthResponse, _> = client.get("/v1/health").await;
                if let Ok(health) = health && health.pid == pid {
                    return Ok(StartResult::Answers(Box::new(health)));
                }
            }
        }
    }
}

/// Daemon that nobody else knows yet. Dropping it ends it.
struct StartingDaemon(Option<PidFd>);

impl StartingDaemon {
    /// Lets it run, if it does still.
    fn keep(mut self) -> Result<PidFd, ProblemDetails> {
        self.0.take().ok_or_else(|| ProblemDetails::failed("starting the daemon failed"))
    }
}

impl Drop for StartingDaemon {
    fn drop(&mut self) {
        if let Some(daemon) = &self.0 {
            // Fails only if it is gone.
            let _ = daemon.signal(Signal::Int);
        }
    }
}

/// Returns the reason why the daemon did not start, as it wrote it to its log, and its exit code.
fn start_failure(exit: ExitStatus, log: &LogFile, begin: u64) -> StartFailure {
    let written = log.open().and_then(|mut file| {
        let mut text = Vec::new();
        let end = file.seek(SeekFrom::End(0)).unwrap_or(begin);
        let read = file.seek(SeekFrom::Start(begin.max(end.saturating_sub(MAX_REASON))));
        let read = read.and_then(|_| file.take(MAX_REASON).read_to_end(&mut text));
        read.map_err(|error| ProblemDetails::failed(format!("reading the log failed: {error}")))?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    });
    let text = written.unwrap_or_else(|problem| problem.detail);
    let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let code = match exit {
        ExitStatus::Code(code) => ProgramExit::from_code(code).unwrap_or(ProgramExit::Failed),
        ExitStatus::Signal(_) => ProgramExit::Failed,
    };
    // An error of several lines says at its beginning where, and at its end what.
    let first = text.lines().rev().find_map(|line| line.strip_prefix("error: "));
    let reason = match (serde_json::from_str::<ProblemDetails>(last), first) {
        (Ok(problem), _) => return StartFailure { problem, exit: code },
        (Err(_), Some(reason)) if last.ends_with(reason) => reason.to_owned(),
        (Err(_), Some(reason)) => format!("{reason}: {last}"),
        (Err(_), None) if last.is_empty() => exit.to_string(),
        (Err(_), None) => format!("{exit}, after {last}"),
    };
    let reason = term::printable(&reason, false);
    let detail = format!("the daemon did not start: {reason}; its log is {}", log.path().display());
    StartFailure { problem: ProblemDetails::failed(detail), exit: code }
}
