//! Sessions that outlive their host: this host counts and acknowledges their messages, and adopts sessions of another
//! host.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use ipc_protocol::{
    Budget, Enclosure, EndReason, Event, Lifecycle, Limits, OnUsageLimit, PermissionRequest, ProcessId, Receipt,
    Timeouts,
    codec::{CodecError, Inbox},
    message::{Attached, FromProxy, Hello, ToProxy, VERSION},
    reattach::{Heard, Said, Wire},
};
use serde::de::IgnoredAny;
use tokio::{sync::oneshot, time::Instant};

use super::{Busy, Core, Parts, Phase, again::Retry};
use crate::{
    error::Result,
    history::Writer,
    launch::Conversation,
    session::{Accepted, ENDED, Session, SessionState, TurnEnd, meter::Meter},
    state::Journal,
    supervision::Slot,
};

/// Time for the proxy of an adopted session to report its state.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Facts about a session that another host started.
#[derive(Debug)]
pub(crate) struct Adoption {
    /// Directory in which its agent keeps the files of conversations.
    pub(crate) native_files: Option<std::path::PathBuf>,
    pub(crate) proxy: ProcessId,
    /// Process of this host.
    pub(crate) host: ProcessId,
    /// Number of its proxy's last message that is in the stream.
    pub(crate) after_seq: u64,
    pub(crate) wire: Wire,
    pub(crate) started_at: SystemTime,
    pub(crate) limits: Limits,
    pub(crate) timeouts: Timeouts,
    pub(crate) max_prompts: Option<u32>,
    pub(crate) enclosure: Enclosure,
    pub(crate) conversation: Conversation,
    pub(crate) journal: Option<Journal>,
    /// Number in the log from which the proxy's message numbers continue.
    pub(crate) source_base: u64,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) slot: Slot,
    pub(crate) budget: Budget,
    /// What an earlier host began and did not see the end of, and the number of its turn.
    pub(crate) interrupted: Option<(Accepted, u64)>,
    pub(crate) on_usage_limit: OnUsageLimit,
}

/// Message counters of a session that may outlive this host.
#[derive(Debug)]
pub(super) struct Outliving {
    /// Number in the log from which the proxy's message numbers continue.
    base: u64,
    /// Number of the proxy's last message that was received.
    seen: u64,
    /// Number of the last message acknowledged to the proxy.
    acked: u64,
    adopted: Option<Adopted>,
}

/// State of adopting a session that another host started.
#[derive(Debug)]
struct Adopted {
    started_at: SystemTime,
    /// True if the proxy has reported its state.
    is_attached: bool,
    /// True if the agent was not ready at that time.
    awaits_start: bool,
}

impl Outliving {
    /// Creates the counters for a proxy that is about to be forked.
    pub(super) fn new(log: &Writer) -> Self {
        log.tell_of_all();
        Self { base: log.source(), seen: 0, acked: 0, adopted: None }
    }

    /// Prepares for another proxy, which counts from one.
    pub(super) fn begin_again(&mut self) {
        (self.base, self.seen, self.acked) = (self.base + self.seen, 0, 0);
    }
}

impl Core {
    /// Creates the core of a session that another host started, and whose proxy is about to be handed over.
    ///
    /// # Errors
    /// None expected: the first message is short.
    pub(crate) fn adopt(
        session: Arc<Session>,
        log: Writer,
        adoption: Adoption,
        now: Instant,
    ) -> Result<(Self, oneshot::Receiver<Result<()>>)> {
        let Adoption { host, after_seq, wire, started_at, limits, timeouts, max_prompts, .. } = adoption;
        let Adoption {
            enclosure,
            conversation,
            journal,
            source_base: base,
            lifecycle,
            slot,
            budget,
            on_usage_limit,
            interrupted,
            ..
        } = adoption;
        let (ready, is_ready) = oneshot::channel();
        let adopted = Some(Adopted { started_at, is_attached: false, awaits_start: false });
        let outliving = Outliving { base, seen: after_seq, acked: after_seq, adopted };
        log.tell_of_all();
        let start = Self::start_clock(&session, &timeouts);
        let (retry, outliving) = (Retry::default(), Some(outliving));
        let parts = Parts {
            host,
            journal,
            max_prompts,
            limits,
            timeouts,
            start,
            conversation,
            enclosure,
            retry,
            wire,
            outliving,
            lifecycle,
            slot: Some(slot),
            budget,
            on_usage_limit,
        };
        let phase = Phase::Starting { ready, deadline: now.checked_add(PATIENCE) };
        let mut core = Self::assemble(session, log, phase, parts);
        core.interrupted = interrupted;
        core.meter = Meter::going_on(budget, core.session.metrics().usage, core.session.turn_usage());
        // Starts ids after those of the last host, so that an answer to its requests matches none of this host's.
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        core.pending.begin_after(u64::try_from(since.as_micros()).unwrap_or(u64::MAX >> 1));
        let hello = ToProxy::Hello(Hello { version: VERSION, process: host });
        wire.push_control(&mut core.outbox, &hello)
            .map_err(|error| crate::error::Error::Protocol { reason: error.to_string() })?;
        Ok((core, is_ready))
    }

