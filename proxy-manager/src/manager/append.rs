//! Events appended by others, and the actions they request.

use std::{
    collections::{HashSet, VecDeque},
    sync::{Arc, Weak},
    time::Duration,
};

use event_log::{EventLog, LogError, ReadLimit};
use ipc_protocol::{AbortPolicy, Envelope, Event, Json, KillOptions, Prompt, SessionId};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
    time::timeout,
};

use super::{MAX_RESUMES, ManagerInner, ProxyManager};
use crate::{
    actions::{self, ActionVerb, SessionAction},
    blocking::READING,
    error::{Error, Result},
    history::InUse,
    session::{AcceptedPrompt, ActionClass, BEGUN, ENDED, EventToAppend, ManagedSession, PromptMode, name_of},
};

/// Maximum lengths of an event's type and payload, in bytes.
const MAX_TYPE: usize = 256;
const MAX_PAYLOAD: usize = 1024 * 1024;
/// Maximum length of an event's metadata, in bytes.
const MAX_METADATA: usize = 16 * 1024;
/// Up to where what is done at once was claimed, in the event log: all but prompts that wait for their turn.
const CONSUMER: &str = "actions";
/// Consumer at the action that is being done; 0 for none.
const IN_PROGRESS: &str = "doing";
/// Number of newest events searched for actions that an earlier manager did not run, if no action of the stream was
/// ever claimed.
const MAX_MISSED: u64 = 10_000;
/// Bounds the number of sessions searched at a time: there may be thousands, and each read is a thread.
static MISSED_SEARCHES: Semaphore = Semaphore::const_new(4);
/// Error of an action during which its manager was killed.
pub(super) const INTERRUPTED: &str =
    "its host ended while it was being done: it may have been done, and is not done again";

/// An action, with the type of its event.
pub(super) struct RequestedAction {
    pub(super) kind: String,
    pub(super) action: Result<SessionAction, String>,
    metadata: Option<Json>,
    /// Place among the prompts that may wait.
    room: Option<OwnedSemaphorePermit>,
}

impl RequestedAction {
    fn class(&self) -> ActionClass {
        class_of(&self.action)
    }
}

fn class_of(action: &Result<SessionAction, String>) -> ActionClass {
    match action {
        Ok(SessionAction { verb: ActionVerb::Prompt { mode: PromptMode::Queue, .. }, .. }) => ActionClass::Queued,
        _ => ActionClass::Immediate,
    }
}

/// Actions that earlier managers accepted and did not do.
#[derive(Default)]
pub(super) struct UnfinishedActions {
    /// Prompts that wait, in order.
    prompts: Vec<(AcceptedPrompt, Result<SessionAction, String>)>,
    /// Of the rest: offset, type, and what is asked for, in order.
    others: Vec<(u64, String, Result<SessionAction, String>)>,
    /// The prompt whose turn was begun, and the number of that turn.
    begun: Option<(AcceptedPrompt, u64)>,
    /// Name of what else was being done.
    doing: Option<String>,
    /// Offset of the last event.
    last: u64,
}

impl UnfinishedActions {
    /// Finds the prompts that wait among the newest events of a session that another manager had. Its notes of what it had begun are
    /// its own: a prompt of the queue counts as begun once a turn with its text has, since they are begun in their order.
    pub(super) fn of_last_owner(events: &[Envelope]) -> Self {
        let mut waiting: VecDeque<(AcceptedPrompt, Result<SessionAction, String>, String)> = VecDeque::new();
        for envelope in events {
            match &envelope.event {
                Event::ActionFailed { action, .. } => waiting.retain(|(accepted, ..)| accepted.name != *action),
                Event::TurnStarted { prompt, .. } => {
                    waiting.pop_front_if(|(.., text)| text == prompt);
                }
                Event::External { kind, payload, .. } => {
                    let Some(action) = actions::parse(kind, payload) else { continue };
                    let Ok(SessionAction { verb: ActionVerb::Prompt { prompt, mode: PromptMode::Queue, .. }, .. }) =
                        &action
                    else {
                        continue;
                    };
                    let (at, metadata, text) = (envelope.created_at, envelope.metadata.clone(), prompt.text());
                    let accepted = AcceptedPrompt::new(kind.as_ref(), envelope.offset, None);
                    waiting.push_back((AcceptedPrompt { at, metadata, ..accepted }, action, text));
                }
                _ => {}
            }
        }
        let prompts = waiting.into_iter().map(|(accepted, action, _)| (accepted, action)).collect();
        Self { prompts, ..Self::default() }
    }

