//! Open permission requests.

use agent_client_protocol_schema::v1;
use ipc_protocol::{
    Event, Json, PermissionAnswer, PermissionOption, PermissionOptionKind, PermissionRequest, ResolvedBy, WireError,
};
use serde_json::value::RawValue;

use super::{
    updates::json,
    wire::{self, MAX_ID},
};
use crate::Action;

/// Most requests open at once.
const MAX_OPEN: usize = 64;
/// Most options of one request.
const MAX_OPTIONS: usize = 64;

/// A request that waits for its answer.
#[derive(Debug)]
struct Open {
    /// Ours, for the host. Those of the agent's are numbers or strings, may collide with our own requests, and may come
    /// again.
    id: String,
    /// The agent's, as it stands.
    agent_id: Box<RawValue>,
    options: Vec<PermissionOption>,
}

/// The open requests, oldest first.
#[derive(Debug, Default)]
pub(super) struct Permissions {
    open: Vec<Open>,
    asked: u64,
}

impl Permissions {
    /// Takes a request of the agent's. Returns its id, or the error that refuses it.
    pub(super) fn ask(
        &mut self,
        agent_id: &RawValue,
        request: v1::RequestPermissionRequest,
        out: &mut Vec<Action>,
    ) -> Result<String, v1::Error> {
        let v1::RequestPermissionRequest { tool_call, options, .. } = request;
        let too_long = |id: &str| id.len() > MAX_ID;
        if self.open.len() >= MAX_OPEN || options.len() > MAX_OPTIONS {
            return Err(v1::Error::invalid_params().data("too many open requests, or too many options"));
        }
        if too_long(agent_id.get())
            || too_long(&tool_call.tool_call_id.0)
            || options.iter().any(|option| too_long(&option.option_id.0) || too_long(&option.name))
        {
            return Err(v1::Error::invalid_params().data(format!("an id of more than {MAX_ID} bytes")));
        }
        self.asked += 1;
        let id = format!("permission-{}", self.asked);
        let options: Vec<_> = options.into_iter().map(option).collect();
        self.open.push(Open { id: id.clone(), agent_id: agent_id.to_owned(), options: options.clone() });
        let fields = tool_call.fields;
        let input = match (&fields.raw_input, &fields.content) {
            (Some(input), _) => json(input),
            (None, Some(content)) => serde_json::to_value(content).map_or_else(|_| Json::null(), |value| json(&value)),
            (None, None) => Json::null(),
        };
        out.push(Action::Event(Event::PermissionRequested(Box::new(PermissionRequest {
            id: id.clone(),
            tool_call_id: Some(tool_call.tool_call_id.0.as_ref().to_owned()),
            title: fields.title.unwrap_or_else(|| "permission".to_owned()),
            input,
            options,
        }))));
        Ok(id)
    }

    /// Answers the request `id`.
    ///
    /// # Errors
    /// [`WireError::UnknownPermission`], [`WireError::UnknownOption`]; it stays open then.
    pub(super) fn answer(
        &mut self,
        id: &str,
        answer: &PermissionAnswer,
        by: ResolvedBy,
        out: &mut Vec<Action>,
    ) -> Result<(), WireError> {
        let at = self.open.iter().position(|open| open.id == id);
        let at = at.ok_or_else(|| WireError::UnknownPermission { id: id.chars().take(MAX_ID).collect() })?;
        let option = choose(&self.open[at], answer)?;
        let open = self.open.remove(at);
        let outcome = match &option {
            Some(option) => v1::RequestPermissionOutcome::Selected(v1::SelectedPermissionOutcome::new(option.clone())),
            None => v1::RequestPermissionOutcome::Cancelled,
        };
        wire::reply(&open.agent_id, v1::RequestPermissionResponse::new(outcome), out);
        out.push(Action::Event(Event::PermissionResolved { id: open.id, option, by }));
        Ok(())
    }

    /// Answers the request `id` as the session's mode says; with a cancellation where it has no such option.
    pub(super) fn answer_by_mode(&mut self, id: &str, answer: &PermissionAnswer, out: &mut Vec<Action>) {
        if self.answer(id, answer, ResolvedBy::Mode, out).is_err() {
            // Cancelling an open request cannot fail.
            let _ = self.answer(id, &PermissionAnswer::Cancelled, ResolvedBy::Mode, out);
        }
    }

    /// Cancels all that are open.
    pub(super) fn cancel_all(&mut self, out: &mut Vec<Action>) {
        for open in std::mem::take(&mut self.open) {
            let response = v1::RequestPermissionResponse::new(v1::RequestPermissionOutcome::Cancelled);
            wire::reply(&open.agent_id, response, out);
            out.push(Action::Event(Event::PermissionResolved { id: open.id, option: None, by: ResolvedBy::Abort }));
        }
    }

    /// Closes all that are open, without a word to an agent that is gone.
    pub(super) fn close_all(&mut self, out: &mut Vec<Action>) {
        for open in std::mem::take(&mut self.open) {
            out.push(Action::Event(Event::PermissionResolved { id: open.id, option: None, by: ResolvedBy::Abort }));
        }
    }
}

fn option(option: v1::PermissionOption) -> PermissionOption {
    let kind = match option.kind {
        v1::PermissionOptionKind::AllowOnce => PermissionOptionKind::AllowOnce,
        v1::PermissionOptionKind::AllowAlways => PermissionOptionKind::AllowAlways,
        v1::PermissionOptionKind::RejectOnce => PermissionOptionKind::RejectOnce,
        v1::PermissionOptionKind::RejectAlways => PermissionOptionKind::RejectAlways,
        _ => PermissionOptionKind::Other,
    };
    PermissionOption { id: option.option_id.0.as_ref().to_owned(), name: option.name, kind }
}

/// The id of the option that `answer` means; `None` for a cancellation.
fn choose(open: &Open, answer: &PermissionAnswer) -> Result<Option<String>, WireError> {
    let kinds: [PermissionOptionKind; 2] = match answer {
        PermissionAnswer::Cancelled => return Ok(None),
        PermissionAnswer::Allow => [PermissionOptionKind::AllowOnce, PermissionOptionKind::AllowAlways],
        PermissionAnswer::Deny => [PermissionOptionKind::RejectOnce, PermissionOptionKind::RejectAlways],
        PermissionAnswer::Option(id) => {
            let known = open.options.iter().any(|option| option.id == *id);
            return if known { Ok(Some(id.clone())) } else { Err(unknown_option(open, id)) };
        }
    };
    let chosen = kinds.iter().find_map(|kind| open.options.iter().find(|option| option.kind == *kind));
    chosen
        .map(|option| Some(option.id.clone()))
        .ok_or_else(|| unknown_option(open, if matches!(answer, PermissionAnswer::Allow) { "allow" } else { "deny" }))
}

fn unknown_option(open: &Open, option: &str) -> WireError {
    WireError::UnknownOption {
        id: open.id.clone(),
        option: option.chars().take(MAX_ID).collect(),
        options: open.options.iter().map(|option| option.id.clone()).collect(),
    }
}
