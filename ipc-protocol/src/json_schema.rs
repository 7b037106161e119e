//! JSON schemas of types whose JSON form is not that of their fields.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::{Envelope, HomePart, Json, NetworkRule, SessionId, SignalNumber, Usd};

/// Time as text in JSON.
#[derive(Debug)]
pub struct TimeText;

/// Offset as text in JSON.
#[derive(Debug)]
pub struct OffsetText;

/// Implements [`JsonSchema`]: a schema with a name, or with `inline` one that stands where it is used.
macro_rules! schema {
    ($type:ty, $name:literal, $generator:ident => $schema:expr) => {
        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                $name.into()
            }

            fn json_schema($generator: &mut SchemaGenerator) -> Schema {
                $schema
            }
        }
    };
    (inline $type:ty, $name:literal, $schema:expr) => {
        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                $name.into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                $schema
            }
        }
    };
}

schema!(inline TimeText, "TimeText", json_schema!({ "type": "string", "format": "date-time" }));
schema!(inline OffsetText, "OffsetText", json_schema!({ "type": "string", "pattern": "^[0-9]{20}$" }));
schema!(inline Json, "Json", json_schema!({ "description": "Any JSON." }));
schema!(inline Usd, "Usd", json_schema!({ "type": "number", "minimum": 0, "maximum": 1_000_000_000 }));
schema!(inline SignalNumber, "SignalNumber", json_schema!({
    "anyOf": [
        { "type": "string", "pattern": "^(SIG)?[A-Z0-9]+$", "examples": ["SIGINT"] },
        { "type": "integer", "minimum": 1, "maximum": 64 },
    ],
}));
schema!(SessionId, "SessionId", _generator => json_schema!({
    "type": "string",
    "description": "Id of a session.",
    "pattern": "^(?!\\.{1,2}$)[A-Za-z0-9._-]{1,64}$",
}));
schema!(NetworkRule, "NetworkRule", _generator => json_schema!({
    "type": "string",
    "description": "Allowed host: a name, `*.NAME` for all names below one, or an address; with `:PORT` for a port other than 80 and 443.",
    "minLength": 1,
}));
schema!(HomePart, "HomePart", _generator => json_schema!({
    "type": "string",
    "description": "Part of the user's home: `login`, `skills`, or a path below the home.",
    "minLength": 1,
}));
schema!(Envelope, "Envelope", generator => json_schema!({
    "type": "object",
    "description": "Event with its position in a session's stream. A new release may add types, and members to payloads.",
    "properties": {
        "offset": { "type": "string", "pattern": "^[0-9]{20}$", "description": "Position in the session's stream: 1, 2, 3, …" },
        "position": { "type": "string", "pattern": "^[0-9]{20}$", "description": "Place among the events of all sessions; absent where one session is read." },
        "type": { "type": "string", "description": "Type of the event." },
        "version": { "type": "integer", "minimum": 0, "description": "Version of the payload's shape." },
        "createdAt": { "type": "string", "format": "date-time", "description": "Time of the append." },
        "eventStreamId": generator.subschema_for::<SessionId>(),
        "payload": { "description": "Content, by type." },
        "metadata": {
            "type": "object",
            "description": "The turn, and what the caller gave with the append or the prompt.",
            "properties": {
                "turn": { "type": "integer", "minimum": 1, "description": "Number of the turn; absent outside of turns." },
                "surface": { "const": "terminal", "description": "Present for what happened on the agent's own screen." },
            },
        },
    },
    "required": ["offset", "type", "version", "createdAt", "eventStreamId", "payload"],
}));
