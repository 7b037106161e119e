//! JSON documents for bincode.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// JSON document kept as text: a string on our wire (bincode cannot carry arbitrary JSON), the document itself in
/// JSON.
///
/// ```
/// use ipc_protocol::Json;
/// let input = Json::new(r#"{"command":"ls"}"#).unwrap();
/// assert_eq!(serde_json::to_string(&input).unwrap(), r#"{"command":"ls"}"#);
/// ```
#[derive(Clone, derive_more::Debug, PartialEq, Eq)]
#[debug("{_0}")]
pub struct Json(Box<str>);

impl Json {
    /// Returns the JSON document `null`.
    pub fn null() -> Self {
        Self("null".into())
    }

    /// Creates a document from `text`, which must be one JSON document.
    ///
    /// # Errors
    /// If `text` is not one, with the place of the fault.
    pub fn new(text: impl Into<Box<str>>) -> Result<Self, serde_json::Error> {
        let text = text.into();
        serde_json::from_str::<serde::de::IgnoredAny>(&text)?;
        Ok(Self(text))
    }

    /// Returns the document as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Parses the document into a value.
    pub fn value(&self) -> serde_json::Value {
        serde_json::from_str(&self.0).unwrap_or(serde_json::Value::Null)
    }
}

impl From<&serde_json::Value> for Json {
    fn from(value: &serde_json::Value) -> Self {
        Self(value.to_string().into())
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        if s.is_human_readable() { self.value().serialize(s) } else { s.serialize_str(&self.0) }
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        if d.is_human_readable() {
            return serde_json::Value::deserialize(d).map(|value| Self::from(&value));
        }
        Self::new(String::deserialize(d)?).map_err(D::Error::custom)
    }
}
