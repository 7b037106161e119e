//! Records of sessions, their names for people, and the fate of a dead host's sessions.

use std::{io::BufRead, path::PathBuf, sync::Arc, time::SystemTime};

use ipc_protocol::{
    AgentSessionConfig, EndReason, Envelope, Event, Lifecycle, OnMissing, ResumeFallback, ResumeFrom, ResumeRequest,
    SessionId,
};

use api_types::ResumeOptions;
use event_log::{EventLog, ImportSummary, LogDamage, LogError, OnCommit, ReadLimit};
use tokio::{sync::oneshot, time::timeout};

use super::{ManagerInner, ProxyManager, append::find_undone_in};
use crate::{
    blocking::{READING, blocking},
    description::{AfterSuspension, SessionState},
    error::{Error, Result},
    history::SessionHistory,
    manager::SessionHandle,
    session::{ManagedSession, TranscriptCounts, transcript_of},
    session_store::{RecordState, SessionFilter, SessionRecord, SessionStatus, check_names},
    state::RecoveryOutcome,
};

/// Records that are looked at together for a page.
const LISTED_AT_ONCE: usize = 200;
/// Tag of sessions whose events were imported.
const IMPORTED: &str = "imported";

/// Resolves with the result of writing a record.
pub(super) type RecordWritten = oneshot::Receiver<std::result::Result<(), LogError>>;

/// Creates a callback for a write, and the receiver of its result.
pub(super) fn write_notice() -> (OnCommit, RecordWritten) {
    let (then, written) = oneshot::channel();
    // The receiver may be gone.
    (Box::new(move |result| _ = then.send(result)), written)
}

impl ProxyManager {
    /// Lists the records of all sessions that match `filter`, by id; with a state directory also those of earlier
    /// managers.
    pub fn records(&self, filter: &SessionFilter) -> Vec<SessionRecord> {
        // What is recorded of a living session may be older than its state.
        let any_status = SessionFilter { status: Vec::new(), ..filter.clone() };
        let records = self.inner.roster.list(&any_status).into_iter().map(|record| self.as_shown(record));
        records.filter(|record| filter.matches(record)).collect()
    }

    /// Lists records as [`ProxyManager::records`] does: up to `most` of those that `wants` takes and whose ids come after `after`.
    pub fn records_after(
        &self,
        filter: &SessionFilter,
        after: &str,
        most: usize,
        wants: impl Fn(&SessionRecord) -> bool,
    ) -> Vec<SessionRecord> {
        let any_status = SessionFilter { status: Vec::new(), ..filter.clone() };
        let (mut found, mut after) = (Vec::new(), after.to_owned());
        while found.len() < most {
            let records = self.inner.roster.list_after(&any_status, &after, LISTED_AT_ONCE);
            let Some(last) = records.last() else { break };
            after = last.session_id.to_string();
            let shown = records.into_iter().map(|record| self.as_shown(record));
            found.extend(shown.filter(|record| filter.matches(record) && wants(record)));
        }
        found.truncate(most);
        found
    }

    /// A record as a caller sees it. It is written with the offsets that were given out before it, and goes to the log behind
    /// their events: until it is there its last offset is that of an event that nobody can read yet. The session knows how many
    /// prompts wait; it is there as long as some may.
    fn as_shown(&self, mut record: SessionRecord) -> SessionRecord {
        if let Ok(session) = self.inner.session_table.get(&record.session_id) {
            record.last_offset = record.last_offset.min(session.history().last_offset());
            record.queued = session.queue().len();
            if record.status().is_live()
                && let Some((state, waiting_for)) = session.live_state()
            {
                (record.state, record.waiting_for) = (state, waiting_for);
                record.last_offset = session.history().last_offset();
            }
        } else {
            record.queued = 0;
        }
        record
    }

    /// Returns the record of a session.
    ///
    /// # Errors
    /// [`Error::UnknownSession`].
    pub fn record(&self, session: &SessionId) -> Result<SessionRecord> {
        let record = self.inner.roster.get(session);
        record.map(|record| self.as_shown(record)).ok_or_else(|| Error::UnknownSession { session: session.clone() })
    }

