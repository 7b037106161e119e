//! Checks the file of a conversation where an agent keeps each in a file of JSON lines. Some agents continue silently
//! with the readable part of a broken file, or write to a file that they refuse to read.

use std::{
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use agents::AgentSpec;
use ipc_protocol::NativeResume;
use serde::de::IgnoredAny;

use super::{backup, family, native_file};
use crate::error::{Error, Result};

/// Families of agents that keep conversations this way.
const FAMILIES: [&str; 4] = ["claude", "codex", "gemini", "pi"];
/// Extension of such files. Gemini has older files with another one.
const EXTENSION: &str = "jsonl";
/// Bytes of a file that are checked: about a second, where the file is cached (63 MB took 53 ms, release).
const LARGEST: u64 = 1024 * 1024 * 1024;
/// Length in bytes at which a line is not read; the file is then left to the agent.
const LONGEST: u64 = 64 * 1024 * 1024;

/// File of a conversation to resume.
#[derive(Debug)]
pub(super) struct Lines {
    directory: PathBuf,
    agent: String,
    /// The agent's id of the conversation; `None` for the most recent one of `cwd`.
    id: Option<String>,
    cwd: String,
}

impl Lines {
    /// Plans the check for an agent of `spec`, which keeps the files in `directory` and works in `cwd`. `None` where
    /// there is nothing to check.
    pub(super) fn of(
        spec: &AgentSpec,
        resume: Option<&NativeResume>,
        directory: Option<&Path>,
        cwd: &str,
    ) -> Option<Self> {
        let (resume, directory) = (resume?, directory?.to_owned());
        let (agent, id, cwd) = (spec.id.clone(), resume.id.clone(), cwd.to_owned());
        FAMILIES.contains(&family(spec)).then_some(Self { directory, agent, id, cwd })
    }

    /// Checks the file. A missing or unreadable file is left to the agent. Blocks.
    ///
    /// # Errors
    /// [`Error::NativeSessionMissing`] if the file is broken.
    pub(super) fn check(&self) -> Result<()> {
        let file = || match &self.id {
            Some(id) => native_file::find(&self.directory, id),
            None => native_file::most_recent(&self.directory, &self.cwd),
        };
        let look = || match file()? {
            Some(path) if path.extension().is_some_and(|extension| extension == EXTENSION) => {
                Ok(broken(&path)?.map(|line| (path, line)))
            }
            _ => Ok(None),
        };
        match look() {
            Ok(None) => Ok(()),
            Ok(Some((path, line))) => {
                let reason = format!("its file {} is broken at line {line}", path.display());
                let id = self.id.clone().unwrap_or_else(|| "the most recent".to_owned());
                Err(Error::NativeSessionMissing { agent: self.agent.clone(), id, reason })
            }
            Err(error) => {
                let error: io::Error = error;
                tracing::debug!(id = ?self.id, %error, "failed to check a conversation's file");
                Ok(())
            }
        }
    }
}

/// Finds the line where a file is broken, counted from 1. A single broken line is tolerated: a killed agent leaves half
/// a line, and later output follows it. Two in a row are an error, and so is any in a file with at most one whole line,
/// which only identifies the conversation.
fn broken(path: &Path) -> io::Result<Option<usize>> {
    let mut file = BufReader::new(backup::open(path)?.take(LARGEST));
    // Broken lines: the first, and the last if no whole line followed it.
    let (mut first, mut before, mut whole) = (None, None, 0);
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        match (&mut file).take(LONGEST).read_until(b'\n', &mut line)? as u64 {
            0 => break,
            LONGEST => return Ok(None),
            _ => {}
        }
        match line.trim_ascii() {
            [] => {}
            line if serde_json::from_slice::<IgnoredAny>(line).is_ok() => {
                (before, whole) = (None, whole + 1);
            }
            _ if before.is_some() => return Ok(before),
            _ => {
                before = Some(number);
                first = first.or(before);
            }
        }
    }
    Ok(first.filter(|_| whole <= 1))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn found(contents: &str) -> Option<usize> {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join("c.jsonl");
        fs::write(&path, contents).expect("written");
        broken(&path).expect("read")
    }

    #[test]
    fn half_a_line_of_a_killed_agent_is_not_broken() {
        for whole in ["", "\n", "{}\n", "{}\n{}\n", "{}\n\n{}", "{}\n{}\n{\"a\":", "{}\n{\"a\":{\"b\":1}\n{}\n{\n{}\n"]
        {
            assert_eq!(found(whole), None, "{whole:?}");
        }
    }

    #[test]
    fn where_nothing_is_left_or_more_than_half_a_line_is_gone_it_is() {
        let nul = "\0".repeat(4096);
        for (contents, line) in [
            ("what\n", 1),
            ("{}\nwhat", 2),
            ("what\n{}\nwhat", 1),
            (&*format!("{{}}\n{nul}"), 2),
            ("{}\nwhat\n\nwhat\n{}\n{}\n", 2),
            ("{}\n{}\n{}\n{\n{\n", 4),
        ] {
            assert_eq!(found(contents), Some(line), "{contents:?}");
        }
    }

    #[test]
    fn a_large_one_is_looked_at_to_its_end() {
        let blank = format!("{}\n", " ".repeat(1024 * 1024)).repeat(65);
        assert_eq!(found(&format!("{{}}\n{blank}{{}}\nwhat\n{{}}\n")), None);
        assert_eq!(found(&format!("{{}}\n{blank}{{}}\nwhat\nwhat\n")), Some(68));
        let line = " ".repeat(65 * 1024 * 1024);
        assert_eq!(found(&format!("{{}}\nwhat\n{line}what\n")), None, "who knows what that is");
    }

    #[test]
    fn what_is_looked_at_is_what_is_gone_on_with() {
        let scratch = tempfile::tempdir().expect("a directory");
        let of = |family: &str, id: Option<&str>| {
            let mut spec = AgentSpec::new("x", "acp", &["x"]);
            spec.protocol_config = serde_json::json!({ "config": family });
            let resume = NativeResume { id: id.map(str::to_owned), fork: false };
            Lines::of(&spec, Some(&resume), Some(scratch.path()), "/wo\"rk")
        };
        let write = |name: &str, contents: &str| {
            let path = scratch.path().join(name);
            fs::write(&path, contents).expect("written");
            path
        };
        let is_broken = |lines: &Lines, path: &Path| match lines.check() {
            Err(Error::NativeSessionMissing { agent, id, reason }) => {
                assert_eq!((agent.as_str(), id), ("x", lines.id.clone().unwrap_or("the most recent".into())));
                assert_eq!(reason, format!("its file {} is broken at line 2", path.display()));
            }
            other => panic!("{other:?}"),
        };
        assert!(of("opencode", Some("n-1")).is_none());
        let named = of("codex", Some("n-1")).expect("one");
        assert!(named.check().is_ok(), "the agent says that it is not there");
        let other = write("n-1.json", "{\n\n");
        assert!(named.check().is_ok(), "not of lines");
        fs::remove_file(other).expect("removed");
        let path = write("n-1.jsonl", "{\"cwd\":\"/elsewhere\"}\nwhat\n");
        is_broken(&named, &path);
        let recent = of("codex", None).expect("one");
        assert!(recent.check().is_ok(), "of another directory");
        let path = write("n-2.jsonl", "{\"cwd\":\"/wo\\\"rk\"}\nwhat\n");
        is_broken(&recent, &path);
        fs::write(&path, "{\"cwd\":\"/wo\\\"rk\"}\n").expect("written");
        assert!(recent.check().is_ok(), "it is whole");
    }
}
