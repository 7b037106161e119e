//! The messages. Every connection begins with a `Hello` in both directions.
//!
//! Host ⇄ proxy: a stream socket, [`ToProxy`] and [`FromProxy`]. Host ⇄ fork server: a sequenced-packet socket,
//! [`ToForkServer`] and [`FromForkServer`], one frame a packet, descriptors beside it.

use serde::{Deserialize, Serialize};

use crate::{
    AbortPolicy, AgentSessionConfig, Enclosure, EndReason, EnvVars, Event, ExitStatus, KillOptions, Measures,
    PermissionAnswer, ProcessId, ProcessInfo, Receipt, SessionId, WireError,
};

/// Version of everything in this crate that crosses a wire. Any change of a message or a type in it raises it: bincode
/// does not describe itself, so two builds that differ cannot talk.
pub const VERSION: u32 = 2;

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
    /// Whether a prompt sent while a turn runs steers it.
    pub steer_by_prompt: bool,
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
        text: String,
    },
    /// Say this to the agent in the running turn.
    Steer {
        /// Names the answer.
        request: RequestId,
        /// What to say.
        text: String,
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
}

/// Host → fork server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToForkServer {
    /// First of all.
    Hello(Hello),
    /// Fork a proxy; its end of the socket comes beside the packet.
    Fork {
        /// The session it is for.
        session: SessionId,
        /// What holds it together: what its guard will need.
        enclosure: Enclosure,
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
}

/// Fork server → proxy, on the socket on which a proxy that was forked ahead waits; the host's socket comes beside it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Handover {
    /// The session the proxy is for.
    pub session: SessionId,
    /// Whether the fork server observes its processes; else the proxy has to look for itself.
    pub observed: bool,
}

/// Fork server → host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
}
