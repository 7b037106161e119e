//! The OpenCode adapter: recorded conversations, hostile ones, and each of the protocol's traps.

#[path = "../common/calls.rs"]
mod calls;
mod hostile;
mod opening;
mod operations;
mod provision;
mod replay;
#[path = "../common/spoilt.rs"]
mod spoilt;
mod transcripts;
mod traps;