    /// Returns the damage in the event log's file that was found by now. The manager goes on with the rest; a
    /// `session:gap` stands for events. [`check_log`](crate::check_log) looks at all of it.
    pub fn damage(&self) -> Vec<LogDamage> {
        let mut damage = self.inner.streams.log.get().map_or_else(Vec::new, |log| log.damage());
        damage.extend_from_slice(self.inner.roster.damage());
        damage
    }

    /// Builds a transcript as [`SessionHandle::transcript`] does, also for sessions of earlier managers.
    ///
    /// # Errors
    /// See [`ProxyManager`].
    ///
    /// # Cancel safety
    /// Cancel safe: it changes nothing.
    pub async fn transcript(&self, session: &SessionId) -> Result<String> {
        let history = match self.session(session) {
            Err(error @ Error::UnknownSession { .. }) => self.inner.past_history(session).ok_or(error)?,
            known => known?.session().history().clone(),
        };
        READING.run("reading a conversation", move || transcript_of(&history)).await
    }

    /// Imports the events of a session as public JSON envelopes, one per line: all of them, or none. (If its record
    /// cannot be written and the events, written by then, cannot be deleted either, they stay until the deletion
    /// succeeds.) The events can be read under the session's id, which is taken until it is deleted. Its record is that
    /// of an ended session with the tag `imported`; there is nothing to resume.
    ///
    /// # Errors
    /// [`Error::Log`]: the id is taken, a line is not the session's next event, or the log cannot be written;
    /// [`Error::InvalidConfig`] without a state directory; [`Error::Deadline`]. Else see [`ProxyManager`].
    ///
    /// # Cancel safety
    /// A dropped future may still take effect: all of the events are taken, or none.
    pub async fn import_events(&self, input: impl BufRead + Send + 'static) -> Result<ImportSummary> {
        self.ensure_ready("importing events")?;
        let log = self.inner.streams.log.get().ok_or_else(|| Error::InvalidConfig {
            field: "state_dir",
            reason: "events are imported where some are kept: name a state directory".to_owned(),
        })?;
        let (then, written) = write_notice();
        let roster = self.inner.roster.clone();
        let import = move || {
            let imported = log.import(input)?;
            let events = read_stream(&log, &imported.session, 0);
            let record = record_of_import(&imported, events).map(|record| roster.add(record, then));
            Ok::<_, LogError>((imported, record))
        };
        let (imported, record) = blocking("importing events", import).await??;
        let id = &imported.session;
        let recorded = match record {
            Ok(()) => self.await_written(id, written).await,
            Err(error) => Err(error.into()),
        };
        if let Err(error) = recorded {
            if let Err(left) = self.inner.forget(id).await {
                tracing::warn!(session = %id, %left, "failed to delete imported events without a record");
            }
            return Err(error);
        }
        Ok(imported)
    }

    /// Waits until a session's record is durable, up to the deadline of any call.
    pub(super) async fn await_written(&self, session: &SessionId, written: RecordWritten) -> Result<()> {
        let after = self.inner.deadlines.control;
        match timeout(after, written).await {
            Ok(Ok(result)) => Ok(result?),
            // The log is gone.
            Ok(Err(_)) => Err(Error::ShutDown),
            Err(_) => {
                let operation = format!("writing down what is kept of session {session}");
                Err(Error::Deadline { operation, after })
            }
        }
    }

    /// Changes a session's record; the change is durable on return.
    ///
    /// # Errors
    /// [`Error::UnknownSession`]; errors of `change`; [`Error::Log`] or [`Error::Deadline`] if the change is in memory
    /// only.
    async fn change_record(
        &self,
        session: &SessionId,
        change: impl FnOnce(&mut SessionRecord) -> Result<()>,
    ) -> Result<SessionRecord> {
        self.ensure_ready("changing a session's record")?;
        let (then, written) = write_notice();
        let record = self.inner.roster.change(session, Some(then), change)?;
        self.await_written(session, written).await?;
        Ok(self.as_shown(record))
    }

