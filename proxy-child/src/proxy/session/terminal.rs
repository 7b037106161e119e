//! Terminal of a session: its viewers and what the session is told of it.

use std::time::Instant;

use ipc_protocol::{EndReason, Event, KillOptions, TERMINAL_INPUT_DROPPED, message::FromProxy, terminal::OnDetach};
use registry::PidFd;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::ProxySession;
use crate::{
    proxy::link::HostLink,
    terminal::{Terminal, TerminalNotice},
};

/// Signals that a process handles or ignores, in `/proc/PID/status`.
const SIGNAL_MASKS: [&str; 2] = ["SigIgn:", "SigCgt:"];

impl ProxySession<'_> {
    pub(crate) fn terminal(&self) -> Option<&Terminal> {
        self.running.as_ref().and_then(|running| running.terminal.as_ref())
    }

    /// Returns the time until which the end of the program waits for the terminal's first viewer.
    pub(super) fn first_viewer_due(&self) -> Option<Instant> {
        self.terminal().and_then(Terminal::first_viewer_due)
    }

    /// Handles what the terminals have to tell.
    pub(crate) fn handle_terminal_notices(&mut self, link: &mut HostLink) {
        let mut events = self.handle_shells();
        self.handle_ended_hooks(link);
        let (mut statuses, mut titles) = (Vec::new(), Vec::new());
        for notice in self.terminal().map(Terminal::take_notices).unwrap_or_default() {
            match &notice {
                TerminalNotice::Detached { last: true, .. } => {
                    if self.running.as_ref().is_some_and(|running| running.on_detach == OnDetach::End) {
                        self.end(EndReason::Killed, KillOptions::default());
                    }
                }
                TerminalNotice::Suspend => self.suspend_leader(),
                TerminalNotice::Continue => self.signal_leader(Signal::CONT),
                TerminalNotice::Attached { .. }
                | TerminalNotice::Detached { .. }
                | TerminalNotice::Status(_)
                | TerminalNotice::InputDropped => {}
                TerminalNotice::Title(title) => titles.push(title.clone()),
            }
            let event = notice_event(&notice);
            if let Some(Event::TerminalStatus { status, .. }) = &event {
                statuses.push(status.clone());
            }
            events.extend(event);
        }
        for event in events {
            link.send(&FromProxy::Event { turn: self.turn.unwrap_or(0), event });
        }
        if let Some(running) = &mut self.running {
            let mut actions = Vec::new();
            statuses.iter().for_each(|status| running.adapter.terminal_status(status, &mut actions));
            titles.iter().for_each(|title| running.adapter.terminal_title(title, &mut actions));
            self.apply_actions_and_report(actions, link);
        }
    }

    /// Tells the adapter of the hooks that have ended.
    fn handle_ended_hooks(&mut self, link: &mut HostLink) {
        let Some(running) = &mut self.running else { return };
        let mut actions = Vec::new();
        running.hooks.take_ended().into_iter().for_each(|id| running.adapter.hook_ended(id, &mut actions));
        self.apply_actions_and_report(actions, link);
    }

    fn suspend_leader(&self) {
        let Some(running) = self.running.as_ref().filter(|running| running.exited.is_none()) else { return };
        if let (Some(terminal), Some(agent)) = (&running.terminal, &running.agent) {
            suspend(terminal, &agent.process);
        }
    }

    pub(super) fn signal_leader(&self, signal: Signal) {
        let Some(running) = self.running.as_ref().filter(|running| running.exited.is_none()) else { return };
        if let Some(agent) = &running.agent {
            signal_group(&agent.process, signal);
        }
    }

    /// Tells whoever types if the program has stopped itself.
    pub(super) fn check_stopped(&self) {
        let Some(running) = self.running.as_ref().filter(|running| running.exited.is_none()) else { return };
        let (Some(terminal), Some(agent)) = (&running.terminal, &running.agent) else { return };
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        if let Ok(Some(status)) = waitid(WaitId::PidFd(std::os::fd::AsFd::as_fd(&agent.process)), options)
            && status.stopped()
        {
            terminal.stopped();
        }
    }
}

