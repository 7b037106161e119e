//! The ACP adapter, from outside.

mod behaviour;
#[path = "../common/calls.rs"]
mod calls;
mod fake_agent;
mod hostile;
mod opening;
mod operations;
mod replay;
#[path = "../common/spoilt.rs"]
mod spoilt;
mod transcripts;
mod traps;