    /// Sets or removes a session's title.
    ///
    /// # Errors
    /// [`Error::UnknownSession`], [`Error::InvalidConfig`]; [`Error::Log`] or [`Error::Deadline`] if it is not durable.
    ///
    /// # Cancel safety
    /// A dropped future may still take effect.
    pub async fn rename_session(&self, session: &SessionId, title: Option<String>) -> Result<SessionRecord> {
        check_names(&[("title", title.as_deref())], &[])?;
        // A session without processes has nobody who follows its stream: its record has the title.
        let living = self.inner.session_table.get(session).ok();
        if let Some(living) = &living {
            living.emit_title(title.clone()).await;
        }
        let last_offset = living.map_or(0, |living| living.info().last_offset);
        self.change_record(session, |record| {
            record.config.lifecycle.title = title;
            record.last_offset = record.last_offset.max(last_offset);
            Ok(())
        })
        .await
    }

    /// Adds tags to a session, and removes some.
    ///
    /// # Errors
    /// [`Error::UnknownSession`], [`Error::InvalidConfig`]; [`Error::Log`] or [`Error::Deadline`] if it is not durable.
    ///
    /// # Cancel safety
    /// A dropped future may still take effect.
    pub async fn tag_session(&self, session: &SessionId, add: &[String], remove: &[String]) -> Result<SessionRecord> {
        self.change_record(session, |record| {
            let tags = &mut record.config.lifecycle.tags;
            tags.retain(|tag| !remove.contains(tag));
            for tag in add {
                if !tags.contains(tag) {
                    tags.push(tag.clone());
                }
            }
            check_names(&[], tags)
        })
        .await
    }

    /// Archives a session, or takes it out of the archive. A running session continues.
    ///
    /// # Errors
    /// [`Error::UnknownSession`]; [`Error::Log`] or [`Error::Deadline`] if it is not durable.
    ///
    /// # Cancel safety
    /// A dropped future may still take effect.
    pub async fn archive_session(&self, session: &SessionId, archived: bool) -> Result<SessionRecord> {
        self.change_record(session, |record| {
            record.archived = archived;
            Ok(())
        })
        .await
    }

    /// Finds the session with the key of `config`. A running session is returned, a suspended one is resumed, and the
    /// conversation of an ended one continues in a new session. `None` if there is none.
    pub(super) async fn resume_by_key(&self, config: &mut AgentSessionConfig) -> Result<Option<SessionHandle>> {
        let Some(record) = config.lifecycle.key.as_deref().and_then(|key| self.inner.roster.with_key(key)) else {
            return Ok(None);
        };
        let id = record.session_id.clone();
        self.ends_if_ending(&id).await;
        match self.inner.session_table.get(&id) {
            Ok(session) if session.is_suspended() => {
                let AgentSessionConfig { env, mcp_servers, endpoint, not_secret, lifecycle, .. } = config.clone();
                let options =
                    ResumeOptions { env, mcp_servers, endpoint, not_secret, on_missing: lifecycle.on_missing };
                self.resume(&id, "key", false, options).await.map(Some)
            }
            Ok(session) if session.ended().is_none() => Ok(Some(SessionHandle::new(session))),
            _ => {
                // Its profile may have been changed to another agent since.
                let mut wanted = config.clone();
                self.agent_defaults().apply_profile(&mut wanted)?;
                let is_its_agent = self.past(&id).await?.is_some_and(|past| past.agent == wanted.agent);
                if config.resume.is_none() && record.is_resumable() && is_its_agent {
                    let on_missing = match config.lifecycle.on_missing {
                        ResumeFallback::History => OnMissing::Inject { history: self.transcript(&id).await? },
                        ResumeFallback::Fail | ResumeFallback::New => OnMissing::StartAnew,
                    };
                    let from = ResumeFrom::Session { id };
                    config.resume = Some(ResumeRequest { from, fork: false, on_missing });
                }
                Ok(None)
            }
        }
    }
}

