//! The ACP adapter, from outside.

mod behaviour;
mod fake_agent;
mod hostile;
mod replay;
mod transcripts;
