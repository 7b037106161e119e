//! Loading of rows from text.

use std::{collections::HashSet, fmt::Display};

use serde::{Deserializer, de::DeserializeOwned};
use serde_json::Value;

use super::{AgentSpec, RowError, check::suggest_known};

/// Format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum FileFormat {
    Toml,
    Json,
}

/// Reason why a file was refused.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoadError {
    /// The file does not parse.
    #[error("{file} is no {}: {reason}", match format { FileFormat::Toml => "TOML", FileFormat::Json => "JSON" })]
    Syntax {
        /// Name of the file.
        file: String,
        /// Expected format.
        format: FileFormat,
        /// Error and its position.
        reason: String,
    },
    /// The file contains no rows.
    #[error("{file} holds no agents: it has to be one row, a list of rows, or `agents` with rows in it")]
    NoRows {
        /// Name of the file.
        file: String,
    },
    /// A row is wrong.
    #[error("{file}, agent {row}, field {field}")]
    Row {
        /// Name of the file.
        file: String,
        /// Id of the row, else its number as in `#2`.
        row: String,
        /// Field with its error.
        field: RowError,
    },
}

/// Returns the JSON Schema of a catalog file: one row, a list of rows, or `agents` with rows in it.
#[cfg(feature = "catalog-files")]
pub fn schema() -> Value {
    serde_json::from_str(SCHEMA).expect("a test makes it")
}

/// Made of [`AgentSpec`] by a test, so that a build needs nothing that makes schemas.
#[cfg(any(test, feature = "catalog-files"))]
const SCHEMA: &str = include_str!("schema.json");

/// Parses the rows of a file.
pub(super) fn rows(
    text: &str,
    format: FileFormat,
    protocols: &[&str],
    file: &str,
) -> Result<Vec<AgentSpec>, LoadError> {
    let syntax =
        |reason: String| LoadError::Syntax { file: file.to_owned(), format, reason: reason.trim_end().to_owned() };
    let document: Value = match format {
        FileFormat::Json => serde_json::from_str(text).map_err(|error| syntax(error.to_string()))?,
        FileFormat::Toml => toml::from_str(text).map_err(|error| syntax(error.to_string()))?,
    };
    let no_rows = || LoadError::NoRows { file: file.to_owned() };
    let rows = match document {
        Value::Array(rows) => rows,
        Value::Object(mut object) => {
            // Editors use this key.
            object.remove("$schema");
            match object.remove("agents") {
                Some(Value::Array(rows)) if object.is_empty() => rows,
                Some(_) => return Err(no_rows()),
                None if object.is_empty() => Vec::new(),
                None => vec![Value::Object(object)],
            }
        }
        _ => return Err(no_rows()),
    };
    let mut ids = HashSet::new();
    let row = |(at, row): (usize, Value)| {
        let id = row.get("id").and_then(Value::as_str).filter(|id| !id.is_empty() && id.len() <= 64);
        let name = id.map_or_else(|| format!("#{}", at + 1), |id| format!("{id:?}"));
        let refused = |field| LoadError::Row { file: file.to_owned(), row: name.clone(), field };
        let spec: AgentSpec = typed(row).map_err(refused)?;
        spec.check(protocols).map_err(refused)?;
        if !ids.insert(spec.id.clone()) {
            return Err(refused(RowError { name: "id".into(), reason: "another row of this file has it too".into() }));
        }
        Ok(spec)
    };
    rows.into_iter().enumerate().map(row).collect()
}

/// Deserializes a value to `T`.
///
/// # Errors
/// The field that does not fit.
pub(crate) fn typed<'de, T: DeserializeOwned, E: Display>(
    value: impl Deserializer<'de, Error = E>,
) -> Result<T, RowError> {
    serde_path_to_error::deserialize(value).map_err(|error: serde_path_to_error::Error<E>| {
        let path = error.path().to_string();
        let reason = error.into_inner().to_string().trim_end().to_owned();
        // For an error in a complete row serde has no path, but its text names the field.
        let name = quoted(&reason).next().filter(|_| path == "." && reason.contains("field `"));
        let name = name.map_or_else(|| if path == "." { "(row)".to_owned() } else { path.clone() }, str::to_owned);
        RowError { name, reason: explained(&reason) }
    })
}

/// Rewrites serde's error, with the known name that an unknown one resembles.
fn explained(reason: &str) -> String {
    let mut names = quoted(reason);
    let unknown = reason.strip_prefix("unknown ").and_then(|rest| Some((rest.split_once(' ')?.0, names.next()?)));
    match unknown {
        Some((what, name)) => format!("unknown {what}: {}", suggest_known(name, &names.collect::<Vec<_>>())),
        // The value itself may be a secret.
        None if reason.starts_with("invalid ") => match reason.rsplit_once(", expected ") {
            Some((_, expected)) => format!("it has to be {expected}"),
            None => "it is of the wrong kind".to_owned(),
        },
        None => reason.to_owned(),
    }
}

/// Returns the texts between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn derived_schema() -> Value {
        let mut schema = schemars::schema_for!(AgentSpec).to_value();
        let Some(row) = schema.as_object_mut() else { return schema };
        let version = row.remove("$schema");
        let mut definitions = row.remove("$defs").unwrap_or_default();
        definitions["AgentSpec"] = schema;
        let row = serde_json::json!({ "$ref": "#/$defs/AgentSpec" });
        let rows = serde_json::json!({ "type": "array", "items": row });
        serde_json::json!({
            "$schema": version,
            "title": "Agents",
            "description": "Rows of the catalog of agents: one, a list, or `agents` with rows in it.",
            "anyOf": [
                row,
                rows,
                { "type": "object", "properties": { "$schema": true, "agents": rows }, "required": ["agents"], "additionalProperties": false },
            ],
            "$defs": definitions,
        })
    }

    #[test]
    fn the_schema_is_that_of_the_rows() {
        let derived = format!("{:#}\n", derived_schema());
        if std::env::var_os("UPDATE_SCHEMA").is_some() {
            std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/src/catalog/schema.json"), &derived).expect("written");
        }
        assert!(
            SCHEMA == derived,
            "UPDATE_SCHEMA=1 cargo test --workspace --lib the_schema_is writes src/catalog/schema.json"
        );
    }
}
