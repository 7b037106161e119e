//! Diffs of tool calls, in one shape: [`FileDiff`]. Agents tell whole files, replaced parts of them, or unified diffs.
//!
//! A call may tell its diff more than once: while its input arrives, with its permission request, with its result. [`CallDiffs`] emits
//! one that is new, and drops a repetition. A diff is bounded: texts beyond the bound are cut, and the diff says by how much.

use std::{
    collections::hash_map::DefaultHasher,
    hash::{Hash, Hasher},
};

use ipc_protocol::{DiffHunk, Event, FileChange, FileDiff};

use super::{bounded_map::BoundedMap, bounds::MAX_ID};
use crate::Action;

/// Most bytes of all texts of a diff.
pub(crate) const MAX_DIFF: usize = 256 * 1024;
/// Most hunks of a diff.
const MAX_HUNKS: usize = 512;
/// Most files of a call whose diffs are emitted.
const MAX_FILES: usize = 256;
/// Longest path, in bytes.
const MAX_PATH: usize = 4096;
/// Lines that are left around a change where whole files are told.
const CONTEXT: usize = 3;

/// Change of one file, as an adapter finds it in what its agent tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FoundDiff {
    pub(crate) path: String,
    pub(crate) change: Option<FileChange>,
    pub(crate) moved_to: Option<String>,
    pub(crate) hunks: Vec<DiffHunk>,
}

impl FoundDiff {
    /// Makes the diff of a file whose whole text is known before and after the change; `None` for a file that did not exist, or does
    /// not any more. Lines that are the same at both ends are left out, but for some around the change.
    pub(crate) fn whole(path: &str, old: Option<&str>, new: Option<&str>) -> Self {
        let change = match (old, new) {
            (None, Some(_)) => FileChange::Created,
            (Some(_), None) => FileChange::Deleted,
            _ => FileChange::Modified,
        };
        let hunk = match (old, new) {
            (Some(old), Some(new)) => trimmed(old, new),
            _ => DiffHunk {
                old_text: old.map(str::to_owned),
                new_text: new.map(str::to_owned),
                old_line: old.map(|_| 1),
                new_line: new.map(|_| 1),
            },
        };
        Self { path: path.to_owned(), change: Some(change), moved_to: None, hunks: vec![hunk] }
    }

    /// Makes the diff of a file from texts before and after the change, of which nobody says whether they are all of the file.
    pub(crate) fn told(path: &str, old: Option<&str>, new: Option<&str>) -> Self {
        let mut diff = Self::whole(path, old, new);
        for hunk in &mut diff.hunks {
            (hunk.old_line, hunk.new_line) = (None, None);
        }
        diff
    }

    /// Makes the diff of a file of which parts are replaced.
    pub(crate) fn replaced<'a>(path: &str, parts: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let hunk = |(old, new): (&str, &str)| DiffHunk {
            old_text: Some(old.to_owned()),
            new_text: Some(new.to_owned()),
            ..DiffHunk::default()
        };
        let hunks = parts.into_iter().map(hunk).collect();
        Self { path: path.to_owned(), change: Some(FileChange::Modified), moved_to: None, hunks }
    }

    /// Makes the diff of a file that is written, of which nobody knows what it was before.
    pub(crate) fn written(path: &str, new: &str) -> Self {
        let hunk = DiffHunk { new_text: Some(new.to_owned()), new_line: Some(1), ..DiffHunk::default() };
        Self { path: path.to_owned(), change: None, moved_to: None, hunks: vec![hunk] }
    }

    /// Makes a diff from the hunks of a unified one. Headers of files are skipped; `None` if it has no hunk.
    pub(crate) fn unified(path: &str, change: Option<FileChange>, text: &str) -> Option<Self> {
        let hunks = unified_hunks(text);
        (!hunks.is_empty()).then(|| Self { path: path.to_owned(), change, moved_to: None, hunks })
    }

    /// Cuts the texts to the bound. Returns the number of bytes that are left out.
    fn cut(&mut self) -> u64 {
        let len = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let all: usize = self.hunks.iter().map(|hunk| len(&hunk.old_text) + len(&hunk.new_text)).sum();
        let mut room = MAX_DIFF;
        self.hunks.truncate(MAX_HUNKS);
        for hunk in &mut self.hunks {
            // Both texts get their part of the room, so that neither is lost for the other.
            for (text, room_of_text) in [(&mut hunk.old_text, room / 2), (&mut hunk.new_text, room)] {
                if let Some(text) = text {
                    let kept = text.floor_char_boundary(room_of_text.min(room));
                    text.truncate(kept);
                    room -= kept;
                }
            }
        }
        let kept: usize = self.hunks.iter().map(|hunk| len(&hunk.old_text) + len(&hunk.new_text)).sum();
        (all - kept) as u64
    }
}

