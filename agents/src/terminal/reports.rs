//! Reports of an agent's own screen: its hooks tell what happens there, and ask before a tool runs.
//!
//! Claude Code and Codex name their events alike; Gemini CLI has names of its own, and its tool calls have no ids. Each report is a line,
//! `{"report":REPORT}`; a hook that waits for an answer adds a number of its own, `{"ask":NUMBER,"report":REPORT}`.

use std::{collections::VecDeque, time::Instant};

use ipc_protocol::{Event, Json, PermissionMode, PermissionPolicy, StopReason, ToolEnd, ToolStart, ToolStatus};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use super::{
    permissions::{HookDialect, ScreenPermissions},
    tools,
    transcript::{FileFact, ScreenTranscript},
};
use crate::{
    Action,
    kit::bounds::{self, MAX_ID},
    permission::CompiledPolicy,
};

/// Most tool calls without an end.
const MAX_CALLS: usize = 256;
/// Beginning of a line of a hook that waits.
const ASK: &[u8] = b"{\"ask\":";

#[derive(Debug, Deserialize)]
struct ReportLine<'a> {
    ask: Option<u64>,
    #[serde(borrow)]
    report: &'a RawValue,
}

/// Report of a hook.
#[derive(Debug, Deserialize)]
struct HookReport {
    session_id: String,
    transcript_path: Option<String>,
    prompt_id: Option<String>,
    #[serde(flatten)]
    event: HookEvent,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "hook_event_name")]
enum HookEvent {
    SessionStart {},
    #[serde(alias = "BeforeAgent")]
    UserPromptSubmit {
        prompt: String,
    },
    MessageDisplay {
        delta: String,
        #[serde(default, rename = "final")]
        is_final: bool,
    },
    #[serde(alias = "BeforeTool")]
    PreToolUse(ToolReport),
    PermissionRequest(ToolReport),
    #[serde(alias = "AfterTool")]
    PostToolUse(ToolReport),
    PostToolUseFailure(ToolReport),
    #[serde(alias = "AfterAgent")]
    Stop {
        #[serde(default, alias = "prompt_response")]
        last_assistant_message: Option<String>,
    },
    SessionEnd {},
    #[serde(other)]
    Other,
}

/// Report about a tool call.
#[derive(Debug, Deserialize)]
pub(super) struct ToolReport {
    tool_use_id: Option<String>,
    pub(super) tool_name: String,
    #[serde(default)]
    pub(super) tool_input: Value,
    #[serde(default)]
    tool_response: Value,
    #[serde(default)]
    error: Value,
}

/// Tool call without an end.
#[derive(Debug)]
struct OpenCall {
    id: String,
    name: String,
    title: String,
}

/// Screen of an agent, as its hooks report it.
#[derive(Debug)]
pub(super) struct ScreenReports {
    /// Latest conversation: `/clear` and `/resume` begin another one in the same process.
    pub(super) conversation: Option<String>,
    pub(super) permissions: ScreenPermissions,
    /// Oldest first.
    calls: VecDeque<OpenCall>,
    /// Number of calls that got an id here.
    minted: u64,
    /// True from a prompt to the end of its turn.
    in_turn: bool,
    /// True if the agent has said that it stops.
    has_stopped: bool,
    /// Conversation file, for an agent of which it is read.
    transcript: Option<ScreenTranscript>,
    /// True if the answer is shown piece by piece, so that the report of its end adds nothing.
    shows_pieces: bool,
    /// True in the rest of a line that was too long.
    is_cut: bool,
}

impl ScreenReports {
    pub(super) fn new(
        conversation: Option<String>,
        permissions: ScreenPermissions,
        transcript: Option<ScreenTranscript>,
    ) -> Self {
        Self {
            conversation,
            permissions,
            calls: VecDeque::new(),
            minted: 0,
            in_turn: false,
            has_stopped: false,
            shows_pieces: transcript.is_some(),
            transcript,
            is_cut: false,
        }
    }

    /// Takes a line, or a piece of one that is too long.
    pub(super) fn take(&mut self, line: &[u8], out: &mut Vec<Action>) {
        let is_whole = line.ends_with(b"\n");
        if std::mem::replace(&mut self.is_cut, !is_whole) {
            return;
        }
        if !is_whole {
            return Self::drop_long(line, out);
        }
        let Ok(ReportLine { ask, report }) = serde_json::from_slice(line) else { return };
        if let Some(id) = ask {
            out.push(Action::OpenHook { id });
        }
        let asked = serde_json::from_str(report.get()).ok().and_then(|report| self.take_report(report, ask, out));
        if let Some(id) = ask.filter(|_| asked.is_none()) {
            out.push(Action::AnswerHook { id, answer: Vec::new() });
        }
    }