/// Returns the event of what a terminal has to tell.
pub(super) fn notice_event(notice: &TerminalNotice) -> Option<Event> {
    match notice {
        TerminalNotice::Attached { viewer, size } => {
            Some(Event::TerminalAttached { viewer: *viewer, rows: size.rows, columns: size.columns })
        }
        TerminalNotice::Detached { viewer, .. } => Some(Event::TerminalDetached { viewer: *viewer }),
        TerminalNotice::Status(status) => {
            let (status, detail) = parse_status(status)?;
            Some(Event::TerminalStatus { status, detail })
        }
        TerminalNotice::InputDropped => {
            let detail =
                "the program does not read what is typed: more than 1 MiB waits, and what came then was dropped";
            Some(Event::SessionStatus { status: TERMINAL_INPUT_DROPPED.to_owned(), detail: detail.to_owned() })
        }
        TerminalNotice::Title(_) | TerminalNotice::Suspend | TerminalNotice::Continue => None,
    }
}

/// Stops a terminal's program, as the key that suspends does in a shell: the kernel does not, since no shell waits to continue
/// it. A program that handles the signal itself is left to it.
pub(super) fn suspend(terminal: &Terminal, program: &PidFd) {
    let pid = program.id().pid;
    let in_foreground = terminal.foreground().and_then(|group| u32::try_from(group).ok());
    if in_foreground == Some(pid) && !handles(pid, Signal::TSTP) {
        signal_group(program, Signal::STOP);
    }
}

/// Signals the process group of a program that this process has started and not reaped: the number is its own.
pub(super) fn signal_group(program: &PidFd, signal: Signal) {
    if let Some(group) = i32::try_from(program.id().pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, signal);
    }
}

/// Returns true if a process handles or ignores a signal.
fn handles(pid: u32, signal: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let masks = status.lines().filter_map(|line| {
        let mask = SIGNAL_MASKS.iter().find_map(|name| line.strip_prefix(name))?;
        u64::from_str_radix(mask.trim(), 16).ok()
    });
    masks.fold(0, |all, mask| all | mask) & 1 << (signal.as_raw() - 1) != 0
}

/// Most characters of a status report's parts.
const MAX_STATUS: usize = 200;

/// Parses a report of the program status protocol: `state=NAME` and details, with colons between them; the name may carry one.
fn parse_status(report: &[u8]) -> Option<(String, Option<String>)> {
    let report = String::from_utf8_lossy(report);
    let state = report.split([':', ';']).find_map(|part| part.strip_prefix("state="))?;
    let clean = |text: &str| text.chars().filter(|c| !c.is_control()).take(MAX_STATUS).collect::<String>();
    let message = report.split([':', ';']).find_map(|part| part.strip_prefix("msg="));
    let detail = message.map(|message| match decode_base64(message) {
        Some(text) => clean(&text),
        None => clean(message),
    });
    Some((clean(state), detail.filter(|detail| !detail.is_empty())))
}

fn decode_base64(text: &str) -> Option<String> {
    use base64::Engine as _;
    let bytes = base64::engine::general_purpose::STANDARD.decode(text).ok()?;
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_reports_are_parsed() {
        let parsed = |text: &str| parse_status(text.as_bytes());
        assert_eq!(parsed("state=idle"), Some(("idle".into(), None)));
        let blocked = "state=blocked:kind=permission:msg=YXBwcm92ZSBCYXNo";
        assert_eq!(parsed(blocked), Some(("blocked".into(), Some("approve Bash".into()))));
        assert_eq!(parsed("state=a\u{7}b;msg=not base64\u{1b}[2J"), Some(("ab".into(), Some("not base64[2J".into()))));
        assert_eq!(parsed("nothing"), None);
    }
}
