//! Commands of a session before its start and after its end, for what it works on: a worktree, a database, a mount. In a fleet, the one that
//! brings its workspace from another machine.
//!
//! Each runs as a session of its own, `ID.before-start`, `ID.after-end` or `ID.workspace-EPOCH`, of the agent `command`: seen, bounded, and proven gone as any
//! other, in the containment and under the limits of its session, though outside its sandbox and its container. One before a start takes a
//! place among the sessions while it runs; those after an end take none, and run so many at a time.

use std::{
    collections::VecDeque,
    path::Path,
    sync::{Arc, Weak},
    time::Duration,
};

use ipc_protocol::{AgentSessionConfig, EndReason, Event, ExitStatus, KillOptions, Lifecycle, Limits, SessionId};
use tokio::{task::JoinSet, time::timeout};

use super::{
    ManagerInner, ProxyManager,
    start::{EndIfDropped, StartKind},
};
use crate::{
    blocking::READING,
    error::{Error, Result},
    manager::SessionHandle,
    replication::Epoch,
    session::{ManagedSession, SessionTask},
    session_store::{RecordState, SessionFilter, SessionRecord, SessionStatus},
};

/// Most commands after the ends of sessions at a time: the others wait.
pub(super) const MAX_AFTER_END: usize = 16;
/// Time that a command may take.
const COMMAND_TIME: Duration = Duration::from_secs(600);
/// Time that the commands after the ends of a manager's sessions may take together when it shuts down. Those that need more run again
/// with the next manager.
const SHUTDOWN_TIME: Duration = Duration::from_secs(30);
/// Last lines of a failed command's output that its error shows.
const SHOWN_LINES: usize = 10;
/// Most bytes of such a line.
const SHOWN_LINE: usize = 400;

/// Variables of the command: the session's id, its directory, and the reason for its end.
const SESSION: &str = "AGENT_PROXY_OF_SESSION";
const CWD: &str = "AGENT_PROXY_OF_CWD";
const END: &str = "AGENT_PROXY_OF_END";

/// Point in the life of a session at which a command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommandPoint {
    BeforeStart,
    AfterEnd,
    /// It has come from another machine, and is to go on here.
    Workspace,
}

/// Most sessions of failed hooks that go with their session at once.
const MAX_WORKSPACES: usize = 100;

impl CommandPoint {
    const OF_SESSIONS: [Self; 2] = [Self::BeforeStart, Self::AfterEnd];

    fn suffix(self) -> &'static str {
        match self {
            Self::BeforeStart => "before-start",
            Self::AfterEnd => "after-end",
            Self::Workspace => "workspace",
        }
    }

    /// Returns the id of the command's session; `None` if that would be too long.
    fn session_of(self, id: &SessionId) -> Option<SessionId> {
        format!("{id}.{}", self.suffix()).parse().ok()
    }

    fn command_of(self, lifecycle: &Lifecycle) -> Option<&str> {
        match self {
            Self::BeforeStart => lifecycle.before_start.as_deref(),
            Self::AfterEnd => lifecycle.after_end.as_deref(),
            // The machine's, and not the session's.
            Self::Workspace => None,
        }
    }
}

/// Checks the commands of a session that is about to start.
fn check(config: &AgentSessionConfig) -> Result<()> {
    for (point, field) in
        [(CommandPoint::BeforeStart, "lifecycle.beforeStart"), (CommandPoint::AfterEnd, "lifecycle.afterEnd")]
    {
        let Some(command) = point.command_of(&config.lifecycle) else { continue };
        if command.trim().is_empty() || command.contains('\0') {
            let reason = format!("{command:?} is no shell command");
            return Err(Error::InvalidConfig { field, reason });
        }
        if point.session_of(&config.session_id).is_none() {
            let (id, most) = (&config.session_id, SessionId::MAX_LEN - 1 - point.suffix().len());
            let reason = format!(
                "it runs as session {id}.{}, whose name is too long: {most} characters for {id}",
                point.suffix()
            );
            return Err(Error::InvalidConfig { field, reason });
        }
    }
    Ok(())
}

/// Returns the beginning of the ids of the sessions that bring a session's workspace; the epoch follows.
fn workspace_prefix(id: &str) -> String {
    format!("{id}.{}-", CommandPoint::Workspace.suffix())
}

