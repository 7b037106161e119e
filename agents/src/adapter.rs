//! What an adapter is.

use ipc_protocol::{
    AgentSessionConfig, Endpoint, Event, Json, NativeResume, Operation, PermissionAnswer, Prompt, ResolvedBy, Signal,
    WireError, message::RequestId,
};

/// A request to the agent's own server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpRequest {
    /// Names its answer. The adapter mints them; each is used once.
    pub id: u64,
    /// `GET`, `POST`, …
    pub method: &'static str,
    /// Path and query, from `/` on.
    pub path: String,
    /// The body: JSON.
    pub body: Option<Vec<u8>>,
    /// How long its answer may take.
    pub patience: Patience,
    /// Whether the body of its answer is told as it is, where the agent's own lines are: not if a key may be in it. A stream's is
    /// in any case.
    pub told: bool,
}

/// How long the answer to an [`HttpRequest`] may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// It has to be whole within a deadline of the proxy's.
    Short,
    /// It comes when the model is done: as long as an operation may take.
    Long,
    /// It is a stream of server-sent events without an end, and its bytes are the agent's own lines. It has to begin within
    /// the deadline.
    Stream,
}

/// What becomes of an [`HttpRequest`]: `Head`, then `Body`s, then `End`; or at any time `Failed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpEvent<'a> {
    /// It was answered with this status.
    Head(u16),
    /// A piece of the body. Boundaries mean nothing.
    Body(&'a [u8]),
    /// The body is whole.
    End,
    /// No answer, or none that is whole; with the reason.
    Failed(&'a str),
}

/// A file, as [`Action::List`] asked for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedFile {
    /// Its full path.
    pub path: String,
    /// When it was last changed, in milliseconds since 1970.
    pub modified_ms: u64,
    /// Its first bytes.
    pub head: Vec<u8>,
}

/// What an adapter wants done, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Write this to the agent's standard input.
    Write(Vec<u8>),
    /// Close the agent's standard input behind what was written.
    CloseInput,
    /// Send this signal to the agent's process.
    Signal(Signal),
    /// From now on requests go there.
    Connect(Endpoint),
    /// Send this to the agent's server.
    Http(HttpRequest),
    /// Look for files of the agent's: those directly in `directory` whose names end with `suffix`, the newest first.
    List {
        /// Names the answer, [`Adapter::listed`].
        id: u64,
        /// An absolute path.
        directory: String,
        /// Such as `.jsonl`.
        suffix: &'static str,
    },
    /// Give a file of the agent's another name in its directory, unless there is one of that name. What fails is told as
    /// `action:failed`.
    Rename {
        /// An absolute path, as [`Action::List`] found it.
        path: String,
        /// Without a slash.
        name: String,
    },
    /// The agent is ready for its first prompt. Once, before any other event of the protocol.
    Ready {
        /// The agent's own id of the session, where its protocol has one.
        native_session_id: Option<String>,
    },
    /// The agent says which program it is: `NAME VERSION`. Before [`Action::Ready`], and stronger than what its files say.
    Program(String),
    /// The agent's own id of the session is this from now on.
    NativeSession(String),
    /// Tell the host.
    Event(Event),
    /// The answer to [`Adapter::operate`]. Each request is answered once.
    Reply {
        /// Of the operation.
        request: RequestId,
        /// What the agent said.
        reply: Result<Json, WireError>,
    },
    /// The running turn is over; `stream:complete` or `stream:error` came before.
    TurnEnded,
    /// The agent cannot be used any further: the session ends with this error.
    Fail(WireError),
}

/// What an adapter is made from.
#[derive(Clone, Debug)]
pub struct AdapterSetup {
    /// The session, `cwd` filled in, model and mode resolved.
    pub config: AgentSessionConfig,
    /// Catalog id of the agent, for errors.
    pub agent: String,
    /// What the catalog row says to the adapter: an object.
    pub protocol_config: serde_json::Value,
    /// A fresh UUID, for agents that let the caller name a new conversation.
    pub fresh_id: String,
    /// The conversation to go on with. What an argument in the agent's argv says already is here too.
    pub resume: Option<NativeResume>,
    /// The agent's server, if it speaks HTTP.
    pub endpoint: Option<Endpoint>,
    /// The agent's environment without what may be secret: `HOME`, its variables for directories.
    pub directories: std::collections::BTreeMap<String, String>,
}

