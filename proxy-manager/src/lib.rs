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
//! let config = AgentSessionConfig::new("command").with_command(["/bin/cat"]);
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
mod container_host;
mod containment;
mod conversation_locks;
mod deadlines;
mod description;
mod error;
mod error_text;
mod fd_watch;
mod fork_server;
mod history;
mod homes;
mod launch;
mod manager;
mod prices;
mod problem;
mod records;
pub mod replication;
mod runtime;
mod session;
mod session_store;
mod session_table;
mod state;
mod supervision;
mod takeover;
pub mod terminal;
mod workspaces;

#[doc(inline)]
pub use api_types::PromptMode;
#[doc(inline)]
pub use ipc_protocol::{AgentSessionConfig, Envelope, Event, KillOptions, PermissionMode, Prompt, Receipt, SessionId};
pub use proxy_child::ChildToken;

pub use builder::ManagerBuilder;
pub use error::{Error, Result};
pub use fork_server::ChildProgram;
pub use history::{EventFeed, FeedStart, Subscription};
pub use manager::{ProxyManager, SessionHandle};

/// Answers put together from events, and streams of them.
pub mod answers {
    pub use crate::answer::{Answer, ToolCall};
    pub use crate::ask::{AnswerChunk, SilentHandler, StreamHandler, StreamInfo, StreamOptions, TurnStep, TurnStream};
}

/// Agents, profiles and model configurations.
pub mod catalog {
    #[doc(inline)]
    pub use agents::{
        AgentSpec, Catalog, HomeFile, HomeFiles, ModelApi, ModelConfig, ModelPrice, PriceError, PriceTable, Profile,
        Profiles, Secret,
    };
}

/// Configuration of a session.
pub mod config {
    #[doc(inline)]
    pub use ipc_protocol::{
        AgentSessionConfig, EnvVars, Home, HomePart, HostDeath, InvalidHomePart, Lifecycle, McpServer, McpTransport,
        OnAgentExit, OnMissing, OnUsageLimit, Restart, ResumeFallback, ResumeFrom, ResumeRequest,
    };
}

/// Events of a session, and their streams.
pub mod events {
    pub use crate::history::{EventFeed, FeedStart, Subscription};
    pub use crate::manager::{ByteStreamWatch, FreeStreamInfo, NewEvent};
    #[doc(inline)]
    pub use event_log::{
        BytePage, ByteStreamAppend, ByteStreamChange, ByteStreamInfo, ByteStreamOutcome, ByteStreamRefusal,
        NewByteStream, ProducerSequence, StreamContent, StreamFork, StreamLifetime, is_json,
    };
    #[doc(inline)]
    pub use ipc_protocol::{
        CONVERSATION_NOT_KEPT, CostSource, DiffHunk, EndReason, Envelope, EnvelopeError, Event, EventShape, FileChange,
        FileDiff, ImageOutput, Json, MAX_TURNS_REACHED, OffsetGap, PlanEntry, RawLine, SettingSource, SlashCommand,
        StopReason, ToolEnd, ToolStart, ToolStatus, ToolUpdate, UNTRIED_VERSION, Usage,
    };
}

/// Configuration and state of the manager itself: deadlines, event log, recovery, capabilities of the machine.
pub mod host {
    pub use crate::actions::{ActionRule, fill_text};
    pub use crate::containment::Capabilities;
    pub use crate::deadlines::{Deadlines, HealthPolicy};
    pub use crate::error::SessionBound;
    pub use crate::history::{HistoryLimits, LogFailure};
    pub use crate::manager::{DrainProgress, RequestGuard, RequestStart};
    pub use crate::state::{RecoveredSession, RecoveryOutcome};
    pub use crate::supervision::{Occupancy, WarmTarget};
    #[doc(inline)]
    pub use event_log::{CommitTimes, ImportSummary, LogDamage, LogError, LogInspection, LogMetrics, Retention};
    #[cfg(feature = "sqlite")]
    #[doc(inline)]
    pub use event_log::{check as check_log, salvage as salvage_log};
    #[doc(inline)]
    pub use ipc_protocol::ErrorCause;
    #[doc(inline)]
    pub use registry::{CgroupControllers, UnavailableFeature, raise_descriptor_limit};
}

