//! The ACP adapter, from outside.

#[path = "../common/actions.rs"]
mod actions;
mod behaviour;
#[path = "../common/calls.rs"]
mod calls;
mod fake_agent;
mod hostile;
mod opening;
mod operations;
#[path = "../common/rendered.rs"]
mod rendered;
mod replay;
#[path = "../common/spoilt.rs"]
mod spoilt;
mod transcripts;
mod traps;
