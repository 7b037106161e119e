//! Conversation: prompts, turns, and the handling of answers.

use std::collections::VecDeque;

use ipc_protocol::{AgentEndpoint, Event, NativeResume, StopReason, WireError, message::RequestId};

use super::{
    calls::{OpenCodeRequestPurpose, OpenCodeResponse, PendingCalls, refusal},
    content::{ConversationContent, SessionOwner},
    looks::ConversationLooks,
    models::ProviderModels,
    permissions::{OpenCodePermissions, ServerCall},
    screen_turn::ScreenTurn,
    settings::PromptSettings,
    turn::{OpenCodeTurn, TurnAction},
};
use crate::{Action, AdapterSetup, HttpEvent, LineSplitter, Result, kit::json_lines::AgentOutput, uri::encode};

/// Most reconnects of the event stream in a row without an event from the server.
const MAX_RECONNECTS: u32 = 5;

/// Phase of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenCodePhase {
    New,
    /// The server has not printed its address yet.
    Starting,
    /// The event stream is being opened for the first time.
    Connecting,
    /// The conversation is being opened.
    Opening,
    Ready,
    /// The session has failed, or the agent has ended.
    Over,
}

/// Compaction in progress: a run of the server that is no turn.
#[derive(Debug)]
pub(super) struct OpenCodeCompaction {
    pub(super) request: RequestId,
    /// The server's answer. Its events may still be on their way.
    pub(super) answered: Option<Result<()>>,
    pub(super) busy: bool,
    pub(super) idle: bool,
}

#[derive(Debug)]
pub(super) struct OpenCodeSession {
    pub(super) settings: PromptSettings,
    pub(super) endpoint: AgentEndpoint,
    /// True for the session's own server, which has no conversations of others.
    is_own: bool,
    pub(super) resume: Option<NativeResume>,
    pub(super) phase: OpenCodePhase,
    pub(super) checked_mode: bool,
    pub(super) checked_thinking: bool,
    pub(super) calls: PendingCalls,
    /// Standard output, which has the server's address.
    pub(super) stdout: LineSplitter,
    /// The event stream, and standard error.
    pub(super) output: AgentOutput,
    stream: u64,
    /// Times that the event stream was opened since the server last confirmed it.
    attempts: u32,
    /// Id of the conversation on the server.
    pub(super) session: String,
    pub(super) looks: ConversationLooks,
    pub(super) content: ConversationContent,
    pub(super) permissions: OpenCodePermissions,
    pub(super) models: ProviderModels,
    pub(super) turn: Option<OpenCodeTurn>,
    /// Number of the last turn.
    pub(super) turns: u64,
    /// Turn that was begun elsewhere: on the agent's screen.
    pub(super) screen: ScreenTurn,
    pub(super) compaction: Option<OpenCodeCompaction>,
    /// Prompts that wait for the end of a compaction, or for the prompt before them, which a later one could overtake.
    pub(super) waiting: VecDeque<(OpenCodeRequestPurpose, Vec<u8>)>,
    /// True during a resync: the turn does not end meanwhile.
    pub(super) resyncing: bool,
}

impl OpenCodeSession {
    /// Makes the session's state.
    ///
    /// # Errors
    /// [`WireError::AgentRefused`] for a model without its provider.
    pub(super) fn new(setup: &AdapterSetup, endpoint: AgentEndpoint) -> Result<Self> {
        Ok(Self {
            settings: PromptSettings::new(setup)?,
            is_own: endpoint.url.is_none(),
            endpoint,
            resume: setup.resume.clone(),
            phase: OpenCodePhase::New,
            checked_mode: false,
            checked_thinking: false,
            calls: PendingCalls::default(),
            stdout: LineSplitter::default(),
            output: AgentOutput::default(),
            stream: 0,
            attempts: 0,
            session: String::new(),
            looks: ConversationLooks::default(),
            content: ConversationContent::default(),
            permissions: OpenCodePermissions::default(),
            models: ProviderModels::default(),
            turn: None,
            turns: 0,
            screen: ScreenTurn::default(),
            compaction: None,
            waiting: VecDeque::new(),
            resyncing: false,
        })
    }

    /// Returns whether request `id` is the event stream.
    pub(super) fn is_stream(&self, id: u64) -> bool {
        id == self.stream && id > 0
    }

