//! Contents of tool calls. An update's content replaces the one before: what an editor is to go on showing is sent again.

use std::collections::VecDeque;

use serde_json::{Value, json};

/// Tool calls whose contents are retained: the latest.
const MOST_CALLS: usize = 64;

/// Text of their contents that is retained, in bytes.
const MOST_BYTES: usize = 16 * 1024 * 1024;

/// Contents of the latest tool calls of a session.
#[derive(Debug, Default)]
pub(super) struct ToolContents {
    calls: VecDeque<CallContent>,
}

/// What an editor shows of a tool call.
#[derive(Debug)]
struct CallContent {
    id: String,
    /// Blocks of the type `diff`, each of a path.
    diffs: Vec<Value>,
    /// The other blocks.
    output: Vec<Value>,
}

impl ToolContents {
    /// Adds to an update of a tool call what it would otherwise remove: diffs of other files, and the output.
    pub(super) fn complete(&mut self, update: &mut Value) {
        let Some(id) = update["toolCallId"].as_str() else { return };
        let known = self.calls.iter().position(|call| call.id == id).and_then(|at| self.calls.remove(at));
        // A call that begins has nothing yet.
        let known = known.filter(|_| update["sessionUpdate"] == "tool_call_update");
        let mut call =
            known.unwrap_or_else(|| CallContent { id: id.to_owned(), diffs: Vec::new(), output: Vec::new() });
        if let Some(blocks) = update["content"].as_array() {
            call.add(blocks);
            update["content"] = call.diffs.iter().chain(&call.output).cloned().collect();
            if update["locations"].is_array() {
                update["locations"] = call.locations();
            }
        }
        self.calls.push_back(call);
        while self.calls.len() > MOST_CALLS || self.calls.iter().map(CallContent::bytes).sum::<usize>() > MOST_BYTES {
            self.calls.pop_front();
        }
    }
}

impl CallContent {
    /// Takes new blocks in the place of those of the same file, and of earlier output.
    fn add(&mut self, blocks: &[Value]) {
        let (diffs, output): (Vec<Value>, Vec<Value>) =
            blocks.iter().cloned().partition(|block| block["type"] == "diff");
        self.diffs.retain(|old| diffs.iter().all(|diff| diff["path"] != old["path"]));
        self.diffs.extend(diffs);
        if !output.is_empty() {
            self.output = output;
        }
    }

    fn locations(&self) -> Value {
        let mut paths: Vec<&Value> = self.diffs.iter().map(|diff| &diff["path"]).collect();
        paths.dedup();
        paths.into_iter().map(|path| json!({ "path": path })).collect()
    }

    fn bytes(&self) -> usize {
        let length = |text: &Value| text.as_str().map_or(0, str::len);
        let block =
            |block: &Value| length(&block["oldText"]) + length(&block["newText"]) + length(&block["content"]["text"]);
        self.diffs.iter().chain(&self.output).map(block).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn diff(path: &str, new: &str) -> Value {
        json!({ "type": "diff", "path": path, "oldText": null, "newText": new })
    }

    fn output(text: &str) -> Value {
        json!({ "type": "content", "content": { "type": "text", "text": text } })
    }

    fn update(id: &str, content: &Value) -> Value {
        json!({ "sessionUpdate": "tool_call_update", "toolCallId": id, "content": content })
    }

    fn completed(contents: &mut ToolContents, mut update: Value) -> Value {
        contents.complete(&mut update);
        update["content"].take()
    }

    #[test]
    fn diffs_and_output_stay_until_others_take_their_places() {
        let mut contents = ToolContents::default();
        let mut told = |content: Value| completed(&mut contents, update("1", &content));
        assert_eq!(told(json!([diff("/a", "1")])), json!([diff("/a", "1")]));
        assert_eq!(told(json!([output("x")])), json!([diff("/a", "1"), output("x")]));
        assert_eq!(told(json!([diff("/b", "2")])), json!([diff("/a", "1"), diff("/b", "2"), output("x")]));
        assert_eq!(told(json!([diff("/a", "3")])), json!([diff("/b", "2"), diff("/a", "3"), output("x")]));
        assert_eq!(told(Value::Null), Value::Null, "nothing is sent where nothing changes");
        assert_eq!(told(json!([output("y")])), json!([diff("/b", "2"), diff("/a", "3"), output("y")]));
        // Another call has contents of its own, and one that begins anew has none.
        assert_eq!(completed(&mut contents, update("2", &json!([output("z")]))), json!([output("z")]));
        contents.complete(&mut json!({ "sessionUpdate": "tool_call", "toolCallId": "1" }));
        assert_eq!(completed(&mut contents, update("1", &json!([output("z")]))), json!([output("z")]));
    }

    #[test]
    fn locations_are_those_of_all_diffs() {
        let mut contents = ToolContents::default();
        contents.complete(&mut update("1", &json!([diff("/a", "1")])));
        let mut second = update("1", &json!([diff("/b", "2")]));
        second["locations"] = json!([{ "path": "/b" }]);
        contents.complete(&mut second);
        assert_eq!(second["locations"], json!([{ "path": "/a" }, { "path": "/b" }]));
    }

    #[test]
    fn what_is_retained_is_bounded() {
        let mut contents = ToolContents::default();
        for call in 0..2 * MOST_CALLS {
            contents.complete(&mut update(&call.to_string(), &json!([output("x")])));
        }
        assert_eq!(contents.calls.len(), MOST_CALLS);
        contents.complete(&mut update("long", &json!([output(&"x".repeat(MOST_BYTES + 1))])));
        assert!(contents.calls.is_empty());
    }
}
