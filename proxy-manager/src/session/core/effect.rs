//! Effects of a session's core: values that say what its driver does next, in this order.

use std::{sync::Arc, time::SystemTime};

use agents::PriceTable;
use ipc_protocol::{Event, Json, ProcessId, message::ToForkServer, terminal::Surface};
use tokio::time::Instant;

use super::lifecycle::CrashHistory;
use crate::{
    error::Error,
    session::{EventToAppend, ReplySender, SessionView, WarmClaim, metrics::UsageCounters},
};

/// Sends the answer of a call to its caller. A caller that has gone misses nothing.
pub(crate) type CallerReply = Box<dyn FnOnce() + Send>;

/// Conversation that the agent is in, and what the core does once its lease is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LeasePurpose {
    /// The agent is ready: [`SessionCore::leased_at_start`](super::SessionCore::leased_at_start) follows.
    Start,
    /// The agent went over to it: [`SessionCore::leased_by_agent`](super::SessionCore::leased_by_agent) follows.
    Switch,
    /// The session has it already, under an earlier host: a failure is only logged.
    Adoption,
}

/// What the driver of a session does for its core.
pub(crate) enum SessionEffect {
    /// Appends an event of the host's to the batch. Turn 0 is none.
    Append { turn: u64, event: Event },
    /// Appends the beginning of a turn with the metadata of its prompt.
    AppendTurn { turn: u64, event: Event, metadata: Json },
    /// Appends an event of the agent or its processes to the batch, counts it, and notes its process in the journal.
    Record { turn: u64, surface: Option<Surface>, event: Event },
    /// Appends what callers ask for, and commits it; the reply is the offset of the last event.
    AppendActions { turn: u64, events: Vec<EventToAppend>, has_accepted_turn: bool, reply: ReplySender<u64> },
    /// Moves a consumer of the stream with the batch.
    MoveCursor { consumer: &'static str, offset: u64 },
    /// The batch came up to this message of the proxy.
    MarkSource(u64),
    /// Commits all from here on together with the record that follows.
    CommitTogether,
    /// Commits the batch.
    Commit,
    /// Commits the batch, and reports the result to [`SessionCore::prompt_written`](super::SessionCore::prompt_written).
    CommitPrompt,
    /// The stream goes on after this incarnation.
    LeaveOpen,
    /// Writes the session's proxy into the journal, at once.
    NoteProxy(ProcessId),
    /// Notes the session's agent in the journal.
    NoteAgent(ProcessId),
    /// Changes the visible state, and so the record.
    Show(Box<dyn FnOnce(&mut SessionView) + Send>),
    /// Changes the counters.
    Tally(Box<dyn FnOnce(&mut UsageCounters) + Send>),
    /// The proxy was heard.
    Heard(Instant),
    /// From here on no call can be answered.
    Close,
    /// Answers a caller.
    Reply(CallerReply),
    /// Answers a caller when everything before is durable.
    ReplyDurably(CallerReply),
    /// Takes the lease of a conversation.
    Lease { id: String, purpose: LeasePurpose },
    /// Ties the lease to the life of the proxy, which may outlive this host.
    KeepLease { proxy: ProcessId, outlives: bool },
    /// The conversation begins anew.
    DropLease,
    /// Finds out why the agent did not start: [`SessionCore::start_failed`](super::SessionCore::start_failed) follows.
    Diagnose(Error),
    /// Sends a message to the fork server.
    Order(ToForkServer),
    /// Gives a warm session the labels and the place of its claimant: [`SessionCore::claimed`](super::SessionCore::claimed) follows.
    Claim { claim: Box<WarmClaim>, reply: ReplySender<()> },
    /// Frees a proxy that does not answer from a frozen cgroup.
    FreeProxy,
    /// Sweeps the session in the place of a dead fork server: [`SessionCore::swept`](super::SessionCore::swept) follows.
    Sweep,
    /// Remembers the crashes for the next incarnation.
    KeepCrashes(CrashHistory),
    /// Releases lease, slot and journal. `is_left`: the session goes on without this host. `is_clean`: nothing is left of it.
    Release { is_left: bool, is_clean: bool },
}

/// Conditions outside of the session, as they are when an input comes.
#[derive(Clone, Debug)]
pub(crate) struct HostConditions {
    /// Time of day, in which agents say when a usage limit is reset.
    pub(crate) wall_clock: SystemTime,
    /// True if no prompt is accepted any more.
    pub(crate) is_draining: bool,
    /// True if events outlive this manager.
    pub(crate) is_durable: bool,
    /// The user's prices of models, if there are any.
    pub(crate) prices: Option<Arc<PriceTable>>,
}
