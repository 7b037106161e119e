//! Schemas of bodies.

use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value};

use super::examples::add_examples;

/// Schemas of requests and answers. A type that is in both has one schema, that of requests: it requires less.
pub(crate) struct SchemaSet {
    requests: SchemaGenerator,
    answers: SchemaGenerator,
}

impl SchemaSet {
    pub(super) fn new() -> Self {
        let settings = || {
            let mut settings = SchemaSettings::draft2020_12();
            settings.definitions_path = "/components/schemas".into();
            settings.meta_schema = None;
            settings
        };
        Self {
            requests: settings().for_deserialize().into_generator(),
            answers: settings().for_serialize().into_generator(),
        }
    }

    /// Returns the schema of a request's body, or of its query.
    pub(super) fn request<T: JsonSchema>(&mut self) -> Value {
        self.requests.subschema_for::<T>().to_value()
    }

    /// Returns the schema of a type in a request itself, where [`SchemaSet::request`] may return its name.
    pub(super) fn request_root<T: JsonSchema>(&mut self) -> Value {
        T::json_schema(&mut self.requests).to_value()
    }

    /// Returns the schema of an answer's body.
    pub(super) fn answer<T: JsonSchema>(&mut self) -> Value {
        self.answers.subschema_for::<T>().to_value()
    }

    /// Returns all schemas that have a name.
    pub(super) fn finish(mut self) -> Value {
        let mut schemas: Map<String, Value> = self.answers.take_definitions(true).into_iter().collect();
        schemas.extend(self.requests.take_definitions(true));
        schemas.sort_keys();
        add_examples(&mut schemas);
        let mut schemas = Value::Object(schemas);
        clean(&mut schemas);
        schemas
    }
}

/// Writes descriptions for readers of the document: without links between items of Rust and their examples, a line each paragraph.
pub(super) fn clean(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            // A set may be given with repetitions.
            members.remove("uniqueItems");
            // A fresh one each time.
            if members.get("$ref").is_some_and(|target| target == "#/components/schemas/SessionId") {
                members.remove("default");
            }
            for (name, member) in members {
                match member {
                    Value::String(text) if name == "description" => *text = plain(text),
                    member => clean(member),
                }
            }
        }
        Value::Array(members) => members.iter_mut().for_each(clean),
        _ => {}
    }
}

/// Returns the text of a doc comment without its links and blocks of code.
pub(super) fn plain(doc: &str) -> String {
    let (mut paragraphs, mut in_code) = (vec![String::new()], false);
    for line in doc.lines() {
        let line = line.trim();
        if line.starts_with("```") {
            in_code = !in_code;
        } else if line.is_empty() {
            paragraphs.push(String::new());
        } else if !in_code && let Some(paragraph) = paragraphs.last_mut() {
            paragraph.push_str(if paragraph.is_empty() { "" } else { " " });
            paragraph.push_str(line);
        }
    }
    paragraphs.retain(|paragraph| !paragraph.is_empty());
    without_links(&paragraphs.join("\n\n"))
}

/// Replaces ``[`Name`](target)`` and ``[`Name`]`` by `` `Name` ``.
fn without_links(text: &str) -> String {
    let (mut result, mut rest) = (String::new(), text);
    while let Some((before, link)) = rest.split_once("[`") {
        result.push_str(before);
        let Some((name, after)) = link.split_once("`]") else {
            result.push_str("[`");
            rest = link;
            continue;
        };
        let short = name.trim_end_matches("()").rsplit("::").next().unwrap_or(name);
        result.push_str(&format!("`{short}`"));
        rest = match after.strip_prefix('(').and_then(|target| target.split_once(')')) {
            Some((_, after)) => after,
            None => after,
        };
    }
    result + rest
}
