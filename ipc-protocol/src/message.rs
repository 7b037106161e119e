//! Messages between host, fork server and proxies. Every connection begins with a `Hello` in both directions.
//!
//! Host ⇄ proxy: a stream socket, [`ToProxy`] and [`FromProxy`]. Host ⇄ fork server: a sequenced-packet socket,
//! [`ToForkServer`] and [`FromForkServer`], one frame a packet, descriptors beside it.
//!
//! Messages between a host and the fork servers and proxies of an earlier host also form the reattachment protocol,
//! which has to work with the release before this one: see [`crate::reattach`]. A new field there needs a default,
//! and a new message must be one that the other side can ignore.

use serde::{Deserialize, Serialize};

use crate::{
    AbortPolicy, AgentEndpoint, AgentSessionConfig, ContainmentSpec, ContainmentStatus, EndReason, EnvVars, Event,
    ExitStatus, Json, KillOptions, KillScope, Limits, ModelUpstream, NativeResume, Operation, PermissionAnswer,
    PermissionRequest, ProcessId, ProcessInfo, Prompt, Receipt, SessionId, WireError,
};

/// Version of everything in this crate that crosses a wire. Any change of a message or a type in it raises it: bincode
/// does not describe itself, so two builds that differ cannot talk.
pub const VERSION: u32 = 11;

/// First message in each direction. Its encoding never changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`VERSION`] of the sender.
    pub version: u32,
    /// Process of the sender.
    pub process: ProcessId,
}

/// Number that pairs an answer with its request. The host assigns it.
pub type RequestId = u64;

/// Agent as resolved from the catalog by the host: everything that a proxy needs to run it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentCommand {
    /// Catalog id, for events and errors.
    pub agent: String,
    /// Name of the protocol's adapter: `command`, `acp`, or one that the embedder linked in.
    pub protocol: String,
    /// Program and arguments; the program is looked up in the PATH of `env`.
    pub argv: Vec<String>,
    /// Complete environment of the agent.
    pub env: EnvVars,
    /// Program and arguments of the agent's screen beside its protocol; empty where it has none. `{endpoint}` is the address that
    /// its server reports, `{id}` its conversation.
    #[serde(default)]
    pub companion: Vec<String>,
    /// Path of the socket on which the agent listens for WebSocket connections, in which each message is a line of its protocol;
    /// `None` for its standard streams.
    #[serde(default)]
    pub socket: Option<String>,
    /// Working directory of the agent; `None` for the session's.
    pub cwd: Option<String>,
    /// Settings in the catalog row for the protocol's adapter: a JSON object.
    pub protocol_config: Json,
    /// Fresh UUID, for agents that let the caller name a new conversation.
    pub fresh_id: String,
    /// Conversation to continue.
    pub resume: Option<NativeResume>,
    /// Server of the agent, if it speaks HTTP.
    pub endpoint: Option<AgentEndpoint>,
    /// Model replies per prompt that the proxy counts; `None` if the agent bounds them itself, or nobody does.
    pub max_turns: Option<u32>,
    /// Directories in which it names processes by their pid. In a PID namespace it gets its own, empty.
    pub private: Vec<String>,
    /// Facts about the agent's part in permissions.
    pub asking: PermissionSupport,
    /// The model, where its key stays outside of the session.
    #[serde(default)]
    pub upstream: Option<ModelUpstream>,
}

/// Facts about an agent's part in permissions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PermissionSupport {
    /// The kinds of tool calls that the agent asks about before it makes them.
    pub asks: Vec<String>,
    /// True if settings of its user's may allow calls that it would ask about else.
    pub has_user_settings: bool,
    /// The versions that this release was tried with: `NAME VERSION` or `NAME FIRST - LAST`.
    pub tried: Vec<String>,
    /// The program that is started, `NAME VERSION`, where a file tells it.
    pub program: Option<String>,
    /// The sandbox of the agent's own; `None` where it is not known.
    pub sandbox: Option<String>,
}

/// Message from host to proxy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all_fields = "camelCase")]
pub enum ToProxy {
    /// Opens the connection.
    Hello(Hello),
    /// Gives the proxy a command.
    Request {
        /// Number of the request, which its answer names.
        request: RequestId,
        /// Command to carry out.
        command: ProxyCommand,
    },
    /// Gives up waiting for an operation's answer. The operation then makes way if there is no room for another
    /// one.
    GiveUp {
        /// Number of the abandoned request; this message itself has no answer.
        request: RequestId,
    },
    /// Acknowledges numbered messages, which the host now keeps: see [`FromProxy::is_numbered`].
    Ack {
        /// Number of the last message that the host keeps.
        seq: u64,
    },
}

