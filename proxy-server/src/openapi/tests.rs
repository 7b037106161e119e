use std::{collections::BTreeSet, path::Path};

use serde_json::Value;

use super::document;

fn generated() -> Value {
    serde_json::from_str(&document()).expect("JSON")
}

#[test]
fn the_checked_in_document_is_the_generated_one() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi.json");
    let document = document();
    if std::env::var_os("OPENAPI_UPDATE").is_some() {
        std::fs::write(&path, &document).expect("written");
    }
    let checked_in = std::fs::read_to_string(&path).unwrap_or_default();
    let differing =
        document.lines().zip(checked_in.lines()).position(|(generated, checked_in)| generated != checked_in);
    assert!(
        document == checked_in,
        "openapi.json is not what the routes and types give (from line {:?}): write it with `OPENAPI_UPDATE=1 cargo test -p \
         agent-proxy-server --lib openapi`, and look at the difference",
        differing.map(|line| line + 1)
    );
}

/// Calls `visit` with each object, and with the path to it.
fn objects(value: &Value, path: &str, visit: &mut impl FnMut(&str, &serde_json::Map<String, Value>)) {
    match value {
        Value::Object(members) => {
            visit(path, members);
            members.iter().for_each(|(name, member)| objects(member, &format!("{path}/{name}"), visit));
        }
        Value::Array(members) => {
            members.iter().enumerate().for_each(|(at, member)| objects(member, &format!("{path}/{at}"), visit));
        }
        _ => {}
    }
}

#[test]
fn a_route_that_may_take_long_is_one() {
    let document = generated();
    for (method, path) in crate::request_bounds::WAITING_ROUTES {
        let operation = &document["paths"][path][method.to_lowercase()];
        assert!(operation.is_object(), "{method} {path} is no route");
    }
}

#[test]
fn every_reference_has_its_target() {
    let document = generated();
    let mut count = 0;
    objects(&document, "", &mut |path, members| {
        if let Some(Value::String(target)) = members.get("$ref") {
            let pointer = target.strip_prefix('#').unwrap_or_else(|| panic!("{path}: {target} is elsewhere"));
            assert!(document.pointer(pointer).is_some(), "{path}: there is no {target}");
            count += 1;
        }
    });
    assert!(count > 100);
}

#[test]
fn operation_ids_and_names_of_types_differ() {
    let document = generated();
    let mut ids = BTreeSet::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("operations") {
            let id = operation["operationId"].as_str().expect("an id");
            assert!(ids.insert(id.to_owned()), "{method} {path}: {id} is there twice");
            assert!(operation["summary"].as_str().is_some_and(|text| text.ends_with('.')), "{method} {path}");
        }
    }
    for name in document["components"]["schemas"].as_object().expect("schemas").keys() {
        // Schemas of one name are told apart by a number, which says nothing to a reader.
        assert!(!name.ends_with(|last: char| last.is_ascii_digit()), "{name}: rename one of the types");
    }
}

/// Says why a value does not fit a schema; covers what our schemas have.
fn misfit(document: &Value, schema: &Value, value: &Value) -> Option<String> {
    if let Some(target) = schema["$ref"].as_str() {
        return misfit(document, document.pointer(&target[1..]).expect("a target"), value);
    }
    let list = |kind: &str| {
        schema[kind].as_array().map(|all| all.iter().filter(|one| misfit(document, one, value).is_none()).count())
    };
    let all = |kind: &str| schema[kind].as_array().map_or(0, Vec::len);
    let kinds: Vec<&str> = match &schema["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => vec![],
    };
    let is = |kind: &&str| match *kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("{other} is no type"),
    };
    if !kinds.is_empty() && !kinds.iter().any(is) {
        return Some(format!("{value} is no {kinds:?}"));
    }
    let is_wrong = schema.get("const").is_some_and(|constant| constant != value)
        || schema["enum"].as_array().is_some_and(|known| !known.contains(value))
        || list("oneOf").is_some_and(|count| count != 1)
        || list("anyOf").is_some_and(|count| count == 0)
        || list("allOf").is_some_and(|count| count != all("allOf"))
        || schema["minimum"].as_f64().zip(value.as_f64()).is_some_and(|(least, value)| value < least)
        || schema["maximum"].as_f64().zip(value.as_f64()).is_some_and(|(most, value)| value > most);
    if is_wrong {
        return Some(format!("{value} does not fit {schema}"));
    }
    if let Some(members) = value.as_object() {
        for required in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if !members.contains_key(required) {
                return Some(format!("{required} is missing in {value}"));
            }
        }
        for (name, member) in members {
            let of = schema["properties"].get(name).or_else(|| schema.get("additionalProperties"));
            match of {
                Some(Value::Bool(false)) => return Some(format!("{name} is not known: {value}")),
                Some(Value::Bool(true)) | None => {}
                Some(schema) => {
                    if let Some(reason) = misfit(document, schema, member) {
                        return Some(format!("{name}: {reason}"));
                    }
                }
            }
        }
    }
    value.as_array().into_iter().flatten().find_map(|member| misfit(document, &schema["items"], member))
}

#[test]
fn every_type_has_an_example_that_fits() {
    let document = generated();
    let schemas = document["components"]["schemas"].as_object().expect("schemas");
    for (name, schema) in schemas {
        let [example] = schema["examples"].as_array().expect("examples").as_slice() else {
            panic!("{name} has no example")
        };
        assert_eq!(misfit(&document, schema, example), None, "the example of {name}");
    }
    let given: Value = serde_json::from_str(include_str!("examples.json")).expect("JSON");
    for name in given["types"].as_object().expect("types").keys() {
        assert!(schemas.contains_key(name), "{name} has an example, and is no type");
    }
    assert!(misfit(&document, &schemas["KillRequest"], &serde_json::json!({ "grace": 1 })).is_some());
    assert!(misfit(&document, &schemas["SessionState"], &serde_json::json!({ "busy": {} })).is_some());
}

#[test]
fn every_type_has_a_description() {
    let mut missing = Vec::new();
    for (name, schema) in generated()["components"]["schemas"].as_object().expect("schemas") {
        if schema["description"].as_str().is_none_or(str::is_empty) {
            missing.push(name.clone());
        }
        for (member, schema) in schema["properties"].as_object().into_iter().flatten() {
            if !schema["description"].is_string() && !schema["$ref"].is_string() {
                missing.push(format!("{name}.{member}"));
            }
        }
    }
    for (path, item) in generated()["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("operations") {
            let parameters = operation["parameters"].as_array().expect("parameters").iter();
            let described = |parameter: &&Value| parameter["description"].is_string();
            missing
                .extend(parameters.filter(|one| !described(one)).map(|one| format!("{method} {path} {}", one["name"])));
        }
    }
    assert!(missing.is_empty(), "no description: {missing:?}");
    objects(&generated(), "", &mut |path, members| {
        if let Some(Value::String(text)) = members.get("description") {
            assert!(!text.contains("[`") && !text.contains("```"), "{path} is written for Rust: {text}");
        }
    });
}
