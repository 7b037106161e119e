//! Sessions that outlive their host: this host counts and acknowledges their messages, and adopts sessions of another
//! host.

use std::{collections::BTreeSet, time::Duration};

use ipc_protocol::{
    EndReason, Event, ProcessId, Receipt,
    codec::{CodecError, Inbox},
    message::{AttachedSession, FromProxy, Hello, RequestId, ToProxy, VERSION},
    reattach::{NumberedMessage, ReceivedMessage, WireFormat},
};
use serde::de::IgnoredAny;
use tokio::{sync::oneshot, time::Instant};

use super::{CoreSetup, LeasePurpose, RunningTurn, SessionCore, SessionEffect, SessionPhase, TimerKind};
use crate::{
    description::SessionState,
    error::{Error, Result},
    session::{AcceptedPrompt, ENDED, TurnEnd, meter::UsageMeter},
};

/// Time for the proxy of an adopted session to report its state.
pub(super) const ATTACH_TIMEOUT: Duration = Duration::from_secs(10);

/// Largest number of processes of which it is known that an earlier host reported them.
const MOST_REPORTED: usize = 8192;

/// What an earlier host leaves of a session that lives on.
pub(crate) struct HostHandover {
    /// Number of the proxy's last message that is in the stream.
    pub(crate) after_seq: u64,
    /// Instant of the session's start; `None` if it lies too far back.
    pub(crate) started: Option<Instant>,
    /// Its living processes.
    pub(crate) processes: BTreeSet<ProcessId>,
    /// What it began and did not see the end of, and the number of its turn.
    pub(crate) interrupted: Option<(AcceptedPrompt, u64)>,
    /// Request ids of this host begin after this one, so that an answer to an earlier host's request matches none.
    pub(crate) last_request: RequestId,
}

/// Message counters of a session that may outlive this host.
#[derive(Debug)]
pub(super) struct DetachState {
    /// Number in the log from which the proxy's message numbers continue.
    source_base: u64,
    /// Number of the proxy's last message that was received.
    received_seq: u64,
    /// Number of the last message acknowledged to the proxy.
    acked_seq: u64,
    adopted: Option<AdoptedState>,
}

/// State of adopting a session that another host started.
#[derive(Debug)]
struct AdoptedState {
    started: Option<Instant>,
    /// Living processes that some host has reported.
    processes: BTreeSet<ProcessId>,
    /// True if the proxy has reported its state.
    is_attached: bool,
    /// True if the agent was not ready at that time.
    awaits_start: bool,
}

impl DetachState {
    /// Creates the counters for a proxy that is about to be forked.
    pub(super) fn new(source_base: u64) -> Self {
        Self { source_base, received_seq: 0, acked_seq: 0, adopted: None }
    }

    /// Prepares for another proxy, which counts from one.
    pub(super) fn reset(&mut self) {
        (self.source_base, self.received_seq, self.acked_seq) = (self.source_base + self.received_seq, 0, 0);
    }
}

impl SessionCore {
    /// Creates the core of a session that another host started, and whose proxy is about to be handed over.
    ///
    /// # Errors
    /// None expected: the first message is short.
    pub(crate) fn adopt(
        setup: CoreSetup,
        handover: HostHandover,
        now: Instant,
    ) -> Result<(Self, oneshot::Receiver<Result<()>>)> {
        let HostHandover { after_seq, started, processes, interrupted, last_request } = handover;
        let (ready, is_ready) = oneshot::channel();
        let adopted = Some(AdoptedState { started, processes, is_attached: false, awaits_start: false });
        let base = setup.source_base.unwrap_or_default();
        let outliving = Some(DetachState { source_base: base, received_seq: after_seq, acked_seq: after_seq, adopted });
        let (host, wire) = (setup.host, setup.wire);
        let meter = UsageMeter::from_total(setup.rules.budget, setup.past.usage, setup.past.turn_usage);
        let phase = SessionPhase::Starting { ready, started: None };
        let mut core = Self::assemble(setup, phase, outliving);
        (core.interrupted, core.meter) = (interrupted, meter);
        core.timers.set(TimerKind::Start, now.checked_add(ATTACH_TIMEOUT));
        core.pending.begin_after(last_request);
        let hello = ToProxy::Hello(Hello { version: VERSION, process: host });
        wire.push_control(&mut core.outbox, &hello).map_err(crate::error::Error::protocol)?;
        Ok((core, is_ready))
    }