    /// The prompt whose turn goes on without its host, perhaps.
    pub(super) fn take_begun(&mut self) -> Option<(AcceptedPrompt, u64)> {
        self.begun.take()
    }

    /// Has the prompts wait in the session's queue. The rest is given back.
    pub(super) fn load(mut self, session: &ManagedSession) -> Self {
        let mut waiting = Vec::new();
        for (accepted, action) in std::mem::take(&mut self.prompts) {
            match action {
                Ok(SessionAction { agent, verb: ActionVerb::Prompt { prompt, by, .. } })
                    if agent.as_ref().is_none_or(|agent| *agent == session.metadata().agent) =>
                {
                    waiting.push((accepted.by(by), prompt));
                }
                // It is told why not, as anything else is.
                action => self.others.push((accepted.offset, kind_of(&accepted.name).to_owned(), action)),
            }
        }
        self.others.sort_by_key(|(offset, ..)| *offset);
        session.queue().load(waiting);
        self
    }

    /// Names of what was being done, and what was not begun, in order.
    pub(super) fn into_requests(self) -> (Vec<String>, Vec<(u64, RequestedAction)>) {
        let Self { prompts, others, begun, doing, .. } = self;
        let interrupted = begun.map(|(accepted, _)| accepted.name).into_iter().chain(doing).collect();
        let request = |kind: String, action, metadata| RequestedAction { kind, action, metadata, room: None };
        let prompts = prompts.into_iter().map(|(AcceptedPrompt { offset, name, metadata, .. }, action)| {
            (offset, request(kind_of(&name).to_owned(), action, metadata))
        });
        let others = others.into_iter().map(|(offset, kind, action)| (offset, request(kind, action, None)));
        let mut waiting: Vec<_> = prompts.chain(others).collect();
        waiting.sort_by_key(|(offset, _)| *offset);
        (interrupted, waiting)
    }

    /// The names of all of it, and why each is told as failed where the session is over.
    pub(super) fn into_failures(self, why: &str) -> Vec<(String, String)> {
        let Self { prompts, others, begun, doing, .. } = self;
        let interrupted = begun.map(|(accepted, _)| accepted.name).into_iter().chain(doing);
        let interrupted: Vec<_> = interrupted.map(|name| (0, name, INTERRUPTED.to_owned())).collect();
        let prompts = prompts.into_iter().map(|(accepted, _)| (accepted.offset, accepted.name, why.to_owned()));
        let others = others.into_iter().map(|(offset, kind, _)| (offset, name_of(&kind, offset), why.to_owned()));
        let mut waiting: Vec<_> = prompts.chain(others).collect();
        waiting.sort();
        interrupted.into_iter().chain(waiting).map(|(_, name, why)| (name, why)).collect()
    }
}

impl ProxyManager {
    /// Appends an event of somebody else's to a session's stream, and says its offset: with a state directory it is durable
    /// then. If its type asks for something (`agent:action:prompt:called`, …), that is done after it, at most once, in the order
    /// appended, or told as failed by an `action:failed`. So is what was being done when its host was killed: by the next
    /// manager, which does not do it again. A prompt waits for its turn ([`SessionInfo::queued`](crate::SessionInfo::queued)), over
    /// restarts too: then it is done when the session is resumed. What the rules ([`crate::ManagerBuilder::rules`]) make of the event is
    /// appended with it, and done in the same way.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if the type is one of ours, or the event too long; [`Error::Ended`] if the session is over;
    /// [`Error::Busy`] if it asks for something, by itself or by a rule, and 64 things wait to be done already: nothing is appended
    /// then. [`Error::Log`] if
    /// the event log cannot take it: it is not durable then, and nothing that it asks for is done, though who subscribes may
    /// have seen it. [`Error::Deadline`] if the log takes too long: it may be kept yet, and what it asks for is done then. Else as
    /// [`ProxyManager`] says.
    ///
    /// # Cancel safety
    /// A dropped future may still append the event: run it in a task of its own, and the offset is known.
    pub async fn append_event(&self, session: &SessionId, kind: &str, version: u32, payload: Json) -> Result<u64> {
        self.append(session, NewEvent { kind: kind.to_owned(), version, payload, metadata: None }).await
    }

