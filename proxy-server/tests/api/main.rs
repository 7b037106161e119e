//! The API as its clients see it: requests through the router, to a manager with the fake agent.

mod events;
mod metrics;
mod support;

agent_proxy_sdk::test_child!();
