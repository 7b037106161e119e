//! Sessions that outlive their processes, and their managers.

mod beginning;
mod commands;
mod crashing;
mod driving;
mod ending;
mod keeping;
mod place;
mod suspending;
mod visiting;
mod workspaces;

const FAKE: &str = env!("CARGO_BIN_EXE_fake-agent");