/// Command of a host to a proxy. Answered by [`FromProxy::Done`] where nothing else is said, or by
/// [`FromProxy::Failed`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all_fields = "camelCase")]
pub enum ProxyCommand {
    /// Starts the agent: `session:start`. Answered by [`FromProxy::Started`].
    Start {
        /// Configuration of the session.
        config: Box<AgentSessionConfig>,
        /// Command that starts the agent.
        command: Box<AgentCommand>,
        /// Containment of the session.
        enclosure: Box<ContainmentSpec>,
    },
    /// Begins a turn: `session:prompt`. Answered as soon as the agent was given the prompt. The turn ends with the event
    /// `stream:complete` or a [`FromProxy::TurnEnded`].
    Prompt {
        /// Number of the turn.
        turn: u64,
        /// Content of the prompt.
        prompt: Prompt,
    },
    /// Steers the agent in the running turn.
    Steer {
        /// Text for the agent.
        prompt: Prompt,
    },
    /// Requests another operation of the agent. Answered by [`FromProxy::Reply`].
    Operate {
        /// Operation to perform.
        operation: Operation,
    },
    /// Cancels the running turn through the agent's protocol: `session:abort`. Answered by [`FromProxy::Receipt`]
    /// if processes are to be ended too.
    Abort {
        /// Effect on processes.
        policy: AbortPolicy,
        /// Options for ending these.
        options: KillOptions,
    },
    /// Answers a permission request.
    Permission {
        /// Id of the permission request.
        id: String,
        /// Answer to the permission request.
        answer: PermissionAnswer,
        /// Name of the user who answers, if the caller gave one.
        by: Option<String>,
    },
    /// Requests a list of processes: `process:list`. Answered by [`FromProxy::Processes`].
    ListProcesses,
    /// Ends processes: `process:kill` and `process:kill_all`. Answered by [`FromProxy::Receipt`]; where the session ends
    /// with them, by [`FromProxy::Ended`].
    Kill {
        /// Processes to end.
        scope: KillScope,
        /// Options of the kill.
        options: KillOptions,
        /// Reason of the session's end, for a kill of the session.
        reason: EndReason,
    },
    /// Checks that the proxy responds.
    Ping,
}

impl ProxyCommand {
    /// Returns true for a command that overtakes those that keep their order.
    pub fn is_urgent(&self) -> bool {
        match self {
            Self::Start { .. } | Self::Prompt { .. } | Self::Steer { .. } | Self::Operate { .. } => false,
            Self::Abort { .. } | Self::Permission { .. } | Self::ListProcesses | Self::Kill { .. } | Self::Ping => true,
        }
    }
}

/// Fact that an agent reports about itself and on which the host acts. It is no event; the host emits one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all_fields = "camelCase")]
pub enum AgentFact {
    /// No other process can resume the agent's conversation.
    NotResumable {
        /// Cause, for people.
        detail: String,
    },
    /// The agent's own server accepts connections.
    ServerListens {
        /// Address of the server.
        address: String,
    },
    /// The agent began with these settings, or tells for the first time which it has: no change. `None` for one that it does not
    /// tell.
    Settings {
        /// Model, in the agent's own spelling.
        model: Option<String>,
        /// Mode, in the agent's own spelling.
        mode: Option<String>,
        /// Thinking level, in the agent's own spelling.
        thinking: Option<String>,
    },
}

