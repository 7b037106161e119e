//! Judgment of which processes of a snapshot are orphans.
//!
//! Pure: a snapshot in, a report out. An orphan is the top of a tree that
//!
//! * lost its parent: init, a user manager (`systemd --user`), the init of a container or another subreaper has adopted it. An
//!   adopter that starts programs itself counts only where the POSIX session shows it: somebody else began it, who is dead;
//! * is an agent, an MCP server or its browser, or carries an agent's variables; or is a shell that runs an agent;
//! * nobody uses: it has no terminal, no terminal or editor is above it, no living agent says that it is its own, it is no
//!   service, no daemon that is meant to live, and nothing of a living session of agent-proxy.
//!
//! What is uncertain about an orphan is said with it ([`OrphanTree::doubt`]).

use std::collections::{BTreeMap, BTreeSet};

use agents::marks::{self, MarkedRole, RecognizedProcess};
use ipc_protocol::{MARKER, Pid, ProcessId};
use proxy_manager::SESSION_MARKER;
use registry::MachineProcess;

use super::known_programs::{
    is_idle_init, is_service_manager, is_session_manager, is_supervisor, is_systemd, is_terminal_host, is_user_program,
};

/// Ancestors that are looked at, more than any honest process has.
const MAX_DEPTH: usize = 1000;

/// Process with what was recognised about it.
#[derive(Clone, Debug)]
pub(super) struct SeenProgram {
    pub(super) process: MachineProcess,
    pub(super) mark: Option<RecognizedProcess>,
}

/// User and process that ask.
#[derive(Clone, Copy, Debug)]
pub(super) struct OrphanViewer {
    pub(super) pid: Pid,
    pub(super) uid: u32,
    /// True to list the orphans of all users.
    pub(super) all_users: bool,
}

/// Kind of an orphan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OrphanKind {
    /// An agent: the id of its row.
    Agent(String),
    /// A shell that runs this agent.
    Wrapper(String),
    /// An MCP server, by its name.
    McpServer(String),
    /// A browser of an MCP server.
    McpBrowser,
    /// Any program that this agent started.
    AgentChild(String),
    /// A process of this session of agent-proxy, whose manager and proxy are dead.
    Session(String),
}

/// Orphan with all that is below it.
#[derive(Clone, Debug)]
pub(super) struct OrphanTree {
    pub(super) root: ProcessId,
    pub(super) kind: OrphanKind,
    /// Agent that started it, if its variables name one.
    pub(super) started_by: Option<String>,
    pub(super) uid: u32,
    /// Process that adopted it, with its name.
    pub(super) adopter: (Pid, String),
    /// Its processes, parents before their children, each with its depth.
    pub(super) members: Vec<(usize, MachineProcess)>,
    /// Reason why it may be in use all the same.
    pub(super) doubt: Option<String>,
}

impl OrphanTree {
    /// Sums up the memory of the tree.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.members.iter().map(|(_, process)| process.memory_bytes).sum()
    }
}

/// Reason why a process that lost its parent is no orphan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SpareReason {
    /// It has a controlling terminal.
    Terminal,
    /// A terminal, multiplexer, remote login or editor above it lives.
    Host(Pid, String),
    /// It shows a terminal itself, or a process below it does.
    ShowsTerminal(Pid, String),
    /// A program that its user goes on using.
    UserProgram,
    /// A daemon of this agent's own.
    Daemon(String),
    /// The agent that started it lives.
    Owner(Pid),
    /// A service.
    Service(String),
    /// An application that the desktop started, in this scope.
    Application(String),
    /// An MCP server that nobody's agent started.
    Standalone,
    /// A living session of agent-proxy.
    Session(Option<String>),
    /// This command is below it.
    OwnCommand,
    /// Another user's.
    OtherUser,
}

/// Result of the judgment.
#[derive(Clone, Debug, Default)]
pub(super) struct OrphanReport {
    /// Orphans, the oldest first.
    pub(super) orphans: Vec<OrphanTree>,
    /// Recognised processes that lost their parents, and are no orphans.
    pub(super) spared: BTreeMap<Pid, SpareReason>,
}

