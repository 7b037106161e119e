//! Open permission requests.

use agent_client_protocol_schema::v1;
use ipc_protocol::{
    PermissionAnswer, PermissionOption, PermissionOptionKind, PermissionRequest, ResolvedBy, WireError,
};
use serde_json::value::RawValue;

use super::{
    details,
    quirks::AcpQuirks,
    tools::{self, AcpToolCalls},
    wire,
};
use crate::{
    Action, Result,
    kit::bounds::MAX_ID,
    permission::{AnswerChoice, OpenRequests},
};

/// Most options of a request.
const MAX_OPTIONS: usize = 64;
/// Most paths of a request. A policy has to know all of them.
const MAX_PATHS: usize = 1000;

/// Data that answering a request needs.
#[derive(Debug)]
struct AcpReplyTo {
    /// The agent's id for the request as raw JSON: a number or a string.
    agent_id: Box<RawValue>,
    call: String,
}

/// Open requests of the session.
#[derive(Debug, Default)]
pub(super) struct AcpPermissions(OpenRequests<AcpReplyTo>);

impl AcpPermissions {
    /// Opens a request of the agent, or returns the error that refuses it. Starts its tool call if that is not started yet: some agents
    /// ask before they start the call.
    pub(super) fn ask(
        &mut self,
        agent_id: &RawValue,
        request: v1::RequestPermissionRequest,
        calls: &mut AcpToolCalls,
        quirks: &AcpQuirks,
        out: &mut Vec<Action>,
    ) -> Result<(), v1::Error> {
        let v1::RequestPermissionRequest { tool_call, options, .. } = request;
        let v1::ToolCallUpdate { tool_call_id, fields, meta, .. } = tool_call;
        let too_long = |id: &str| id.len() > MAX_ID;
        let mut paths = details::paths(&fields);
        if self.0.is_full() || options.len() > MAX_OPTIONS || paths.len() > MAX_PATHS {
            return Err(v1::Error::invalid_params().data("too many open requests, or too many options or paths"));
        }
        if too_long(agent_id.get())
            || too_long(&tool_call_id.0)
            || options.iter().any(|option| too_long(&option.option_id.0) || too_long(&option.name))
        {
            return Err(v1::Error::invalid_params().data(format!("an id of more than {MAX_ID} bytes")));
        }
        let call = tool_call_id.0.as_ref().to_owned();
        calls.begin_for_permission(&call, &fields, meta.as_ref(), out);
        let known = calls.get(&call).cloned().unwrap_or_default();
        let input = known.input_with(&fields);
        let kind = fields.kind.map_or(known.kind, tools::kind);
        let title = fields.title.clone().unwrap_or_else(|| "permission".to_owned());
        let mut command = details::command(&kind, fields.raw_input.as_ref());
        if fields.raw_input.is_none() {
            // The agent sent the input before, or not at all.
            if known.is_long {
                return Err(
                    v1::Error::invalid_params().data("what the call would do is longer than what is remembered")
                );
            }
            command = known.command;
            if paths.is_empty() {
                paths = known.paths;
            }
        }
        let by_title = || (quirks.title_is_command && kind == "execute").then(|| fields.title.clone()).flatten();
        let options = options.into_iter().map(option).collect();
        let request = PermissionRequest {
            id: String::new(),
            tool_call_id: Some(call.clone()),
            title,
            tool: fields.name.clone().unwrap_or(known.name),
            command: command.or_else(by_title),
            kind,
            paths,
            input,
            options,
            parent: details::parent(meta.as_ref()).or(known.parent),
        };
        self.0.ask(request, AcpReplyTo { agent_id: agent_id.to_owned(), call }, out);
        Ok(())
    }

    /// Answers the request `id`. Returns its tool call, and whether the call was allowed.
    ///
    /// # Errors
    /// [`WireError::UnknownPermission`], [`WireError::UnknownOption`], [`WireError::Unsupported`]; the request then stays open.
    pub(super) fn answer(
        &mut self,
        id: &str,
        answer: &PermissionAnswer,
        by: ResolvedBy,
        agent: &str,
        out: &mut Vec<Action>,
    ) -> Result<(String, bool)> {
        let open = self.0.get(id)?;
        let cannot =
            |operation: &str| Err(WireError::Unsupported { agent: agent.to_owned(), operation: operation.to_owned() });
        let (option, allowed) = match (open.choose(answer, &by)?, answer) {
            (AnswerChoice::Option(at), _) => (open.option(at), open.allows(at)),
            (AnswerChoice::Cancelled, _) => (None, false),
            // The protocol has no field beyond the choice.
            (AnswerChoice::More, PermissionAnswer::DenyWith { .. }) => {
                return cannot("be told why something is rejected");
            }
            (AnswerChoice::More, _) => return cannot("be allowed something with another input"),
        };
        let call = open.context.call.clone();
        let outcome = match &option {
            Some(option) => v1::RequestPermissionOutcome::Selected(v1::SelectedPermissionOutcome::new(option.clone())),
            None => v1::RequestPermissionOutcome::Cancelled,
        };
        let reply = |about: AcpReplyTo, out: &mut Vec<Action>| {
            wire::RPC.reply(&about.agent_id, v1::RequestPermissionResponse::new(outcome), out);
        };
        self.0.resolve(id, option, by, reply, out);
        Ok((call, allowed))
    }

    /// Returns whether no request is open.
    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().next().is_none()
    }

    /// Cancels all open requests.
    pub(super) fn cancel_all(&mut self, out: &mut Vec<Action>) {
        let cancelled = |about: AcpReplyTo, out: &mut Vec<Action>| {
            let response = v1::RequestPermissionResponse::new(v1::RequestPermissionOutcome::Cancelled);
            wire::RPC.reply(&about.agent_id, response, out);
        };
        self.0.close(&ResolvedBy::Abort, |_| true, cancelled, out);
    }

    /// Closes all open requests without an answer, since the agent has ended.
    pub(super) fn close_all(&mut self, out: &mut Vec<Action>) {
        self.0.close_all(&ResolvedBy::Abort, out);
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