    /// Appends an event like [`ProxyManager::append_event`], with metadata: correlation ids, for example. They come back to every reader,
    /// and with the turn of a prompt that is asked for.
    ///
    /// # Errors
    /// As [`ProxyManager::append_event`]; [`Error::InvalidConfig`] for metadata that is no JSON object, has a member `turn`, or is longer
    /// than 16 KiB.
    ///
    /// # Cancel safety
    /// As [`ProxyManager::append_event`].
    pub async fn append(&self, session: &SessionId, event: NewEvent) -> Result<u64> {
        self.ensure_ready("appending an event")?;
        let id = session;
        let session = self.inner.session_table.get(id);
        let (events, mut asked) = self.requested(event)?;
        let session = session?;
        let ours = events.len() as u64;
        if asked.iter().all(Option::is_none) {
            let mut events = events;
            return match events.pop() {
                Some(EventToAppend { event, metadata, .. }) => session.append_with(event, metadata).await,
                None => Ok(0),
            };
        }
        let mut room = None;
        for ask in asked.iter_mut().flatten() {
            match ask.class() {
                ActionClass::Queued => ask.room = Some(session.queue().room(id)?),
                ActionClass::Immediate if room.is_none() => room = Some(session.row().room(id)?),
                ActionClass::Immediate => {}
            }
        }
        let (manager, of) = (Arc::downgrade(&self.inner), id.clone());
        let act = move |last: u64| async move {
            for (offset, ask) in (last + 1 - ours..).zip(asked) {
                // If there is a manager still.
                if let (Some(ask), Some(inner)) = (ask, Weak::upgrade(&manager)) {
                    // Large, and moved about while it waits.
                    Box::pin(Self { inner }.act_once(&of, offset, ask)).await;
                }
            }
        };
        Ok(session.append_and_act(room, events, act).await? + 1 - ours)
    }

    /// Checks an event that is to be appended. Returns it with what the rules make of it, and what each asks for.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`].
    pub(super) fn requested(&self, event: NewEvent) -> Result<(Vec<EventToAppend>, Vec<Option<RequestedAction>>)> {
        let NewEvent { kind, version, payload, metadata } = event;
        check(&kind, &payload)?;
        check_metadata(metadata.as_ref())?;
        let made = self.inner.rules.iter().filter_map(|rule| rule.apply(&kind, &payload));
        let made: Vec<_> = made.map(|(kind, payload)| (kind, 1, payload)).collect();
        let (mut events, mut asked) = (Vec::new(), Vec::new());
        for (kind, version, payload) in std::iter::once((kind, version, payload)).chain(made) {
            let action = actions::parse(&kind, &payload);
            let ask = action.map(|action| RequestedAction {
                kind: kind.clone(),
                action,
                metadata: metadata.clone(),
                room: None,
            });
            let event = Event::External { kind: kind.into(), version, payload };
            let class = ask.as_ref().map(RequestedAction::class);
            events.push(EventToAppend { event, metadata: metadata.clone(), class });
            asked.push(ask);
        }
        Ok((events, asked))
    }

