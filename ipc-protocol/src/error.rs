//! Errors that cross the wire, and the text of an error with all its causes.

use std::{error::Error, fmt, io, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{Receipt, errno::is_out_of_descriptors};

/// Text of an error and of its sources, outermost first: `starting the agent failed: Permission denied`.
///
/// For the places where an error leaves the program: a log line, an event, a problem object, the wire. Everywhere else errors
/// keep their source, and their own text does not repeat it.
#[derive(Clone, Copy, Debug)]
pub struct ErrorChain<'a>(pub &'a (dyn Error + 'static));

impl fmt::Display for ErrorChain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut last = self.0.to_string();
        f.write_str(&last)?;
        let mut next = self.0.source();
        while let Some(error) = next {
            let text = error.to_string();
            // Errors of other crates often repeat their source.
            if !last.ends_with(&text) {
                write!(f, ": {text}")?;
            }
            (last, next) = (text, error.source());
        }
        Ok(())
    }
}

/// Underlying error, to keep as a source. Shared, since one failure is reported to many callers.
#[derive(Clone)]
pub struct ErrorCause(Arc<dyn Error + Send + Sync>);

impl ErrorCause {
    /// Takes an error; or a text, where the error itself is in another process.
    pub fn new(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(error.into().into())
    }
}

impl fmt::Debug for ErrorCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for ErrorCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl Error for ErrorCause {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

/// What was searched for a program whose environment has no PATH, or an empty one, in [`WireError::ProgramNotFound`].
pub const EMPTY_PATH: &str = "PATH, which is empty";

/// Failure of a request to a proxy or the fork server.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq, Serialize, Deserialize)]
pub enum WireError {
    /// The program does not exist.
    #[error("program {program:?} was not found in {searched}: install it, or give its full path")]
    ProgramNotFound {
        /// Program as requested.
        program: String,
        /// Value of PATH that was searched, or `the file system` for a path.
        searched: String,
    },
    /// The working directory does not exist or cannot be used.
    #[error("working directory {cwd:?} cannot be used ({reason}): create it, or name another")]
    CwdMissing {
        /// Directory as requested.
        cwd: String,
        /// Error of the system.
        reason: String,
    },
    /// The program exists but cannot be started.
    #[error("starting {program:?} failed at {step}: {reason}{}", if step == "exec" { ": it has to be a program, which you may execute" } else { "" })]
    Spawn {
        /// Full path of the program.
        program: String,
        /// System call that failed.
        step: String,
        /// Error of the system.
        reason: String,
    },
    /// No file descriptor is left.
    #[error("out of file descriptors while {operation}: raise the limit (ulimit -n) or run fewer sessions")]
    FdsExhausted {
        /// Operation in progress.
        operation: String,
    },
    /// A turn is running.
    #[error("a turn is running: wait for it, queue the prompt, or steer it")]
    Busy,
    /// The agent does not support the operation.
    #[error("agent {agent:?} cannot {operation}")]
    Unsupported {
        /// Catalog id of the agent.
        agent: String,
        /// Operation that was requested.
        operation: String,
    },
    /// The session has no such process.
    #[error("the session has no process {pid}: list its processes")]
    UnknownProcess {
        /// Pid that was requested.
        pid: u32,
    },
    /// No such permission request is open.
    #[error("no permission request {id:?} is open: it was answered, or its turn has ended")]
    UnknownPermission {
        /// Id that was answered.
        id: String,
    },
    /// The permission request has no such option.
    #[error("permission request {id:?} has no option {option:?}: it has {options:?}")]
    UnknownOption {
        /// Id of the request.
        id: String,
        /// Option that was chosen.
        option: String,
        /// Options that exist.
        options: Vec<String>,
    },
    /// The operation took too long.
    #[error("{operation} took longer than {after_ms} ms")]
    Deadline {
        /// Operation in progress.
        operation: String,
        /// Deadline in milliseconds.
        after_ms: u64,
    },
    /// The agent has died.
    #[error("the agent has died: {reason}")]
    AgentDied {
        /// Description of its end.
        reason: String,
    },
    /// The conversation to continue is missing or broken.
    #[error("agent {agent:?} cannot go on with conversation {id:?}: {reason}")]
    NativeSessionMissing {
        /// Catalog id of the agent.
        agent: String,
        /// Agent's id of the conversation; `the most recent` where none was named.
        id: String,
        /// Message of the agent.
        reason: String,
    },
    /// The agent refused the request.
    #[error("agent {agent:?} refused: {reason}")]
    AgentRefused {
        /// Catalog id of the agent.
        agent: String,
        /// Message of the agent.
        reason: String,
    },
    /// The agent violated its protocol, or refused the handshake.
    #[error("agent {agent:?} broke its protocol: {reason}")]
    AgentProtocol {
        /// Catalog id of the agent.
        agent: String,
        /// Description of the violation.
        reason: String,
    },
    /// The other side violated this protocol.
    #[error("protocol error: {reason}")]
    Protocol {
        /// Description of the violation.
        reason: String,
    },
    /// The two sides are of different builds.
    #[error("protocol version {ours} here, {theirs} there: the child binary and the host must be of one build")]
    VersionMismatch {
        /// Version of this side.
        ours: u32,
        /// Version of the other side.
        theirs: u32,
    },
    /// Something outlived the kill.
    #[error("{}", match .0.doubt() {
        None => format!("{} processes survived the kill", .0.survivors.len()),
        Some(doubt) => format!("whether anything survived the kill is not provable: {doubt}"),
    })]
    Survivors(Box<Receipt>),
    /// A system call failed unexpectedly.
    #[error("{operation} failed: {reason}")]
    System {
        /// Operation that was tried.
        operation: String,
        /// Error of the system.
        reason: String,
    },
}

impl WireError {
    /// Converts the failure of `operation`, a system call's.
    pub fn system(operation: &str, error: &io::Error) -> Self {
        if is_out_of_descriptors(error) {
            return Self::FdsExhausted { operation: operation.to_owned() };
        }
        Self::System { operation: operation.to_owned(), reason: ErrorChain(error).to_string() }
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Layer {
        text: &'static str,
        #[source]
        source: Option<Box<Layer>>,
    }

    fn layers(texts: &[&'static str]) -> Option<Box<Layer>> {
        let (text, rest) = texts.split_first()?;
        Some(Box::new(Layer { text, source: layers(rest) }))
    }

    #[test]
    fn a_chain_names_each_cause_once() {
        let chain = |texts: &[&'static str]| ErrorChain(&*layers(texts).expect("an error")).to_string();
        assert_eq!(chain(&["starting failed"]), "starting failed");
        assert_eq!(chain(&["starting failed", "no file", "disk"]), "starting failed: no file: disk");
        assert_eq!(chain(&["starting failed: no file", "no file", "disk"]), "starting failed: no file: disk");
    }

    #[test]
    fn errors_of_the_system_are_classified() {
        for (errno, is_full) in [(Errno::MFILE, true), (Errno::NFILE, true), (Errno::NOENT, false)] {
            let error = WireError::system("testing", &errno.into());
            assert_eq!(matches!(error, WireError::FdsExhausted { .. }), is_full, "{error}");
        }
    }
}
