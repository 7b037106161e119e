//! A host that can be killed: a program that starts itself again with [`HOST`] as its first argument.

use std::{
    collections::BTreeSet,
    io::{Read, Write},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    time::Instant,
};

use proxy_manager::{AgentSessionConfig, Containment, Event, ProcessId, Signal};
use registry::PidFd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{BOUND, arms::builder, wait_readable};
use crate::system::DEADLINE;

/// First argument of a host: `HOST CHILD CONTAINMENT STATE COMMAND…`. It starts one session, with STATE as state
/// directory, and stays until its standard input ends. It prints two lines: `SESSION PID:START PID:START` for the fork server and the proxy, and the member's word.
pub const HOST: &str = "--zoo-host";

/// Who is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    /// The host.
    Host,
    /// The proxy.
    Proxy,
    /// The fork server.
    ForkServer,
}

/// The host's own side.
///
/// # Panics
/// When it cannot do what it is for.
pub fn be_host(args: &[String]) {
    let [child, containment, state, command @ ..] = args else {
        panic!("usage: {HOST} CHILD CONTAINMENT STATE COMMAND…")
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let manager = builder(child).state_dir(state.into()).build().await.expect("a manager");
        let config = AgentSessionConfig {
            command: command.to_vec(),
            containment: Some(containment.parse().expect("a containment")),
            ..AgentSessionConfig::new("command")
        };
        let session = manager.start_session(config).await.expect("started");
        let mut events = session.subscribe();
        let (server, proxy) = (manager.fork_server(), session.info().processes.proxy.expect("it runs"));
        say(&format!("{} {}:{} {}:{}", session.id(), server.pid, server.start_time, proxy.pid, proxy.start_time));
        // What a member says after its word is read too: else it would stand still.
        tokio::spawn(async move {
            let mut told = BTreeSet::new();
            let mut word = None;
            let mut awaited = BTreeSet::new();
            while let Some(envelope) = events.next().await {
                match &envelope.event {
                    Event::ProcessSpawned(info) => {
                        told.insert(info.id);
                        awaited.remove(&info.id);
                    }
                    Event::ProcessExited { process, .. } => drop(awaited.remove(process)),
                    Event::Text { text } if word.is_none() => {
                        word = Some(text.trim_end().to_owned());
                        let listed = tokio::time::timeout(DEADLINE, session.processes()).await;
                        awaited = listed.into_iter().flatten().flatten().map(|info| info.id).collect();
                        awaited.retain(|id| !told.contains(id));
                    }
                    Event::SessionEnded { .. } => {
                        awaited.clear();
                        word.get_or_insert_with(|| "ended".into());
                    }
                    _ => {}
                }
                // By then all of its processes have been told of, and are in the state directory.
                if awaited.is_empty()
                    && let Some(text) = word.as_mut().filter(|text| !text.is_empty())
                {
                    say(&std::mem::take(text));
                }
            }
        });
        let _ = tokio::task::spawn_blocking(|| std::io::stdin().read(&mut [0])).await;
        manager.shutdown().await;
    });
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // Whoever should read it may be gone; then this process is about to end too.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// The other side.
pub struct Host {
    child: Child,
    host: PidFd,
    stdout: ChildStdout,
    session: String,
    fork_server: PidFd,
    proxy: ProcessId,
    /// Open from its killing on: a member that has nothing to do ends its session at once.
    killed_proxy: Option<PidFd>,
}