/// Refuses a caller's id that would be a command's.
pub(super) fn check_id(id: &SessionId) -> Result<()> {
    let before_epoch = id.as_str().trim_end_matches(|character: char| character.is_ascii_digit());
    if before_epoch.len() < id.as_str().len() && before_epoch.ends_with(&workspace_prefix("")) {
        let reason = format!(
            "{id}: ids that end with {}NUMBER are those of commands that bring workspaces: choose another one",
            workspace_prefix("")
        );
        return Err(Error::InvalidConfig { field: "sessionId", reason });
    }
    let ending = CommandPoint::OF_SESSIONS
        .map(CommandPoint::suffix)
        .into_iter()
        .find(|suffix| id.as_str().strip_suffix(suffix).is_some_and(|rest| rest.ends_with('.')));
    match ending {
        None => Ok(()),
        Some(suffix) => {
            let reason =
                format!("{id}: ids that end with .{suffix} are those of the commands of sessions: choose another one");
            Err(Error::InvalidConfig { field: "sessionId", reason })
        }
    }
}

/// Returns the nearest directory that exists: `cwd`, or one above it.
fn existing(cwd: &Path) -> String {
    let found = cwd.ancestors().find(|directory| directory.is_dir());
    found.and_then(Path::to_str).unwrap_or("/").to_owned()
}

/// Makes the configuration of a command's session.
fn command_config(
    point: CommandPoint,
    id: SessionId,
    command: &str,
    of: &AgentSessionConfig,
    cwd: &str,
    variables: &[(&str, &str)],
) -> AgentSessionConfig {
    let mut config = AgentSessionConfig::new("command");
    config.session_id = id;
    // Nobody writes to it.
    config.command = ["/bin/sh".to_owned(), "-c".to_owned(), format!("exec </dev/null\n{command}")].into();
    config.agent_type = Some(point.suffix().to_owned());
    config.user_id.clone_from(&of.user_id);
    config.workspace_id.clone_from(&of.workspace_id);
    config.cwd = Some(existing(Path::new(cwd)));
    config.env = of.env.clone();
    config.not_secret.clone_from(&of.not_secret);
    for (name, value) in [(SESSION, of.session_id.as_str()), (CWD, cwd)].iter().chain(variables) {
        config.env.0.insert((*name).to_owned(), (*value).to_owned());
        config.not_secret.insert(format!("env.{name}"));
    }
    config.limits = Limits { wall_clock_ms: None, ..of.limits.clone() };
    config.containment = of.containment;
    config.hardening = of.hardening;
    config.depth = of.depth;
    config.lifecycle.title = Some(format!("{} of {}", point.suffix(), of.session_id));
    config.lifecycle.idle_suspend_ms = Some(0);
    config
}

/// Returns true for a command after the end of a session.
pub(super) fn is_after_end(session: &ManagedSession) -> bool {
    // Callers cannot choose such an id: see `check_id`.
    session.id().as_str().strip_suffix(CommandPoint::AfterEnd.suffix()).is_some_and(|rest| rest.ends_with('.'))
}

/// Runs the command after the end of a session, once it has ended. A suspended one is waited for as long as it rests.
pub(super) async fn after_end_of(manager: Weak<ManagerInner>, session: Arc<ManagedSession>) {
    if session.config().is_none_or(|config| config.lifecycle.after_end.is_none()) {
        return;
    }
    let mut view = session.watch();
    tokio::select! {
        biased;
        // Another manager has it, and its command.
        () = session.history().wait_fenced() => return,
        ended = view.wait_for(|view| RecordState::from(&view.state).status() == SessionStatus::Ended) => {
            if ended.is_err() {
                return;
            }
        }
        // Its next incarnation waits too.
        () = session.lives().wait_superseded(&session) => return,
    }
    if let Some(inner) = manager.upgrade() {
        ProxyManager { inner }.run_after_end(&session).await;
    }
}

/// Runs the command after a start's end, if the start fails or is abandoned.
struct FailedStart<'a> {
    manager: &'a ProxyManager,
    config: Option<AgentSessionConfig>,
}

impl Drop for FailedStart<'_> {
    fn drop(&mut self) {
        if let Some(config) = self.config.take() {
            let manager = self.manager.clone();
            self.manager.inner.runtime.handle().spawn(async move { manager.run_after_failed_start(&config).await });
        }
    }
}

