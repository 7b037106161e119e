//! Open permission requests of an agent. They are the same for every protocol, with data of the protocol's own for each.

use ipc_protocol::{
    Event, Json, PermissionAnswer, PermissionOption, PermissionOptionKind as Kind, PermissionRequest, ResolvedBy,
    WireError,
};
use serde_json::Value;

use crate::{
    Action, Result,
    kit::bounds::{MAX_ID, words},
};

/// Most requests that are open at once.
const MAX_OPEN: usize = 64;

/// Open permission request.
#[derive(Debug)]
pub(crate) struct OpenRequest<T> {
    /// Our id, for the host: ids of agents may collide with each other, and repeat.
    pub(crate) id: String,
    options: Vec<PermissionOption>,
    /// Data that the protocol needs to answer the request.
    pub(crate) context: T,
}

/// Option of a request, with the answer that the agent gets when it is chosen.
#[derive(Debug)]
pub(crate) struct PreparedOption {
    pub(crate) option: PermissionOption,
    pub(crate) answer: Value,
}

impl PreparedOption {
    pub(crate) fn new(id: &str, name: &str, kind: Kind, answer: Value) -> Self {
        Self { option: PermissionOption { id: id.to_owned(), name: words(name), kind }, answer }
    }
}

/// Makes a request about a tool, with nothing that not every request has. It gets its id and options when it is opened.
pub(crate) fn plain_request(tool: &str, kind: &str, title: String, input: Json) -> PermissionRequest {
    PermissionRequest {
        id: String::new(),
        tool_call_id: None,
        title,
        tool: words(tool),
        kind: kind.to_owned(),
        command: None,
        paths: Vec::new(),
        input,
        options: Vec::new(),
        parent: None,
    }
}

/// Meaning of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerChoice {
    /// Option at this index.
    Option(usize),
    /// No option: nobody is left to decide.
    Cancelled,
    /// More than a choice: an input, or a reason.
    More,
}

/// Open requests, oldest first.
#[derive(Debug)]
pub(crate) struct OpenRequests<T> {
    open: Vec<OpenRequest<T>>,
    minted: u64,
}

impl<T> Default for OpenRequests<T> {
    fn default() -> Self {
        Self { open: Vec::new(), minted: 0 }
    }
}

impl<T> OpenRequests<T> {
    /// Returns whether the bound is reached: a further request has to be refused.
    pub(crate) fn is_full(&self) -> bool {
        self.open.len() >= MAX_OPEN
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &OpenRequest<T>> {
        self.open.iter()
    }

    /// Opens a request and emits it. A request without an id gets one.
    pub(crate) fn ask(&mut self, mut request: PermissionRequest, about: T, out: &mut Vec<Action>) {
        if request.id.is_empty() {
            self.minted += 1;
            request.id = format!("permission-{}", self.minted);
        }
        self.open.push(OpenRequest { id: request.id.clone(), options: request.options.clone(), context: about });
        out.push(Action::Event(Event::PermissionRequested(Box::new(request))));
    }

    /// Returns the request `id`.
    ///
    /// # Errors
    /// [`WireError::UnknownPermission`].
    pub(crate) fn get(&self, id: &str) -> Result<&OpenRequest<T>> {
        let open = self.open.iter().find(|open| open.id == id);
        open.ok_or_else(|| WireError::UnknownPermission { id: id.chars().take(MAX_ID).collect() })
    }

    /// Closes the request `id`, if it is open: calls `reply` and emits the decision.
    pub(crate) fn resolve(
        &mut self,
        id: &str,
        option: Option<String>,
        by: ResolvedBy,
        reply: impl FnOnce(T, &mut Vec<Action>),
        out: &mut Vec<Action>,
    ) {
        if let Some(at) = self.open.iter().position(|open| open.id == id) {
            let OpenRequest { id, context: about, .. } = self.open.remove(at);
            reply(about, out);
            out.push(Action::Event(Event::PermissionResolved { id, option, by }));
        }
    }

    /// Closes the requests that satisfy `meant`, without an option: calls `reply` for each.
    pub(crate) fn close(
        &mut self,
        by: &ResolvedBy,
        meant: impl Fn(&T) -> bool,
        mut reply: impl FnMut(T, &mut Vec<Action>),
        out: &mut Vec<Action>,
    ) {
        for OpenRequest { id, context: about, .. } in self.open.extract_if(.., |open| meant(&open.context)) {
            reply(about, out);
            out.push(Action::Event(Event::PermissionResolved { id, option: None, by: by.clone() }));
        }
    }

    /// Closes all requests without an answer: the agent has ended, or waits no longer.
    pub(crate) fn close_all(&mut self, by: &ResolvedBy, out: &mut Vec<Action>) {
        self.close(by, |_| true, |_, _| {}, out);
    }
}

impl<T> OpenRequest<T> {
    /// Returns the id of an option.
    pub(crate) fn option(&self, at: usize) -> Option<String> {
        self.options.get(at).map(|option| option.id.clone())
    }

