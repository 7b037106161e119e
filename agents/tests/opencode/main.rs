//! The OpenCode adapter: recorded conversations, hostile ones, and each of the protocol's traps.

#[path = "../common/calls.rs"]
mod calls;
mod hostile;
mod opening;
mod operations;
mod provision;
#[path = "../common/rendered.rs"]
mod rendered;
mod replay;
#[path = "../common/spoilt.rs"]
mod spoilt;
mod transcripts;
mod traps;
