//! Assembles an answer from the events of its turn. Pure and bounded.

use ipc_protocol::{BypassAction, Event, Json, ResolvedBy, StopReason, Usage};

use crate::answer::ToolCall;

/// Maximum number of tool calls in an answer; later ones are only counted.
const MAX_CALLS: usize = 4096;

/// Name under which permission requests are answered when no user is there.
pub(super) const ASK_ACTOR: &str = "ask";

/// Answer under construction.
#[derive(Debug, Default)]
pub(super) struct GrowingReply {
    pub(super) text: String,
    pub(super) thinking: String,
    pub(super) tool_calls: Vec<ToolCall>,
    pub(super) usage: Option<Usage>,
    pub(super) stop_reason: Option<StopReason>,
    /// Titles of permission requests answered as [`ASK_ACTOR`].
    pub(super) unanswered: Vec<String>,
    /// The tool call that bypassed the permission policy, and had the turn aborted: its title.
    pub(super) bypassed: Option<String>,
    /// Permission requests that are open: their ids and titles.
    open_requests: Vec<(String, String)>,
    /// Number of session events lost before they were read.
    pub(super) missed_events: u64,
    /// Bytes and calls left out for lack of room.
    pub(super) cut_bytes: u64,
    /// Bytes retained of text, thinking and tool calls.
    used_bytes: usize,
    max_bytes: usize,
    /// True if a tool was called since the last piece of text.
    interrupted: bool,
    /// The end of the text that was left out for want of room, in bytes; and of the thinking.
    text_cut: usize,
    thinking_cut: usize,
    /// Start and end of the last gap between paragraphs in the text.
    gap: Option<(usize, usize)>,
}

impl GrowingReply {
    /// Creates an answer of at most `longest` bytes.
    pub(super) fn new(max_bytes: usize) -> Self {
        Self { max_bytes, ..Self::default() }
    }

    /// Applies an event. Returns true if a handler should be notified.
    pub(super) fn apply(&mut self, event: &Event) -> bool {
        match event {
            Event::Text { text } => self.text(text),
            Event::Thinking { text } => {
                let fits = self.take_fitting(text);
                self.thinking.push_str(fits);
                self.thinking_cut += text.len() - fits.len();
            }
            Event::Voided { text_bytes, thinking_bytes } => self.void(*text_bytes, *thinking_bytes),
            Event::ToolStart(call) => {
                self.interrupted = true;
                // Some agents repeat a call's start when they know more.
                if let Some(known) = self.find(&call.id) {
                    known.state = call.status;
                    return true;
                }
                let size = call.id.len() + call.name.len() + call.input.as_str().len();
                if self.tool_calls.len() >= MAX_CALLS || size > self.room() {
                    self.cut_bytes = self.cut_bytes.saturating_add(size as u64);
                    return true;
                }
                self.used_bytes += size;
                self.tool_calls.push(ToolCall {
                    id: call.id.clone(),
                    name: call.name.clone(),
                    input: call.input.clone(),
                    output: String::new(),
                    state: call.status,
                });
            }
            Event::ToolUpdate(update) => {
                if let Some(status) = update.status
                    && let Some(call) = self.find(&update.id)
                {
                    call.state = status;
                }
                if let Some(input) = &update.input {
                    self.input(&update.id, input);
                }
                if let Some(output) = &update.output {
                    self.output(&update.id, output);
                }
            }
            Event::ToolEnd(end) => {
                if let Some(call) = self.find(&end.id) {
                    call.state = end.status;
                }
                self.output(&end.id, &end.output);
            }
            // Each report counts the whole turn so far; a field that one omits was in another.
            Event::Usage(usage) => self.usage(usage),
            Event::Complete { stop_reason, usage } => {
                self.stop_reason = Some(stop_reason.clone());
                usage.iter().for_each(|usage| self.usage(usage));
            }
            Event::SessionGap(gap) => {
                self.missed_events =
                    self.missed_events.saturating_add(gap.to.saturating_sub(gap.from).saturating_add(1));
            }
            Event::PermissionRequested(request) => {
                if self.open_requests.len() < MAX_CALLS {
                    self.open_requests.push((request.id.clone(), request.title.clone()));
                }
                return false;
            }
            Event::PermissionBypassed(call) if call.action == BypassAction::AbortTurn => {
                self.bypassed.get_or_insert_with(|| call.title.clone());
                return false;
            }
            Event::PermissionResolved { id, by, .. } => {
                let Some(at) = self.open_requests.iter().position(|(asked, _)| asked == id) else { return false };
                let (_, title) = self.open_requests.swap_remove(at);
                if matches!(by, ResolvedBy::User { name: Some(name) } if name == ASK_ACTOR)
                    && self.unanswered.len() < MAX_CALLS
                {
                    self.unanswered.push(title);
                }
                return false;
            }
            _ => return false,
        }
        true
    }