/// Reads the events of a stream after `from`, a page at a time. Blocks.
pub(super) fn read_stream<'a>(
    log: &'a EventLog,
    session: &'a SessionId,
    mut from: u64,
) -> impl Iterator<Item = std::result::Result<Arc<Envelope>, LogError>> + use<'a> {
    let pages = std::iter::from_fn(move || match log.read(session, from, ReadLimit::default()) {
        Ok(page) => {
            from = page.events.last()?.offset;
            Some(page.events.into_iter().map(Ok).collect())
        }
        Err(error) => Some(vec![Err(error)]),
    });
    pages.flatten()
}

impl ManagerInner {
    /// Restores the sessions of earlier managers. A session that a dead manager left running is suspended if its
    /// conversation can be resumed, else ended. Their processes have been ended, except those for which `lives` returns
    /// true. Returns the suspended sessions, which may have actions that were not run.
    pub(super) async fn restore(&self, lives: &(dyn Fn(&SessionId) -> bool + Sync)) -> Vec<SessionId> {
        let mut resting = Vec::new();
        for record in self.roster.list(&SessionFilter { archived: true, ..SessionFilter::default() }) {
            if lives(&record.session_id) {
                continue;
            }
            let was_live = record.status().is_live();
            if record.warm && was_live {
                // It was nobody's.
                if let Err(error) = self.forget_files(&record.session_id).await {
                    tracing::warn!(session = %record.session_id, error = %error.chain(), "failed to forget a warm session");
                }
                continue;
            }
            let reason = record.state.reason().cloned().unwrap_or(EndReason::HostDied);
            let rests = record.status() == SessionStatus::Suspended || (was_live && record.is_resumable());
            if !was_live && !rests {
                continue;
            }
            if rests && let Some(home) = &record.home {
                // The session still has its home. The resume reports a home that is gone.
                let (homes, home, id) = (self.homes.clone(), PathBuf::from(home), record.session_id.clone());
                let share = move || homes.share(&home, &id).map(|tenancy| tenancy.retain());
                let _ = blocking("looking for a session's home", share).await;
            }
            // The turn in which the host died cost money too.
            let count =
                if was_live { self.restore_counts(&record).await } else { TranscriptCounts::from_record(&record) };
            let receipt = self.receipt_of(&record.session_id);
            let next = match record.state.is_handed_over() {
                true => AfterSuspension::HandedOver,
                false => AfterSuspension::Resume,
            };
            let state = match rests {
                true => SessionState::Suspended { reason: reason.clone(), receipt: receipt.clone(), next },
                false => SessionState::ended(reason.clone(), receipt.clone()),
            };
            let session = ManagedSession::restored(&record, state, &count, self.deadlines, &self.streams, &self.roster);
            let session = Arc::new(session);
            // Nobody will do what it was asked for. What rests does it once it is resumed.
            let failures = if rests { Vec::new() } else { self.failures_of(&record.session_id, &reason).await };
            if was_live {
                let mut log = session.history().reopen();
                for (action, error) in failures {
                    log.push(0, Event::ActionFailed { action, error });
                }
                log.push(
                    0,
                    match rests {
                        true => Event::SessionSuspended { reason, receipt },
                        false => Event::SessionEnded { reason, receipt },
                    },
                );
                if rests {
                    log.keep_open();
                }
            }
            if rests && let Err(error) = self.session_table.insert(&session) {
                tracing::warn!(session = %record.session_id, error = %error.chain(), "failed to restore a suspended session");
            }
            if was_live {
                session.save_record();
            }
            if rests {
                resting.push(record.session_id);
            }
        }
        resting
    }

    /// Returns name and error of each action that a session which is over now has not done.
    async fn failures_of(&self, session: &SessionId, reason: &EndReason) -> Vec<(String, String)> {
        let Some(log) = self.streams.log.get() else { return Vec::new() };
        let last = log.head(session).map_or(0, |head| head.last);
        match find_undone_in(log, session, last).await {
            Ok(undone) => undone.into_failures(&format!("session {session} has ended: {reason}")),
            Err(error) => {
                tracing::warn!(%session, error = %error.chain(), "actions may be missed");
                Vec::new()
            }
        }
    }