/// The hunk between the common lines at the beginning and the end of two texts.
fn trimmed(old: &str, new: &str) -> DiffHunk {
    let (old_lines, new_lines): (Vec<&str>, Vec<&str>) =
        (old.split_inclusive('\n').collect(), new.split_inclusive('\n').collect());
    let head = old_lines.iter().zip(&new_lines).take_while(|(old, new)| old == new).count();
    let (old_rest, new_rest) = (&old_lines[head..], &new_lines[head..]);
    let tail = old_rest.iter().rev().zip(new_rest.iter().rev()).take_while(|(old, new)| old == new).count();
    let skipped = head.saturating_sub(CONTEXT);
    let part = |lines: &[&str]| {
        let to = (lines.len() - tail + CONTEXT).min(lines.len());
        lines[skipped..to].concat()
    };
    let line = Some(skipped as u64 + 1);
    DiffHunk { old_text: Some(part(&old_lines)), new_text: Some(part(&new_lines)), old_line: line, new_line: line }
}

/// Parses the hunks of a unified diff.
fn unified_hunks(text: &str) -> Vec<DiffHunk> {
    let mut hunks: Vec<DiffHunk> = Vec::new();
    let mut lines = text.split_inclusive('\n').peekable();
    // Lines of each side that the header announces and that have not come.
    let (mut old_left, mut new_left) = (0_u64, 0_u64);
    while let Some(line) = lines.next() {
        if old_left == 0 && new_left == 0 {
            if let Some(((old_line, old_count), (new_line, new_count))) = hunk_header(line) {
                (old_left, new_left) = (old_count, new_count);
                let is_there = |count: u64, line: u64| (count > 0).then_some(line);
                hunks.push(DiffHunk {
                    old_text: is_there(old_count, old_line).map(|_| String::new()),
                    new_text: is_there(new_count, new_line).map(|_| String::new()),
                    old_line: is_there(old_count, old_line),
                    new_line: is_there(new_count, new_line),
                });
            }
            continue;
        }
        let Some(hunk) = hunks.last_mut() else { continue };
        // Some tools leave the blank before an empty line out.
        let (sign, rest) = match line.split_at_checked(1) {
            Some((sign @ ("-" | "+" | " "), rest)) => (sign, rest),
            Some(("\\", _)) => continue,
            _ => (" ", line),
        };
        // The line's end is not part of the file, where the next line says so.
        let has_no_end = lines.peek().is_some_and(|next| next.starts_with('\\'));
        let rest = if has_no_end { rest.trim_end_matches(['\n', '\r']) } else { rest };
        if sign != "+" {
            hunk.old_text.get_or_insert_default().push_str(rest);
            old_left = old_left.saturating_sub(1);
        }
        if sign != "-" {
            hunk.new_text.get_or_insert_default().push_str(rest);
            new_left = new_left.saturating_sub(1);
        }
    }
    hunks
}

/// Parses `@@ -1,2 +3,4 @@`: line and count of both sides.
fn hunk_header(line: &str) -> Option<((u64, u64), (u64, u64))> {
    let (ranges, _) = line.strip_prefix("@@ -")?.split_once(" @@")?;
    let (old, new) = ranges.split_once(" +")?;
    let range = |text: &str| match text.split_once(',') {
        Some((line, count)) => Some((line.parse().ok()?, count.parse().ok()?)),
        None => Some((text.parse().ok()?, 1)),
    };
    Some((range(old)?, range(new)?))
}

/// Diffs that were emitted, by call and path.
#[derive(Debug, Default)]
pub(crate) struct CallDiffs(BoundedMap<u64>);

