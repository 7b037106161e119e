//! Check of a conversation's file of JSON lines. Some agents continue silently with the readable part of a broken file, or write to a
//! file that they refuse to read.

use std::{
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use serde::de::IgnoredAny;

use super::{DamagedConversation, ResumedConversation, search};

/// Extension of such files. Gemini has older files with another one.
const EXTENSION: &str = "jsonl";
/// Bytes of a file that are checked: about a second, where the file is cached (63 MB took 53 ms, release).
const LARGEST: u64 = 1024 * 1024 * 1024;
/// Length in bytes at which a line is not read; the file is then left to the agent.
const LONGEST: u64 = 64 * 1024 * 1024;

impl ResumedConversation {
    /// Checks the conversation's file, if each conversation is a file of JSON lines. A missing or unreadable file is left to the agent.
    ///
    /// # Errors
    /// The damage, if the file is broken.
    pub fn check_lines(&self) -> Result<(), DamagedConversation> {
        match self.broken_line() {
            Ok(None) => Ok(()),
            Ok(Some((path, line))) => Err(self.damaged("file", &path, &format!("broken at line {line}"))),
            Err(error) => {
                tracing::debug!(id = ?self.id, %error, "failed to check a conversation's file");
                Ok(())
            }
        }
    }

    /// Finds the conversation's file and the line where it is broken.
    fn broken_line(&self) -> io::Result<Option<(PathBuf, usize)>> {
        let Some(files) = self.location.files().filter(|_| self.location.has_line_files()) else { return Ok(None) };
        let path = match &self.id {
            Some(id) => search::find_conversation(files, id)?,
            None => search::most_recent(files, &self.cwd)?,
        };
        match path.filter(|path| path.extension().is_some_and(|extension| extension == EXTENSION)) {
            Some(path) => Ok(broken(&path)?.map(|line| (path, line))),
            None => Ok(None),
        }
    }
}

/// Finds the line where a file is broken, counted from 1. A single broken line is tolerated: a killed agent leaves half
/// a line, and later output follows it. Two in a row are an error, and so is any in a file with at most one whole line,
/// which only identifies the conversation.
fn broken(path: &Path) -> io::Result<Option<usize>> {
    let mut file = BufReader::new(search::open(path)?.take(LARGEST));
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

    use ipc_protocol::NativeResume;

    use super::*;
    use crate::{AgentSpec, conversations::ConversationLocation};

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
        let below = scratch.path().join("sessions");
        fs::create_dir(&below).expect("made");
        let home = fs::canonicalize(scratch.path()).expect("there");
        let of = |family: &str, variable: &str, id: Option<&str>| {
            let mut spec = AgentSpec::new("x", "acp", &["x"]);
            spec.protocol_config = serde_json::json!({ "config": family });
            let env = [(variable, &*home.to_string_lossy())].into_iter().collect();
            let resume = NativeResume { id: id.map(str::to_owned), fork: false };
            let location = ConversationLocation::new(&spec, &env, Path::new("/w"));
            ResumedConversation::new(&spec, &resume, "/wo\"rk", location)
        };
        let write = |name: &str, contents: &str| {
            let path = home.join("sessions").join(name);
            fs::write(&path, contents).expect("written");
            path
        };
        let is_broken = |resumed: &ResumedConversation, path: &Path| {
            let damaged = resumed.check_lines().expect_err("broken");
            let id = resumed.id.clone().unwrap_or("the most recent".into());
            let reason = format!("its file {} is broken at line 2", path.display());
            assert_eq!(damaged, DamagedConversation { agent: "x".into(), id, reason });
        };
        assert!(!of("opencode", "XDG_DATA_HOME", Some("n-1")).needs_disk());
        let named = of("codex", "CODEX_HOME", Some("n-1"));
        assert!(named.needs_disk() && named.check_lines().is_ok(), "the agent says that it is not there");
        let other = write("n-1.json", "{\n\n");
        assert!(named.check_lines().is_ok(), "not of lines");
        fs::remove_file(other).expect("removed");
        let path = write("n-1.jsonl", "{\"cwd\":\"/elsewhere\"}\nwhat\n");
        is_broken(&named, &path);
        let recent = of("codex", "CODEX_HOME", None);
        assert!(recent.check_lines().is_ok(), "of another directory");
        let path = write("n-2.jsonl", "{\"cwd\":\"/wo\\\"rk\"}\nwhat\n");
        is_broken(&recent, &path);
        fs::write(&path, "{\"cwd\":\"/wo\\\"rk\"}\n").expect("written");
        assert!(recent.check_lines().is_ok(), "it is whole");
    }
}
