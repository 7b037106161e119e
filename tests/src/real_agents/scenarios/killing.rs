//! Kills, with what tools leave.

use std::{fs, io, sync::Arc};

use proxy_manager::{
    AgentSessionConfig, EndReason, Event, ExitStatus, KillOptions, OnAgentExit, ProcessId, Receipt, Signal,
};
use registry::PidFd;
use rustix::fs::{CWD, FileType, Mode};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    net::unix::pipe,
};

use super::{Ran, ensure};
use crate::{
    real_agents::{Failure, Session, Stage, Verdict, session::within},
    system::{sleeping, unique_seconds, with_marker, with_word},
};

/// `./nap SECONDS` sleeps, and says so in the pipe `naps` and by the file `SECONDS` once it really does.
const NAP: &str = r#"#!/bin/sh
{
    until grep -qs sleep /proc/$$/comm; do [ -d /proc/$$ ] || exit; done
    echo "$1" >naps
    : >"$1"
} >/dev/null 2>&1 &
exec sleep "$1"
"#;

/// Tools of a session that sleep.
#[derive(Debug)]
pub(super) struct Naps {
    asleep: Lines<BufReader<pipe::Receiver>>,
    given: Vec<String>,
}

impl Naps {
    /// Puts `nap` into the session's working directory.
    pub(super) fn new(stage: &Stage) -> Result<Self, Failure> {
        Self::make(stage).map_err(|error| Failure::Wrong(format!("making the naps: {error}")))
    }

    fn make(stage: &Stage) -> io::Result<Self> {
        use std::os::unix::fs::PermissionsExt;
        let (nap, pipe) = (stage.work().join("nap"), stage.work().join("naps"));
        fs::write(&nap, NAP)?;
        fs::set_permissions(&nap, fs::Permissions::from_mode(0o755))?;
        rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        // For writing too: no writer then has to wait, and there is no end.
        let pipe = pipe::OpenOptions::new().read_write(true).open_receiver(pipe)?;
        Ok(Self { asleep: BufReader::new(pipe).lines(), given: Vec::new() })
    }

    /// Seconds for a nap: of this one alone.
    pub(super) fn nap(&mut self) -> String {
        let seconds = unique_seconds();
        self.given.push(seconds.clone());
        seconds
    }

    /// Waits until all naps that were given sleep.
    pub(super) async fn all_sleep(&mut self) -> Result<(), Failure> {
        let mut missing = self.given.clone();
        while !missing.is_empty() {
            let line = within(&format!("the naps {missing:?}"), self.asleep.next_line()).await?;
            let line = line.map_err(|error| Failure::Wrong(format!("reading the naps: {error}")))?;
            missing.retain(|seconds| Some(seconds) != line.as_ref());
        }
        Ok(())
    }

    /// Those that sleep now, and for how long.
    fn asleep(&self) -> Vec<(ProcessId, &str)> {
        let pids =
            self.given.iter().flat_map(|seconds| sleeping(seconds).into_iter().map(|pid| (pid, seconds.as_str())));
        pids.filter_map(|(pid, seconds)| Some((registry::identify(pid).ok()?, seconds))).collect()
    }

    /// Waits until the session has told of all those `asleep`. An agent without its input may end a tool at once, and the tool's
    /// shell then takes the end of what it started: of a process that began and ended so, before anybody had looked, there is
    /// nothing to list.
    async fn are_told(session: &mut Session, asleep: &[(ProcessId, &str)]) -> Result<(), Failure> {
        let spawned = |event: &Event| match event {
            Event::ProcessSpawned(process) => Some(process.id),
            _ => None,
        };
        let told: Vec<ProcessId> = session.seen.iter().filter_map(|envelope| spawned(&envelope.event)).collect();
        let mut missing: Vec<ProcessId> = asleep.iter().map(|(id, _)| *id).filter(|id| !told.contains(id)).collect();
        while !missing.is_empty() {
            let id = session.until("the naps' processes", spawned).await?;
            missing.retain(|nap| *nap != id);
        }
        Ok(())
    }

