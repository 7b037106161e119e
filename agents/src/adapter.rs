//! Interface between the proxy and an adapter, the state machine of an agent's protocol.
//!
//! # How to add an agent
//!
//! An agent that speaks a protocol of these (most new ones speak ACP) is a row of the catalog, and needs no code: `catalog/spec.rs`.
//! Otherwise:
//!
//! 1. Write `src/NAME/mod.rs`: a `make` that refuses what the agent cannot do, and `impl Adapter for Session`, where the state is.
//!    `command.rs` is the smallest adapter; `pi` is the smallest of an agent with turns, tools and permissions. Override only what
//!    the agent can do: the defaults of [`Adapter`] refuse, or ignore.
//! 2. Take the parts from `kit`. Lines: implement `JsonLinesAgent`, which gets whole messages, and forward `stdout`, `stderr` and
//!    `finish` to its `read_…` methods. Requests: `RpcPeer` for JSON-RPC, else `PendingRequests`; give each request a purpose, and
//!    let one `match` on the purpose handle all answers. Tool calls: `ToolCallLedger`, whose `tick` is the adapter's. Permission
//!    requests: `permission::OpenRequests`. Cut what the agent says with `kit::bounds`.
//! 3. Add `make` to [`Adapters::default`], and the row to `catalog/builtin.toml`. What the agent is started with is in `provision`.
//! 4. Record conversations with the real agent as `tests/transcripts/NAME-*.jsonl` (`tests/common/recorded.rs` has their form), and
//!    make `tests/NAME/` after `tests/pi/`: `common/spoilt.rs` splits, cuts and spoils the recordings, and `common/transcripts.rs`
//!    compares each action with its reviewed snapshot.
//!
//! The rules: an adapter does no I/O and reads no clock; nothing that it keeps grows with what the agent sends; each operation gets
//! one reply, each call and each permission request one end; and nothing goes on waiting for an agent that has ended.

use std::time::Instant;

use ipc_protocol::{
    AgentEndpoint, AgentSessionConfig, Event, Json, NativeResume, Operation, PermissionAnswer, Prompt, ResolvedBy,
    Signal, WireError,
    message::{AgentFact, RequestId},
};

use crate::Result;

/// Request to the agent's own server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpRequest {
    /// Id that the answer carries. The adapter assigns the ids; each is used once.
    pub id: u64,
    /// HTTP method: `GET`, `POST`, …
    pub method: &'static str,
    /// Path and query, starting with `/`.
    pub path: String,
    /// JSON body.
    pub body: Option<Vec<u8>>,
    /// Deadline for the answer.
    pub patience: HttpPatience,
    /// True if the body of the answer is emitted as raw lines, where sessions emit those. False if the body may contain a key. A
    /// stream is emitted in any case.
    pub emits_raw: bool,
}

/// Deadline class of the answer to an [`HttpRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpPatience {
    /// The complete answer has to arrive within the proxy's deadline.
    Short,
    /// The answer arrives when the model is done: it may take as long as an operation.
    Long,
    /// The answer is an endless stream of server-sent events, whose bytes are the agent's own lines. It has to begin within the
    /// deadline.
    Stream,
}

/// Progress of an [`HttpRequest`]: `Head`, then `Body`s, then `End`; or at any time `Failed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpEvent<'a> {
    /// Status of the answer.
    Head(u16),
    /// Piece of the body. Boundaries mean nothing.
    Body(&'a [u8]),
    /// End of a complete body.
    End,
    /// No complete answer, with the reason.
    Failed(&'a str),
}

/// File that an [`Action::List`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedFile {
    /// Full path of the file.
    pub path: String,
    /// Time of the last change, in milliseconds since 1970.
    pub modified_ms: u64,
    /// First bytes of the file.
    pub head: Vec<u8>,
}

