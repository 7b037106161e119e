//! Clocks that detect an agent's silence. Pure: signs of life and times go in, expired clocks come out.
//!
//! The clocks of a turn stand still while a tool call is in flight or a permission request is open. A tool call without
//! any sign of life has a clock of its own. The clock of silence also runs while a tool works, but not while a
//! permission request is open: then it is not the agent that is silent.

use std::{collections::BTreeSet, time::Duration};

use ipc_protocol::{Event, TimeoutAction, TimeoutKind, Timeouts, ToolStatus};
use tokio::time::Instant;

/// Tool calls, and permission requests, that are tracked; further ones do not stop the clocks.
const MOST: usize = 1024;

/// `session:status` of an agent that shortens its conversation.
const COMPACTION: &str = "compaction";

/// Effect of a clock: an event or an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// The agent was silent for this long.
    Silent(Duration),
    /// A clock with this setting has run out.
    Fired(TimeoutKind, Duration),
}

/// The clocks of a session.
#[derive(Debug)]
pub(crate) struct Clocks {
    timeouts: Timeouts,
    turn: Option<Turn>,
}

/// The clocks of a turn.
#[derive(Debug)]
struct Turn {
    /// Tool calls in flight.
    tools: BTreeSet<String>,
    /// Permission requests that are open.
    asked: BTreeSet<String>,
    /// Time that the clocks have run.
    ran: Duration,
    /// Instant since which they run again; `None` while they stand still.
    since: Option<Instant>,
    /// Reading of the clocks at the last sign of life.
    heard: Duration,
    /// True if the model has begun to answer.
    answered: bool,
    /// Clocks that have run out: each fires once, the inactivity clock once per silence.
    fired: BTreeSet<TimeoutKind>,
    /// Instant of the last sign of life, for the silence.
    last: Instant,
    /// Instant at which a tool call in flight counts as stalled.
    stall: Option<Instant>,
    /// Instant at which the silence is reported next.
    silence: Option<Instant>,
}

impl Clocks {
    pub(crate) fn new(timeouts: Timeouts) -> Self {
        Self { timeouts, turn: None }
    }

    /// Action when a clock of a turn runs out.
    pub(crate) fn action(&self) -> TimeoutAction {
        self.timeouts.action
    }

    /// Starts the clocks of a turn.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.turn = Some(Turn {
            tools: BTreeSet::new(),
            asked: BTreeSet::new(),
            ran: Duration::ZERO,
            since: Some(now),
            heard: Duration::ZERO,
            answered: false,
            fired: BTreeSet::new(),
            last: now,
            stall: None,
            silence: after(now, self.timeouts.silence_ms),
        });
    }

    /// Stops the clocks, since the turn is over or is being ended. Forgets tool calls that never ended.
    pub(crate) fn end(&mut self) {
        self.turn = None;
    }

    /// Applies an event of the turn.
    pub(crate) fn note(&mut self, event: &Event, now: Instant) {
        let Some(turn) = &mut self.turn else { return };
        if !is_life(event) {
            return;
        }
        match event {
            Event::ToolStart(tool) if !is_over(tool.status) => remember(&mut turn.tools, &tool.id),
            Event::ToolUpdate(tool) if tool.status.is_some_and(is_over) => _ = turn.tools.remove(&tool.id),
            Event::ToolEnd(tool) => _ = turn.tools.remove(&tool.id),
            Event::PermissionRequested(request) => remember(&mut turn.asked, &request.id),
            Event::PermissionResolved { id, .. } => _ = turn.asked.remove(id),
            _ => {}
        }
        turn.ran = turn.shown(now);
        turn.since = turn.runs().then_some(now);
        turn.heard = turn.ran;
        turn.answered |= is_answer(event);
        turn.fired.remove(&TimeoutKind::Inactivity);
        turn.last = now;
        let stalls = !turn.tools.is_empty() && turn.asked.is_empty();
        turn.stall = if stalls { after(now, self.timeouts.tool_ms) } else { None };
        turn.silence = if turn.asked.is_empty() { after(now, self.timeouts.silence_ms) } else { None };
    }

    /// Instant at which [`Clocks::tick`] is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        let turn = self.turn.as_ref()?;
        let clocks = turn.waiting(&self.timeouts).filter_map(|(_, _, at)| {
            let since = turn.since?;
            since.checked_add(at.saturating_sub(turn.ran))
        });
        clocks.chain(turn.silence).chain(turn.stall).min()
    }

    /// Advances the time and returns what is due, in the order in which it became due.
    pub(crate) fn tick(&mut self, now: Instant) -> Vec<Due> {
        let Some(turn) = &mut self.turn else { return Vec::new() };
        let mut due = Vec::new();
        if turn.silence.is_some_and(|silence| silence <= now) {
            due.push(Due::Silent(now.saturating_duration_since(turn.last)));
            turn.silence = after(now, self.timeouts.silence_repeat_ms);
        }
        let shown = turn.shown(now);
        let mut fired: Vec<_> = turn.waiting(&self.timeouts).filter(|(.., at)| *at <= shown).collect();
        fired.sort_by_key(|(kind, _, at)| (*at, *kind));
        for (kind, set, _) in fired {
            turn.fired.insert(kind);
            due.push(Due::Fired(kind, set));
        }
        // Fires once per silence.
        if turn.stall.take_if(|stall| *stall <= now).is_some() {
            let set = Duration::from_millis(self.timeouts.tool_ms.unwrap_or_default());
            due.push(Due::Fired(TimeoutKind::Tool, set));
        }
        due
    }
}

