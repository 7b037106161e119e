//! The ledger of an agent's tool calls: each begins once, ends once, and is bounded in between.
//!
//! The ledger emits the events of a call, so that they are paired: a `stream:tool_start` is followed by one `stream:tool_end`,
//! whatever the agent leaves out. Of a running call it keeps the end of the output so far, which an update contains. Agents send
//! output in small pieces, or all of it again with each piece; so an update is not emitted with the piece, but by
//! [`ToolCallLedger::tick`]: at most one in [`OUTPUT_INTERVAL`] for each call.

use std::time::{Duration, Instant};

use ipc_protocol::{Event, ToolEnd, ToolStart, ToolStatus, ToolUpdate};

use super::{
    bounded_map::BoundedMap,
    bounds::{output, tail},
    diffs::{CallDiffs, FoundDiff},
};
use crate::Action;

/// Most calls that are remembered while they run; as many are remembered by their ids after their end.
const MAX_CALLS: usize = 1024;
/// Most bytes of output in an update of a running call.
pub(crate) const MAX_PARTIAL_OUTPUT: usize = 16 * 1024;
/// Time between two updates of a call's output.
pub(crate) const OUTPUT_INTERVAL: Duration = Duration::from_millis(100);

/// Reasons for the end of a call that its agent has not ended, in the place of its output.
pub(crate) mod ended {
    pub(crate) const TURN: &str = "the turn has ended";
    pub(crate) const COMPACTED: &str = "it has been compacted";
    pub(crate) const GONE: &str = "the agent is gone";
    pub(crate) const DROPPED: &str = "a line that may have told its end was too long";
    pub(crate) const FORGOTTEN: &str = "it was forgotten for newer ones";
}

/// Returns whether a call's output is a reason of ours.
pub(crate) fn is_ours(output: &str) -> bool {
    [ended::TURN, ended::COMPACTED, ended::GONE, ended::DROPPED, ended::FORGOTTEN].contains(&output)
}

/// An update of the call `id` that changes nothing yet.
pub(crate) fn no_update(id: &str) -> ToolUpdate {
    ToolUpdate { id: id.to_owned(), title: None, status: None, input: None, output: None }
}

/// Emits `update`, unless it changes nothing.
pub(crate) fn emit_update(update: ToolUpdate, out: &mut Vec<Action>) {
    if update.title.is_some() || update.status.is_some() || update.input.is_some() || update.output.is_some() {
        out.push(Action::Event(Event::ToolUpdate(Box::new(update))));
    }
}

fn end_event(id: &str, status: ToolStatus, text: String) -> Action {
    Action::Event(Event::ToolEnd(Box::new(ToolEnd { id: id.to_owned(), status, output: output(text) })))
}

/// End of a running call's output.
#[derive(Debug, Default)]
struct OutputSoFar {
    text: String,
    is_unsent: bool,
    /// True if an update has had some of it.
    is_shown: bool,
    sent_at: Option<Instant>,
}

impl OutputSoFar {
    fn text(&self) -> &str {
        tail(&self.text, MAX_PARTIAL_OUTPUT)
    }
}

/// Running call, with the adapter's own data about it.
#[derive(Debug)]
struct RunningCall<C> {
    data: C,
    output: OutputSoFar,
}

/// Tool calls of a session. `C` is what an adapter has to know of a running call.
#[derive(Debug)]
pub(crate) struct ToolCallLedger<C> {
    running: BoundedMap<RunningCall<C>, MAX_CALLS>,
    /// Calls that have ended.
    ended: BoundedMap<(), MAX_CALLS>,
    has_unsent: bool,
    diffs: CallDiffs,
}

impl<C> Default for ToolCallLedger<C> {
    fn default() -> Self {
        let diffs = CallDiffs::default();
        Self { running: BoundedMap::default(), ended: BoundedMap::default(), has_unsent: false, diffs }
    }
}