/// Judges all processes.
pub(super) fn find_orphans(processes: &[SeenProgram], viewer: OrphanViewer) -> OrphanReport {
    let table = ProcessTable::new(processes);
    let mut report = OrphanReport::default();
    for seen in processes {
        let Some(adopter) = table.adopter_of(&seen.process) else { continue };
        match table.judge(seen, adopter, viewer) {
            Some(Ok(orphan)) => report.orphans.push(orphan),
            Some(Err(reason)) => _ = report.spared.insert(seen.process.id.pid, reason),
            None => {}
        }
    }
    report.keep_whole_trees();
    table.spare_the_owned(&mut report);
    let in_orphans: BTreeSet<Pid> = members_of(&report.orphans);
    for orphan in &mut report.orphans {
        if orphan.doubt.is_none() {
            orphan.doubt = table.possible_owner(orphan, &in_orphans);
        }
    }
    report.orphans.sort_by_key(|orphan| (orphan.root.start_time, orphan.root.pid));
    report
}

impl OrphanReport {
    /// Returns the orphan whose tree has this process.
    pub(super) fn tree_of(&self, pid: Pid) -> Option<&OrphanTree> {
        self.orphans.iter().find(|orphan| orphan.members.iter().any(|(_, process)| process.id.pid == pid))
    }

    /// Drops what is listed with another's tree.
    fn keep_whole_trees(&mut self) {
        let below =
            self.orphans.iter().flat_map(|orphan| orphan.members.iter().skip(1)).map(|(_, process)| process.id.pid);
        let below: BTreeSet<Pid> = below.collect();
        self.orphans.retain(|orphan| !below.contains(&orphan.root.pid));
        self.spared.retain(|pid, _| !below.contains(pid));
    }
}

fn members_of(orphans: &[OrphanTree]) -> BTreeSet<Pid> {
    orphans.iter().flat_map(|orphan| orphan.members.iter().map(|(_, process)| process.id.pid)).collect()
}

/// Snapshot by pid and parent.
#[derive(Debug)]
struct ProcessTable<'a> {
    by_pid: BTreeMap<Pid, &'a SeenProgram>,
    children: BTreeMap<Pid, Vec<&'a SeenProgram>>,
}

impl<'a> ProcessTable<'a> {
    fn new(processes: &'a [SeenProgram]) -> Self {
        let by_pid = processes.iter().map(|seen| (seen.process.id.pid, seen)).collect();
        let mut children: BTreeMap<Pid, Vec<&SeenProgram>> = BTreeMap::new();
        for seen in processes {
            children.entry(seen.process.ppid).or_default().push(seen);
        }
        for siblings in children.values_mut() {
            siblings.sort_by_key(|seen| (seen.process.id.start_time, seen.process.id.pid));
        }
        Self { by_pid, children }
    }

