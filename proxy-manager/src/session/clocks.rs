//! Clocks that detect an agent's silence. Pure: signs of life and times go in, expired clocks come out.
//!
//! The clocks of a turn stand still while a tool call is in flight or a permission request is open. A tool call without
//! any sign of life has a clock of its own. The clock of silence also runs while a tool works, but not while a
//! permission request is open: then it is not the agent that is silent.

use std::{collections::BTreeSet, time::Duration};

use ipc_protocol::{Event, TimeoutAction, TimeoutKind, Timeouts, ToolStatus};
use tokio::time::Instant;

/// Tool calls, and permission requests, that are tracked; further ones do not stop the clocks.
const MAX_REMEMBERED: usize = 1024;

/// `session:status` of an agent that shortens its conversation.
const COMPACTION: &str = "compaction";

/// Effect of a clock: an event or an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClockDue {
    /// The agent was silent for this long.
    Silent(Duration),
    /// A clock with this setting has run out.
    Fired(TimeoutKind, Duration),
}

/// The clocks of a session.
#[derive(Debug)]
pub(crate) struct SessionClocks {
    timeouts: Timeouts,
    turn: Option<TurnClocks>,
}

/// The clocks of a turn.
#[derive(Debug)]
struct TurnClocks {
    /// Tool calls in flight.
    tools: BTreeSet<String>,
    /// Permission requests that are open.
    open_permissions: BTreeSet<String>,
    /// Time that the clocks have run.
    elapsed: Duration,
    /// Instant since which they run again; `None` while they stand still.
    running_since: Option<Instant>,
    /// Reading of the clocks at the last sign of life.
    active_at: Duration,
    /// True if the model has begun to answer.
    has_activity: bool,
    /// Clocks that have run out: each fires once, the inactivity clock once per silence.
    fired: BTreeSet<TimeoutKind>,
    /// Instant of the last sign of life, for the silence.
    last_event: Instant,
    /// Instant at which a tool call in flight counts as stalled.
    stalls_at: Option<Instant>,
    /// Instant at which the silence is reported next.
    silent_at: Option<Instant>,
}

impl SessionClocks {
    pub(crate) fn new(timeouts: Timeouts) -> Self {
        Self { timeouts, turn: None }
    }

    /// Action when a clock of a turn runs out.
    pub(crate) fn action(&self) -> TimeoutAction {
        self.timeouts.action
    }