    /// Does what was asked for, or tells why not. While the manager is shut down it does nothing: what was not claimed is done by the
    /// next one.
    pub(super) async fn act_once(&self, id: &SessionId, offset: u64, asked: RequestedAction) {
        let Ok(session) = self.ensure_open().and_then(|()| self.inner.session_table.get(id)) else { return };
        if asked.class() == ActionClass::Queued {
            return self.wait_for_turn(&session, offset, asked).await;
        }
        let RequestedAction { kind, action, metadata, .. } = asked;
        let name = name_of(&kind, offset);
        // Before it is claimed: of what is claimed it is known whether it was begun.
        self.record_in_progress(id, offset);
        let done = match self.claim_action(id, offset).await {
            Ok(()) => {
                session.queue().settle(offset);
                match action {
                    Ok(action) => self
                        .act(id, AcceptedPrompt::new(&kind, offset, None).with_metadata(metadata), action)
                        .await
                        .map_err(|error| error.chain()),
                    Err(why) => Err(why),
                }
            }
            Err(error) => Err(error.chain()),
        };
        let is_told = match done {
            Ok(()) => true,
            Err(error) => {
                session.queue().settle(offset);
                session.report_failed(name, error).await
            }
        };
        if is_told {
            self.record_in_progress(id, 0);
        }
    }

    /// Has a prompt wait for its turn. It is claimed when that begins.
    async fn wait_for_turn(
        &self,
        session: &ManagedSession,
        offset: u64,
        RequestedAction { kind, action, metadata, room }: RequestedAction,
    ) {
        let accepted = AcceptedPrompt::new(&kind, offset, room).with_metadata(metadata);
        let name = accepted.name.clone();
        let placed = match action {
            Ok(SessionAction { agent, verb: ActionVerb::Prompt { prompt, mode, by } }) => {
                let accepted = accepted.by(by);
                match for_its_agent(session, agent) {
                    Ok(()) => self.place(session.id(), prompt, mode, accepted).await,
                    Err(error) => Err(error),
                }
            }
            _ => Ok(()),
        };
        if let Err(error) = placed {
            session.tell_unplaced(offset, name, &error).await;
        }
    }

    /// Has a prompt that is in the log wait for its turn, in a session that is resumed for it if it wants to be.
    async fn place(&self, id: &SessionId, prompt: Prompt, mode: PromptMode, accepted: AcceptedPrompt) -> Result<()> {
        for _ in 0..MAX_RESUMES {
            self.ensure_open()?;
            let session = self.inner.session_table.get(id)?;
            if !session.is_suspended() {
                match session.place(prompt.clone(), mode, accepted.clone()).await {
                    // It is about to rest.
                    Err(Error::Suspended { .. }) => {
                        // What it ended with does not matter here.
                        let _ = session.end_within(session.longest_kill(KillOptions::default())).await;
                        continue;
                    }
                    placed => return placed.map(drop),
                }
            }
            if session.is_handed_over() || !session.resumes_on_prompt() {
                return Err(session.ended_error());
            }
            // Else somebody else has resumed it.
            if session.place_at_rest(prompt.clone(), accepted.clone()).is_some() {
                let resumed = self.awake(id).await;
                // Where it is not there any more, it was begun, or told as failed.
                return resumed.map(drop).or_else(|error| match session.queue().remove(accepted.offset) {
                    Some(_) => Err(error),
                    None => Ok(()),
                });
            }
        }
        Err(Error::Suspended { session: id.clone() })
    }

    /// Notes which action is being done; nobody waits for that.
    pub(super) fn record_in_progress(&self, id: &SessionId, offset: u64) {
        self.note_cursor(IN_PROGRESS, id, offset);
    }

    fn note_cursor(&self, consumer: &str, id: &SessionId, offset: u64) {
        if let Some(log) = self.inner.streams.log.get() {
            log.set_cursor(consumer, id, offset, Box::new(|_| {}));
        }
    }

    /// Claims an action that is about to run: it is never run again, whatever happens.
    pub(super) async fn claim_action(&self, id: &SessionId, offset: u64) -> Result<()> {
        let Some(log) = self.inner.streams.log.get() else { return Ok(()) };
        store_claim(&log, id, offset, self.inner.deadlines.control).await
    }