/// Trees of their own that agents work in.
pub mod workspace {
    pub use crate::workspaces::{WorkspaceStore, workspace_source};
    #[doc(inline)]
    pub use api_types::{ChangedFile, WorkspaceDiff, WorkspaceInfo};
    #[doc(inline)]
    pub use ipc_protocol::{UnknownWorkspace, WorkspaceKind, WorkspaceStep};
}

/// Containment of a session, and protection of everything else from it.
pub mod isolation {
    #[doc(inline)]
    pub use ipc_protocol::{
        AgentSandbox, ContainerEngine, ContainerRemoval, ContainerStatus, Containment, ContainmentLayer,
        ContainmentStatus, FileRefusal, Hardening, InvalidMount, InvalidNetworkRule, NetworkAccess, NetworkConnection,
        NetworkRefusal, NetworkRule, ObserverKind, SandboxMode, SandboxStatus, SessionContainer, SessionMount,
        SessionSandbox, UnknownContainment, UnknownEngine, UnknownSandbox,
    };
}

/// Limits, clocks and budgets of a session.
pub mod limits {
    #[doc(inline)]
    pub use ipc_protocol::{
        Budget, BudgetAction, BudgetExceeded, BudgetKind, InvalidUsd, LimitAction, LimitExceeded, LimitForm,
        LimitInForce, LimitKind, Limits, TimeoutAction, TimeoutKind, Timeouts, UnknownAction, Usd,
    };
}

/// Permission requests, and the policy that answers them.
pub mod permissions {
    #[doc(inline)]
    pub use api_types::OpenPermission;
    #[doc(inline)]
    pub use ipc_protocol::{
        BypassAction, PermissionAnswer, PermissionBypassed, PermissionMode, PermissionOption, PermissionOptionKind,
        PermissionPolicy, PermissionRequest, PermissionRule, ResolvedBy, RuleDecision,
    };
}

/// Processes of a session, kills, and their receipts.
pub mod processes {
    pub use crate::launch::{DEPTH_MARKER, SESSION_MARKER};
    #[doc(inline)]
    pub use api_types::{AgentPosition, EscapeMark, EscapeMarks, ProcessDetails, ProcessUse};
    #[doc(inline)]
    pub use ipc_protocol::{
        AbortPolicy, ExitStatus, InvalidSignal, KillCause, KillOptions, KillScope, ListeningSocket, MARKER, Pid,
        ProcessId, ProcessInfo, ProcessOutcome, ProcessStatus, Proof, ReapedBy, Receipt, ReceiptEntry, Signal,
        SignalNumber, SocketProtocol, UnknownSignal,
    };
}

/// Sessions as a manager lists and describes them, prompts and turns.
pub mod sessions {
    pub use crate::manager::SessionHandle;
    pub use crate::session::{PromptOptions, Turn, TurnEnd};
    #[doc(inline)]
    pub use api_types::{
        AfterSuspension, AgentStatus, NativeConversation, PromptMode, QueuedPrompt, RecordState, ResumeOptions,
        SessionFilter, SessionInfo, SessionMetadata, SessionMetrics, SessionRecord, SessionRemains, SessionSettings,
        SessionSnapshot, SessionState, SessionStatus, SupervisedProcesses, TurnUsage,
    };
    #[doc(inline)]
    pub use ipc_protocol::{InvalidId, Operation, Prompt, PromptPart, SessionId};
}

