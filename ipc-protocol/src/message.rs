//! The messages. Every connection begins with a `Hello` in both directions.
//!
//! Host ⇄ proxy: a stream socket, [`ToProxy`] and [`FromProxy`]. Host ⇄ fork server: a sequenced-packet socket,
//! [`ToForkServer`] and [`FromForkServer`], one frame a packet, descriptors beside it.
//!
//! What a host says to fork servers and proxies of an earlier one, and they to it, is also the protocol of reattachment, with
//! the release before this one: see [`crate::reattach`]. There a new field has a default, and a new message is one that the
//! other side can do without.

use serde::{Deserialize, Serialize};

use crate::{
    AbortPolicy, AgentSessionConfig, Enclosure, EndReason, Endpoint, EnvVars, Event, ExitStatus, Json, KillOptions,
    Limits, Measures, NativeResume, Operation, PermissionAnswer, PermissionRequest, ProcessId, ProcessInfo, Prompt,
    Receipt, SessionId, WireError,
};

/// Version of everything in this crate that crosses a wire. Any change of a message or a type in it raises it: bincode
/// does not describe itself, so two builds that differ cannot talk.
pub const VERSION: u32 = 6;

/// First message in each direction. Its encoding never changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`VERSION`] of the sender.
    pub version: u32,
    /// The sender.
    pub process: ProcessId,
}

/// Pairs an answer with its question. The host mints them.
pub type RequestId = u64;

/// An agent, resolved from the catalog by the host: all that a proxy needs to run it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentCommand {
    /// Catalog id, for events and errors.
    pub agent: String,
    /// Name of the protocol's adapter: `command`, `acp`, or one that the embedder linked in.
    pub protocol: String,
    /// Program and arguments; the program is looked up in the PATH of `env`.
    pub argv: Vec<String>,
    /// The agent's whole environment.
    pub env: EnvVars,
    /// Where it starts; `None` for the session's working directory.
    pub cwd: Option<String>,
    /// What the row says to its protocol's adapter: a JSON object.
    pub protocol_config: Json,
    /// A fresh UUID, for agents that let the caller name a new conversation.
    pub fresh_id: String,
    /// The conversation to go on with.
    pub resume: Option<NativeResume>,
    /// The agent's server, if it speaks HTTP.
    pub endpoint: Option<Endpoint>,
    /// Directories in which it names processes by their pid. In a PID namespace it gets its own, empty.
    #[serde(default)]
    pub private: Vec<String>,
    /// What is known of the agent's part in permissions.
    pub asking: Asking,
}

/// What is known of an agent's part in permissions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asking {
    /// The kinds of tool calls that the agent asks about before it makes them.
    pub asks: Vec<String>,
    /// Whether settings of its user's may allow calls that it would ask about else.
    pub has_user_settings: bool,
    /// The versions that this release was tried with: `NAME VERSION` or `NAME FIRST - LAST`.
    pub tried: Vec<String>,
    /// The program that is started, `NAME VERSION`, where a file tells it.
    pub program: Option<String>,
    /// The sandbox of the agent's own; `None` where it is not known.
    pub sandbox: Option<String>,
}

/// Host → proxy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all_fields = "camelCase")]
pub enum ToProxy {
    /// First of all.
    Hello(Hello),
    /// `session:start`: start the agent. Answered by [`FromProxy::Started`] or [`FromProxy::Failed`].
    Start {
        /// Names the answer.
        request: RequestId,
        /// The session.
        config: Box<AgentSessionConfig>,
        /// The agent.
        command: Box<AgentCommand>,
        /// What holds the session together.
        enclosure: Box<Enclosure>,
    },
    /// `session:prompt`: begin this turn. Its end is the event `stream:complete` or a [`FromProxy::TurnEnded`].
    Prompt {
        /// Names the answer, which comes as soon as the agent was given the prompt.
        request: RequestId,
        /// Number of the turn.
        turn: u64,
        /// What to do.
        prompt: Prompt,
    },
    /// Say this to the agent in the running turn.
    Steer {
        /// Names the answer.
        request: RequestId,
        /// What to say.
        prompt: Prompt,
    },
    /// Ask something else of the agent. Answered by [`FromProxy::Reply`].
    Operate {
        /// Names the answer.
        request: RequestId,
        /// What.
        operation: Operation,
    },
    /// Nobody waits for the answer to this operation any more: it makes room where there is none for another.
    GiveUp {
        /// Which; this message itself has no answer.
        request: RequestId,
    },
    /// `session:abort`: cancel the running turn through the agent's protocol. Where processes are to be ended too it is
    /// answered by [`FromProxy::Receipt`], else by [`FromProxy::Done`].
    Abort {
        /// Names the answer.
        request: RequestId,
        /// What is done to processes.
        policy: AbortPolicy,
        /// How these are ended.
        options: KillOptions,
    },
    /// Answer a permission request.
    Permission {
        /// Names the answer to this message.
        request: RequestId,
        /// The permission request.
        id: String,
        /// The answer to it.
        answer: PermissionAnswer,
        /// Who gives it, where the caller said.
        by: Option<String>,
    },
    /// `process:list`.
    ListProcesses {
        /// Names the answer.
        request: RequestId,
    },
    /// `process:kill`: end one process.
    KillProcess {
        /// Names the answer.
        request: RequestId,
        /// Which.
        process: ProcessId,
        /// Whether everything below it is ended too.
        tree: bool,
        /// How.
        options: KillOptions,
    },
    /// `process:kill_all`: end everything but the agent.
    KillAll {
        /// Names the answer.
        request: RequestId,
        /// How.
        options: KillOptions,
    },
    /// End everything and the session. Answered by [`FromProxy::Ended`].
    Shutdown {
        /// How.
        options: KillOptions,
        /// What the receipt and the end will say.
        reason: EndReason,
    },
    /// Answered by [`FromProxy::Pong`].
    Ping {
        /// Names the answer.
        request: RequestId,
    },
    /// What the proxy has said up to this number is the host's to keep: see [`FromProxy::is_numbered`].
    Ack {
        /// Number of the last message that the host keeps.
        seq: u64,
    },
}

