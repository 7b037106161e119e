//! Servers that are measured, as processes.

use std::{
    ffi::OsString,
    fs,
    io::{BufRead as _, BufReader},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::Child,
    sync::mpsc::sync_channel,
    thread,
    time::{Duration, Instant},
};

use ipc_protocol::{Pid, ProcessId, Signal};
use registry::{MachineProcess, PidFd, machine_processes};
use serde_json::Value;
use tempfile::TempDir;

use super::http::{ApiAddress, ApiConnection};
use crate::{
    error::{Error, Result},
    programs,
    stats::mean_kib,
};

/// Longest time for a server's start.
const START_TIME: Duration = Duration::from_secs(30);
/// Longest time for a server's end, which ends its sessions.
const END_TIME: Duration = Duration::from_secs(60);
/// Pause between two looks at something that comes soon.
const LOOK: Duration = Duration::from_millis(10);
/// Ticks of a process's clock in a second.
const TICKS: f64 = 100.0;

/// Server with a directory of its own. Dropping it ends it, and what it leaves.
pub(super) struct MeasuredServer {
    pub(super) directory: TempDir,
    pub(super) api: ApiAddress,
    child: Child,
}

impl MeasuredServer {
    /// Starts `agent-proxy serve` with a state directory, on a port of loopback.
    ///
    /// # Errors
    /// It does not start.
    pub(super) fn agent_proxy(program: &Path) -> Result<Self> {
        let directory = tempfile::tempdir().map_err(Error::system("making a directory"))?;
        let at = |name: &str| directory.path().join(name);
        let mut environment = environment(directory.path());
        environment.push(("AGENT_PROXY_SOCKET".into(), at("run/daemon.sock").into()));
        environment.push(("AGENT_PROXY_CONFIG_DIR".into(), at("config").into()));
        let args: [OsString; 6] = [
            "serve".into(),
            "--json".into(),
            "--listen".into(),
            "127.0.0.1:0".into(),
            "--state-dir".into(),
            at("state").into(),
        ];
        let mut child = programs::serve(program, &args, &environment, &at("log"))
            .map_err(Error::system(format!("starting {}", program.display())))?;
        let line = first_line(&mut child).ok_or_else(|| {
            let log = fs::read_to_string(at("log")).unwrap_or_default();
            Error::answer("agent-proxy serve", format!("does not announce itself: {log}"))
        })?;
        let announced: Value = serde_json::from_str(&line).unwrap_or_default();
        let address = announced["addresses"][0].as_str().and_then(|address| address.parse().ok());
        let address = address.ok_or_else(|| Error::answer("agent-proxy serve", format!("says {line:?}")))?;
        let token = fs::read_to_string(at("config/token")).map_err(Error::system("reading the token"))?;
        Ok(Self { directory, api: ApiAddress { address, token: Some(token.trim().to_owned()) }, child })
    }

    /// Starts sandbox-agent with `agent` as its agent Pi.
    ///
    /// # Errors
    /// It does not start.
    pub(super) async fn sandbox_agent(program: &Path, agent: &str) -> Result<Self> {
        let directory = tempfile::tempdir().map_err(Error::system("making a directory"))?;
        let bin = directory.path().join("bin");
        fs::create_dir(&bin).map_err(Error::system("making a directory"))?;
        write_script(&bin.join("pi-acp"), agent)?;
        write_script(&bin.join("pi"), "exit 0")?;
        let mut environment = environment(directory.path());
        environment.retain(|(name, _)| name != "PATH");
        let path = std::env::var("PATH").unwrap_or_default();
        environment.push(("PATH".into(), format!("{}:{path}", bin.display()).into()));
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
        let address: SocketAddr = free.map_err(Error::system("finding a free port"))?;
        let args = ["server", "-n", "--no-telemetry", "-p", &address.port().to_string()].map(OsString::from);
        let child = programs::serve(program, &args, &environment, &directory.path().join("log"))
            .map_err(Error::system(format!("starting {}", program.display())))?;
        let server = Self { directory, api: ApiAddress { address, token: None }, child };
        let begin = Instant::now();
        loop {
            let health = async { ApiConnection::open(&server.api).await?.json("GET", "/v1/health", None).await };
            match health.await {
                Ok(_) => return Ok(server),
                Err(error) if begin.elapsed() > START_TIME => return Err(error),
                Err(_) => tokio::time::sleep(LOOK).await,
            }
        }
    }

