//! OpenAPI 3.1 document of the API, from the tables of routes and the types of their bodies. Programs serve the checked-in copy of it,
//! `openapi.json`; a test compares the two.
//!
//! Types have JSON schemas (of the dialect of OpenAPI 3.1) by `schemars`, behind the feature `openapi`: it follows each attribute of serde,
//! and a build without the feature has none of it.

mod document;
mod examples;
pub(crate) mod problem_sets;
mod route;
mod schemas;
#[cfg(test)]
mod tests;

pub(crate) use self::document::DocumentBuilder;

/// Returns the document, as text that ends with a newline.
pub fn document() -> String {
    let mut text = serde_json::to_string_pretty(&crate::routes::document()).unwrap_or_default();
    text.push('\n');
    text
}