    pub(super) fn open_stream(&mut self, out: &mut Vec<Action>) {
        self.attempts += 1;
        self.stream = self.calls.stream(self.settings.path("/event"), out);
    }

    /// Handles `server.connected`: no event is missed from here on.
    pub(super) fn stream_opened(&mut self, out: &mut Vec<Action>) {
        self.attempts = 0;
        match self.phase {
            OpenCodePhase::Connecting => self.connected(out),
            OpenCodePhase::Ready => {
                if self.turn.is_none() && self.screen.is_running() {
                    let reason = "the event stream was cut: what happened on the agent's screen meanwhile is missing";
                    out.push(Action::Event(Event::SessionLossy { reason: reason.to_owned() }));
                }
                self.resync(out);
            }
            _ => {}
        }
    }

    pub(super) fn stream_refused(&mut self, status: u16, out: &mut Vec<Action>) {
        self.stream = 0;
        self.fail(self.broken(&format!("its event stream was refused with status {status}")), out);
    }

    pub(super) fn stream_cut(&mut self, why: &str, out: &mut Vec<Action>) {
        self.stream = 0;
        match self.phase {
            OpenCodePhase::Ready if self.attempts < MAX_RECONNECTS => {
                self.content.mark_cut();
                self.resyncing = self.turn.is_some();
                self.open_stream(out);
            }
            OpenCodePhase::Over => {}
            _ => self.fail(WireError::AgentDied { reason: format!("its server cannot be reached: {why}") }, out),
        }
    }

    fn fail(&mut self, error: WireError, out: &mut Vec<Action>) {
        if self.phase != OpenCodePhase::Over {
            self.close(out);
            out.push(Action::Fail(error));
        }
    }

    fn send(
        &mut self,
        purpose: OpenCodeRequestPurpose,
        method: &'static str,
        path: &str,
        body: Option<Vec<u8>>,
        out: &mut Vec<Action>,
    ) {
        let path = self.settings.path(path);
        self.calls.send(purpose, method, path, body, out);
    }

    /// Returns the path of the conversation, with `rest` appended.
    pub(super) fn conversation(&self, rest: &str) -> String {
        format!("/session/{}{rest}", encode(&self.session))
    }

    pub(super) fn send_prompt(&mut self, purpose: OpenCodeRequestPurpose, body: Vec<u8>, out: &mut Vec<Action>) {
        self.waiting.push_back((purpose, body));
        self.send_next_prompt(out);
    }

    /// Sends the next prompt. Each prompt has a connection of its own, so two at once could arrive in another order.
    pub(super) fn send_next_prompt(&mut self, out: &mut Vec<Action>) {
        let on_its_way = |purpose: &OpenCodeRequestPurpose| {
            matches!(
                purpose,
                OpenCodeRequestPurpose::Prompt | OpenCodeRequestPurpose::Steer | OpenCodeRequestPurpose::Forget
            )
        };
        // The answer to a command comes when its run is over.
        let is_command = |purpose: &OpenCodeRequestPurpose| *purpose == OpenCodeRequestPurpose::Command(self.turns);
        let begins = self.turn.as_ref().is_some_and(|turn| !turn.has_begun());
        if self.waiting.is_empty()
            || self.compaction.is_some()
            || self.calls.count(on_its_way) > 0
            || (begins && self.calls.count(is_command) > 0)
        {
            return;
        }
        if let Some((purpose, body)) = self.waiting.pop_front() {
            let is_command = matches!(purpose, OpenCodeRequestPurpose::Command(_));
            let path = self.conversation(if is_command { "/command" } else { "/prompt_async" });
            self.send(purpose, "POST", &path, Some(body), out);
        }
    }

    /// Returns the owner of `session`. An unknown session on our own server belongs to a sub-agent whose creation was missed.
    pub(super) fn owner(&self, session: &str) -> SessionOwner {
        match self.content.owner(session, &self.session) {
            SessionOwner::Foreign if self.is_own => SessionOwner::Child(None),
            whose => whose,
        }
    }

    pub(super) fn send_answers(&mut self, answers: Vec<ServerCall>, out: &mut Vec<Action>) {
        for (path, body) in answers {
            let body = body.map(|body| body.to_string().into_bytes());
            self.send(OpenCodeRequestPurpose::Answer, "POST", &path, body, out);
        }
    }