    /// Decodes the next message of the proxy.
    ///
    /// # Errors
    /// Any [`CodecError`].
    pub(crate) fn next_message(&self, inbox: &mut Inbox) -> std::result::Result<Option<Heard<FromProxy>>, CodecError> {
        if self.wire == Wire::Plain {
            return self.wire.next_message(inbox);
        }
        let said = self.wire.next_message::<Said<FromProxy>>(inbox)?;
        Ok(said.map(|said| match said {
            Heard::Known(said) => Heard::Known(said.say),
            Heard::Unknown(text) => Heard::Unknown(text),
        }))
    }

    /// Handles a message of another release that this one does not know.
    pub(crate) fn unknown(&mut self, text: &str) {
        let seq = serde_json::from_str::<Said<IgnoredAny>>(text).map_or(0, |said| said.seq);
        if seq > 0 {
            self.count();
            let reason = "the session's proxy is of another release, and said something that this one does not know";
            self.log.push(0, Event::SessionLossy { reason: reason.to_owned() });
        }
    }

    /// Counts a numbered message of the proxy.
    pub(super) fn count(&mut self) {
        if let Some(outliving) = &mut self.outliving {
            outliving.seen += 1;
            self.log.came_up_to(outliving.base + outliving.seen);
        }
    }

    /// Number in the log from which the proxy's message numbers continue.
    pub(crate) fn source_base(&self) -> u64 {
        self.outliving.as_ref().map_or(0, |outliving| outliving.base)
    }

    /// Acknowledges messages that the proxy need not retain any more.
    pub(super) fn acknowledge(&mut self) {
        let Some(outliving) = &mut self.outliving else { return };
        let kept = self.log.kept_source().saturating_sub(outliving.base).min(outliving.seen);
        if kept <= outliving.acked {
            return;
        }
        outliving.acked = kept;
        if let Err(error) = self.wire.push(&mut self.outbox, &ToProxy::Ack { seq: kept }) {
            tracing::error!(%error, "failed to encode an acknowledgement");
        }
    }

    /// Returns true if a host that did not start the agent still waits for it to be ready.
    pub(super) fn awaits_start(&self) -> bool {
        self.adopted().is_some_and(|adopted| adopted.awaits_start)
    }

    /// Returns true if the proxy of an adopted session has yet to report its state.
    pub(super) fn awaits_attached(&self) -> bool {
        self.adopted().is_some_and(|adopted| !adopted.is_attached)
    }

    fn adopted(&self) -> Option<&Adopted> {
        self.outliving.as_ref()?.adopted.as_ref()
    }

    /// Returns true if an earlier host emitted this process event: a proxy that loses its host reports all processes
    /// anew.
    pub(super) fn is_known_already(&self, event: &Event) -> bool {
        let Event::ProcessSpawned(info) = event else { return false };
        self.adopted().is_some() && self.journal.as_ref().is_some_and(|journal| journal.has(info.id))
    }

