//! Command `help`.

use api_types::ProblemDetails;

use crate::{
    args::{HelpArgs, help},
    command_failure::CommandFailure,
    term,
};

/// Prints the help of a command or a topic.
pub(super) fn run(args: &HelpArgs) -> Result<(), CommandFailure> {
    let page = help::page(&args.words).ok_or_else(|| {
        let name = args.words.join(" ");
        ProblemDetails::usage(format!("no command and no topic is called {name:?}: topics are {}", help::topics()))
    })?;
    if term::TermStyle::stdout().is_on() { term::out(page.ansi()) } else { term::out(page) }
}
