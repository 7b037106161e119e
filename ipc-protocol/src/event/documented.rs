//! The page `docs/events.md` has every event, and is right about each.

use std::{collections::BTreeSet, path::Path};

use serde::{Serialize, de::DeserializeOwned};

use super::*;

/// Types in the page that stand for any of their kind.
const PATTERNS: [(&str, &str); 3] = [
    ("harness:<agent>:event-received", "harness:codex:event-received"),
    ("audit:call", "audit:call"),
    ("your:own-type", "slack:received"),
];

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/events.md");
    std::fs::read_to_string(path).expect("the page")
}

/// The sections of the page: heading and text.
fn sections(page: &str) -> Vec<(&str, &str)> {
    page.split("\n### ").skip(1).filter_map(|section| section.split_once('\n')).collect()
}

/// The first cell of each row that has one in backticks.
fn cells(section: &str) -> impl Iterator<Item = &str> {
    section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`').map(|(cell, _)| cell))
}

#[test]
fn every_event_has_an_example_that_is_complete() {
    let page = page();
    let mut found = BTreeSet::new();
    for (heading, section) in sections(&page) {
        let Some(kind) = heading.strip_prefix('`').and_then(|rest| rest.strip_suffix('`')) else { continue };
        let (_, example) = section.split_once("```json\n").unwrap_or_else(|| panic!("{kind}: an example"));
        let (example, _) = example.split_once("```").expect("its end");
        let example: Value = serde_json::from_str(example).unwrap_or_else(|error| panic!("{kind}: {error}"));
        let real = PATTERNS.iter().find(|(pattern, _)| *pattern == kind).map_or(kind, |(_, real)| real);
        let event = Event::from_parts(real, 1, example.clone()).unwrap_or_else(|error| panic!("{kind}: {error}"));
        assert_eq!(event.to_parts().expect("serializes"), (real.to_owned(), example.clone()), "{kind}");
        if let (Value::Object(members), false) = (&example, matches!(event, Event::External { .. })) {
            let described: BTreeSet<&str> = cells(section).collect();
            let shown: BTreeSet<&str> = members.keys().map(String::as_str).collect();
            assert_eq!(described, shown, "{kind}: its table and its example");
        }
        found.insert(kind);
    }
    let all: BTreeSet<&str> = KINDS.iter().copied().chain(PATTERNS.map(|(pattern, _)| pattern)).collect();
    assert_eq!(found, all);
}

#[test]
fn the_values_are_those_of_the_types() {
    let page = page();
    let section = |heading: &str| {
        let found = sections(&page).into_iter().find(|(other, _)| *other == heading);
        found.unwrap_or_else(|| panic!("the section {heading}")).1.to_owned()
    };
    parse_all::<EndReason>(&section("Reasons of an end"), 12);
    parse_all::<StopReason>(&section("Reasons of a turn's end"), 6);
    parse_all::<ResolvedBy>(&section("Answers to a permission request"), 7);
    let receipt = Receipt::begin("s-1".parse().expect("a valid id"), crate::KillCause::KillSession);
    let members = serde_json::to_value(receipt).expect("serializes");
    let members: BTreeSet<String> = members.as_object().expect("an object").keys().cloned().collect();
    assert_eq!(cells(&section("Receipts")).map(str::to_owned).collect::<BTreeSet<_>>(), members);
}

/// Parses each row's value.
fn parse_all<T: DeserializeOwned + Serialize>(section: &str, count: usize) {
    let rows: Vec<&str> = cells(section).filter(|cell| cell.starts_with(['"', '{'])).collect();
    assert_eq!(rows.len(), count, "{section}");
    for row in rows {
        let value: T = serde_json::from_str(row).unwrap_or_else(|error| panic!("{row}: {error}"));
        assert_eq!(serde_json::to_string(&value).expect("serializes"), row);
    }
}