/// Request of an adapter. Actions are done in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Write this to the agent's standard input.
    Write(Vec<u8>),
    /// Close the agent's standard input after everything that was written.
    CloseInput,
    /// Send this signal to the agent's process.
    Signal(Signal),
    /// Send HTTP requests to this server from now on.
    Connect(AgentEndpoint),
    /// Send this request to the agent's server.
    Http(HttpRequest),
    /// List files of the agent: those directly in `directory` whose names end with `suffix`, newest first.
    List {
        /// Id of the answer, [`Adapter::listed`].
        id: u64,
        /// Absolute path.
        directory: String,
        /// Suffix such as `.jsonl`.
        suffix: &'static str,
    },
    /// Read on in a file of the agent, for a piece.
    ReadFile {
        /// Absolute path.
        path: String,
        /// Place of the first byte; `None` for the end of the file.
        offset: Option<u64>,
    },
    /// Rename a file of the agent within its directory, unless the new name exists. A failure is reported as `action:failed`.
    Rename {
        /// Absolute path, as [`Action::List`] returned it.
        path: String,
        /// New name, without a slash.
        name: String,
    },
    /// Take a hook of the agent's own screen that waits for an answer: it is told that somebody is there.
    OpenHook {
        /// Number that the hook gave itself.
        id: u64,
    },
    /// Answer the hook. It ends then.
    AnswerHook {
        /// Number of an open hook.
        id: u64,
        /// Text for its standard output; empty to leave the agent to itself.
        answer: Vec<u8>,
    },
    /// The agent is ready for its first prompt. Sent once, before any other event of the protocol.
    Ready {
        /// The agent's own id of the session, where its protocol has one.
        native_session_id: Option<String>,
    },
    /// The agent says which program it is: `NAME VERSION`. Before [`Action::Ready`], and stronger than what its files say.
    Program(String),
    /// The agent's own id of the session is this from now on.
    NativeSession(String),
    /// The agent reports something about itself on which the host acts.
    Fact(AgentFact),
    /// Send an event to the host.
    Event(Event),
    /// Reply to [`Adapter::operate`]. Each request gets one.
    Reply {
        /// Id of the operation.
        request: RequestId,
        /// Answer of the agent.
        reply: Result<Json>,
    },
    /// The current turn has ended; `stream:complete` or `stream:error` came before.
    TurnEnded,
    /// The agent is no longer usable: the session ends with this error.
    Fail(WireError),
}

/// Input of an adapter's construction.
#[derive(Clone, Debug)]
pub struct AdapterSetup {
    /// Configuration of the session, with `cwd` filled in, and model and mode resolved.
    pub config: AgentSessionConfig,
    /// Catalog id of the agent, for errors.
    pub agent: String,
    /// The catalog row's settings for the adapter: an object.
    pub protocol_config: serde_json::Value,
    /// Fresh UUID, for agents that let the caller name a new conversation.
    pub fresh_id: String,
    /// Conversation to continue, even if the agent's argv already contains it.
    pub resume: Option<NativeResume>,
    /// The agent's server, if it speaks HTTP.
    pub endpoint: Option<AgentEndpoint>,
    /// The agent's environment without possible secrets: `HOME`, and its variables for directories.
    pub directories: std::collections::BTreeMap<String, String>,
}

/// State machine of one protocol, for one session.
///
/// Every method appends its actions to `out`. None blocks, panics on hostile input, or keeps more than a bounded amount of it.
///
/// Permission requests become events. The adapter does not know who answers them (a rule, a mode, a user, a deadline): the answer
/// arrives through [`Adapter::permission`].
pub trait Adapter: Send {
    /// Returns the catalog id of the agent, for errors.
    fn agent(&self) -> &str;

    /// Returns whether the agent has turns. An agent without turns is never busy and never sends [`Action::TurnEnded`].
    fn has_turns(&self) -> bool {
        true
    }

    /// Handles the start of the agent.
    fn start(&mut self, out: &mut Vec<Action>);

    /// Handles bytes from the agent's standard output. Boundaries mean nothing.
    fn stdout(&mut self, bytes: &[u8], out: &mut Vec<Action>);

    /// Handles bytes from the agent's standard error. Boundaries mean nothing.
    fn stderr(&mut self, bytes: &[u8], out: &mut Vec<Action>);