    /// Notes that a report is lost, and leaves a hook that waits to its agent.
    fn drop_long(line: &[u8], out: &mut Vec<Action>) {
        let number = line.strip_prefix(ASK).map(|rest| rest.iter().take_while(|byte| byte.is_ascii_digit()));
        let number = number.map(|digits| digits.map(|byte| char::from(*byte)).collect::<String>());
        if let Some(id) = number.and_then(|digits| digits.parse().ok()) {
            out.extend([Action::OpenHook { id }, Action::AnswerHook { id, answer: Vec::new() }]);
        }
        let action = "reading a report of the agent's screen".to_owned();
        let error = format!("it has more than {} bytes, and is left out", line.len());
        out.push(Action::Event(Event::ActionFailed { action, error }));
    }

    /// Takes a report. Returns something if the hook goes on waiting, or has been answered.
    fn take_report(&mut self, report: HookReport, ask: Option<u64>, out: &mut Vec<Action>) -> Option<()> {
        let HookReport { session_id, transcript_path, prompt_id, event } = report;
        if session_id.len() > MAX_ID {
            return None;
        }
        if let Some(transcript) = &mut self.transcript {
            transcript.note(&session_id, transcript_path.as_deref(), prompt_id.as_deref(), out);
        }
        if self.conversation.as_ref() != Some(&session_id) {
            self.conversation = Some(session_id.clone());
            out.push(Action::NativeSession(session_id));
        }
        match event {
            HookEvent::UserPromptSubmit { prompt } => {
                if self.has_stopped {
                    self.end_turn(StopReason::EndTurn, out);
                }
                self.end_open(out);
                (self.in_turn, self.has_stopped) = (true, false);
                out.push(Action::Event(Event::TerminalPrompted { text: prompt }));
            }
            HookEvent::MessageDisplay { delta, is_final } => {
                let text = if is_final { format!("{delta}\n") } else { delta };
                out.push(Action::Event(Event::Text { text }));
            }
            HookEvent::PreToolUse(tool) => {
                let id = self.begin_call(&tool, out)?;
                return self.permissions.check_call(ask?, &tool, id, out);
            }
            HookEvent::PermissionRequest(tool) => {
                let title = tools::title(&tool.tool_name, &tool.tool_input);
                let is_meant = |call: &&OpenCall| call.name == tool.tool_name && call.title == title;
                let call = self.calls.iter().filter(is_meant).find(|call| !self.permissions.is_about(&call.id));
                return self.permissions.ask(ask?, &tool, call.map(|call| call.id.clone()), out);
            }
            HookEvent::PostToolUse(tool) => self.end_reported_call(&tool, ToolStatus::Completed, out),
            HookEvent::PostToolUseFailure(tool) => self.end_reported_call(&tool, ToolStatus::Failed, out),
            HookEvent::Stop { last_assistant_message } => {
                self.end_open(out);
                if let Some(text) = last_assistant_message.filter(|text| !self.shows_pieces && !text.is_empty()) {
                    out.push(Action::Event(Event::Text { text }));
                }
                self.has_stopped = true;
                self.await_end(out);
            }
            HookEvent::SessionEnd {} => {
                self.end_turn(StopReason::Cancelled, out);
                self.end_open(out);
            }
            HookEvent::SessionStart {} | HookEvent::Other => {}
        }
        None
    }

    fn begin_call(&mut self, tool: &ToolReport, out: &mut Vec<Action>) -> Option<String> {
        let ToolReport { tool_use_id, tool_name, tool_input, .. } = tool;
        let id = tool_use_id.clone().unwrap_or_else(|| {
            self.minted += 1;
            format!("call-{}", self.minted)
        });
        if id.len() > MAX_ID || tool_name.len() > MAX_ID {
            return None;
        }
        if self.calls.len() >= MAX_CALLS {
            self.calls.pop_front();
        }
        let title = tools::title(tool_name, tool_input);
        self.calls.push_back(OpenCall { id: id.clone(), name: tool_name.clone(), title: title.clone() });
        out.push(Action::Event(Event::ToolStart(Box::new(ToolStart {
            id: id.clone(),
            title,
            kind: tools::kind(tool_name).to_owned(),
            name: tool_name.clone(),
            input: Json::from(tool_input),
            status: ToolStatus::InProgress,
            parent: None,
        }))));
        Some(id)
    }

    /// Ends the call of a report: the one of its id, else the oldest that looks like it.
    fn end_reported_call(&mut self, tool: &ToolReport, status: ToolStatus, out: &mut Vec<Action>) {
        let title = tools::title(&tool.tool_name, &tool.tool_input);
        let is_meant = |call: &OpenCall| match &tool.tool_use_id {
            Some(id) => call.id == *id,
            None => call.name == tool.tool_name && call.title == title,
        };
        let output = if status == ToolStatus::Failed { &tool.error } else { &tool.tool_response };
        self.end_call(is_meant, status, output_text(output), out);
        if let Some(transcript) = &mut self.transcript {
            transcript.read(out);
        }
    }

    /// Ends the first call that is meant, if it is open.
    fn end_call(
        &mut self,
        is_meant: impl Fn(&OpenCall) -> bool,
        status: ToolStatus,
        output: String,
        out: &mut Vec<Action>,
    ) {
        let Some(call) = self.calls.iter().position(is_meant).and_then(|at| self.calls.remove(at)) else { return };
        self.permissions.end_of_call(&call.id, out);
        let output = bounds::output(output);
        out.push(Action::Event(Event::ToolEnd(Box::new(ToolEnd { id: call.id, status, output }))));
    }

