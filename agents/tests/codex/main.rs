//! The Codex adapter, from outside.

#[path = "../common/actions.rs"]
mod actions;
mod behaviour;
#[path = "../common/calls.rs"]
mod calls;
mod hostile;
mod provision;
#[path = "../common/recorded.rs"]
mod recorded;
#[path = "../common/rendered.rs"]
mod rendered;
#[path = "../common/spoilt.rs"]
mod spoilt;
#[path = "../common/transcripts.rs"]
mod transcripts;
mod traps;

/// How the adapter is made.
pub(crate) const MAKE: agents::MakeAdapter = agents::codex::make;

/// Whether each call is over when its turn is.
pub(crate) const CALLS_END_WITH_TURN: bool = false;

/// Where the reviewed snapshots are.
pub(crate) const SNAPSHOTS: &str = "../codex/snapshots";

/// The recordings, each of the real agent with a scripted model.
pub(crate) const TRANSCRIPTS: [(&str, &str); 15] = [
    ("basic", include_str!("../transcripts/codex-basic.jsonl")),
    ("files", include_str!("../transcripts/codex-files.jsonl")),
    ("permission", include_str!("../transcripts/codex-permission.jsonl")),
    ("plan", include_str!("../transcripts/codex-plan.jsonl")),
    ("sub-agent", include_str!("../transcripts/codex-sub-agent.jsonl")),
    ("abort", include_str!("../transcripts/codex-abort.jsonl")),
    ("steer", include_str!("../transcripts/codex-steer.jsonl")),
    ("errors", include_str!("../transcripts/codex-errors.jsonl")),
    ("operations", include_str!("../transcripts/codex-operations.jsonl")),
    ("most-recent", include_str!("../transcripts/codex-most-recent.jsonl")),
    ("fork", include_str!("../transcripts/codex-fork.jsonl")),
    ("missing", include_str!("../transcripts/codex-missing.jsonl")),
    ("missing-recent", include_str!("../transcripts/codex-missing-recent.jsonl")),
    ("ephemeral", include_str!("../transcripts/codex-ephemeral.jsonl")),
    ("output", include_str!("../transcripts/codex-output.jsonl")),
];

pub(crate) fn transcript(name: &str) -> &'static str {
    TRANSCRIPTS.iter().find(|(known, _)| *known == name).map(|(_, transcript)| *transcript).expect("a recording")
}