    fn find(&mut self, id: &str) -> Option<&mut ToolCall> {
        self.tool_calls.iter_mut().rev().find(|call| call.id == id)
    }

    fn room(&self) -> usize {
        self.max_bytes.saturating_sub(self.used_bytes)
    }

    /// Returns the part of `text` that fits, and counts its bytes as used.
    fn take_fitting<'a>(&mut self, text: &'a str) -> &'a str {
        let fits = &text[..text.floor_char_boundary(self.room())];
        self.used_bytes += fits.len();
        self.cut_bytes = self.cut_bytes.saturating_add((text.len() - fits.len()) as u64);
        fits
    }

    fn text(&mut self, text: &str) {
        // Text before a tool call is a paragraph of its own.
        if std::mem::take(&mut self.interrupted) && !self.text.is_empty() {
            let gap = if self.text.ends_with('\n') { "\n" } else { "\n\n" };
            let gap = self.take_fitting(gap);
            let before = self.text.len();
            self.text.push_str(gap);
            self.gap = Some((before, self.text.len()));
        }
        let fits = self.take_fitting(text);
        self.text.push_str(fits);
        self.text_cut += text.len() - fits.len();
    }

    /// Takes back the end of what was said: the agent says it again.
    fn void(&mut self, text: u64, thinking: u64) {
        let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let before = self.text.len() + self.thinking.len();
        let uncut = take_back(&mut self.text, &mut self.text_cut, bytes(text))
            + take_back(&mut self.thinking, &mut self.thinking_cut, bytes(thinking));
        if let Some((begin, end)) = self.gap
            && self.text.len() <= end
        {
            self.text.truncate(begin);
            (self.interrupted, self.gap) = (true, None);
        }
        self.used_bytes = self.used_bytes.saturating_sub(before - self.text.len() - self.thinking.len());
        self.cut_bytes = self.cut_bytes.saturating_sub(uncut as u64);
    }

    fn input(&mut self, id: &str, input: &Json) {
        let room = self.room();
        let Some(call) = self.find(id) else { return };
        let (before, now) = (call.input.as_str().len(), input.as_str().len());
        if now > room.saturating_add(before) {
            self.cut_bytes = self.cut_bytes.saturating_add(now as u64);
            return;
        }
        call.input = input.clone();
        self.used_bytes = self.used_bytes - before.min(self.used_bytes) + now;
    }

    /// Replaces a call's output: each report is the whole output so far.
    fn output(&mut self, id: &str, output: &str) {
        let Some(call) = self.find(id) else { return };
        let mut place = std::mem::take(&mut call.output);
        self.used_bytes = self.used_bytes.saturating_sub(place.len());
        let output = self.take_fitting(output);
        place.clear();
        place.push_str(output);
        if let Some(call) = self.find(id) {
            call.output = place;
        }
    }

    fn usage(&mut self, said: &Usage) {
        let known = self.usage.get_or_insert_default();
        known.input_tokens = said.input_tokens.or(known.input_tokens);
        known.output_tokens = said.output_tokens.or(known.output_tokens);
        known.cache_read_tokens = said.cache_read_tokens.or(known.cache_read_tokens);
        known.cache_write_tokens = said.cache_write_tokens.or(known.cache_write_tokens);
        known.cost_usd = said.cost_usd.or(known.cost_usd);
    }
}

/// Takes so many bytes off the end of `text`, of which the last `cut` are not there. How many of those were taken off.
fn take_back(text: &mut String, cut: &mut usize, bytes: usize) -> usize {
    let uncut = bytes.min(*cut);
    *cut -= uncut;
    text.truncate(text.floor_char_boundary(text.len().saturating_sub(bytes - uncut)));
    uncut
}

#[cfg(test)]
mod tests {
    use ipc_protocol::{OffsetGap, ToolEnd, ToolStart, ToolStatus, ToolUpdate};
    use proptest::prelude::*;

    use super::*;

    fn text(text: &str) -> Event {
        Event::Text { text: text.into() }
    }

    fn start(id: &str) -> Event {
        Event::ToolStart(Box::new(ToolStart {
            id: id.into(),
            name: "bash".into(),
            title: "ls".into(),
            kind: "execute".into(),
            input: Json::null(),
            status: ToolStatus::Pending,
            parent: None,
        }))
    }

