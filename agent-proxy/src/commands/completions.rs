//! Command `completions`.

use crate::{
    args::{self, CompletionsArgs},
    problem::CommandFailure,
    term,
};

/// Prints a completion script.
pub(super) fn run(args: &CompletionsArgs) -> Result<(), CommandFailure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut args::command(), "agent-proxy", &mut script);
    term::out(String::from_utf8_lossy(&script))
}