    /// Kills the session: what slept is in the receipt, and nothing is left of it.
    async fn kill(&self, session: &mut Session) -> Result<(), Failure> {
        let asleep = self.asleep();
        let receipt = within("the kill", session.handle.kill(KillOptions::default())).await??;
        self.are_ended(session, &asleep, &receipt)?;
        for (id, seconds) in asleep {
            let entry = receipt.processes.iter().find(|entry| entry.id == id);
            let command = entry.and_then(|entry| entry.command.as_deref()).unwrap_or_default();
            ensure!(command.contains("sleep") && command.contains(seconds), "{id:?} has another command: {receipt:?}");
        }
        session.drain().await
    }

    /// What slept is in the session's receipt, its agent too, and nothing is left of it.
    fn are_ended(&self, session: &Session, asleep: &[(ProcessId, &str)], receipt: &Receipt) -> Result<(), Failure> {
        ensure!(receipt.is_empty(), "the receipt is not empty: {receipt:?}");
        for seconds in &self.given {
            let left = [sleeping(seconds), with_word(seconds)].concat();
            ensure!(left.is_empty(), "sleep {seconds} is left: {left:?}");
        }
        let left = with_marker(session.handle.id().as_str());
        ensure!(left.is_empty(), "{left:?} are left");
        for (id, seconds) in asleep {
            let listed = receipt.processes.iter().any(|entry| entry.id == *id);
            ensure!(listed, "sleep {seconds}, {id:?}, is not in the receipt: {receipt:?}");
        }
        let agent = session.handle.info().processes.agent_process;
        let listed = receipt.processes.iter().any(|entry| Some(entry.id) == agent);
        ensure!(listed, "the agent is not in the receipt: {receipt:?}");
        Ok(())
    }
}

/// Each shell tool is in a session of its own: a kill of the agent's process group never comes to it.
pub(super) async fn trap_tools_are_in_sessions_of_their_own(stage: Arc<Stage>) -> Ran {
    let mut session = stage.session().await?;
    let mut naps = Naps::new(&stage)?;
    let [background, setsid, foreground] = [naps.nap(), naps.nap(), naps.nap()];
    session.begin(format!("shell: ./nap {background} & setsid ./nap {setsid} & ./nap {foreground}")).await?;
    naps.all_sleep().await?;
    for seconds in &naps.given {
        ensure!(sleeping(seconds).len() == 1, "sleep {seconds} does not sleep before the kill");
    }
    naps.kill(&mut session).await?;
    Ok(Verdict::Pass)
}