    /// Aborts the turn.
    pub(super) fn abort_turn(&mut self, out: &mut Vec<Action>) {
        let Some(turn) = &mut self.turn else { return };
        turn.abort();
        // Rejections go first: requests that are still open would stay listed for ever.
        let answers = self.permissions.reject_all(out);
        self.send_answers(answers, out);
        if let Some(turn) = &mut self.turn {
            // The waiting prompts are not sent any more.
            self.waiting.drain(..).for_each(|_| turn.prompt_refused());
        }
        self.check_turn(out);
    }

    /// Refuses a request from the server.
    pub(super) fn refuse(&mut self, send: Option<ServerCall>, out: &mut Vec<Action>) {
        self.send_answers(send.into_iter().collect(), out);
    }

    /// Does the next step for the end of the turn.
    pub(super) fn check_turn(&mut self, out: &mut Vec<Action>) {
        if self.resyncing {
            return;
        }
        let Some(turn) = &mut self.turn else { return };
        match turn.next() {
            TurnAction::Wait => {}
            TurnAction::Abort => {
                let path = self.conversation("/abort");
                self.send(OpenCodeRequestPurpose::Abort, "POST", &path, None, out);
            }
            TurnAction::Resend => {
                let prompt = turn.last_prompt().map(encode).unwrap_or_default();
                let path = self.conversation(&format!("/message/{prompt}"));
                self.send(OpenCodeRequestPurpose::Forget, "DELETE", &path, None, out);
            }
            TurnAction::End => self.end_turn(out),
        }
    }

    fn end_turn(&mut self, out: &mut Vec<Action>) {
        let Some(turn) = self.turn.take() else { return };
        self.waiting.clear();
        let answers = self.permissions.reject_all(out);
        self.send_answers(answers, out);
        self.content.end_calls(out);
        let usage = self.content.usage();
        if turn.is_aborted() {
            out.push(Action::Event(Event::Complete { stop_reason: StopReason::Cancelled, usage }));
        } else if !turn.has_failed() {
            out.push(Action::Event(Event::Complete { stop_reason: stop_reason(turn.finish()), usage }));
        }
        out.push(Action::TurnEnded);
    }

    /// Ends a turn that was begun on the agent's screen.
    pub(super) fn end_screen_turn(&mut self, stop_reason: StopReason, out: &mut Vec<Action>) {
        let answers = self.permissions.reject_all(out);
        self.send_answers(answers, out);
        self.content.end_calls(out);
        out.push(Action::Event(Event::Complete { stop_reason, usage: self.content.usage() }));
    }

    /// Handles an event of a request other than the event stream.
    pub(super) fn answered(&mut self, id: u64, event: HttpEvent<'_>, out: &mut Vec<Action>) {
        let Some((purpose, what, answer)) = self.calls.take(id, event) else { return };
        match purpose {
            OpenCodeRequestPurpose::Open(step) => self.opened(step, &what, answer, out),
            OpenCodeRequestPurpose::Prompt => {
                if let Err(why) = success(answer) {
                    self.prompt_failed("prompt-refused", &why, out);
                }
            }
            OpenCodeRequestPurpose::Command(number) => {
                // An error of its run is an event, too.
                let begins = number == self.turns && self.turn.as_ref().is_some_and(|turn| !turn.has_begun());
                if let Err(why) = success(answer)
                    && begins
                {
                    self.prompt_failed("prompt-refused", &why, out);
                }
            }
            OpenCodeRequestPurpose::Steer => {
                if let Err(why) = success(answer) {
                    out.push(Action::Event(Event::error("steer-refused", why, true)));
                    if let Some(turn) = &mut self.turn {
                        turn.prompt_refused();
                    }
                }
            }
            // The steer is sent again even if the removal failed.
            OpenCodeRequestPurpose::Forget => {
                if let Some(body) = self.turn.as_mut().and_then(OpenCodeTurn::take_steer) {
                    self.waiting.push_front((OpenCodeRequestPurpose::Steer, body));
                }
            }
            OpenCodeRequestPurpose::Abort => {
                if let Err(error) = success(answer) {
                    out.push(Action::Event(Event::ActionFailed { action: "aborting the run".into(), error }));
                }
                if let Some(turn) = &mut self.turn {
                    turn.settled();
                }
            }
            // A request that the server has meanwhile answered itself does not exist any more.
            OpenCodeRequestPurpose::Answer => match answer {
                Ok((404, _)) => {}
                answer => {
                    if let Err(error) = success(answer) {
                        let action = "answering a permission request".into();
                        out.push(Action::Event(Event::ActionFailed { action, error }));
                    }
                }
            },
            OpenCodeRequestPurpose::Models => {
                if let Ok((200, body)) = answer {
                    self.models = ProviderModels::parse(&body).unwrap_or_default();
                    self.emit_context_window(out);
                }
            }
            OpenCodeRequestPurpose::Commands => {
                if let Ok((200, body)) = answer {
                    self.looks.offered(&body, out);
                }
            }
            OpenCodeRequestPurpose::Resync(step) => self.resynced(step, answer, out),
            OpenCodeRequestPurpose::Operation(request, step) => self.operated(request, step, &what, answer, out),
        }
        self.check_turn(out);
        self.send_next_prompt(out);
    }

