//! Diffs of Pi's tools that edit: what their input proposes, and what the result of an edit says was done.

use ipc_protocol::FileChange;
use serde_json::Value;

use super::tools::plain;
use crate::kit::diffs::FoundDiff;

/// Returns what a call of the tool `name` would change.
pub(super) fn proposed(name: &str, input: &Value) -> Option<FoundDiff> {
    let path = plain(input["path"].as_str()?);
    match name {
        "edit" => {
            let part =
                |edit: &'_ Value| Some((edit["oldText"].as_str()?.to_owned(), edit["newText"].as_str()?.to_owned()));
            // Older agents replace one part in a call.
            let edits = input["edits"].as_array().into_iter().flatten().chain([input]);
            let parts: Vec<_> = edits.filter_map(part).collect();
            let parts = parts.iter().map(|(old, new)| (old.as_str(), new.as_str()));
            Some(FoundDiff::replaced(&path, parts)).filter(|diff| !diff.hunks.is_empty())
        }
        // Nobody says whether the file was there before.
        "write" => Some(FoundDiff::written(&path, input["content"].as_str()?)),
        _ => None,
    }
}

/// Returns what a call has changed, from its result.
pub(super) fn done(path: &str, result: &Value) -> Option<FoundDiff> {
    FoundDiff::unified(path, Some(FileChange::Modified), result["details"]["patch"].as_str()?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parts(diff: &FoundDiff) -> Vec<(Option<&str>, Option<&str>)> {
        diff.hunks.iter().map(|hunk| (hunk.old_text.as_deref(), hunk.new_text.as_deref())).collect()
    }

    #[test]
    fn inputs_propose_changes() {
        let edits = json!([{ "oldText": "x", "newText": "y" }, { "oldText": "z", "newText": "" }, { "oldText": 7 }]);
        let found = proposed("edit", &json!({ "path": "@/a", "edits": edits })).expect("a diff");
        assert_eq!((found.path.as_str(), found.change), ("/a", Some(FileChange::Modified)));
        assert_eq!(parts(&found), [(Some("x"), Some("y")), (Some("z"), Some(""))]);
        let one = json!({ "path": "/a", "oldText": "x", "newText": "y" });
        assert_eq!(parts(&proposed("edit", &one).expect("a diff")), [(Some("x"), Some("y"))]);
        let written = proposed("write", &json!({ "path": "/a", "content": "all" })).expect("a diff");
        assert_eq!((written.change, parts(&written)), (None, vec![(None, Some("all"))]));
        for (name, input) in [("read", &one), ("edit", &json!({ "path": "/a" })), ("write", &one), ("edit", &json!(7))]
        {
            assert_eq!(proposed(name, input), None, "{name} {input}");
        }
    }

    #[test]
    fn a_result_has_a_patch() {
        let patch = "--- a\n+++ a\n@@ -3,1 +3,1 @@\n-x\n+y\n";
        let found = done("/a", &json!({ "details": { "patch": patch } })).expect("a diff");
        assert_eq!((parts(&found), found.hunks[0].old_line), (vec![(Some("x\n"), Some("y\n"))], Some(3)));
        assert_eq!(done("/a", &json!({ "details": null })), None);
    }
}
