//! Protocol of host, fork server and proxies: the vocabulary ([`ProcessInfo`], [`Receipt`], [`Event`],
//! [`AgentSessionConfig`]), the [`message`]s, and the [`codec`] that encodes them for a wire.
//!
//! Two encodings exist. Our own processes exchange length-prefixed bincode with hard limits. For people and other
//! programs the same types are JSON (`serde_json`): camelCase fields, `null` for unknown values, durations in
//! milliseconds.

mod budget;
pub mod codec;
mod config;
mod config_setters;
mod container;
mod containment;
mod detach_keys;
pub mod errno;
mod error;
mod event;
mod explicit_settings;
mod home_part;
mod id;
mod json;
#[cfg(feature = "openapi")]
pub mod json_schema;
mod lifecycle;
mod limits;
pub mod message;
mod millis;
mod network;
mod operation;
// What clients elsewhere need of the vocabulary has no packets.
#[cfg(target_os = "linux")]
pub mod packet;
mod policy;
mod process;
mod prompt;
mod raw_lines;
pub mod reattach;
mod receipt;
mod sandbox;
mod signal_number;
pub mod terminal;
mod workspace;

pub use budget::{Budget, BudgetAction, BudgetExceeded, BudgetKind, InvalidUsd, Usd};
pub use config::{AgentSessionConfig, EnvVars, Home, HostDeath, McpServer, McpTransport, OnAgentExit, OnUsageLimit};
pub use container::{
    ContainerEngine, ContainerRemoval, ContainerSpec, ContainerStatus, HOST_LABEL, InvalidMount, RUN_LABEL,
    SESSION_LABEL, SessionContainer, SessionMount, UnknownEngine,
};
pub use containment::{
    AbortPolicy, Containment, ContainmentSpec, ContainmentStatus, Hardening, HiddenFiles, MARKER, ObserverKind,
    UnknownContainment,
};
pub use error::{EMPTY_PATH, ErrorCause, ErrorChain, WireError};
pub use event::{
    CONVERSATION_NOT_KEPT, CostSource, DiffHunk, EndReason, Envelope, EnvelopeError, Event, EventShape, FileChange,
    FileDiff, ImageOutput, MAX_TURNS_REACHED, OffsetGap, PermissionAnswer, PermissionOption, PermissionOptionKind,
    PermissionRequest, PlanEntry, ResolvedBy, SERVER_LISTENS, SHAPES, SettingSource, SlashCommand, StopReason,
    TERMINAL_INPUT_DROPPED, ToolEnd, ToolStart, ToolStatus, ToolUpdate, UNTRIED_VERSION, Usage, offset_text,
};
pub use explicit_settings::{ConfigSetting, ExplicitSettings};
pub use home_part::{HomePart, InvalidHomePart};
pub use id::{InvalidId, Pid, ProcessId, SessionId, Signal, UnknownSignal};
pub use json::Json;
pub use lifecycle::{Lifecycle, Restart, ResumeFallback};
pub use limits::{LimitAction, LimitExceeded, LimitForm, LimitInForce, LimitKind, Limits, UnknownAction};
pub use millis::time as time_text;
pub use network::{
    EGRESS_PORT, FileRefusal, InvalidNetworkRule, MODEL_PORT, ModelUpstream, NetworkAccess, NetworkConnection,
    NetworkRefusal, NetworkRule, normal_host,
};
pub use operation::{AgentEndpoint, NativeResume, OnMissing, Operation, ResumeFrom, ResumeRequest};
pub use policy::{
    AgentSandbox, BypassAction, PermissionBypassed, PermissionMode, PermissionPolicy, PermissionRule, RuleDecision,
    TimeoutAction, TimeoutKind, Timeouts,
};
pub use process::{ExitStatus, ListeningSocket, ProcessInfo, ProcessStatus, SocketProtocol};
pub use prompt::{Prompt, PromptPart};
pub use raw_lines::RawLine;
pub use receipt::{
    ContainmentLayer, KillCause, KillOptions, KillScope, ProcessOutcome, Proof, ReapedBy, Receipt, ReceiptEntry,
};
pub use sandbox::{FileLayer, SandboxMode, SandboxSpec, SandboxStatus, SessionSandbox, UnknownSandbox};
pub use signal_number::{InvalidSignal, SignalNumber};
pub use workspace::{OverlaySpec, UnknownWorkspace, WorkspaceKind, WorkspaceStep};
