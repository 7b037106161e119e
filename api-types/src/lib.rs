//! Plain data of the HTTP API of agent-proxy: what its clients send, and what they get.
//!
//! Server and clients share these types, so a client needs nothing of the server: it compiles wherever Rust does. Events, receipts and
//! configurations of sessions are in `ipc-protocol`.

pub mod api;
mod description;
mod escape_marks;
pub mod exit;
mod installed_agent;
mod permission_text;
mod printable;
mod problem;
mod process_details;
pub mod recorded_offset;
mod role;
mod session_info;
mod session_record;
mod suspension;
mod terminal_viewer;
mod workspace;

pub use self::{
    description::{
        AfterSuspension, AgentStatus, NativeConversation, OpenPermission, SessionMetadata, SessionRemains,
        SessionSettings, SessionState, SupervisedProcesses, TurnUsage,
    },
    escape_marks::{AgentPosition, EscapeMark, EscapeMarks},
    exit::ProgramExit,
    installed_agent::{AgentSupport, InstalledAgent},
    printable::{is_hidden, printable},
    problem::{KINDS, ProblemDetails, survivors_text},
    process_details::ProcessDetails,
    role::Role,
    session_info::{ProcessUse, PromptMode, QueuedPrompt, SessionInfo, SessionMetrics},
    session_record::{RecordState, SessionFilter, SessionRecord, SessionStatus},
    suspension::{ResumeOptions, SessionSnapshot},
    terminal_viewer::TerminalViewer,
    workspace::{ChangedFile, WorkspaceDiff, WorkspaceInfo},
};