#[doc(hidden)]
pub use self::error_text::error_text;
#[cfg(feature = "sqlite")]
#[doc(hidden)]
pub use self::host::{check_log, salvage_log};
/// Everything in the modules, under its name alone: for the crates of this workspace.
#[doc(hidden)]
pub use self::{
    answers::{
        Answer, AnswerChunk, SilentHandler, StreamHandler, StreamInfo, StreamOptions, ToolCall, TurnStep, TurnStream,
    },
    catalog::{
        AgentSpec, Catalog, HomeFile, HomeFiles, ModelApi, ModelConfig, ModelPrice, PriceError, PriceTable, Profile,
        Profiles, Secret,
    },
    config::{
        EnvVars, Home, HomePart, HostDeath, Lifecycle, McpServer, McpTransport, OnAgentExit, OnMissing, OnUsageLimit,
        Restart, ResumeFallback, ResumeFrom, ResumeRequest,
    },
    events::{
        BytePage, ByteStreamAppend, ByteStreamChange, ByteStreamInfo, ByteStreamOutcome, ByteStreamRefusal,
        ByteStreamWatch, CONVERSATION_NOT_KEPT, CostSource, DiffHunk, EndReason, FileChange, FileDiff, FreeStreamInfo,
        ImageOutput, Json, MAX_TURNS_REACHED, NewByteStream, NewEvent, OffsetGap, PlanEntry, ProducerSequence, RawLine,
        SettingSource, SlashCommand, StopReason, StreamContent, StreamFork, StreamLifetime, ToolEnd, ToolStart,
        ToolStatus, ToolUpdate, UNTRIED_VERSION, Usage, is_json,
    },
    host::{
        ActionRule, Capabilities, CgroupControllers, CommitTimes, Deadlines, DrainProgress, HealthPolicy,
        HistoryLimits, ImportSummary, LogDamage, LogError, LogFailure, LogInspection, Occupancy, RecoveredSession,
        RecoveryOutcome, RequestGuard, RequestStart, Retention, SessionBound, UnavailableFeature, WarmTarget,
        fill_text, raise_descriptor_limit,
    },
    isolation::{
        AgentSandbox, ContainerEngine, ContainerRemoval, ContainerStatus, Containment, ContainmentLayer,
        ContainmentStatus, FileRefusal, Hardening, InvalidMount, InvalidNetworkRule, NetworkAccess, NetworkConnection,
        NetworkRefusal, NetworkRule, ObserverKind, SandboxMode, SandboxStatus, SessionContainer, SessionMount,
        SessionSandbox,
    },
    limits::{
        Budget, BudgetAction, BudgetExceeded, BudgetKind, LimitAction, LimitExceeded, LimitForm, LimitInForce,
        LimitKind, Limits, TimeoutAction, TimeoutKind, Timeouts, Usd,
    },
    permissions::{
        BypassAction, OpenPermission, PermissionAnswer, PermissionBypassed, PermissionOption, PermissionOptionKind,
        PermissionPolicy, PermissionRequest, PermissionRule, ResolvedBy, RuleDecision,
    },
    processes::{
        AbortPolicy, AgentPosition, DEPTH_MARKER, EscapeMark, EscapeMarks, ExitStatus, InvalidSignal, KillCause,
        KillScope, ListeningSocket, MARKER, Pid, ProcessDetails, ProcessId, ProcessInfo, ProcessOutcome, ProcessStatus,
        ProcessUse, Proof, ReapedBy, ReceiptEntry, SESSION_MARKER, Signal, SignalNumber, SocketProtocol,
    },
    sessions::{
        AfterSuspension, AgentStatus, NativeConversation, Operation, PromptOptions, PromptPart, QueuedPrompt,
        RecordState, ResumeOptions, SessionFilter, SessionInfo, SessionMetadata, SessionMetrics, SessionRecord,
        SessionRemains, SessionSettings, SessionSnapshot, SessionState, SessionStatus, SupervisedProcesses, Turn,
        TurnEnd, TurnUsage,
    },
    workspace::{
        ChangedFile, WorkspaceDiff, WorkspaceInfo, WorkspaceKind, WorkspaceStep, WorkspaceStore, workspace_source,
    },
};
#[doc(hidden)]
pub use ipc_protocol::ConfigSetting;