    async fn act(
        &self,
        id: &SessionId,
        accepted: AcceptedPrompt,
        SessionAction { agent, verb }: SessionAction,
    ) -> Result<()> {
        let session = self.inner.session_table.get(id)?;
        for_its_agent(&session, agent)?;
        match verb {
            ActionVerb::Prompt { prompt, mode: PromptMode::Steer, .. } => {
                let turn = self.send_prompt(id, prompt, PromptMode::Steer).await?;
                // Its turn may fail.
                tokio::spawn(async move {
                    if let Err(error) = turn.wait().await {
                        session.report_failed(accepted.name, error.chain()).await;
                    }
                });
                Ok(())
            }
            ActionVerb::Prompt { prompt, mode, by } => {
                self.awake(id).await?;
                self.place(id, prompt, mode, accepted.by(by)).await
            }
            ActionVerb::Steer { text } => self.session(id)?.steer(text).await,
            ActionVerb::Abort { kill } => {
                let policy = if kill { AbortPolicy::KillTurnProcesses } else { AbortPolicy::LeaveProcesses };
                self.abort_session(id, policy).await.map(drop)
            }
            ActionVerb::Permission { request, answer } => self.session(id)?.respond_permission(&request, answer).await,
            ActionVerb::Destroy(options) => self.kill_session(id, options).await.map(drop),
            ActionVerb::Create { config, .. } => {
                let created = self.start_session(*config).await?;
                let (status, detail) = ("sessionCreated".to_owned(), created.id().to_string());
                session.append(Event::SessionStatus { status, detail }).await.map(drop)
            }
        }
    }

    /// Looks for what earlier managers accepted in a session at rest and did not do. Its prompts wait for the resume; the rest is
    /// done before anything that this manager is asked for.
    pub(super) async fn resume_for_missed(&self, id: SessionId) {
        let last = self.inner.streams.log.get().and_then(|log| log.head(&id)).map(|head| head.last);
        let (Some(last), Ok(session)) = (last, self.inner.session_table.get(&id)) else { return };
        session.queue().loads();
        let manager = Arc::downgrade(&self.inner);
        let (row, of) = (session.row().clone(), session);
        let missed = async move {
            let mut undone = match find_undone(&manager, &id, last).await {
                Ok(undone) => undone,
                Err(error) => {
                    tracing::warn!(session = %id, error = %error.chain(), "actions may be missed");
                    UnfinishedActions::default()
                }
            };
            report_interrupted(&manager, &id, &mut undone).await;
            let undone = undone.load(&of);
            drop(of);
            act_on_missed(&manager, &id, undone).await;
        };
        row.run_first(missed).await;
    }
}

/// Records the claim in the log. If the log takes too long, the action does not run; the claim may still be recorded.
async fn store_claim(log: &EventLog, id: &SessionId, offset: u64, after: Duration) -> Result<()> {
    let (done, claimed) = oneshot::channel();
    log.set_cursor(CONSUMER, id, offset, Box::new(move |result| _ = done.send(result)));
    match timeout(after, claimed).await {
        Ok(claimed) => claimed.unwrap_or(Ok(())).map_err(Error::from),
        Err(_) => {
            let operation = format!("noting that an action of session {id} is done");
            Err(Error::Deadline { operation, after })
        }
    }
}

fn for_its_agent(session: &ManagedSession, agent: Option<String>) -> Result<()> {
    let its = &session.metadata().agent;
    match agent.filter(|agent| agent != its) {
        None => Ok(()),
        Some(agent) => {
            let reason = format!("it is for agent {agent:?}, and this session has {its:?}");
            Err(Error::InvalidConfig { field: "type", reason })
        }
    }
}

/// Tells of what the last manager was killed in: nobody knows whether it was done.
async fn report_interrupted(manager: &Weak<ManagerInner>, id: &SessionId, undone: &mut UnfinishedActions) {
    let Some(manager) = manager.upgrade().map(|inner| ProxyManager { inner }) else { return };
    let Ok(session) = manager.inner.session_table.get(id) else { return };
    if let Some((AcceptedPrompt { offset, name, .. }, _)) = undone.begun.take()
        && session.report_failed(name, INTERRUPTED.to_owned()).await
    {
        manager.note_cursor(ENDED, id, offset);
    }
    if let Some(name) = undone.doing.take()
        && session.report_failed(name, INTERRUPTED.to_owned()).await
    {
        manager.record_in_progress(id, 0);
    }
}