/// Message from proxy to host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all_fields = "camelCase")]
pub enum FromProxy {
    /// Opens the connection.
    Hello(Hello),
    /// The agent is ready: `session:started`.
    Started {
        /// Number of the `Start` request.
        request: RequestId,
        /// Process of the agent.
        process: ProcessId,
        /// Agent's own id of the session, if its protocol has one.
        native_session_id: Option<String>,
        /// True if the agent has turns; an agent without turns is never busy.
        turns: bool,
        /// Containment, observation and limits of the session.
        measures: Box<ContainmentStatus>,
    },
    /// An event occurred: one of the `stream:*`, `process:*`, `permission:*` and `log` events.
    Event {
        /// Turn of the event; 0 for none.
        turn: u64,
        /// Event that occurred.
        event: Event,
    },
    /// The turn is over and the agent waits for the next: `session:idle`.
    TurnEnded {
        /// Number of the turn.
        turn: u64,
    },
    /// The agent has exited. All its output came before; pending requests to it get no answer.
    AgentExited {
        /// Exit status of the agent.
        exit: ExitStatus,
        /// True if the session continues without the agent, until it is killed.
        kept: bool,
    },
    /// Answer to a list request: `process:list_response`.
    Processes {
        /// Number of the `ListProcesses` request.
        request: RequestId,
        /// All processes of the session, running and finished.
        processes: Vec<ProcessInfo>,
    },
    /// Result of a kill.
    Receipt {
        /// Number of the kill request.
        request: RequestId,
        /// Receipt of the kill.
        receipt: Box<Receipt>,
    },
    /// Agent's answer to an operation.
    Reply {
        /// Number of the operation's request.
        request: RequestId,
        /// Answer of the agent.
        reply: Json,
    },
    /// The agent reported something about itself.
    Fact(AgentFact),
    /// The agent's own id of the session has changed.
    NativeSession {
        /// New id.
        id: String,
    },
    /// The request succeeded.
    Done {
        /// Number of the request.
        request: RequestId,
    },
    /// The request failed.
    Failed {
        /// Number of the request.
        request: RequestId,
        /// Cause of the failure.
        error: WireError,
    },
    /// The session has ended; the proxy exits after this.
    Ended {
        /// Reason of the end.
        reason: EndReason,
        /// Receipt for the ended processes.
        receipt: Box<Receipt>,
    },
    /// State of a detached session, for a host that took it over, after the `Hello`. The unacknowledged messages
    /// follow, then the new ones.
    Attached(Box<AttachedSession>),
}

impl FromProxy {
    /// Returns true for a message that the proxy sends by itself, not as an answer. Such messages are numbered, 1,
    /// 2, …, over the whole session. The number is not sent, since both sides can count; a new host counts from
    /// [`AttachedSession::next_seq`]. The proxy of a session that may be detached keeps them until a [`ToProxy::Ack`].
    pub fn is_numbered(&self) -> bool {
        match self {
            Self::Started { .. }
            | Self::Event { .. }
            | Self::TurnEnded { .. }
            | Self::AgentExited { .. }
            | Self::Fact(_)
            | Self::NativeSession { .. }
            | Self::Ended { .. } => true,
            Self::Hello(_)
            | Self::Processes { .. }
            | Self::Receipt { .. }
            | Self::Reply { .. }
            | Self::Done { .. }
            | Self::Failed { .. }
            | Self::Attached(_) => false,
        }
    }
}

/// Detached session, as its proxy describes it to a new host. A release may add fields; an older one leaves them
/// out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttachedSession {
    /// Number of hosts so far, this one included.
    pub epoch: u64,
    /// Number of the first message that follows.
    pub next_seq: u64,
    /// Number of messages that waited for this host.
    pub waiting: u64,
    /// Time without a host, in milliseconds.
    pub detached_ms: u64,
    /// Process of the agent; none before [`FromProxy::Started`], which may still follow.
    pub agent: Option<ProcessId>,
    /// Agent's own id of the session.
    pub native_session_id: Option<String>,
    /// True if the agent has turns.
    pub turns: bool,
    /// Containment, observation and limits of the session.
    pub measures: Option<ContainmentStatus>,
    /// Turn that is running before the messages that follow.
    pub turn: Option<u64>,
    /// Number of the last turn, or prompt if the agent has no turns.
    pub turn_count: u64,
    /// Permission requests without an answer.
    pub permissions: Vec<PermissionRequest>,
    /// Model last selected by an operation.
    pub model: Option<String>,
    /// Mode last selected by an operation.
    pub mode: Option<String>,
    /// Thinking level last selected by an operation.
    pub thinking: Option<String>,
    /// Reason, if the session is being ended.
    pub ending: Option<EndReason>,
}

/// Settings of a session that is to be detached when its host dies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DetachSpec {
    /// Absolute path of the directory for sockets and spools. The directory exists, and only its user can read it.
    pub directory: String,
    /// Longest wait for a new host, in milliseconds.
    pub fetch_within_ms: u64,
    /// Bytes kept for a new host.
    pub spool_bytes: u64,
}