impl<C> ToolCallLedger<C> {
    /// Begins a call and emits its start. Where that is one call too many, the oldest ends.
    pub(crate) fn start(&mut self, start: ToolStart, data: C, out: &mut Vec<Action>) {
        self.ended.remove(&start.id);
        let forgotten = self.running.insert(&start.id, RunningCall { data, output: OutputSoFar::default() });
        out.push(Action::Event(Event::ToolStart(Box::new(start))));
        if let Some((id, call)) = forgotten {
            let so_far = call.output.text();
            let text = if so_far.is_empty() { ended::FORGOTTEN } else { so_far };
            out.push(end_event(&id, ToolStatus::Failed, text.to_owned()));
            self.ended.insert(&id, ());
        }
    }

    /// Returns the data of the running call `id`.
    pub(crate) fn get(&self, id: &str) -> Option<&C> {
        self.running.get(id).map(|call| &call.data)
    }

    /// Returns the data of the running call `id`.
    pub(crate) fn get_mut(&mut self, id: &str) -> Option<&mut C> {
        self.running.get_mut(id).map(|call| &mut call.data)
    }

    /// Returns whether the call `id` runs.
    pub(crate) fn is_running(&self, id: &str) -> bool {
        self.running.get(id).is_some()
    }

    /// Returns whether the call `id` has ended, as far as that is remembered.
    pub(crate) fn has_ended(&self, id: &str) -> bool {
        self.ended.get(id).is_some()
    }

    /// Returns the newest running call that satisfies `is`.
    pub(crate) fn newest(&self, is: impl Fn(&C) -> bool) -> Option<&str> {
        self.running.iter().rev().find(|(_, call)| is(&call.data)).map(|(id, _)| id)
    }

    /// Takes a piece of a running call's output.
    pub(crate) fn append_output(&mut self, id: &str, piece: &str) {
        let Some(RunningCall { output, .. }) = self.running.get_mut(id) else { return };
        output.text.push_str(piece);
        if output.text.len() > 2 * MAX_PARTIAL_OUTPUT {
            output.text = tail(&output.text, MAX_PARTIAL_OUTPUT).to_owned();
        }
        (output.is_unsent, self.has_unsent) = (true, true);
    }

    /// Takes all output of a running call so far.
    pub(crate) fn set_output(&mut self, id: &str, so_far: &str) {
        let Some(RunningCall { output, .. }) = self.running.get_mut(id) else { return };
        let so_far = tail(so_far, MAX_PARTIAL_OUTPUT);
        if output.text != so_far {
            so_far.clone_into(&mut output.text);
            (output.is_unsent, self.has_unsent) = (true, true);
        }
    }

    /// Takes all output of a running call so far. Returns it for an update at once if it is the call's first; later output waits for
    /// the next [`ToolCallLedger::tick`].
    pub(crate) fn offer_output(&mut self, id: &str, so_far: String) -> Option<String> {
        let is_shown = self.running.get(id)?.output.is_shown;
        self.set_output(id, &so_far);
        if is_shown {
            return None;
        }
        self.take_unsent(id).map(|_| so_far)
    }

    /// Emits what a call changes in files, unless it was emitted before. `parent` is the call of its sub-agent.
    pub(crate) fn diff(&mut self, id: &str, parent: Option<&str>, diffs: Vec<FoundDiff>, out: &mut Vec<Action>) {
        self.diffs.emit(id, parent, diffs, out);
    }

    /// Returns the output so far that no update has had, for an update that is emitted anyway.
    pub(crate) fn take_unsent(&mut self, id: &str) -> Option<String> {
        let RunningCall { output, .. } = self.running.get_mut(id)?;
        output.is_shown |= output.is_unsent;
        std::mem::take(&mut output.is_unsent).then(|| output.text().to_owned())
    }

    /// Emits updates with the output that is due. Returns when the next is.
    pub(crate) fn tick(&mut self, now: Instant, out: &mut Vec<Action>) -> Option<Instant> {
        if !self.has_unsent {
            return None;
        }
        let mut next: Option<Instant> = None;
        self.running.for_each(|id, RunningCall { output, .. }| {
            if !output.is_unsent {
                return;
            }
            let due = output.sent_at.map_or(now, |sent| sent + OUTPUT_INTERVAL);
            if due <= now {
                (output.is_unsent, output.is_shown, output.sent_at) = (false, true, Some(now));
                emit_update(ToolUpdate { output: Some(output.text().to_owned()), ..no_update(id) }, out);
            } else {
                next = Some(next.map_or(due, |next| next.min(due)));
            }
        });
        self.has_unsent = next.is_some();
        next
    }