    /// Decodes the next message of the proxy.
    ///
    /// # Errors
    /// Any [`CodecError`].
    pub(crate) fn next_message(
        &self,
        inbox: &mut Inbox,
    ) -> std::result::Result<Option<ReceivedMessage<FromProxy>>, CodecError> {
        if self.wire == WireFormat::Bincode {
            return self.wire.next_message(inbox);
        }
        let said = self.wire.next_message::<NumberedMessage<FromProxy>>(inbox)?;
        Ok(said.map(|said| match said {
            ReceivedMessage::Understood(said) => ReceivedMessage::Understood(said.say),
            ReceivedMessage::Unknown(text) => ReceivedMessage::Unknown(text),
        }))
    }

    /// Handles a message of another release that this one does not know.
    pub(crate) fn unknown_message(&mut self, text: &str) {
        let seq = serde_json::from_str::<NumberedMessage<IgnoredAny>>(text).map_or(0, |said| said.seq);
        if seq > 0 {
            self.count_message();
            let reason = "the session's proxy is of another release, and said something that this one does not know";
            self.push(0, Event::SessionLossy { reason: reason.to_owned() });
        }
    }

    /// Counts a numbered message of the proxy.
    pub(super) fn count_message(&mut self) {
        if let Some(outliving) = &mut self.detach_state {
            outliving.received_seq += 1;
            let source = outliving.source_base + outliving.received_seq;
            self.effects.push_back(SessionEffect::MarkSource(source));
        }
    }

    /// Number in the log from which the proxy's message numbers continue.
    pub(crate) fn source_base(&self) -> u64 {
        self.detach_state.as_ref().map_or(0, |outliving| outliving.source_base)
    }

    /// Returns true if the proxy retains its messages until they are in the log.
    pub(crate) fn is_acknowledging(&self) -> bool {
        self.detach_state.is_some()
    }