    /// Emits the fill of the context window, if both numbers are known.
    pub(super) fn emit_context_window(&self, out: &mut Vec<Action>) {
        if let (Some(used), Some(model)) = (self.content.used, &self.content.model)
            && let Some(size) = self.models.context(model)
        {
            out.push(Action::Event(Event::context_window(used, size)));
        }
    }

    /// Handles a prompt that did not start a run.
    pub(super) fn prompt_failed(&mut self, code: &str, why: &str, out: &mut Vec<Action>) {
        if let Some(turn) = &mut self.turn {
            if turn.should_report_error() {
                out.push(Action::Event(Event::error(code, why, false)));
            }
            turn.failed();
        }
    }

    /// Fails the session, since the conversation was deleted.
    pub(super) fn deleted(&mut self, out: &mut Vec<Action>) {
        self.fail(self.broken("its conversation was deleted"), out);
    }

    /// Ends the compaction once the server has answered and all its events have arrived: a late event would count for the next turn.
    pub(super) fn check_compaction(&mut self, out: &mut Vec<Action>) {
        let is_over = |compaction: &OpenCodeCompaction| match &compaction.answered {
            Some(Ok(())) => compaction.idle,
            Some(Err(_)) => compaction.idle || !compaction.busy,
            None => false,
        };
        if !self.compaction.as_ref().is_some_and(is_over) {
            return;
        }
        if let Some(OpenCodeCompaction { request, answered: Some(answered), .. }) = self.compaction.take() {
            let reply = answered.map(|()| ipc_protocol::Json::null());
            out.push(Action::Reply { request, reply });
        }
        self.send_next_prompt(out);
    }

    /// Ends everything that is open.
    pub(super) fn close(&mut self, out: &mut Vec<Action>) {
        self.phase = OpenCodePhase::Over;
        // The server has ended, so nothing is sent.
        drop(self.permissions.reject_all(out));
        self.content.end_calls(out);
        let died = || WireError::AgentDied { reason: "its server is gone".into() };
        let compaction = self.compaction.take().map(|compaction| compaction.request);
        let mut open = self.calls.close();
        open.extend(compaction.filter(|request| !open.contains(request)));
        out.extend(open.into_iter().map(|request| Action::Reply { request, reply: Err(died()) }));
        if self.turn.take().is_some() {
            let message = "the agent's server ended during the turn";
            out.push(Action::Event(Event::error("agent-exited", message, false)));
            out.push(Action::TurnEnded);
        }
    }
}

/// Checks the status of an answer.
///
/// # Errors
/// The server's text, if the request failed.
fn success(answer: OpenCodeResponse) -> Result<(), String> {
    match answer {
        Ok((200..=299, _)) => Ok(()),
        Ok((status, body)) => Err(refusal(status, &body)),
        Err(why) => Err(why),
    }
}

/// Converts the server's word for the stop reason.
pub(super) fn stop_reason(finish: Option<&str>) -> StopReason {
    match finish {
        None | Some("stop" | "tool-calls") => StopReason::EndTurn,
        Some("length") => StopReason::MaxTokens,
        Some("content-filter") => StopReason::Refusal,
        Some(other) => StopReason::Other(other.chars().take(200).collect()),
    }
}
