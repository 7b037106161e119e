//! Listings beside the page that shows them.

use std::fs;

use serde_json::Value;

use crate::shape::shape;

/// Fails the test unless `docs/listings.md` shows these members below the heading, in its first JSON. Returns the listing.
#[track_caller]
pub(crate) fn documented(heading: &str, listing: Value) -> Value {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/listings.md");
    let page = fs::read_to_string(page).expect("the page");
    let below = page.split_once(&format!("\n## `{heading}`\n")).expect("it is on the page").1;
    let json = below.split_once("```json\n").and_then(|(_, json)| json.split_once("```")).expect("its JSON is shown").0;
    let shown: Value = serde_json::from_str(json).expect("JSON");
    if let Err(why) = shape("", &shown, &listing) {
        panic!("docs/listings.md, {heading}: {why}: {listing}");
    }
    listing
}