impl Turn {
    fn runs(&self) -> bool {
        self.tools.is_empty() && self.asked.is_empty()
    }

    /// Reading of the clocks: the time that they have run by now.
    fn shown(&self, now: Instant) -> Duration {
        self.ran + self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    /// Clocks that have not run out: the setting of each, and the reading at which it fires. None while they stand
    /// still.
    fn waiting(&self, timeouts: &Timeouts) -> impl Iterator<Item = (TimeoutKind, Duration, Duration)> + use<'_> {
        let first = timeouts.first_response_ms.filter(|_| !self.answered);
        let clocks = [
            (TimeoutKind::FirstResponse, first, Duration::ZERO),
            (TimeoutKind::Inactivity, timeouts.inactivity_ms, self.heard),
            (TimeoutKind::Turn, timeouts.turn_ms, Duration::ZERO),
        ];
        clocks.into_iter().filter(|(kind, ..)| self.since.is_some() && !self.fired.contains(kind)).filter_map(
            |(kind, set, from)| {
                let set = Duration::from_millis(set?);
                Some((kind, set, from.saturating_add(set)))
            },
        )
    }
}

/// Returns true for an event that shows the agent at work. Events of its processes do not, nor do lines without
/// meaning.
fn is_life(event: &Event) -> bool {
    matches!(
        event,
        Event::Text { .. }
            | Event::Thinking { .. }
            | Event::ToolStart(_)
            | Event::ToolUpdate(_)
            | Event::ToolEnd(_)
            | Event::Plan { .. }
            | Event::Usage(_)
            | Event::ContextWindow { .. }
            | Event::Complete { .. }
            | Event::Error { .. }
            | Event::SessionStatus { .. }
            | Event::PermissionRequested(_)
            | Event::PermissionResolved { .. }
    )
}

/// Returns whether it is the model's answer, or a part of its work. What the agent says of itself, or of a request that failed, is none.
fn is_answer(event: &Event) -> bool {
    match event {
        // It shortens the conversation first: the model works.
        Event::SessionStatus { status, .. } => status == COMPACTION,
        Event::Error { .. } | Event::Usage(_) | Event::ContextWindow { .. } => false,
        event => is_life(event),
    }
}

fn is_over(status: ToolStatus) -> bool {
    matches!(status, ToolStatus::Completed | ToolStatus::Failed)
}

fn remember(ids: &mut BTreeSet<String>, id: &str) {
    if ids.len() < MOST {
        ids.insert(id.to_owned());
    }
}

fn after(now: Instant, ms: Option<u64>) -> Option<Instant> {
    now.checked_add(Duration::from_millis(ms?))
}

#[cfg(test)]
mod tests;
