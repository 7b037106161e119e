//! The Claude Code adapter, from outside.

mod behaviour;
#[path = "../common/calls.rs"]
mod calls;
mod hostile;
mod provision;
mod replay;
mod transcripts;
mod traps;