    /// Returns whether an option allows the request.
    pub(crate) fn allows(&self, at: usize) -> bool {
        let rejects = |kind| matches!(kind, Kind::RejectOnce | Kind::RejectAlways);
        self.options.get(at).is_some_and(|option| !rejects(option.kind))
    }

    /// Returns whether there is an option `id`.
    pub(crate) fn has(&self, id: &str) -> bool {
        self.options.iter().any(|option| option.id == id)
    }

    /// Finds the option that `answer` means.
    ///
    /// A policy chooses options for one time only: after "always" the agent would ask no more, and no rule would apply again.
    ///
    /// # Errors
    /// [`WireError::UnknownOption`] if there is no such option.
    pub(crate) fn choose(&self, answer: &PermissionAnswer, by: &ResolvedBy) -> Result<AnswerChoice> {
        let (kinds, asked) = match answer {
            PermissionAnswer::Cancelled => return Ok(AnswerChoice::Cancelled),
            PermissionAnswer::AllowWith { .. } | PermissionAnswer::DenyWith { .. } => return Ok(AnswerChoice::More),
            PermissionAnswer::Option(id) => {
                let at = self.options.iter().position(|option| option.id == *id);
                return at.map(AnswerChoice::Option).ok_or_else(|| self.unknown_option(id));
            }
            PermissionAnswer::Allow => ([Kind::AllowOnce, Kind::AllowAlways], "allow"),
            PermissionAnswer::Deny => ([Kind::RejectOnce, Kind::RejectAlways], "deny"),
        };
        let kinds = if matches!(by, ResolvedBy::User { .. }) { &kinds[..] } else { &kinds[..1] };
        let at = kinds.iter().find_map(|kind| self.options.iter().position(|option| option.kind == *kind));
        at.map(AnswerChoice::Option).ok_or_else(|| self.unknown_option(asked))
    }

    /// Makes the error for an unknown option.
    pub(crate) fn unknown_option(&self, option: &str) -> WireError {
        WireError::UnknownOption {
            id: self.id.clone(),
            option: words(option),
            options: self.options.iter().map(|option| option.id.clone()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use ipc_protocol::Json;

    use super::*;

    const USER: ResolvedBy = ResolvedBy::User { name: None };
    const POLICY: ResolvedBy = ResolvedBy::Deadline;

    fn requests(kinds: &[Kind]) -> OpenRequests<u8> {
        let option =
            |(at, kind): (usize, &Kind)| PermissionOption { id: at.to_string(), name: "x".into(), kind: *kind };
        let request = PermissionRequest {
            id: String::new(),
            tool_call_id: None,
            title: "x".into(),
            tool: "x".into(),
            kind: "other".into(),
            command: None,
            paths: Vec::new(),
            input: Json::null(),
            options: kinds.iter().enumerate().map(option).collect(),
            parent: None,
        };
        let mut requests = OpenRequests::default();
        let mut out = Vec::new();
        requests.ask(request.clone(), 1, &mut out);
        requests.ask(PermissionRequest { id: "its-own".into(), ..request }, 2, &mut out);
        requests
    }

    #[test]
    fn a_policy_decides_nothing_for_ever() {
        let requests = requests(&[Kind::Other, Kind::AllowAlways, Kind::RejectAlways]);
        let open = requests.get("permission-1").expect("open");
        for answer in [PermissionAnswer::Allow, PermissionAnswer::Deny] {
            assert!(matches!(open.choose(&answer, &POLICY), Err(WireError::UnknownOption { .. })), "{answer:?}");
        }
        assert_eq!(open.choose(&PermissionAnswer::Allow, &USER), Ok(AnswerChoice::Option(1)));
        assert_eq!(open.choose(&PermissionAnswer::Deny, &USER), Ok(AnswerChoice::Option(2)));
        assert_eq!(open.choose(&PermissionAnswer::Option("0".into()), &POLICY), Ok(AnswerChoice::Option(0)));
        assert_eq!(open.choose(&PermissionAnswer::Cancelled, &POLICY), Ok(AnswerChoice::Cancelled));
        assert!(open.allows(1) && !open.allows(2) && !open.allows(7));
    }

    #[test]
    fn each_is_resolved_once() {
        let mut requests = requests(&[Kind::AllowOnce]);
        let mut out = Vec::new();
        let (mut replied, mut closed) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            requests.resolve("its-own", None, USER, |about, _| replied.push(about), &mut out);
        }
        requests.close(&POLICY, |about| *about == 1, |about, _| closed.push(about), &mut out);
        requests.close_all(&POLICY, &mut out);
        assert_eq!((replied, closed, out.len()), (vec![2], vec![1], 2));
        assert!(matches!(requests.get("permission-1"), Err(WireError::UnknownPermission { .. })));
    }
}