/// Proxy → host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all_fields = "camelCase")]
pub enum FromProxy {
    /// First of all.
    Hello(Hello),
    /// `session:started`: the agent is ready.
    Started {
        /// Of the `Start`.
        request: RequestId,
        /// The agent's process.
        process: ProcessId,
        /// The agent's own id of the session, where its protocol has one.
        native_session_id: Option<String>,
        /// Whether the agent has turns; one that has none is never busy.
        turns: bool,
        /// What holds, sees and limits the session.
        measures: Box<Measures>,
    },
    /// Something happened: the `stream:*`, `process:*`, `permission:*` and `log` events.
    Event {
        /// The turn it belongs to; 0 for none.
        turn: u64,
        /// What.
        event: Event,
    },
    /// The turn is over and the agent waits for the next: `session:idle`.
    TurnEnded {
        /// Which.
        turn: u64,
    },
    /// The agent is gone. All that it said came before; calls that wait for it wait in vain.
    AgentExited {
        /// How it ended.
        exit: ExitStatus,
        /// Whether the session goes on without it, until it is killed.
        kept: bool,
    },
    /// `process:list_response`.
    Processes {
        /// Of the `ListProcesses`.
        request: RequestId,
        /// Every process of the session, running and finished.
        processes: Vec<ProcessInfo>,
    },
    /// What a kill did.
    Receipt {
        /// Of the kill.
        request: RequestId,
        /// The receipt.
        receipt: Box<Receipt>,
    },
    /// What the agent says to an operation.
    Reply {
        /// Of the operation.
        request: RequestId,
        /// Its answer.
        reply: Json,
    },
    /// The agent's own id of the session is this from now on.
    NativeSession {
        /// The id.
        id: String,
    },
    /// It was done.
    Done {
        /// Of the request.
        request: RequestId,
    },
    /// It could not be done.
    Failed {
        /// Of the request.
        request: RequestId,
        /// Why.
        error: WireError,
    },
    /// To a `Ping`.
    Pong {
        /// Of the ping.
        request: RequestId,
    },
    /// The session is over; the proxy exits after this.
    Ended {
        /// Why.
        reason: EndReason,
        /// What was ended.
        receipt: Box<Receipt>,
    },
    /// To a host that took over a detached session, after the `Hello`: what there is. What was said and not acknowledged
    /// follows, then what is said from now on.
    Attached(Box<Attached>),
}

impl FromProxy {
    /// Whether it is told by itself, and is no answer. Such messages are numbered, 1, 2, …, over the whole session: the number
    /// is not sent, since both sides can count. [`Attached::next_seq`] is what a new host counts from. The proxy of a session
    /// that is to be detached keeps them until a [`ToProxy::Ack`].
    pub fn is_numbered(&self) -> bool {
        match self {
            Self::Started { .. }
            | Self::Event { .. }
            | Self::TurnEnded { .. }
            | Self::AgentExited { .. }
            | Self::NativeSession { .. }
            | Self::Ended { .. } => true,
            Self::Hello(_)
            | Self::Processes { .. }
            | Self::Receipt { .. }
            | Self::Reply { .. }
            | Self::Done { .. }
            | Self::Failed { .. }
            | Self::Pong { .. }
            | Self::Attached(_) => false,
        }
    }
}

