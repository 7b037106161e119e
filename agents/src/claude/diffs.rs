//! Diffs of the tools that edit: what their input proposes, and what their result for programs says was done.

use ipc_protocol::{DiffHunk, FileChange};
use serde_json::Value;

use crate::kit::diffs::FoundDiff;

/// Returns what a call of the tool `name` would change.
pub(crate) fn proposed(name: &str, input: &Value) -> Vec<FoundDiff> {
    let text = |value: &'_ Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    let Some(path) = text(input, "file_path").or_else(|| text(input, "notebook_path")) else { return Vec::new() };
    let part = |edit: &Value| Some((text(edit, "old_string")?, text(edit, "new_string")?));
    let diff = match name {
        "Edit" => match part(input) {
            // Nothing is replaced: the file is made.
            Some((old, new)) if old.is_empty() => Some(FoundDiff::told(&path, None, Some(&new))),
            Some((old, new)) => Some(FoundDiff::replaced(&path, [(old.as_str(), new.as_str())])),
            None => None,
        },
        "MultiEdit" => {
            let edits = input.get("edits").and_then(Value::as_array);
            let parts: Vec<_> = edits.into_iter().flatten().filter_map(part).collect();
            let parts = parts.iter().map(|(old, new)| (old.as_str(), new.as_str()));
            Some(FoundDiff::replaced(&path, parts)).filter(|diff| !diff.hunks.is_empty())
        }
        "Write" => text(input, "content").map(|content| FoundDiff::written(&path, &content)),
        "NotebookEdit" => text(input, "new_source").map(|source| {
            let hunk = DiffHunk { new_text: Some(source), ..DiffHunk::default() };
            FoundDiff { path, change: Some(FileChange::Modified), moved_to: None, hunks: vec![hunk] }
        }),
        _ => None,
    };
    diff.into_iter().collect()
}

/// Returns what a call has changed, from its result for programs.
pub(crate) fn done(result: &Value) -> Vec<FoundDiff> {
    let text = |key: &str| result.get(key).and_then(Value::as_str);
    let Some(path) = text("filePath") else { return Vec::new() };
    let patch = result.get("structuredPatch").and_then(Value::as_array);
    let hunks: Vec<DiffHunk> = patch.into_iter().flatten().filter_map(hunk).collect();
    let diff = match (text("type"), text("originalFile"), text("content")) {
        (Some("create"), _, Some(content)) | (None, None, Some(content)) => FoundDiff::whole(path, None, Some(content)),
        _ if !hunks.is_empty() => {
            FoundDiff { path: path.to_owned(), change: Some(FileChange::Modified), moved_to: None, hunks }
        }
        (_, Some(before), Some(content)) => FoundDiff::whole(path, Some(before), Some(content)),
        _ => return Vec::new(),
    };
    vec![diff]
}

/// Reads a hunk of the patch: lines that begin with a sign.
fn hunk(hunk: &Value) -> Option<DiffHunk> {
    let lines = hunk.get("lines")?.as_array()?;
    let side = |signs: [&str; 2]| -> String {
        let of_side = |line: &Value| {
            let (sign, rest) = line.as_str()?.split_at_checked(1)?;
            signs.contains(&sign).then(|| format!("{rest}\n"))
        };
        lines.iter().filter_map(of_side).collect()
    };
    let number = |key: &str| hunk.get(key).and_then(Value::as_u64);
    Some(DiffHunk {
        old_text: Some(side([" ", "-"])),
        new_text: Some(side([" ", "+"])),
        old_line: number("oldStart"),
        new_line: number("newStart"),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn texts(diffs: &[FoundDiff]) -> Vec<(Option<FileChange>, Option<&str>, Option<&str>)> {
        let text = |diff: &'_ FoundDiff| -> Vec<_> {
            let change = diff.change;
            diff.hunks.iter().map(|it| (change, it.old_text.clone(), it.new_text.clone())).collect()
        };
        let all: Vec<_> = diffs.iter().flat_map(text).collect();
        all.into_iter()
            .map(|(change, old, new)| (change, old.map(|text| &*text.leak()), new.map(|text| &*text.leak())))
            .collect()
    }

    #[test]
    fn inputs_propose_changes() {
        let edit = json!({ "file_path": "/a", "old_string": "x", "new_string": "y" });
        assert_eq!(texts(&proposed("Edit", &edit)), [(Some(FileChange::Modified), Some("x"), Some("y"))]);
        let make = json!({ "file_path": "/a", "old_string": "", "new_string": "y" });
        assert_eq!(texts(&proposed("Edit", &make)), [(Some(FileChange::Created), None, Some("y"))]);
        let many = json!({ "file_path": "/a", "edits": [
            { "old_string": "x", "new_string": "y" }, { "old_string": "z", "new_string": "" }, { "old_string": 7 },
        ] });
        let modified = Some(FileChange::Modified);
        assert_eq!(
            texts(&proposed("MultiEdit", &many)),
            [(modified, Some("x"), Some("y")), (modified, Some("z"), Some(""))]
        );
        let write = json!({ "file_path": "/a", "content": "all" });
        assert_eq!(texts(&proposed("Write", &write)), [(None, None, Some("all"))]);
        let cell = json!({ "notebook_path": "/a.ipynb", "new_source": "1" });
        assert_eq!(texts(&proposed("NotebookEdit", &cell)), [(modified, None, Some("1"))]);
        for (name, input) in [("Read", &edit), ("Edit", &write), ("Write", &edit), ("Edit", &json!(7))] {
            assert_eq!(proposed(name, input), [], "{name} {input}");
        }
    }

    #[test]
    fn results_tell_what_was_done() {
        let created =
            json!({ "type": "create", "filePath": "/a", "content": "x", "structuredPatch": [], "originalFile": null });
        assert_eq!(texts(&done(&created)), [(Some(FileChange::Created), None, Some("x"))]);
        let patch = json!({ "filePath": "/a", "originalFile": "…", "structuredPatch": [
            { "oldStart": 3, "oldLines": 2, "newStart": 3, "newLines": 2, "lines": [" a", "-b", "+c", "\\ No newline"] },
        ] });
        let diffs = done(&patch);
        assert_eq!(texts(&diffs), [(Some(FileChange::Modified), Some("a\nb\n"), Some("a\nc\n"))]);
        assert_eq!((diffs[0].hunks[0].old_line, diffs[0].hunks[0].new_line), (Some(3), Some(3)));
        let same =
            json!({ "type": "update", "filePath": "/a", "content": "x", "structuredPatch": [], "originalFile": "y" });
        assert_eq!(texts(&done(&same)), [(Some(FileChange::Modified), Some("y"), Some("x"))]);
        assert_eq!(done(&json!({ "stdout": "" })), []);
    }
}