    fn update(id: &str, output: &str) -> Event {
        Event::ToolUpdate(Box::new(ToolUpdate {
            id: id.into(),
            title: None,
            status: Some(ToolStatus::InProgress),
            input: Some(Json::from(&serde_json::json!({"command": "ls"}))),
            output: Some(output.into()),
        }))
    }

    fn end(id: &str, output: &str) -> Event {
        Event::ToolEnd(Box::new(ToolEnd { id: id.into(), status: ToolStatus::Completed, output: output.into() }))
    }

    fn reply(longest: usize, events: &[Event]) -> GrowingReply {
        let mut reply = GrowingReply::new(longest);
        events.iter().for_each(|event| _ = reply.apply(event));
        reply
    }

    #[test]
    fn text_and_tools_of_a_turn() {
        let tokens = |input, output| Usage { input_tokens: input, output_tokens: output, ..Usage::default() };
        let events = [
            Event::Thinking { text: "hm".into() },
            text("I look"),
            text("."),
            start("1"),
            update("1", "a"),
            update("1", "a\nb"),
            Event::Usage(Box::new(tokens(Some(3), None))),
            end("1", "a\nb\nc"),
            text("Three files."),
            Event::Complete { stop_reason: StopReason::EndTurn, usage: Some(Box::new(tokens(None, Some(7)))) },
        ];
        let reply = reply(1000, &events);
        assert_eq!((reply.text.as_str(), reply.thinking.as_str()), ("I look.\n\nThree files.", "hm"));
        let call = ToolCall {
            id: "1".into(),
            name: "bash".into(),
            input: Json::from(&serde_json::json!({"command": "ls"})),
            output: "a\nb\nc".into(),
            state: ToolStatus::Completed,
        };
        assert_eq!(reply.tool_calls, [call]);
        assert_eq!((reply.usage, reply.stop_reason), (Some(tokens(Some(3), Some(7))), Some(StopReason::EndTurn)));
        assert_eq!((reply.missed_events, reply.cut_bytes), (0, 0));
    }

    /// The answer broke off twice; the second time behind a tool.
    #[test]
    fn an_answer_that_is_asked_for_again_is_there_once() {
        let voided = |text_bytes, thinking_bytes| Event::Voided { text_bytes, thinking_bytes };
        let events = [
            Event::Thinking { text: "hm".into() },
            text("I l"),
            voided(3, 2),
            Event::Thinking { text: "hmm".into() },
            text("I look."),
            start("1"),
            end("1", "a"),
            text("Ä"),
            text("h"),
            voided(3, 0),
        ];
        let mut reply = reply(1000, &events);
        assert_eq!((reply.text.as_str(), reply.thinking.as_str()), ("I look.", "hmm"));
        reply.apply(&text("A file."));
        assert_eq!(reply.text, "I look.\n\nA file.");
        reply.apply(&voided(1000, 1000));
        assert_eq!((reply.text.as_str(), reply.thinking.as_str()), ("", ""));
        // What was left out is taken back first.
        let reply = self::reply(4, &[text("abcdef"), voided(3, 0), text("x")]);
        assert_eq!((reply.text.as_str(), reply.cut_bytes), ("abcx", 0));
    }

    #[test]
    fn what_is_lost_is_told() {
        let reply = reply(4, &[text("äöü"), Event::SessionGap(OffsetGap { from: 3, to: 7 }), text("more")]);
        assert_eq!((reply.text.as_str(), reply.missed_events, reply.cut_bytes), ("äö", 5, 6));
    }

    proptest! {
        /// Whatever comes, the bound holds, and what is left out is counted.
        #[test]
        fn it_is_bounded(events in prop::collection::vec((0..6_u8, "[a-cä]{0,40}", 0..3_u8), 0..60), longest in 0..200_usize) {
            let mut reply = GrowingReply::new(longest);
            for (kind, said, id) in events {
                let id = id.to_string();
                reply.apply(&match kind {
                    0 => text(&said),
                    1 => Event::Thinking { text: said },
                    2 => start(&id),
                    3 => update(&id, &said),
                    4 => Event::Voided { text_bytes: said.len() as u64, thinking_bytes: id.len() as u64 },
                    _ => end(&id, &said),
                });
                let calls: usize = reply
                    .tool_calls
                    .iter()
                    .map(|call| call.id.len() + call.name.len() + call.input.as_str().len() + call.output.len())
                    .sum();
                let held = reply.text.len() + reply.thinking.len() + calls;
                prop_assert_eq!(held, reply.used_bytes);
                prop_assert!(held <= longest);
            }
        }
    }
}
