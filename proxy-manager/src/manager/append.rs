//! Events appended by others, and the actions they request.

use std::{
    collections::HashSet,
    sync::{Arc, Weak},
    time::Duration,
};

use event_log::{EventLog, Limit, LogError};
use ipc_protocol::{AbortPolicy, Event, Json, KillOptions, Prompt, SessionId};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
    time::timeout,
};

use super::{Inner, ProxyManager, RESUMES};
use crate::{
    actions::{self, Action, Verb},
    blocking::READING,
    error::{Error, Result},
    history::InUse,
    session::{Accepted, Appending, BEGUN, Class, ENDED, PromptMode, Session, name_of},
};

/// Maximum lengths of an event's type and payload, in bytes.
const LONGEST_TYPE: usize = 256;
const LONGEST_PAYLOAD: usize = 1024 * 1024;
/// Up to where what is done at once was claimed, in the event log: all but prompts that wait for their turn.
const CONSUMER: &str = "actions";
/// Consumer at the action that is being done; 0 for none.
const DOING: &str = "doing";
/// Number of newest events searched for actions that an earlier manager did not run, if no action of the stream was
/// ever claimed.
const LOOK_BACK: u64 = 10_000;
/// Bounds the number of sessions searched at a time: there may be thousands, and each read is a thread.
static LOOKING: Semaphore = Semaphore::const_new(4);
/// Error of an action during which its manager was killed.
const INTERRUPTED: &str = "its host ended while it was being done: it may have been done, and is not done again";

/// An action, with the type of its event.
struct Asked {
    kind: String,
    action: Result<Action, String>,
    /// Place among the prompts that may wait.
    room: Option<OwnedSemaphorePermit>,
}

impl Asked {
    fn class(&self) -> Class {
        class_of(&self.action)
    }
}

fn class_of(action: &Result<Action, String>) -> Class {
    match action {
        Ok(Action { verb: Verb::Prompt { mode: PromptMode::Queue, .. }, .. }) => Class::Queued,
        _ => Class::Immediate,
    }
}

/// Actions that earlier managers accepted and did not do.
#[derive(Default)]
pub(super) struct Undone {
    /// Prompts that wait, in order.
    prompts: Vec<(Accepted, Result<Action, String>)>,
    /// Of the rest: offset, type, and what is asked for, in order.
    others: Vec<(u64, String, Result<Action, String>)>,
    /// The prompt whose turn was begun, and the number of that turn.
    begun: Option<(Accepted, u64)>,
    /// Name of what else was being done.
    doing: Option<String>,
    /// Offset of the last event.
    last: u64,
}

impl Undone {
    /// The prompt whose turn goes on without its host, perhaps.
    pub(super) fn take_begun(&mut self) -> Option<(Accepted, u64)> {
        self.begun.take()
    }

