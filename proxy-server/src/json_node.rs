//! JSON of a request's body, stricter than serde's derived code by itself: a list does not count as an object (`[]` would be a kill of all), and
//! an integer with a point (`3.0`) is one, as in JSON Schema. A name that is there twice stays there twice, for the type to refuse.

use std::fmt;

use serde::{
    Deserialize, Deserializer, de,
    de::{
        DeserializeSeed, EnumAccess, Error as _, IntoDeserializer, MapAccess, SeqAccess, Unexpected, VariantAccess,
        Visitor,
        value::{MapDeserializer, SeqDeserializer, StringDeserializer},
    },
    forward_to_deserialize_any,
};
use serde_json::{Error, Number};

/// Value of JSON, with all members of its objects in their order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum JsonNode {
    Null,
    Bool(bool),
    Number(Number),
    String(String),
    Array(Vec<JsonNode>),
    Object(Vec<(String, JsonNode)>),
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = JsonNode;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_unit<E>(self) -> Result<JsonNode, E> {
        Ok(JsonNode::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<JsonNode, E> {
        Ok(JsonNode::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<JsonNode, E> {
        Ok(JsonNode::Number(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<JsonNode, E> {
        Ok(JsonNode::Number(value.into()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<JsonNode, E> {
        Number::from_f64(value).map(JsonNode::Number).ok_or_else(|| E::invalid_value(Unexpected::Float(value), &self))
    }

    fn visit_str<E>(self, value: &str) -> Result<JsonNode, E> {
        Ok(JsonNode::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<JsonNode, E> {
        Ok(JsonNode::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<JsonNode, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = list.next_element()? {
            members.push(member);
        }
        Ok(JsonNode::Array(members))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<JsonNode, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(JsonNode::Object(members))
    }
}

impl<'de> Deserialize<'de> for JsonNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

impl JsonNode {
    fn unexpected(&self) -> Unexpected<'_> {
        match self {
            Self::Null => Unexpected::Unit,
            Self::Bool(value) => Unexpected::Bool(*value),
            Self::Number(number) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
                (Some(value), ..) => Unexpected::Unsigned(value),
                (_, Some(value), _) => Unexpected::Signed(value),
                (_, _, value) => Unexpected::Float(value.unwrap_or(f64::NAN)),
            },
            Self::String(text) => Unexpected::Str(text),
            Self::Array(_) => Unexpected::Seq,
            Self::Object(_) => Unexpected::Map,
        }
    }

    /// Writes a whole number without a point. Beyond these bounds not every integer is an `f64`.
    fn whole(self) -> Self {
        let Self::Number(number) = &self else { return self };
        let whole = number.as_f64().filter(|value| number.is_f64() && value.fract() == 0.0 && value.abs() < 9e15);
        match whole.map(|value| format!("{value:.0}").parse::<i64>()) {
            Some(Ok(value)) => Self::Number(value.into()),
            _ => self,
        }
    }
}

impl IntoDeserializer<'_, Error> for JsonNode {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

/// Integers, which may have a point.
macro_rules! integers {
    ($($method:ident)+) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            self.whole().deserialize_any(visitor)
        })+
    };
}

impl<'de> Deserializer<'de> for JsonNode {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self {
            Self::Null => visitor.visit_unit(),
            Self::Bool(value) => visitor.visit_bool(value),
            Self::Number(number) => number.deserialize_any(visitor),
            Self::String(text) => visitor.visit_string(text),
            Self::Array(members) => {
                let mut list = SeqDeserializer::new(members.into_iter());
                let value = visitor.visit_seq(&mut list)?;
                list.end()?;
                Ok(value)
            }
            Self::Object(members) => {
                let mut map = MapDeserializer::new(members.into_iter());
                let value = visitor.visit_map(&mut map)?;
                map.end()?;
                Ok(value)
            }
        }
    }

    integers! {
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self {
            Self::Object(_) => self.deserialize_any(visitor),
            other => Err(Error::invalid_type(other.unexpected(), &visitor)),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self == Self::Null { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _name: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self {
            Self::String(variant) => visitor.visit_enum(NodeVariant { variant, content: None }),
            Self::Object(mut members) if members.len() == 1 => match members.pop() {
                Some((variant, content)) => visitor.visit_enum(NodeVariant { variant, content: Some(content) }),
                None => Err(Error::invalid_type(Unexpected::Map, &visitor)),
            },
            Self::Object(_) => Err(Error::invalid_value(Unexpected::Map, &"an object with one member")),
            other => Err(Error::invalid_type(other.unexpected(), &visitor)),
        }
    }

    forward_to_deserialize_any! {
        bool f32 f64 char str string bytes byte_buf unit unit_struct seq tuple tuple_struct map identifier ignored_any
    }
}

/// Variant of an enum: its name alone, or an object with its name and content.
struct NodeVariant {
    variant: String,
    content: Option<JsonNode>,
}

impl<'de> EnumAccess<'de> for NodeVariant {
    type Error = Error;
    type Variant = VariantContent;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, VariantContent), Error> {
        let name: StringDeserializer<Error> = self.variant.into_deserializer();
        Ok((seed.deserialize(name)?, VariantContent(self.content)))
    }
}

struct VariantContent(Option<JsonNode>);

impl VariantContent {
    fn content(self, expected: &'static str) -> Result<JsonNode, Error> {
        self.0.ok_or_else(|| Error::invalid_type(Unexpected::UnitVariant, &expected))
    }
}

impl<'de> VariantAccess<'de> for VariantContent {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        match self.0 {
            None | Some(JsonNode::Null) => Ok(()),
            Some(other) => Err(Error::invalid_type(other.unexpected(), &"a name alone")),
        }
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, Error> {
        seed.deserialize(self.content("an object with its content")?)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _len: usize, visitor: V) -> Result<V::Value, Error> {
        self.content("an object with its content")?.deserialize_any(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(self, _fields: &'static [&'static str], visitor: V) -> Result<V::Value, Error> {
        self.content("an object with its content")?.deserialize_struct("", &[], visitor)
    }
}

#[cfg(test)]
mod tests {
    use proxy_manager::{AgentSessionConfig, Operation, PermissionAnswer};
    use serde::de::DeserializeOwned;
    use serde_json::Value;

    use super::*;
    use crate::api::{AppendRequest, KillRequest};

    fn parse<T: DeserializeOwned>(json: &str) -> Result<T, String> {
        let node: JsonNode = serde_json::from_str(json).map_err(|error| error.to_string())?;
        T::deserialize(node).map_err(|error| error.to_string())
    }

    #[test]
    fn a_list_is_no_object() {
        for json in ["[]", "[4711]", "null", "\"all\"", "1"] {
            assert!(parse::<KillRequest>(json).expect_err("refused").contains("expected struct KillRequest"), "{json}");
        }
        assert!(parse::<AgentSessionConfig>(r#"{"agent":"a","limits":[1]}"#).is_err());
        assert!(parse::<Operation>(r#"{"setModel":["m"]}"#).is_err());
    }

    #[test]
    fn integers_may_have_a_point() {
        let grace = |json| parse::<KillRequest>(json).map(|kill| kill.grace_ms);
        assert_eq!(grace(r#"{"graceMs":500.0}"#), Ok(Some(500)));
        assert_eq!(grace(r#"{"graceMs":5e2}"#), Ok(Some(500)));
        for wrong in [r#"{"graceMs":0.5}"#, r#"{"graceMs":-1.0}"#, r#"{"graceMs":1e300}"#] {
            assert!(grace(wrong).is_err(), "{wrong}");
        }
        let append: AppendRequest = parse(r#"{"type":"a:b","payload":{"x":1.0}}"#).expect("fits");
        assert_eq!(append.payload.as_str(), r#"{"x":1.0}"#, "a payload is left as it is");
    }

    #[test]
    fn a_name_that_is_there_twice_is_refused() {
        assert!(parse::<KillRequest>(r#"{"pid":1,"pid":2}"#).expect_err("refused").contains("duplicate field"));
    }

    #[test]
    fn it_reads_what_serde_json_reads() {
        for json in [
            r#"{"agent":"a","env":{"A":"b"},"limits":{"memoryBytes":1},"onHostDeath":{"detach":{}},"home":"own","containment":null}"#,
            r#"{"agent":"a","mcpServers":[{"name":"m","transport":{"stdio":{"command":"c","args":[],"env":{}}}}],"budget":{"costUsd":0.25}}"#,
            r#"{"agent":"a","resume":{"from":"mostRecent","onMissing":{"inject":{"history":"h"}}},"terminal":{"size":{"rows":1,"columns":2}}}"#,
        ] {
            let id = r#"{"sessionId":"s-1","#;
            let json = json.replacen('{', id, 1);
            let expected: AgentSessionConfig = serde_json::from_str(&json).expect("fits");
            assert_eq!(parse::<AgentSessionConfig>(&json), Ok(expected), "{json}");
        }
        for json in [
            r#""compact""#,
            r#"{"compact":null}"#,
            r#"{"setMode":{"mode":"plan"}}"#,
            r#"{"native":{"message":[1,{"a":null}]}}"#,
        ] {
            assert_eq!(
                parse::<Operation>(json),
                serde_json::from_str::<Operation>(json).map_err(|e| e.to_string()),
                "{json}"
            );
        }
        for json in [r#""allow""#, r#"{"option":"x"}"#, r#"{"allowWith":{"input":{"a":[true,-1,1.5]}}}"#] {
            assert_eq!(parse::<PermissionAnswer>(json).expect("fits"), serde_json::from_str(json).expect("fits"));
        }
        let any = r#"{"a":[1,-2,3.5,true,null,"x"],"b":{}}"#;
        assert_eq!(parse::<Value>(any).expect("fits").to_string(), any);
        assert!(parse::<Operation>(r#"{"setMode":{"mode":"plan"},"compact":null}"#).is_err());
        assert!(parse::<Operation>(r#""setMode""#).is_err() && parse::<Operation>("3").is_err());
    }
}
