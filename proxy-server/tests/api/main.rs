//! The API as its clients see it: requests through the router, to a manager with the fake agent.

mod configuration;
mod document;
mod durable_streams;
#[cfg(feature = "acp")]
mod editor;
mod events;
mod holds;
mod idempotency;
mod instances;
mod leaving;
mod lists;
mod metadata;
mod metrics;
mod policy;
mod processes;
mod queue;
mod receipts;
mod slow_readers;
mod sockets;
mod streams;
mod support;
mod terminal_sockets;
#[cfg(feature = "otlp")]
mod traces;

agent_proxy_sdk::test_child!();