impl ProxyManager {
    /// Starts a session like [`ProxyManager::begin`], after its command before the start.
    pub(super) async fn begin_with_commands(
        &self,
        mut config: AgentSessionConfig,
        takes_warm: bool,
    ) -> Result<SessionHandle> {
        let defaults = self.agent_defaults();
        if let Some(profile) = config.profile.as_deref().and_then(|name| defaults.profiles.get(name).ok()) {
            profile.apply_commands(&mut config.lifecycle);
        }
        if CommandPoint::OF_SESSIONS.iter().all(|point| point.command_of(&config.lifecycle).is_none()) {
            return Box::pin(self.begin(config, StartKind::New { takes_warm })).await;
        }
        check(&config)?;
        // Those of an earlier session with that id.
        self.delete_commands(&config.session_id).await;
        let mut failed = FailedStart { manager: self, config: Some(config.clone()) };
        let begun = async {
            self.run_command(CommandPoint::BeforeStart, &config, config.cwd.as_deref(), "").await?;
            Box::pin(self.begin(config, StartKind::New { takes_warm: false })).await
        };
        let begun = Box::pin(begun).await;
        let config = failed.config.take();
        if let (Err(_), Some(config)) = (&begun, config) {
            self.run_after_failed_start(&config).await;
        }
        begun
    }

    async fn run_after_failed_start(&self, config: &AgentSessionConfig) {
        // An abandoned start has only requested its end.
        if let Ok(session) = self.inner.session_table.get(&config.session_id) {
            let ended = session.end_within(session.longest_kill(SessionTask::FAILED)).await;
            if let Err(error) = ended.map(drop).and(session.wait_settled().await) {
                tracing::debug!(session = %config.session_id, error = %error.chain(), "a start that failed did not end as it should");
            }
        }
        let ran = self.run_command(CommandPoint::AfterEnd, config, config.cwd.as_deref(), "it did not start").await;
        if let Err(error) = ran {
            tracing::warn!(session = %config.session_id, error = %error.chain(), "failed to run the command after a failed start");
        }
    }

    /// Runs the command after a session's end, unless it has run.
    async fn run_after_end(&self, session: &ManagedSession) {
        let Some(config) = session.config().filter(|config| config.lifecycle.after_end.is_some()) else { return };
        let Some((reason, _)) = session.ended().filter(|_| !session.history().is_fenced()) else { return };
        let command = async {
            // Its last records are written then, and its processes are gone.
            if let Err(error) = session.wait_settled().await {
                tracing::warn!(session = %session.id(), error = %error.chain(), "failed to wait for a session before the command after its end");
            }
            self.run_recorded(config, &session.metadata().cwd, &reason.to_string()).await;
        };
        session.lives().run_after_end(command).await;
    }

    /// Runs the command after the end of a session that has a record.
    async fn run_recorded(&self, config: &AgentSessionConfig, cwd: &str, reason: &str) {
        let id = &config.session_id;
        let ran = Box::pin(self.run_command(CommandPoint::AfterEnd, config, Some(cwd), reason)).await;
        if let Err(error) = &ran {
            tracing::warn!(session = %id, error = %error.chain(), "the command after a session's end failed");
        }
        if !matches!(&ran, Ok(()) | Err(Error::CommandFailed { exited: true, .. })) {
            // The next manager runs it again.
            return;
        }
        let done = self.inner.roster.change(id, None, |record| {
            record.config.lifecycle.after_end = None;
            Ok(())
        });
        if let Err(error) = done {
            tracing::debug!(session = %id, error = %error.chain(), "a deleted session's command has run");
        }
    }

    /// Runs the commands of sessions that have ended, for a manager that shuts down.
    pub(super) async fn finish_commands(&self) {
        let mut commands = JoinSet::new();
        let sessions = self.inner.session_table.all();
        for session in sessions.iter().filter(|session| session.ended().is_some() && !session.is_suspended()) {
            commands.spawn(after_end_of(Arc::downgrade(&self.inner), session.clone()));
        }
        let running = || {
            let all = self.inner.session_table.all().into_iter();
            all.filter(|session| is_after_end(session) && session.ended().is_none()).collect::<Vec<_>>()
        };
        let all_run = async {
            while commands.join_next().await.is_some() {}
            for session in running() {
                // Fails only without the session.
                let _ = session.watch().wait_for(|view| view.state.stopped_by().is_some()).await.map(drop);
            }
        };
        if timeout(SHUTDOWN_TIME, all_run).await.is_ok() {
            return;
        }
        tracing::warn!(
            "commands after the end of sessions took too long: those that go on run again with the next manager"
        );
        let running = running();
        running.iter().for_each(|session| session.request_end(KillOptions::default(), EndReason::Shutdown));
        for session in &running {
            if let Err(error) = session.end_within(session.longest_kill(KillOptions::default())).await {
                tracing::warn!(session = %session.id(), error = %error.chain(), "failed to end a command");
            }
        }
    }