    /// Ends the call `id`, if it runs, and returns its data. Without `text` its output is what there was so far.
    pub(crate) fn end(
        &mut self,
        id: &str,
        status: ToolStatus,
        text: Option<String>,
        out: &mut Vec<Action>,
    ) -> Option<C> {
        let RunningCall { data, output } = self.running.remove(id)?;
        out.push(end_event(id, status, text.unwrap_or_else(|| output.text().to_owned())));
        self.ended.insert(id, ());
        Some(data)
    }

    /// Ends the running calls that satisfy `is`, since their agent will not: they have failed, with their output so far.
    pub(crate) fn fail(&mut self, is: impl Fn(&C) -> bool, out: &mut Vec<Action>) {
        self.end_each(|call| is(call).then_some((ToolStatus::Failed, None)), out);
    }

    /// Ends the running calls for which `end` returns how: the status, and the text if it is not the output so far.
    pub(crate) fn end_each<'t>(
        &mut self,
        end: impl Fn(&C) -> Option<(ToolStatus, Option<&'t str>)>,
        out: &mut Vec<Action>,
    ) {
        let ends = self.running.iter().filter_map(|(id, call)| Some((Box::<str>::from(id), end(&call.data)?)));
        for (id, (status, text)) in ends.collect::<Vec<_>>() {
            self.end(&id, status, text.map(str::to_owned), out);
        }
    }
}

#[cfg(test)]
mod tests {
    use ipc_protocol::Json;

    use super::*;

    fn start(id: &str) -> ToolStart {
        ToolStart {
            id: id.to_owned(),
            name: "n".to_owned(),
            title: "t".to_owned(),
            kind: "other".to_owned(),
            input: Json::null(),
            status: ToolStatus::InProgress,
            parent: None,
        }
    }

    fn outputs(out: &[Action]) -> Vec<&str> {
        let output = |action: &Action| match action {
            Action::Event(Event::ToolUpdate(update)) => update.output.as_deref().map(str::to_owned).map(String::leak),
            Action::Event(Event::ToolEnd(end)) => Some(end.output.clone().leak()),
            _ => None,
        };
        out.iter().filter_map(output).map(|text| &*text).collect()
    }

    #[test]
    fn output_is_updated_at_intervals_and_complete_at_the_end() {
        let (mut ledger, mut out, begin) = (ToolCallLedger::default(), Vec::new(), Instant::now());
        ledger.start(start("a"), (), &mut out);
        assert_eq!(ledger.tick(begin, &mut out), None);
        ledger.append_output("a", "1");
        assert_eq!(ledger.tick(begin, &mut out), None, "the first is emitted at once");
        ledger.append_output("a", "2");
        ledger.append_output("a", "3");
        assert_eq!(ledger.tick(begin, &mut out), Some(begin + OUTPUT_INTERVAL));
        assert_eq!(ledger.tick(begin + OUTPUT_INTERVAL, &mut out), None);
        ledger.append_output("a", "4");
        ledger.set_output("b", "nothing runs by that name");
        ledger.end("a", ToolStatus::Completed, None, &mut out);
        assert_eq!(ledger.tick(begin + 2 * OUTPUT_INTERVAL, &mut out), None);
        assert_eq!(outputs(&out), ["1", "123", "1234"]);
        assert!(ledger.has_ended("a") && ledger.end("a", ToolStatus::Failed, None, &mut out).is_none());
    }

    #[test]
    fn the_oldest_call_ends_for_a_new_one() {
        let (mut ledger, mut out) = (ToolCallLedger::default(), Vec::new());
        for id in 0..=MAX_CALLS {
            ledger.start(start(&id.to_string()), id, &mut out);
        }
        assert_eq!((outputs(&out), ledger.get("0"), ledger.has_ended("0")), (vec![ended::FORGOTTEN], None, true));
        out.clear();
        ledger.append_output("7", "so far");
        ledger.fail(|id| *id < 9, &mut out);
        assert_eq!(outputs(&out), ["", "", "", "", "", "", "so far", ""]);
        assert_eq!(ledger.newest(|id| id % 2 == 1), Some("1023"));
    }
}