/// The agent alone is killed in the midst of a tool, and then the session: what the agent left is in the receipt, and nothing is
/// left of it. Claude Code's ACP wrapper leaves the Claude Code that it runs, which goes on; half of them leave the tool.
pub(super) async fn trap_a_nested_agent_outlives_its_wrapper(stage: Arc<Stage>) -> Ran {
    let config = AgentSessionConfig { on_agent_exit: OnAgentExit::Keep, ..stage.config() };
    let mut session = stage.start(config).await?;
    let mut naps = Naps::new(&stage)?;
    let seconds = naps.nap();
    session.begin(format!("shell: ./nap {seconds}")).await?;
    naps.all_sleep().await?;
    let Some(agent) = session.handle.info().processes.agent_process else {
        return Err(session.wrong("the agent is not known"));
    };
    let below = within("the processes", session.handle.processes()).await??;
    let nested: Vec<ProcessId> =
        below.iter().filter(|process| process.ppid == agent.pid).map(|process| process.id).collect();
    let killed = PidFd::open(agent).and_then(|agent| agent.signal(Signal::Kill));
    killed.map_err(|error| format!("killing the agent: {error}"))?;
    session
        .until("the agent's end", |event| {
            matches!(event, Event::SessionStatus { status, .. } if status == "agentExited").then_some(())
        })
        .await?;
    let receipt = within("the kill", session.handle.kill(KillOptions::default())).await??;
    ensure!(receipt.is_empty(), "the receipt is not empty: {receipt:?}");
    let left = [with_marker(session.handle.id().as_str()), with_word(&seconds)].concat();
    ensure!(left.is_empty(), "{left:?} are left");
    if stage.agent.id == "claude-agent-acp" {
        let is_listed = |id: &ProcessId| receipt.processes.iter().any(|entry| entry.id == *id);
        ensure!(nested.iter().any(is_listed), "of the nested {nested:?} none is in {receipt:?}");
        // Beside the one with the turn it may run `claude auth status`, which ends by itself: then the stream says so.
        session.drain().await?;
        let exits: Vec<(ProcessId, Option<ExitStatus>)> = session
            .seen
            .iter()
            .filter_map(|envelope| match &envelope.event {
                Event::ProcessExited { process, exit, .. } => Some((*process, *exit)),
                _ => None,
            })
            .collect();
        for id in nested.iter().filter(|id| !is_listed(id)) {
            let exit = exits.iter().find(|(process, _)| process == id).and_then(|(_, exit)| *exit);
            let line = below.iter().find(|process| process.id == *id);
            let is_own = exit.is_some_and(|exit| exit != ExitStatus::Signal(9));
            ensure!(is_own, "{line:?} is not in {receipt:?}, and its end was told as {exit:?}");
        }
    }
    // The tools of the others have a terminal or a pipe that ends with the agent.
    if ["claude-code", "opencode", "opencode-acp", "claude-agent-acp"].contains(&stage.agent.id) {
        let command = format!("sleep {seconds}");
        let is_listed = receipt.processes.iter().any(|entry| entry.command.as_deref() == Some(&command));
        ensure!(is_listed, "{command} is not in the receipt: {receipt:?}");
    }
    Ok(Verdict::Pass)
}

/// The proxy alone is killed in the midst of a tool. With it the agent's standard input closes, which Claude Code, Gemini and the
/// wrappers do not end of: all of them are in the receipt, and nothing is left.
pub(super) async fn trap_agents_go_on_without_their_input(stage: Arc<Stage>) -> Ran {
    let mut session = stage.session().await?;
    let mut naps = Naps::new(&stage)?;
    let [background, foreground] = [naps.nap(), naps.nap()];
    session.begin(format!("shell: ./nap {background} & ./nap {foreground}")).await?;
    naps.all_sleep().await?;
    let asleep = naps.asleep();
    Naps::are_told(&mut session, &asleep).await?;
    let Some(proxy) = session.handle.info().processes.proxy else {
        return Err(session.wrong("the proxy is not known"));
    };
    let killed = PidFd::open(proxy).and_then(|proxy| proxy.signal(Signal::Kill));
    killed.map_err(|error| format!("killing the proxy: {error}"))?;
    let (reason, receipt) = session
        .until("the session's end", |event| match event {
            Event::SessionEnded { reason, receipt } => Some((reason.clone(), receipt.clone())),
            _ => None,
        })
        .await?;
    ensure!(reason == EndReason::ProxyDied(Some(ExitStatus::Signal(9))), "it ended otherwise: {reason}");
    let Some(receipt) = receipt else { return Err(session.wrong("no receipt")) };
    naps.are_ended(&session, &asleep, &receipt)?;
    Ok(Verdict::Pass)
}

pub(super) async fn background(stage: Arc<Stage>) -> Ran {
    left_behind(&stage, "").await
}

pub(super) async fn setsid(stage: Arc<Stage>) -> Ran {
    left_behind(&stage, "setsid ").await
}

/// A tool that has ended, and a process of it that has not. Some agents end it with the tool.
async fn left_behind(stage: &Stage, how: &str) -> Ran {
    let mut session = stage.session().await?;
    let mut naps = Naps::new(stage)?;
    let seconds = naps.nap();
    let command =
        format!("{how}./nap {seconds} >/dev/null 2>&1 & until [ -e {seconds} ]; do :; done; echo left behind");
    let told = session.ask(format!("shell: {command}")).await?;
    ensure!(told.text.contains("done: left behind"), "the tool did not end: {told:?}");
    naps.all_sleep().await?;
    naps.kill(&mut session).await?;
    Ok(Verdict::Pass)
}