impl CallDiffs {
    /// Emits the diffs of the call `call`, except those that it has told already. `parent` is the call of its sub-agent.
    pub(crate) fn emit(&mut self, call: &str, parent: Option<&str>, diffs: Vec<FoundDiff>, out: &mut Vec<Action>) {
        for mut found in diffs.into_iter().take(MAX_FILES) {
            if found.path.is_empty() || found.path.len() > MAX_PATH || call.len() > MAX_ID {
                continue;
            }
            let omitted_bytes = found.cut();
            let FoundDiff { path, change, moved_to, hunks } = found;
            let moved_to = moved_to.filter(|path| path.len() <= MAX_PATH);
            let key = format!("{call}\0{path}");
            let mut hasher = DefaultHasher::new();
            (change.map(|change| change as u8), &moved_to, omitted_bytes).hash(&mut hasher);
            for DiffHunk { old_text, new_text, old_line, new_line } in &hunks {
                (old_text, new_text, old_line, new_line).hash(&mut hasher);
            }
            let hash = hasher.finish();
            if self.0.get(&key) == Some(&hash) {
                continue;
            }
            self.0.insert(&key, hash);
            let (tool_call_id, parent) = (call.to_owned(), parent.map(str::to_owned));
            let diff = FileDiff { tool_call_id, path, change, moved_to, hunks, omitted_bytes, parent };
            out.push(Action::Event(Event::Diff(Box::new(diff))));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hunk(old: Option<&str>, new: Option<&str>, old_line: Option<u64>, new_line: Option<u64>) -> DiffHunk {
        DiffHunk { old_text: old.map(str::to_owned), new_text: new.map(str::to_owned), old_line, new_line }
    }

    #[test]
    fn of_whole_files_the_lines_around_the_change_are_left() {
        let old = (1..=20).map(|n| format!("{n}\n")).collect::<String>();
        let new = old.replace("10\n", "ten\n");
        let FoundDiff { change, hunks, .. } = FoundDiff::whole("/a", Some(&old), Some(&new));
        assert_eq!(change, Some(FileChange::Modified));
        let expected = hunk(Some("7\n8\n9\n10\n11\n12\n13\n"), Some("7\n8\n9\nten\n11\n12\n13\n"), Some(7), Some(7));
        assert_eq!(hunks, [expected]);
        let created = FoundDiff::whole("/a", None, Some("x"));
        assert_eq!(
            (created.change, &created.hunks[..]),
            (Some(FileChange::Created), &[hunk(None, Some("x"), None, Some(1))][..])
        );
        let deleted = FoundDiff::whole("/a", Some("x"), None);
        assert_eq!(
            (deleted.change, &deleted.hunks[..]),
            (Some(FileChange::Deleted), &[hunk(Some("x"), None, Some(1), None)][..])
        );
        // A line more of what is there already.
        let hunks = FoundDiff::whole("/a", Some("x\nx\n"), Some("x\nx\nx\n")).hunks;
        assert_eq!(hunks, [hunk(Some("x\nx\n"), Some("x\nx\nx\n"), Some(1), Some(1))]);
    }

    #[test]
    fn hunks_of_a_unified_diff_have_their_lines() {
        let text = "--- a\n+++ b\n@@ -2,3 +2,3 @@ fn x\n one\n-two\n+zwei\n\n@@ -9 +9,0 @@\n-gone\n\\ No newline at end of file\n";
        let hunks = FoundDiff::unified("/a", None, text).expect("hunks").hunks;
        assert_eq!(
            hunks,
            [
                hunk(Some("one\ntwo\n\n"), Some("one\nzwei\n\n"), Some(2), Some(2)),
                hunk(Some("gone"), None, Some(9), None),
            ]
        );
        assert_eq!(FoundDiff::unified("/a", None, "no diff\n"), None);
        // A deleted line that looks like a header of a file is one of the hunk.
        let hunks = FoundDiff::unified("/a", None, "@@ -1,1 +1,1 @@\n--- x\n+++ y\n").expect("hunks").hunks;
        assert_eq!(hunks, [hunk(Some("-- x\n"), Some("++ y\n"), Some(1), Some(1))]);
    }

    #[test]
    fn a_diff_is_told_once_and_cut() {
        let (mut diffs, mut out) = (CallDiffs::default(), Vec::new());
        let found = || FoundDiff::replaced("/a", [("x", "y")]);
        diffs.emit("c", None, vec![found(), found()], &mut out);
        diffs.emit("c", None, vec![found()], &mut out);
        assert_eq!(out.len(), 1);
        diffs.emit("d", None, vec![found(), FoundDiff::replaced("", [("x", "y")])], &mut out);
        assert_eq!(out.len(), 2);
        let long = "ä".repeat(MAX_DIFF);
        diffs.emit("c", Some("p"), vec![FoundDiff::whole("/a", Some(&long), Some(&long.to_uppercase()))], &mut out);
        let Some(Action::Event(Event::Diff(diff))) = out.pop() else { panic!("a diff") };
        let [DiffHunk { old_text: Some(old), new_text: Some(new), .. }] = &diff.hunks[..] else { panic!("{diff:?}") };
        assert_eq!((old.len(), new.len()), (MAX_DIFF / 2, MAX_DIFF / 2));
        assert_eq!(diff.omitted_bytes, 3 * MAX_DIFF as u64);
    }

    proptest! {
        /// The hunk between two texts, put in the place of its old text, makes the new one of the old one.
        #[test]
        fn a_hunk_makes_the_new_text_of_the_old(
            old in prop::collection::vec("[ab]?", 0..30), new in prop::collection::vec("[ab]?", 0..30),
        ) {
            let (old, new) = (old.join("\n"), new.join("\n"));
            let DiffHunk { old_text, new_text, old_line, .. } = trimmed(&old, &new);
            let skipped: usize = old.split_inclusive('\n').take(usize::try_from(old_line.expect("a line") - 1).expect("small")).map(str::len).sum();
            let (before, rest) = old.split_at(skipped);
            let after = rest.strip_prefix(old_text.expect("a text").as_str()).expect("it is there");
            prop_assert_eq!(format!("{before}{}{after}", new_text.expect("a text")), new);
        }
    }
}
