//! Examples of types: those of `examples.json`, and others that are put together of their members' examples.

use serde_json::{Map, Value, json};

/// Gives each schema an example.
pub(super) fn add_examples(schemas: &mut Map<String, Value>) {
    let given: Value = serde_json::from_str(include_str!("examples.json")).unwrap_or_default();
    let examples: Vec<(String, Value)> = {
        let composer = ExampleComposer { schemas, given: &given };
        schemas.keys().map(|name| (name.clone(), composer.of_type(name, 0))).collect()
    };
    for (name, example) in examples {
        schemas[&name]["examples"] = json!([example]);
    }
}

struct ExampleComposer<'a> {
    schemas: &'a Map<String, Value>,
    given: &'a Value,
}

/// Types within types, after which an example has no more members than it must.
const DEEP: usize = 6;

impl ExampleComposer<'_> {
    fn of_type(&self, name: &str, depth: usize) -> Value {
        match self.given["types"].get(name) {
            Some(example) => example.clone(),
            None => self.schemas.get(name).map(|schema| self.of(schema, depth)).unwrap_or_default(),
        }
    }

    fn of(&self, schema: &Value, depth: usize) -> Value {
        if let Some(target) = schema["$ref"].as_str() {
            return self.of_type(target.rsplit('/').next().unwrap_or(target), depth + 1);
        }
        if let Some(value) = schema.get("const").or_else(|| schema["enum"].get(0)) {
            return value.clone();
        }
        if let Some(first) = ["oneOf", "anyOf", "allOf"].into_iter().find_map(|kind| schema[kind].get(0)) {
            return self.of(first, depth);
        }
        let kinds: Vec<&str> = match &schema["type"] {
            Value::String(kind) => vec![kind],
            Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
            _ => vec![],
        };
        match kinds.first() {
            Some(&"object") => self.object(schema, depth),
            Some(&"array") if depth < DEEP => json!([self.of(&schema["items"], depth + 1)]),
            Some(&"array") => json!([]),
            Some(&"boolean") => json!(false),
            Some(&("integer" | "number")) => schema.get("minimum").cloned().unwrap_or(json!(1)),
            Some(&"string") => json!("text"),
            _ => Value::Null,
        }
    }

    fn object(&self, schema: &Value, depth: usize) -> Value {
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let mut example = Map::new();
        for (name, member) in schema["properties"].as_object().into_iter().flatten() {
            let given = self.given["members"].get(name).filter(|value| fits(value, member));
            let is_required = required.contains(&name.as_str());
            match given {
                Some(value) => drop(example.insert(name.clone(), value.clone())),
                // A member that may be absent is shown where there is something to show.
                None if is_required || (depth < DEEP && member.get("$ref").is_some()) => {
                    let shown = self.given["shown"].as_array().is_some_and(|shown| shown.contains(&json!(name)));
                    let value = if is_nullable(member) && !shown { Value::Null } else { self.of(member, depth + 1) };
                    example.insert(name.clone(), value);
                }
                None => {}
            }
        }
        Value::Object(example)
    }
}

/// Returns true if the kind of a value is one of the schema's.
fn fits(value: &Value, schema: &Value) -> bool {
    if schema.get("enum").is_some() || schema.get("const").is_some() {
        return false;
    }
    let is = |kind: &str| match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.as_array().is_some_and(|list| list.is_empty() || schema["items"]["type"] == "string"),
        _ => false,
    };
    match &schema["type"] {
        Value::String(kind) => is(kind),
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).any(is),
        // Any JSON.
        _ => ["$ref", "oneOf", "anyOf", "allOf"].iter().all(|kind| schema.get(kind).is_none()),
    }
}

fn is_nullable(schema: &Value) -> bool {
    let alternatives = schema["anyOf"].as_array().into_iter().flatten();
    alternatives.into_iter().any(|schema| schema["type"] == "null")
        || schema["type"].as_array().is_some_and(|kinds| kinds.contains(&json!("null")))
}