    /// Has the prompts wait in the session's queue. The rest is given back.
    pub(super) fn load(mut self, session: &Session) -> Self {
        let mut waiting = Vec::new();
        for (accepted, action) in std::mem::take(&mut self.prompts) {
            match action {
                Ok(Action { agent, verb: Verb::Prompt { prompt, .. } })
                    if agent.as_ref().is_none_or(|agent| *agent == session.metadata().agent) =>
                {
                    waiting.push((accepted, prompt));
                }
                // It is told why not, as anything else is.
                action => self.others.push((accepted.offset, kind_of(&accepted.name).to_owned(), action)),
            }
        }
        self.others.sort_by_key(|(offset, ..)| *offset);
        session.queue().load(waiting);
        self
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
    /// restarts too: then it is done when the session is resumed. What the rules ([`crate::Builder::rules`]) make of the event is
    /// appended with it, and done in the same way.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if the type is one of ours, or the event too long; [`Error::Ended`] if the session is over;
    /// [`Error::Busy`] if it asks for something, by itself or by a rule, and 64 things wait to be done already: nothing is appended
    /// then. [`Error::Log`] if
    /// the event log cannot take it: it is not durable then, and nothing that it asks for is done, though who subscribes may
    /// have seen it. [`Error::Deadline`] if the log takes too long: it may be kept yet, and what it asks for is done then. Else as
    /// [`ProxyManager`] says.
    pub async fn append_event(&self, session: &SessionId, kind: &str, version: u32, payload: Json) -> Result<u64> {
        check(kind, &payload)?;
        self.open()?;
        let id = session;
        let session = self.inner.directory.get(id)?;
        let made = self.inner.rules.iter().filter_map(|rule| rule.apply(kind, &payload));
        let made: Vec<_> = made.map(|(kind, payload)| (kind, 1, payload)).collect();
        let (mut events, mut asked) = (Vec::new(), Vec::new());
        for (kind, version, payload) in std::iter::once((kind.to_owned(), version, payload)).chain(made) {
            let action = actions::parse(&kind, &payload);
            let ask = action.map(|action| Asked { kind: kind.clone(), action, room: None });
            let event = Event::External { kind: kind.into(), version, payload };
            events.push(Appending { event, class: ask.as_ref().map(Asked::class) });
            asked.push(ask);
        }
        let ours = events.len() as u64;
        if asked.iter().all(Option::is_none) {
            let mut events = events;
            return match events.pop() {
                Some(Appending { event, .. }) => session.append(event).await,
                None => Ok(0),
            };
        }
        let mut room = None;
        for ask in asked.iter_mut().flatten() {
            match ask.class() {
                Class::Queued => ask.room = Some(session.queue().room(id)?),
                Class::Immediate if room.is_none() => room = Some(session.row().room(id)?),
                Class::Immediate => {}
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

    /// Does what was asked for, or tells why not. While the manager is shut down it does nothing: what was not claimed is done by the
    /// next one.
    async fn act_once(&self, id: &SessionId, offset: u64, asked: Asked) {
        let Ok(session) = self.open().and_then(|()| self.inner.directory.get(id)) else { return };
        if asked.class() == Class::Queued {
            return self.wait_for_turn(&session, offset, asked).await;
        }
        let Asked { kind, action, .. } = asked;
        let name = name_of(&kind, offset);
        // Before it is claimed: of what is claimed it is known whether it was begun.
        self.note_doing(id, offset);
        let done = match self.claim(id, offset).await {
            Ok(()) => {
                session.queue().settle(offset);
                match action {
                    Ok(action) => {
                        self.act(id, Accepted::new(&kind, offset, None), action).await.map_err(|error| error.chain())
                    }
                    Err(why) => Err(why),
                }
            }
            Err(error) => Err(error.chain()),
        };
        let is_told = match done {
            Ok(()) => true,
            Err(error) => {
                session.queue().settle(offset);
                session.tell_failed(name, error).await
            }
        };
        if is_told {
            self.note_doing(id, 0);
        }
    }

    /// Has a prompt wait for its turn. It is claimed when that begins.
    async fn wait_for_turn(&self, session: &Session, offset: u64, Asked { kind, action, room }: Asked) {
        let accepted = Accepted::new(&kind, offset, room);
        let name = accepted.name.clone();
        let placed = match action {
            Ok(Action { agent, verb: Verb::Prompt { prompt, mode } }) => match for_its_agent(session, agent) {
                Ok(()) => self.place(session.id(), prompt, mode, accepted).await,
                Err(error) => Err(error),
            },
            _ => Ok(()),
        };
        if let Err(error) = placed {
            session.tell_unplaced(offset, name, &error).await;
        }
    }

    /// Has a prompt that is in the log wait for its turn, in a session that is resumed for it if it wants to be.
    async fn place(&self, id: &SessionId, prompt: Prompt, mode: PromptMode, accepted: Accepted) -> Result<()> {
        for _ in 0..RESUMES {
            self.open()?;
            let session = self.inner.directory.get(id)?;
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
                return Err(session.over());
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
    fn note_doing(&self, id: &SessionId, offset: u64) {
        self.note_cursor(DOING, id, offset);
    }

    fn note_cursor(&self, consumer: &str, id: &SessionId, offset: u64) {
        if let Some(log) = self.inner.streams.log.get() {
            log.set_cursor(consumer, id, offset, Box::new(|_| {}));
        }
    }

    /// Claims an action that is about to run: it is never run again, whatever happens.
    async fn claim(&self, id: &SessionId, offset: u64) -> Result<()> {
        let Some(log) = self.inner.streams.log.get() else { return Ok(()) };
        claim_in(&log, id, offset, self.inner.deadlines.control).await
    }

    async fn act(&self, id: &SessionId, accepted: Accepted, Action { agent, verb }: Action) -> Result<()> {
        let session = self.inner.directory.get(id)?;
        for_its_agent(&session, agent)?;
        match verb {
            Verb::Prompt { prompt, mode: PromptMode::Steer } => {
                let turn = self.send_prompt(id, prompt, PromptMode::Steer).await?;
                // Its turn may fail.
                tokio::spawn(async move {
                    if let Err(error) = turn.wait().await {
                        session.tell_failed(accepted.name, error.chain()).await;
                    }
                });
                Ok(())
            }
            Verb::Prompt { prompt, mode } => {
                self.awake(id).await?;
                self.place(id, prompt, mode, accepted).await
            }
            Verb::Steer { text } => self.session(id)?.steer(text).await,
            Verb::Abort { kill } => {
                let policy = if kill { AbortPolicy::KillTurnProcesses } else { AbortPolicy::LeaveProcesses };
                self.abort_session(id, policy).await.map(drop)
            }
            Verb::Permission { request, answer } => self.session(id)?.respond_permission(&request, answer).await,
            Verb::Destroy(options) => self.kill_session(id, options).await.map(drop),
            Verb::Create(config) => {
                let created = self.start_session(*config).await?;
                let (status, detail) = ("sessionCreated".to_owned(), created.id().to_string());
                session.append(Event::SessionStatus { status, detail }).await.map(drop)
            }
        }
    }

    /// Looks for what earlier managers accepted in a session at rest and did not do. Its prompts wait for the resume; the rest is
    /// done before anything that this manager is asked for.
    pub(super) async fn wake_for_missed(&self, id: SessionId) {
        let last = self.inner.streams.log.get().and_then(|log| log.head(&id)).map(|head| head.last);
        let (Some(last), Ok(session)) = (last, self.inner.directory.get(&id)) else { return };
        session.queue().loads();
        let manager = Arc::downgrade(&self.inner);
        let (row, of) = (session.row().clone(), session);
        let missed = async move {
            let mut undone = match find_undone(&manager, &id, last).await {
                Ok(undone) => undone,
                Err(error) => {
                    tracing::warn!(session = %id, error = %error.chain(), "actions may be missed");
                    Undone::default()
                }
            };
            tell_interrupted(&manager, &id, &mut undone).await;
            let undone = undone.load(&of);
            drop(of);
            act_on_missed(&manager, &id, undone).await;
        };
        row.begin_with(missed).await;
    }
}

/// Records the claim in the log. If the log takes too long, the action does not run; the claim may still be recorded.
async fn claim_in(log: &EventLog, id: &SessionId, offset: u64, after: Duration) -> Result<()> {
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

fn for_its_agent(session: &Session, agent: Option<String>) -> Result<()> {
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
async fn tell_interrupted(manager: &Weak<Inner>, id: &SessionId, undone: &mut Undone) {
    let Some(manager) = manager.upgrade().map(|inner| ProxyManager { inner }) else { return };
    let Ok(session) = manager.inner.directory.get(id) else { return };
    if let Some((Accepted { offset, name, .. }, _)) = undone.begun.take()
        && session.tell_failed(name, INTERRUPTED.to_owned()).await
    {
        manager.note_cursor(ENDED, id, offset);
    }
    if let Some(name) = undone.doing.take()
        && session.tell_failed(name, INTERRUPTED.to_owned()).await
    {
        manager.note_doing(id, 0);
    }
}

/// Does what earlier managers were asked for and had no time for, but for prompts, which wait.
pub(super) async fn act_on_missed(manager: &Weak<Inner>, id: &SessionId, mut undone: Undone) {
    tell_interrupted(manager, id, &mut undone).await;
    let Undone { others, last, .. } = undone;
    let Some(manager) = manager.upgrade().map(|inner| ProxyManager { inner }) else { return };
    if last == 0 {
        return;
    }
    for (offset, kind, action) in others {
        Box::pin(manager.act_once(id, offset, Asked { kind, action, room: None })).await;
    }
    // What was looked through is not looked through again, by any manager. After a shutdown there may be some that were not done.
    if manager.open().is_ok()
        && let Err(error) = manager.claim(id, last).await
    {
        tracing::warn!(session = %id, error = %error.chain(), "what was looked for is looked for again");
    }
}

/// Finds the actions in a session's stream, up to `last`, that earlier managers accepted and did not do.
async fn find_undone(manager: &Weak<Inner>, id: &SessionId, last: u64) -> Result<Undone> {
    match manager.upgrade().and_then(|inner| inner.streams.log.get()) {
        Some(log) => find_undone_in(log, id, last).await,
        None => Ok(Undone::default()),
    }
}

/// The same in this log.
pub(super) async fn find_undone_in(log: InUse, id: &SessionId, last: u64) -> Result<Undone> {
    let of = id.clone();
    // It is never closed.
    let _turn = LOOKING.acquire().await;
    Ok(READING.run("looking for what was asked for", move || undone_in(&log, &of, last)).await??)
}

/// The same. Blocks.
fn undone_in(log: &EventLog, id: &SessionId, last: u64) -> std::result::Result<Undone, LogError> {
    let cursor = |consumer| log.cursor(consumer, id);
    let (claimed, doing, ended) = (cursor(CONSUMER)?, cursor(DOING)?, cursor(ENDED)?);
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
    let mut undone = Undone { last, ..Undone::default() };
    let mut failed = HashSet::new();
    let (mut turn, mut completed) = (0, None);
    while from < last {
        let page = match log.read(id, from, Limit::default()) {
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
                    let accepted = Accepted { at: envelope.created_at, ..Accepted::new(&kind, offset, None) };
                    // One that was not claimed is still to be done.
                    if offset == doing && doing <= claimed {
                        undone.doing = Some(accepted.name.clone());
                    }
                    let is_prompt = matches!(action, Ok(Action { verb: Verb::Prompt { .. }, .. }));
                    if offset == interrupted && is_prompt {
                        undone.begun = Some((accepted, 0));
                    } else if class == Class::Queued && offset > begun {
                        undone.prompts.push((accepted, action));
                    } else if class == Class::Immediate && offset > claimed {
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
    if done > 0 { done } else { last.saturating_sub(LOOK_BACK) }
}

/// The type in the name of an action.
fn kind_of(name: &str) -> &str {
    name.split_once(' ').map_or(name, |(kind, _)| kind)
}

fn check(kind: &str, payload: &Json) -> Result<()> {
    let invalid = |field, reason| Err(Error::InvalidConfig { field, reason });
    if kind.is_empty() || kind.len() > LONGEST_TYPE || kind.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return invalid("type", format!("{kind:?} must have 1 to {LONGEST_TYPE} bytes and no white space"));
    }
    if Event::is_ours(kind) {
        return invalid("type", format!("only the manager appends events of type {kind:?}: choose a type of your own"));
    }
    let length = payload.as_str().len();
    if length > LONGEST_PAYLOAD {
        return invalid("payload", format!("{length} bytes are too many: {LONGEST_PAYLOAD} at the most"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::SystemTime};

    use event_log::{Batch, MemoryLimits, Options};
    use ipc_protocol::Envelope;

    use super::*;

    #[test]
    fn what_was_missed_is_looked_for_from_where_it_is_known_to_be_done() {
        const LAST: u64 = 2 * LOOK_BACK;
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
            Arc::new(Envelope { offset, created_at, session, turn, event })
        };
        let events = (1..=LAST).map(event).collect();
        let batch = Batch { session: session.clone(), created_at, first: 1, events, source: 0, cursor: None };
        log.append(batch, Box::new(|result| result.expect("kept"))).expect("room");
        let set = |consumer, offset| log.set_cursor(consumer, &session, offset, Box::new(|set| set.expect("kept")));
        let look = || {
            let undone = undone_in(&log, &session, LAST).expect("read");
            let first = undone.prompts.first().map(|(accepted, _)| accepted.offset);
            (first, undone.others.len(), undone.begun.map(|(accepted, _)| accepted.offset))
        };
        // There is a bound where nothing is known.
        assert_eq!(look(), (Some(LAST - LOOK_BACK + 4), 0, None));
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
        let log = EventLog::open(folder.path().join("log.sqlite"), Options::default()).expect("a log");
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
        let claim = claim_in(&log, &session, 1, Duration::from_millis(1));
        let claimed = timeout(Duration::from_secs(20), claim).await.expect("in time");
        assert!(matches!(claimed, Err(Error::Deadline { .. })), "{claimed:?}");
        go_on.send(()).expect("it waits");
    }
}
