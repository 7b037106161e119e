//! Catalog of agents, and one adapter for each protocol.
//!
//! [`Catalog`] is data: one [`AgentSpec`] per agent. An [`Adapter`] is a pure state machine for one *protocol*: bytes and
//! requests in, [`Action`]s out. It does no I/O, so it is tested on recorded transcripts; the proxy owns the pipes.
//! [`conversations`] and [`directory_files`] are for the host, and block on the file system.

#![cfg_attr(
    not(all(feature = "acp", feature = "opencode")),
    expect(dead_code, reason = "the kit serves the adapters that are left out too")
)]

#[cfg(feature = "acp")]
pub mod acp;
mod adapter;
mod catalog;
pub mod claude;
pub mod codex;
pub mod command;
#[cfg(feature = "catalog-files")]
mod config_dir;
pub mod conversations;
pub mod directory_files;
pub mod discovery;
mod family;
mod kit;
pub mod marks;
mod model_config;
#[cfg(feature = "opencode")]
pub mod opencode;
pub mod permission;
pub mod pi;
mod prices;
mod profile;
pub mod provision;
mod terminal;
mod tried;
mod uri;

pub use adapter::{
    Action, Adapter, AdapterSetup, Adapters, HttpEvent, HttpPatience, HttpRequest, ListedFile, MakeAdapter,
};
#[cfg(feature = "catalog-files")]
pub use catalog::schema;
pub use catalog::{
    AgentSpec, ApplyMethod, Catalog, CatalogError, ContainerMount, DiscoveryCapabilities, DiscoverySpec, FileFormat,
    HomeFile, HomeFiles, LoadError, ModelSpec, ModelSpecs, PROTOCOLS, PerPlatform, PermissionConfig, PermissionSetting,
    ProcessMarks, ResourceLimits, RowError, SessionConfig,
};
#[cfg(feature = "catalog-files")]
pub use config_dir::{ConfigDir, ConfigError, SaveMode};
pub use kit::lines::LineSplitter;
pub use model_config::{KeySource, ModelApi, ModelConfig, Secret, StoredModel};
pub use prices::{ModelPrice, PriceError, PriceTable};
pub use profile::{
    Profile, ProfileContainer, ProfileError, ProfileLimits, ProfilePermissions, ProfileRule, ProfileSandbox,
    ProfileTimeouts, Profiles,
};
pub use terminal::{PROTOCOL as TERMINAL_PROTOCOL, events_of_report};
pub use tried::KnownVersions;

/// Result of an adapter.
pub type Result<T, E = ipc_protocol::WireError> = std::result::Result<T, E>;
