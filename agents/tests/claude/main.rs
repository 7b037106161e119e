//! The Claude Code adapter, from outside.

mod behaviour;
#[path = "../common/calls.rs"]
mod calls;
mod hostile;
mod provision;
mod replay;
#[path = "../common/spoilt.rs"]
mod spoilt;
mod transcripts;
mod traps;
