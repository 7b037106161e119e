//! Four kinds of process that the demo's agent starts.

use std::collections::BTreeMap;

use proxy_server::ProblemDetails;

/// Prompt for the agent. Its answer has the pid of each process it started, one a line.
pub(super) const PROMPT: &str = "\
spawn exec sleep 301
setsid exec sleep 302
daemon exec sleep 303
ignore-term exec sleep 304
say Done. They outlive this turn.";

/// Keyword in the prompt for each kind, and its description.
const KINDS: [(&str, &str); 4] = [
    ("spawn", "a plain child"),
    ("setsid", "a setsid child"),
    ("daemon", "a double-fork daemon"),
    ("ignore-term", "one that ignores SIGTERM"),
];

/// Kind of each started process, by pid.
#[derive(Debug, PartialEq)]
pub(super) struct DemoProcesses(BTreeMap<u32, &'static str>);

impl DemoProcesses {
    /// Parses the agent's answer.
    ///
    /// # Errors
    /// When a kind was not started: the demo would show less than it promises.
    pub(super) fn from_answer(answer: &str) -> Result<Self, ProblemDetails> {
        let mut kinds = BTreeMap::new();
        for (word, what) in KINDS {
            let pid = answer.lines().find_map(|line| line.strip_prefix(word)?.trim().parse().ok());
            let pid = pid
                .ok_or_else(|| ProblemDetails::failed(format!("the agent did not start {what}; it said {answer:?}")))?;
            kinds.insert(pid, what);
        }
        Ok(Self(kinds))
    }

    /// Returns the kind of a process, if it is one of these.
    pub(super) fn of(&self, pid: u32) -> Option<&'static str> {
        self.0.get(&pid).copied()
    }

    /// Iterates over all pids with their kinds.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &'static str)> {
        self.0.iter().map(|(pid, what)| (*pid, *what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pids_are_read_from_the_answer() {
        let kinds =
            DemoProcesses::from_answer("spawn 11\nsetsid 12\ndaemon 13\nignore-term 14\nDone.\n").expect("all there");
        assert_eq!((kinds.of(13), kinds.of(15)), (Some("a double-fork daemon"), None));
        assert!(DemoProcesses::from_answer("spawn 11\nsetsid 12\ndaemon failed\nignore-term 14\n").is_err());
    }

    #[test]
    fn the_prompt_starts_each_kind() {
        for (word, _) in KINDS {
            assert!(PROMPT.lines().any(|line| line.starts_with(&format!("{word} "))), "{word}");
        }
    }
}
