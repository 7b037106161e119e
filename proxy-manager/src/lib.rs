//! [`ProxyManager`] runs each agent session in a process of its own, shows what that session does, and ends it with a
//! [`Receipt`] that proves nothing is left.
//!
//! A manager owns one fork server (a child process); the fork server forks one proxy per session; the proxy runs the
//! agent. Everything here is the host's side: no call blocks, each has a deadline, each fails with a typed [`Error`].
//!
//! ```no_run
//! # async fn example(token: proxy_child::ChildToken) -> proxy_manager::Result<()> {
//! use proxy_manager::{AgentSessionConfig, Child, Event, KillOptions, ProxyManager, PromptMode};
//!
//! let manager = ProxyManager::builder(Child::Current(token)).build().await?;
//! let config = AgentSessionConfig { command: vec!["/bin/cat".into()], ..AgentSessionConfig::new("command") };
//! let session = manager.start_session(config).await?;
//! let mut events = session.subscribe();
//! session.prompt("hello", PromptMode::Refuse).await?;
//! while let Some(envelope) = events.next().await {
//!     if let Event::Text { text } = &envelope.event {
//!         assert_eq!(text, "hello\n");
//!         break;
//!     }
//! }
//! let receipt = session.kill(KillOptions::default()).await?;
//! assert!(receipt.is_empty());
//! manager.shutdown().await;
//! # Ok(())
//! # }
//! ```

mod blocking;
mod builder;
mod containment;
mod deadlines;
mod directory;
mod error;
mod fork_server;
mod history;
mod launch;
mod manager;
mod session;
mod state;
mod watched;

pub use agents::{AgentSpec, Catalog};
pub use builder::{Builder, Child};
pub use containment::Capabilities;
pub use deadlines::Deadlines;
pub use error::{Error, Result};
pub use history::{HistoryLimits, Subscription};
pub use ipc_protocol::{
    AbortPolicy, AgentSessionConfig, Containment, EndReason, EnvVars, Envelope, Event, ExitStatus, Gap, Hardening,
    Json, KillCause, KillOptions, Layer, LimitAction, LimitExceeded, LimitForm, LimitInForce, LimitKind, Limits,
    MARKER, McpServer, McpTransport, Measures, Observer, OnAgentExit, Outcome, PermissionAnswer, PermissionMode,
    PermissionOption, PermissionOptionKind, PermissionRequest, Pid, PlanEntry, ProcessId, ProcessInfo, ProcessStatus,
    Proof, ReapedBy, Receipt, ReceiptEntry, ResolvedBy, SessionId, Signal, StopReason, ToolEnd, ToolStart, ToolStatus,
    ToolUpdate, Usage,
};
pub use launch::SESSION_MARKER;
pub use manager::ProxyManager;
pub use proxy_child::ChildToken;
pub use registry::{Controllers, Unavailable};
pub use session::{PromptMode, SessionHandle, SessionInfo, SessionState, Turn, TurnEnd};
pub use state::{Recovered, Recovery};
