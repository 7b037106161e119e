//! When an agent's silence is too long. Pure: signs of life and time go in, what has run out comes out.
//!
//! The clocks of a turn stand still while a tool call is in flight or a permission request is open. A tool call of which nothing
//! is heard for long has a clock of its own. The silence of an agent
//! whose tool works goes on; while a permission is asked for it is not the agent that is silent.

use std::{collections::BTreeSet, time::Duration};

use ipc_protocol::{Event, TimeoutAction, TimeoutKind, Timeouts, ToolStatus};
use tokio::time::Instant;

/// Tool calls and permission requests that are remembered, each; more are not waited for.
const MOST: usize = 1024;

/// `session:status` of an agent that shortens its conversation.
const COMPACTION: &str = "compaction";

/// What is to be told or done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// Nothing was heard for this long.
    Silent(Duration),
    /// This clock, set to this, has run out.
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
    /// How long the clocks have run.
    ran: Duration,
    /// Since when they run again; `None` while they stand still.
    since: Option<Instant>,
    /// What they showed at the last sign of life.
    heard: Duration,
    /// Whether the model has begun to answer.
    answered: bool,
    /// Which have run out: each fires once, that of inactivity once for each silence.
    fired: BTreeSet<TimeoutKind>,
    /// When anything was last heard, for the silence.
    last: Instant,
    /// When a tool call in flight counts as stalled.
    stall: Option<Instant>,
    /// When the silence is to be told next.
    silence: Option<Instant>,
}

impl Clocks {
    pub(crate) fn new(timeouts: Timeouts) -> Self {
        Self { timeouts, turn: None }
    }

    /// What is done when a clock of a turn runs out.
    pub(crate) fn action(&self) -> TimeoutAction {
        self.timeouts.action
    }

    /// A turn begins.
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

    /// The turn is over, or is being ended. A tool call whose end was never told is forgotten.
    pub(crate) fn end(&mut self) {
        self.turn = None;
    }

    /// The turn has this event.
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

    /// When [`Clocks::tick`] is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        let turn = self.turn.as_ref()?;
        let clocks = turn.waiting(&self.timeouts).filter_map(|(_, _, at)| {
            let since = turn.since?;
            since.checked_add(at.saturating_sub(turn.ran))
        });
        clocks.chain(turn.silence).chain(turn.stall).min()
    }

    /// Time has passed: what is due, in the order in which it was.
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
        // Once for each silence.
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

    /// What the clocks show: how long they have run by now.
    fn shown(&self, now: Instant) -> Duration {
        self.ran + self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    /// The clocks that have not run out: what each is set to, and what the clocks show then. None while they stand still.
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

/// Whether it says that the agent works. What its processes do says nothing, nor does a line that means nothing.
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

/// Whether it is the model's answer, or a part of its work. What the agent says of itself, or of a request that failed, is none.
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