/// Does what earlier managers were asked for and had no time for, but for prompts, which wait.
pub(super) async fn act_on_missed(manager: &Weak<ManagerInner>, id: &SessionId, mut undone: UnfinishedActions) {
    report_interrupted(manager, id, &mut undone).await;
    let UnfinishedActions { others, last, .. } = undone;
    let Some(manager) = manager.upgrade().map(|inner| ProxyManager { inner }) else { return };
    if last == 0 {
        return;
    }
    for (offset, kind, action) in others {
        let missed = RequestedAction { kind, action, metadata: None, room: None };
        Box::pin(manager.act_once(id, offset, missed)).await;
    }
    // What was looked through is not looked through again, by any manager. After a shutdown there may be some that were not done.
    if manager.ensure_open().is_ok()
        && let Err(error) = manager.claim_action(id, last).await
    {
        tracing::warn!(session = %id, error = %error.chain(), "what was looked for is looked for again");
    }
}

/// Finds the actions in a session's stream, up to `last`, that earlier managers accepted and did not do.
async fn find_undone(manager: &Weak<ManagerInner>, id: &SessionId, last: u64) -> Result<UnfinishedActions> {
    match manager.upgrade().and_then(|inner| inner.streams.log.get()) {
        Some(log) => find_undone_in(log, id, last).await,
        None => Ok(UnfinishedActions::default()),
    }
}

/// The same in this log.
pub(super) async fn find_undone_in(log: InUse, id: &SessionId, last: u64) -> Result<UnfinishedActions> {
    let of = id.clone();
    // It is never closed.
    let _turn = MISSED_SEARCHES.acquire().await;
    Ok(READING.run("looking for what was asked for", move || undone_in(&log, &of, last)).await??)
}

/// The same. Blocks.
fn undone_in(log: &EventLog, id: &SessionId, last: u64) -> std::result::Result<UnfinishedActions, LogError> {
    let cursor = |consumer| log.cursor(consumer, id);
    let (claimed, doing, ended) = (cursor(CONSUMER)?, cursor(IN_PROGRESS)?, cursor(ENDED)?);
    // Zero: no prompt was ever queued, so the rest says where to begin.
    let (begun, interrupted) = match cursor(BEGUN)? {
        0 => (claimed, 0),
        begun => (begun, if begun > ended { begun } else { 0 }),
    };
    let mut from = first_undone(claimed.min(begun), last);
    for offset in [doing, interrupted] {
        if offset > 0 {
            from = from.min(offset - 1);
        }
    }
    let mut undone = UnfinishedActions { last, ..UnfinishedActions::default() };
    let mut failed = HashSet::new();
    let (mut turn, mut completed) = (0, None);
    while from < last {
        let page = match log.read(id, from, ReadLimit::default()) {
            Ok(page) => page,
            Err(LogError::Corrupt { lost: Some(lost), .. }) => {
                tracing::warn!(session = %id, ?lost, "events are damaged: what they ask for is not done");
                from = lost.to;
                continue;
            }
            Err(error) => return Err(error),
        };
        let Some(end) = page.events.last() else { break };
        from = end.offset;
        for envelope in page.events.iter().filter(|envelope| envelope.offset <= last) {
            match &envelope.event {
                Event::ActionFailed { action, .. } => _ = failed.insert(action.clone()),
                // A number may come again, where the record of the first was not written.
                Event::TurnStarted { .. } => (turn, completed) = (envelope.turn.unwrap_or(turn), None),
                Event::Complete { .. } => completed = envelope.turn,
                Event::External { kind, payload, .. } => {
                    let offset = envelope.offset;
                    let Some(action) = actions::parse(kind, payload) else { continue };
                    let (class, kind) = (class_of(&action), kind.to_string());
                    let accepted = AcceptedPrompt {
                        at: envelope.created_at,
                        metadata: envelope.metadata.clone(),
                        ..AcceptedPrompt::new(&kind, offset, None)
                    };
                    // One that was not claimed is still to be done.
                    if offset == doing && doing <= claimed {
                        undone.doing = Some(accepted.name.clone());
                    }
                    let is_prompt = matches!(action, Ok(SessionAction { verb: ActionVerb::Prompt { .. }, .. }));
                    if offset == interrupted && is_prompt {
                        undone.begun = Some((accepted, 0));
                    } else if class == ActionClass::Queued && offset > begun {
                        undone.prompts.push((accepted, action));
                    } else if class == ActionClass::Immediate && offset > claimed {
                        undone.others.push((offset, kind, action));
                    }
                }
                _ => {}
            }
        }
    }
    // It was the last that was begun.
    undone.begun.iter_mut().for_each(|(_, number)| *number = turn);
    let is_told = |name: &String| failed.contains(name);
    // Its host may have been killed between the agent's last word and the end of the turn.
    undone.begun = undone.begun.filter(|(accepted, _)| !is_told(&accepted.name) && completed != Some(turn));
    undone.doing = undone.doing.filter(|name| !is_told(name));
    if undone.begun.as_ref().map(|(accepted, _)| &accepted.name) == undone.doing.as_ref() {
        undone.doing = None;
    }
    undone.prompts.retain(|(accepted, _)| !is_told(&accepted.name));
    undone.others.retain(|(offset, kind, _)| !is_told(&name_of(kind, *offset)));
    Ok(undone)
}

