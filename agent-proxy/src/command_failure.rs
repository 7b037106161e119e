//! Ends of commands that are not a success.

use api_types::{ProblemDetails, ProgramExit};
#[cfg(feature = "engine")]
use proxy_manager::Error;

/// Reason why a command did not end with [`ProgramExit::Done`].
#[derive(Debug)]
pub(crate) enum CommandFailure {
    /// A problem to report.
    Problem(Box<ProblemDetails>),
    /// The reader of our output has closed it: end silently.
    Closed,
    /// Everything is reported already; only the exit code remains.
    Exit(ProgramExit),
    /// The program in the terminal has ended with this code.
    Program(u8),
}

impl From<ProblemDetails> for CommandFailure {
    fn from(problem: ProblemDetails) -> Self {
        Self::Problem(Box::new(problem))
    }
}

#[cfg(feature = "engine")]
impl From<Error> for CommandFailure {
    fn from(error: Error) -> Self {
        ProblemDetails::from(error).into()
    }
}