    /// Starts the clocks of a turn.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.turn = Some(TurnClocks {
            tools: BTreeSet::new(),
            open_permissions: BTreeSet::new(),
            elapsed: Duration::ZERO,
            running_since: Some(now),
            active_at: Duration::ZERO,
            has_activity: false,
            fired: BTreeSet::new(),
            last_event: now,
            stalls_at: None,
            silent_at: after(now, self.timeouts.silence_ms),
        });
    }

    /// Stops the clocks, since the turn is over or is being ended. Forgets tool calls that never ended.
    pub(crate) fn end(&mut self) {
        self.turn = None;
    }

    /// Applies an event of the turn.
    pub(crate) fn record(&mut self, event: &Event, now: Instant) {
        let Some(turn) = &mut self.turn else { return };
        if !is_activity(event) {
            return;
        }
        match event {
            Event::ToolStart(tool) if !is_finished(tool.status) => remember(&mut turn.tools, &tool.id),
            Event::ToolUpdate(tool) if tool.status.is_some_and(is_finished) => _ = turn.tools.remove(&tool.id),
            Event::ToolEnd(tool) => _ = turn.tools.remove(&tool.id),
            Event::PermissionRequested(request) => remember(&mut turn.open_permissions, &request.id),
            Event::PermissionResolved { id, .. } => _ = turn.open_permissions.remove(id),
            _ => {}
        }
        turn.elapsed = turn.elapsed_at(now);
        turn.running_since = turn.runs().then_some(now);
        turn.active_at = turn.elapsed;
        turn.has_activity |= is_answer(event);
        turn.fired.remove(&TimeoutKind::Inactivity);
        turn.last_event = now;
        let stalls = !turn.tools.is_empty() && turn.open_permissions.is_empty();
        turn.stalls_at = if stalls { after(now, self.timeouts.tool_ms) } else { None };
        turn.silent_at = if turn.open_permissions.is_empty() { after(now, self.timeouts.silence_ms) } else { None };
    }

    /// Instant at which [`SessionClocks::tick`] is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        let turn = self.turn.as_ref()?;
        let clocks = turn.waiting(&self.timeouts).filter_map(|(_, _, at)| {
            let since = turn.running_since?;
            since.checked_add(at.saturating_sub(turn.elapsed))
        });
        clocks.chain(turn.silent_at).chain(turn.stalls_at).min()
    }

    /// Advances the time and returns what is due, in the order in which it became due.
    pub(crate) fn tick(&mut self, now: Instant) -> Vec<ClockDue> {
        let Some(turn) = &mut self.turn else { return Vec::new() };
        let mut due = Vec::new();
        if turn.silent_at.is_some_and(|silence| silence <= now) {
            due.push(ClockDue::Silent(now.saturating_duration_since(turn.last_event)));
            turn.silent_at = after(now, self.timeouts.silence_repeat_ms);
        }
        let shown = turn.elapsed_at(now);
        let mut fired: Vec<_> = turn.waiting(&self.timeouts).filter(|(.., at)| *at <= shown).collect();
        fired.sort_by_key(|(kind, _, at)| (*at, *kind));
        for (kind, set, _) in fired {
            turn.fired.insert(kind);
            due.push(ClockDue::Fired(kind, set));
        }
        // Fires once per silence.
        if turn.stalls_at.take_if(|stall| *stall <= now).is_some() {
            let set = Duration::from_millis(self.timeouts.tool_ms.unwrap_or_default());
            due.push(ClockDue::Fired(TimeoutKind::Tool, set));
        }
        due
    }
}

impl TurnClocks {
    fn runs(&self) -> bool {
        self.tools.is_empty() && self.open_permissions.is_empty()
    }

    /// Reading of the clocks: the time that they have run by now.
    fn elapsed_at(&self, now: Instant) -> Duration {
        self.elapsed + self.running_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    /// Clocks that have not run out: the setting of each, and the reading at which it fires. None while they stand
    /// still.
    fn waiting(&self, timeouts: &Timeouts) -> impl Iterator<Item = (TimeoutKind, Duration, Duration)> + use<'_> {
        let first = timeouts.first_response_ms.filter(|_| !self.has_activity);
        let clocks = [
            (TimeoutKind::FirstResponse, first, Duration::ZERO),
            (TimeoutKind::Inactivity, timeouts.inactivity_ms, self.active_at),
            (TimeoutKind::Turn, timeouts.turn_ms, Duration::ZERO),
        ];
        clocks.into_iter().filter(|(kind, ..)| self.running_since.is_some() && !self.fired.contains(kind)).filter_map(
            |(kind, set, from)| {
                let set = Duration::from_millis(set?);
                Some((kind, set, from.saturating_add(set)))
            },
        )
    }
}

/// Returns true for an event that shows the agent at work. Events of its processes do not, nor do lines without
/// meaning.
fn is_activity(event: &Event) -> bool {
    matches!(
        event,
        Event::Text { .. }
            | Event::Thinking { .. }
            | Event::ToolStart(_)
            | Event::ToolUpdate(_)
            | Event::ToolEnd(_)
            | Event::Plan { .. }
            | Event::Diff(_)
            | Event::Image(_)
            | Event::SubagentText { .. }
            | Event::SubagentThinking { .. }
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
        event => is_activity(event),
    }
}

fn is_finished(status: ToolStatus) -> bool {
    matches!(status, ToolStatus::Completed | ToolStatus::Failed)
}

fn remember(ids: &mut BTreeSet<String>, id: &str) {
    if ids.len() < MAX_REMEMBERED {
        ids.insert(id.to_owned());
    }
}

fn after(now: Instant, ms: Option<u64>) -> Option<Instant> {
    now.checked_add(Duration::from_millis(ms?))
}

#[cfg(test)]
mod tests;