    /// Runs the commands of sessions of earlier managers: at once of those that have ended, later of those that are suspended.
    /// A manager that is not replicated has done so when it is built; in a fleet call it once sessions can be claimed.
    pub fn resume_commands(&self) {
        let all = SessionFilter { archived: true, ..SessionFilter::default() };
        let records = self.inner.roster.list(&all).into_iter();
        for record in records.filter(|record| record.config.lifecycle.after_end.is_some()) {
            match self.inner.session_table.get(&record.session_id) {
                Ok(session) if session.is_suspended() => {
                    let manager = Arc::downgrade(&self.inner);
                    self.inner.runtime.handle().spawn(after_end_of(manager, session));
                }
                // Adopted ones run.
                Ok(session) if session.ended().is_none() => {}
                _ if record.status() == SessionStatus::Ended => self.spawn_recorded(record),
                _ => {}
            }
        }
    }

    fn spawn_recorded(&self, record: SessionRecord) {
        let manager = Arc::downgrade(&self.inner);
        self.inner.runtime.handle().spawn(async move {
            let Some(inner) = manager.upgrade() else { return };
            let reason = record.state.reason().map_or_else(String::new, ToString::to_string);
            let cwd = record.config.cwd.clone().unwrap_or_default();
            Self { inner }.run_recorded(&record.config, &cwd, &reason).await;
        });
    }

    /// Runs the shell command that brings the workspace of a session which another machine had, before it is resumed here. It is a session
    /// of its own, `ID.workspace-EPOCH`, bounded and contained as the command before a start; it begins in the nearest directory of the
    /// session's that is here, and has `variables` besides AGENT_PROXY_OF_SESSION and AGENT_PROXY_OF_CWD. It is deleted once it has done
    /// its work, and is there to be looked at where it has failed.
    ///
    /// # Errors
    /// [`Error::UnknownSession`]; [`Error::InvalidConfig`] for an id that is too long; [`Error::CommandFailed`]; those of a start.
    ///
    /// # Cancel safety
    /// The command is ended if the future is dropped.
    pub async fn bring_workspace(&self, session: &SessionId, command: &str, variables: &[(&str, &str)]) -> Result<()> {
        self.ensure_ready("making a workspace")?;
        let record = self.record(session)?;
        let cwd = record.config.cwd.clone().unwrap_or_else(|| self.agent_defaults().cwd.clone());
        // Each owner has one of its own: that of the machine before may be there still.
        let epoch = self.replicated_stream(session).map_or(Epoch(0), |stream| stream.epoch);
        let id = format!("{}{epoch}", workspace_prefix(session.as_str()));
        let too_long = |_| {
            let reason = format!("the command that brings its workspace runs as session {id}, whose name is too long");
            Error::InvalidConfig { field: "sessionId", reason }
        };
        let id: SessionId = id.parse().map_err(too_long)?;
        let config = command_config(CommandPoint::Workspace, id.clone(), command, &record.config, &cwd, variables);
        Box::pin(self.run_to_end(CommandPoint::Workspace, config)).await?;
        if let Err(error) = Box::pin(self.delete_session(&id)).await {
            tracing::debug!(session = %id, error = %error.chain(), "failed to delete the session of a command");
        }
        Ok(())
    }

