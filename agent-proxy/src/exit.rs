//! The exit codes, in one table.

use std::process::ExitCode;

/// How a run of the program ended, as its exit code says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Exit {
    /// What was asked for was done.
    Done = 0,
    /// It failed, for a reason that has no code of its own. Of `leaktest`: the command leaks.
    Failed = 1,
    /// The command line, or a value in it, makes no sense.
    Usage = 2,
    /// There is no such session, process, agent, profile, model configuration, permission request or conversation.
    NotFound = 3,
    /// No daemon answers on the socket.
    NoDaemon = 4,
    /// Something outlived a kill.
    Survivors = 5,
    /// The agent, or this system, cannot do that.
    Unsupported = 6,
    /// It took too long.
    Deadline = 7,
    /// Refused: a limit, a permission, a duplicate, or busy.
    Refused = 8,
    /// Interrupted by Ctrl-C, or the turn was aborted.
    Interrupted = 130,
}

/// Every exit code, with its meaning in a few words: what `--help` prints.
pub const TABLE: [(Exit, &str); 10] = [
    (Exit::Done, "done"),
    (Exit::Failed, "failed; of leaktest: it leaks"),
    (Exit::Usage, "usage: the command line or a value in it makes no sense"),
    (Exit::NotFound, "no such session, process, agent, profile, model or conversation"),
    (Exit::NoDaemon, "no daemon answers on the socket"),
    (Exit::Survivors, "survivors: something outlived a kill"),
    (Exit::Unsupported, "unsupported by the agent or this system"),
    (Exit::Deadline, "deadline passed"),
    (Exit::Refused, "refused: limit, permission, duplicate, busy, suspended or handed over"),
    (Exit::Interrupted, "interrupted"),
];

impl Exit {
    /// The number.
    pub fn code(self) -> u8 {
        self as u8
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// The table as text, for `--help`.
pub(crate) fn table() -> String {
    let mut text = String::from("Exit codes:\n");
    for (exit, meaning) in TABLE {
        text.push_str(&format!("  {:>3}  {meaning}\n", exit.code()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_the_contract() {
        let codes: Vec<u8> = TABLE.iter().map(|(exit, _)| exit.code()).collect();
        assert_eq!(codes, [0, 1, 2, 3, 4, 5, 6, 7, 8, 130]);
        assert!(table().contains("130  interrupted"), "{}", table());
    }
}