/// A detached session, as its proxy tells a new host. A release may add fields, and one that knows less leaves them out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Attached {
    /// How many hosts it has had; this one is the last of them.
    pub epoch: u64,
    /// Number of the first message that follows.
    pub next_seq: u64,
    /// How many messages waited for this host.
    pub waiting: u64,
    /// For how long it had no host, in milliseconds.
    pub detached_ms: u64,
    /// The agent's process; none before [`FromProxy::Started`], which may be yet to follow.
    pub agent: Option<ProcessId>,
    /// The agent's own id of the session.
    pub native_session_id: Option<String>,
    /// Whether the agent has turns.
    pub turns: bool,
    /// What holds, sees and limits the session.
    pub measures: Option<Measures>,
    /// The turn that runs before what follows.
    pub turn: Option<u64>,
    /// Number of the last turn, or prompt where the agent has no turns.
    pub turn_count: u64,
    /// Permission requests that nobody has answered.
    pub permissions: Vec<PermissionRequest>,
    /// The model it was last told to use by an operation.
    pub model: Option<String>,
    /// The mode it was last told to work in by an operation.
    pub mode: Option<String>,
    /// How hard it was last told to think by an operation.
    pub thinking: Option<String>,
    /// Why it is being ended, if it is.
    pub ending: Option<EndReason>,
}

/// What a session needs that is to be detached when its host dies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Detach {
    /// Absolute path of the directory for sockets and spools. It is there, and only its user can look into it.
    pub directory: String,
    /// How long it waits for a new host, in milliseconds.
    pub fetch_within_ms: u64,
    /// How much is kept for a new host, in bytes.
    pub spool_bytes: u64,
}

/// Host → fork server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all_fields = "camelCase")]
pub enum ToForkServer {
    /// First of all.
    Hello(Hello),
    /// Fork a proxy; its end of the socket comes beside the packet.
    Fork {
        /// The session it is for.
        session: SessionId,
        /// What holds it together: what its guard will need.
        enclosure: Enclosure,
        /// Its limits: looked after by the fork server while its proxy cannot, because somebody stops it.
        limits: Limits,
        /// If it is to outlive its host.
        detach: Option<Box<Detach>>,
        /// What the host wants to be told if another one takes the session over: a JSON object, and nothing secret.
        card: Json,
    },
    /// The proxy does not answer: end its session without it.
    Kill {
        /// Whose.
        session: SessionId,
        /// How.
        options: KillOptions,
    },
    /// The proxy does not answer: list its processes without it.
    List {
        /// Whose.
        session: SessionId,
    },
    /// Take over this detached session; the socket for its proxy comes beside the packet.
    Adopt {
        /// Which.
        session: SessionId,
        /// Number of the last message that the new host has; 0 for none.
        #[serde(default)]
        after_seq: u64,
    },
    /// Try what the machine offers. [`Probed`] comes as one frame on the stream socket beside the packet.
    Probe,
}

/// What the machine offers to sessions: tried by a process that the fork server forks for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probed {
    /// PID and mount namespaces.
    pub strict: Result<(), Missing>,
    /// The proc connector.
    pub connector: Result<(), Missing>,
}

/// Why something cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// What was wanted.
    pub what: String,
    /// What failed.
    pub why: String,
    /// What to do to have it.
    pub advice: String,
}

/// Fork server → proxy, on the socket on which a proxy that was forked ahead waits: both are of one build, whoever the host
/// is. Packets of one byte are nudges: something came or went below a proxy that looks for itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Handover {
    /// What it is for; the host's socket comes beside it.
    Session {
        /// The session.
        session: SessionId,
        /// Whether the fork server observes its processes; else the proxy has to look for itself.
        observed: bool,
        /// If it is to outlive its host.
        detach: Option<Box<Detach>>,
    },
    /// The host is gone: the session is detached now, and observed by nobody else.
    HostGone,
    /// Another host takes over; its socket comes beside this.
    Adopt {
        /// Number of the last message that the new host has.
        after_seq: u64,
        /// Whether messages are sent in the form that describes itself: see [`crate::reattach::Wire`].
        described: bool,
    },
}

/// Fork server → host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all_fields = "camelCase")]
pub enum FromForkServer {
    /// First of all.
    Hello(Hello),
    /// A proxy runs.
    Forked {
        /// The session it is for.
        session: SessionId,
        /// The proxy.
        process: ProcessId,
    },
    /// None could be forked.
    ForkFailed {
        /// The session it was for.
        session: SessionId,
        /// Why.
        error: WireError,
    },
    /// Something was seen of a session's processes: `process:spawned`, `process:exited` or `session:lossy`.
    Observed {
        /// Whose.
        session: SessionId,
        /// What.
        event: Event,
    },
    /// What there is below a proxy, as `/proc` says.
    Listed {
        /// Whose.
        session: SessionId,
        /// Its living processes.
        processes: Vec<ProcessInfo>,
    },
    /// A proxy has ended, and so has whatever it left.
    ProxyGone {
        /// Whose.
        session: SessionId,
        /// The proxy.
        process: ProcessId,
        /// How the proxy ended.
        exit: Option<ExitStatus>,
        /// What it left, and the proof that this is gone.
        receipt: Box<Receipt>,
    },
    /// To a host that took over, after the `Hello`: the sessions there are.
    Detached(Vec<DetachedSession>),
}

/// A session that waits for a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DetachedSession {
    /// Its name.
    pub session: SessionId,
    /// Its proxy.
    pub process: ProcessId,
    /// What its last host wrote down of it.
    #[serde(default = "Json::null")]
    pub card: Json,
}