    /// Deletes the sessions of a session's commands that have ended.
    pub(super) async fn delete_commands(&self, id: &SessionId) {
        let of_points = CommandPoint::OF_SESSIONS.iter().filter_map(|point| point.session_of(id));
        let mut commands: Vec<SessionId> = of_points.filter(|id| self.inner.roster.get(id).is_some()).collect();
        let prefix = workspace_prefix(id.as_str());
        let every = SessionFilter { archived: true, ..SessionFilter::default() };
        let others = self.inner.roster.list_after(&every, &prefix, MAX_WORKSPACES);
        commands
            .extend(others.into_iter().map(|record| record.session_id).filter(|id| id.as_str().starts_with(&prefix)));
        for id in commands {
            if let Err(error) = Box::pin(self.delete_session(&id)).await {
                tracing::debug!(session = %id, error = %error.chain(), "failed to delete the session of a command");
            }
        }
    }

    /// Runs a command, if the session has one, until it has ended and nothing of it is left.
    ///
    /// # Errors
    /// [`Error::CommandFailed`]; those of the start of a session.
    async fn run_command(
        &self,
        point: CommandPoint,
        of: &AgentSessionConfig,
        cwd: Option<&str>,
        reason: &str,
    ) -> Result<()> {
        let cwd = cwd.map_or_else(|| self.agent_defaults().cwd.clone(), str::to_owned);
        let Some((command, id)) = point.command_of(&of.lifecycle).zip(point.session_of(&of.session_id)) else {
            return Ok(());
        };
        let config = command_config(point, id, command, of, &cwd, &[(END, reason)]);
        self.run_to_end(point, config).await
    }

    /// Runs the session of a command.
    async fn run_to_end(&self, point: CommandPoint, config: AgentSessionConfig) -> Result<()> {
        let id = config.session_id.clone();
        // One that was ended before it was done.
        if self.inner.roster.get(&id).is_some() {
            self.delete_ended(&id).await?;
        }
        let table = &self.inner.session_table;
        let (_reserved, _turn) = match point {
            CommandPoint::BeforeStart | CommandPoint::Workspace => (table.reserve(&id)?, None),
            CommandPoint::AfterEnd => {
                (table.reserve_for_command(&id)?, self.inner.after_end_turns.acquire().await.ok())
            }
        };
        let session = Box::pin(self.begin(config, StartKind::Command(point))).await?.session().clone();
        let abandoned = EndIfDropped(Some((&session, EndReason::Killed)));
        let mut view = session.watch();
        let is_over = timeout(COMMAND_TIME, view.wait_for(|view| view.state.stopped_by().is_some())).await.is_ok();
        abandoned.disarm();
        let end = if is_over {
            session.ended().map(|(reason, _)| reason)
        } else {
            session.request_end(KillOptions::default(), EndReason::Killed);
            session.end_within(session.longest_kill(KillOptions::default())).await?;
            None
        };
        // Its output and its records are there then.
        session.wait_published().await?;
        session.wait_settled().await?;
        let status = match &end {
            Some(EndReason::AgentExited(Some(status))) if status.success() => return Ok(()),
            Some(EndReason::AgentExited(status)) => *status,
            _ => None,
        };
        let outcome = match (end, status) {
            (None, _) => format!("it took longer than {COMMAND_TIME:?}"),
            (_, Some(status)) => status.to_string(),
            (Some(reason), None) => reason.to_string(),
        };
        let output = last_lines(&session).await;
        // One that a signal ended was not done.
        let exited = matches!(status, Some(ExitStatus::Code(_)));
        Err(Error::CommandFailed { session: id, outcome, output, exited })
    }
}

/// Returns the last lines of a command's output.
async fn last_lines(session: &ManagedSession) -> String {
    let history = session.history().clone();
    let read = move || {
        let mut lines = VecDeque::with_capacity(SHOWN_LINES + 1);
        history.read(|event| {
            if let Event::Text { text } | Event::Log { text, .. } = event {
                lines.push_back(text[..text.floor_char_boundary(SHOWN_LINE)].trim_end().to_owned());
                lines.drain(..lines.len().saturating_sub(SHOWN_LINES));
            }
        });
        Vec::from(lines).join("\n")
    };
    READING.run("reading a command's output", read).await.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_commands_are_nobody_s() {
        for id in ["s-1.before-start", "s-1.after-end", "s-1.workspace-2", "s-1.workspace-10"] {
            assert!(check_id(&id.parse().expect("an id")).is_err(), "{id}");
        }
        for id in ["before-start", "s-1.workspace-", "s-1.workspace-2b", "workspace-2", "s-1.workspace"] {
            assert!(check_id(&id.parse().expect("an id")).is_ok(), "{id}");
        }
    }
}
