//! Event with its position in a session's stream, and its JSON form.

use std::{sync::Arc, time::SystemTime};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};
use serde_json::{Map, Value, json};

use super::{Event, format_offset, parse_offset};
use crate::{Json, SessionId, terminal::Surface};

/// Error for JSON that is no [`Envelope`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnvelopeError {
    /// A field is missing or of the wrong type.
    #[error("event envelope without a usable {0:?}")]
    Field(&'static str),
    /// The payload does not fit the type.
    #[error("event of type {kind:?} does not parse")]
    Payload {
        /// Value of the envelope's `type`.
        kind: String,
        /// Error of serde.
        #[source]
        source: serde_json::Error,
    },
}

/// Event with its position in a session's stream. serde writes and reads this JSON form:
///
/// ```json
/// {"offset":"00000000000000000007","type":"stream:text","version":1,"createdAt":"2026-01-02T03:04:05.678Z",
///  "eventStreamId":"s-1","payload":{"text":"hi"},"metadata":{"turn":1}}
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Envelope {
    /// Position in the stream; the first is 1.
    pub offset: u64,
    /// Time at which the host appended the event.
    pub created_at: SystemTime,
    /// Session of the stream.
    pub session: Arc<SessionId>,
    /// Turn of the event, if any; the first is 1.
    pub turn: Option<u64>,
    /// Metadata of whoever appended the event, or sent the prompt: a JSON object without the member `turn`. In JSON its members are
    /// beside the turn. For an event of the agent's own screen: `{"surface":"terminal"}`, see [`Envelope::surface`].
    pub metadata: Option<Json>,
    /// Event itself.
    pub event: Event,
}

impl Envelope {
    /// Converts the envelope to JSON.
    ///
    /// # Errors
    /// Never for an event this crate made; serde's error otherwise.
    pub fn to_json(&self) -> Result<Value, serde_json::Error> {
        let (kind, payload) = self.event.to_parts()?;
        let mut map = Map::new();
        map.insert("offset".into(), format_offset(self.offset).into());
        map.insert("type".into(), kind.into());
        map.insert("version".into(), self.event.version().into());
        map.insert("createdAt".into(), humantime::format_rfc3339_millis(self.created_at).to_string().into());
        map.insert("eventStreamId".into(), self.session.as_str().into());
        map.insert("payload".into(), payload);
        let metadata = match (&self.metadata, self.turn) {
            (None, None) => None,
            (None, Some(turn)) => Some(json!({ "turn": turn })),
            (Some(metadata), turn) => {
                let mut metadata = metadata.value();
                if let (Some(turn), Value::Object(members)) = (turn, &mut metadata) {
                    members.insert("turn".into(), turn.into());
                }
                Some(metadata)
            }
        };
        map.extend(metadata.map(|metadata| ("metadata".into(), metadata)));
        Ok(Value::Object(map))
    }

    /// Returns [`Surface::Terminal`] for what happened on the agent's own screen.
    pub fn surface(&self) -> Option<Surface> {
        Surface::deserialize(self.metadata.as_ref()?.value().get("surface")?).ok()
    }

    /// Returns the metadata of an event that happened on this surface.
    pub fn metadata_of(surface: Surface) -> Json {
        Json::from(&json!({ "surface": surface }))
    }

    /// Estimates the envelope's memory in bytes, as [`Event::weight`] does.
    pub fn weight(&self) -> usize {
        self.event.weight() + self.metadata.as_ref().map_or(0, |metadata| metadata.as_str().len())
    }

    /// Parses an envelope from JSON.
    ///
    /// # Errors
    /// [`EnvelopeError`] with the field or type that does not fit.
    pub fn from_json(value: Value) -> Result<Self, EnvelopeError> {
        let text = |field: &'static str| value.get(field).and_then(Value::as_str).ok_or(EnvelopeError::Field(field));
        let offset = parse_offset(text("offset")?).ok_or(EnvelopeError::Field("offset"))?;
        let created_at = humantime::parse_rfc3339(text("createdAt")?).map_err(|_| EnvelopeError::Field("createdAt"))?;
        let session = text("eventStreamId")?.parse().map_err(|_| EnvelopeError::Field("eventStreamId"))?;
        let kind = text("type")?.to_owned();
        let turn = value.pointer("/metadata/turn").and_then(Value::as_u64);
        let metadata = value.get("metadata").and_then(Value::as_object).cloned().and_then(|mut members| {
            members.remove("turn");
            (!members.is_empty()).then(|| Json::from(&Value::Object(members)))
        });
        let payload = value.get("payload").cloned().unwrap_or(Value::Null);
        let version =
            value.get("version").and_then(Value::as_u64).and_then(|version| version.try_into().ok()).unwrap_or(1);
        let event =
            Event::from_parts(&kind, version, payload).map_err(|source| EnvelopeError::Payload { kind, source })?;
        Ok(Self { offset, created_at, session: Arc::new(session), turn, metadata, event })
    }
}

impl Serialize for Envelope {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_json().map_err(ser::Error::custom)?.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Envelope {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_json(Value::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}