    /// Pid of the server.
    pub(super) fn pid(&self) -> Pid {
        self.child.id()
    }

    /// Lists the processes below the server.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn below(&self) -> Result<Vec<MachineProcess>> {
        let all = machine_processes(&[]).map_err(Error::system("listing processes"))?;
        let mut known = vec![self.pid()];
        // A parent may come after its child.
        loop {
            let more: Vec<Pid> = all
                .iter()
                .filter(|process| known.contains(&process.ppid) && !known.contains(&process.id.pid))
                .map(|process| process.id.pid)
                .collect();
            if more.is_empty() {
                break;
            }
            known.extend(more);
        }
        Ok(all.into_iter().filter(|process| known[1..].contains(&process.id.pid)).collect())
    }

    /// Supervisors: the server, and of what is below it all that is neither an agent nor started by one.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn supervisors(&self, is_agent: impl Fn(&MachineProcess) -> bool) -> Result<Vec<Pid>> {
        let below = self.below()?;
        let mut agents: Vec<Pid> =
            below.iter().filter(|process| is_agent(process)).map(|process| process.id.pid).collect();
        loop {
            let more: Vec<Pid> = below
                .iter()
                .filter(|process| agents.contains(&process.ppid) && !agents.contains(&process.id.pid))
                .map(|process| process.id.pid)
                .collect();
            if more.is_empty() {
                break;
            }
            agents.extend(more);
        }
        let others = below.iter().map(|process| process.id.pid).filter(|pid| !agents.contains(pid));
        Ok(std::iter::once(self.pid()).chain(others).collect())
    }
}

impl Drop for MeasuredServer {
    /// Ends the server by SIGINT, which ends its sessions, and what is left of them by SIGKILL.
    fn drop(&mut self) {
        let left = self.below().unwrap_or_default();
        if let Ok(server) = registry::identify(self.pid()).and_then(PidFd::open) {
            // Fails only for a server that has ended.
            let _ = server.signal(Signal::Int);
        }
        let begin = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if begin.elapsed() > END_TIME {
                let _ = self.child.kill();
                let _ = self.child.wait();
                break;
            }
            thread::sleep(LOOK);
        }
        left.iter().for_each(|process| end(process.id));
    }
}

/// Ends a process that a server has left.
pub(super) fn end(process: ProcessId) {
    if let Ok(process) = PidFd::open(process) {
        // It may end by itself.
        let _ = process.signal(Signal::Kill);
    }
}

/// Processor time of these processes, in seconds.
///
/// # Errors
/// One of them is gone.
pub(super) fn processor_seconds(pids: &[Pid]) -> Result<f64> {
    let mut total = 0.0;
    for pid in pids {
        let path = format!("/proc/{pid}/stat");
        let text = fs::read_to_string(&path).map_err(Error::system(format!("reading {path}")))?;
        let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields);
        let ticks = fields.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok());
        total += ticks.sum::<f64>() / TICKS;
    }
    Ok(total)
}

/// Anonymous memory of a process, in MiB: processes that map the program's text share its cost, and come and go.
///
/// # Errors
/// It is gone.
pub(super) fn memory_mib(pid: Pid) -> Result<f64> {
    Ok(mean_kib(&[pid], "Pss_Anon:")? / 1024.0)
}

/// Writes a script for the shell.
///
/// # Errors
/// The system's.
pub(super) fn write_script(path: &Path, text: &str) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let written = fs::write(path, format!("#!/bin/sh\n{text}\n"))
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o755)));
    written.map_err(Error::system(format!("writing {}", path.display())))
}

fn environment(home: &Path) -> Vec<(OsString, OsString)> {
    let own: PathBuf = home.into();
    vec![("HOME".into(), own.into()), ("PATH".into(), std::env::var_os("PATH").unwrap_or_default())]
}

/// Returns the first line that a server prints; `None` if it ends without, or takes too long.
fn first_line(child: &mut Child) -> Option<String> {
    let stdout = child.stdout.take()?;
    let (send, line) = sync_channel(1);
    thread::spawn(move || {
        let mut lines = BufReader::new(stdout).lines();
        if let Some(Ok(line)) = lines.next() {
            // Fails where nobody waits any more.
            let _ = send.send(line);
        }
        // Read on, so that the server never writes into a closed pipe.
        lines.for_each(drop);
    });
    line.recv_timeout(START_TIME).ok()
}
