//! What host, fork server and proxies say to each other: the vocabulary ([`ProcessInfo`], [`Receipt`],
//! [`Event`], [`AgentSessionConfig`]), the [`message`]s, and the one [`codec`] that puts them on a wire.
//!
//! Two encodings exist. Between our own processes everything is length-prefixed bincode with hard limits.
//! Towards people and other programs the same types are JSON (`serde_json`): camelCase fields, `null` for
//! what is not known, durations in milliseconds.

pub mod codec;
mod config;
mod containment;
mod error;
mod event;
mod id;
mod json;
mod limits;
pub mod message;
mod millis;
pub mod packet;
mod process;
mod receipt;

pub use config::{AgentSessionConfig, EnvVars, McpServer, McpTransport, OnAgentExit, PermissionMode};
pub use containment::{AbortPolicy, Containment, Enclosure, Hardening, MARKER, Measures, Observer, UnknownContainment};
pub use error::WireError;
pub use event::{
    EndReason, Envelope, EnvelopeError, Event, Gap, PermissionAnswer, PermissionOption, PermissionOptionKind,
    PermissionRequest, PlanEntry, ResolvedBy, StopReason, ToolEnd, ToolStart, ToolStatus, ToolUpdate, Usage,
};
pub use id::{InvalidId, Pid, ProcessId, SessionId, Signal, UnknownSignal};
pub use json::Json;
pub use limits::{LimitAction, LimitExceeded, LimitForm, LimitInForce, LimitKind, Limits, UnknownAction};
pub use process::{ExitStatus, ProcessInfo, ProcessStatus};
pub use receipt::{KillCause, KillOptions, Layer, Outcome, Proof, ReapedBy, Receipt, ReceiptEntry};
