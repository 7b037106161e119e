//! The four kinds of process that the agent is told to start.

use std::collections::BTreeMap;

use crate::problem::Problem;

/// What the agent is told. It answers each line that starts a process with that process's pid.
pub(super) const PROMPT: &str = "\
spawn exec sleep 301
setsid exec sleep 302
daemon exec sleep 303
ignore-term exec sleep 304
say Done. They outlive this turn.";

/// The word of the prompt for each, and what it is.
const KINDS: [(&str, &str); 4] = [
    ("spawn", "a plain child"),
    ("setsid", "a setsid child"),
    ("daemon", "a double-fork daemon"),
    ("ignore-term", "one that ignores SIGTERM"),
];

/// Which process is which.
#[derive(Debug, PartialEq)]
pub(super) struct Kinds(BTreeMap<u32, &'static str>);

impl Kinds {
    /// From what the agent said.
    ///
    /// # Errors
    /// When one of the kinds was not started: the demo would show less than it promises.
    pub(super) fn from_answer(answer: &str) -> Result<Self, Problem> {
        let mut kinds = BTreeMap::new();
        for (word, what) in KINDS {
            let pid = answer.lines().find_map(|line| line.strip_prefix(word)?.trim().parse().ok());
            let pid =
                pid.ok_or_else(|| Problem::failed(format!("the agent did not start {what}; it said {answer:?}")))?;
            kinds.insert(pid, what);
        }
        Ok(Self(kinds))
    }

    /// What the process is, if it is one of those.
    pub(super) fn of(&self, pid: u32) -> Option<&'static str> {
        self.0.get(&pid).copied()
    }

    /// Every pid and what it is.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &'static str)> {
        self.0.iter().map(|(pid, what)| (*pid, *what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pids_are_read_from_the_answer() {
        let kinds = Kinds::from_answer("spawn 11\nsetsid 12\ndaemon 13\nignore-term 14\nDone.\n").expect("all there");
        assert_eq!((kinds.of(13), kinds.of(15)), (Some("a double-fork daemon"), None));
        assert!(Kinds::from_answer("spawn 11\nsetsid 12\ndaemon failed\nignore-term 14\n").is_err());
    }

    #[test]
    fn the_prompt_starts_each_kind() {
        for (word, _) in KINDS {
            assert!(PROMPT.lines().any(|line| line.starts_with(&format!("{word} "))), "{word}");
        }
    }
}