    /// Handles progress of the request `id`.
    fn http(&mut self, _id: u64, _event: HttpEvent<'_>, _out: &mut Vec<Action>) {}

    /// Handles the result of [`Action::List`] `id`: the files, newest first; none if the directory does not exist.
    fn listed(&mut self, _id: u64, _files: Vec<ListedFile>, _out: &mut Vec<Action>) {}

    /// Handles the result of [`Action::ReadFile`]: the place of the next byte, and what was read; nothing if there is no more, or no file.
    fn file_read(&mut self, _next: u64, _bytes: &[u8], _out: &mut Vec<Action>) {}

    /// Handles the end of a hook that waits, from [`Action::OpenHook`] on, before it was answered.
    fn hook_ended(&mut self, _id: u64, _out: &mut Vec<Action>) {}

    /// Handles a status that the program in the session's terminal reports (OSC 7501): `idle`, `working`, `blocked`, …
    fn terminal_status(&mut self, _status: &str, _out: &mut Vec<Action>) {}

    /// Handles a new title of the session's terminal; an empty one if the program has removed it.
    fn terminal_title(&mut self, _title: &str, _out: &mut Vec<Action>) {}

    /// Emits what was held back to be emitted together, as far as it is due at `now`. Returns when the next is due. The caller calls
    /// this after it has passed input on, and at the time returned.
    fn tick(&mut self, _now: Instant, _out: &mut Vec<Action>) -> Option<Instant> {
        None
    }

    /// Handles the end of both outputs or of the agent: emits what was half received, and ends what is open.
    fn finish(&mut self, out: &mut Vec<Action>);

    /// Starts a turn. Called only while no turn is in progress.
    ///
    /// # Errors
    /// The agent cannot take the prompt; the turn does not start then.
    fn prompt(&mut self, prompt: &Prompt, out: &mut Vec<Action>) -> Result<()>;

    /// Sends a prompt into the current turn.
    ///
    /// # Errors
    /// [`WireError::Unsupported`] if the agent cannot do so.
    fn steer(&mut self, _prompt: &Prompt, _out: &mut Vec<Action>) -> Result<()> {
        let has_turns = self.has_turns();
        Err(self.unsupported(if has_turns { "be steered while a turn runs" } else { "be steered: it has no turns" }))
    }

    /// Cancels the current turn, if there is one. The agent still reports the end of the turn. Open permission requests are answered
    /// first where the agent would otherwise hang.
    ///
    /// # Errors
    /// [`WireError::Unsupported`] if the agent cannot do so; [`WireError::Busy`] if several earlier cancellations are unanswered.
    fn abort(&mut self, _out: &mut Vec<Action>) -> Result<()> {
        Ok(())
    }

    /// Answers an open permission request, and emits `permission:resolved`.
    ///
    /// # Errors
    /// [`WireError::UnknownPermission`], [`WireError::UnknownOption`]; [`WireError::Unsupported`] for an answer with input or a
    /// message if the agent accepts none. The request then stays open.
    fn permission(
        &mut self,
        id: &str,
        _answer: &PermissionAnswer,
        _by: ResolvedBy,
        _out: &mut Vec<Action>,
    ) -> Result<()> {
        Err(WireError::UnknownPermission { id: id.to_owned() })
    }

    /// Starts an operation. The answer is an [`Action::Reply`], at once or later. Every operation gets one, at the latest from
    /// [`Adapter::finish`].
    ///
    /// # Errors
    /// [`WireError::Unsupported`] if the agent cannot do so; there is no `Reply` then.
    fn operate(&mut self, _request: RequestId, operation: &Operation, _out: &mut Vec<Action>) -> Result<()> {
        Err(self.unsupported(&operation.describe()))
    }

    /// Makes the error for something that the agent cannot do: the end of "agent … cannot".
    fn unsupported(&self, operation: &str) -> WireError {
        WireError::Unsupported { agent: self.agent().to_owned(), operation: operation.to_owned() }
    }
}

/// Constructor of an adapter.
///
/// # Errors
/// [`WireError::Unsupported`] names the configured feature that the protocol lacks.
pub type MakeAdapter = fn(AdapterSetup) -> Result<Box<dyn Adapter>>;

/// Protocols that a proxy speaks, by name.
///
/// A program links its own adapter in with [`Adapters::with`]. It passes all of them to `proxy_child::run_if_child_with`: see the example
/// `linked_adapter` of `proxy-manager`.
///
/// ```
/// let adapters = agents::Adapters::default();
/// assert!(adapters.get("acp").is_some());
/// ```
#[derive(Clone, Debug)]
pub struct Adapters(Vec<(&'static str, MakeAdapter)>);

impl Default for Adapters {
    /// Returns the built-in protocols: `acp` and `opencode` with the features of these names. Older catalogs use the name `gemini` for the protocol of Gemini CLI, which is ACP.
    fn default() -> Self {
        Self(vec![
            #[cfg(feature = "acp")]
            ("acp", crate::acp::make),
            ("claude-code", crate::claude::make),
            ("codex", crate::codex::make),
            ("command", crate::command::make),
            (crate::terminal::PROTOCOL, crate::terminal::make),
            #[cfg(feature = "acp")]
            ("gemini", crate::acp::make),
            #[cfg(feature = "opencode")]
            ("opencode", crate::opencode::make),
            ("pi", crate::pi::make),
        ])
    }
}

impl Adapters {
    /// Adds a protocol, or replaces the one of that name.
    #[must_use]
    pub fn with(mut self, protocol: &'static str, make: MakeAdapter) -> Self {
        self.0.retain(|(name, _)| *name != protocol);
        self.0.push((protocol, make));
        self
    }

    /// Returns the constructor of the adapters for `protocol`.
    pub fn get(&self, protocol: &str) -> Option<MakeAdapter> {
        self.0.iter().find(|(name, _)| *name == protocol).map(|(_, make)| *make)
    }

    /// Returns the names of the protocols.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|(name, _)| *name)
    }
}
