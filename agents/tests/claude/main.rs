//! The Claude Code adapter, from outside.

mod behaviour;
#[path = "../common/calls.rs"]
mod calls;
mod hostile;
mod provision;
#[path = "../common/rendered.rs"]
mod rendered;
mod replay;
#[path = "../common/spoilt.rs"]
mod spoilt;
mod transcripts;
mod traps;
