//! Command `restart`.

use std::{
    ffi::OsString,
    fs,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::PathBuf,
};

use ipc_protocol::ProcessId;
use proxy_server::{
    ProblemDetails,
    api::{HealthResponse, StopRequest},
};
use serde_json::json;

use crate::{
    args::{self, RestartArgs},
    client::DaemonClient,
    command_failure::CommandFailure,
    commands::{sessions::parse, stop},
    daemon::detach::{self, DaemonProgram},
    render, serve_config,
    socket_path::SocketPath,
    term,
};

/// Variable in which systemd names the main process of a service.
const SERVICE_VARIABLE: &str = "SYSTEMD_EXEC_PID";

/// Ends the daemon but for its detached sessions, and starts one with the same flags.
pub(super) async fn run(
    client: &DaemonClient,
    socket: &SocketPath,
    args: &RestartArgs,
    as_json: bool,
) -> Result<(), CommandFailure> {
    let daemon = client.daemon_process().await?;
    let health: HealthResponse = parse(client.get("/v1/health").await?)?;
    let Some(process) = &daemon else {
        return Err(ProblemDetails::failed(format!(
            "the daemon (process {}) cannot be seen from here: stop and start it where it runs",
            health.pid
        ))
        .into());
    };
    let program = RunningProgram::read(process.id())?;
    if program.is_service(process.id()) {
        let advice =
            "`systemctl restart` starts it again; with ExecStop=agent-proxy stop --detach detached sessions live on";
        return Err(ProblemDetails::new("refused", format!("the daemon is a service of systemd: {advice}")).into());
    }
    // What the new one would refuse ends nothing.
    let line = serve_config::complete(program.argv.clone())?;
    args::parse(&line).map_err(|error| ProblemDetails::usage(error.to_string()))?;
    let request = StopRequest { now: args.now, detach: true };
    let (stopped, detached) = stop::end(client, daemon.as_ref(), &request, args.timeout, as_json).await?;
    let log = health.daemon.and_then(|daemon| daemon.log_file);
    let was_in_terminal = log.is_none();
    let program =
        DaemonProgram { wrapper: Vec::new(), argv: program.argv, env: program.env, cwd: Some(program.cwd), log };
    let started = detach::start(program, socket, as_json).await?;
    if as_json {
        term::json(&json!({ "pid": started.pid, "socket": socket.path, "log": started.log, "detached": detached,
            "ended": stopped }))?;
    } else {
        for session in &stopped {
            term::error_line(stop::stopped_line(session, term::TermStyle::stderr()));
        }
        if was_in_terminal {
            term::error_line("it ran in a terminal, and runs in the background now");
        }
        term::error_line(format_args!(
            "listening on {}, log in {}; {} lived on",
            socket.path.display(),
            started.log.display(),
            render::count(detached.len(), "session", "sessions")
        ));
        term::line(started.pid)?;
    }
    match stopped.into_iter().find(|session| !session.receipt.is_empty()) {
        Some(session) => Err(proxy_manager::Error::Survivors(Box::new(session.receipt)).into()),
        None => Ok(()),
    }
}

/// What a daemon was started with.
struct RunningProgram {
    argv: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    cwd: PathBuf,
}

impl RunningProgram {
    /// Reads arguments, environment and directory of a process of this user's.
    fn read(ProcessId { pid, .. }: ProcessId) -> Result<Self, ProblemDetails> {
        let failed = |what: &str, error: std::io::Error| {
            ProblemDetails::failed(format!("reading the {what} of the daemon (process {pid}) failed: {error}"))
        };
        let words = |name: &str| -> std::io::Result<Vec<OsString>> {
            let bytes = fs::read(format!("/proc/{pid}/{name}"))?;
            let bytes = bytes.strip_suffix(b"\0").unwrap_or(&bytes);
            Ok(bytes.split(|byte| *byte == 0).map(|word| OsString::from_vec(word.to_vec())).collect())
        };
        let argv = words("cmdline").map_err(|error| failed("arguments", error))?;
        let env = words("environ").map_err(|error| failed("environment", error))?;
        let cwd = fs::read_link(format!("/proc/{pid}/cwd")).map_err(|error| failed("directory", error))?;
        let pair = |word: OsString| {
            let bytes = word.as_bytes();
            let at = bytes.iter().position(|byte| *byte == b'=')?;
            Some((OsString::from_vec(bytes[..at].to_vec()), OsString::from_vec(bytes[at + 1..].to_vec())))
        };
        Ok(Self { argv, env: env.into_iter().filter_map(pair).collect(), cwd })
    }

    /// Returns true for the main process of a service of systemd, which starts it again itself.
    fn is_service(&self, ProcessId { pid, .. }: ProcessId) -> bool {
        let named = self.env.iter().find(|(name, _)| name == SERVICE_VARIABLE);
        named.is_some_and(|(_, value)| value.to_str().and_then(|value| value.parse().ok()) == Some(pid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_environment_and_directory_of_a_process() {
        let own = registry::identify(std::process::id()).expect("alive");
        let program = RunningProgram::read(own).expect("readable");
        assert_eq!(program.argv, std::env::args_os().collect::<Vec<_>>());
        assert_eq!(program.cwd, std::env::current_dir().expect("there"));
        assert!(program.env.iter().any(|(name, _)| name == "PATH") && !program.is_service(own));
        let service = ("SYSTEMD_EXEC_PID".into(), own.pid.to_string().into());
        assert!(RunningProgram { env: vec![service], ..program }.is_service(own));
    }
}
