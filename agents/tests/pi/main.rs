//! The Pi adapter, from outside.

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
pub(crate) const MAKE: agents::MakeAdapter = agents::pi::make;

/// Whether each call is over when its turn is.
pub(crate) const CALLS_END_WITH_TURN: bool = true;

/// Where the reviewed snapshots are.
pub(crate) const SNAPSHOTS: &str = "../pi/snapshots";

/// The recordings, each of the real agent with a scripted model; `legacy` is an old one.
pub(crate) const TRANSCRIPTS: [(&str, &str); 17] = [
    ("basic", include_str!("../transcripts/pi-basic.jsonl")),
    ("files", include_str!("../transcripts/pi-files.jsonl")),
    ("permission", include_str!("../transcripts/pi-permission.jsonl")),
    ("questions", include_str!("../transcripts/pi-questions.jsonl")),
    ("abort", include_str!("../transcripts/pi-abort.jsonl")),
    ("steer", include_str!("../transcripts/pi-steer.jsonl")),
    ("errors", include_str!("../transcripts/pi-errors.jsonl")),
    ("operations", include_str!("../transcripts/pi-operations.jsonl")),
    ("most-recent", include_str!("../transcripts/pi-most-recent.jsonl")),
    ("fork-recent", include_str!("../transcripts/pi-fork-recent.jsonl")),
    ("missing", include_str!("../transcripts/pi-missing.jsonl")),
    ("missing-file", include_str!("../transcripts/pi-missing-file.jsonl")),
    ("missing-recent", include_str!("../transcripts/pi-missing-recent.jsonl")),
    ("ephemeral", include_str!("../transcripts/pi-ephemeral.jsonl")),
    ("thinking-too-hard", include_str!("../transcripts/pi-thinking-too-hard.jsonl")),
    ("legacy", include_str!("../transcripts/pi-legacy.jsonl")),
    ("legacy-permission", include_str!("../transcripts/pi-legacy-permission.jsonl")),
];

pub(crate) fn transcript(name: &str) -> &'static str {
    TRANSCRIPTS.iter().find(|(known, _)| *known == name).map(|(_, transcript)| *transcript).expect("a recording")
}
