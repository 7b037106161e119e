//! Bytes exactly as another program wrote them.

use std::str;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// Unchanged bytes of another program. In JSON `{"line": "…"}` if they are UTF-8, else `{"base64": "…"}`.
#[derive(Clone, derive_more::Debug, PartialEq, Eq)]
#[debug("{:?}", String::from_utf8_lossy(_0))]
pub struct Verbatim(Box<[u8]>);

impl Verbatim {
    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl From<&[u8]> for Verbatim {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Form<'a> {
    Line(#[serde(borrow)] std::borrow::Cow<'a, str>),
    Base64(String),
}

impl Serialize for Verbatim {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        if !s.is_human_readable() {
            return s.serialize_bytes(&self.0);
        }
        let form = match str::from_utf8(&self.0) {
            Ok(line) => Form::Line(line.into()),
            Err(_) => Form::Base64(STANDARD.encode(&self.0)),
        };
        form.serialize(s)
    }
}

impl<'de> Deserialize<'de> for Verbatim {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        if !d.is_human_readable() {
            return Vec::<u8>::deserialize(d).map(|bytes| Self(bytes.into()));
        }
        match Form::deserialize(d)? {
            Form::Line(line) => Ok(Self(line.into_owned().into_bytes().into())),
            Form::Base64(text) => STANDARD.decode(text).map(|bytes| Self(bytes.into())).map_err(D::Error::custom),
        }
    }
}