/// The offset behind which something may be undone.
fn first_undone(done: u64, last: u64) -> u64 {
    if done > 0 { done } else { last.saturating_sub(MAX_MISSED) }
}

/// The type in the name of an action.
fn kind_of(name: &str) -> &str {
    name.split_once(' ').map_or(name, |(kind, _)| kind)
}

/// Event to append to a session's stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEvent {
    /// Type: 1 to 256 bytes without white space, and none of ours.
    pub kind: String,
    /// Version of the payload's shape.
    pub version: u32,
    /// Payload, at most 1 MiB.
    pub payload: Json,
    /// Metadata: a JSON object of at most 16 KiB, without the member `turn`.
    pub metadata: Option<Json>,
}

/// Checks metadata of a caller.
///
/// # Errors
/// [`Error::InvalidConfig`].
pub(super) fn check_metadata(metadata: Option<&Json>) -> Result<()> {
    let Some(metadata) = metadata else { return Ok(()) };
    let invalid = |reason| Err(Error::InvalidConfig { field: "metadata", reason });
    let length = metadata.as_str().len();
    if length > MAX_METADATA {
        return invalid(format!("{length} bytes are too many: {MAX_METADATA} at the most"));
    }
    match metadata.value().as_object() {
        None => invalid("it has to be a JSON object".to_owned()),
        Some(members) if members.contains_key("turn") => invalid("the member `turn` is the manager's".to_owned()),
        Some(_) => Ok(()),
    }
}

