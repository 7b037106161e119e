//! [`ProxyManager`] runs each agent session in a process of its own, shows what that session does, and ends it with a
//! [`Receipt`] that proves nothing is left.
//!
//! A manager owns one fork server (a child process); the fork server forks one proxy per session; the proxy runs the
//! agent. Everything here is the host's side: no call blocks, each has a deadline, each fails with a typed [`Error`].
//!
//! ```no_run
//! # async fn example(token: proxy_child::ChildToken) -> proxy_manager::Result<()> {
//! use proxy_manager::{AgentSessionConfig, ChildProgram, Event, KillOptions, ProxyManager, PromptMode};
//!
//! let manager = ProxyManager::builder(ChildProgram::Current(token)).build().await?;
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

mod actions;
mod answer;
mod ask;
mod blocking;
mod builder;
mod containment;
mod conversation_locks;
mod deadlines;
mod description;
mod error;
mod fd_watch;
mod fork_server;
mod history;
mod homes;
mod launch;
mod manager;
mod records;
mod session;
mod session_store;
mod session_table;
mod state;
mod supervision;
mod takeover;

pub use actions::ActionRule;
pub use agents::{AgentSpec, Catalog, ModelApi, ModelConfig, Profile, Profiles, Secret};
pub use answer::{Answer, ToolCall};
pub use ask::{AnswerChunk, SilentHandler, StreamHandler, StreamInfo, StreamOptions, TurnStep, TurnStream};
pub use builder::ManagerBuilder;
pub use containment::Capabilities;
pub use deadlines::{Deadlines, HealthPolicy};
pub use description::{
    AfterSuspension, NativeConversation, SessionMetadata, SessionRemains, SessionSettings, SessionState,
    SupervisedProcesses, TurnUsage,
};
pub use error::{Error, Result, SessionBound};
pub use event_log::{ImportSummary, LogDamage, LogError, LogInspection, Retention};
#[cfg(feature = "sqlite")]
pub use event_log::{check as check_log, salvage as salvage_log};
pub use fork_server::ChildProgram;
pub use history::{HistoryLimits, LogFailure, Subscription};
pub use ipc_protocol::{
    AbortPolicy, AgentSandbox, AgentSessionConfig, Budget, BudgetAction, BudgetExceeded, BudgetKind, BypassAction,
    CONVERSATION_NOT_KEPT, ConfigSetting, Containment, ContainmentLayer, ContainmentStatus, EndReason, EnvVars,
    Envelope, Event, ExitStatus, Hardening, Home, HostDeath, Json, KillCause, KillOptions, KillScope, Lifecycle,
    LimitAction, LimitExceeded, LimitForm, LimitInForce, LimitKind, Limits, MARKER, MAX_TURNS_REACHED, McpServer,
    McpTransport, ObserverKind, OffsetGap, OnAgentExit, OnMissing, OnUsageLimit, Operation, PermissionAnswer,
    PermissionBypassed, PermissionMode, PermissionOption, PermissionOptionKind, PermissionPolicy, PermissionRequest,
    PermissionRule, Pid, PlanEntry, ProcessId, ProcessInfo, ProcessOutcome, ProcessStatus, Prompt, PromptPart, Proof,
    RawLine, ReapedBy, Receipt, ReceiptEntry, ResolvedBy, Restart, ResumeFrom, ResumeRequest, RuleDecision, SessionId,
    Signal, StopReason, TimeoutAction, TimeoutKind, Timeouts, ToolEnd, ToolStart, ToolStatus, ToolUpdate,
    UNTRIED_VERSION, Usage, Usd,
};
pub use launch::{DEPTH_MARKER, SESSION_MARKER};
pub use manager::{DrainProgress, ProxyManager, ResumeOptions, SessionHandle, SessionSnapshot};
pub use proxy_child::ChildToken;
pub use registry::{CgroupControllers, UnavailableFeature, raise_descriptor_limit};
pub use session::{ProcessUse, PromptMode, QueuedPrompt, SessionInfo, SessionMetrics, Turn, TurnEnd};
pub use session_store::{RecordState, SessionFilter, SessionRecord, SessionStatus};
pub use state::{RecoveredSession, RecoveryOutcome};
pub use supervision::Occupancy;