    /// Handles the state that the proxy of an adopted session reports.
    pub(super) fn attached(&mut self, attached: Attached, now: Instant) {
        let Some(outliving) = &mut self.outliving else {
            return self.broken("it says that it was handed over, and was not".to_owned(), now);
        };
        let Some(adopted) = outliving.adopted.as_mut().filter(|adopted| !adopted.is_attached) else {
            return self.broken("it says that it was handed over, and was not".to_owned(), now);
        };
        (adopted.is_attached, adopted.awaits_start) = (true, attached.agent.is_none());
        let started = now.checked_sub(adopted.started_at.elapsed().unwrap_or_default());
        let lost = attached.next_seq.saturating_sub(1).saturating_sub(outliving.seen);
        outliving.seen = attached.next_seq.saturating_sub(1);
        outliving.acked = outliving.seen;
        if lost > 0 {
            let reason = format!("{lost} events that an earlier host took over are not to be had any more");
            self.log.push(0, Event::SessionLossy { reason });
        }
        let Attached { epoch, waiting, detached_ms, .. } = attached;
        tracing::info!(epoch, waiting, detached_ms, "reattached");
        let detail = format!("host {epoch} of this session, after {detached_ms} ms without one");
        self.log.push(0, Event::SessionResumed { by: "reattach".to_owned(), detail });
        self.has_turns = attached.turns;
        self.turns = attached.turn_count;
        if let Some(started) = started.filter(|_| attached.agent.is_some()) {
            self.limits.started(started);
        }
        if let Some(id) = &attached.native_session_id
            && let Err(error) = self.conversation.is_now(id)
        {
            // The session has the conversation regardless.
            tracing::warn!(session = %self.session.id(), %error, "failed to lease a conversation: it is open twice");
        }
        self.session.show(|view| {
            (view.turns, view.has_turns) = (attached.turn_count, attached.turns);
            view.converses(attached.native_session_id.clone());
            for (shown, now) in [
                (&mut view.model, &attached.model),
                (&mut view.mode, &attached.mode),
                (&mut view.thinking, &attached.thinking),
            ] {
                if now.is_some() {
                    shown.clone_from(now);
                }
            }
        });
        if attached.agent.is_some() {
            self.keep_conversation();
        }
        let taken = attached.turn_count;
        match attached.agent {
            Some(agent) => {
                self.go_on(agent, attached, now);
                self.settle_interrupted(taken);
                self.next_turn(now);
            }
            None => {
                if let Phase::Starting { deadline, .. } = &mut self.phase {
                    *deadline = self.start.and_then(|start| now.checked_add(start));
                }
            }
        }
        self.log.commit();
    }

    /// An earlier host began a prompt, and its turn does not run: it has ended, or the agent, which took so many, never got it.
    fn settle_interrupted(&mut self, taken: u64) {
        match self.interrupted.take() {
            Some((accepted, turn)) if turn > taken => {
                let reason = "its host ended before the agent had it".to_owned();
                self.fail_accepted(
                    0,
                    &accepted,
                    &crate::error::Error::Ended { session: self.session.id().clone(), reason },
                );
            }
            Some((accepted, _)) => self.log.move_cursor(ENDED, accepted.offset),
            None => {}
        }
    }

    /// The agent is ready, or has a turn.
    fn go_on(&mut self, agent: ProcessId, attached: Attached, now: Instant) {
        let Attached { measures, turn, permissions, ending, .. } = attached;
        let phase = match turn {
            Some(turn) => {
                let end = TurnEnd { turn: Some(turn), ..TurnEnd::default() };
                let accepted = self.interrupted.take_if(|(_, begun)| *begun == turn).map(|(accepted, _)| accepted);
                let (usage_wait, last_words) = Default::default();
                Phase::Busy(Box::new(Busy { end, turn, tickets: Vec::new(), accepted, usage_wait, last_words }))
            }
            None => Phase::Idle,
        };
        let Phase::Starting { ready, .. } = std::mem::replace(&mut self.phase, phase) else { return };
        self.became_ready(now);
        if turn.is_some() {
            self.lasting.busy();
            self.clocks.begin(now);
            self.wait_for(permissions, now);
        }
        self.session.show(|view| {
            (view.agent, view.measures, view.ready) = (Some(agent), measures, true);
            view.state = turn.map_or(SessionState::Idle, |turn| SessionState::Busy { turn });
        });
        if let Some(reason) = ending {
            self.closing = Some(self.error_of(&reason));
        }
        // The session continues even if nobody waits for it.
        let _ = ready.send(Ok(()));
    }

    /// Stops the clocks while these requests are open.
    fn wait_for(&mut self, permissions: Vec<PermissionRequest>, now: Instant) {
        for request in permissions {
            self.clocks.note(&Event::PermissionRequested(Box::new(request)), now);
        }
    }

    /// Returns true if this host detached from a session that continues without it.
    pub(super) fn is_let_go(&self, reason: &EndReason, receipt: Option<&Receipt>) -> bool {
        self.outliving.is_some() && receipt.is_none() && *reason == EndReason::Shutdown
    }
}
