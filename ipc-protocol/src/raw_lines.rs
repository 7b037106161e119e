//! Bytes exactly as another program wrote them.

use std::str;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// Unchanged bytes of another program. In JSON `{"line": "…"}` if they are UTF-8, else `{"base64": "…"}`.
#[derive(Clone, derive_more::Debug, PartialEq, Eq)]
#[debug("{:?}", String::from_utf8_lossy(_0))]
pub struct RawLine(Box<[u8]>);

impl RawLine {
    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl From<&[u8]> for RawLine {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RawLineForm<'a> {
    Line(#[serde(borrow)] std::borrow::Cow<'a, str>),
    Base64(String),
}

impl Serialize for RawLine {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        if !s.is_human_readable() {
            return s.serialize_bytes(&self.0);
        }
        let form = match str::from_utf8(&self.0) {
            Ok(line) => RawLineForm::Line(line.into()),
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
        match RawLineForm::deserialize(d)? {
            RawLineForm::Line(line) => Ok(Self(line.into_owned().into_bytes().into())),
            RawLineForm::Base64(text) => {
                STANDARD.decode(text).map(|bytes| Self(bytes.into())).map_err(D::Error::custom)
            }
        }
    }
}