    /// Waits for the turn's end in the conversation file, where that is read.
    fn await_end(&mut self, out: &mut Vec<Action>) {
        match &mut self.transcript {
            Some(transcript) if transcript.is_known() => transcript.await_end(),
            _ => self.end_turn(StopReason::EndTurn, out),
        }
    }

    /// Ends the turn, if there is one.
    fn end_turn(&mut self, stop_reason: StopReason, out: &mut Vec<Action>) {
        if let Some(transcript) = &mut self.transcript {
            transcript.stop();
        }
        if std::mem::take(&mut self.in_turn) {
            self.has_stopped = false;
            self.end_open(out);
            out.push(Action::Event(Event::Complete { stop_reason, usage: None }));
        }
    }

    /// Handles a status of the program.
    pub(super) fn status(&mut self, status: &str, out: &mut Vec<Action>) {
        self.permissions.status(status, out);
        // Of an interruption no hook tells.
        if status == "idle" && self.in_turn && self.transcript.as_ref().is_some_and(ScreenTranscript::is_known) {
            self.await_end(out);
        }
    }

    /// Takes what was read of the conversation file.
    pub(super) fn take_file(&mut self, next: u64, bytes: &[u8], out: &mut Vec<Action>) {
        let Some(transcript) = &mut self.transcript else { return };
        let facts = transcript.take(next, bytes);
        if let Some(usage) = transcript.usage() {
            out.push(Action::Event(Event::Usage(Box::new(usage))));
        }
        for fact in facts {
            match fact {
                FileFact::Result { call, is_error, output } => {
                    let status = if is_error { ToolStatus::Failed } else { ToolStatus::Completed };
                    self.end_call(|open| open.id == call, status, output, out);
                }
                FileFact::TurnEnded => self.end_turn(StopReason::EndTurn, out),
                FileFact::Interrupted => self.end_turn(StopReason::Cancelled, out),
            }
        }
        if let Some(transcript) = self.transcript.as_mut().filter(|_| !bytes.is_empty()) {
            transcript.read_piece(out);
        }
    }

    /// Looks for the turn's end, if it is time. Returns the time of the next look.
    pub(super) fn tick(&mut self, now: Instant, out: &mut Vec<Action>) -> Option<Instant> {
        let (next, is_over) = self.transcript.as_mut()?.tick(now, out);
        if is_over {
            let reason = if self.has_stopped { StopReason::EndTurn } else { StopReason::Cancelled };
            self.end_turn(reason, out);
        }
        next
    }

    /// Ends everything, since the agent has ended.
    pub(super) fn finish(&mut self, out: &mut Vec<Action>) {
        self.permissions.close_all(out);
        let reason = if self.has_stopped { StopReason::EndTurn } else { StopReason::Cancelled };
        self.end_turn(reason, out);
        self.end_open(out);
    }

    /// Ends what is open at the end of a turn: nobody waits for an answer any more, and a call without an end was not made.
    fn end_open(&mut self, out: &mut Vec<Action>) {
        self.permissions.leave_to_screen(out);
        for OpenCall { id, .. } in self.calls.drain(..) {
            let end = ToolEnd { id, status: ToolStatus::Failed, output: String::new() };
            out.push(Action::Event(Event::ToolEnd(Box::new(end))));
        }
    }
}

/// Returns the events of one report of an agent that runs outside: what was reported before it is not known.
pub fn events_of_report(report: &[u8]) -> Vec<Event> {
    let policy = CompiledPolicy::new(&PermissionPolicy::default(), PermissionMode::Ask, "/");
    let (Ok(report), Ok(policy)) = (serde_json::from_slice::<HookReport>(report), policy) else { return Vec::new() };
    let permissions = ScreenPermissions::new(policy, HookDialect::Claude);
    let mut screen = ScreenReports { shows_pieces: true, ..ScreenReports::new(None, permissions, None) };
    // What it ends began in another report.
    match &report.event {
        HookEvent::Stop { .. } => screen.in_turn = true,
        HookEvent::PostToolUse(tool) | HookEvent::PostToolUseFailure(tool) => {
            let title = tools::title(&tool.tool_name, &tool.tool_input);
            let id = tool.tool_use_id.clone().unwrap_or_default();
            screen.calls.push_back(OpenCall { id, name: tool.tool_name.clone(), title });
        }
        _ => {}
    }
    let mut actions = Vec::new();
    screen.take_report(report, None, &mut actions);
    let event = |action| if let Action::Event(event) = action { Some(event) } else { None };
    actions.into_iter().filter_map(event).collect()
}

/// Returns the text of a tool's output.
fn output_text(output: &Value) -> String {
    let text = ["stdout", "llmContent"].iter().find_map(|name| output.get(name)?.as_str());
    match (output, text) {
        (Value::String(text), _) => text.clone(),
        (_, Some(text)) => text.to_owned(),
        (Value::Null, _) => String::new(),
        (other, _) => other.to_string(),
    }
}

#[cfg(test)]
mod tests;
