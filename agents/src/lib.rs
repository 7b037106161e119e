//! Which agents there are, and how each protocol is spoken.
//!
//! [`Catalog`] is data: one [`AgentSpec`] per agent. An [`Adapter`] is a pure state machine for one *protocol*: bytes and
//! requests in, [`Action`]s out. It does no I/O, so it is tested on recorded transcripts; the proxy owns the pipes.

pub mod acp;
mod adapter;
mod catalog;
pub mod command;
mod lines;

pub use adapter::{Action, Adapter, AdapterSetup, Adapters, Make};
pub use catalog::{AgentSpec, Catalog, CatalogError};
pub use lines::Lines;