    /// Forgets what is kept of a session; says whether there was anything.
    ///
    /// # Errors
    /// [`Error::FleetUnavailable`]; [`Error::Log`]; [`Error::Deadline`], after which they are deleted as soon as the log continues.
    pub(super) async fn forget(&self, session: &SessionId) -> Result<bool> {
        self.announce_deletion(session).await?;
        let (then, record_deleted) = write_notice();
        let had_record = self.roster.forget_then(session, Some(then));
        let Some(log) = self.streams.log.get() else { return Ok(had_record) };
        let head = log.head(session);
        if !had_record && head.is_none() {
            return Ok(false);
        }
        // Its first events may be on their way to the log, where nothing is known of them yet.
        let (then, events_deleted) = write_notice();
        log.delete(session, then);
        let after = self.deadlines.control;
        let deleted = async {
            if had_record {
                record_deleted.await.unwrap_or(Ok(()))?;
            }
            match events_deleted.await {
                Ok(Ok(())) => Ok(true),
                Ok(Err(LogError::Unknown { .. })) | Err(_) => Ok(false),
                Ok(Err(error)) => Err(error),
            }
        };
        let late = |_| Error::Deadline { operation: format!("deleting what is kept of session {session}"), after };
        let had_events = timeout(after, deleted).await.map_err(late)??;
        if head.is_some_and(|head| head.epoch > 0) {
            self.notify_forgotten(session);
        }
        Ok(had_record || had_events)
    }

    /// Receipt of the processes ended when this manager was built.
    fn receipt_of(&self, session: &SessionId) -> Option<Box<ipc_protocol::Receipt>> {
        let recovered = self.recovered.iter().find(|recovered| recovered.session_id.as_ref() == Some(session))?;
        match &recovered.outcome {
            RecoveryOutcome::Ended(receipt) => Some(receipt.clone()),
            _ => None,
        }
    }

    /// The events of a session that only the log knows.
    pub(super) fn past_history(&self, session: &SessionId) -> Option<Arc<SessionHistory>> {
        let head = self.streams.log.get()?.head(session)?;
        let (history, mut writer) = SessionHistory::new(Arc::new(session.clone()), &self.streams);
        writer.keep_open();
        if head.closed || self.session_table.get(session).is_err() {
            history.close();
        }
        Some(history)
    }
}

/// Creates the record of an imported session from its events.
///
/// # Errors
/// An error if the events cannot be read.
fn record_of_import(
    imported: &ImportSummary,
    events: impl Iterator<Item = std::result::Result<Arc<Envelope>, LogError>>,
) -> std::result::Result<SessionRecord, LogError> {
    let lifecycle = Lifecycle { tags: vec![IMPORTED.to_owned()], ..Lifecycle::default() };
    let config = AgentSessionConfig { session_id: imported.session.clone(), lifecycle, ..AgentSessionConfig::new("") };
    let mut record = SessionRecord::new(config, RecordState::Ended { reason: None });
    record.heartbeat = SystemTime::UNIX_EPOCH;
    record.last_offset = imported.last;
    let mut count = TranscriptCounts::default();
    for envelope in events {
        let envelope = envelope?;
        record.created_at = record.created_at.min(envelope.created_at);
        record.heartbeat = record.heartbeat.max(envelope.created_at);
        record.turns = record.turns.max(envelope.turn.unwrap_or_default());
        count.record(&envelope);
        match &envelope.event {
            Event::SessionStarted { agent, .. } => record.config.agent.clone_from(agent),
            Event::SessionEnded { reason, .. } => record.state = RecordState::Ended { reason: Some(reason.clone()) },
            _ => {}
        }
    }
    (record.messages, record.usage) = count.total();
    Ok(record)
}