/// One protocol's state machine, for one session.
///
/// Every method appends what it wants done to `out`. None blocks, panics on hostile input, or keeps more than a bounded
/// amount of it.
///
/// Permission requests become events; who answers them (a rule, a mode, a user, a deadline) is not the adapter's business: the
/// answer comes by [`Adapter::permission`].
pub trait Adapter: Send {
    /// Whether the agent has turns. One without is never busy and never sends [`Action::TurnEnded`].
    fn has_turns(&self) -> bool {
        true
    }

    /// The agent was started.
    fn start(&mut self, out: &mut Vec<Action>);

    /// The agent wrote this to its standard output. Boundaries mean nothing.
    fn stdout(&mut self, bytes: &[u8], out: &mut Vec<Action>);

    /// The agent wrote this to its standard error. Boundaries mean nothing.
    fn stderr(&mut self, bytes: &[u8], out: &mut Vec<Action>);

    /// What became of the request `id`.
    fn http(&mut self, _id: u64, _event: HttpEvent<'_>, _out: &mut Vec<Action>) {}

    /// What [`Action::List`] `id` found, newest first; none where the directory is not there.
    fn listed(&mut self, _id: u64, _files: Vec<ListedFile>, _out: &mut Vec<Action>) {}

    /// Both outputs are at their end, or the agent is gone: give out what is half received, end what is open.
    fn finish(&mut self, out: &mut Vec<Action>);

    /// Begin a turn. Only while none runs.
    ///
    /// # Errors
    /// Where the agent cannot take it; the turn does not begin then.
    fn prompt(&mut self, prompt: &Prompt, out: &mut Vec<Action>) -> Result<(), WireError>;

    /// Say this in the running turn.
    ///
    /// # Errors
    /// [`WireError::Unsupported`] where the agent cannot.
    fn steer(&mut self, prompt: &Prompt, out: &mut Vec<Action>) -> Result<(), WireError>;

    /// Cancel the running turn; without one, nothing. The end of the turn is still the agent's to say. Permission requests that
    /// are open are answered first where the agent would hang.
    ///
    /// # Errors
    /// [`WireError::Unsupported`] where the agent cannot; [`WireError::Busy`] where it has answered none of several before.
    fn abort(&mut self, out: &mut Vec<Action>) -> Result<(), WireError>;

    /// Answer an open permission request, and say so with `permission:resolved`.
    ///
    /// # Errors
    /// [`WireError::UnknownPermission`], [`WireError::UnknownOption`]; [`WireError::Unsupported`] for an answer with input or a
    /// message where the agent takes none. The request stays open then.
    fn permission(
        &mut self,
        id: &str,
        answer: &PermissionAnswer,
        by: ResolvedBy,
        out: &mut Vec<Action>,
    ) -> Result<(), WireError>;

    /// Ask something else of the agent. The answer is [`Action::Reply`], at once or later; every request gets one, at the
    /// latest from [`Adapter::finish`].
    ///
    /// # Errors
    /// [`WireError::Unsupported`] where the agent cannot; there is no `Reply` then.
    fn operate(&mut self, request: RequestId, operation: &Operation, out: &mut Vec<Action>) -> Result<(), WireError>;
}

/// Makes an adapter.
///
/// # Errors
/// [`WireError::Unsupported`] names what the configuration asks for and the protocol cannot.
pub type Make = fn(AdapterSetup) -> Result<Box<dyn Adapter>, WireError>;

/// The protocols that a proxy speaks, by name.
#[derive(Clone, Debug)]
pub struct Adapters(Vec<(&'static str, Make)>);

impl Default for Adapters {
    /// The built-in ones. `gemini` is what older catalogs call the protocol of Gemini CLI, which is ACP.
    fn default() -> Self {
        Self(vec![
            ("acp", crate::acp::make),
            ("claude-code", crate::claude::make),
            ("codex", crate::codex::make),
            ("command", crate::command::make),
            ("gemini", crate::acp::make),
            ("opencode", crate::opencode::make),
            ("pi", crate::pi::make),
        ])
    }
}

impl Adapters {
    /// Adds a protocol, or replaces the one of that name.
    #[must_use]
    pub fn with(mut self, protocol: &'static str, make: Make) -> Self {
        self.0.retain(|(name, _)| *name != protocol);
        self.0.push((protocol, make));
        self
    }

    /// The maker of `protocol`'s adapters.
    pub fn get(&self, protocol: &str) -> Option<Make> {
        self.0.iter().find(|(name, _)| *name == protocol).map(|(_, make)| *make)
    }

    /// The names of the protocols.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|(name, _)| *name)
    }
}
