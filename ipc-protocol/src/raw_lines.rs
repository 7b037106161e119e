//! Bytes exactly as another program wrote them.

use std::str;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use serde_json::Value;

/// Unchanged bytes of another program. In JSON `{"line": "…"}` if they are UTF-8, else `{"base64": "…"}`. Other members are skipped.
#[derive(Clone, derive_more::Debug, PartialEq, Eq)]
#[debug("{:?}", String::from_utf8_lossy(_0))]
pub struct RawLine(Box<[u8]>);

impl RawLine {
    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Parses a whole line that is a JSON object or array; `None` for any other, such as a piece of a long line.
    pub fn json(&self) -> Option<Value> {
        let text = self.0.trim_ascii();
        if !matches!(text.first(), Some(b'{' | b'[')) {
            return None;
        }
        serde_json::from_slice(text).ok()
    }
}

impl From<&[u8]> for RawLine {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum RawLineForm<'a> {
    Line(&'a str),
    Base64(String),
}

#[derive(Deserialize)]
struct RawLineRead {
    line: Option<String>,
    base64: Option<String>,
}

impl Serialize for RawLine {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        if !s.is_human_readable() {
            return s.serialize_bytes(&self.0);
        }
        let form = match str::from_utf8(&self.0) {
            Ok(line) => RawLineForm::Line(line),
            Err(_) => RawLineForm::Base64(STANDARD.encode(&self.0)),
        };
        form.serialize(s)
    }
}

impl<'de> Deserialize<'de> for RawLine {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        if !d.is_human_readable() {
            return Vec::<u8>::deserialize(d).map(|bytes| Self(bytes.into()));
        }
        match RawLineRead::deserialize(d)? {
            RawLineRead { line: Some(line), base64: None } => Ok(Self(line.into_bytes().into())),
            RawLineRead { line: None, base64: Some(text) } => {
                STANDARD.decode(text).map(|bytes| Self(bytes.into())).map_err(D::Error::custom)
            }
            _ => Err(D::Error::custom("a raw line has either `line` or `base64`")),
        }
    }
}
