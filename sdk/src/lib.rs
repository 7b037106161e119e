//! Runs AI coding agents in isolated sessions, and proves them gone.
//!
//! Every session runs in a process of its own. The [`ProxyManager`] lists, signals and ends each process that a session ever
//! started; the [`Receipt`] of a kill proves that nothing is left. The agent is Claude Code, Codex, OpenCode, Pi, Gemini CLI, any
//! agent that speaks ACP, or any command.
//!
//! ```no_run
//! use agent_proxy_sdk::{AgentSessionConfig, ChildProgram, Event, KillOptions, PromptMode, ProxyManager};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     // First of all: the manager starts this program again as its fork server.
//!     let token = agent_proxy_sdk::run_if_child();
//!     tokio::runtime::Runtime::new()?.block_on(hello(ChildProgram::Current(token)))
//! }
//!
//! async fn hello(child: ChildProgram) -> Result<(), Box<dyn std::error::Error>> {
//!     let manager = ProxyManager::builder(child).build().await?;
//!     let session = manager.start_session(AgentSessionConfig::new("command").with_command(["/bin/cat"])).await?;
//!     let mut events = session.subscribe();
//!     session.prompt("hello", PromptMode::Refuse).await?;
//!     while let Some(envelope) = events.next().await {
//!         if let Event::Text { text } = &envelope.event {
//!             print!("{text}");
//!             break;
//!         }
//!     }
//!     println!("{}", session.kill(KillOptions::default()).await?);
//!     manager.shutdown().await;
//!     Ok(())
//! }
//! ```
//!
//! | to do this | see |
//! |---|---|
//! | start, list, resume and end sessions | [`ProxyManager`], [`AgentSessionConfig`], [`config`] |
//! | prompt an agent and read what it says | [`SessionHandle`], [`Subscription`], [`events`], [`answers`] |
//! | decide what an agent may do | [`permissions`], [`limits`], [`isolation`] |
//! | look at processes and end them | [`processes`] |
//! | show an agent's own screen, and type there | [`terminal`] |
//! | run an agent of your own | [`catalog`]; [`adapter`] for a protocol that is new as well |
//! | keep sessions and events across restarts, bound them, watch them | [`ManagerBuilder`], [`host`] |
//! | test all that | `testing` |
//!
//! # Features
//!
//! `acp`, `catalog-files`, `opencode`, `sqlite`, `tls` and `websocket` are on by default.
//!
//! | feature | brings |
//! |---|---|
//! | `acp` | the Agent Client Protocol: Gemini CLI, Qwen Code, the ACP wrappers of others, any agent that speaks it |
//! | `catalog-files` | `catalog::ConfigDir`: agents, profiles and models in TOML files |
//! | `opencode` | OpenCode's own protocol, and an HTTP client |
//! | `sqlite` | state directories: sessions and events that outlive the program |
//! | `tls` | models over TLS whose key stays outside of a session with a network of its own |
//! | `websocket` | Codex with its screen beside its protocol |
//! | `testing` | the module `testing`: a manager and a fake agent for `cargo test` |
//!
//! # What to know
//!
//! Linux only. Calls need a tokio runtime with I/O and time. The manager and its sessions live as long as the runtime in which the manager
//! was built: calls after its end fail with [`Error::RuntimeEnded`]. Agents inherit nothing of this program's environment: give what they
//! need, `PATH` first, to [`ManagerBuilder::base_env`].

#[doc(inline)]
pub use proxy_manager::{
    AgentSessionConfig, ChildProgram, ChildToken, Envelope, Error, Event, KillOptions, ManagerBuilder, PermissionMode,
    Prompt, PromptMode, ProxyManager, Receipt, Result, SessionHandle, SessionId, Subscription,
};
#[doc(inline)]
pub use proxy_manager::{
    answers, config, events, host, isolation, limits, permissions, processes, replication, sessions, terminal,
    workspace,
};

#[doc(inline)]
pub use proxy_child::{run_if_child, run_if_child_with};

/// Agents, profiles and model configurations.
pub mod catalog {
    #[doc(inline)]
    pub use agents::{
        ApplyMethod, CatalogError, ContainerMount, DiscoveryCapabilities, DiscoverySpec, FileFormat, KeySource,
        LoadError, ModelSpec, ModelSpecs, PROTOCOLS, PerPlatform, PermissionConfig, PermissionSetting, ProcessMarks,
        ProfileContainer, ProfileError, ProfileLimits, ProfilePermissions, ProfileRule, ProfileSandbox,
        ProfileTimeouts, ResourceLimits, RowError, SessionConfig, StoredModel,
    };
    #[cfg(feature = "catalog-files")]
    #[doc(inline)]
    pub use agents::{ConfigDir, ConfigError, SaveMode};
    #[doc(inline)]
    pub use proxy_manager::catalog::*;
}

/// Interface between a proxy and the adapter of an agent's protocol, for protocols of your own: an [`Adapter`](adapter::Adapter) is
/// given to [`run_if_child_with`].
pub mod adapter {
    #[doc(inline)]
    pub use agents::{
        Action, Adapter, AdapterSetup, Adapters, HttpEvent, HttpPatience, HttpRequest, LineSplitter, ListedFile,
        MakeAdapter,
    };
    #[doc(inline)]
    pub use ipc_protocol::{
        AgentEndpoint, NativeResume, WireError,
        message::{AgentFact, RequestId},
    };
}

#[cfg(feature = "testing")]
pub mod testing;

#[cfg(feature = "testing")]
#[doc(hidden)]
pub use registry::before_main as __before_main;