impl Host {
    /// Starts it and its session. To be called under [`super::STARTING`].
    ///
    /// # Errors
    /// What went wrong.
    #[expect(clippy::disallowed_methods, reason = "the code under test shall not know of it")]
    pub fn start(child: &str, containment: Containment, state: &Path, command: &[String]) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| format!("finding this program: {error}"))?;
        let containment = containment.to_string();
        let mut host = Command::new(program)
            .args([HOST, child, &containment])
            .arg(state)
            .args(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("starting a host: {error}"))?;
        let Some(mut stdout) = host.stdout.take() else { return Err("a host without output".into()) };
        let line = read_line(&mut stdout)?;
        let ids: Vec<_> = line.split(' ').collect();
        let [session, fork_server, proxy] = ids.as_slice() else { return Err(format!("the host said {line:?}")) };
        let open = |text: &str| parse(text).and_then(|id| PidFd::open(id).map_err(|error| format!("{id}: {error}")));
        let process = PidFd::of_child(host.id()).map_err(|error| format!("opening the host: {error}"))?;
        Ok(Self {
            host: process,
            session: (*session).to_owned(),
            fork_server: open(fork_server)?,
            proxy: parse(proxy)?,
            killed_proxy: None,
            child: host,
            stdout,
        })
    }

    /// What the member said first, or `ended`.
    ///
    /// # Errors
    /// When it says nothing in time.
    pub fn word(&mut self) -> Result<String, String> {
        read_line(&mut self.stdout)
    }

    /// Its session's id.
    pub fn session(&self) -> &str {
        &self.session
    }

    /// Sends SIGKILL.
    ///
    /// # Errors
    /// When that fails for one that is alive.
    pub fn sigkill(&mut self, victims: &[Victim]) -> Result<(), String> {
        let proxy = PidFd::open(self.proxy).map_err(|error| format!("opening the proxy: {error}"))?;
        let proxy = &*self.killed_proxy.insert(proxy);
        // The host continues a fork server that is stopped, and that a proxy.
        let mut victims = victims.to_vec();
        victims.sort_by_key(|victim| match victim {
            Victim::Host => 0,
            Victim::ForkServer => 1,
            Victim::Proxy => 2,
        });
        let stopped = victims.iter().map(|victim| (Signal::Stop, victim));
        // The fork server's death does so too.
        let killed = victims.iter().rev().map(|victim| (Signal::Kill, victim));
        // Stopped first: none sees another's death, as if it were at once.
        for (signal, victim) in stopped.chain(killed) {
            let process = match victim {
                Victim::Host => &self.host,
                Victim::Proxy => proxy,
                Victim::ForkServer => &self.fork_server,
            };
            process.signal(signal).map_err(|error| format!("SIG{signal} to the {victim:?}: {error}"))?;
        }
        Ok(())
    }

    /// Waits until all supervisors are dead.
    ///
    /// # Errors
    /// Who is not, [`BOUND`] after `since`.
    pub fn gone(&mut self, since: Instant) -> Result<(), String> {
        let deadline = since + BOUND;
        let proxy = self.killed_proxy.as_ref().map(|process| (process, "proxy"));
        for (process, name) in std::iter::once((&self.fork_server, "fork server")).chain(proxy) {
            if !wait_readable(process, deadline.saturating_duration_since(Instant::now())) {
                return Err(format!("the {name} is alive after {BOUND:?}"));
            }
        }
        self.child.wait().map(drop).map_err(|error| format!("waiting for the host: {error}"))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Nothing to do if it is dead already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn parse(text: &str) -> Result<ProcessId, String> {
    let parsed = text
        .split_once(':')
        .and_then(|(pid, start)| Some(ProcessId { pid: pid.parse().ok()?, start_time: start.parse().ok()? }));
    parsed.ok_or_else(|| format!("{text:?} is no process"))
}

/// Reads a line, byte by byte: nothing beyond it is taken.
fn read_line(from: &mut ChildStdout) -> Result<String, String> {
    let deadline = Instant::now() + DEADLINE;
    let mut line = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let ready = poll(&mut [PollFd::new(&*from, PollFlags::IN)], Timespec::try_from(left).ok().as_ref());
        if !ready.is_ok_and(|ready| ready > 0) {
            return Err(format!(
                "the host said nothing more in {DEADLINE:?} than {:?}",
                String::from_utf8_lossy(&line)
            ));
        }
        let mut byte = [0];
        match from.read(&mut byte) {
            Ok(1) if byte[0] == b'\n' => return Ok(String::from_utf8_lossy(&line).into_owned()),
            Ok(1) => line.push(byte[0]),
            Ok(_) => return Err(format!("the host ended after {:?}", String::from_utf8_lossy(&line))),
            Err(error) => return Err(format!("reading from the host: {error}")),
        }
    }
}