    /// Acknowledges messages that the proxy need not retain any more: the log has all up to `kept_source`.
    pub(crate) fn acknowledge(&mut self, kept_source: u64) {
        let Some(outliving) = &mut self.detach_state else { return };
        let kept = kept_source.saturating_sub(outliving.source_base).min(outliving.received_seq);
        if kept <= outliving.acked_seq {
            return;
        }
        outliving.acked_seq = kept;
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

    fn adopted(&self) -> Option<&AdoptedState> {
        self.detach_state.as_ref()?.adopted.as_ref()
    }

    /// Returns true if an earlier host emitted this process event: a proxy that loses its host reports all processes
    /// anew.
    pub(super) fn is_duplicate(&mut self, event: &Event) -> bool {
        let adopted = self.detach_state.as_mut().and_then(|outliving| outliving.adopted.as_mut());
        let Some(AdoptedState { processes, .. }) = adopted else { return false };
        match event {
            Event::ProcessSpawned(info) if processes.contains(&info.id) => return true,
            Event::ProcessSpawned(info) if processes.len() < MOST_REPORTED => _ = processes.insert(info.id),
            Event::ProcessExited { process, .. } => _ = processes.remove(process),
            _ => {}
        }
        false
    }

    /// Handles the state that the proxy of an adopted session reports.
    pub(super) fn attached(&mut self, attached: AttachedSession, now: Instant) {
        let Some(outliving) = &mut self.detach_state else {
            return self.broken("it says that it was handed over, and was not".to_owned(), now);
        };
        let Some(adopted) = outliving.adopted.as_mut().filter(|adopted| !adopted.is_attached) else {
            return self.broken("it says that it was handed over, and was not".to_owned(), now);
        };
        (adopted.is_attached, adopted.awaits_start) = (true, attached.agent.is_none());
        let started = adopted.started;
        let lost = attached.next_seq.saturating_sub(1).saturating_sub(outliving.received_seq);
        outliving.received_seq = attached.next_seq.saturating_sub(1);
        outliving.acked_seq = outliving.received_seq;
        if lost > 0 {
            let reason = format!("{lost} events that an earlier host took over are not to be had any more");
            self.push(0, Event::SessionLossy { reason });
        }
        let AttachedSession { epoch, waiting, detached_ms, .. } = attached;
        tracing::info!(epoch, waiting, detached_ms, "reattached");
        let detail = format!("host {epoch} of this session, after {detached_ms} ms without one");
        self.push(0, Event::SessionResumed { by: "reattach".to_owned(), detail });
        self.has_turns = attached.turns;
        self.turns = attached.turn_count;
        if let Some(started) = started.filter(|_| attached.agent.is_some()) {
            self.limits.started(&mut self.timers, started);
        }
        self.native.clone_from(&attached.native_session_id);
        if let Some(id) = attached.native_session_id.clone() {
            self.effects.push_back(SessionEffect::Lease { id, purpose: LeasePurpose::Adoption });
        }
        let AttachedSession { turn_count, turns, model, mode, thinking, .. } = attached.clone();
        let native = attached.native_session_id.clone();
        self.show(move |view| {
            (view.turns, view.has_turns) = (turn_count, turns);
            view.conversation.switch_to(native);
            for (shown, now) in [
                (&mut view.settings.model, model),
                (&mut view.settings.mode, mode),
                (&mut view.settings.thinking, thinking),
            ] {
                if now.is_some() {
                    *shown = now;
                }
            }
        });
        if attached.agent.is_some() {
            self.share_conversation_lock();
        }
        let taken = attached.turn_count;
        match attached.agent {
            Some(agent) => {
                self.restore_running(agent, attached, now);
                self.settle_interrupted(taken);
                self.next_turn(now);
            }
            None => self.arm_start(now),
        }
        self.commit_log();
    }

    /// An earlier host began a prompt, and its turn does not run: it has ended, or the agent, which took so many, never got it.
    fn settle_interrupted(&mut self, taken: u64) {
        match self.interrupted.take() {
            Some((accepted, turn)) if turn > taken => {
                let reason = "its host ended before the agent had it".to_owned();
                self.fail_accepted(0, &accepted, &Error::Ended { session: self.id.clone(), reason });
            }
            Some((accepted, _)) => self.move_cursor(ENDED, accepted.offset),
            None => {}
        }
    }

    /// The agent is ready, or has a turn.
    fn restore_running(&mut self, agent: ProcessId, attached: AttachedSession, now: Instant) {
        let AttachedSession { measures, turn, permissions, ending, .. } = attached;
        let phase = match turn {
            Some(turn) => {
                let end = TurnEnd { turn: Some(turn), ..TurnEnd::default() };
                let accepted = self.interrupted.take_if(|(_, begun)| *begun == turn).map(|(accepted, _)| accepted);
                let (usage_wait, last_words) = Default::default();
                SessionPhase::Busy(Box::new(RunningTurn {
                    end,
                    turn,
                    tickets: Vec::new(),
                    accepted,
                    usage_wait,
                    last_words,
                }))
            }
            None => SessionPhase::Idle,
        };
        let SessionPhase::Starting { ready, .. } = std::mem::replace(&mut self.phase, phase) else { return };
        self.became_ready(now);
        let restored = permissions.into_iter().map(|request| Event::PermissionRequested(Box::new(request)));
        let restored: Vec<_> = restored.inspect(|event| self.note_permission(event)).collect();
        if turn.is_some() {
            self.timers.cancel(TimerKind::Idle);
            self.begin_clocks(now);
            self.restore_permissions(&restored, now);
        }
        self.agent = Some(agent);
        self.show(move |view| {
            (view.processes.agent_process, view.measures) = (Some(agent), measures);
            view.state = turn.map_or(SessionState::Idle, |turn| SessionState::Busy { turn });
        });
        if let Some(reason) = ending {
            self.closing = Some(self.error_of(&reason));
        }
        // The session continues even if nobody waits for it.
        self.reply(ready, Ok(()));
    }

    /// Stops the clocks while these requests are open.
    fn restore_permissions(&mut self, requested: &[Event], now: Instant) {
        requested.iter().for_each(|event| self.clocks.record(event, now));
        self.timers.set(TimerKind::Turn, self.clocks.next());
    }

    /// Returns true if this host detached from a session that continues without it.
    pub(super) fn is_detached(&self, reason: &EndReason, receipt: Option<&Receipt>) -> bool {
        self.detach_state.is_some() && receipt.is_none() && *reason == EndReason::Shutdown
    }
}