fn check(kind: &str, payload: &Json) -> Result<()> {
    let invalid = |field, reason| Err(Error::InvalidConfig { field, reason });
    if kind.is_empty() || kind.len() > MAX_TYPE || kind.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return invalid("type", format!("{kind:?} must have 1 to {MAX_TYPE} bytes and no white space"));
    }
    if Event::is_reserved_kind(kind) {
        return invalid("type", format!("only the manager appends events of type {kind:?}: choose a type of your own"));
    }
    let length = payload.as_str().len();
    if length > MAX_PAYLOAD {
        return invalid("payload", format!("{length} bytes are too many: {MAX_PAYLOAD} at the most"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::SystemTime};

    use event_log::{EventBatch, LogOptions, MemoryLimits};

    use super::*;

    #[test]
    fn prompts_that_the_last_owner_did_not_begin_wait() {
        let prompt = |text: &str| Event::External {
            kind: "agent:action:prompt:called".into(),
            version: 1,
            payload: Json::from(&serde_json::json!({ "content": text })),
        };
        let started = |text: &str| Event::TurnStarted { prompt: text.to_owned(), attachments: Vec::new() };
        let events = [
            prompt("one"),
            started("one"),
            prompt("two"),
            prompt("two"),
            prompt("three"),
            // Of somebody who did not wait in the queue.
            started("another"),
            started("two"),
            Event::ActionFailed { action: name_of("agent:action:prompt:called", 5), error: String::new() },
            prompt("four"),
        ];
        let session: Arc<SessionId> = Arc::new("s".parse().expect("a valid id"));
        let envelope = |(offset, event): (u64, Event)| {
            let (created_at, session) = (SystemTime::now(), session.clone());
            Envelope { offset, created_at, session, turn: None, metadata: None, event }
        };
        let events: Vec<Envelope> = (1..).zip(events).map(envelope).collect();
        let waits = UnfinishedActions::of_last_owner(&events).prompts;
        assert_eq!(waits.iter().map(|(accepted, _)| accepted.offset).collect::<Vec<_>>(), [4, 9]);
    }

    #[test]
    fn what_was_missed_is_looked_for_from_where_it_is_known_to_be_done() {
        const LAST: u64 = 2 * MAX_MISSED;
        let log = EventLog::memory(MemoryLimits { events: usize::MAX, bytes: usize::MAX });
        let session: Arc<SessionId> = Arc::new("s".parse().expect("a valid id"));
        let created_at = SystemTime::now();
        // Each fourth is a prompt, an abort, a failure of the abort, or nothing that asks for anything.
        let event = |offset: u64| {
            let asks = |kind: &str, payload: serde_json::Value| Event::External {
                kind: kind.into(),
                version: 1,
                payload: Json::from(&payload),
            };
            let event = match offset % 4 {
                0 => asks("agent:action:prompt:called", serde_json::json!({"text": "hi"})),
                1 => asks("agent:action:abort:called", serde_json::Value::Null),
                2 => {
                    let action = name_of("agent:action:abort:called", offset - 1);
                    Event::ActionFailed { action, error: String::new() }
                }
                _ => Event::SessionIdle {},
            };
            let (session, turn) = (session.clone(), None);
            Arc::new(Envelope { offset, created_at, session, turn, metadata: None, event })
        };
        let events = (1..=LAST).map(event).collect();
        let batch = EventBatch { session: session.clone(), created_at, first: 1, events, source: 0, cursor: None };
        log.append(batch, Box::new(|result| result.expect("kept"))).expect("room");
        let set = |consumer, offset| log.set_cursor(consumer, &session, offset, Box::new(|set| set.expect("kept")));
        let look = || {
            let undone = undone_in(&log, &session, LAST).expect("read");
            let first = undone.prompts.first().map(|(accepted, _)| accepted.offset);
            (first, undone.others.len(), undone.begun.map(|(accepted, _)| accepted.offset))
        };
        // There is a bound where nothing is known.
        assert_eq!(look(), (Some(LAST - MAX_MISSED + 4), 0, None));
        // No prompt was queued before.
        set(CONSUMER, 5);
        assert_eq!(look(), (Some(8), 0, None));
        // A prompt was begun, and others behind it wait, though what came later is done.
        set(BEGUN, 12);
        set(CONSUMER, LAST);
        assert_eq!(look(), (Some(16), 0, Some(12)));
        set(ENDED, 12);
        assert_eq!(look(), (Some(16), 0, None));
        set(BEGUN, LAST);
        set(ENDED, LAST);
        assert_eq!(look(), (None, 0, None));
    }

    #[tokio::test]
    async fn a_log_that_stands_still_holds_up_no_row_for_ever() {
        let folder = tempfile::tempdir().expect("a directory");
        let log = EventLog::open(folder.path().join("log.sqlite"), LogOptions::default()).expect("a log");
        let session: SessionId = "s".parse().expect("a valid id");
        // The log's writer stands still in this.
        let (go_on, waits) = mpsc::channel::<()>();
        let (told, tells) = mpsc::channel();
        let stall = move |_| {
            told.send(()).expect("heard");
            _ = waits.recv();
        };
        log.put_session(&session, String::new(), Box::new(stall));
        tells.recv().expect("it stalls");
        let claim = store_claim(&log, &session, 1, Duration::from_millis(1));
        let claimed = timeout(Duration::from_secs(20), claim).await.expect("in time");
        assert!(matches!(claimed, Err(Error::Deadline { .. })), "{claimed:?}");
        go_on.send(()).expect("it waits");
    }
}
