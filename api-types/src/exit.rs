//! Exit codes of the program.

use std::process::ExitCode;

/// Result of a run of the program, as its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ProgramExit {
    /// The command succeeded.
    Done = 0,
    /// The command failed, for a reason without a code of its own. For `leaktest`: the tested command leaks.
    Failed = 1,
    /// The command line, or a value in it, is invalid.
    Usage = 2,
    /// The session, process, agent, its program, profile, model configuration, permission request or conversation
    /// does not exist.
    NotFound = 3,
    /// No daemon answers on the socket.
    NoDaemon = 4,
    /// Processes survived a kill.
    Survivors = 5,
    /// The agent, or this system, does not support the operation.
    Unsupported = 6,
    /// A deadline passed.
    Deadline = 7,
    /// The request was refused: a limit, a permission, a duplicate, or busy.
    Refused = 8,
    /// Ctrl-C interrupted the command, or the turn was aborted.
    Interrupted = 130,
}

/// All exit codes, each with its meaning in a few words, as printed by `--help`.
pub const TABLE: [(ProgramExit, &str); 10] = [
    (ProgramExit::Done, "done"),
    (ProgramExit::Failed, "failed; of leaktest: it leaks"),
    (ProgramExit::Usage, "usage: the command line or a value in it makes no sense"),
    (ProgramExit::NotFound, "no such session, process, agent, program, profile, model or conversation"),
    (ProgramExit::NoDaemon, "no daemon answers on the socket"),
    (ProgramExit::Survivors, "survivors: something outlived a kill"),
    (ProgramExit::Unsupported, "unsupported by the agent or this system"),
    (ProgramExit::Deadline, "deadline passed"),
    (ProgramExit::Refused, "refused: limit, permission, duplicate, busy, suspended or handed over"),
    (ProgramExit::Interrupted, "interrupted"),
];

impl ProgramExit {
    /// Returns the result with this number.
    pub fn from_code(code: i32) -> Option<Self> {
        TABLE.iter().map(|(exit, _)| *exit).find(|exit| i32::from(exit.code()) == code)
    }

    /// Returns the number.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// Returns the worse of two results of one command: survivors before anything else, then what failed, then what
    /// was refused.
    pub fn worse(self, other: Self) -> Self {
        let rank = |exit| match exit {
            Self::Done => 0,
            Self::NotFound => 1,
            Self::Usage => 2,
            Self::Refused => 3,
            Self::Unsupported => 4,
            Self::Failed => 5,
            Self::Deadline => 6,
            Self::NoDaemon => 7,
            Self::Interrupted => 8,
            Self::Survivors => 9,
        };
        if rank(other) > rank(self) { other } else { self }
    }
}

impl From<ProgramExit> for ExitCode {
    fn from(exit: ProgramExit) -> Self {
        Self::from(exit.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survivors_are_worst() {
        use ProgramExit::{Done, NotFound, Refused, Survivors};
        assert_eq!(Done.worse(NotFound).worse(Refused).worse(Done), Refused);
        assert!(
            TABLE.iter().all(|(exit, _)| exit.worse(Survivors) == Survivors && Survivors.worse(*exit) == Survivors)
        );
    }

    #[test]
    fn the_table_is_the_contract() {
        let codes: Vec<u8> = TABLE.iter().map(|(exit, _)| exit.code()).collect();
        assert_eq!(codes, [0, 1, 2, 3, 4, 5, 6, 7, 8, 130]);
    }
}