/// Message from host to fork server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all_fields = "camelCase")]
pub enum ToForkServer {
    /// Opens the connection.
    Hello(Hello),
    /// Forks a proxy; its end of the socket comes beside the packet.
    Fork {
        /// Session of the proxy.
        session: SessionId,
        /// Containment of the session, which the proxy's guard needs.
        enclosure: Box<ContainmentSpec>,
        /// Limits of the session: the fork server enforces them while somebody stops the proxy.
        limits: Limits,
        /// Settings for outliving the host, if the session may.
        detach: Option<Box<DetachSpec>>,
        /// Record for another host that takes the session over: a JSON object without secrets.
        card: Json,
    },
    /// Ends the session of a proxy that does not answer.
    Kill {
        /// Session to end.
        session: SessionId,
        /// Options of the kill.
        options: KillOptions,
    },
    /// Lists the processes below a proxy that does not answer.
    List {
        /// Session to list.
        session: SessionId,
    },
    /// Takes over a detached session; the socket for its proxy comes beside the packet.
    Adopt {
        /// Session to take over.
        session: SessionId,
        /// Number of the last message that the new host has; 0 for none.
        #[serde(default)]
        after_seq: u64,
    },
    /// Connects a viewer of the session's terminal, or of a new shell, whose socket comes beside the packet. See
    /// [`crate::terminal`].
    View {
        /// Session to view.
        session: SessionId,
    },
    /// Tests a feature of the machine: a [`ProbedFeature`], which is the first byte on the stream socket beside the packet. The answer comes
    /// there, as one frame: `Result<(), MissingFeature>`.
    Probe,
    /// Sets a lease on all sessions. Once it is over the fork server ends them, and starts none until it is extended.
    Lease {
        /// Milliseconds since the machine's boot at which it is over (`CLOCK_BOOTTIME`).
        until_ms: u64,
    },
}

/// Feature of the machine for sessions, tested by a process that the fork server forks for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ProbedFeature {
    /// PID and mount namespaces.
    Strict,
    /// The proc connector.
    Connector,
}

impl ProbedFeature {
    /// All values, each at the place of its byte.
    pub const ALL: [Self; 2] = [Self::Strict, Self::Connector];
}

/// Description of a missing feature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingFeature {
    /// Name of the feature.
    pub what: String,
    /// Operation that failed.
    pub why: String,
    /// Advice on getting the feature.
    pub advice: String,
}

/// Message from fork server to proxy, on the socket on which a spare proxy waits. Both are of one build, whatever
/// the host is. A packet of one byte is a nudge: a process came or went below a proxy that polls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ProxyHandover {
    /// Assigns the proxy a session; the host's socket comes beside it.
    Session {
        /// Session of the proxy.
        session: SessionId,
        /// True if the fork server observes its processes; else the proxy has to poll.
        observed: bool,
        /// Settings for outliving the host, if the session may.
        detach: Option<Box<DetachSpec>>,
    },
    /// Somebody views the session's terminal, or starts a shell; the viewer's socket comes beside this. See
    /// [`crate::terminal`].
    View,
    /// The host is gone: the session is now detached, and nobody else observes it.
    HostGone,
    /// Another host takes the session over; its socket comes beside this.
    Adopt {
        /// Number of the last message that the new host has.
        after_seq: u64,
        /// True if messages are sent in the self-describing form: see [`crate::reattach::WireFormat`].
        described: bool,
    },
}

/// Message from fork server to host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all_fields = "camelCase")]
pub enum FromForkServer {
    /// Opens the connection.
    Hello(Hello),
    /// A proxy is running.
    Forked {
        /// Session of the proxy.
        session: SessionId,
        /// Process of the proxy.
        process: ProcessId,
    },
    /// No proxy could be forked.
    ForkFailed {
        /// Session of the request.
        session: SessionId,
        /// Cause of the failure.
        error: WireError,
    },
    /// Processes of a session changed: `process:spawned`, `process:exited` or `session:lossy`.
    Observed {
        /// Session of the event.
        session: SessionId,
        /// Event that was observed.
        event: Event,
    },
    /// Processes below a proxy, as listed in `/proc`.
    Listed {
        /// Session that was listed.
        session: SessionId,
        /// Living processes of the session.
        processes: Vec<ProcessInfo>,
    },
    /// A proxy has ended, and so have all processes it left.
    ProxyGone {
        /// Session of the proxy.
        session: SessionId,
        /// Process of the proxy.
        process: ProcessId,
        /// Exit status of the proxy.
        exit: Option<ExitStatus>,
        /// Receipt for the processes it left, with the proof that they are gone.
        receipt: Box<Receipt>,
    },
    /// Available sessions, for a host that took over, after the `Hello`.
    Detached(Vec<DetachedSession>),
}

/// Session that waits for a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DetachedSession {
    /// Name of the session.
    pub session: SessionId,
    /// Process of its proxy.
    pub process: ProcessId,
    /// Record that its last host wrote.
    pub card: Json,
}