    fn find(&self, pid: Pid) -> Option<&'a MachineProcess> {
        self.by_pid.get(&pid).map(|seen| &seen.process)
    }

    /// The process that has adopted this one; `None` if its parent started it, or that cannot be told.
    fn adopter_of(&self, process: &MachineProcess) -> Option<&'a MachineProcess> {
        let parent = self.find(process.ppid).filter(|parent| parent.id.start_time <= process.id.start_time)?;
        if process.is_namespace_init || parent.id.pid == process.id.pid {
            return None;
        }
        // Of a session of agent-proxy it is known who starts its processes: proxies, and one another.
        let is_marked = |process: &MachineProcess| process.env.contains_key(MARKER);
        let lost_its_proxy = is_marked(process) && !is_marked(parent) && !is_supervisor(parent);
        let adopts = is_service_manager(parent) || is_idle_init(parent) || self.lost_its_session(process, parent);
        let adopts = adopts || lost_its_proxy;
        adopts.then_some(parent)
    }

    /// Returns whether a process's POSIX session shows that another parent started it. A fork is in its parent's session, and
    /// `setsid` begins one of its own: what is in a third one, whose first process is dead, was adopted.
    fn lost_its_session(&self, process: &MachineProcess, parent: &MachineProcess) -> bool {
        let sid = process.sid;
        sid != 0 && sid != process.id.pid && sid != parent.sid && !self.by_pid.contains_key(&sid)
    }

    /// The process and everything below it, each with its depth; and what began there and was adopted since, as the POSIX sessions
    /// show that processes of the tree have begun.
    fn tree(&self, root: &'a SeenProgram) -> Vec<(usize, &'a SeenProgram)> {
        let mut members = Vec::new();
        let mut seen_pids = BTreeSet::new();
        let mut waiting = vec![(0, root)];
        while !waiting.is_empty() {
            while let Some((depth, seen)) = waiting.pop() {
                // A listing torn by a pid that was used again has no loop.
                if !seen_pids.insert(seen.process.id.pid) {
                    continue;
                }
                members.push((depth, seen));
                let below = self.children.get(&seen.process.id.pid).map(Vec::as_slice).unwrap_or_default();
                let children = below.iter().filter(|child| child.process.id.start_time >= seen.process.id.start_time);
                waiting.extend(children.rev().map(|child| (depth + 1, *child)));
            }
            let is_lost = |seen: &&&SeenProgram| {
                let process = &seen.process;
                let leader = self.find(process.sid).filter(|leader| leader.id.start_time <= process.id.start_time);
                leader.is_some_and(|leader| leader.sid == leader.id.pid && seen_pids.contains(&leader.id.pid))
                    && !seen_pids.contains(&process.id.pid)
                    && self
                        .find(process.ppid)
                        .is_some_and(|parent| parent.is_namespace_init || is_service_manager(parent))
            };
            waiting = self.by_pid.values().filter(is_lost).map(|seen| (1, *seen)).collect();
        }
        members
    }

    /// The process and all above it, as far as they can be seen.
    fn upwards(&self, process: &'a MachineProcess) -> impl Iterator<Item = &'a MachineProcess> {
        let above = |process: &&'a MachineProcess| {
            self.find(process.ppid)
                .filter(|parent| parent.id.start_time <= process.id.start_time && parent.id != process.id)
        };
        std::iter::successors(Some(process), above).take(MAX_DEPTH)
    }

    /// Judges a process that was adopted; `None` if it has nothing to do with agents.
    fn judge(
        &self,
        seen: &'a SeenProgram,
        adopter: &'a MachineProcess,
        viewer: OrphanViewer,
    ) -> Option<Result<OrphanTree, SpareReason>> {
        let process = &seen.process;
        let tree = self.tree(seen);
        let (kind, mut doubt) = self.kind_of(seen, &tree)?;
        if let Some(reason) = self.spared(seen, &kind, adopter, &tree, viewer) {
            return Some(Err(reason));
        }
        let leader = self.find(process.sid).filter(|leader| leader.id.pid != process.id.pid);
        if let Some(leader) = leader.filter(|leader| leader.id != adopter.id && !is_session_manager(leader)) {
            doubt = doubt.or(Some(format!("{} {}, which began its POSIX session, lives", leader.name, leader.id.pid)));
        }
        if process.ignores_hangup {
            doubt = doubt.or(Some("it ignores SIGHUP, as under nohup: it may be meant to go on".to_owned()));
        }
        let is_used = |member: &SeenProgram| {
            let is_mcp = matches!(&member.mark, Some(mark) if mark.role == MarkedRole::McpBrowser);
            is_user_program(&member.process) && !is_mcp
        };
        if let Some((_, used)) = tree.iter().skip(1).find(|(_, member)| is_used(member)) {
            let used = &used.process;
            doubt = doubt.or(Some(format!("{} {}, in its tree, may be in use", used.name, used.id.pid)));
        }
        let has_own_session = process.sid == process.id.pid;
        if has_own_session && is_service_manager(adopter) && !is_systemd(adopter) {
            doubt = doubt.or(Some(format!("{} may have started it as a service", adopter.name)));
        }
        // Agents start their tools so. Who starts an agent so may want it to go on.
        let has_owner = seen.mark.as_ref().is_some_and(|mark| mark.owner.is_some());
        if has_own_session && matches!(kind, OrphanKind::Agent(_)) && !has_owner {
            let setsid = "it has a POSIX session of its own (setsid): it may be meant to go on";
            doubt = doubt.or(Some(setsid.to_owned()));
        }
        Some(Ok(OrphanTree {
            root: process.id,
            kind,
            started_by: seen.mark.as_ref().and_then(|mark| mark.started_by.clone()),
            uid: process.uid,
            adopter: (adopter.id.pid, adopter.name.clone()),
            members: tree.into_iter().map(|(depth, seen)| (depth, seen.process.clone())).collect(),
            doubt,
        }))
    }

    /// What it is, and a doubt that follows from that.
    fn kind_of(&self, seen: &SeenProgram, tree: &[(usize, &'a SeenProgram)]) -> Option<(OrphanKind, Option<String>)> {
        if seen.process.env.contains_key(MARKER) {
            let session = seen.process.env.get(SESSION_MARKER).cloned().unwrap_or_default();
            let doubt = "of a dead manager: its `agent-proxy serve --state-dir DIR` ends it";
            return Some((OrphanKind::Session(session), Some(doubt.to_owned())));
        }
        if let Some(mark) = &seen.mark {
            let kind = match &mark.role {
                MarkedRole::Agent(id) | MarkedRole::AgentDaemon(id) => OrphanKind::Agent(id.clone()),
                MarkedRole::McpServer(name) => OrphanKind::McpServer(name.clone()),
                MarkedRole::McpBrowser => OrphanKind::McpBrowser,
                MarkedRole::AgentChild => OrphanKind::AgentChild(mark.started_by.clone().unwrap_or_default()),
            };
            return Some((kind, None));
        }
        let name = seen.process.program.as_deref().or(seen.process.argv.first().map(String::as_str))?;
        if !marks::is_shell(name.rsplit('/').next().unwrap_or(name)) {
            return None;
        }
        let is_below = |member: &'a SeenProgram| self.upwards(&member.process).any(|above| above.id == seen.process.id);
        let agent = tree.iter().find_map(|(_, member)| match &member.mark.as_ref()?.role {
            MarkedRole::Agent(id) if is_below(member) => Some((id.clone(), member.process.id.pid)),
            _ => None,
        });
        let (id, pid) = agent?;
        Some((OrphanKind::Wrapper(id.clone()), Some(format!("it is a script that runs {id} {pid}"))))
    }

    fn spared(
        &self,
        seen: &'a SeenProgram,
        kind: &OrphanKind,
        adopter: &'a MachineProcess,
        tree: &[(usize, &'a SeenProgram)],
        viewer: OrphanViewer,
    ) -> Option<SpareReason> {
        let process = &seen.process;
        let named = |process: &MachineProcess| (process.id.pid, process.name.clone());
        let session = process.env.get(SESSION_MARKER);
        if tree.iter().any(|(_, member)| is_supervisor(&member.process))
            || self.upwards(adopter).any(is_supervisor)
            || session.is_some_and(|id| self.has_proxy_of(id))
        {
            return Some(SpareReason::Session(session.cloned()));
        }
        if tree.iter().any(|(_, member)| member.process.id.pid == viewer.pid) {
            return Some(SpareReason::OwnCommand);
        }
        if process.uid != viewer.uid && !viewer.all_users {
            return Some(SpareReason::OtherUser);
        }
        if process.has_terminal {
            return Some(SpareReason::Terminal);
        }
        // An init is above everything, and means nothing.
        let above = self.upwards(adopter).filter(|above| !is_service_manager(above));
        let leader = self.find(process.sid).filter(|leader| leader.id.pid != process.id.pid);
        if let Some(host) = above.chain(leader).find(|above| above.has_terminal || is_terminal_host(above)) {
            let (pid, name) = named(host);
            return Some(SpareReason::Host(pid, name));
        }
        if let Some((_, host)) = tree.iter().find(|(_, member)| is_terminal_host(&member.process)) {
            let (pid, name) = named(&host.process);
            return Some(SpareReason::ShowsTerminal(pid, name));
        }
        let is_agents_own = matches!(kind, OrphanKind::Agent(_) | OrphanKind::McpServer(_) | OrphanKind::McpBrowser);
        if !is_agents_own {
            // The terminals below an agent are those of its tools.
            if let Some((_, below)) = tree.iter().find(|(_, member)| member.process.has_terminal) {
                let (pid, name) = named(&below.process);
                return Some(SpareReason::ShowsTerminal(pid, name));
            }
            if is_user_program(process) {
                return Some(SpareReason::UserProgram);
            }
        }
        if let Some(RecognizedProcess { role: MarkedRole::AgentDaemon(id), .. }) = &seen.mark {
            return Some(SpareReason::Daemon(id.clone()));
        }
        if let Some(unit) = application_of(process) {
            return Some(SpareReason::Application(unit.to_owned()));
        }
        if let Some(unit) = service_of(process)
            && !self.was_left_in(unit, process, adopter)
        {
            return Some(SpareReason::Service(unit.to_owned()));
        }
        let is_standalone = matches!(kind, OrphanKind::McpServer(_)) && !process.has_piped_stdin;
        let by_nobody = seen.mark.as_ref().is_none_or(|mark| mark.started_by.is_none());
        (is_standalone && by_nobody).then_some(SpareReason::Standalone)
    }

    /// Returns whether a proxy of that session lives: what has left its tree is still the session's.
    fn has_proxy_of(&self, session: &str) -> bool {
        let title = format!("agent-proxy: session {session}");
        self.by_pid.values().any(|seen| seen.process.argv.first().is_some_and(|word| *word == title))
    }

    /// Returns whether a service whose main process lives has lost this one: the service manager started something else before it.
    fn was_left_in(&self, unit: &str, process: &MachineProcess, adopter: &MachineProcess) -> bool {
        let is_main = |other: &&SeenProgram| {
            let other = &other.process;
            other.id.start_time < process.id.start_time && service_of(other) == Some(unit) && other.id != process.id
        };
        let siblings = self.children.get(&adopter.id.pid).map(Vec::as_slice).unwrap_or_default();
        self.lost_its_session(process, adopter) && siblings.iter().any(is_main)
    }

    /// Spares what a living agent says that it has started, unless that agent is an orphan itself.
    fn spare_the_owned(&self, report: &mut OrphanReport) {
        loop {
            let orphans = members_of(&report.orphans);
            let owned = report.orphans.iter().position(|orphan| self.living_owner(orphan, &orphans).is_some());
            let Some(at) = owned else { return };
            let orphan = report.orphans.remove(at);
            if let Some(owner) = self.living_owner(&orphan, &orphans) {
                report.spared.insert(orphan.root.pid, SpareReason::Owner(owner));
            }
        }
    }

    fn living_owner(&self, orphan: &OrphanTree, orphans: &BTreeSet<Pid>) -> Option<Pid> {
        let owner = self.by_pid.get(&orphan.root.pid)?.mark.as_ref()?.owner?;
        let agent = self.by_pid.get(&owner).filter(|agent| agent_id(agent).is_some())?;
        (agent.process.id.start_time <= orphan.root.start_time && !orphans.contains(&owner)).then_some(owner)
    }

    /// A living agent that may have started what does not say by which it was started.
    fn possible_owner(&self, orphan: &OrphanTree, orphans: &BTreeSet<Pid>) -> Option<String> {
        let starter = orphan.started_by.as_deref()?;
        let mark = self.by_pid.get(&orphan.root.pid)?.mark.as_ref()?;
        if mark.owner.is_some() || !matches!(mark.role, MarkedRole::AgentChild | MarkedRole::Agent(_)) {
            return None;
        }
        let may_be = |agent: &&&SeenProgram| {
            agent_id(agent) == Some(starter)
                && agent.process.uid == orphan.uid
                && agent.process.id.start_time <= orphan.root.start_time
                && !orphans.contains(&agent.process.id.pid)
        };
        let agent = self.by_pid.values().find(may_be)?;
        Some(format!("{starter} {}, which lives, may have started it", agent.process.id.pid))
    }
}

fn agent_id(seen: &SeenProgram) -> Option<&str> {
    match &seen.mark.as_ref()?.role {
        MarkedRole::Agent(id) | MarkedRole::AgentDaemon(id) => Some(id),
        _ => None,
    }
}

/// The scope that a desktop has made for a process which it started: the pid is in its name.
fn application_of(process: &MachineProcess) -> Option<&str> {
    let unit = process.cgroup.as_deref()?.rsplit('/').next()?;
    let name = unit.strip_prefix("app-")?.strip_suffix(".scope")?;
    (name.rsplit('-').next()? == process.id.pid.to_string()).then_some(unit)
}

/// The systemd service that a process is in; what a login or an application's scope holds is in none.
fn service_of(process: &MachineProcess) -> Option<&str> {
    let path = process.cgroup.as_deref()?;
    let mut units = path.rsplit('/').filter(|part| part.ends_with(".service") || part.ends_with(".scope"));
    units.next().filter(|unit| unit.ends_with(".service") && !unit.starts_with("user@"))
}
