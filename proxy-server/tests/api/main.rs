//! The API as its clients see it: requests through the router, to a manager with the fake agent.

mod configuration;
mod document;
mod events;
mod lists;
mod metrics;
mod support;

agent_proxy_sdk::test_child!();
