//! Diffs of the tools that edit: what their input proposes, what a permission request shows, and what their metadata says was done.

use ipc_protocol::FileChange;
use serde_json::Value;

use crate::kit::diffs::FoundDiff;

fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key)?.as_str()
}

/// Returns what a call of the tool `name` would change.
pub(super) fn proposed(name: &str, input: &Value) -> Option<FoundDiff> {
    let path = text(input, "filePath")?;
    match name {
        "edit" => match (text(input, "oldString")?, text(input, "newString")?) {
            // Nothing is replaced: the file is made.
            ("", new) => Some(FoundDiff::told(path, None, Some(new))),
            (old, new) => Some(FoundDiff::replaced(path, [(old, new)])),
        },
        "write" => Some(FoundDiff::written(path, text(input, "content")?)),
        _ => None,
    }
}

/// Returns what a call changes, from the metadata of its permission request or of its state.
pub(super) fn told(metadata: &Value) -> Vec<FoundDiff> {
    if let Some(files) = metadata.get("files").and_then(Value::as_array) {
        return files.iter().filter_map(patched).collect();
    }
    let of_file = |file: &Value| changed(text(file, "file")?, text(file, "patch")?);
    let of_request = || changed(text(metadata, "filepath")?, text(metadata, "diff")?);
    metadata.get("filediff").and_then(of_file).or_else(of_request).into_iter().collect()
}

/// Returns what a call of `write` has made, if the file was not there before.
pub(super) fn made(input: &Value, metadata: &Value) -> Option<FoundDiff> {
    let is_new = metadata.get("exists").and_then(Value::as_bool) == Some(false);
    let path = text(input, "filePath").filter(|_| is_new)?;
    Some(FoundDiff::whole(path, None, Some(text(input, "content")?)))
}

/// Reads a unified diff of one file. A diff without a line of before may be that of a new file or of an empty one.
fn changed(path: &str, patch: &str) -> Option<FoundDiff> {
    let found = FoundDiff::unified(path, None, patch)?;
    let is_edit = found.hunks.iter().any(|hunk| hunk.old_text.is_some());
    Some(FoundDiff { change: is_edit.then_some(FileChange::Modified), ..found })
}

/// Reads a file of a patch of several.
fn patched(file: &Value) -> Option<FoundDiff> {
    let path = text(file, "filePath")?;
    let moved_to = text(file, "movePath");
    let change = match text(file, "type")? {
        "add" => FileChange::Created,
        "delete" => FileChange::Deleted,
        "move" => FileChange::Moved,
        _ if moved_to.is_some() => FileChange::Moved,
        _ => FileChange::Modified,
    };
    let unified = text(file, "patch").and_then(|patch| FoundDiff::unified(path, Some(change), patch));
    let bare = || FoundDiff { path: path.to_owned(), change: Some(change), ..FoundDiff::default() };
    let moved_to = moved_to.filter(|_| change == FileChange::Moved).map(str::to_owned);
    Some(FoundDiff { moved_to, ..unified.unwrap_or_else(bare) })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    type Texts = (Option<FileChange>, Vec<(Option<String>, Option<String>)>);

    fn texts(diff: FoundDiff) -> Texts {
        (diff.change, diff.hunks.into_iter().map(|hunk| (hunk.old_text, hunk.new_text)).collect())
    }

    fn hunk(old: Option<&str>, new: Option<&str>) -> (Option<String>, Option<String>) {
        (old.map(str::to_owned), new.map(str::to_owned))
    }

    #[test]
    fn inputs_propose_changes() {
        let found = |name, input: Value| proposed(name, &input).map(texts);
        let edit = json!({ "filePath": "/a", "oldString": "x", "newString": "y" });
        assert_eq!(found("edit", edit.clone()), Some((Some(FileChange::Modified), vec![hunk(Some("x"), Some("y"))])));
        let make = json!({ "filePath": "/a", "oldString": "", "newString": "y" });
        assert_eq!(found("edit", make), Some((Some(FileChange::Created), vec![hunk(None, Some("y"))])));
        let write = json!({ "filePath": "/a", "content": "all" });
        assert_eq!(found("write", write.clone()), Some((None, vec![hunk(None, Some("all"))])));
        for (name, input) in [("read", edit), ("edit", write), ("write", json!({ "content": "x" })), ("edit", json!(7))]
        {
            assert_eq!(found(name, input.clone()), None, "{name} {input}");
        }
    }

    #[test]
    fn metadata_tells_what_is_changed() {
        let patch = "--- /a\n+++ /a\n@@ -1,1 +1,1 @@\n-x\n+y\n";
        let modified = || (Some(FileChange::Modified), vec![hunk(Some("x\n"), Some("y\n"))]);
        let of_edit = json!({ "diff": "…", "filediff": { "file": "/a", "patch": patch, "additions": 1 } });
        assert_eq!(told(&of_edit).into_iter().map(texts).collect::<Vec<_>>(), [modified()]);
        let of_request = json!({ "filepath": "/a", "diff": patch });
        assert_eq!(told(&of_request).into_iter().map(texts).collect::<Vec<_>>(), [modified()]);
        let new = json!({ "filepath": "/a", "diff": "--- /a\n+++ /a\n@@ -0,0 +1,1 @@\n+y\n" });
        assert_eq!(told(&new).into_iter().map(texts).collect::<Vec<_>>(), [(None, vec![hunk(None, Some("y\n"))])]);
        assert_eq!(told(&json!({ "output": "x" })), []);
        let files = json!({ "diff": "…", "files": [
            { "filePath": "/a", "type": "add", "patch": "@@ -0,0 +1,1 @@\n+y\n" },
            { "filePath": "/b", "type": "delete", "patch": "@@ -1,1 +0,0 @@\n-x\n" },
            { "filePath": "/c", "type": "move", "movePath": "/d", "patch": "" },
            { "type": "add" },
        ] });
        let found = told(&files);
        let changes: Vec<_> = found.iter().map(|diff| (diff.change, diff.moved_to.as_deref())).collect();
        let [created, deleted] = [FileChange::Created, FileChange::Deleted].map(|change| (Some(change), None));
        assert_eq!(changes, [created, deleted, (Some(FileChange::Moved), Some("/d"))]);
    }

    #[test]
    fn a_file_that_was_not_there_is_made() {
        let input = json!({ "filePath": "/a", "content": "x" });
        let made_of = |exists: Value| made(&input, &json!({ "exists": exists })).map(|diff| diff.change);
        assert_eq!(made_of(json!(false)), Some(Some(FileChange::Created)));
        assert_eq!((made_of(json!(true)), made_of(Value::Null)), (None, None));
    }
}
