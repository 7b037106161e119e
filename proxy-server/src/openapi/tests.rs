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
    assert!(missing.is_empty(), "no description: {missing:?}");
    objects(&generated(), "", &mut |path, members| {
        if let Some(Value::String(text)) = members.get("description") {
            assert!(!text.contains("[`") && !text.contains("```"), "{path} is written for Rust: {text}");
        }
    });
}
